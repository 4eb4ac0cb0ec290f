"""Runs, their events, and access keys."""

from __future__ import annotations

import re
from typing import Any, Literal, get_args

from fairqr.graph.search.context import Frozen

Kind = Literal["search", "answer", "probe", "audit"]
Status = Literal["queued", "running", "done", "failed", "cancelled"]
EventName = Literal["run", "step", "token", "end", "error"]
LIVE: tuple[Status, ...] = ("queued", "running")
"""The statuses of a run that is not over."""

Scope = Literal["read", "run", "admin"]
"""``read`` sees what is offered and the key's own runs; ``run`` also starts and cancels runs;
``admin`` also sees the metrics."""

SCOPES: tuple[Scope, ...] = get_args(Scope)
"""In order: each scope includes those before it."""

KEY_START = "fqr_"
"""How every access key starts."""

KEY_ID = 12
"""How many hexadecimal digits of its id follow."""

NOBODY = ""
"""The id in place of a key's if no key is required."""


def is_id(text: str) -> bool:
    """Return whether a text may be the id of a run. The database refuses some other texts."""
    return re.fullmatch(r"[0-9a-f]{32}", text) is not None


def path_of(id_: str) -> str:
    """Return the path of a run in the API."""
    return f"/v1/runs/{id_}"


class RunSummary(Frozen):
    """A run in a list.

    Attributes:
        id: 32 hexadecimal digits.
        status: ``queued``, ``running``, and in the end ``done``, ``failed`` or ``cancelled``.
        query: The query or the question; of an audit, a name.
        created, started, finished: In seconds since the epoch; None if it has not happened yet.
        attempts: How often workers have started it; each takeover adds one.
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
        request: The request, with all defaults filled in.
        result: The result, once the run is done.
        problem: Why it failed or was cancelled, as a problem of RFC 9457.
    """

    request: dict[str, Any]
    result: dict[str, Any] | None = None
    problem: dict[str, Any] | None = None

    @property
    def live(self) -> bool:
        """Whether it is not over."""
        return self.status in LIVE


class Event(Frozen):
    """An event of a run, as clients receive it.

    Attributes:
        number: From 1, in order; 0 for pieces of text, which we send once and do not keep.
        name: ``run``, ``step``, ``token``, and in the end ``end`` or ``error``.
        data: For ``run``, its summary; for ``step``, see
            :class:`fairqr.graph.stream.StepData` or, of an audit,
            :class:`fairqr.graph.service.records.AuditStep`; for ``token``, its ``text``; for
            ``end``, ``run`` and ``result``; for ``error``, the problem.
        step: The key of the step, the same in each attempt; never sent to clients.
    """

    number: int
    name: EventName
    data: dict[str, Any]
    step: str | None = None

    @property
    def last(self) -> bool:
        """Whether nothing follows."""
        return self.name in ("end", "error")


class AuditProgress(Frozen):
    """How far an audit is.

    Attributes:
        stage: What is being done, such as ``queries``.
    """

    stage: str
    done: int
    of: int


class AuditStep(Frozen):
    """A step of an audit: some ``progress``, or ``audit`` at its end.

    Attributes:
        progress: How far it is.
    """

    step: Literal["progress", "audit"]
    progress: AuditProgress | None = None


class AccessKey(Frozen):
    """An access key, without its secret.

    Attributes:
        id: The 12 hexadecimal digits after ``fqr_``.
        name: Who or what it is for.
        scopes: What it may do.
        created, revoked: In seconds since the epoch; ``revoked`` is None for a valid key.
        sha256: The hash of the whole key, in hexadecimal digits.
    """

    id: str
    name: str
    scopes: tuple[Scope, ...]
    created: float
    revoked: float | None = None
    sha256: str
