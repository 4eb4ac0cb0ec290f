"""Run files in TREC format: what a system ranked.

Each line is ``query Q0 document rank score tag``, separated by white space.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from fairqr.base.errors import CorpusError, InputError, one_line
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.sources.documents import numbered_lines, wrong_line

Ties = Literal["rank", "id", "trec_eval"]
TIES = {"rank": "the rank in the file", "id": "id", "trec_eval": "id, descending"}
"""What decides the order of equal scores, in words for users."""
SHAPE = "query Q0 document rank score tag"
"""The fields of a line."""

NUMBERED = ("rank", "score", "grade")
"""The fields that are numbers."""

_COLUMN = re.compile(r"(?i)^[a-z_-]*(rank|score|grade|rel|label|judg|pos)[a-z_-]*$")
"""What columns of numbers are called."""

FROM_COMMAS = r"tr ',' '\t' < FILE"
FROM_RANKS = """awk '{print $1, "Q0", $2, $3, 1 / $3, "run"}' FILE"""
WITH_TAG = """awk '{print $1, $2, $3, $4, $5, "run"}' FILE"""

_SAMPLE = re.compile(r"#[0-9]+$")

Places = dict[str, tuple[float, int]]
"""The score and the rank of each document of a ranking."""


@dataclass(frozen=True, slots=True)
class SystemRun:
    """What a system ranked.

    Attributes:
        name: The system's tag.
        rankings: For each query, one ranking or several sampled ones.
        tied: How many documents have the same score as the one before them.
        ties: What decided their order, in words for users.
    """

    name: str
    rankings: Mapping[str, list[Ranking]] = field(default_factory=dict)
    tied: int = 0
    ties: str = ""


def read_run(path: Path, *, ties: Ties = "rank") -> SystemRun:
    """Read a run.

    Documents are ordered by score. A tag such as ``name#3`` marks the third of several rankings for
    a query.

    Args:
        path: The file; unpacked while reading if its name ends in ``.gz``.
        ties: What decides between equal scores. ``rank``: the rank in the file, then the id.
            ``id``: the id, ascending, as in fairqr's own rankings. ``trec_eval``: the id,
            descending, as in trec_eval.

    Raises:
        CorpusError: A line does not belong in a run, a document occurs twice in a ranking, or the
            file has several runs; the error names the line.
        InputError: ``ties`` has an unknown value.
    """
    check_ties(ties)
    found: dict[str, dict[str, Places]] = {}
    places: Places = {}
    name, last = "", ("", "")
    for line, fields in trec_fields(path, SHAPE):
        query, _, document, rank, score, tag = fields
        problem = ""
        if last != (query, tag):
            last, system = (query, tag), _SAMPLE.sub("", tag)
            places = found.setdefault(query, {}).setdefault(tag, {})
            name = name or system
            if system != name:
                problem = f"its tag '{one_line(tag)}' belongs to another run than '{name}'"
        if document in places:
            problem = f"the document '{one_line(document)}' comes twice"
        try:
            places[document] = float(score), whole_number(rank)
        except (ValueError, OverflowError):
            places[document] = math.nan, 0
        if not math.isfinite(places[document][0]):
            place = f"its rank '{one_line(rank, 60)}' or its score '{one_line(score, 60)}'"
            problem = f"{place} is not a finite number"
        if problem:
            raise wrong_line(path, line, problem, "run", CorpusError)
    if not found:
        raise CorpusError(f"The run {path} is empty; name a file with rankings.")
    rankings: dict[str, list[Ranking]] = {}
    tied = 0
    for query, tags in found.items():
        ranked = [_ranked(places, ties) for places in tags.values()]
        rankings[query] = [ranking for ranking, _ in ranked]
        tied += sum(count for _, count in ranked)
    return SystemRun(name, rankings, tied, TIES[ties])


def check_ties(ties: str) -> None:
    """Refuse an unknown way to order equal scores.

    Raises:
        InputError: The way is unknown.
    """
    if ties not in TIES:
        raise InputError(f"Equal scores cannot be ordered by '{ties}'; choose {', '.join(TIES)}.")


def _ranked(places: Places, ties: Ties) -> tuple[Ranking, int]:
    """Return the ranking of a query, and how many scores are the same as the one before them."""
    ids, scores = list(places), np.array([score for score, _ in places.values()])
    if (np.diff(scores) >= 0).any():
        # Sort by id first, then by what matters more: sorting keeps the order of equals.
        ids.sort(reverse=ties == "trec_eval")
        if ties == "rank":
            ids.sort(key=lambda id_: places[id_][1])
        ids.sort(key=lambda id_: -places[id_][0])
        scores = np.array([places[id_][0] for id_ in ids])
    return Ranking(ids, scores.tolist()), int((np.diff(scores) == 0).sum())


def trec_fields(path: Path, *shapes: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the fields of each line of a file in a TREC format.

    Comments, which begin with ``#``, and a first line that names the columns are left out.

    Args:
        path: The file; unpacked while reading if its name ends in ``.gz``.
        shapes: The names of the fields; all lines have those of one shape, whose last but the tag
            of a run is a number.

    Raises:
        CorpusError: The file cannot be read, or a line has more or fewer fields.
    """
    counts = {len(shape.split()): shape for shape in shapes}
    found = 0
    for number, line in numbered_lines(path):
        fields = line.split()
        if line.lstrip().startswith("#"):
            continue
        has_shape = len(fields) in counts and found in (0, len(fields))
        if not has_shape or _is_json(fields):
            raise wrong_line(path, number, _say_wrong_shape(fields, shapes), kind=CorpusError)
        is_first = not found
        found = len(fields)
        if not (is_first and _names_columns(fields, counts[found])):
            yield number, fields


def _names_columns(fields: list[str], shape: str) -> bool:
    """Return whether a line has names of columns where numbers belong."""
    named = shape.split()
    places = [named.index(name) for name in NUMBERED if name in named]
    return all(_COLUMN.search(fields[place]) for place in places)


def _say_wrong_shape(fields: list[str], shapes: Sequence[str]) -> str:
    """Return what is wrong with a line, and the command that makes what is wanted."""
    wanted = " or ".join(f"the {len(shape.split())} in '{shape}'" for shape in shapes)
    if _is_json(fields):
        problem = f"it is JSON, but a line has {wanted}"
        return f"{problem}; save it in TREC's format, as with kind='trec' in ranx"
    problem = f"it has {len(fields)} fields instead of {wanted}"
    if len(fields) == 1 and "," in fields[0]:
        return f"{problem}; {FROM_COMMAS} makes tabs of commas"
    if SHAPE not in shapes:
        return problem
    if len(fields) == 3:
        return f"{problem}; {FROM_RANKS} makes it of query, document and rank"
    if len(fields) in (5, 7):
        return f"{problem}; {WITH_TAG} gives it the tag 'run'"
    return problem


def _is_json(fields: Sequence[str]) -> bool:
    return fields[0].startswith(("{", "["))


def whole_number(text: str) -> int:
    """Return a whole number, which may be written as ``1.0``.

    Raises:
        ValueError: It is none.
    """
    number = float(text)
    if not number.is_integer():
        raise ValueError(f"{text} is not a whole number")
    return int(number)
