"""The section on ranks: where the protected items stand in the lists of each ranker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fairqr.agents.ranking.item_ranker import Asker
from fairqr.evaluation.experiments.folder import file_name
from fairqr.evaluation.experiments.report import numbers, parts
from fairqr.evaluation.experiments.report.parts import Block, Cell, Figure
from fairqr.evaluation.probes.measured import ListwiseRow, MeasuredListwise
from fairqr.evaluation.probes.report.common import asker_name, grouped, ranker_name
from fairqr.evaluation.probes.report.listwise import asker_cell, built_of, by_collection
from fairqr.evaluation.probes.report.ranks_plot import RankPanel, RankRow, draw_ranks
from fairqr.evaluation.reports.drawing import can_draw

__all__ = ["rank_blocks"]

ROWS_A_FIGURE = 8


def rank_blocks(
    measured: MeasuredListwise,
) -> Iterator[Block]:
    """Yield where the protected items stand."""
    built = built_of(measured)
    k = measured.manifest.rankings.k
    for name, rows in by_collection(measured):
        titles = {row.asker: asker_name(row.asker, built[name]) for row in rows}
        if can_draw():
            yield from _figures(name, rows, titles)
        yield parts.Table(
            f"{name}: where the protected items stand. Place is (rank − ½)/n, from 0 for the first "
            "to 1 for the last; its mean is ½ in a random order. The last column is the share of "
            f"protected items among the first {k}, and below it their share of the lists.",
            (
                "ranker",
                "query",
                "items",
                "mean place",
                "places at 5%, 25%, 50%, 75%, 95%",
                "ranks at the same",
                f"share in the top {k}",
            ),
            tuple(
                (
                    Cell(ranker_name(row.ranker, row.window)),
                    asker_cell(row, built[name]),
                    Cell(f"{row.ranks.items:,}", f"{row.ranks.queries} lists"),
                    Cell(numbers.value(row.ranks.mean)),
                    Cell(", ".join(f"{place:.2f}" for place in row.ranks.quantiles) or "–"),
                    Cell(", ".join(f"{rank:g}" for rank in row.ranks.rank_quantiles) or "–"),
                    Cell(
                        numbers.value(row.ranks.top),
                        f"of the lists {numbers.value(row.ranks.expected_top)}"
                        if row.ranks.queries
                        else "",
                    ),
                )
                for row in rows
            ),
        )


def _figures(
    name: str, rows: Sequence[ListwiseRow], titles: Mapping[Asker, str]
) -> Iterator[Figure]:
    keyed = ((ranker_name(row.ranker, row.window), row) for row in rows)
    drawn = []
    for ranker, found in grouped(keyed):
        by_asker = {row.asker: row for row in found}
        panels = (_panel(title, by_asker.get(asker)) for asker, title in titles.items())
        drawn.append(RankRow(ranker, tuple(panels)))
    pieces = [drawn[at : at + ROWS_A_FIGURE] for at in range(0, len(drawn), ROWS_A_FIGURE)]
    for number, piece in enumerate(pieces, start=1):
        part = f" ({number} of {len(pieces)})" if len(pieces) > 1 else ""
        told = "; ".join(
            f"{row.ranker}, {panel.asker}: " + ", ".join(f"{share:.2f}" for share in panel.shares)
            for row in piece
            for panel in row.panels
        )
        yield Figure(
            file_name("ranks", name, number) if part else file_name("ranks", name),
            f"{name}: the ranks of the protected items by ranker and query{part} (as figure 3 of "
            "the paper): the share of them in each part of the list, its beginning on the left. "
            "The dashed line is an even spread, which a random order comes near to; higher bars on "
            "the left favour the protected group. n is the number of protected items.",
            f"Histograms of the places of protected items: {told}.",
            draw_ranks(piece),
        )


def _panel(asker: str, row: ListwiseRow | None) -> RankPanel:
    if row is None or not row.ranks.items:
        return RankPanel(asker, (), 0)
    return RankPanel(
        asker, tuple(count / row.ranks.items for count in row.ranks.counts), row.ranks.items
    )
