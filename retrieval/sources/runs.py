"""Run files in TREC format: what a system ranked.

Each line is ``query Q0 document rank score tag``, separated by white space.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple, NoReturn, get_args

import numpy as np
from numpy.typing import NDArray

from fairqr.base.errors import CorpusError, InputError, one_line
from fairqr.base.files import write_beside
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.sources.documents import numbered_lines
from fairqr.retrieval.sources.trec_columns import UnusualError, columns_of

Ties = Literal["rank", "id", "trec_eval", "error"]
_TIES: tuple[Ties, ...] = get_args(Ties)
TIES = {
    "rank": "the rank in the file",
    "id": "id",
    "trec_eval": "id, descending",
    "error": "nothing",
}
"""What decides the order of equal scores, in words for users."""
_SAMPLE = re.compile(r"#[0-9]+$")


@dataclass(frozen=True, slots=True)
class Run:
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


def read_run(path: Path, *, ties: Ties = "rank") -> Run:
    """Read a run.

    Documents are ordered by score. A tag such as ``name#3`` marks the third of several rankings for
    a query.

    Args:
        path: The file; unpacked while reading if its name ends in ``.gz``.
        ties: What decides between equal scores. ``rank``: the rank in the file, then the id.
            ``id``: the id, ascending, as in fairqr's own rankings. ``trec_eval``: the id,
            descending, as in trec_eval. ``error``: nothing; a tie is an error.

    Raises:
        CorpusError: A line does not belong in a run, a document occurs twice in a ranking, or the
            file has several runs; the error names the line.
        InputError: Scores are tied and ties are an error, or ``ties`` has an unknown value.
    """
    check_ties(ties)
    with suppress(UnusualError):
        return _read_by_columns(path, ties)
    found: dict[str, dict[str, dict[str, _Place]]] = {}
    name = ""
    for number, fields in trec_fields(path, 6, "query Q0 document rank score tag"):
        query, _, document, rank, score, tag = fields
        place = _Place(
            _finite(path, number, score), whole_number(path, number, "rank", rank), number
        )
        system = _SAMPLE.sub("", tag)
        name = name or system
        if system != name:
            raise wrong_line(
                path,
                number,
                f"its tag '{one_line(tag)}' belongs to another run than '{one_line(name)}', "
                "but a file may have only one run",
            )
        ranking = found.setdefault(query, {}).setdefault(tag, {})
        if document in ranking:
            raise wrong_line(
                path,
                number,
                f"the document '{one_line(document)}' is already in line {ranking[document].line}",
            )
        ranking[document] = place
    if not found:
        raise CorpusError(f"The run {path} is empty; name a file with rankings.")
    rankings = {q: [_ranked(places, ties) for places in tags.values()] for q, tags in found.items()}
    tied = 0
    for query, sampled in rankings.items():
        equal = sum(a == b for ranking in sampled for a, b in pairwise(ranking.scores))
        if equal and ties == "error":
            refuse_ties(str(path), query, equal)
        tied += equal
    return Run(name, rankings, tied, TIES[ties])


def check_ties(ties: str) -> None:
    """Refuse an unknown way to order equal scores.

    Raises:
        InputError: The way is unknown.
    """
    if ties not in _TIES:
        raise InputError(f"Equal scores cannot be ordered by '{ties}'; choose {', '.join(_TIES)}.")


def refuse_ties(run: str, query: str, equal: int) -> NoReturn:
    """Raise the error about equal scores.

    Args:
        run: The run, for the message.
        query: The query.
        equal: How many of its documents share their score with another.

    Raises:
        InputError: Always.
    """
    raise InputError(
        f"{run}: the query '{one_line(query)}' has {equal} documents with the same score "
        f"as another; choose {', '.join(_TIES[:-1])} to decide between them."
    )


def _read_by_columns(path: Path, ties: Ties) -> Run:
    """Read a run with one ranking for each query."""
    tag = b""
    parts: dict[str, list[tuple[list[str], FloatArray, NDArray[np.int64]]]] = {}
    for columns in columns_of(path, 6):
        queries, tags = columns.text(0), columns.text(5)
        tag = tag or bytes(tags[0])
        if (tags != tag).any() or _SAMPLE.search(tag.decode()):
            raise UnusualError
        documents: list[str] = columns.text(2).astype(str).tolist()
        ranks, scores = columns.whole(3), columns.decimal(4)
        bounds = [0, *(np.flatnonzero(queries[1:] != queries[:-1]) + 1).tolist(), len(queries)]
        for start, end in pairwise(bounds):
            own = parts.setdefault(queries[start].decode(), [])
            own.append((documents[start:end], scores[start:end], ranks[start:end]))
    if not parts:
        raise UnusualError
    rankings, tied = {}, 0
    for query, own in parts.items():
        ids, scores, _ = own[0]
        if len(own) > 1:
            ids = [id_ for documents, _, _ in own for id_ in documents]
            scores = np.concatenate([found for _, found, _ in own])
        if len(set(ids)) < len(ids):
            raise UnusualError
        ranking = Ranking(ids, scores.tolist())
        if len(ids) > 1 and not (np.diff(scores) < 0).all():
            ranks = np.concatenate([found for _, _, found in own]).tolist()
            cells = zip(ranking.scores, ranks, strict=True)
            places = {id_: _Place(*cell, 0) for id_, cell in zip(ids, cells, strict=True)}
            ranking = _ranked(places, ties)
            equal = sum(a == b for a, b in pairwise(ranking.scores))
            if equal and ties == "error":
                raise UnusualError
            tied += equal
        rankings[query] = [ranking]
    return Run(tag.decode(), rankings, tied, TIES[ties])


class _Place(NamedTuple):
    score: float
    rank: int
    line: int


def _ranked(places: Mapping[str, _Place], ties: Ties) -> Ranking:
    # Sort by id first, then by what matters more: sorting keeps the order of equals.
    ordered = sorted(places.items(), key=lambda item: item[0], reverse=ties == "trec_eval")
    if ties == "rank":
        ordered.sort(key=lambda item: item[1].rank)
    ordered.sort(key=lambda item: -item[1].score)
    return Ranking([document for document, _ in ordered], [place.score for _, place in ordered])


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
        try:
            fields = line.decode().split()
        except UnicodeDecodeError:
            raise wrong_line(path, number, "it is not UTF-8 text") from None
        if len(fields) != count:
            what = f"it has {len(fields)} fields instead of the {count} in '{shape}'"
            raise wrong_line(path, number, what)
        yield number, fields


def _finite(path: Path, number: int, score: str) -> float:
    with suppress(ValueError):
        if _is_plain(score) and math.isfinite(value := float(score)):
            return value
    raise wrong_line(path, number, f"its score '{one_line(score, 60)}' is not a finite number")


def whole_number(path: Path, number: int, name: str, text: str) -> int:
    """Read a field that must be a whole number.

    Raises:
        CorpusError: It is not one.
    """
    with suppress(ValueError):
        if _is_plain(text):
            return int(text)
    raise wrong_line(path, number, f"its {name} '{one_line(text, 60)}' is not a whole number")


def _is_plain(number: str) -> bool:
    """Return whether others read a number as Python does, which also accepts ``1_0`` and ``١``."""
    return number.isascii() and "_" not in number


def wrong_line(path: Path, number: int, what: str) -> CorpusError:
    """Return the error about a line of a file."""
    return CorpusError(f"{path}, line {number}: {what}; fix the line.")
