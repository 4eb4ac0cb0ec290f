"""Errors as problem documents (RFC 9457)."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from fairqr.base import errors
from fairqr.base.errors import BusyError, FairqrError, one_line

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
URN = "urn:fairqr:error:"

PLACES = 3
"""How many of the innermost stack frames we log."""

LONGEST = 1000
"""The most characters of a detail or a path, which may quote the request."""

STATUSES: Mapping[type[FairqrError], tuple[int, str]] = {
    FairqrError: (422, "The request cannot be served"),
    errors.InputError: (422, "A parameter is wrong"),
    errors.UnknownAttributeError: (422, "There is no such attribute or group"),
    errors.TargetError: (422, "The target is not a distribution"),
    errors.PromptError: (422, "The prompt cannot be used"),
    errors.CapError: (422, "The request exceeds a cap"),
    errors.ConfigError: (500, "The service is misconfigured"),
    errors.AccessError: (401, "An access key is needed"),
    errors.ScopeError: (403, "The access key does not allow this"),
    errors.NotAllowedError: (403, "This is not offered"),
    errors.RunNotFoundError: (404, "There is no such run"),
    errors.IndexNotFoundError: (404, "There is no such index"),
    errors.DocumentNotFoundError: (404, "There is no such document"),
    errors.RunCancelledError: (409, "The run was cancelled"),
    BusyError: (503, "The service is busy"),
    errors.ModelError: (502, "The model gave no usable reply"),
    errors.IndexVersionError: (503, "The index cannot be read"),
    errors.IndexUnavailableError: (503, "The index cannot be reached"),
    errors.BuildInProgressError: (503, "The index is being built"),
    errors.SourceError: (503, "The source cannot be used"),
    errors.UnsupportedError: (422, "The search engine cannot do this"),
    errors.ModelUnavailableError: (503, "The model cannot be used"),
    errors.StoreUnavailableError: (503, "The database cannot be reached"),
    errors.RunInterruptedError: (503, "The run was interrupted"),
    errors.WorkersError: (503, "The workers cannot be reached"),
    errors.RunTimeoutError: (504, "The run took too long"),
}
"""The status and title of each class of errors; other classes have those of their parent."""

_LOOK = "ask whoever runs the service to look into its log."
PRIVATE: Mapping[type[FairqrError], str] = {
    errors.ConfigError: f"The service is misconfigured; {_LOOK}",
    errors.IndexVersionError: f"The index cannot be read; {_LOOK}",
    errors.IndexUnavailableError: f"The index cannot be reached; try again later, or {_LOOK}",
    errors.SourceError: f"The description of the source does not fit; {_LOOK}",
}
"""Sentences for clients in place of errors that name folders and servers."""

TOO_MANY = (429, "Too many requests")
"""The status and title of a :class:`BusyError` about the limit of one key."""

CANCELLED = "The run was cancelled; ask again if you still want its result."

INTERNAL = "The service failed because of a bug; its log says more. Try again, or report it."


Refusal = Literal["draining", "queue", "live"]
"""Why a run is refused: the service is stopping, too many runs wait, or the key has too many."""


_REFUSALS: Mapping[Refusal, tuple[str, float]] = {
    "draining": ("The service is about to stop; try again in a moment.", 5.0),
    "queue": ("The service has too many runs waiting; try again later.", 2.0),
    "live": ("This key already has {live} live runs, its limit; wait for one, or cancel one.", 1.0),
}


def busy(why: Refusal, live: int) -> BusyError:
    """Return the error for a refused run.

    Args:
        why: The reason.
        live: The most live runs that a key may have.
    """
    sentence, seconds = _REFUSALS[why]
    return BusyError(sentence.format(live=live), retry_after=seconds, own=why == "live")


def problem(
    slug: str, status: int, title: str, detail: str, instance: str | None = None, **more: Any
) -> dict[str, Any]:
    """Return a problem document.

    Args:
        slug: The last part of its type.
        status: The HTTP status.
        title: The same for all problems of a type.
        detail: One sentence that says what is wrong and what to do.
        instance: The path of the request or the run; left out if it is very long.
        more: More members; None leaves one out.
    """
    members = {"type": f"{URN}{slug}", "title": title, "status": status, "detail": detail}
    members |= {"instance": instance if len(instance or "") <= LONGEST else None, **more}
    return {name: value for name, value in members.items() if value is not None}


def problem_of(error: BaseException, instance: str | None = None) -> dict[str, Any]:
    """Return the problem document of an error.

    An error that is not of :mod:`fairqr.base.errors` is a bug. We hide its text, which may contain
    secrets.

    Args:
        error: The error.
        instance: See :func:`problem`.
    """
    if not isinstance(error, FairqrError):
        return problem("internal", 500, "An internal error", INTERNAL, instance)
    status, title = next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)
    detail = one_line(error, LONGEST)
    if isinstance(error, errors.PromptFileError):
        log.warning("%s", detail)
        detail = f"{detail.partition(':')[0]}; {_LOOK}"
    for kind, instead in PRIVATE.items():
        if isinstance(error, kind):
            log.warning("%s", detail)
            detail = instead
    more: dict[str, Any] = {}
    if isinstance(error, errors.CapError):
        more = {"cap": error.cap, "limit": error.limit}
    elif isinstance(error, BusyError):
        status, title = TOO_MANY if error.own else (status, title)
        more = {"retry_after": round(error.retry_after, 3)}
    elif isinstance(error, errors.ModelError):
        more = {"model_status": error.status}
    return problem(error.slug, status, title, detail, instance, **more)


def told_in_log(error: BaseException) -> str:
    """Return the class of an exception and where it was raised.

    We leave out its text, which may quote a user, a document or a model.
    """
    frames = traceback.extract_tb(error.__traceback__)[-PLACES:]
    places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames]
    return " ".join([type(error).__name__, *(["at", " > ".join(places)] if places else [])])
