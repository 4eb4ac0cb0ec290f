"""Run files in TREC format: what a system ranked.

Each line is ``query Q0 document rank score tag``, separated by white space.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
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
    for line, fields in trec_fields(path, 6, "query Q0 document rank score tag"):
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
            places[document] = float(score), int(rank)
        except ValueError:
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


def trec_fields(path: Path, count: int, shape: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the fields of each line of a file in a TREC format.

    Args:
        path: The file; unpacked while reading if its name ends in ``.gz``.
        count: The number of fields a line must have.
        shape: The names of the fields, for messages.

    Raises:
        CorpusError: The file cannot be read, or a line has more or fewer fields.
    """
    for number, line in numbered_lines(path):
        fields = line.split()
        if len(fields) == count:
            yield number, fields
        else:
            problem = f"it has {len(fields)} fields instead of the {count} in '{shape}'"
            raise wrong_line(path, number, problem, kind=CorpusError)
