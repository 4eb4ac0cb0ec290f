"""The report of an audit: what its template shows, and its figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairqr.base.errors import InputError
from fairqr.base.files import write_beside
from fairqr.evaluation.audit.estimates import Estimate
from fairqr.evaluation.audit.figures import FEW_CANDIDATES, GroupFigures
from fairqr.evaluation.audit.findings import due_of, findings_of
from fairqr.evaluation.audit.layouts import DEFAULT, Layout, load_layout
from fairqr.evaluation.audit.measuring import Contribution
from fairqr.evaluation.audit.mending import CurvePoint, after_mending
from fairqr.evaluation.audit.outcomes import (
    AuditOutcome,
    PrintedQuery,
    files_of,
    is_combination,
)
from fairqr.evaluation.reports.drawing import GREY, LINES, can_draw
from fairqr.evaluation.reports.plots import Bar, draw_bars, draw_series
from fairqr.evaluation.reports.tables import cell, frame
from fairqr.evaluation.reports.text import (
    Markdown,
    counted,
    percent,
    percent_span,
    points,
    points_span,
    shown,
    span,
)
from fairqr.evaluation.reports.writer import Figure, write_report

LEADING = 3
"""So many findings stand above the picture, so that both are seen first."""

MOST_GROUPS = 40
"""So many groups of one attribute stand in a table; all are in ``results.csv``."""

MOST_BARS = 12
"""So many groups of an attribute are drawn."""

MOST_LISTS = 12
MOST_QUERIES = 5
MOST_DOCUMENTS = 5
"""So many groups with their queries, queries of a group, and documents of a query are shown."""

MOST_MESSAGES = 10
LONGEST = 60
LONGEST_QUERY = 160

VERDICTS = {
    "less": "gets less",
    "more": "gets more",
    "within_error": "within the error of the estimate",
    "cannot_tell": "cannot tell",
    "too_few": "too few queries",
}
COLOURS = {
    VERDICTS["less"]: LINES[1][0],
    VERDICTS["more"]: LINES[0][0],
    VERDICTS["within_error"]: GREY,
    VERDICTS["cannot_tell"]: GREY,
    VERDICTS["too_few"]: GREY,
}
RELEVANCE = {
    "judged": "by judgements",
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
    written = [folder / name for name in contents]
    return [
        *written,
        *write_report(folder, "audit", values_of(outcome, arranged), figures_of(outcome)),
    ]


def values_of(outcome: AuditOutcome, layout: Layout | None = None) -> dict[str, Any]:
    """Return what the template shows."""
    layout = layout or load_layout(DEFAULT)
    figures = outcome.figures
    attributes = outcome.attributes()
    name = outcome.engine.get("name")
    return {
        "title": f"Who gets seen in what {name} answers" if name else "Who gets seen: an audit",
        "about": "",
        "layout": layout,
        "spec": outcome.spec,
        "engine": outcome.engine,
        "begun": outcome.begun,
        "queries": outcome.queries,
        "counts": figures.counts,
        "figures": figures,
        "due": due_of(outcome),
        "relevance": RELEVANCE[figures.counts.relevance],
        "findings": findings_of(outcome),
        "leading": LEADING,
        "attributes": {
            attribute: {
                "left_out": max(0, len(groups) - MOST_GROUPS),
                "groups": _first(groups),
                "has_candidates": any(it.candidates for it in groups),
                "unknown": figures.unknown[attribute],
                "unlabelled": round(figures.unlabelled[attribute]),
                "flips": [it.group for it in groups if it.flips],
            }
            for attribute, groups in attributes.items()
        },
        "few_candidates": FEW_CANDIDATES,
        "contributions": list(_contributions(outcome)),
        "most_documents": MOST_DOCUMENTS,
        "messages": _messages(outcome),
        "pairs": outcome.pairs,
        "most_groups": MOST_GROUPS,
        "verdicts": VERDICTS,
        "share": _share,
        "in_points": _points,
        "ratio": lambda it: cell("–" if math.isnan(it.value) else f"{it.value:.2f}", span(it)),
        "number": _count,
        "weight": _weight,
        "exposures": _exposures,
        "unsigned": lambda lean: Markdown(points(lean).lstrip("+")),
        "shortened": lambda text: _shortened(text, LONGEST),
    }


def _first(groups: Sequence[GroupFigures], most: int = MOST_GROUPS) -> list[GroupFigures]:
    """Return the groups to show: all, or those with the greatest leans, in the order given."""
    if len(groups) <= most:
        return list(groups)

    def rank(it: GroupFigures) -> tuple[bool, float]:
        lean = it.test.value
        return not it.is_sure, -(0.0 if math.isnan(lean) else abs(lean))

    kept = {id(it) for it in sorted(groups, key=rank)[:most]}
    return [it for it in groups if id(it) in kept]


def _share(it: Estimate) -> Markdown:
    return cell(percent(it.value), percent_span(it))


def _points(it: Estimate, *notes: str) -> Markdown:
    return cell(points(it.value), points_span(it), *notes)


def _count(number: float) -> str:
    """Write a number of documents, which is not whole where relevance is a probability."""
    return f"{number:,.0f}" if number == round(number) else f"{number:,.1f}"


def _weight(weight: float | None) -> str:
    return "today's ranking" if weight is None else f"{weight:g}"


def _exposures(point: CurvePoint) -> str:
    return "; ".join(f"{group} {percent(it.value)}" for group, it in point.exposure.items())


def _contributions(outcome: AuditOutcome) -> Iterator[dict[str, Any]]:
    """Yield the queries that add most, with their documents."""
    printed = outcome.printed()
    for (attribute, group), kept in _examples(outcome).items():
        rows = []
        for it in kept:
            query = printed[it.query]
            titles = outcome.titles if query.is_shown else {}
            ranks = _rankings(it).values()
            rows.append((_query(outcome, query), it, [_documents(held, titles) for held in ranks]))
        together = sum(it.share for it in kept)
        yield {"attribute": attribute, "group": group, "rows": rows, "together": together}


def _examples(outcome: AuditOutcome) -> dict[tuple[str, str], list[Contribution]]:
    """Return the queries that add most by attribute and group, those of attributes first."""
    by_group: dict[tuple[str, str], list[Contribution]] = {}
    for it in sorted(outcome.figures.contributions, key=lambda it: is_combination(it.attribute)):
        by_group.setdefault((it.attribute, it.group), []).append(it)
    first = list(by_group.items())[:MOST_LISTS]
    return {key: found[:MOST_QUERIES] for key, found in first}


def _rankings(it: Contribution) -> dict[str, dict[str, int]]:
    """Return the rankings of a query that are shown, each as the ranks of its documents."""
    today, fair = (
        {id_: rank for rank, id_ in enumerate(ids, start=1)} for ids in (it.shown, it.fair)
    )
    new = {id_: rank for id_, rank in fair.items() if id_ not in today}
    return {"shown today": today, "a fair re-ranking": fair, "would come in": new}


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
        for ranks in _rankings(it).values()
        for id_ in list(ranks)[:MOST_DOCUMENTS]
    ]
    return list(dict.fromkeys(ids))


def _query(outcome: AuditOutcome, it: PrintedQuery) -> Markdown:
    if it.id is None:
        return cell(f"query {it.number}", f"asked fewer than {outcome.spec.rare:g} times")
    if it.text is None:
        return cell(it.id, "text withheld")
    return cell(_shortened(it.text, LONGEST_QUERY), _shortened(it.id, LONGEST))


def _documents(ranks: Mapping[str, int], titles: Mapping[str, str]) -> str:
    """Return the first documents with their ranks, by their titles where they are known."""
    named = [
        f"({rank}) {_shortened(titles.get(id_, id_), LONGEST)}"
        for id_, rank in list(ranks.items())[:MOST_DOCUMENTS]
    ]
    more = len(ranks) - MOST_DOCUMENTS
    return "; ".join([*named, f"{more} more"] if more > 0 else named) or "none"


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}…"


def _messages(outcome: AuditOutcome) -> list[Markdown]:
    """Return why queries failed, the most frequent reasons first; a reason may quote the query."""
    printed = outcome.printed()
    times = Counter(
        it.message if printed[it.query].is_shown else "withheld, as the reason may quote the query"
        for it in outcome.figures.unanswered
        if it.status == "failed"
    )
    found = sorted(times.items(), key=lambda it: (-it[1], it[0]))[:MOST_MESSAGES]
    return [
        Markdown(f"{counted(number, 'query', 'queries')}: {shown(message or 'no reason given')}")
        for message, number in found
    ]


def figures_of(outcome: AuditOutcome) -> list[Figure]:
    """Draw the figures; none without matplotlib."""
    if not can_draw() or not outcome.figures.counts.answered:
        return []
    return [draw_exposure(outcome), *_cost_curves(outcome)]


def draw_exposure(outcome: AuditOutcome) -> Figure:
    """Draw who gets seen, by the groups of each attribute.

    Raises:
        InputError: matplotlib is not installed.
    """
    if not can_draw():
        raise InputError("A plot needs matplotlib; install it with: pip install 'fairqr[plot]'")
    due = due_of(outcome)
    panels: dict[str, list[Bar]] = {}
    told = []
    attributes = outcome.attributes()
    drawn = [name for name in attributes if not is_combination(name)] or [*attributes]
    for attribute, groups in ((name, attributes[name]) for name in drawn):
        point = after_mending(outcome.figures.costs.get(attribute, []))
        bars = []
        for it in _first(groups, MOST_BARS):
            marks = {due: it.target.value, "what relevant documents could give": it.supply.value}
            marks["if mended"] = it.if_mended
            dot = (it.exposure.value, it.exposure.low, it.exposure.high)
            bars.append(Bar(it.group, dot, VERDICTS[it.verdict], marks))
            told.append(
                f"{attribute}, {it.group}: {percent(it.exposure.value)} of the exposure, "
                f"{due} {percent(it.target.value)}, {VERDICTS[it.verdict]}"
            )
        title = attribute
        if point is not None and not math.isnan(point.relevance.value):
            title += f" (if mended, relevance is {percent(point.relevance.value)} of today's)"
        if len(groups) > MOST_BARS:
            title += f", the {MOST_BARS} groups of {len(groups):,} with the greatest leans"
        panels[title] = bars
    return Figure(
        "exposure",
        f"Bars of exposure by group. {'; '.join(told)}.",
        draw_bars(panels, COLOURS, "share of the exposure"),
    )


def _cost_curves(outcome: AuditOutcome) -> Iterator[Figure]:
    points_: list[Mapping[str, object]] = []
    for line, curve in outcome.figures.costs.items():
        for point in curve:
            label = "today" if point.weight is None else f"{point.weight:g}"
            x, y = point.divergence.value, 100 * point.relevance.value
            points_.append({"line": line, "x": x, "y": y, "label": label})
    if points_:
        listed = "; ".join(f"{it['line']}, {it['label']}: {it['y']:.1f}%" for it in points_)
        yield Figure(
            "cost",
            f"Lines of relevance over divergence: {listed}.",
            draw_series(
                frame((), points_), "divergence from the target (nats)", "relevance (% of today's)"
            ),
        )
