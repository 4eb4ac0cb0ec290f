"""Evaluations as files: one row for each run, query and measure."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from fairqr.evaluation.results import Evaluation
from fairqr.evaluation.scores import Undefined

__all__ = ["CSV_COLUMNS", "csv_text"]

CSV_COLUMNS = ("run", "query", "measure", "value", "reason")


def csv_text(evaluations: Iterable[Evaluation]) -> str:
    """Return the values by query as CSV, with a line of headings.

    ``value`` is empty where there is none, and ``reason`` says then why.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for evaluation in evaluations:
        for measure, result in evaluation.results.items():
            for query, score in result.values.items():
                cells = ("", str(score.reason)) if isinstance(score, Undefined) else (score, "")
                writer.writerow((evaluation.run, query, measure, *cells))
    return stream.getvalue()
