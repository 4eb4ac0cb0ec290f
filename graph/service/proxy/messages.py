"""What the proxy asks the process of an index, and what that says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fairqr.graph.service.proxy.label_fields import NO_FIELDS, LabelFields
from fairqr.graph.service.proxy.requests import ProxiedSearch

PAUSES = (2.0, 5.0, 15.0, 60.0)
"""Seconds until an index that could not be opened is tried again, or a process is started again."""


def pauses() -> Iterator[float]:
    """Yield how long to wait before each new attempt, without end."""
    yield from PAUSES
    while True:
        yield PAUSES[-1]


@dataclass(frozen=True, slots=True)
class Rerank:
    """Asks for a reply in which searches are re-ranked.

    Attributes:
        searches: The searches, all of one index, in the order of the reply.
        reply: The reply to whole windows.
        until: How long somebody waits for it, by the monotonic clock.
        is_look: Whether it is only recorded, and no client waits for it.
    """

    searches: Sequence[ProxiedSearch]
    reply: str
    until: float
    is_look: bool = False


@dataclass(frozen=True, slots=True)
class MeasureShown:
    """Asks for the exposure in a page that was shown as it came.

    Attributes:
        hits: Its hits.
        until: How long somebody waits for it, by the monotonic clock.
        is_look: Always; no client waits for it.
    """

    hits: Sequence[Any]
    until: float
    is_look: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Opened:
    """Says what became of opening an index.

    Attributes:
        reason: Why it cannot be opened; empty if it is.
        label_fields: What is asked for with each window.
        names: The names by which the same documents are searched.
    """

    reason: str = ""
    label_fields: LabelFields = NO_FIELDS
    names: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Answered:
    """Answers what was asked.

    Attributes:
        reason: Why there is no answer; empty if there is one.
        answer: The answer.
        seconds: How long it took, without waiting for others.
        missing: Texts that have no vectors yet.
    """

    reason: str
    answer: Any
    seconds: float
    missing: list[str]
