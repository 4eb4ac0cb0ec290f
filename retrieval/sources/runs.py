"""Run files in TREC format: what a system ranked.

Each line is ``query Q0 document rank score tag``, separated by white space.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np

from fairqr.base.errors import CorpusError, InputError, one_line
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.sources.documents import csv_cells, delimiter_in, numbered_lines, wrong_line
from fairqr.retrieval.sources.file_forms import named_delimiter

Ties = Literal["rank", "id", "trec_eval"]
TIES = {"rank": "the rank in the file", "id": "id", "trec_eval": "id, descending"}
"""What decides the order of equal scores, in words for users."""
SHAPE = "query Q0 document rank score tag"
"""The fields of a line."""

NUMBERED = ("rank", "score", "grade")
"""The fields that are numbers."""

_COLUMN = re.compile(r"(?i)^[a-z_-]*(rank|score|grade|rel|label|judg|pos)[a-z_-]*$")
"""What columns of numbers are called."""

COLUMNS = {
    "query": ("query_id", "qid", "queryid", "topic", "topic_id", "query"),
    "document": ("doc_id", "docno", "corpus_id", "document_id", "document", "doc", "docid", "pid"),
    "rank": ("rank",),
    "score": ("score", "relevance_score"),
    "grade": ("grade", "relevance", "label", "rel", "score"),
    "tag": ("tag", "run", "run_id", "runid", "system"),
}
"""What tables call the fields; the first name that is there counts.

PyTerrier's ``docid`` is a number of its index, and its ``docno`` the document.
"""

DEFAULTS = {"Q0": "Q0", "0": "0", "rank": "0", "tag": "run"}
"""The fields that a table may lack."""

FROM_COMMAS = r"tr ',' '\t' < FILE"
FROM_RANKS = """awk '{print $1, "Q0", $2, $3, 1 / $3, "run"}' FILE"""
WITH_TAG = """awk '{print $1, $2, $3, $4, $5, "run"}' FILE"""

_SAMPLE = re.compile(r"#[0-9]+$")

Entries = dict[str, tuple[float, int]]
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
    name = ""
    system = ""
    last_ranking = ("", "")
    entries: Entries = {}
    entries_by_query: dict[str, dict[str, Entries]] = {}
    for line, (query, _, document, rank, score, tag) in trec_fields(path, SHAPE):
        # Files have millions of lines, and the next line mostly is of the same ranking.
        if (query, tag) != last_ranking:
            last_ranking = (query, tag)
            system = _SAMPLE.sub("", tag)
            name = name or system
            entries = entries_by_query.setdefault(query, {}).setdefault(tag, {})
        try:
            entry = _entry(rank, score)
            if document in entries:
                raise ValueError(f"the document '{one_line(document)}' comes twice")
            if system != name:
                raise ValueError(f"its tag '{one_line(tag)}' belongs to another run than '{name}'")
        except ValueError as error:
            raise wrong_line(path, line, error, "run", CorpusError) from None
        entries[document] = entry
    if not entries_by_query:
        raise CorpusError(f"The run {path} is empty; name a file with rankings.")

    rankings: dict[str, list[Ranking]] = {}
    tied = 0
    for query, entries_by_tag in entries_by_query.items():
        rankings[query] = [_ranked(entries, ties) for entries in entries_by_tag.values()]
        tied += sum(map(_count_ties, rankings[query]))
    return SystemRun(name, rankings, tied, TIES[ties])


def _entry(rank: str, score: str) -> tuple[float, int]:
    """Return the score and the rank of a document.

    Raises:
        ValueError: The score is not a finite number, or the rank not a whole one.
    """
    try:
        entry = float(score), whole_number(rank)
    except (ValueError, OverflowError):
        entry = math.nan, 0
    if not math.isfinite(entry[0]):
        numbers = f"its rank '{one_line(rank, 60)}' or its score '{one_line(score, 60)}'"
        raise ValueError(f"{numbers} is not a finite number")
    return entry


def check_ties(ties: str) -> None:
    """Refuse an unknown way to order equal scores.

    Raises:
        InputError: The way is unknown.
    """
    if ties not in TIES:
        raise InputError(f"Equal scores cannot be ordered by '{ties}'; choose {', '.join(TIES)}.")


def _ranked(entries: Entries, ties: Ties) -> Ranking:
    """Return the ranking of a query: by score, and as ``ties`` says where scores are equal."""
    ids = list(entries)
    scores = np.array([score for score, _ in entries.values()])
    is_ranked = not (np.diff(scores) >= 0).any()
    if not is_ranked:
        # Sort by id first, then by what matters more: sorting keeps the order of equals.
        ids.sort(reverse=ties == "trec_eval")
        if ties == "rank":
            ids.sort(key=lambda id_: entries[id_][1])
        ids.sort(key=lambda id_: -entries[id_][0])
        scores = np.array([entries[id_][0] for id_ in ids])
    return Ranking(ids, scores.tolist())


def _count_ties(ranking: Ranking) -> int:
    """Return how many documents have the same score as the one before them."""
    return int((np.diff(ranking.scores) == 0).sum())


def trec_fields(path: Path, *shapes: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the fields of each line of a file in a TREC format.

    Comments, which begin with ``#``, and a first line that names the columns are left out. A table
    with commas, semicolons, tabs or spaces whose first line names the fields is read by these
    names.

    Args:
        path: The file; unpacked while reading if its name ends in ``.gz``.
        shapes: The names of the fields; all lines have those of one shape, whose last but the tag
            of a run is a number.

    Raises:
        CorpusError: The file cannot be read, or a line has more or fewer fields.
    """
    fields_of_table = shapes[-1].split()  # The shape without what nobody reads.
    delimiter, head = _head_of_table(path)
    names = _names_of_fields(head, delimiter, fields_of_table)
    if names:
        yield from _fields_of_table(path, delimiter, names, fields_of_table)
        return

    shape_by_size = {len(shape.split()): shape for shape in shapes}
    size = 0
    for number, line in numbered_lines(path):
        if line.lstrip().startswith("#"):
            continue
        fields = line.split()
        # A file that began with one shape cannot go on with another.
        allowed = [size] if size else list(shape_by_size)
        if len(fields) not in allowed or _is_json(fields):
            problem = _wrong_shape(fields, [shape_by_size[count] for count in allowed])
            raise wrong_line(path, number, problem, kind=CorpusError)
        is_head = not size and _names_columns(fields, shape_by_size[len(fields)])
        size = len(fields)
        if not is_head:
            yield number, fields


def column_name(name: object) -> str:
    """Return the name of a column as :data:`COLUMNS` has it."""
    return str(name).strip().strip('"').casefold().replace("-", "_")


def _head_of_table(path: Path) -> tuple[str | None, str]:
    """Return what stands between the cells of a table, None being white space, and its head."""
    lines = numbered_lines(path)
    _, first_line = next(lines, (1, ""))
    delimiter = named_delimiter(first_line)
    if not delimiter:
        return delimiter_in(first_line), first_line
    _, second_line = next(lines, (2, ""))
    return delimiter, second_line


def _names_of_fields(line: str, delimiter: str | None, fields: Sequence[str]) -> list[str]:
    """Return the names of a table's columns, if its head names what the fields need."""
    names = [column_name(name) for name in line.split(delimiter)]
    needed = [field for field in fields if field not in DEFAULTS]
    has_all = all(not set(COLUMNS[field]).isdisjoint(names) for field in needed)
    return names if has_all else []


def _fields_of_table(
    path: Path, delimiter: str | None, names: Sequence[str], fields: Sequence[str]
) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the fields of each row, read by the names of its columns."""
    position_of = {}
    for field_ in fields:
        column = next((name for name in COLUMNS.get(field_, ()) if name in names), None)
        if column is None:
            continue
        if names.count(column) > 1:
            raise wrong_line(path, 1, f"it names the column '{column}' twice", kind=CorpusError)
        position_of[field_] = names.index(column)

    for line, cells in _rows_of_table(path, delimiter):
        if len(cells) != len(names):
            problem = f"it has {len(cells)} columns, and the first line names {len(names)}"
            raise wrong_line(path, line, problem, kind=CorpusError)
        row = []
        for field_ in fields:
            if field_ in position_of:
                row.append(cells[position_of[field_]].strip())
            else:
                row.append(DEFAULTS[field_])
        yield line, row


def _rows_of_table(path: Path, delimiter: str | None) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the cells of each row below the names of the columns.

    Rows may have white space between their cells, though the head does not.
    """
    if delimiter:
        for number, cells in islice(csv_cells(path, "table"), 1, None):
            yield number, cells if len(cells) > 1 else cells[0].split()
        return
    for number, line in islice(numbered_lines(path), 1, None):
        if not line.lstrip().startswith("#"):
            yield number, line.split()


def _names_columns(fields: list[str], shape: str) -> bool:
    """Return whether a line has names of columns where numbers belong."""
    names = shape.split()
    positions = [names.index(name) for name in NUMBERED if name in names]
    return all(_COLUMN.search(fields[position]) for position in positions)


def _wrong_shape(fields: list[str], shapes: Sequence[str]) -> str:
    """Return what is wrong with a line, and the command that makes what we need."""
    expected = " or ".join(f"the {len(shape.split())} in '{shape}'" for shape in shapes)
    if _is_json(fields):
        problem = f"it is JSON, but a line has {expected}"
        return f"{problem}; save it in TREC's format, as with kind='trec' in ranx"

    problem = f"it has {len(fields)} fields instead of {expected}"
    has_commas = len(fields) == 1 and "," in fields[0]
    has_index_of_pandas = has_commas and fields[0].startswith((",", '"",'))
    if has_index_of_pandas:
        needed = [name for name in shapes[-1].split() if name not in DEFAULTS]
        return f"{problem}; name its columns {', '.join(needed)} in the first line"
    if has_commas:
        return f"{problem}; {FROM_COMMAS} makes tabs of commas"

    is_run = SHAPE in shapes
    if is_run and len(fields) == 3:
        return f"{problem}; {FROM_RANKS} makes it of query, document and rank"
    if is_run and len(fields) in (5, 7):
        return f"{problem}; {WITH_TAG} gives it the tag 'run'"
    return problem


def _is_json(fields: Sequence[str]) -> bool:
    return fields[0].startswith(("{", "["))


def whole_number(text: str) -> int:
    """Return a whole number, which may be written as ``1.0``.

    Raises:
        ValueError: It is not a whole number.
    """
    number = float(text)
    if not number.is_integer():
        raise ValueError(f"{text} is not a whole number")
    return int(number)
