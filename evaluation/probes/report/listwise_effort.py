"""What failed in a listwise probe, what was mended, and what it cost."""

from __future__ import annotations

from collections.abc import Iterator

from fairqr.evaluation.experiments.report import numbers, parts
from fairqr.evaluation.experiments.report.parts import Block, Cell, Items, Paragraph
from fairqr.evaluation.probes.measured import ListwiseRow, MeasuredListwise
from fairqr.evaluation.probes.report.common import (
    asker_name,
    counted,
    percent,
    ranker_name,
    why_left_out,
)
from fairqr.evaluation.probes.report.listwise import asker_cell, built_of, by_collection

__all__ = ["listwise_cost_blocks", "listwise_failure_blocks"]

_REPAIRS = {
    "missing": "missing, put last in their order",
    "duplicate": "named twice, the later one dropped",
    "stranger": "of no passage, dropped",
}


def listwise_failure_blocks(measured: MeasuredListwise) -> Iterator[Block]:
    """Yield failures and repairs by kind."""
    built = built_of(measured)
    k = measured.manifest.rankings.k
    for name, rows in by_collection(measured):
        yield parts.Table(
            f"{name}: questions that failed, and replies that were mended. A question is a window "
            "of a listwise ranker, or a comparison. Where one fails the order stays as it was; a "
            "list of which all failed counts in no mean. Mended items are counted over all "
            "questions that were answered.",
            (
                "ranker",
                "query",
                "questions",
                "failed",
                "failures by kind",
                "items mended",
                "by kind",
                f"lists without P@{k}",
            ),
            tuple(
                (
                    Cell(ranker_name(row.ranker, row.window)),
                    asker_cell(row, built[name]),
                    Cell(f"{row.asked:,}"),
                    Cell(f"{_failed(row):,}", percent(_failed(row) / row.asked))
                    if row.asked
                    else Cell("–"),
                    Cell(counted(row.failures)),
                    Cell(f"{sum(row.repairs.values()):,}", _a_question(row)),
                    Cell(counted(row.repairs, _REPAIRS)),
                    why_left_out(row.precision),
                )
                for row in rows
            ),
        )

        told = [
            f"{asker_name(row.asker, built[name])}, {ranker_name(row.ranker, row.window)}, "
            f"{numbers.count(lists, 'list')}: {sentence}"
            for row in rows
            for sentence, lists in row.warnings.items()
        ]
        if told:
            yield Paragraph(f"{name}: what rankers warned of:")
            yield Items(tuple(told))


def _failed(row: ListwiseRow) -> int:
    return sum(row.failures.values())


def _a_question(row: ListwiseRow) -> str:
    answered = row.asked - _failed(row)
    return f"{sum(row.repairs.values()) / answered:.1f} a question" if answered > 0 else ""


def listwise_cost_blocks(measured: MeasuredListwise) -> Iterator[Block]:
    """Yield what rankings cost."""
    yield Paragraph(
        "What the cache answered counts as what it cost when it was asked for. monoT5 and monoBERT "
        "score by themselves and ask no language model."
    )
    built = built_of(measured)
    yield parts.Table(
        "Cost in all, and by list.",
        ("collection", "ranker", "query", "lists", "model calls", "tokens", "tokens a list"),
        tuple(
            (
                Cell(row.collection),
                Cell(ranker_name(row.ranker, row.window)),
                asker_cell(row, built[row.collection]),
                Cell(str(len(row.by_query))),
                Cell(f"{row.spent.model_calls:,}"),
                Cell(f"{row.spent.tokens:,}"),
                Cell(f"{row.spent.tokens / len(row.by_query):,.0f}" if row.by_query else "–"),
            )
            for _, rows in by_collection(measured)
            for row in rows
        ),
    )
