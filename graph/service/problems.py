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

MOST_FRAMES = 3
"""How many of the innermost stack frames we log."""

LONGEST = 1000
"""The most characters of a detail or a path, which may quote the request."""

_LOOK = "try again later, or ask whoever runs the service to look into its log."
_PRIVATE = (
    errors.ConfigError,
    errors.IndexVersionError,
    errors.IndexUnavailableError,
    errors.SourceError,
)
"""Errors that name folders and servers; clients only see their titles."""

CANCELLED = "The run was cancelled; ask again if you still want its result."

REVOKED = "The access key was revoked; send another one."

INTERNAL = "The service failed because of a bug; its log says more. Try again, or report it."


AWAY = 5.0
"""The seconds after which a client asks again, if the database is away."""

Refusal = Literal["draining", "queue", "live"]
"""Why a run is refused: the service is stopping, too many runs wait, or the key has too many."""

_REFUSALS: Mapping[Refusal, tuple[str, float]] = {
    "draining": ("The service is about to stop; try again in a moment.", 5.0),
    "queue": ("The service has too many runs waiting; try again later.", 2.0),
    "live": ("This key already has {live} live runs, its limit; wait for one, or cancel one.", 1.0),
}


def busy(refusal: Refusal, live: int) -> BusyError:
    """Return the error for a refused run.

    Args:
        refusal: Why it is refused.
        live: The most live runs that a key may have.
    """
    sentence, seconds = _REFUSALS[refusal]
    is_own = refusal == "live"
    return BusyError(sentence.format(live=live), retry_after=seconds, own=is_own)


def problem(
    slug: str, status: int, title: str, detail: str, instance: str | None = None, **members: Any
) -> dict[str, Any]:
    """Return a problem document.

    Args:
        slug: The last part of its type.
        status: The HTTP status.
        title: The same for all problems of a type.
        detail: One sentence that says what is wrong and what to do.
        instance: The path of the request or the run; left out if it is very long.
        members: More members; None leaves one out.
    """
    if instance is not None and len(instance) > LONGEST:
        instance = None
    document = {
        "type": f"{URN}{slug}",
        "title": title,
        "status": status,
        "detail": detail,
        "instance": instance,
        **members,
    }
    return {name: value for name, value in document.items() if value is not None}


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

    detail = one_line(error, LONGEST)
    if isinstance(error, errors.PromptFileError):
        log.warning("%s", detail)
        detail = f"{detail.partition(':')[0]}; {_LOOK}"
    elif isinstance(error, _PRIVATE):
        log.warning("%s", detail)
        detail = f"{error.title}; {_LOOK}"

    members = _members_of(error)
    return problem(error.slug, error.http_status, error.title, detail, instance, **members)


def _members_of(error: FairqrError) -> dict[str, Any]:
    """Return the members that only the problem documents of some errors have."""
    if isinstance(error, errors.LimitError):
        return {"limit": error.limit, "most": error.most}
    if isinstance(error, BusyError):
        return {"retry_after": round(error.retry_after, 3)}
    if isinstance(error, errors.StoreUnavailableError):
        return {"retry_after": AWAY}
    if isinstance(error, errors.ModelError):
        return {"model_status": error.status}
    return {}


def class_and_place(error: BaseException) -> str:
    """Return the class of an exception and where it was raised.

    We leave out its text, which may quote a user, a document or a model.
    """
    name = type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)[-MOST_FRAMES:]
    if not frames:
        return name
    lines = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames]
    return f"{name} at {' > '.join(lines)}"
