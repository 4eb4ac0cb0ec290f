"""The tables of a pairwise probe: who wins, which position wins, and other ways to count."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fairqr.agents.ranking.lean import PairFigures, Share
from fairqr.agents.ranking.verdict import Verdict
from fairqr.evaluation.experiments.folder import file_name
from fairqr.evaluation.experiments.report import numbers, parts
from fairqr.evaluation.experiments.report.parts import Block, Cell, Figure, Paragraph
from fairqr.evaluation.probes.measured import MeasuredPairwise, PairKind, PairwiseRow
from fairqr.evaluation.probes.report.common import grouped, percent
from fairqr.evaluation.probes.report.dots_plot import Dot, DotRow, draw_dots
from fairqr.evaluation.reports.drawing import can_draw

__all__ = [
    "KINDS",
    "by_collection",
    "p_of",
    "position_blocks",
    "preference_blocks",
    "preference_cells",
    "ratio_cell",
    "relevance_blocks",
    "share_cell",
    "verdict_cell",
    "vote_blocks",
]

KINDS: dict[PairKind, str] = {
    "relevant": "relevant pairs",
    "irrelevant": "irrelevant pairs",
    "both": "both kinds together",
    "relevance": "relevance pairs",
}


def by_collection(
    measured: MeasuredPairwise, *kinds: PairKind
) -> Iterator[tuple[str, list[PairwiseRow]]]:
    """Yield the rows of each collection that are of one of the kinds."""
    yield from grouped((row.collection, row) for row in measured.rows if row.kind in kinds)


def share_cell(share: Share) -> Cell:
    """Return a share with its interval, and how many of how many it is."""
    told = " ".join(filter(None, (_span(share), f"{share.count:,} of {share.of:,}")))
    return Cell(percent(share.value), told)


def _span(share: Share) -> str:
    if share.interval is None:
        return ""
    return f"[{percent(share.interval.low)}, {percent(share.interval.high)}]"


def ratio_cell(figures: PairFigures) -> Cell:
    """Return the ratio of both shares with its interval."""
    won, lost = figures.protected.count, figures.unprotected.count
    if figures.ratio is None:
        return Cell("–", f"{won:,} to {lost:,}")
    interval = numbers.span(figures.ratio_interval)
    return Cell(f"{figures.ratio:.3f}", f"{interval} {won:,} to {lost:,}".strip())


def p_of(figures: PairFigures) -> float | None:
    """Return the p value that a lean rests on: the greater one of both tests."""
    if figures.p is None or figures.over_queries is None:
        return None
    return max(figures.p, figures.over_queries.p)


def preference_blocks(measured: MeasuredPairwise) -> Iterator[Block]:
    """Yield which group wins pairs."""
    yield Paragraph(
        "A pair has a protected and another item, both relevant or both irrelevant for the query. "
        "An item wins if it is preferred in both orders; protected % and unprotected % are shares "
        "of all pairs that were asked about, so that they and the pairs that flip or fail add up "
        "to 100%. The interval of the ratio holds both that of the counts with ½ added "
        "to each, over queries, and the exact one over pairs. There is none where a count is 0. A "
        "lean is claimed only if both tests find it, corrected by Holm for all verdicts on a "
        "collection."
    )
    for name, rows in by_collection(measured, "relevant", "irrelevant", "both"):
        if can_draw() and any(row.figures.pairs for row in rows):
            yield _figure(name, [row for row in rows if row.kind != "both"])
        yield parts.Table(
            f"{name}: which group wins pairs in both orders (as table 3 of the paper), with 95% "
            "intervals that draw queries; p of the exact sign test over pairs, and of the "
            "randomisation test over queries.",
            (
                "model",
                "pairs",
                "queries",
                "unprotected %",
                "protected %",
                "ratio",
                "p, pairs",
                "p, queries",
                "verdict",
            ),
            tuple(
                (
                    Cell(row.model),
                    Cell(KINDS[row.kind]),
                    *preference_cells(row.figures),
                    verdict_cell(row.verdict),
                )
                for row in rows
            ),
        )


def preference_cells(figures: PairFigures) -> tuple[Cell, ...]:
    """Return queries, both shares, their ratio, and p over pairs and over queries."""
    return (
        Cell(str(figures.queries)),
        share_cell(figures.unprotected),
        share_cell(figures.protected),
        ratio_cell(figures),
        Cell(_p(figures.p)),
        Cell(_p(figures.over_queries.p if figures.over_queries else None)),
    )


def verdict_cell(verdict: Verdict | None) -> Cell:
    """Return the kind of a verdict, with a lean that stands beside it."""
    if verdict is None:
        return Cell("–")
    beside = verdict.kind == "position_decides" and verdict.lean is not None
    return Cell(
        verdict.kind.replace("_", " "), f"the rest favours {verdict.lean}" if beside else ""
    )


def _p(number: float | None) -> str:
    return "–" if number is None else numbers.p_value(number)


def _figure(name: str, rows: Sequence[PairwiseRow]) -> Figure:
    drawn = [
        DotRow(
            f"{row.model}, {KINDS[row.kind]}",
            tuple(
                Dot(share.value, share.interval)
                for share in (row.figures.protected, row.figures.unprotected)
            ),
        )
        for row in rows
    ]
    told = "; ".join(
        f"{row.model}, {KINDS[row.kind]}: protected {percent(row.figures.protected.value)}, "
        f"unprotected {percent(row.figures.unprotected.value)}"
        for row in rows
    )
    return Figure(
        file_name("pairs", name),
        f"{name}: the share of pairs that the protected and the unprotected item wins in both "
        "orders, with 95% bootstrap intervals over queries.",
        f"Shares of pairs: {told}.",
        draw_dots(drawn, ("protected item wins", "unprotected item wins"), "share of pairs"),
    )


def position_blocks(measured: MeasuredPairwise) -> Iterator[Block]:
    """Yield how far the answer is that of a position."""
    for name, rows in by_collection(measured, "relevant", "irrelevant", "both", "relevance"):
        yield parts.Table(
            f"{name}: position bias. A pair flips where both replies prefer the item that stands "
            "first, or both the one that stands second; p of the exact sign test between these "
            "two. Log-odds are ln P(first label) − ln P(second label), over the replies that were "
            "weighed.",
            (
                "model",
                "pairs",
                "flips",
                "first wins both",
                "second wins both",
                "p",
                "mean log-odds",
                "sd",
            ),
            tuple(
                (
                    Cell(row.model),
                    Cell(KINDS[row.kind]),
                    share_cell(row.figures.flips),
                    Cell(f"{row.figures.flips_to_first:,}"),
                    Cell(f"{row.figures.flips_to_second:,}"),
                    Cell(_p(row.figures.position_p)),
                    Cell(
                        numbers.difference(row.figures.log_odds.mean),
                        f"n={row.figures.log_odds.replies:,} replies",
                    ),
                    Cell(numbers.value(row.figures.log_odds.deviation)),
                )
                for row in rows
            ),
        )


def vote_blocks(measured: MeasuredPairwise) -> Iterator[Block]:
    """Yield other ways to count, which are other measures."""
    for name, rows in by_collection(measured, "relevant", "irrelevant", "both"):
        yield parts.Table(
            f"{name}: two other measures. Votes count each reply by itself, so that the shares of "
            "both groups add up to 100%, and a model that only looks at the position has 50%. "
            "Averaged adds the log-odds of both orders, so that the position cancels; it needs "
            "probabilities, and leaves out pairs that neither item wins.",
            ("model", "pairs", "votes for protected", "averaged: protected", "p", "neither"),
            tuple(
                (
                    Cell(row.model),
                    Cell(KINDS[row.kind]),
                    share_cell(row.figures.votes),
                    share_cell(row.figures.averaged.protected),
                    Cell(_p(row.figures.averaged.p)),
                    Cell(f"{row.figures.averaged.equal:,}"),
                )
                for row in rows
            ),
        )


def relevance_blocks(measured: MeasuredPairwise) -> Iterator[Block]:
    """Yield how often the relevant item wins against an irrelevant one of its group."""
    found = list(by_collection(measured, "relevance"))
    if not found:
        yield Paragraph(
            "No pairs of a relevant and an irrelevant item were asked about, so nothing is said of "
            "how well the models judge relevance."
        )
        return
    for name, rows in found:
        yield parts.Table(
            f"{name}: pairs of a relevant and an irrelevant item of the same group. A model that "
            "answers at random prefers the right one in both orders in 25% of pairs, and the wrong "
            "one as often; one that cannot tell has a share of about 50% in the last two columns.",
            (
                "model",
                "right in both orders",
                "wrong in both orders",
                "flips",
                "right votes",
                "averaged: right",
            ),
            tuple(
                (
                    Cell(row.model),
                    share_cell(row.figures.protected),
                    share_cell(row.figures.unprotected),
                    share_cell(row.figures.flips),
                    share_cell(row.figures.votes),
                    share_cell(row.figures.averaged.protected),
                )
                for row in rows
            ),
        )
