"""The report of an audit: in which order it stands, what its tables show, and its drawings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairqr.base.errors import InputError, one_line
from fairqr.base.yaml_file import load_yaml
from fairqr.evaluation.audit.concentration import CURVE_AT
from fairqr.evaluation.audit.figures import FEW_CANDIDATES, GroupFigures
from fairqr.evaluation.audit.findings import Findings, least_queries
from fairqr.evaluation.audit.measuring import Contribution
from fairqr.evaluation.audit.wording import VERDICTS, difference_of, in_points
from fairqr.evaluation.estimates import Estimate
from fairqr.evaluation.reports import text
from fairqr.evaluation.reports.plots import BLUE, GREY, VERMILION, Bar, draw_bars, draw_lines
from fairqr.evaluation.reports.writer import Figure
from fairqr.retrieval.fairness.dimension import TIMES
from fairqr.retrieval.fairness.exposure import LOG2

if TYPE_CHECKING:
    from fairqr.evaluation.audit.finishing import Audit

MOST_GROUPS = 40
"""So many groups of one attribute stand in a table; ``results.csv`` has all."""

MOST_BARS = 12
"""So many groups of one attribute are drawn."""

MOST_LISTS = 12
"""So many groups are shown with the queries that withhold most from them."""

MOST_QUERIES = 5
"""So many of these queries are shown for each group."""

MOST_DOCUMENTS = 5
"""So many documents are shown for each query."""

ENGINE = "this engine"
BY_LOT = "lists drawn by lot"
"""The curves that a drawing compares."""

COLOURS = {"less": VERMILION, "more": BLUE}
"""The colours of the bars of groups that surely get less or more."""

LAYOUTS = ("plain", "ll144", "dsa", "ai-act")
"""The orders in which a report can stand: its own, and those that legal texts ask for. A layout is
a YAML file in ``files``. It changes no figure, names the articles that its parts go with, and says
what of the text an audit does not cover. None says that a law is met."""

Layout = dict[str, Any]
"""The ``title`` of the legal text and what the layout is ``about``, empty if there is none; its
``parts``; what of the text is ``not_covered``; and ``small_category``, the share of the candidates
below which groups are marked. A part has its ``heading``, with the article that it goes with; the
``text`` on what the article asks for and what stands here; the ``sections`` of figures; and is
``folded`` if the page shows its heading alone at first."""

Ranks = list[tuple[int, str]]
"""Documents as ranks and ids."""


def load_layout(name: str) -> Layout:
    """Return a layout.

    Raises:
        InputError: There is no layout of this name.
    """
    if name not in LAYOUTS:
        raise InputError(f"There is no layout '{one_line(name)}'; choose {', '.join(LAYOUTS)}.")
    layout: Layout = load_yaml(Path(__file__).parent / "files" / f"{name}.yaml", "layout")
    defaults = {"text": "", "sections": [], "folded": False}
    return layout | {"parts": [defaults | part for part in layout["parts"]]}


class _Cells:
    """Writes figures with their intervals, and counts those that have too few queries.

    Attributes:
        notes: Of each figure its interval, or ``too few``.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []

    def share(self, estimate: Estimate) -> text.Markdown:
        """Write a share in percent."""
        return self._noted(text.percent(estimate.value), estimate, text.percent_span(estimate))

    def ratio(self, estimate: Estimate) -> text.Markdown:
        """Write a ratio with two decimals."""
        value = text.NOTHING if math.isnan(estimate.value) else f"{estimate.value:.2f}"
        return self._noted(value, estimate, text.span(estimate))

    def points(self, estimate: Estimate, side: str) -> text.Markdown:
        """Write a difference in points, and whether it is less or more."""
        value = in_points(estimate.value, side)
        return self._noted(value, estimate, text.points_span(estimate))

    def _noted(self, value: str, estimate: Estimate, interval: text.Markdown) -> text.Markdown:
        has_too_few = value != text.NOTHING and math.isnan(estimate.low)
        note = "too few" if has_too_few else interval
        self.notes.append(note)
        return text.cell(value, note)


def _number(amount: float) -> str:
    """Write a number of documents, with a decimal unless it is whole."""
    return f"{amount:,.0f}" if amount == round(amount) else f"{amount:,.1f}"


def _small_points(gap: float) -> text.Markdown:
    """Write a gap in points, with its sign and three decimals."""
    return text.Markdown(f"{100 * gap:+.3f}".replace("-", text.MINUS))


def values_of(audit: Audit, findings: Findings, layout: Layout) -> dict[str, Any]:
    """Return what the template of the report shows."""
    cells = _Cells()
    by_attribute = audit.figures.by_attribute
    return {
        "title": f"Who gets seen in the results of {audit.manifest.engine['name']}",
        "about": "",
        "layout": layout,
        "audit": audit,
        "lists": audit.lists,
        "coverage": audit.seen.coverage() if audit.seen else None,
        "findings": findings,
        "attributes": {name: _first(groups, MOST_GROUPS) for name, groups in by_attribute.items()},
        "examples": _examples(audit),
        "rankings": _rankings,
        "verdicts": VERDICTS,
        "difference": difference_of,
        "least_queries": least_queries(),
        "few_candidates": FEW_CANDIDATES,
        "most_groups": MOST_GROUPS,
        "most_documents": MOST_DOCUMENTS,
        "notes": cells.notes,
        "share": cells.share,
        "ratio": cells.ratio,
        "points_of": cells.points,
        "in_points": in_points,
        "log2": LOG2.weights(audit.spec.k).tolist(),
        "small_points": _small_points,
        "number": _number,
    }


def _first(groups: Sequence[GroupFigures], most: int) -> list[GroupFigures]:
    """Return the groups to show: all, or those with the greatest gaps, in the order given."""

    def place(group: GroupFigures) -> tuple[bool, float]:
        gap = float(np.nan_to_num(group.test.value))
        return not group.is_sure, -abs(gap)

    greatest = sorted(groups, key=place)[:most]
    names = {group.group for group in greatest}
    return [group for group in groups if group.group in names]


def _examples(audit: Audit) -> dict[tuple[str, str], list[Contribution]]:
    """Return the queries that add most by attribute and group, those of attributes first."""

    def group_of(contribution: Contribution) -> tuple[str, str]:
        return contribution.attribute, contribution.group

    ordered = sorted(audit.figures.contributions, key=lambda it: TIMES in it.attribute)
    by_group = groupby(ordered, group_of)
    return {
        group: list(islice(contributions, MOST_QUERIES))
        for group, contributions in islice(by_group, MOST_LISTS)
    }


def _rankings(contribution: Contribution) -> tuple[Ranks, Ranks]:
    """Return what a query shows today, and what would come in."""
    today = list(enumerate(contribution.shown, start=1))
    fair = enumerate(contribution.fair, start=1)
    return today, [(rank, id_) for rank, id_ in fair if id_ not in contribution.shown]


def documents_to_name(audit: Audit) -> list[str]:
    """Return the ids of the documents whose titles the report would show.

    They stand beside queries that may be printed: the titles of what a query finds show what was
    asked.
    """
    printed = audit.printed()
    ids: dict[str, None] = {}
    for contributions in _examples(audit).values():
        for contribution in contributions:
            if printed[contribution.query]["text"] is not None:
                ids |= dict.fromkeys(_documents_of(contribution))
    return list(ids)


def _documents_of(contribution: Contribution) -> Iterable[str]:
    for ranking in _rankings(contribution):
        for _, id_ in ranking[:MOST_DOCUMENTS]:
            yield id_


def figures_to_draw(audit: Audit) -> list[Figure]:
    """Draw what the report shows.

    Raises:
        InputError: matplotlib is not installed.
    """
    drawings = []
    if audit.figures.counts.answered:
        drawings.append(draw_exposure(audit))
    if audit.figures.concentrations:
        drawings.append(draw_lorenz(audit))
    return drawings


def draw_lorenz(audit: Audit) -> Figure:
    """Draw the Lorenz curve of each attribute whose groups nobody lists.

    Raises:
        InputError: matplotlib is not installed.
    """
    panels = {}
    sentences = []
    for concentration in audit.figures.concentrations:
        attribute = concentration.attribute
        curves = {
            ENGINE: concentration.exposure_of_worst(CURVE_AT),
            BY_LOT: concentration.exposure_of_worst_by_lot(CURVE_AT),
        }
        points = []
        for name, heights in curves.items():
            points += [(name, x, y) for x, y in zip(CURVE_AT, heights, strict=False)]
        title = f"{attribute}, {len(concentration.groups):,} groups"
        panels[title] = text.frame(points, ("line", "x", "y"))
        (half,) = concentration.exposure_of_worst([0.5])
        sentences.append(
            f"{attribute}: half of the target, of the groups served worst, gets "
            f"{text.percent(half)} of the exposure"
        )
    drawing = draw_lines(
        panels,
        "share of the target, groups that are served worst first",
        "share of the exposure",
        styles={ENGINE: (BLUE, ""), BY_LOT: (GREY, "")},
        diagonal=True,
    )
    return Figure("lorenz", f"Lorenz curves of exposure. {'; '.join(sentences)}.", drawing)


def draw_exposure(audit: Audit) -> Figure:
    """Draw who gets seen, by the groups of each attribute.

    Raises:
        InputError: matplotlib is not installed.
    """
    by_attribute = audit.figures.by_attribute
    single = [name for name in by_attribute if TIMES not in name]
    panels = {}
    descriptions = []
    for attribute in single or by_attribute:
        groups = by_attribute[attribute]
        drawn = _first(groups, MOST_BARS)
        title = attribute
        if len(groups) > MOST_BARS:
            title += f", the {MOST_BARS} groups of {len(groups):,} with the greatest gaps"
        panels[title] = [_bar(group) for group in drawn]
        descriptions += [f"{attribute}, {_description(group)}" for group in drawn]
    colours = {}
    for verdict, words in VERDICTS.items():
        colours[_without_reason(words)] = COLOURS.get(verdict, GREY)
    drawing = draw_bars(panels, colours, "share of the exposure")
    return Figure("exposure", f"Bars of exposure by group. {'; '.join(descriptions)}.", drawing)


def _bar(group: GroupFigures) -> Bar:
    """Return the bar of a group; the table has the reason of its verdict."""
    exposure = group.exposure
    marks = {
        "target": group.target.value,
        "attainable": group.attainable.value,
        "if re-ranked": group.exposure_if_reranked,
    }
    dot = (exposure.value, exposure.low, exposure.high)
    return Bar(group.group, dot, _without_reason(VERDICTS[group.verdict]), marks)


def _without_reason(verdict: str) -> str:
    return verdict.split(":")[0]


def _description(group: GroupFigures) -> str:
    """Describe the bar of a group for those who do not see it."""
    exposure = text.percent(group.exposure.value)
    target = text.percent(group.target.value)
    return f"{group.group}: {exposure} of the exposure, target {target}, {VERDICTS[group.verdict]}"
