"""What a report says first: the verdict, who is affected and by how much, and what it would cost.

The queries are people's words. Those that were asked rarely may tell who asked, so no sentence
quotes a query.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fairqr.agents.statistics import too_few
from fairqr.evaluation.audit.concentration import Concentration
from fairqr.evaluation.audit.figures import ALPHA, GroupFigures
from fairqr.evaluation.audit.wording import (
    VERDICTS,
    difference_of,
    ends_of,
    in_order_of_names,
    in_points,
    listing,
    name_of,
    paragraph,
    points_of,
    reference_of,
)
from fairqr.evaluation.reports.text import counted, percent, plain
from fairqr.retrieval.fairness.dimension import TIMES

if TYPE_CHECKING:
    from fairqr.evaluation.audit.finishing import Audit

HEADLINES = {
    "less": "Against",
    "more": "In favour of",
    "within_relevance_error": (
        "No verdict: the error of the estimate of relevance could explain what we found."
    ),
    "saturated": "No verdict: there are more relevant documents than were looked at.",
    "unlabelled": "No verdict: missing labels could hide a difference.",
    "undecided": "No verdict: the test finds a difference, but the interval holds 0.",
    "cannot_tell": "We found no clear difference.",
    "too_few": "No verdict: there are too few queries.",
    "unknown": "No verdict: the target shares of groups are not known.",
}
"""How a report begins, by the verdict that leads it; a sure one is followed by the group's name."""

SMALL = 0.0005
"""Less than this rounds to 0.0 points, and is not spoken of."""

LISTS = {
    "both": "Fair lists in place of the engine's",
    "arms": "The queries that get fair lists, beside the others",
}
"""What is compared in the figures of lists that a proxy saw."""


class Findings(NamedTuple):
    """What a report says in sentences, each a paragraph.

    Attributes:
        verdict: The verdict, and how it was tested.
        sentences: Who is affected and by how much, how sure that is, and what fair re-ranking would
            cost; one more for each attribute whose groups nobody lists.
        notes: What else a reader has to know.
    """

    verdict: list[str]
    sentences: list[str]
    notes: list[str]


def least_queries(tests: int = 1) -> int:
    """Return the fewest queries of equal weight for an interval, or for one of so many tests."""
    alpha = ALPHA / max(tests, 1)
    return next(number for number in count(1) if not too_few(number, alpha))


def queries_that_show(share: float) -> int:
    """Return how many queries surely show a group that this share of all queries shows."""
    return math.ceil(math.log(ALPHA / 2) / math.log1p(-share))


@dataclass(frozen=True)
class Summary:
    """What the sentences of a report choose from.

    Attributes:
        audit: The audit.
        ordered: All groups, those of attributes before combinations, and then those with the
            greatest differences.
        plain: The groups of attributes; all groups if only combinations were measured.
        foremost: The verdict that leads the report.
    """

    audit: Audit
    ordered: list[GroupFigures]
    plain: list[GroupFigures]
    foremost: str

    @classmethod
    def of(cls, audit: Audit) -> Summary:
        """Return the summary of an audit."""

        def place(group: GroupFigures) -> tuple[bool, float]:
            difference = np.nan_to_num(difference_of(group)[0].value)
            return TIMES in group.attribute, -float(difference)

        ordered = sorted(audit.figures.groups, key=place)
        plain_groups = [group for group in ordered if TIMES not in group.attribute] or ordered
        sure = [group for group in plain_groups if group.is_sure] or ordered
        verdicts = {group.verdict for group in sure}
        foremost = next(name for name in VERDICTS if name in verdicts)
        return cls(audit, ordered, plain_groups, foremost)

    @cached_property
    def leading(self) -> list[GroupFigures]:
        """The groups with the foremost verdict."""
        return [group for group in self.ordered if group.verdict == self.foremost]

    @property
    def first(self) -> GroupFigures:
        """The group that the report speaks of first."""
        return self.leading[0]

    @property
    def is_sure(self) -> bool:
        """Whether some group surely gets less, or more."""
        return self.foremost in ("less", "more")

    @property
    def may_hide(self) -> bool:
        """Whether what was not looked at, or has no label, may hide a difference."""
        return self.foremost in ("saturated", "unlabelled")

    @property
    def is_judged(self) -> bool:
        """Whether judgements say what is relevant."""
        return self.audit.figures.counts.relevance == "judged"

    @cached_property
    def has_target(self) -> bool:
        """Whether the target share of any group is known."""
        return any(group.target.value >= 0 for group in self.ordered)

    @cached_property
    def detectable(self) -> float:
        """The difference that the audit finds in every group; 0 if that is not known."""
        gaps = [group.detectable_gap for group in self.plain if group.detectable_gap > 0]
        return max(gaps, default=0.0)

    @cached_property
    def segments(self) -> list[GroupFigures]:
        """The groups that surely get less, or more, in a segment of the queries."""
        return [group for group in self.audit.figures.segments if group.is_sure]

    @cached_property
    def lists(self) -> dict[str, list[dict[str, Any]]]:
        """The figures of lists that a proxy saw."""
        return self.audit.lists

    def by_segment(self) -> str:
        """Say who gets less, or more, in which segment."""
        names = [f"{points_of(group)} in {group.segment}" for group in self.segments]
        return f"By segment of the queries: {listing(names)}."


def verdict_of(summary: Summary) -> list[str]:
    """Return the verdict, and how it was tested."""
    figures = summary.audit.figures
    counts = figures.counts
    spec = summary.audit.spec
    if not counts.answered:
        return ["No verdict: no query was answered."]
    if figures.too_many_failed:
        failed = percent(counts.failed_share)
        allowed = percent(spec.failures)
        return [f"No verdict: {failed} of the queries failed, and this audit allows {allowed}."]
    if not summary.has_target and not summary.may_hide:
        return [
            "No verdict: no relevant documents are known, so the target shares of groups are not "
            "known."
        ]
    sentences = _headline(summary)
    if counts.empty_share > spec.failures:
        sentences.append(
            f"{percent(counts.empty_share)} of the queries by weight found nothing, and are in no "
            "figure."
        )
    if counts.absent:
        verb = "is" if counts.absent == 1 else "are"
        judged = counted(counts.relevant, "judged relevant document")
        sentences.append(
            f"{counts.absent:,} of {judged} {verb} not in the index, and in no figure."
        )
    has_open_target = summary.may_hide or summary.foremost == "unknown"
    if summary.first.known < 1 and not has_open_target:
        unknown = percent(1 - summary.first.known)
        sentences.append(f"For {unknown} of those answered, target shares are not known.")
    return paragraph(sentences) + paragraph(_threshold(summary))


def _headline(summary: Summary) -> list[str]:
    """Return the sentences that say what the verdict is, and on whom."""
    headline = HEADLINES[summary.foremost]
    if not summary.is_sure:
        if not summary.segments:
            return [headline]
        return [headline, "That is over all queries.", summary.by_segment()]
    first = summary.first
    difference, side = difference_of(first)
    amount = in_points(difference.value)
    if first.tested == "ranking_gap" and summary.foremost == "less":
        effect = f"the ranking withholds {amount} points of exposure"
    else:
        effect = f"{amount} points {side} exposure than {reference_of(first, side)}"
    interval = ends_of(difference, "points")
    p = _p_value(difference.p or 0.0)
    sentences = [f"{headline} {name_of(first)}: {effect}{interval}, {p}."]
    others = [
        f"{name_of(group)} by {in_points(difference_of(group)[0].value)}"
        for group in summary.leading[1:]
    ]
    if others:
        sentences.append(f"Also {headline.lower()} {listing(others, 3)}.")
    return sentences


def _p_value(p: float) -> str:
    return "p < 0.0001" if p < 0.0001 else f"p = {p:.4f}"


def _threshold(summary: Summary) -> list[str]:
    """Return how differences were tested, and what the interval includes."""
    figures = summary.audit.figures
    if not figures.tests:
        return []
    tests = counted(figures.tests, "test")
    sentences = [
        f"Threshold: p ≤ {ALPHA}, corrected by Holm for {tests}, and an interval without 0."
    ]
    error = summary.first.error
    if error:
        queries = counted(figures.counts.error_from, "judged query", "judged queries")
        source = f" ({queries})" if figures.counts.error_from else ""
        sentences.append(
            f"The interval includes {in_points(error)} points by which the estimate of relevance "
            f"may be off{source}."
        )
    return sentences


def sentences_of(summary: Summary) -> list[str]:
    """Return who is affected, how sure that is, and what fair re-ranking would cost."""
    if not summary.audit.figures.counts.answered:
        return []
    return [
        *_who_is_affected(summary),
        *_lists_of_a_proxy(summary),
        *paragraph(_how_sure(summary)),
        *paragraph(_cost(summary)),
        *_concentrations(summary),
    ]


def _who_is_affected(summary: Summary) -> list[str]:
    """Return who gets seen, and by how much less or more than the target share."""
    first = summary.first
    if summary.foremost == "saturated":
        return paragraph(_saturated(summary))
    if summary.foremost == "unlabelled" and not math.isnan(first.exposure.value):
        return paragraph(_unlabelled(summary))
    if not summary.has_target:
        return _exposures(summary)
    difference, side = difference_of(first)
    exposure = percent(first.exposure.value)
    target = percent(first.target.value)
    if summary.foremost == "less":
        return paragraph(_gets_less(summary))
    if summary.foremost == "more":
        return paragraph(
            [
                f"{plain(first.group)} gets {exposure} of the exposure (target {target}); others "
                f"could have {in_points(difference.value)} points of it."
            ]
        )
    if difference.value > SMALL:
        interval = ends_of(difference, "points")
        reference = reference_of(first, side)
        sentences = [
            f"{name_of(first)} differs most: it gets {exposure} of the exposure, "
            f"{in_points(difference.value)} points {side} than {reference}{interval}."
        ]
        if first.tested == "ranking_gap":
            sentences.append(f"Its target is {target}.")
        return paragraph(sentences)
    if not summary.segments:
        return ["No group gets less than its relevant documents could give it."]
    return []


def _saturated(summary: Summary) -> list[str]:
    """Return why target shares are not known where more is relevant than was looked at."""
    if summary.is_judged:
        reason = "the engine hides more than a tenth of the judged relevant documents"
        remedy = "labels of all judged documents"
    else:
        reason = "the last documents that were found are as likely relevant as not"
        remedy = "judgements, or narrower queries"
    share = percent(summary.first.saturated)
    return [
        f"For {share} of the queries by weight, {reason}, so target shares are not known; bring "
        f"{remedy}."
    ]


def _unlabelled(summary: Summary) -> list[str]:
    """Return what missing labels could turn."""
    first = summary.first
    tables = summary.audit.figures.by_query
    table = next(table for table in tables if table.dimension.name == first.attribute)
    low, high = first.gap_bounds
    less = in_points(max(high, 0))
    more = in_points(max(-low, 0))
    return [
        f"{percent(table.unknown().value)} of the exposure went to documents without a label; with "
        f"their labels, {name_of(first)} could get up to {less} points less than its target, or up "
        f"to {more} more.",
        "Label more documents.",
    ]


def _exposures(summary: Summary) -> list[str]:
    """Return who gets how much, by attribute, where nobody knows what each should get."""
    paragraphs: list[str] = []
    for attribute, groups in in_order_of_names(summary.plain).items():
        by_exposure = sorted(groups, key=lambda group: group.exposure.value, reverse=True)
        names = [
            f"{group.group} gets {percent(group.exposure.value)}"
            for group in by_exposure
            if not math.isnan(group.exposure.value)
        ]
        shares = f"of the exposure, {listing(names)}" if names else "no shown document has a label"
        paragraphs += paragraph([f"{plain(attribute)}: {shares}."])
    return paragraphs


def _gets_less(summary: Summary) -> list[str]:
    """Return what the first group gets, who gets most, and what no ranking could change."""
    first = summary.first
    name = plain(first.group)
    exposure = first.exposure.value
    rivals = [
        group
        for group in summary.ordered
        if group.attribute == first.attribute and group.exposure.value >= 0
    ]
    top = sorted(rivals, key=lambda group: group.exposure.value)[-1]
    sentence = (
        f"{name} gets {percent(exposure)} of the exposure (target {percent(first.target.value)})"
    )
    if top.exposure.value > exposure + SMALL:
        sentence += f"; {plain(top.group)} gets most, {percent(top.exposure.value)}"
    sentences = [f"{sentence}."]
    unattainable = first.unattainable.value
    if first.tested == "ranking_gap" and unattainable > SMALL:
        how = "judged" if summary.is_judged else "likely to be"
        sentences.append(
            f"No ranking could close the other {in_points(unattainable)} points, because too few "
            f"of its documents are {how} relevant."
        )
    return sentences


def _lists_of_a_proxy(summary: Summary) -> list[str]:
    """Return what fair lists changed, where a proxy saw both lists of queries."""
    paragraphs: list[str] = []
    for kind, title in LISTS.items():
        rows = []
        for row in summary.lists[kind]:
            change = row["change"]
            figure = f"{row['name']} {percent(row['engine'].value)} → {percent(row['fair'].value)}"
            if not math.isnan(change.low):
                low = percent(change.low, signed=True)
                high = percent(change.high, signed=True)
                figure += f" ({low} to {high})"
            rows.append(figure)
        if rows:
            paragraphs += paragraph([f"{title}: {'; '.join(rows)}."])
    return paragraphs


def _how_sure(summary: Summary) -> list[str]:
    """Return how likely chance made the difference, or what it would take to tell."""
    first = summary.first
    if summary.is_sure:
        p = difference_of(first)[0].p or 0.0
        audits = max(1, math.ceil(10000 * p))
        by_labels = "; missing labels alone could explain it" if first.could_flip else ""
        return [
            f"Chance alone would show such a difference in at most {audits} of 10,000 audits"
            f"{by_labels}."
        ]
    if summary.foremost == "undecided":
        is_mostly_absent = first.absent.value > 0.5 and first.test.value > 0
        if not is_mostly_absent:
            return ["More queries could tell."]
        return [
            f"{percent(first.absent.value)} of the queries show nobody of {name_of(first)}.",
            "Others might show many; to rule that out takes "
            f"{queries_that_show(first.test.value)} queries of equal weight or more.",
        ]
    figures = summary.audit.figures
    if summary.foremost == "too_few" and summary.has_target:
        least = least_queries(figures.tests)
        return [f"A verdict needs {least} queries of equal weight or more."]
    has_gaps = not summary.may_hide and not figures.too_many_failed
    if summary.detectable and has_gaps:
        return _what_would_be_found(summary)
    return []


def _what_would_be_found(summary: Summary) -> list[str]:
    """Return how large a difference the audit would have found, and whom it could miss."""
    sentences = [
        f"This audit finds a difference of {in_points(summary.detectable)} points or more four "
        "times out of five; a smaller one may be there."
    ]
    rare = [name_of(group) for group in summary.plain if group.target.value <= group.detectable_gap]
    if rare:
        verb = "has" if len(rare) == 1 else "have"
        sentences.append(
            f"{listing(rare)} {verb} a target share below that: even if no query showed them, this "
            "audit could miss it."
        )
    return sentences


def _cost(summary: Summary) -> list[str]:
    """Return what fair re-ranking would cost, or what no ranking could give."""
    first = summary.first
    if summary.foremost != "less":
        return _out_of_reach(summary)
    reranking = summary.audit.figures.fair_reranking.get(first.attribute)
    if reranking is None:
        return _out_of_reach(summary) if summary.lists["both"] else ["Cost: not known."]
    gain = first.exposure_if_reranked - first.exposure.value
    if not gain > SMALL:
        depth = summary.audit.spec.depth
        name = plain(first.group)
        return [f"Re-ranking what it answers to rank {depth} would give {name} no more."]
    cost = reranking.relevance_kept
    if math.isnan(cost.value):
        return _out_of_reach(summary) if summary.lists["both"] else ["Cost: not known."]
    rankings = "none. Fairer rankings" if cost.low >= 1 else "fairer rankings"
    relevance = "judged" if summary.is_judged else "estimated"
    interval = ends_of(cost, "percent")
    return [
        f"Cost: {rankings} would have {percent(cost.value)}{interval} of today's {relevance} "
        f"relevance, and give {plain(first.group)} {percent(first.exposure_if_reranked)} of the "
        f"exposure instead of {percent(first.exposure.value)}."
    ]


def _out_of_reach(summary: Summary) -> list[str]:
    """Return which groups lack what no ranking could give, if it is as much as would be found."""
    least = summary.detectable or 1
    short = [
        f"{name_of(group)} the {in_points(group.unattainable.value)} points that it lacks"
        for group in summary.plain
        if group.unattainable.value > least
    ]
    if not short:
        return []
    documents = "judged" if summary.is_judged else "likely"
    return [f"No ranking of {documents} relevant documents could give {listing(short)}."]


def _concentrations(summary: Summary) -> list[str]:
    """Return how exposure is shared among all groups of each open attribute."""
    paragraphs: list[str] = []
    for concentration in summary.audit.figures.concentrations:
        paragraphs += paragraph(_concentration(concentration))
    return paragraphs


def _concentration(concentration: Concentration) -> list[str]:
    unseen = counted(concentration.unseen, "group")
    verb = "gets" if concentration.unseen == 1 else "get"
    gini = concentration.gini
    index = f"{gini.value:.2f}{ends_of(gini, '.2f')}"
    sentences = [
        f"{plain(concentration.attribute)}: {unseen} of {len(concentration.groups):,} {verb} no "
        "exposure at all.",
        f"The Gini index is {index}: 0 if each group gets its target share, near 1 if a few groups "
        "get nearly all.",
    ]
    if not math.isnan(concentration.gini_by_lot):
        sentences.append(f"Lists drawn by lot would have {concentration.gini_by_lot:.2f}.")
    return sentences
