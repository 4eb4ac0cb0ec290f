"""The description of the API: what FastAPI does not derive from the routes."""

from __future__ import annotations

from typing import Any

from fastapi.security import HTTPBearer
from pydantic import BaseModel, ConfigDict, Field

from fairqr.graph.service.problems import MEDIA_TYPE

Responses = dict[int | str, dict[str, Any]]

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
    "events: `id` is the number of the event, `event` one of `run` (its summary), `step` (its "
    "outcome), `token` (`text`, a piece of an answer), `end` (the id as `run`, and the `result`) "
    "and `error` (the problem), and `data` a JSON object. A `token` has no id, since it is sent "
    "only once. Comments show that a stream is alive."
)

KEY = HTTPBearer(
    scheme_name="key",
    description="An access key from `fairqr keys create`. Its scope is `read`, `run` (which "
    "includes `read`) or `admin` (which includes both). On loopback no key is needed, unless the "
    "service requires one.",
    auto_error=False,
)
"""Describes the keys that the guard checks."""


class FieldError(BaseModel):
    """What is wrong with one parameter."""

    field: str = Field(description="Its name, with dots; empty for the whole request.")
    reason: str


class Problem(BaseModel):
    """A problem document of RFC 9457."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(
        description="`urn:fairqr:error:` and the name of a class of errors.",
        examples=["urn:fairqr:error:over-cap"],
    )
    title: str
    status: int
    detail: str = Field(description="One sentence that says what is wrong and what to do.")
    instance: str | None = Field(None, description="The path of the request or the run.")
    errors: list[FieldError] | None = Field(None, description="All wrong parameters of a request.")
    cap: str | None = Field(None, description="The exceeded cap.")
    limit: float | None = Field(None, description="The value of the cap.")
    retry_after: float | None = Field(None, description="Seconds to wait before the next try.")
    model_status: str | None = Field(None, description="How the question to the model ended.")


class _OpenAIErrorBody(BaseModel):
    message: str = Field(description="One sentence that says what is wrong and what to do.")
    type: str
    param: str | None = Field(description="The wrong parameter.")
    code: str | None = Field(description="OpenAI's code, or the name of a class of our errors.")


class OpenAIError(BaseModel):
    """An error in the form of OpenAI's API."""

    error: _OpenAIErrorBody


PROBLEMS: Responses = {
    "default": {
        "description": "A problem document.",
        "model": Problem,
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
}
OPENAI_PROBLEMS: Responses = {"default": {"description": "An error.", "model": OpenAIError}}

_LOCATION = {"Location": {"description": "The path of the run.", "schema": {"type": "string"}}}


def located(status: int) -> Responses:
    """Return the description of an answer that names the path of its run."""
    return {status: {"description": "The result, or the accepted run.", "headers": _LOCATION}}
