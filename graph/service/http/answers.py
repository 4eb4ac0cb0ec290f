"""Answers that are no result: problem documents, with the headers that go with them."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from fairqr.base.errors import FairqrError, one_line
from fairqr.graph.service.problems import MEDIA_TYPE, problem, problem_of

__all__ = [
    "OPENAI",
    "Json",
    "ProblemResponse",
    "handle_errors",
    "openai_error",
    "problem_response",
]

log = logging.getLogger(__name__)

_HTTP = {
    404: (
        "not-found",
        "There is nothing here",
        "There is nothing at this path; see /openapi.json.",
    ),
    405: (
        "method-not-allowed",
        "This method is not for this path",
        "This path has no such method; see /openapi.json.",
    ),
}
MANY_ERRORS = 20

OPENAI = "/openai/"
"""Below this path requests and answers, also errors, have the form of OpenAI's API."""

_OPENAI_CODES = {"access": "invalid_api_key", "index-not-found": "model_not_found"}
"""OpenAI's own codes, for the errors that its clients look for."""


class Json(JSONResponse):
    """An object; halves of characters, which a model or a document may hold, are replaced."""

    def render(self, content: Any) -> bytes:
        """Return it as UTF-8."""
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode(errors="replace")


class ProblemResponse(Json):
    """A problem document, or an error in OpenAI's form on the paths that speak it.

    Its kind is left in the connection's state, for the figures.
    """

    media_type = MEDIA_TYPE

    def __init__(self, document: dict[str, Any], headers: dict[str, str]) -> None:
        super().__init__(document, document["status"], headers)
        self._document, self._sent = document, headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        scope.setdefault("state", {})["problem"] = _slug_of(self._document)
        if not scope.get("path", "").startswith(OPENAI):
            return await super().__call__(scope, receive, send)
        # OpenAI has one status for what is wrong with a request, and its clients look for that.
        status = 400 if self.status_code == 422 else self.status_code
        response = Json(openai_error(self._document), status, self._sent)
        return await response(scope, receive, send)


def problem_response(
    document: dict[str, Any], headers: dict[str, str] | None = None
) -> ProblemResponse:
    """Return the answer that tells of a problem.

    Args:
        document: As :func:`problem_of` makes it.
        headers: More; Retry-After and WWW-Authenticate are there where they belong.
    """
    sent = dict(headers or {})
    if "retry_after" in document:
        sent["Retry-After"] = str(max(1, math.ceil(document["retry_after"])))
    if document["status"] == 401:
        sent["WWW-Authenticate"] = 'Bearer realm="fairqr"'
    return ProblemResponse(document, sent)


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
    """Have an application answer all errors as problems."""
    app.add_exception_handler(FairqrError, _fairqr_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)


async def _fairqr_error(request: Request, error: Exception) -> JSONResponse:
    return problem_response(problem_of(error, request.url.path))


async def _validation_error(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, RequestValidationError):
        raise error
    errors = [
        {"field": _place(each["loc"]), "reason": each["msg"].removeprefix("Value error, ")}
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
    return problem_response(document)


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, HTTPException):
        raise error
    slug, title, detail = _HTTP.get(
        error.status_code, ("request", "The request cannot be served", "Mend the request.")
    )
    document = problem(slug, error.status_code, title, detail)
    return problem_response(document, dict(error.headers or {}))


def _place(where: tuple[int | str, ...]) -> str:
    """Return where a value stands, without what every body has; hostile names are cut."""
    parts = [str(part) for part in where]
    if parts and parts[0] in ("body", "query", "path", "header"):
        parts = parts[1:]
    return one_line(".".join(parts), 100)
