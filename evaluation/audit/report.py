"""The report of an audit: what its template shows, its figures, and all files that come out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairqr.base.errors import InputError
from fairqr.base.files import write_beside
from fairqr.evaluation.audit.answer_figures import STAGES
from fairqr.evaluation.audit.estimates import Estimate
from fairqr.evaluation.audit.figures import FEW_CANDIDATES, FOUR_FIFTHS, GroupFigures
from fairqr.evaluation.audit.findings import due_of, findings_of, smallest_found
from fairqr.evaluation.audit.layouts import DEFAULT, Layout, load_layout
from fairqr.evaluation.audit.measuring import Contribution
from fairqr.evaluation.audit.outcomes import (
    AuditOutcome,
    PrintedQuery,
    after_mending,
    answers_csv,
    audit_json,
    is_combination,
    mended_exposure,
    pairs_csv,
    queries_csv,
    results_csv,
    shares_of_candidates,
)
from fairqr.evaluation.reports.drawing import GREY, LINES, can_draw
from fairqr.evaluation.reports.plots import Bar, draw_bars, draw_series
from fairqr.evaluation.reports.tables import cell, frame
from fairqr.evaluation.reports.text import (
    Markdown,
    counted,
    difference,
    p_value,
    percent,
    percent_span,
    points,
    points_span,
    shown,
    span,
    value,
)
from fairqr.evaluation.reports.writer import Figure, write_report

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["draw_exposure", "figures_of", "values_of", "write_audit"]

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
    contents: dict[str, str | bytes] = {
        "audit.json": audit_json(outcome),
        "results.csv": results_csv(outcome),
        "queries.csv": queries_csv(outcome),
    }
    if outcome.pairs is not None:
        contents["pairs.csv"] = pairs_csv(outcome)
    if outcome.answers is not None:
        contents["answers.csv"] = answers_csv(outcome)
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
        "queries": outcome.queries,
        "counts": figures.counts,
        "figures": figures,
        "due": due_of(outcome),
        "relevance": RELEVANCE[figures.counts.relevance],
        "findings": findings_of(outcome),
        "attributes": {
            attribute: {
                "left_out": max(0, len(groups) - MOST_GROUPS),
                "gaps": _gaps(outcome, _first(groups)),
                "rates": _rates(outcome, attribute, layout.small_category),
                "seen": _seen(_first(groups)),
                "labels": _labels(_first(groups)),
                "detectable": _detectable(outcome, _first(groups)),
                "choices": _choices(outcome, _first(groups)),
                "unknown": figures.unknown[attribute],
                "unlabelled": figures.unlabelled[attribute],
                "smallest": smallest_found(outcome, groups),
                "flips": [it.group for it in groups if it.flips],
            }
            for attribute, groups in attributes.items()
        },
        "few_candidates": FEW_CANDIDATES,
        "others": _others(outcome),
        "has_costs": bool(figures.costs),
        "costs": _costs(outcome),
        "contributions": list(_contributions(outcome)),
        "most_queries": MOST_QUERIES,
        "most_documents": MOST_DOCUMENTS,
        "unanswered": _unanswered(outcome),
        "messages": _messages(outcome),
        "pairs": outcome.pairs,
        "pair_table": _pair_table(outcome),
        "answers": outcome.answers,
        "answer_tables": _answer_tables(outcome),
        "probe": outcome.probe,
        "probe_table": _probe_table(outcome),
    }


def _first(groups: Sequence[GroupFigures], most: int = MOST_GROUPS) -> list[GroupFigures]:
    """Return the groups to show: all, or those with the greatest leans, in the order given."""
    if len(groups) <= most:
        return list(groups)

    def rank(it: GroupFigures) -> tuple[bool, float]:
        lean = getattr(it, it.tested).value
        return it.verdict not in ("less", "more"), -(0.0 if math.isnan(lean) else abs(lean))

    kept = {id(it) for it in sorted(groups, key=rank)[:most]}
    return [it for it in groups if id(it) in kept]


def _share(it: Estimate) -> Markdown:
    return cell(percent(it.value), percent_span(it))


def _points(it: Estimate) -> Markdown:
    return cell(points(it.value), points_span(it))


def _doubts(outcome: AuditOutcome, it: GroupFigures) -> Iterator[str]:
    """Yield what else than the ranking could make a sure verdict."""
    if it.flips:
        yield "labels could turn it"


def _gaps(outcome: AuditOutcome, groups: Sequence[GroupFigures]) -> DataFrame:
    rows = [
        {
            "group": it.group,
            "verdict": cell(VERDICTS[it.verdict], *_doubts(outcome, it)),
            "exposure": _share(it.exposure),
            "target": _share(it.target),
            "supply": _share(it.supply),
            "lean": _points(it.lean),
            "ranking gap": _points(it.ranking_gap),
            "supply gap": _points(it.supply_gap),
            "p by Holm": p_value(getattr(it, it.tested).p),
            "queries": getattr(it, it.tested).queries,
        }
        for it in groups
    ]
    return frame(["group"], rows)


def _rates(outcome: AuditOutcome, attribute: str, small: float | None) -> DataFrame:
    groups = outcome.attributes()[attribute]
    shares = dict(zip((it.group for it in groups), shares_of_candidates(groups), strict=True))
    rows = []
    for it in _first(groups):
        flags = []
        if it.impact_ratio.value < FOUR_FIFTHS:
            flags.append("below four fifths")
        if it.is_small:
            flags.append("few candidates")
        if small is not None and shares[it.group] < small:
            flags.append(f"below {100 * small:g}% of the candidates")
        rows.append(
            {
                "group": it.group,
                "candidates": cell(_count(it.candidates), percent(shares[it.group])),
                "selected": _count(it.selected),
                "selection rate": _share(it.selection_rate),
                "impact ratio": cell(_ratio(it.impact_ratio.value), span(it.impact_ratio)),
                "shrunken rate": percent(it.shrunken_rate) if it.is_small else "",
                "marks": ", ".join(flags),
            }
        )
    found = frame(["group"], rows)
    # A column without a word would be taken for one of numbers.
    empty = [name for name in ("shrunken rate", "marks") if not any(found[name])]
    return found.drop(columns=empty)


def _seen(groups: Sequence[GroupFigures]) -> DataFrame:
    rows = [
        {
            "group": it.group,
            "absent": _share(it.absent),
            "attention": _share(it.attention),
            "exposure ratio": cell(_ratio(it.exposure_ratio.value), span(it.exposure_ratio)),
        }
        for it in groups
    ]
    return frame(["group"], rows)


def _labels(groups: Sequence[GroupFigures]) -> DataFrame:
    rows = [
        {
            "group": it.group,
            "lean": points(getattr(it, it.tested).value),
            "least": points(it.lean_low),
            "greatest": points(it.lean_high),
            "verdict": VERDICTS[it.verdict],
            "what labels could change": _turned(it),
        }
        for it in groups
    ]
    return frame(["group"], rows)


def _turned(it: GroupFigures) -> str:
    if it.verdict not in ("less", "more"):
        return "no verdict to turn"
    return "they could turn the verdict" if it.flips else "the verdict stays"


def _detectable(outcome: AuditOutcome, groups: Sequence[GroupFigures]) -> DataFrame:
    rows = []
    for it in groups:
        test: Estimate = getattr(it, it.tested)
        found = outcome.figures.detectable.get((it.attribute, it.group), math.nan)
        rows.append(
            {
                "group": it.group,
                "lean": _points(test),
                "queries": test.queries,
                "found four times in five": points(found).lstrip("+"),
            }
        )
    return frame(["group"], rows)


def _choices(outcome: AuditOutcome, groups: Sequence[GroupFigures]) -> DataFrame:
    """Return the lean of each group by each choice; nothing for combinations."""
    others = {
        (it.group, it.choice): it
        for it in outcome.figures.others
        if it.attribute == groups[0].attribute
    }
    choices = list(dict.fromkeys(choice for _, choice in others))
    if not choices:
        return frame(["group"])
    rows: list[dict[str, object]] = []
    for it in groups:
        row: dict[str, object] = {
            "group": it.group,
            "this audit": _points(getattr(it, it.tested)),
        }
        for choice in choices:
            other = others[it.group, choice]
            note = "the other way" if other.is_other else ""
            row[choice] = cell(points(other.lean.value), points_span(other.lean), note)
        rows.append(row)
    return frame(["group"], rows)


def _others(outcome: AuditOutcome) -> list[str]:
    """Say of each choice that turns a sure verdict that it does."""
    sure = {
        (it.attribute, it.group) for it in outcome.figures.groups if it.verdict in ("less", "more")
    }
    return [
        f"{it.attribute}, {it.group}: by {it.choice} the lean points the other way."
        for it in outcome.figures.others
        if it.is_other and (it.attribute, it.group) in sure
    ]


def _costs(outcome: AuditOutcome) -> DataFrame:
    attributes = outcome.attributes()
    rows = []
    for attribute, curve in outcome.figures.costs.items():
        for point in curve:
            shares = "; ".join(
                f"{it.group} {percent(share.value)}"
                for it, share in zip(attributes[attribute], point.exposure, strict=True)
            )
            rows.append(
                {
                    "attribute": attribute,
                    "distance that may be left": _step(point.step),
                    "queries": point.divergence.queries,
                    "divergence from the target": cell(
                        value(point.divergence.value), span(point.divergence)
                    ),
                    "relevance, of today's": cell(
                        percent(point.relevance.value), percent_span(point.relevance)
                    ),
                    "exposure": shares,
                }
            )
    return frame(["attribute"], rows)


def _step(step: float | None) -> str:
    return "today's ranking" if step is None else f"at most {100 * step:g}%"


def _contributions(outcome: AuditOutcome) -> Iterator[dict[str, Any]]:
    """Yield the queries that add most, for the groups of attributes first."""
    printed = outcome.printed()
    by_group: dict[tuple[str, str], list[Contribution]] = {}
    for it in sorted(outcome.figures.contributions, key=lambda it: is_combination(it.attribute)):
        by_group.setdefault((it.attribute, it.group), []).append(it)
    for (attribute, group), found in list(by_group.items())[:MOST_LISTS]:
        kept = found[:MOST_QUERIES]
        rows = [
            {
                "query": _query(outcome, printed[it.query]),
                "part of the lean": percent(it.share),
                "lean": points(it.lean),
                "shown today": _documents(outcome, it.shown),
                "a fair re-ranking": _documents(outcome, it.fair),
                "would come in": _documents(outcome, it.fair, it.shown),
            }
            for it in kept
        ]
        yield {
            "attribute": attribute,
            "group": group,
            "table": frame(["query"], rows),
            "together": sum(it.share for it in kept),
        }


def _query(outcome: AuditOutcome, it: PrintedQuery) -> Markdown:
    if it.id is None:
        return cell(f"query {it.number}", f"asked fewer than {outcome.spec.rare:g} times")
    if it.text is None:
        return cell(it.id, "text withheld")
    return cell(_shortened(it.text, LONGEST_QUERY), _shortened(it.id, LONGEST))


def _documents(outcome: AuditOutcome, ranking: Sequence[str], hidden: Sequence[str] = ()) -> str:
    """Return the first of a ranking that are not hidden, by their titles where they are known."""
    ranks = {id_: rank for rank, id_ in enumerate(ranking, start=1)}
    ids = [id_ for id_ in ranking if id_ not in hidden]
    named = [
        f"({ranks[id_]}) {_shortened(outcome.titles.get(id_, id_), LONGEST)}"
        for id_ in ids[:MOST_DOCUMENTS]
    ]
    more = len(ids) - MOST_DOCUMENTS
    return "; ".join([*named, f"{more} more"] if more > 0 else named) or "none"


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}…"


def _unanswered(outcome: AuditOutcome) -> DataFrame:
    counts = outcome.figures.counts
    rows = [
        {"queries": "asked", "number": counts.asked, "by weight": percent(1.0)},
        {
            "queries": "answered",
            "number": counts.answered,
            "by weight": percent(1 - counts.empty_share - counts.failed_share),
        },
        {
            "queries": "found nothing",
            "number": counts.empty,
            "by weight": percent(counts.empty_share),
        },
        {"queries": "failed", "number": counts.failed, "by weight": percent(counts.failed_share)},
    ]
    return frame(["queries"], rows)


def _messages(outcome: AuditOutcome) -> list[Markdown]:
    """Return why queries failed, the most frequent reasons first; a reason may quote the query."""
    printed = outcome.printed()
    times: dict[str, int] = {}
    for it in outcome.figures.unanswered:
        if it.status == "failed":
            is_shown = printed[it.query].text is not None
            message = it.message if is_shown else "withheld, as the reason may quote the query"
            times[message] = times.get(message, 0) + 1
    found = sorted(times.items(), key=lambda it: (-it[1], it[0]))[:MOST_MESSAGES]
    return [
        Markdown(f"{counted(number, 'query', 'queries')}: {shown(message or 'no reason given')}")
        for message, number in found
    ]


def _pair_table(outcome: AuditOutcome) -> DataFrame:
    rows = [
        {
            "versions": f"{_shortened(it.first, LONGEST)} and {_shortened(it.second, LONGEST)}",
            "pairs": it.pairs,
            "difference": cell(difference(it.difference.value), span(it.difference)),
            "first higher": _share(it.higher),
            "both equal": _share(it.equal),
            "p by Holm": p_value(it.difference.p),
            "queries": it.difference.queries,
        }
        for it in (outcome.pairs.comparisons if outcome.pairs else ())
    ]
    return frame(["versions"], rows)


def _answer_tables(outcome: AuditOutcome) -> dict[str, DataFrame]:
    """Return the shares of the groups of each attribute at each stage."""
    rows: dict[str, list[dict[str, object]]] = {}
    for it in outcome.answers.groups if outcome.answers else ():
        shares = {stage: _share(getattr(it, stage)) for stage in STAGES}
        rows.setdefault(it.attribute, []).append({"group": it.group, **shares})
    return {name: frame(["group"], found[:MOST_GROUPS]) for name, found in rows.items()}


def _probe_table(outcome: AuditOutcome) -> DataFrame:
    """Return what the model did with pairs, and with lists for each asker."""
    probe = outcome.probe
    if probe is None:
        return frame(["asked"])
    protected, other = probe.words
    rows: list[dict[str, object]] = [
        {"asked": "pairs", "figure": figure, "value": cell(f"{count:,}", f"of {probe.pairs:,}")}
        for figure, count in (
            (f"{protected} preferred in both orders", probe.protected_wins),
            (f"{other} preferred in both orders", probe.unprotected_wins),
            ("preferred changes with the order", probe.flips),
        )
    ]
    whom = {"neutral": "nobody in particular", "protected": protected, "unprotected": other}
    rows += [
        {
            "asked": f"lists for {whom[asker]}",
            "figure": f"exposure of {protected} by that of {other}",
            "value": cell(_ratio(it.value), span(it)),
        }
        for asker, it in probe.lists.items()
    ]
    return frame(["asked"], rows)


def _answer_bars(outcome: AuditOutcome) -> Iterator[Figure]:
    if outcome.answers is None or not outcome.answers.groups:
        return
    panels: dict[str, list[Bar]] = {}
    told = []
    for it in outcome.answers.groups:
        bars = panels.setdefault(it.attribute, [])
        if len(bars) == MOST_GROUPS:
            continue
        marks = {stage: getattr(it, stage).value for stage in STAGES[:-1]}
        bars.append(Bar(it.group, (it.used.value, it.used.low, it.used.high), "used", marks))
        listed = ", ".join(f"{stage} {percent(getattr(it, stage).value)}" for stage in STAGES)
        told.append(f"{it.attribute}, {it.group}: {listed}")
    yield Figure(
        "answers",
        "Whose documents answers use. A bar is the share of a group among the documents that "
        "answers can rest on, and its thin line the 95% interval; the marks are its shares among "
        "the documents that were retrieved, read and cited.",
        f"Bars of shares by group. {'; '.join(told)}.",
        draw_bars(panels, {"used": LINES[0][0]}, "share of the documents with a label"),
    )


def _count(number: float) -> str:
    """Write a number of documents, which is not whole where relevance is a probability."""
    return f"{number:,.0f}" if number == round(number) else f"{number:,.1f}"


def _ratio(number: float) -> str:
    return "–" if math.isnan(number) else f"{number:.2f}"


def figures_of(outcome: AuditOutcome) -> list[Figure]:
    """Draw the figures; none without matplotlib."""
    if not can_draw() or not outcome.figures.counts.answered:
        return []
    return [draw_exposure(outcome), *_cost_curve(outcome), *_answer_bars(outcome)]


def draw_exposure(outcome: AuditOutcome) -> Figure:
    """Draw who gets seen, by the groups of each attribute.

    Raises:
        InputError: matplotlib is not installed.
    """
    if not can_draw():
        raise InputError("A plot needs matplotlib; install it with: pip install 'fairqr[plot]'")
    due, mended = due_of(outcome), mended_exposure(outcome)
    panels: dict[str, list[Bar]] = {}
    told = []
    for attribute, groups in outcome.attributes().items():
        if is_combination(attribute):
            continue
        point = after_mending(outcome.figures.costs.get(attribute, []))
        bars = []
        for it in _first(groups, MOST_BARS):
            marks = {due: it.target.value, "what relevant documents could give": it.supply.value}
            marks["if mended"] = mended[attribute, it.group]
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
        "Who gets seen. A bar is the share of the exposure that a group gets today, and its thin "
        f"line the 95% interval; the upright mark is its {due}, the diamond what a ranking of "
        "relevant documents could give at most, the triangle what the group would get if rankings "
        "were mended until a tenth of the distance is left. The colour says what the test says.",
        f"Bars of exposure by group. {'; '.join(told)}.",
        draw_bars(panels, COLOURS, "share of the exposure"),
    )


def _cost_curve(outcome: AuditOutcome) -> Iterator[Figure]:
    points_: list[Mapping[str, object]] = []
    for attribute, curve in outcome.figures.costs.items():
        for point in curve:
            label = "today" if point.step is None else f"{100 * point.step:g}%"
            x, y = point.divergence.value, 100 * point.relevance.value
            points_.append({"line": attribute, "x": x, "y": y, "label": label})
    if points_:
        listed = "; ".join(f"{it['line']}, {it['label']}: {it['y']:.1f}%" for it in points_)
        yield Figure(
            "cost",
            "What mending would cost. From right to left the rankings come nearer to the target; "
            "the height is their relevance, as a share of that of today's rankings. Labels say how "
            "much of today's distance may be left.",
            f"Lines of relevance over divergence: {listed}.",
            draw_series(
                frame((), points_), "divergence from the target (nats)", "relevance (% of today's)"
            ),
        )
