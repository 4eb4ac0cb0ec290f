"""The report of an audit: its sentences, what its template shows, and its picture.

``audit_findings.txt.j2`` has the words of the sentences; what is chosen here is who is spoken of.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, count, groupby, islice
from pathlib import Path
from typing import Any

import numpy as np

from fairqr.agents.statistics import too_few
from fairqr.base.errors import InputError, one_line
from fairqr.base.files import write_beside
from fairqr.base.yaml_file import load_yaml
from fairqr.evaluation.audit.figures import ALPHA, FEW_CANDIDATES, REASONS, GroupFigures
from fairqr.evaluation.audit.measuring import Contribution
from fairqr.evaluation.audit.outcomes import AuditOutcome, files_of
from fairqr.evaluation.estimates import Estimate
from fairqr.evaluation.reports import text
from fairqr.evaluation.reports.plots import BLUE, GREY, VERMILION, Bar, draw_bars
from fairqr.evaluation.reports.writer import Figure, paragraphs, write_report
from fairqr.retrieval.fairness.dimension import TIMES

MOST_GROUPS, MOST_BARS = 40, 12
"""So many groups of one attribute stand in a table, and are drawn; ``results.csv`` has all."""

MOST_LISTS, MOST_QUERIES, MOST_DOCUMENTS = 12, 5, 5
"""So many groups with their queries, queries of a group, and documents of a query are shown."""

VERDICTS = {"less": "gets less", "more": "gets more"}
VERDICTS |= {name: f"cannot tell: {why}" for name, why in REASONS.items()}
"""How the verdict on a group is told; the verdict that leads a report stands first."""

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


def least_queries(tests: int = 1) -> int:
    """Return the fewest queries of equal weight for an interval, or for one of so many tests."""
    return next(number for number in count(1) if not too_few(number, ALPHA / max(tests, 1)))


def findings_of(outcome: AuditOutcome) -> dict[str, list[str]]:
    """Return the ``verdict`` with its threshold, up to three ``sentences``, and ``notes``.

    The sentences say who is affected and by how much, how sure that is, and what mending would
    cost; the notes what else a reader has to know.

    Raises:
        InputError: Jinja is not installed.
    """
    # Attributes come before their combinations, and then the greatest differences.
    ordered = sorted(
        outcome.figures.groups,
        key=lambda it: (TIMES in it.attribute, -np.nan_to_num(difference_of(it)[0].value)),
    )
    plain = [it for it in ordered if TIMES not in it.attribute] or ordered
    sure = [it for it in plain if it.is_sure] or ordered
    values = {
        "outcome": outcome,
        "ordered": ordered,
        "plain": plain,
        "foremost": next(name for name in VERDICTS if any(it.verdict == name for it in sure)),
        "difference": difference_of,
        "in_points": _points,
        "listing": _listed,
        "alpha": ALPHA,
        "least_queries": least_queries(outcome.figures.tests),
        # Of so many, nearly all audits would show a group that other queries show alone.
        "queries_that_show": lambda due: math.ceil(math.log(ALPHA / 2) / math.log1p(-due)),
    }
    return {
        part: paragraphs("audit_findings", {**values, "part": part})
        for part in ("verdict", "sentences", "notes")
    }


def difference_of(it: GroupFigures) -> tuple[Estimate, str]:
    """Return how much ``less`` or ``more`` exposure than due a group gets, as it was tested.

    The difference is not above 0 where the group gets something between its supply and its target.
    """
    test = it.test
    if not test.value < 0:
        return test, "less"
    if it.tested == "lean":
        return replace(it.excess, p=test.p), "more"
    return replace(test, value=-test.value, low=-test.high, high=-test.low), "more"


def _listed(texts: Sequence[str], most: int = 5) -> str:
    """Return the first texts as a sentence lists them, and how many others there are."""
    rest = len(texts) - most
    named = [*texts[:most], f"{rest:,} other{'s' * (rest > 1)}"] if rest > 0 else texts
    return " and ".join(filter(None, [", ".join(named[:-1]), named[-1]]))


def load_layout(name: str) -> Layout:
    """Return a layout.

    Raises:
        InputError: There is none of this name.
    """
    if name not in LAYOUTS:
        raise InputError(f"There is no layout '{one_line(name)}'; choose {', '.join(LAYOUTS)}.")
    path = Path(__file__).parent / "files" / f"{name.replace('-', '_')}.yaml"
    held: Layout = load_yaml(path, "layout")
    parts = [{"text": "", "sections": [], "folded": False} | part for part in held["parts"]]
    defaults = {"title": "", "about": "", "not_covered": [], "small_category": 0}
    return defaults | held | {"parts": parts}


def write_audit(folder: Path, outcome: AuditOutcome, layout: str = LAYOUTS[0]) -> None:
    """Write ``audit.json``, the tables as CSV, and the report.

    Args:
        folder: Of the audit.
        outcome: What came out.
        layout: The order of the report, one of :data:`LAYOUTS`.

    Raises:
        InputError: There is no such layout; or the report needs an extra that is not installed.
            All other files are written by then.
    """
    arranged = load_layout(layout)
    for name, content in files_of(outcome).items():
        write_beside(folder / name, content)
    drawn = [draw_exposure(outcome)] if outcome.figures.counts.answered else []
    folded = {part["heading"] for part in arranged["parts"] if part["folded"]}
    write_report(folder, "audit", values_of(outcome, arranged), drawn, folded)


def values_of(outcome: AuditOutcome, layout: Layout) -> dict[str, Any]:
    """Return what the template shows."""
    notes: list[str] = []

    def noted(said: str, it: Estimate, interval: text.Markdown) -> text.Markdown:
        """Write a figure with its interval, and keep that for the count of too few queries."""
        lacks = said != text.NOTHING and math.isnan(it.low)
        notes.append("too few" if lacks else interval)
        return text.cell(said, notes[-1])

    def ratio(it: Estimate) -> text.Markdown:
        said = text.NOTHING if math.isnan(it.value) else f"{it.value:.2f}"
        return noted(said, it, text.span(it))

    return {
        "title": f"Who gets seen in the results of {outcome.manifest.engine['name']}",
        "about": "",
        "layout": layout,
        "outcome": outcome,
        "findings": findings_of(outcome),
        "attributes": {name: _first(groups) for name, groups in outcome.attributes().items()},
        "examples": _examples(outcome),
        "rankings": _rankings,
        "verdicts": VERDICTS,
        "difference": difference_of,
        "least_queries": least_queries(),
        "few_candidates": FEW_CANDIDATES,
        "most_groups": MOST_GROUPS,
        "most_documents": MOST_DOCUMENTS,
        "notes": notes,
        "share": lambda it: noted(text.percent(it.value), it, text.percent_span(it)),
        "ratio": ratio,
        "points_of": lambda it, side: noted(_points(it.value, side), it, text.points_span(it)),
        "in_points": _points,
        "number": lambda it: f"{it:,.0f}" if it == round(it) else f"{it:,.1f}",
    }


def _first(groups: Sequence[GroupFigures], most: int = MOST_GROUPS) -> list[GroupFigures]:
    """Return the groups to show: all, or those with the greatest leans, in the order given."""
    ranked = sorted(groups, key=lambda it: (not it.is_sure, -abs(np.nan_to_num(it.test.value))))
    kept = {it.group for it in ranked[:most]}
    return [it for it in groups if it.group in kept]


def _points(amount: float, side: str = "") -> text.Markdown:
    """Write how many points, and whether it is less or more than is due."""
    if side and not amount > 0:
        return text.Markdown(text.NOTHING)
    return text.Markdown(f"{text.points(amount).lstrip('+')} {side}".strip())


def _examples(outcome: AuditOutcome) -> dict[tuple[str, str], list[Contribution]]:
    """Return the queries that add most by attribute and group, those of attributes first."""
    ordered = sorted(outcome.figures.contributions, key=lambda it: TIMES in it.attribute)
    by_group = groupby(ordered, lambda it: (it.attribute, it.group))
    return {key: list(islice(found, MOST_QUERIES)) for key, found in islice(by_group, MOST_LISTS)}


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
    rankings = [
        ranked[:MOST_DOCUMENTS]
        for it in chain.from_iterable(_examples(outcome).values())
        if printed[it.query]["text"] is not None
        for ranked in _rankings(it)
    ]
    return list(dict.fromkeys(id_ for _, id_ in chain.from_iterable(rankings)))


def draw_exposure(outcome: AuditOutcome) -> Figure:
    """Draw who gets seen, by the groups of each attribute.

    Raises:
        InputError: matplotlib is not installed.
    """
    panels, told = {}, []
    attributes = outcome.attributes()
    for attribute in [name for name in attributes if TIMES not in name] or attributes:
        groups, bars = attributes[attribute], []
        for it in _first(groups, MOST_BARS):
            words, target = VERDICTS[it.verdict], it.target.value
            dot = (it.exposure.value, it.exposure.low, it.exposure.high)
            marks = {"target": target, "supply": it.supply.value, "if mended": it.if_mended}
            bars.append(Bar(it.group, dot, words.split(":")[0], marks))  # the table has the reason
            seen, due = text.percent(it.exposure.value), text.percent(target)
            told.append(f"{attribute}, {it.group}: {seen} of the exposure, target {due}, {words}")
        cut = f", the {MOST_BARS} groups of {len(groups):,} with the greatest leans"
        panels[attribute + cut * (len(groups) > MOST_BARS)] = bars
    colours = {it.split(":")[0]: COLOURS.get(name, GREY) for name, it in VERDICTS.items()}
    drawn = draw_bars(panels, colours, "share of the exposure")
    return Figure("exposure", f"Bars of exposure by group. {'; '.join(told)}.", drawn)
