"""The report of an audit: what its template shows, and its picture."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from fairqr.base.errors import InputError
from fairqr.base.files import write_beside
from fairqr.evaluation.audit.estimates import Estimate
from fairqr.evaluation.audit.figures import FEW_CANDIDATES, GroupFigures
from fairqr.evaluation.audit.findings import (
    LEAST_QUERIES,
    VERDICTS,
    difference_of,
    findings_of,
)
from fairqr.evaluation.audit.layouts import DEFAULT, Layout, load_layout
from fairqr.evaluation.audit.measuring import Contribution
from fairqr.evaluation.audit.outcomes import AuditOutcome, files_of, is_combination
from fairqr.evaluation.reports.drawing import can_draw
from fairqr.evaluation.reports.plots import Bar, draw_bars
from fairqr.evaluation.reports.tables import cell
from fairqr.evaluation.reports.text import (
    NOTHING,
    Markdown,
    percent,
    percent_span,
    points,
    points_span,
    span,
)
from fairqr.evaluation.reports.writer import Figure, write_report

MOST_GROUPS = 40
"""So many groups of one attribute stand in a table; all are in ``results.csv``."""

MOST_BARS = 12
"""So many groups of an attribute are drawn."""

MOST_LISTS, MOST_QUERIES, MOST_DOCUMENTS = 12, 5, 5
"""So many groups with their queries, queries of a group, and documents of a query are shown."""

LONGEST = 60
"""Of a name, in characters."""

SHARES = ("exposure", "supply", "supply_gap", "selection_rate", "absent", "attention")
"""The figures of a group that the report prints with an interval, besides its lean and ratios."""

RELEVANCE = {
    "judged": "given by judgements",
    "estimated": "estimated from texts, not from the engine's scores or ranks",
    "unknown": "not known",
}


def write_audit(folder: Path, outcome: AuditOutcome, layout: str = DEFAULT) -> list[Path]:
    """Write ``audit.json``, the tables as CSV, and the report.

    Args:
        folder: Of the audit.
        outcome: What came out.
        layout: The order of the report, one of :data:`fairqr.evaluation.audit.layouts.LAYOUTS`.

    Returns:
        The files that were written.

    Raises:
        InputError: There is no such layout; or the report needs an extra that is not installed.
            All other files are written by then.
    """
    arranged = load_layout(layout)
    contents = files_of(outcome)
    for name, content in contents.items():
        write_beside(folder / name, content)
    drawn = [draw_exposure(outcome)] if can_draw() and outcome.figures.counts.answered else []
    folded = {part.heading for part in arranged.parts if part.folded}
    values = values_of(outcome, arranged)
    return [
        *(folder / name for name in contents),
        *write_report(folder, "audit", values, drawn, folded=folded),
    ]


def values_of(outcome: AuditOutcome, layout: Layout) -> dict[str, Any]:
    """Return what the template shows."""
    figures, name = outcome.figures, outcome.engine.get("name")
    shown = {attribute: _first(groups) for attribute, groups in outcome.attributes().items()}
    printed = list(_with_interval(it for groups in shown.values() for it in groups))
    return {
        "title": f"Who gets seen in what {name} answers" if name else "Who gets seen: an audit",
        "about": "",
        "layout": layout,
        "outcome": outcome,
        "relevance": RELEVANCE[figures.counts.relevance],
        "findings": findings_of(outcome),
        "attributes": shown,
        "examples": _examples(outcome),
        "rankings": _rankings,
        "asked": outcome.printed(),
        "verdicts": VERDICTS,
        "difference": difference_of,
        "printed": len(printed),
        "too_few": sum(math.isnan(it.low) for it in printed),
        "least_queries": LEAST_QUERIES,
        "few_candidates": FEW_CANDIDATES,
        "most_groups": MOST_GROUPS,
        "most_documents": MOST_DOCUMENTS,
        "share": lambda it: _cell(percent(it.value), percent_span(it)),
        "ratio": lambda it: _cell(
            NOTHING if it.value != it.value else f"{it.value:.2f}", span(it), is_certain=_leads(it)
        ),
        "points_of": lambda it, side: _cell(_points(it.value, side), points_span(it)),
        "in_points": _points,
        "side": lambda lean: _points(abs(lean), "less" if lean > 0 else "more"),
        "number": lambda it: f"{it:,.0f}" if it == round(it) else f"{it:,.1f}",
        "shortened": lambda text, most=LONGEST: text if len(text) <= most else f"{text[:most]}…",
    }


def _first(groups: Sequence[GroupFigures], most: int = MOST_GROUPS) -> list[GroupFigures]:
    """Return the groups to show: all, or those with the greatest leans, in the order given."""

    def rank(it: GroupFigures) -> tuple[bool, float]:
        lean = it.test.value
        return not it.is_sure, -(0.0 if math.isnan(lean) else abs(lean))

    kept = {id(it) for it in sorted(groups, key=rank)[:most]}
    return [it for it in groups if id(it) in kept]


def _with_interval(groups: Iterator[GroupFigures]) -> Iterator[Estimate]:
    """Yield the printed figures that have an interval, unless there are too few queries."""
    for it in groups:
        found = [difference_of(it)[0], *(getattr(it, name) for name in SHARES)]
        found += [one for one in (it.impact_ratio, it.exposure_ratio) if not _leads(one)]
        yield from (one for one in found if not math.isnan(one.value))


def _leads(ratio: Estimate) -> bool:
    """Return whether it is the ratio of the highest group to itself, which is certain."""
    return ratio.value == 1 and math.isnan(ratio.low)


def _cell(said: str, interval: Markdown, *, is_certain: bool = False) -> Markdown:
    return cell(said, interval or ("" if is_certain or said == NOTHING else "too few"))


def _points(amount: float, side: str = "") -> Markdown:
    """Write how many points, and whether it is less or more than is due."""
    if side and not amount > 0:
        return Markdown(NOTHING)
    return Markdown(f"{points(amount).lstrip('+')} {side}".strip())


def _examples(outcome: AuditOutcome) -> dict[tuple[str, str], list[Contribution]]:
    """Return the queries that add most by attribute and group, those of attributes first."""
    by_group: dict[tuple[str, str], list[Contribution]] = {}
    for it in sorted(outcome.figures.contributions, key=lambda it: is_combination(it.attribute)):
        by_group.setdefault((it.attribute, it.group), []).append(it)
    return {key: found[:MOST_QUERIES] for key, found in islice(by_group.items(), MOST_LISTS)}


def _rankings(it: Contribution) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """Return what a query shows today, and what would come in, as ranks and ids."""
    today = list(enumerate(it.shown, start=1))
    return today, [held for held in enumerate(it.fair, start=1) if held[1] not in it.shown]


def documents_to_name(outcome: AuditOutcome) -> list[str]:
    """Return the ids of the documents whose titles the report would show.

    They stand beside queries that may be printed: the titles of what a query finds tell what was
    asked.
    """
    printed = outcome.printed()
    ids = [
        id_
        for kept in _examples(outcome).values()
        for it in kept
        if printed[it.query].is_shown
        for ranked in _rankings(it)
        for _, id_ in ranked[:MOST_DOCUMENTS]
    ]
    return list(dict.fromkeys(ids))


def draw_exposure(outcome: AuditOutcome) -> Figure:
    """Draw who gets seen, by the groups of each attribute.

    Raises:
        InputError: matplotlib is not installed.
    """
    if not can_draw():
        raise InputError("A plot needs matplotlib; install it with: pip install 'fairqr[plot]'")
    panels, told = {}, []
    attributes = outcome.attributes()
    for attribute in [name for name in attributes if not is_combination(name)] or attributes:
        groups, bars = attributes[attribute], []
        for it in _first(groups, MOST_BARS):
            words = VERDICTS[it.verdict].words
            marks = {"target": it.target.value, "supply": it.supply.value}
            dot = (it.exposure.value, it.exposure.low, it.exposure.high)
            bars.append(Bar(it.group, dot, words, {**marks, "if mended": it.if_mended}))
            told.append(
                f"{attribute}, {it.group}: {percent(it.exposure.value)} of the exposure, "
                f"target {percent(it.target.value)}, {words}"
            )
        cut = f", the {MOST_BARS} groups of {len(groups):,} with the greatest leans"
        panels[attribute + cut * (len(groups) > MOST_BARS)] = bars
    return Figure(
        "exposure",
        f"Bars of exposure by group. {'; '.join(told)}.",
        draw_bars(
            panels, {it.words: it.colour for it in VERDICTS.values()}, "share of the exposure"
        ),
    )
