"""Judgements in TREC's format: which documents are relevant for which query.

Each line is ``query 0 document grade``, separated by white space.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np

from fairqr.base.errors import one_line
from fairqr.base.files import write_beside
from fairqr.retrieval.sources.runs import trec_fields, whole_number, wrong_line
from fairqr.retrieval.sources.trec_columns import UnusualError, columns_of

HIGHEST_GRADE = 1_000_000

Qrels = Mapping[str, Mapping[str, int]]
"""The grade of each judged document by query; above 0 is relevant, what is missing is not."""


def read_qrels(path: Path) -> dict[str, dict[str, int]]:
    """Read judgements.

    Raises:
        CorpusError: A line is not a judgement, or a document is judged twice for a query.
    """
    with suppress(UnusualError):
        return _read_by_columns(path)
    qrels: dict[str, dict[str, int]] = {}
    for number, (query, _, document, grade) in trec_fields(path, 4, "query 0 document grade"):
        value = whole_number(path, number, "grade", grade)
        if abs(value) > HIGHEST_GRADE:
            raise wrong_line(path, number, f"its grade is beyond {HIGHEST_GRADE:,}")
        judged = qrels.setdefault(query, {})
        if document in judged:
            raise wrong_line(path, number, f"the document '{one_line(document)}' is judged twice")
        judged[document] = value
    return qrels


def _read_by_columns(path: Path) -> dict[str, dict[str, int]]:
    qrels: dict[str, dict[str, int]] = {}
    for columns in columns_of(path, 4):
        queries, grades = columns.text(0), columns.whole(3)
        if np.abs(grades).max() > HIGHEST_GRADE:
            raise UnusualError
        documents: list[str] = columns.text(2).astype(str).tolist()
        bounds = [0, *(np.flatnonzero(queries[1:] != queries[:-1]) + 1).tolist(), len(queries)]
        for start, end in pairwise(bounds):
            judged = qrels.setdefault(queries[start].decode(), {})
            before = len(judged)
            judged.update(zip(documents[start:end], grades[start:end].tolist(), strict=True))
            if len(judged) - before < end - start:
                raise UnusualError
    return qrels


def write_qrels(path: Path, qrels: Qrels) -> None:
    """Write judgements, whole or not at all."""
    lines = (f"{q} 0 {d} {g}\n" for q, judged in qrels.items() for d, g in judged.items())
    write_beside(path, "".join(lines))
