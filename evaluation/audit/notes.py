"""What a reader of an audit's report has to know beside its findings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fairqr.evaluation.audit.figures import ALPHA, GroupFigures
from fairqr.evaluation.audit.findings import Summary
from fairqr.evaluation.audit.pairs import PairwiseAudit
from fairqr.evaluation.audit.wording import (
    in_order_of_names,
    in_points,
    listing,
    name_of,
    paragraph,
    points_of,
)
from fairqr.evaluation.reports.text import counted, percent, plain
from fairqr.evaluation.user_clicks import ClickFigures, MeasuredDiscount, Trial

MANY = 0.1
"""The share of the queries with few judged documents that a note is worth."""


def notes_of(summary: Summary) -> list[str]:
    """Return the notes of a report, each a paragraph."""
    paragraphs: list[str] = []
    if summary.audit.figures.counts.answered:
        notes = (
            *_on_coverage(summary),
            *_on_clicks(summary),
            *_on_verdicts(summary),
            *_on_relevance(summary),
            *_on_segments(summary),
            *_on_hidden(summary),
            *_on_attributes(summary),
        )
        for note in notes:
            paragraphs += paragraph([note])
    if summary.audit.pairs:
        for note in _on_pairs(summary.audit.pairs):
            paragraphs += paragraph([note])
    return paragraphs


def _on_coverage(summary: Summary) -> list[str]:
    """Say which searches of a log are in the figures."""
    if summary.audit.seen is None:
        return []
    coverage = summary.audit.seen.coverage()
    searches = counted(coverage["searches"], "search", "searches")
    note = (
        f"Of {searches} in the log, {coverage['in_figures']:,} are in the figures. What became of "
        f"them: {_counts(coverage['outcomes'])}."
    )
    if coverage["unseen"]:
        note += f" Not in the figures: {_counts(coverage['unseen'])}."
    return [note]


def _counts(by_name: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in by_name.items())


def _on_clicks(summary: Summary) -> list[str]:
    """Say what clicks show of attention, and of fair lists."""
    clicks = summary.audit.clicks
    if clicks is None:
        return []
    notes = [_on_attention(clicks, discount=str(summary.audit.spec.discount))]
    if clicks.trial is not None:
        notes.append(_on_trial(clicks.trial))
    return notes


def _on_attention(clicks: ClickFigures, *, discount: str) -> str:
    examination = clicks.examination
    if examination is None:
        return f"{clicks.why_not} Attention by rank is {discount}."
    number = counted(examination.clicks, "click")
    searches = counted(examination.searches, "search", "searches")
    note = (
        f"Attention by rank is not log2, but what {number} of {searches} show by "
        f"{examination.by}: rank 2 is looked at "
    )
    note += _times(examination, 1, "times as often as the first")
    last = len(examination.values) - 1
    if last > 1:
        note += f", rank {last + 1} {_times(examination, last, 'times')}"
    note += "."
    if examination.by == "regression":
        note += (
            " That is right if what moves documents has nothing to do with how much they attract "
            "at that time."
        )
    return note


def _times(examination: MeasuredDiscount, position: int, words: str) -> str:
    """Write how often a rank is looked at, with its interval."""
    value = examination.values[position]
    low = examination.low[position]
    high = examination.high[position]
    return f"{value:.2f} {words} ({low:.2f} to {high:.2f})"


def _on_trial(trial: Trial) -> str:
    """Say whether users click fair lists more, and whether the trial may stop."""
    margin = trial.margin
    if trial.decision == "go on":
        advice = f"Go on: it may be 0, and it may be more than {margin}."
    elif trial.decision == "alike":
        advice = f"You may stop: it is surely less than {margin}."
    else:
        side = "more" if trial.value > 0 else "less"
        advice = f"You may stop: fair lists are clicked {side}."
    fair_queries = counted(trial.queries["fair"], "query", "queries")
    return (
        f"Of a fair list, users clicked {trial.rates['fair']:.3f} documents ({fair_queries}), of "
        f"the engine's {trial.rates['engine']:.3f} ({trial.queries['engine']:,}). The difference "
        f"is {trial.value:+.3f} ({trial.low:+.3f} to {trial.high:+.3f}), however often one looks. "
        f"{advice}"
    )


def _on_verdicts(summary: Summary) -> list[str]:
    """Say what else could explain differences, or hide them."""
    notes: list[str] = []
    doubtful = [
        points_of(group) for group in summary.ordered if group.verdict == "within_relevance_error"
    ]
    if doubtful:
        notes.append(
            f"The error of the estimate of relevance could explain this: {listing(doubtful)}."
        )
    unlabelled = [group for group in summary.plain if group.verdict == "unlabelled"]
    if unlabelled and summary.foremost != "unlabelled":
        notes.append(f"{_attributes_of(unlabelled)}: missing labels could hide a difference.")
    without_attainable = [
        group
        for group in summary.ordered
        if group.tested == "exposure_gap" and group.target.value >= 0
    ]
    if without_attainable:
        notes.append(
            f"{_attributes_of(without_attainable)}: what relevant documents could give is not "
            "known, so this audit cannot say whether the ranking or the documents are to blame."
        )
    return notes


def _attributes_of(groups: Iterable[GroupFigures]) -> str:
    """List the attributes of groups, each once."""
    return listing(list(dict.fromkeys(group.attribute for group in groups)))


def _on_relevance(summary: Summary) -> list[str]:
    """Say how far what is relevant is known."""
    figures = summary.audit.figures
    notes: list[str] = []
    if figures.counts.relevance == "estimated":
        notes.append(
            "The estimate of relevance reads texts: where a group is described in other words than "
            "the queries', it may be off by more. More queries do not help; judgements of some of "
            "them do."
        )
    for group in figures.calibration:
        if group.is_biased:
            side = "much" if group.bias.value > 0 else "little"
            queries = counted(group.bias.queries, "judged query", "judged queries")
            notes.append(
                f"The estimate gives {name_of(group)} {percent(group.estimated.value)} where "
                f"{percent(group.judged.value)} was judged relevant: "
                f"{in_points(abs(group.bias.value))} points too {side} ({queries})."
            )
    for group in figures.calibration:
        if group.is_less_certain:
            notes.append(
                f"The estimate is less certain for {name_of(group)}: of what it counts as "
                f"relevant, it expects {percent(group.certainty.value)} to be so, of other groups "
                f"{percent(group.other_certainty.value)}. An order by the estimate may pass over "
                "the group; one with equal_chance does not."
            )
    k = summary.audit.spec.k
    few = figures.by_query[0].with_few_relevant(k) if summary.is_judged else 0.0
    if few > MANY:
        notes.append(
            f"For {percent(few)} of the queries, fewer than {k} documents were judged relevant; "
            "what else they show counts, too."
        )
    return notes


def _on_segments(summary: Summary) -> list[str]:
    """Say who surely gets less or more in segments, unless the headline says it."""
    return [summary.by_segment()] if summary.segments and summary.is_sure else []


def _on_hidden(summary: Summary) -> list[str]:
    """Say how many judged documents the engine does not give."""
    hidden = summary.audit.figures.counts.hidden
    if not hidden:
        return []
    verb = "is" if hidden == 1 else "are"
    them = "it" if hidden == 1 else "them"
    return [
        f"{counted(hidden, 'judged relevant document')} {verb} left out: the engine did not answer "
        f"{them}, so the groups are not known."
    ]


def _on_attributes(summary: Summary) -> list[str]:
    """Say of each attribute what was not looked at, and which groups were never found."""
    notes: list[str] = []
    for attribute, groups in in_order_of_names(summary.plain).items():
        name = plain(attribute)
        saturated = groups[0].saturated
        if saturated:
            notes.append(
                f"{name}: {percent(saturated)} of the queries by weight have more likely relevant "
                "documents than were looked at, and are in no gap."
            )
        missing = [
            group.group for group in groups if group.exposure.value == 0 and group.candidates == 0
        ]
        if missing and len(missing) < len(groups):
            notes.append(
                f"{name}: no document of {listing(missing)} was found, so nothing can be said of "
                "them."
            )
    return notes


def _on_pairs(pairs: PairwiseAudit) -> list[str]:
    """Say which versions of a document get higher scores."""
    scorer = plain(pairs.scored_by)
    notes: list[str] = []
    if pairs.failed:
        queries = counted(pairs.failed, "query", "queries")
        notes.append(f"'{scorer}' could not score the versions of {queries}.")
    is_clear = False
    for comparison in pairs.comparisons:
        difference = comparison.difference
        if difference.p is None or difference.p > ALPHA:
            continue
        is_clear = True
        higher = comparison.first
        lower = comparison.second
        if difference.value < 0:
            higher = comparison.second
            lower = comparison.first
        segment = plain(comparison.segment)
        where = f"In the segment '{segment}', " if comparison.segment else ""
        notes.append(
            f"{where}'{scorer}' scores the version '{plain(higher)}' of a document higher than the "
            f"version '{plain(lower)}', by {abs(difference.value):.2f} standard deviations."
        )
    if not is_clear:
        notes.append(
            f"We found no clear difference between the scores of '{scorer}' for versions of the "
            "same document."
        )
    return notes
