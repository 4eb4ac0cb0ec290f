"""The sections on tuning: what it changed in pairs that it never saw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fairqr.agents.ranking.lean import PairFigures
from fairqr.agents.ranking.verdict import Verdict
from fairqr.evaluation.experiments.folder import file_name
from fairqr.evaluation.experiments.report import numbers, parts
from fairqr.evaluation.experiments.report.parts import (
    Block,
    Cell,
    Figure,
    Heading,
    Items,
    Paragraph,
)
from fairqr.evaluation.probes.report.common import grouped, percent
from fairqr.evaluation.probes.report.dots_plot import Dot, DotRow, draw_dots
from fairqr.evaluation.probes.report.pairwise import (
    KINDS,
    preference_cells,
    ratio_cell,
    share_cell,
    verdict_cell,
)
from fairqr.evaluation.probes.tuning_changes import Change, GroupChange
from fairqr.evaluation.probes.tuning_records import MeasuredLora
from fairqr.evaluation.reports.drawing import can_draw

__all__ = ["change_blocks", "lora_in_short", "lora_relevance_blocks", "preference_change_blocks"]


def lora_in_short(measured: MeasuredLora) -> Iterator[Block]:
    """Yield whether the ratio moved toward 1, how surely, and what else changed."""
    yield Heading("In short")
    yield Items(measured.sentences or ("Nothing was tuned yet, so nothing can be said.",))


def _sides(one: GroupChange) -> tuple[tuple[str, PairFigures, Verdict], ...]:
    return (
        ("before", one.before, one.before_verdict),
        ("after", one.after, one.after_verdict),
    )


def preference_change_blocks(measured: MeasuredLora) -> Iterator[Block]:
    """Yield which group won held-out pairs before, and which does after."""
    yield Paragraph(
        "All numbers are of the same pairs of held-out queries, which were not trained on. "
        "Protected % and unprotected % are shares of all of them: pairs that this item wins in "
        "both orders. A ratio near 1 of a model that mostly answers by position is no fairness: "
        "the share of pairs with one winner, and relevance, stand below."
    )
    for name, groups in grouped((one.collection, one) for one in measured.groups):
        if can_draw() and any(one.pairs for one in groups):
            yield _figure(name, [one for one in groups if one.kind != "both"])
        yield parts.Table(
            f"{name}: which group wins held-out pairs, before and after tuning (as figure 4 of the "
            "paper, which is its table 3 before and after).",
            (
                "pairs",
                "when",
                "queries",
                "unprotected %",
                "protected %",
                "ratio",
                "p, pairs",
                "p, queries",
                "flips",
                "verdict",
            ),
            tuple(
                (
                    Cell(KINDS[one.kind]),
                    Cell(when),
                    *preference_cells(figures),
                    share_cell(figures.flips),
                    verdict_cell(verdict),
                )
                for one in groups
                for when, figures, verdict in _sides(one)
            ),
        )


def _figure(name: str, groups: Sequence[GroupChange]) -> Figure:
    drawn, told = [], []
    for one in groups:
        for when, figures, _ in _sides(one):
            shares = (figures.protected, figures.unprotected)
            drawn.append(
                DotRow(
                    f"{KINDS[one.kind]}, {when}",
                    tuple(Dot(share.value, share.interval) for share in shares),
                )
            )
            told.append(
                f"{KINDS[one.kind]} {when}: protected {percent(figures.protected.value)}, "
                f"unprotected {percent(figures.unprotected.value)}"
            )
    return Figure(
        file_name("tuning", name),
        f"{name}: the share of held-out pairs that the protected and the unprotected item wins in "
        "both orders, before and after tuning, with 95% bootstrap intervals over queries. Tuning "
        "should bring the two dots of a row together, and not both to 0.",
        f"Shares of pairs: {'; '.join(told)}.",
        draw_dots(drawn, ("protected item wins", "unprotected item wins"), "share of pairs"),
    )


def change_blocks(measured: MeasuredLora) -> Iterator[Block]:
    """Yield how far the ratio, the log-odds and the pairs with one winner changed."""
    for name, groups in grouped((one.collection, one) for one in measured.groups):
        yield parts.Table(
            f"{name}: how far tuning changed what the same pairs say, with 95% bootstrap intervals "
            "over queries. The move toward 1 is |ln ratio| before less after, ½ added to each "
            "count; above 0 the ratio is nearer to 1 after, and below it stands in how many "
            "resamples it is. There is no interval where a count is 0. Log-odds are the mean "
            "preference for the protected item over both orders, so that the position cancels.",
            (
                "pairs",
                "held-out pairs",
                "ratio before",
                "ratio after",
                "move toward 1",
                "log-odds before",
                "log-odds after",
                "their fall toward 0",
            ),
            tuple(
                (
                    Cell(KINDS[one.kind]),
                    Cell(f"{one.pairs:,}", f"of {one.queries} queries"),
                    ratio_cell(one.before),
                    ratio_cell(one.after),
                    Cell(
                        numbers.difference(one.ratio.moved),
                        " ".join(
                            filter(
                                None,
                                (
                                    numbers.span(one.ratio.interval),
                                    ""
                                    if one.ratio.nearer is None
                                    else f"nearer in {percent(one.ratio.nearer)}",
                                ),
                            )
                        ),
                    ),
                    Cell(
                        numbers.difference(one.lean.before),
                        numbers.span(one.lean.before_interval),
                    ),
                    Cell(numbers.difference(one.lean.after), numbers.span(one.lean.after_interval)),
                    Cell(numbers.difference(one.lean.shrunk), numbers.span(one.lean.interval)),
                )
                for one in groups
            ),
        )
    yield _shares(
        "Pairs with one winner in both orders, before and after, of the same pairs; p of the "
        "paired randomisation test over queries. Where the share falls, answers follow the "
        "position more than they did.",
        [(one.collection, KINDS[one.kind], one.consistent) for one in measured.groups],
    )


def lora_relevance_blocks(measured: MeasuredLora) -> Iterator[Block]:
    """Yield how well the model told relevant items before, and tells them after."""
    if not measured.relevance:
        yield Paragraph(
            "No pairs of a relevant and an irrelevant item were asked about, so it is not known "
            "whether fairness was bought by relevance."
        )
        return
    yield _shares(
        "Pairs of a relevant and an irrelevant item of one group whose relevant item wins, in both "
        "orders or by the sum of the log-odds of both. Answers at random have 25% and 50%.",
        [
            (one.collection, how, change)
            for one in measured.relevance
            for how, change in (("both orders", one.both_orders), ("averaged", one.averaged))
        ],
    )


def _shares(caption: str, rows: Sequence[tuple[str, str, Change]]) -> parts.Table:
    return parts.Table(
        caption,
        ("collection", "pairs", "before", "after", "after less before", "p"),
        tuple(
            (
                Cell(collection),
                Cell(what),
                share_cell(change.before),
                share_cell(change.after),
                Cell(numbers.difference(change.difference), numbers.span(change.interval)),
                Cell("–" if change.test is None else numbers.p_value(change.test.p)),
            )
            for collection, what, change in rows
        ),
    )
