"""Errors as problem documents (RFC 9457): what is wrong, in one sentence, and what to do."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairqr.base.errors import (
    AccessError,
    BuildInProgressError,
    BusyError,
    CapError,
    ConfigError,
    DocumentNotFoundError,
    FairqrError,
    IndexNotFoundError,
    IndexUnavailableError,
    IndexVersionError,
    InputError,
    ModelError,
    ModelUnavailableError,
    NotAllowedError,
    PromptError,
    RunCancelledError,
    RunInterruptedError,
    RunNotFoundError,
    RunTimeoutError,
    ScopeError,
    SourceError,
    StoreUnavailableError,
    TargetError,
    UnknownAttributeError,
    UnsupportedError,
    WorkersError,
    one_line,
)

__all__ = [
    "CANCELLED",
    "INTERNAL",
    "MEDIA_TYPE",
    "STATUSES",
    "problem",
    "problem_of",
    "told_in_log",
]

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
URN = "urn:fairqr:error:"

PLACES = 3
"""How many of the innermost places of a mistake are logged."""

LONGEST = 1000
"""Characters of a detail or a path, which may repeat what a request had."""

STATUSES: Mapping[type[FairqrError], tuple[int, str]] = {
    FairqrError: (422, "The request cannot be served"),
    InputError: (422, "A parameter is wrong"),
    UnknownAttributeError: (422, "There is no such attribute or group"),
    TargetError: (422, "The target is no distribution"),
    PromptError: (422, "The prompt cannot be used"),
    CapError: (422, "More is asked for than is allowed"),
    ConfigError: (500, "The service is configured wrongly"),
    AccessError: (401, "An access key is needed"),
    ScopeError: (403, "The access key is not for this"),
    NotAllowedError: (403, "This is not offered"),
    RunNotFoundError: (404, "There is no such run"),
    IndexNotFoundError: (404, "There is no such index"),
    DocumentNotFoundError: (404, "There is no such document"),
    RunCancelledError: (409, "The run was cancelled"),
    BusyError: (503, "The service is busy"),
    ModelError: (502, "The model gave no usable reply"),
    IndexVersionError: (503, "The index cannot be read"),
    IndexUnavailableError: (503, "The index cannot be reached"),
    BuildInProgressError: (503, "The index is being built"),
    SourceError: (503, "The source cannot be used"),
    UnsupportedError: (422, "The search engine cannot do this"),
    ModelUnavailableError: (503, "The model cannot be used"),
    StoreUnavailableError: (503, "The database cannot be reached"),
    RunInterruptedError: (503, "The run was interrupted"),
    WorkersError: (503, "The workers cannot be reached"),
    RunTimeoutError: (504, "The run took too long"),
}
"""The status and the title of each class of errors; a class that is not named has its parent's."""

_LOOK = "whoever runs the service finds in its log what is wrong."
PRIVATE: Mapping[type[FairqrError], str] = {
    ConfigError: f"The service is configured wrongly; {_LOOK}",
    IndexVersionError: f"The index cannot be read as it is; {_LOOK}",
    IndexUnavailableError: f"The index cannot be reached; try again later, or {_LOOK}",
    SourceError: f"The source cannot be used as it is described; {_LOOK}",
}
"""What is said instead of errors that name folders and servers, which are no client's business."""

TOO_MANY = (429, "Too much is asked at once")
"""Of a :class:`BusyError` that is about the limit of the key itself."""

CANCELLED = "The run was cancelled; ask again if you still want its result."

INTERNAL = "The service made a mistake of its own; its log says more. Try again, or report it."


def problem(
    slug: str, status: int, title: str, detail: str, instance: str | None = None, **more: Any
) -> dict[str, Any]:
    """Return a problem document.

    Args:
        slug: The last part of its type.
        status: Of HTTP.
        title: The same for all problems of the type.
        detail: One sentence that says what is wrong and what to do.
        instance: The path of what it is about, such as a run; left out where it is a long one.
        more: Further members; those that are None are left out.
    """
    members = {"type": f"{URN}{slug}", "title": title, "status": status, "detail": detail}
    members |= {"instance": instance if len(instance or "") <= LONGEST else None, **more}
    return {name: value for name, value in members.items() if value is not None}


def problem_of(error: BaseException, instance: str | None = None) -> dict[str, Any]:
    """Return the problem document of an error.

    One that is not of :mod:`fairqr.base.errors` is a mistake of ours: nothing of its text is told,
    since that may hold what is none of the client's business.

    Args:
        error: What went wrong.
        instance: As of :func:`problem`.
    """
    if not isinstance(error, FairqrError):
        return problem("internal", 500, "An internal error", INTERNAL, instance)
    status, title = next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)
    detail = one_line(error, LONGEST)
    for kind, instead in PRIVATE.items():
        if isinstance(error, kind):
            log.warning("%s", detail)
            detail = instead
    more: dict[str, Any] = {}
    if isinstance(error, CapError):
        more = {"cap": error.cap, "limit": error.limit}
    elif isinstance(error, BusyError):
        status, title = TOO_MANY if error.own else (status, title)
        more = {"retry_after": round(error.retry_after, 3)}
    elif isinstance(error, ModelError):
        more = {"model_status": error.status}
    return problem(error.slug, status, title, detail, instance, **more)


def told_in_log(error: BaseException) -> str:
    """Return the class of an exception and where it was raised, without its text.

    The text may hold what a user, a document or a model wrote.
    """
    frames = traceback.extract_tb(error.__traceback__)[-PLACES:]
    places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames]
    return " ".join([type(error).__name__, *(["at", " > ".join(places)] if places else [])])
