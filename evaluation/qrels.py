"""Judgements in TREC's format: which documents are relevant for which query.

Each line is ``query 0 document grade``, separated by white space.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fairqr.base.errors import CorpusError, one_line
from fairqr.base.files import write_beside
from fairqr.retrieval.sources.documents import wrong_line
from fairqr.retrieval.sources.runs import trec_fields

HIGHEST_GRADE = 1_000_000

Qrels = Mapping[str, Mapping[str, int]]
"""The grade of each judged document by query; above 0 is relevant, what is missing is not."""


def read_qrels(path: Path) -> dict[str, dict[str, int]]:
    """Read judgements.

    Raises:
        CorpusError: A line is not a judgement, or a document is judged twice for a query.
    """
    qrels: dict[str, dict[str, int]] = {}
    for number, (query, _, document, grade) in trec_fields(path, 4, "query 0 document grade"):
        try:
            value = int(grade)
        except ValueError:
            problem = f"its grade '{one_line(grade, 60)}' is not a whole number"
            raise wrong_line(path, number, problem, "judgements", CorpusError) from None
        if abs(value) > HIGHEST_GRADE:
            problem = f"its grade is beyond {HIGHEST_GRADE:,}"
            raise wrong_line(path, number, problem, "judgements", CorpusError)
        judged = qrels.setdefault(query, {})
        if document in judged:
            problem = f"the document '{one_line(document)}' is judged twice"
            raise wrong_line(path, number, problem, "judgements", CorpusError)
        judged[document] = value
    return qrels


def write_qrels(path: Path, qrels: Qrels) -> None:
    """Write judgements, whole or not at all."""
    lines = (f"{q} 0 {d} {g}\n" for q, judged in qrels.items() for d, g in judged.items())
    write_beside(path, "".join(lines))
