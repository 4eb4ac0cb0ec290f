"""Runs and judgements in TREC's formats: what a system ranked, and what is relevant.

A run file has lines ``query Q0 document rank score tag``; a qrels file has lines
``query 0 document grade``. Fields are separated by white space.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fairqr.errors import CorpusError, one_line
from fairqr.retrieval.documents import numbered_lines
from fairqr.retrieval.files import write_beside
from fairqr.retrieval.ranking import Ranking

__all__ = ["Qrels", "Run", "read_qrels", "read_run", "write_qrels", "write_run"]

Qrels = Mapping[str, Mapping[str, int]]
"""The grade of each judged document by query; above 0 is relevant, what is missing is not."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a system ranked.

    Attributes:
        name: The system's tag.
        rankings: By query one ranking, or several that were sampled for it.
    """

    name: str
    rankings: Mapping[str, list[Ranking]] = field(default_factory=dict)


def read_run(path: Path) -> Run:
    """Read a run.

    Documents are ordered by score; equal scores by the rank that the file gives, and then by id.
    A tag of the form ``name#3`` marks the third of several rankings for a query.

    Raises:
        CorpusError: A line is no line of a run, or a document stands twice in a ranking; the line
            is named.
    """
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
        name = name or tag.split("#")[0]
        ranking = found.setdefault(query, {}).setdefault(tag, {})
        if document in ranking:
            raise _bad(path, number, f"the document '{one_line(document)}' stands twice in it")
        ranking[document] = place
    if not found:
        raise CorpusError(f"The run {path} is empty; name a file with rankings.")
    return Run(name, {q: [_ranked(r) for r in tags.values()] for q, tags in found.items()})


def _ranked(places: Mapping[str, tuple[float, int]]) -> Ranking:
    ordered = sorted(places.items(), key=lambda item: (-item[1][0], item[1][1], item[0]))
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
