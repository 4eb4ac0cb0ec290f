"""What the service answers with: JSON, problem documents, and server-sent events."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from typing import Any, Literal

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from openai.types import ErrorObject
from pydantic import BaseModel, Field
from pydantic_core import to_json, to_jsonable_python
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.routing import Match, Mount
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairqr.base.errors import FairqrError, one_line
from fairqr.graph.service.problems import MEDIA_TYPE, problem, problem_of

Responses = dict[int | str, dict[str, Any]]

MANY_ERRORS = 10
"""The most wrong parameters that a problem names."""

OPENAI = "/openai/"
"""Below this path everything has the form of OpenAI's API, errors included."""

_OPENAI_CODES = {"access": "invalid_api_key", "index-not-found": "model_not_found"}
"""OpenAI's codes for the errors that its clients recognise."""

# The last part of the type, and the title, of problems that no error of ours stands for.
_HTTP = {
    400: ("malformed", "The request cannot be read"),
    404: ("not-found", "There is nothing at this path"),
    405: ("method-not-allowed", "This path has no such method"),
    408: ("slow-body", "The body did not arrive in time"),
    413: ("over-limit", "The body is too large"),
    415: ("media-type", "The media type is not supported"),
    416: ("range", "The file has no such part"),
}
CLOSES = {"Connection": "close"}
"""Headers if we do not wait for the rest of a request."""

_HEADERS_OF_BODIES = ("content-type", "content-length")
_LINE_BREAKS = {ord(mark): f"\\u{ord(mark):04x}" for mark in "\u0085\u2028\u2029"}


class Problem(BaseModel, extra="allow"):
    """A problem document of RFC 9457."""

    type: str = Field(
        description="`urn:fairqr:error:` and the name of a class of errors, such as `over-limit`."
    )
    title: str
    status: int
    detail: str = Field(description="One sentence that says what is wrong and what to do.")
    instance: str | None = Field(None, description="The path of the request or the run.")
    errors: list[dict[Literal["field", "reason"], str]] | None = Field(
        None,
        description=(
            "All wrong parameters of a request: for each, its `field`, with dots and empty for the "
            "whole request, and the `reason`."
        ),
    )
    limit: str | None = Field(None, description="The name of the exceeded limit.")
    most: float | None = Field(None, description="Its value.")
    retry_after: float | None = Field(None, description="Seconds to wait before the next try.")
    model_status: str | None = Field(None, description="How the question to the model ended.")


METHODS = ("DELETE", "GET", "HEAD", "POST")
"""Those that any of our routes has."""


class OpenAIError(BaseModel):
    """An error in the form of OpenAI's API."""

    error: ErrorObject


PROBLEMS: Responses = {
    "default": {
        "description": "A problem document.",
        "model": Problem,
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
}
OPENAI_PROBLEMS: Responses = {"default": {"description": "An error.", "model": OpenAIError}}


class Json(JSONResponse):
    """JSON in UTF-8 of plain data and models."""

    def render(self, content: Any) -> bytes:
        """Return the content. Lone surrogates, which a model may write, are replaced."""
        with contextlib.suppress(ValueError):
            return to_json(content, inf_nan_mode="null")
        text = json.dumps(to_jsonable_python(content, inf_nan_mode="null"), ensure_ascii=False)
        return text.encode(errors="replace")


def refusal(
    scope: Scope, document: Mapping[str, Any], headers: Mapping[str, str] | None = None
) -> Json:
    """Return a problem document as a response; on OpenAI's paths, an error in their form.

    Its type is left in the connection's state, for the metrics.

    Args:
        scope: The connection.
        document: The problem, as :func:`problem_of` makes it.
        headers: Further headers; Retry-After and WWW-Authenticate are added where they belong.
    """
    status = document["status"]
    all_headers = dict(headers or {})
    if "retry_after" in document:
        seconds = max(1, math.ceil(document["retry_after"]))
        all_headers["Retry-After"] = str(seconds)
    if status == 401:
        all_headers["WWW-Authenticate"] = 'Bearer realm="fairqr"'
    scope.setdefault("state", {})["problem"] = _slug_of(document)

    if not scope["path"].startswith(OPENAI):
        return Json(document, status, all_headers, MEDIA_TYPE)
    # OpenAI's clients expect this status for every wrong request.
    openai_status = 400 if status == 422 else status
    return Json(openai_error(document), openai_status, all_headers)


def openai_error(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a problem document in the form of OpenAI's errors."""
    slug = _slug_of(document)
    status = document["status"]
    if status == 429:
        kind = "rate_limit_error"
    elif status >= 500:
        kind = "server_error"
    else:
        kind = "invalid_request_error"

    wrong_fields = [error["field"] for error in document.get("errors", ())]
    parameter = document.get("limit") or next(iter(wrong_fields), None)
    if slug == "index-not-found":
        parameter = "model"
    error = {
        "message": document["detail"],
        "type": kind,
        "param": parameter,
        "code": _OPENAI_CODES.get(slug, slug),
    }
    return {"error": error}


def _slug_of(document: Mapping[str, Any]) -> str:
    """Return the last part of the type of a problem."""
    return str(document["type"]).rpartition(":")[2]


async def answer_error(request: Request, error: Any) -> Json:
    """Return the problem document of an error."""
    path = request.scope["path"]
    if isinstance(error, HTTPException):
        document = _document_of_http(error)
        headers = _headers_of_http(request, error)
        return refusal(request.scope, document, headers)
    if isinstance(error, RequestValidationError):
        return refusal(request.scope, _document_of_parameters(error, path))
    return refusal(request.scope, problem_of(error, path))


def _document_of_http(error: HTTPException) -> dict[str, Any]:
    """Return the problem document of an HTTPException.

    The detail of an exception of ours has members of the document.
    """
    slug, title = _http_kind(error.status_code)
    document = problem(slug, error.status_code, title, f"{title}; see /openapi.json.")
    members: Any = error.detail
    if isinstance(members, dict):
        document |= members
    return document


def _headers_of_http(request: Request, error: HTTPException) -> Mapping[str, str] | None:
    """Return the headers of an HTTPException; for a wrong method, they name the right ones."""
    if error.status_code != 405:
        return error.headers
    methods = _methods_of(request)
    if not methods:
        return error.headers
    return {**(error.headers or {}), "Allow": ", ".join(methods)}


def _document_of_parameters(error: RequestValidationError, path: str) -> dict[str, Any]:
    """Return the problem document of a request with wrong parameters."""
    wrong_parameters = []
    for detail in error.errors()[:MANY_ERRORS]:
        field = _field_of(detail["loc"])
        wrong_parameters.append({"field": field, "reason": _reason(detail)})

    first = wrong_parameters[0]
    subject = "The body is wrong"
    if first["field"]:
        subject = f"The parameter '{first['field']}' is wrong"
    sentence = f"{subject}: {first['reason']}."
    return problem("input", 422, "A parameter is wrong", sentence, path, errors=wrong_parameters)


def _methods_of(request: Request) -> list[str]:
    """Return the methods of a path, which several routes may share; empty if it has no route."""
    routes = request.scope["app"].routes if "app" in request.scope else []

    def is_served(method: str) -> bool:
        scope = {**request.scope, "method": method}
        matches = [route for route in routes if route.matches(scope)[0] is Match.FULL]
        if matches and isinstance(matches[0], Mount):  # the files of the page
            return method in ("GET", "HEAD")
        return bool(matches)

    return [*filter(is_served, METHODS)]


class PlainErrors:
    """Answers with problems where libraries answer with errors in plain text.

    They do so if they cannot follow a header, as a range that a file does not have.

    Args:
        app: The application inside.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        is_plain_error = False

        async def send_problem(message: Message) -> None:
            nonlocal is_plain_error
            if message["type"] == "http.response.start":
                headers = Headers(raw=message["headers"])
                is_text = headers.get("content-type", "").startswith("text/plain")
                is_plain_error = is_text and message["status"] >= 400
                if is_plain_error:
                    response = _problem_for(scope, message["status"], headers)
                    await response(scope, receive, send)
            if not is_plain_error:
                await send(message)

        await self._app(scope, receive, send_problem)


def _problem_for(scope: Scope, status: int, headers: Headers) -> Json:
    """Return the problem that takes the place of an error in plain text, with its headers."""
    slug, title = _http_kind(status)
    sentence = "The service cannot follow a header of the request, such as Range; change it."
    kept_headers = {
        name: value for name, value in headers.items() if name not in _HEADERS_OF_BODIES
    }
    return refusal(scope, problem(slug, status, title, sentence), kept_headers)


def _http_kind(status: int) -> tuple[str, str]:
    """Return the last part of the type, and the title, of a problem of HTTP itself."""
    return _HTTP.get(status, ("request", "The request cannot be served"))


_ERRORS = (FairqrError, RequestValidationError, HTTPException)
HANDLERS: dict[Any, Any] = dict.fromkeys(_ERRORS, answer_error)


def _reason(error: Mapping[str, Any]) -> str:
    """Return why a parameter is wrong."""
    if error["type"] == "extra_forbidden":
        return "it does not exist; leave it out"
    return str(error["msg"]).removeprefix("Value error, ")


def _field_of(location: tuple[int | str, ...]) -> str:
    """Return the name of a wrong field within its part of the request; long names are cut."""
    parts = location
    if parts and parts[0] in ("body", "query", "path", "header"):
        parts = parts[1:]
    return one_line(".".join(map(str, parts)), 100)


def compact(data: Mapping[str, Any]) -> str:
    """Return the data of an event as one line of JSON.

    We escape Unicode's line breaks, since some clients split lines there.
    """
    return bytes(Json(data).body).decode().translate(_LINE_BREAKS)
