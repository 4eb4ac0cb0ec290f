"""Error responses: problem documents, with their headers."""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from fairqr.base.errors import FairqrError, one_line
from fairqr.graph.service.problems import MEDIA_TYPE, problem, problem_of

log = logging.getLogger(__name__)

_HTTP = {
    404: ("not-found", "Not found", "There is nothing at this path; see /openapi.json."),
    405: (
        "method-not-allowed",
        "Method not allowed",
        "This path has no such method; see /openapi.json.",
    ),
}
MANY_ERRORS = 10

OPENAI = "/openai/"
"""Below this path everything has the form of OpenAI's API, errors included."""

_OPENAI_CODES = {"access": "invalid_api_key", "index-not-found": "model_not_found"}
"""OpenAI's codes for the errors that its clients recognise."""


def as_json(content: Any) -> bytes:
    """Return JSON in UTF-8. Lone surrogates, which a model may write, are replaced."""
    with contextlib.suppress(ValueError):
        return to_json(content, inf_nan_mode="null")
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode(errors="replace")


class Json(JSONResponse):
    """A JSON response."""

    def render(self, content: Any) -> bytes:
        """Return the content as UTF-8."""
        return as_json(content)


class ProblemResponse(Json):
    """A problem document; on OpenAI's paths, an error in their form.

    It leaves its type in the connection's state, for the metrics.

    Args:
        document: The problem, as :func:`problem_of` makes it.
        headers: Further headers; Retry-After and WWW-Authenticate are added where they belong.
    """

    media_type = MEDIA_TYPE

    def __init__(self, document: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        sent = dict(headers or {})
        if "retry_after" in document:
            sent["Retry-After"] = str(max(1, math.ceil(document["retry_after"])))
        if document["status"] == 401:
            sent["WWW-Authenticate"] = 'Bearer realm="fairqr"'
        super().__init__(document, document["status"], sent)
        self._document, self._sent = document, sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        scope.setdefault("state", {})["problem"] = _slug_of(self._document)
        if not scope.get("path", "").startswith(OPENAI):
            return await super().__call__(scope, receive, send)
        # OpenAI's clients expect this status for every wrong request.
        status = 400 if self.status_code == 422 else self.status_code
        response = Json(openai_error(self._document), status, self._sent)
        return await response(scope, receive, send)


def openai_error(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a problem document in the form of OpenAI's errors."""
    slug, status = _slug_of(document), document["status"]
    kind = "server_error" if status >= 500 else "invalid_request_error"
    field = document.get("cap") or next((it["field"] for it in document.get("errors", ())), None)
    return {
        "error": {
            "message": document["detail"],
            "type": "rate_limit_error" if status == 429 else kind,
            "param": "model" if slug == "index-not-found" else field,
            "code": _OPENAI_CODES.get(slug, slug),
        }
    }


def _slug_of(document: Mapping[str, Any]) -> str:
    slug: str = document["type"].rpartition(":")[2]
    return slug


def handle_errors(app: FastAPI) -> None:
    """Make an application answer all errors with problem documents."""
    app.add_exception_handler(FairqrError, _fairqr_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)


async def _fairqr_error(request: Request, error: Exception) -> JSONResponse:
    return ProblemResponse(problem_of(error, request.url.path))


async def _validation_error(request: Request, error: Any) -> JSONResponse:
    errors = [
        {"field": _place(each["loc"]), "reason": _reason(each)}
        for each in error.errors()[:MANY_ERRORS]
    ]
    first = errors[0]
    named = f"The parameter '{first['field']}' is wrong" if first["field"] else "The body is wrong"
    document = problem(
        "input",
        422,
        "A parameter is wrong",
        f"{named}: {first['reason']}.",
        request.url.path,
        errors=errors,
    )
    return ProblemResponse(document)


async def _http_error(request: Request, error: Any) -> JSONResponse:
    slug, title, detail = _HTTP.get(
        error.status_code, ("request", "The request cannot be served", "Correct the request.")
    )
    document = problem(slug, error.status_code, title, detail)
    return ProblemResponse(document, dict(error.headers or {}))


def _reason(error: Mapping[str, Any]) -> str:
    if error["type"] == "extra_forbidden":
        return "it does not exist; leave it out"
    return str(error["msg"]).removeprefix("Value error, ")


def _place(where: tuple[int | str, ...]) -> str:
    """Return the place of a value within its part of the request; long names are cut."""
    parts = [str(part) for part in where]
    if parts and parts[0] in ("body", "query", "path", "header"):
        parts = parts[1:]
    return one_line(".".join(parts), 100)
