"""Two recorded runs, side by side."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import zip_longest
from typing import Any, NamedTuple

from fairqr.cli.trace_summary import RunSummary, TraceRound
from fairqr.cli.trace_tree import value_text

__all__ = ["Row", "rows_of", "time_text"]

_SHA256 = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")


class Row(NamedTuple):
    """What one thing was in each of two runs.

    Attributes:
        section: What it is about.
        name: Of it, within the section.
        one, other: In the runs; None where a run does not say.
        differs: Whether that is a difference. Times are none, nor is content that one run alone
            was recorded with.
    """

    section: str
    name: str
    one: Any
    other: Any
    differs: bool

    @property
    def texts(self) -> tuple[str, str]:
        """Both for people; of a sha256 its first digits."""
        one, other = _text(self.one), _text(self.other)
        if self.section == "prompts":
            return _SHA256.sub(r"\1", one), _SHA256.sub(r"\1", other)
        return one, other


def rows_of(one: RunSummary, other: RunSummary) -> list[Row]:
    """Return all that can be compared of two runs; what neither says is left out."""
    return [row for row in _all(one, other) if row.one is not None or row.other is not None]


def _all(one: RunSummary, other: RunSummary) -> Iterator[Row]:
    yield _row("run", "began", time_text(one.started), time_text(other.started), counts=False)
    both_have_content = one.query is not None and other.query is not None
    yield _row("run", "query", one.query, other.query, counts=both_have_content)
    for name in ("kind", "status", "corpus", "method", "attributes", "target", "k"):
        yield _row("run", name, getattr(one, name), getattr(other, name))
    yield from _mappings("run", one.sampling, other.sampling)
    for section in ("models", "prompts"):
        yield from _mappings(section, getattr(one, section), getattr(other, section))
    for number, pair in enumerate(zip_longest(one.rounds, other.rounds)):
        yield from _rounds(f"round {number}", *pair, content=both_have_content)
    for name in ("stop_reason", "best_round", "before", "after"):
        yield _row("result", _RESULT[name], getattr(one, name), getattr(other, name))
    yield from _mappings("result", one.findings, other.findings)
    for name in ("model_calls", "cached_calls", "input_tokens", "output_tokens"):
        yield _row("cost", name.replace("_", " "), getattr(one, name), getattr(other, name))
    yield _row("cost", "seconds", one.seconds, other.seconds, counts=False)


_RESULT = {
    "stop_reason": "stopped",
    "best_round": "best round",
    "before": "divergence before",
    "after": "divergence after",
}


def _rounds(
    section: str, one: TraceRound | None, other: TraceRound | None, *, content: bool
) -> Iterator[Row]:
    one_or_none, other_or_none = one or TraceRound(), other or TraceRound()
    yield _row(section, "divergence", one_or_none.divergence, other_or_none.divergence)
    yield _row(section, "lacking", one_or_none.lacking, other_or_none.lacking)
    yield from _mappings(section, one_or_none.statuses, other_or_none.statuses)
    words = {f"words for {name}": value for name, value in one_or_none.keywords.items()}
    others = {f"words for {name}": value for name, value in other_or_none.keywords.items()}
    yield from _mappings(section, words, others, counts=content)


def _mappings(
    section: str, one: Mapping[str, Any], other: Mapping[str, Any], *, counts: bool = True
) -> Iterator[Row]:
    for name in dict.fromkeys([*one, *other]):
        yield _row(section, name, one.get(name), other.get(name), counts=counts)


def _row(section: str, name: str, one: Any, other: Any, *, counts: bool = True) -> Row:
    one, other = one if one != [] else None, other if other != [] else None
    return Row(section, name, one, other, counts and not _same(one, other))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    return bool(one == other)


def time_text(seconds: float) -> str:
    """Return a time, in seconds since the epoch, for people; a dash where it is none."""
    try:
        return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M:%S}"
    except (OSError, OverflowError, ValueError):
        return "—"


def _text(value: Any) -> str:
    return "—" if value is None else value_text(value)
