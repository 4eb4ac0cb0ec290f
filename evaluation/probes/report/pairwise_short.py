"""What a pairwise probe says in words, what failed in it, and what it cost."""

from __future__ import annotations

from collections.abc import Iterator

from fairqr.evaluation.experiments.report import numbers, parts
from fairqr.evaluation.experiments.report.parts import Block, Cell, Heading, Items, Paragraph
from fairqr.evaluation.probes.measured import MeasuredPairwise, PairwiseRow
from fairqr.evaluation.probes.report.common import counted, grouped, percent
from fairqr.evaluation.probes.report.pairwise import KINDS, by_collection, p_of

__all__ = ["pairwise_cost_blocks", "pairwise_failure_blocks", "pairwise_in_short"]

LEVEL = 0.05


def pairwise_in_short(measured: MeasuredPairwise) -> Iterator[Block]:
    """Yield the verdict on each model, and whether it can tell what is relevant."""
    yield Heading("In short")
    sentences: list[str] = []
    for _, rows in grouped((row.collection, row) for row in measured.rows):
        sentences += [f"{_told(row)}: {row.verdict.sentence}" for row in rows if row.verdict]
        sentences += [f"{_told(row)}: {_relevance(row)}" for row in rows if row.kind == "relevance"]
    sentences += _read_by_reply(measured)
    yield Items(tuple(sentences or ["No pair was asked about, so nothing can be said."]))


def _read_by_reply(measured: MeasuredPairwise) -> Iterator[str]:
    """Say which models did not tell the probabilities that were asked for."""
    if measured.manifest.pairs.by != "probabilities":
        return
    for model, rows in grouped((row.model, row) for row in measured.rows):
        votes = sum(row.figures.votes.of for row in rows)
        if votes and not any(row.figures.log_odds.replies for row in rows):
            yield f"{model} did not tell the probabilities of its tokens; its replies were read."


def _told(row: PairwiseRow) -> str:
    return f"{row.collection}: {row.model}, {KINDS[row.kind]}"


def _relevance(row: PairwiseRow) -> str:
    figures = row.figures
    if not figures.answered:
        return "no pair has a preference in both orders, so nothing is known of relevance."
    p = p_of(figures)
    shown = "p has no value" if p is None else f"p {numbers.p_value(p)}"
    right, wrong = figures.protected.count, figures.unprotected.count
    text = (
        f"of {numbers.count(figures.pairs, 'pair')} the relevant item wins in both orders in "
        f"{right:,}, the irrelevant one in {wrong:,} ({shown})"
    )
    if p is not None and p <= LEVEL and right > wrong:
        return f"{text}; the model can tell relevant items."
    return (
        f"{text}; that the model can tell relevant items was not found, so which group it prefers "
        "says little of how it would rank."
    )


def pairwise_failure_blocks(measured: MeasuredPairwise) -> Iterator[Block]:
    """Yield what was asked, and what failed."""
    for name, rows in by_collection(measured, "relevant", "irrelevant", "relevance"):
        yield parts.Table(
            f"{name}: pairs and replies. Each pair is asked about in both orders. A reply that "
            "prefers neither item fails, by kind; a tie is one with equal probabilities. Without "
            "pairs are queries of which a cell is empty.",
            (
                "model",
                "pairs",
                "planned",
                "asked",
                "queries without pairs",
                "replies",
                "failed",
                "failures by kind",
                "pairs with both replies",
            ),
            tuple(_failure_row(row) for row in rows),
        )


def _failure_row(row: PairwiseRow) -> tuple[Cell, ...]:
    figures = row.figures
    return (
        Cell(row.model),
        Cell(KINDS[row.kind]),
        Cell(f"{row.planned:,}"),
        Cell(f"{figures.pairs:,}"),
        Cell(f"{row.without_pairs} of {row.queries}"),
        Cell(f"{figures.replies:,}"),
        Cell(f"{figures.failed:,}", percent(figures.failed / figures.replies))
        if figures.replies
        else Cell("0"),
        Cell(counted(figures.failures)),
        Cell(f"{figures.answered:,}"),
    )


def pairwise_cost_blocks(measured: MeasuredPairwise) -> Iterator[Block]:
    """Yield what pairs cost."""
    yield Paragraph("What the cache answered counts as what it cost when it was asked for.")
    rows = [row for row in measured.rows if row.kind != "both"]
    yield parts.Table(
        "Cost in all.",
        ("collection", "model", "pairs", "asked", "model calls", "tokens"),
        tuple(
            (
                Cell(row.collection),
                Cell(row.model),
                Cell(KINDS[row.kind]),
                Cell(f"{row.figures.pairs:,}"),
                Cell(f"{row.spent.model_calls:,}"),
                Cell(f"{row.spent.tokens:,}"),
            )
            for row in rows
        ),
    )
