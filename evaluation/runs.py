"""Runs and judgements in TREC's formats: what a system ranked, and what is relevant.

A run file has lines ``query Q0 document rank score tag``; a qrels file has lines
``query 0 document grade``. Fields are separated by white space.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Literal, get_args

from fairqr.errors import CorpusError, InputError, one_line
from fairqr.retrieval.documents import numbered_lines
from fairqr.retrieval.files import write_beside
from fairqr.retrieval.ranking import Ranking

__all__ = ["Qrels", "Run", "Ties", "read_qrels", "read_run", "write_qrels", "write_run"]

Ties = Literal["rank", "id", "trec_eval", "error"]
_TIES: tuple[Ties, ...] = get_args(Ties)
_TOLD = {
    "rank": "the rank in the file",
    "id": "id",
    "trec_eval": "id, descending",
    "error": "nothing",
}
HIGHEST_GRADE = 1_000_000
_SAMPLE = re.compile(r"#[0-9]+$")

Qrels = Mapping[str, Mapping[str, int]]
"""The grade of each judged document by query; above 0 is relevant, what is missing is not."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a system ranked.

    Attributes:
        name: The system's tag.
        rankings: By query one ranking, or several that were sampled for it.
        tied: How many documents have the same score as the one before them.
        ties: What decided their order, for people.
    """

    name: str
    rankings: Mapping[str, list[Ranking]] = field(default_factory=dict)
    tied: int = 0
    ties: str = ""


def read_run(path: Path, *, ties: Ties = "rank") -> Run:
    """Read a run.

    Documents are ordered by score. A tag of the form ``name#3`` marks the third of several rankings
    for a query.

    Args:
        path: The file; unpacked while it is read where its name ends in ``.gz``.
        ties: What decides between equal scores. ``rank``: the rank that the file gives, and then
            the id. ``id``: the id, ascending, as fairqr's own rankings. ``trec_eval``: the id,
            descending, as trec_eval does. ``error``: nothing; a tie is refused.

    Raises:
        CorpusError: A line is no line of a run, a document stands twice in a ranking, or the file
            holds several runs; the line is named.
        InputError: Scores are tied and ties are refused, or there is no such way with ties.
    """
    if ties not in _TIES:
        raise InputError(f"There is no way with ties '{ties}'; choose {', '.join(_TIES)}.")
    found: dict[str, dict[str, dict[str, tuple[float, int]]]] = {}
    name = ""
    for number, fields in _fields(path, 6, "query Q0 document rank score tag"):
        query, _, document, rank, score, tag = fields
        try:
            place = (float(score), int(rank))
        except ValueError:
            raise _bad(path, number, "its rank or score is no number") from None
        if place[0] != place[0]:
            raise _bad(path, number, "its score is not a number")
        system = _SAMPLE.sub("", tag)
        name = name or system
        if system != name:
            raise _bad(
                path,
                number,
                f"its tag '{one_line(tag)}' is another run's than '{one_line(name)}', "
                "and a file holds one run",
            )
        ranking = found.setdefault(query, {}).setdefault(tag, {})
        if document in ranking:
            raise _bad(path, number, f"the document '{one_line(document)}' stands twice in it")
        ranking[document] = place
    if not found:
        raise CorpusError(f"The run {path} is empty; name a file with rankings.")
    rankings = {q: [_ranked(places, ties) for places in tags.values()] for q, tags in found.items()}
    tied = 0
    for query, sampled in rankings.items():
        equal = sum(a == b for ranking in sampled for a, b in pairwise(ranking.scores))
        if equal and ties == "error":
            raise InputError(
                f"{path}: the query '{one_line(query)}' has {equal} documents with the same score "
                f"as another; choose {', '.join(_TIES[:-1])} to decide between them."
            )
        tied += equal
    return Run(name, rankings, tied, _TOLD[ties])


def _ranked(places: Mapping[str, tuple[float, int]], ties: Ties) -> Ranking:
    # Sorted by id first, and then by what matters more: sorting keeps the order of equals.
    ordered = sorted(places.items(), key=lambda item: item[0], reverse=ties == "trec_eval")
    if ties == "rank":
        ordered.sort(key=lambda item: item[1][1])
    ordered.sort(key=lambda item: -item[1][0])
    return Ranking([document for document, _ in ordered], [place[0] for _, place in ordered])


def write_run(path: Path, run: Run) -> None:
    """Write a run, whole or not at all."""
    write_beside(path, "".join(_run_lines(run)))


def _run_lines(run: Run) -> Iterator[str]:
    for query, rankings in run.rankings.items():
        for sample, ranking in enumerate(rankings, start=1):
            tag = run.name if len(rankings) == 1 else f"{run.name}#{sample}"
            for rank, (id_, score) in enumerate(
                zip(ranking.ids, ranking.scores, strict=True), start=1
            ):
                yield f"{query} Q0 {id_} {rank} {score!r} {tag}\n"


def read_qrels(path: Path) -> dict[str, dict[str, int]]:
    """Read judgements.

    Raises:
        CorpusError: A line is no judgement, or a document is judged twice for a query.
    """
    qrels: dict[str, dict[str, int]] = {}
    for number, (query, _, document, grade) in _fields(path, 4, "query 0 document grade"):
        try:
            value = int(grade)
        except ValueError:
            raise _bad(path, number, f"its grade '{one_line(grade)}' is no whole number") from None
        if abs(value) > HIGHEST_GRADE:
            raise _bad(path, number, f"its grade is beyond {HIGHEST_GRADE:,}")
        judged = qrels.setdefault(query, {})
        if document in judged:
            raise _bad(path, number, f"the document '{one_line(document)}' is judged twice")
        judged[document] = value
    return qrels


def write_qrels(path: Path, qrels: Qrels) -> None:
    """Write judgements, whole or not at all."""
    lines = (f"{q} 0 {d} {g}\n" for q, judged in qrels.items() for d, g in judged.items())
    write_beside(path, "".join(lines))


def _fields(path: Path, count: int, shape: str) -> Iterable[tuple[int, list[str]]]:
    for number, line in numbered_lines(path):
        try:
            fields = line.decode().split()
        except UnicodeDecodeError:
            raise _bad(path, number, "it is not UTF-8 text") from None
        if len(fields) != count:
            raise _bad(path, number, f"it has {len(fields)} fields, not the {count} of '{shape}'")
        yield number, fields


def _bad(path: Path, number: int, what: str) -> CorpusError:
    return CorpusError(f"{path}, line {number}: {what}; mend the line.")
