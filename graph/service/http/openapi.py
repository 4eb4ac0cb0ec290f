"""The description of the API: what FastAPI does not derive from the routes."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, ConfigDict, Field

from fairqr.graph.answer.result import AnswerResult
from fairqr.graph.probe.result import ProbeResult
from fairqr.graph.search.result import SearchResult
from fairqr.graph.service.engine.audits import AuditResult
from fairqr.graph.service.http.access import needed
from fairqr.graph.service.problems import MEDIA_TYPE
from fairqr.graph.step_data import StepData

TAGS = [
    {"name": "ask", "description": "Searches, answers and probes, as one response or as a stream."},
    {"name": "runs", "description": "Runs in the background, and past runs."},
    {
        "name": "audits",
        "description": "Who gets seen in the results of a source over many queries.",
    },
    {"name": "offers", "description": "The sources, models, prompts and methods to choose from."},
    {"name": "openai", "description": "Answers in the form of OpenAI's API; a source is a model."},
    {"name": "operation", "description": "For whoever runs the service."},
]

DESCRIPTION = (
    "Fair search, fair answers, and probes of language models as rankers. The requests and results "
    "are those of the Python API. Errors are problem documents (RFC 9457) of the types "
    "`urn:fairqr:error:…`; below `/openai/` they have OpenAI's form. Streams are server-sent "
    "events: `id` is the number of the event, `event` one of `run`, `step`, `token`, `end` and "
    "`error`, and `data` a JSON object. A `token` has no id, since it is sent only once."
)

_REASONS = {
    400: "The body is not JSON.",
    401: "The access key is missing, does not exist or was revoked.",
    403: "The key does not allow this, or the request names something that is not offered.",
    404: "The run or index does not exist, or belongs to another key.",
    405: "The path has no such method.",
    408: "The body did not arrive in time.",
    409: "The run was cancelled.",
    413: "The body is too large.",
    415: "The content type is not JSON.",
    422: "A parameter is wrong or exceeds a cap; the answer names it.",
    429: "This key sends too many requests, or has too many live runs; see Retry-After.",
    502: "The model gave no usable reply.",
    503: "The service is busy or stopping, or cannot reach its index, model or database.",
    504: "The run took too long.",
}


class FieldError(BaseModel):
    """What is wrong with one parameter."""

    field: str = Field(description="Its name, with dots; empty for the whole request.")
    reason: str


class Problem(BaseModel):
    """A problem document of RFC 9457."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "example": {
                "type": "urn:fairqr:error:over-cap",
                "title": "The request exceeds a cap",
                "status": 422,
                "detail": "'k' is 1,000, and this service allows at most 100 (k); ask for less.",
                "instance": "/v1/search",
                "cap": "k",
                "limit": 100,
            }
        },
    )

    type: str = Field(description="`urn:fairqr:error:` and the name of a class of errors.")
    title: str
    status: int
    detail: str = Field(description="One sentence that says what is wrong and what to do.")
    instance: str | None = Field(None, description="The path of the request or the run.")
    errors: list[FieldError] | None = Field(None, description="All wrong parameters of a request.")
    cap: str | None = Field(None, description="The exceeded cap.")
    limit: float | None = Field(None, description="The value of the cap.")
    retry_after: float | None = Field(None, description="Seconds to wait before the next try.")
    model_status: str | None = Field(None, description="How the question to the model ended.")


class TokenData(BaseModel):
    """A piece of an answer that is being written."""

    text: str


class EndData(BaseModel):
    """The end of a successful run."""

    run: str = Field(description="The id of the run.")
    result: SearchResult | AnswerResult | ProbeResult | AuditResult


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the descriptions of the errors of a route."""
    return {status: _problem(_REASONS[status]) for status in (401, 403, 404, 405, 409, *statuses)}


class _OpenAIErrorBody(BaseModel):
    message: str = Field(description="One sentence that says what is wrong and what to do.")
    type: str
    param: str | None = Field(description="The wrong parameter.")
    code: str | None = Field(description="OpenAI's code, or the name of a class of our errors.")


class OpenAIError(BaseModel):
    """An error in the form of OpenAI's API."""

    error: _OpenAIErrorBody


def openai_problems() -> dict[int | str, dict[str, Any]]:
    """Return the descriptions of the errors of OpenAI's routes."""
    reasons = {**_REASONS, 400: "The request is wrong or exceeds a cap."}
    del reasons[422]
    return {status: {"description": it, "model": OpenAIError} for status, it in reasons.items()}


def _problem(reason: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Problem"}
    return {"description": reason, "content": {MEDIA_TYPE: {"schema": schema}}}


_LOCATION = {
    "Location": {
        "description": "The path of the run.",
        "schema": {"type": "string", "examples": ["/v1/runs/0f3c…"]},
    }
}
RESULT: dict[int | str, dict[str, Any]] = {
    200: {"description": "The result.", "headers": _LOCATION}
}
ACCEPTED: dict[int | str, dict[str, Any]] = {
    202: {"description": "The accepted run.", "headers": _LOCATION}
}

_EVENTS = (
    'id: 1\nevent: run\ndata: {"id":"…","kind":"search","status":"running",…}\n\n'
    'id: 2\nevent: step\ndata: {"step":"measure","round":{…}}\n\n'
    ": still here\n\n"
    'id: 9\nevent: end\ndata: {"run":"…","result":{…}}\n\n'
)
_EVENT = {
    "type": "object",
    "description": "One event of the stream.",
    "required": ["event", "data"],
    "properties": {
        "id": {"type": "string", "description": "Its number, for Last-Event-ID."},
        "event": {"enum": ["run", "step", "token", "end", "error"]},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "description": "For `run`, its summary; for `step`, its outcome; for `token`, `text`, "
            "a piece of an answer; for `end`, the id as `run`, and `result`; for `error`, the "
            "problem.",
            "contentSchema": {
                "anyOf": [
                    {"$ref": f"#/components/schemas/{name}"}
                    for name in ("RunSummary", "StepData", "TokenData", "EndData", "Problem")
                ]
            },
        },
    },
}
STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Server-sent events.",
        "headers": _LOCATION,
        "content": {"text/event-stream": {"schema": _EVENT, "example": _EVENTS}},
    }
}


CHUNKS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer; with `stream`, its chunks as server-sent events.",
        "content": {
            "text/event-stream": {
                "schema": {
                    "type": "object",
                    "required": ["data"],
                    "properties": {
                        "data": {
                            "type": "string",
                            "description": "A chunk, an error, or `[DONE]` at the end.",
                        }
                    },
                }
            }
        },
    }
}


def describe(app: FastAPI, *, keys: bool) -> None:
    """Add the description of the API to an application.

    Args:
        app: The application.
        keys: Whether requests need access keys.
    """

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _described(app, keys=keys)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _described(app: FastAPI, *, keys: bool) -> dict[str, Any]:
    document = get_openapi(
        title=app.title,
        version=app.version,
        description=DESCRIPTION,
        routes=app.routes,
        tags=TAGS,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
    )
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for model in (Problem, StepData, TokenData, EndData):
        own = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(own.pop("$defs", {}) | {model.__name__: own} | schemas)
    for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's errors; ours differ
        schemas.pop(name, None)
    components["securitySchemes"] = {
        "key": {
            "type": "http",
            "scheme": "bearer",
            "description": "An access key from `fairqr keys create`. Its scope is `read`, `run` "
            "(which includes `read`) or `admin` (which includes both). On loopback no key is "
            "needed, unless the service requires one.",
        }
    }
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if needed(method.upper(), path):
                operation["security"] = [{"key": []}] if keys else [{"key": []}, {}]
            for status, answer in operation["responses"].items():
                if status in ("200", "202") and "description" not in answer:
                    answer["description"] = "OK"
    return document
