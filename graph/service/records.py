"""What the service keeps: runs, what happened in them, and access keys."""

from __future__ import annotations

import re
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict

__all__ = [
    "KEY_START",
    "LIVE",
    "NOBODY",
    "SCOPES",
    "AccessKey",
    "Event",
    "EventName",
    "Kind",
    "Run",
    "RunSummary",
    "Scope",
    "Status",
    "is_id",
    "path_of",
]

Kind = Literal["search", "answer", "probe", "audit"]
Status = Literal["queued", "running", "done", "failed", "cancelled"]
EventName = Literal["run", "step", "token", "end", "error"]
LIVE: tuple[Status, ...] = ("queued", "running")
"""Of a run that is not over."""

Scope = Literal["read", "run", "admin"]
"""``read`` sees what can be asked for and the key's own runs; ``run`` starts and cancels runs;
``admin`` also sees the metrics."""

SCOPES: tuple[Scope, ...] = get_args(Scope)
"""Each has what those before it have."""

KEY_START = "fqr_"
"""How every access key starts."""

NOBODY = ""
"""The id of the key where none is needed."""


_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)


def is_id(text: str) -> bool:
    """Tell whether a text may be a run's id; others may be such that the database refuses them."""
    return _ID.fullmatch(text) is not None


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
        created, started, finished: In seconds since the epoch; None where that has not happened.
        attempts: How often it was begun; more than once where a worker stopped in the middle.
    """

    id: str
    kind: Kind
    status: Status
    query: str
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
        data: An object. Of a run its summary; of a step what
            :class:`fairqr.graph.step_data.StepData` describes; of a token its ``text``; of
            the end ``run`` and ``result``; of an error the problem.
        private: What the worker that resumes a durable run needs of a step; no client is told it.
    """

    number: int
    name: EventName
    data: dict[str, Any]
    private: dict[str, Any] | None = None

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
