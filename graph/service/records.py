"""Runs, their events, and access keys."""

from __future__ import annotations

import re
from typing import Any, Literal, get_args

from pydantic import Field

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
"""The scopes in order: each one includes the earlier ones."""

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
    """A run in a list."""

    id: str = Field(description="32 hexadecimal digits.")
    kind: Kind
    status: Status = Field(
        description="`queued`, `running`, and in the end `done`, `failed` or `cancelled`."
    )
    query: str = Field(description="The query or the question; of an audit, a name.")
    created: float = Field(
        description="In seconds since the epoch; None if it has not happened yet."
    )
    started: float | None = Field(
        None, description="In seconds since the epoch; None if it has not happened yet."
    )
    finished: float | None = Field(
        None, description="In seconds since the epoch; None if it has not happened yet."
    )
    attempts: int = Field(
        0, description="How often workers have started it; each takeover adds one."
    )


class Run(RunSummary):
    """A run."""

    request: dict[str, Any] = Field(description="The request, with all defaults filled in.")
    result: dict[str, Any] | None = Field(None, description="The result, once the run is done.")
    problem: dict[str, Any] | None = Field(
        None, description="Why it failed or was cancelled, as a problem of RFC 9457."
    )

    @property
    def live(self) -> bool:
        """Whether it is not over."""
        return self.status in LIVE


class Event(Frozen):
    """An event of a run, as clients receive it."""

    number: int = Field(
        description="From 1, in order; 0 for pieces of text, which we send once and do not keep."
    )
    name: EventName = Field(description="`run`, `step`, `token`, and in the end `end` or `error`.")
    data: dict[str, Any] = Field(
        description=(
            "For `run`, its summary; for `step`, see `StepData` or, of an audit, `AuditStep`; for "
            "`token`, its `text`; for `end`, `run` and `result`; for `error`, the problem."
        )
    )
    step: str | None = Field(
        None, description="The key of the step, the same in each attempt; never sent to clients."
    )

    @property
    def last(self) -> bool:
        """Whether nothing follows."""
        return self.name in ("end", "error")


class AuditProgress(Frozen):
    """How far an audit is."""

    stage: str = Field(description="What is being done, such as `queries`.")
    done: int
    of: int


class AuditStep(Frozen):
    """A step of an audit: some `progress`, or `audit` at its end."""

    step: Literal["progress", "audit"]
    progress: AuditProgress | None = Field(None, description="How far it is.")


class AccessKey(Frozen):
    """An access key, without its secret."""

    id: str = Field(description="The 12 hexadecimal digits after `fqr_`.")
    name: str = Field(description="Who or what it is for.")
    scopes: tuple[Scope, ...] = Field(description="What it may do.")
    created: float = Field(
        description="In seconds since the epoch; `revoked` is None for a valid key."
    )
    revoked: float | None = Field(
        None, description="In seconds since the epoch; `revoked` is None for a valid key."
    )
    sha256: str = Field(description="The hash of the whole key, in hexadecimal digits.")
