"""Two results side by side: their options and their outcome."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from fairqr.base.errors import InputError
from fairqr.graph.answer.result import AnswerResult
from fairqr.graph.probe.result import ProbeResult
from fairqr.graph.search.result import SearchResult

ASKED = "asked"
"""The section of single values."""

_ALWAYS = {"divergences", "exposure", "usage"}
"""Sections that are shown even if nothing differs."""

# Lists of ids and the explanation follow from the rest, scores mean something within one ranking
# alone, and the plain retrieval has the ranking of round 0.
_LEFT_OUT = {"ids", "explanation", "scores", "verdicts", "used", "score", "baseline ranking"}
_NOT_COUNTED = {"milliseconds", "cached_milliseconds"}
_NAMES = ("attribute", "group", "asker", "text", "index")
"""Keys that identify an item of a list; without them, its position does."""

_Cells = dict[tuple[str, str], Any]


class Row(NamedTuple):
    """A value in each of two results; None if a result lacks it."""

    section: str
    name: str
    one: Any
    other: Any
    differs: bool

    @property
    def is_shown(self) -> bool:
        """Whether to show the row to people."""
        return self.differs or self.section in _ALWAYS


def read_result(file: Path) -> SearchResult | AnswerResult | ProbeResult:
    """Read what ``--json`` printed.

    Raises:
        InputError: The file cannot be read, or is not a result.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise InputError(f"The result {file} cannot be read: {error.strerror}.") from None
    for kind in (SearchResult, AnswerResult, ProbeResult):
        try:
            found: SearchResult | AnswerResult | ProbeResult = kind.model_validate_json(content)
            return found
        except ValidationError:
            continue
    raise InputError(
        f"The file {file} is not a result; name files that 'fairqr search --json', 'fairqr answer "
        "--json' or 'fairqr probe query --json' wrote."
    )


def rows_of(
    one: SearchResult | AnswerResult | ProbeResult, other: SearchResult | AnswerResult | ProbeResult
) -> list[Row]:
    """Return all that can be compared of two results of one kind.

    Raises:
        InputError: The results are of two kinds.
    """
    if type(one) is not type(other):
        kinds = [type(it).__name__.removesuffix("Result").lower() for it in (one, other)]
        raise InputError(
            f"One result is of '{kinds[0]}', the other of '{kinds[1]}'; compare two of one kind."
        )
    ones, others = (_cells(it.model_dump(mode="json")) for it in (one, other))
    keys = dict.fromkeys([*ones, *others])
    sections = list(dict.fromkeys(section for section, _ in keys))
    rows = []
    for section, name in sorted(keys, key=lambda key: sections.index(key[0])):
        a, b = ones.get((section, name)), others.get((section, name))
        if a is not None or b is not None:
            differs = name not in _NOT_COUNTED and not _same(a, b)
            rows.append(Row(section, name, a, b, differs))
    return rows


def _cells(result: Mapping[str, Any]) -> _Cells:
    """Return all values by section and name."""
    cells: _Cells = {}
    for names, value in _leaves(result, ()):
        section, *rest = names
        if names == ("divergence",):
            section, rest = "divergences", ["mean"]
        elif not rest:
            section, rest = ASKED, [section]
        cells[section, " ".join(rest)] = value
    usage = result["usage"]
    told = f"{usage['prompt_tokens']} + {usage['completion_tokens']} tokens"
    return {**cells, ("usage", "tokens"): told}


def _leaves(value: Any, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each value inside another, with the names that lead to it."""
    if names and (names[-1] in _LEFT_OUT or " ".join(names) in _LEFT_OUT):
        return
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(item, (*names, str(name)))
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        for number, item in enumerate(value):
            if {"rank", "id", "title"} <= item.keys():
                yield (*names, f"{item['id']} {item['title']}".strip()), item["rank"]
                continue
            named = "=".join(str(item[name]) for name in _NAMES if name in item) or str(number)
            rest = {name: it for name, it in item.items() if name not in _NAMES}
            yield from _leaves(rest, (*names, named))
    elif isinstance(value, list):
        yield names, ", ".join(map(str, value)) or None
    else:
        yield names, None if value == "" else value


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    return bool(one == other)
