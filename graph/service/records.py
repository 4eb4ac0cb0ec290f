"""What the service keeps: runs, what happened in them, and access keys."""

from __future__ import annotations

from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict

__all__ = [
    "LIVE",
    "NOBODY",
    "SCOPES",
    "AccessKey",
    "Event",
    "Kind",
    "Run",
    "RunSummary",
    "Scope",
    "Status",
    "path_of",
]

Kind = Literal["search", "answer", "probe"]
Status = Literal["queued", "running", "done", "failed", "cancelled"]
LIVE: tuple[Status, ...] = ("queued", "running")
"""Of a run that is not over."""

Scope = Literal["read", "run", "admin"]
"""``read`` sees what can be asked for and the key's own runs; ``run`` starts and cancels runs;
``admin`` also sees the metrics."""

SCOPES: tuple[Scope, ...] = get_args(Scope)
"""Each has what those before it have."""

NOBODY = ""
"""The id of the key where none is needed."""


def path_of(id_: str) -> str:
    """Return where a run is asked for."""
    return f"/v1/runs/{id_}"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RunSummary(_Record):
    """A run in a list.

    Attributes:
        id: Of 32 hexadecimal digits.
        kind: What was asked for.
        status: ``queued`` and ``running``; then for good ``done``, ``failed`` or ``cancelled``.
        query: What was searched for, or asked.
        keep: Whether it goes on without a client, is resumed after a crash, and can be read again.
        created, started, finished: In seconds since the epoch; None where that has not happened.
        attempts: How often it was begun; more than once where a worker stopped in the middle.
    """

    id: str
    kind: Kind
    status: Status
    query: str
    keep: bool
    created: float
    started: float | None = None
    finished: float | None = None
    attempts: int = 0


class Run(RunSummary):
    """A run.

    Attributes:
        request: As it was asked for, with what was not given filled in.
        result: The object of a search, an answer or a probe; None until it is done.
        problem: Why it failed or was cancelled, as a problem of RFC 9457; None otherwise.
    """

    request: dict[str, Any]
    result: dict[str, Any] | None = None
    problem: dict[str, Any] | None = None

    @property
    def live(self) -> bool:
        """Whether it is not over."""
        return self.status in LIVE


class Event(_Record):
    """Something that happened in a run, as a client is told of it.

    Attributes:
        number: From 1, in the order of happening; 0 for pieces of text, which are told once and
            are not kept.
        name: ``run`` (the run's summary), ``step``, ``token``, and at last ``end`` or ``error``.
        data: An object. Of a step its ``step`` (the name) and ``update``, what it changed in the
            state; of a token its ``text``; of the end ``result``; of an error the problem.
    """

    number: int
    name: Literal["run", "step", "token", "end", "error"]
    data: dict[str, Any]

    @property
    def last(self) -> bool:
        """Whether nothing follows."""
        return self.name in ("end", "error")


class AccessKey(_Record):
    """An access key, without what makes it secret.

    Attributes:
        id: What the key begins with, after ``fqr_``; of 12 hexadecimal digits.
        name: Who or what it is for.
        scopes: What it may do.
        created, revoked: In seconds since the epoch; None where it is not revoked.
        sha256: Of the whole key, in hexadecimal digits.
    """

    id: str
    name: str
    scopes: tuple[Scope, ...]
    created: float
    revoked: float | None = None
    sha256: str
