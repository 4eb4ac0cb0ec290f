"""Judgements in TREC's format: which documents are relevant for which query.

Each line is ``query 0 document grade``, separated by white space; BEIR's files lack the column of
zeros, and begin with a line that names the columns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from fairqr.base.errors import CorpusError, one_line
from fairqr.base.files import write_beside
from fairqr.retrieval.sources.documents import wrong_line
from fairqr.retrieval.sources.runs import trec_fields, whole_number

HIGHEST_GRADE = 1_000_000
_GRADE = re.compile(r"[+-]?0*([0-9]{1,6}|1000000)(\.0*)?")

SHAPES = ("query 0 document grade", "query document grade")
"""The fields of a line, in one of two forms."""

Qrels = Mapping[str, Mapping[str, int]]
"""The grade of each judged document by query; above 0 is relevant, what is missing is not."""


def read_qrels(path: Path) -> dict[str, dict[str, int]]:
    """Read judgements, with or without the column of zeros and a line that names the columns.

    Raises:
        CorpusError: A line is not a judgement, or a document is judged twice for a query.
    """
    qrels: dict[str, dict[str, int]] = {}
    for number, (query, *_, document, grade) in trec_fields(path, *SHAPES):
        judged = qrels.setdefault(query, {})
        if document in judged:
            problem = f"the document '{one_line(document)}' is judged twice"
        elif not _GRADE.fullmatch(grade):
            problem = f"its grade '{one_line(grade, 60)}' is not a whole number up to 1,000,000"
        else:
            judged[document] = whole_number(grade)
            continue
        raise wrong_line(path, number, problem, "judgements", CorpusError)
    return qrels


def write_qrels(path: Path, qrels: Qrels) -> None:
    """Write judgements, whole or not at all."""
    lines = []
    for query, judged in qrels.items():
        lines += [f"{query} 0 {document} {grade}\n" for document, grade in judged.items()]
    write_beside(path, "".join(lines))
