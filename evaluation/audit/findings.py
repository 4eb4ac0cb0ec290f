"""What an audit found, in plain sentences, computed from the numbers that its tables show."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from fairqr.evaluation.audit.estimates import Estimate
from fairqr.evaluation.audit.figures import ALPHA, ESTIMATE_ERROR, GroupFigures
from fairqr.evaluation.audit.outcomes import (
    AuditOutcome,
    after_mending,
    is_combination,
    mended_exposure,
)
from fairqr.evaluation.audit.specification import AUDIT_TARGET
from fairqr.evaluation.reports.text import MINUS

__all__ = [
    "due_of",
    "findings_of",
    "smallest_found",
]

SMALL = 0.0005
"""What is less than this rounds to 0.0 points or percent, and is not spoken of."""

SENTENCES = {"less": 6, "more": 3}
"""So many groups of an attribute with each verdict have a sentence of their own."""

NAMED = 5
"""So many combinations of groups are named in a sentence."""


def findings_of(outcome: AuditOutcome) -> list[str]:
    """Return sentences that say who gets less, how sure that is, and what mending would cost."""
    return [
        *_on_answers(outcome),
        *_on_groups(outcome),
        *_on_combinations(outcome),
        *_on_relevance(outcome),
        *_on_labels(outcome),
        *_on_stability(outcome),
        *_on_pairs(outcome),
        *_on_probe(outcome),
    ]


def due_of(outcome: AuditOutcome) -> str:
    """Return what the target of an audit is, in words."""
    if outcome.spec.target == AUDIT_TARGET:
        return "share of the relevant documents"
    return "target"


def smallest_found(outcome: AuditOutcome, groups: Sequence[GroupFigures]) -> float:
    """Return the difference that would have been found for each of these groups, most often.

    NaN if there are too few queries to tell.
    """
    found = [outcome.figures.detectable.get((it.attribute, it.group), math.nan) for it in groups]
    known = [it for it in found if not math.isnan(it)]
    return max(known) if known else math.nan


def _on_answers(outcome: AuditOutcome) -> Iterator[str]:
    counts, figures = outcome.figures.counts, outcome.figures
    if figures.too_many_failed:
        yield (
            f"{_percent(counts.failed_share)} of the queries failed, by weight, which is more than "
            f"the {_percent(outcome.spec.failures)} that this audit allows. So it gives no verdict."
        )
    if not counts.answered:
        yield "No query was answered, so nothing can be said."


def _on_relevance(outcome: AuditOutcome) -> Iterator[str]:
    counts = outcome.figures.counts
    if not counts.answered:
        return
    if counts.relevance == "unknown":
        yield (
            "Nothing says which documents are relevant. So this audit shows who gets how much "
            "exposure, and cannot say whether the ranking or the documents are to blame."
        )
    elif counts.relevance == "estimated":
        yield (
            "Which documents are relevant is estimated from their texts. The estimate can be off "
            f"by {_points(ESTIMATE_ERROR)} points for a group. More queries do not help with that; "
            "judgements do."
        )


def _on_groups(outcome: AuditOutcome) -> Iterator[str]:
    for attribute, groups in outcome.attributes().items():
        if is_combination(attribute) or not outcome.figures.counts.answered:
            continue
        sure = [it for it in groups if it.verdict in ("less", "more")]
        # Those that get less come first, the greatest difference before the others.
        sure.sort(key=lambda it: -getattr(it, it.tested).value)
        for verdict, most in SENTENCES.items():
            found = [it for it in sure if it.verdict == verdict]
            if verdict == "more":
                found.reverse()
            for it in found[:most]:
                yield _sure(outcome, it)
            if len(found) > most:
                yield (
                    f"{attribute}: {len(found) - most:,} other groups surely get {verdict} than is "
                    "due, by smaller differences."
                )
        doubtful = [it for it in groups if it.verdict == "within_error"]
        if doubtful:
            yield _within_error(attribute, doubtful)
        if sure:
            yield from _on_cost(outcome, attribute, groups)
        elif all(math.isnan(it.target.value) for it in groups):
            yield f"{attribute}: {_shares(groups)}."
        elif not doubtful and not outcome.figures.too_many_failed:
            yield _unsure(outcome, attribute, groups)


def _shares(groups: Sequence[GroupFigures]) -> str:
    """Return who gets how much exposure, the most exposed groups first."""
    known = [it for it in groups if not math.isnan(it.exposure.value)]
    known.sort(key=lambda it: -it.exposure.value)
    if not known:
        return "no shown document has a label"
    said = [f"{it.group} gets {_percent(it.exposure.value)}" for it in known[:NAMED]]
    rest = len(known) - len(said)
    return f"of the exposure, {_listed(said)}" + (
        f", and {rest:,} other groups the rest" * (rest > 0)
    )


def _sure(outcome: AuditOutcome, it: GroupFigures) -> str:
    test: Estimate = getattr(it, it.tested)
    due, sign = due_of(outcome), 1 if it.verdict == "less" else -1
    amount, ends = f"{_points(sign * test.value)} points", _between(test, sign)
    said = (
        f"{it.attribute}: {it.group} gets {_percent(it.exposure.value)} of the exposure. "
        f"Its {due} is {_percent(it.target.value)}."
    )
    if it.tested == "lack":
        said += f" It gets {amount} {it.verdict} than that{ends}."
    elif it.verdict == "less":
        said += f" The ranking withholds {amount}{ends}."
        if it.supply_gap.value > SMALL:
            said += (
                f" Another {_points(it.supply_gap.value)} points no ranking could give: there are "
                "too few relevant documents of this group."
            )
    else:
        said += f" The ranking gives it {amount} more than is due{ends}."
    if it.flips:
        said += " Missing labels alone could explain this."
    return said


def _within_error(attribute: str, groups: Sequence[GroupFigures]) -> str:
    named = [
        f"{it.group} gets {_points(abs(it.lean.value))} points "
        f"{'less' if it.lean.value > 0 else 'more'} than is due"
        for it in groups
    ]
    return (
        f"{attribute}: {'; '.join(named)}. That is no chance, but so small that the estimate of "
        "relevance alone could make it. Judgements would tell."
    )


def _between(test: Estimate, sign: int) -> str:
    p = "" if test.p is None else f"p {_p(test.p)}"
    if math.isnan(test.low):
        return f" ({p})" if p else ""
    low, high = sorted((sign * test.low, sign * test.high))
    return f" (between {_points(low)} and {_points(high)}, {p})"


def _unsure(outcome: AuditOutcome, attribute: str, groups: Sequence[GroupFigures]) -> str:
    if all(it.verdict == "too_few" for it in groups):
        return (
            f"{attribute}: there are too few queries to tell whether any group gets less than its "
            f"{due_of(outcome)}."
        )
    smallest = smallest_found(outcome, groups)
    said = f"{attribute}: no difference could be told from chance."
    if math.isnan(smallest):
        return said
    return (
        f"{said} A difference of {_points(smallest)} points would have been found in four of five "
        "audits like this one; a smaller one may well be there."
    )


def _on_cost(
    outcome: AuditOutcome, attribute: str, groups: Sequence[GroupFigures]
) -> Iterator[str]:
    point = after_mending(outcome.figures.costs.get(attribute, []))
    if point is None or math.isnan(point.relevance.value):
        return
    mended = mended_exposure(outcome)
    shares = [
        f"{it.group} would get {_percent(mended[attribute, it.group])}"
        for it in groups
        if it.verdict == "less"
    ]
    if not shares:
        return
    if len(shares) > NAMED:
        shares = [*shares[:NAMED], "so on"]
    span = point.relevance
    ends = "" if math.isnan(span.low) else f" ({_percent(span.low)} to {_percent(span.high)})"
    yield (
        f"{attribute}, what mending would cost: if each ranking were changed until a tenth of its "
        f"distance from the target is left, {_listed(shares)} of the exposure, and the "
        f"{_relevance(outcome)} of what is shown would be {_percent(span.value)}{ends} of today's."
    )


def _relevance(outcome: AuditOutcome) -> str:
    return (
        "judged relevance"
        if outcome.figures.counts.relevance == "judged"
        else ("estimated relevance")
    )


def _on_combinations(outcome: AuditOutcome) -> Iterator[str]:
    combined = [it for it in outcome.figures.groups if is_combination(it.attribute)]
    if not combined or outcome.figures.too_many_failed or not outcome.figures.counts.answered:
        return
    less = [it for it in combined if it.verdict == "less"]
    if not less:
        yield (
            f"For none of the {len(combined):,} combinations of groups could it be told from "
            "chance that they get less."
        )
        return
    less.sort(key=lambda it: -getattr(it, it.tested).value)
    names = [
        f"{it.group} ({_points(getattr(it, it.tested).value)} points less)" for it in less[:NAMED]
    ]
    if len(less) > NAMED:
        names.append(f"{len(less) - NAMED} others")
    verb = "gets" if len(less) == 1 else "get"
    yield (
        f"Of the {len(combined):,} combinations of groups, {len(less):,} surely {verb} less: "
        f"{_listed(names)}."
    )


def _on_labels(outcome: AuditOutcome) -> Iterator[str]:
    for attribute, unknown in outcome.figures.unknown.items():
        if not is_combination(attribute) and unknown.value > SMALL:
            yield (
                f"{attribute}: {_percent(unknown.value)} of the exposure went to documents whose "
                f"{attribute} is not known. They are left out of all shares."
            )


def _on_stability(outcome: AuditOutcome) -> Iterator[str]:
    stability = outcome.figures.stability
    if stability is not None and stability.same < 1:
        yield (
            f"Asked the same again, the engine changed its first {outcome.spec.k} results for "
            f"{_percent(1 - stability.same)} of {stability.queries:,} queries."
        )


def _listed(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def _percent(share: float) -> str:
    return "an unknown share" if math.isnan(share) else f"{100 * share:.1f}%"


def _points(share: float) -> str:
    text = f"{100 * share:.1f}"
    return text.replace("-", "" if not text.strip("-0.") else MINUS)


def _p(p: float) -> str:
    return "< 0.0001" if p < 0.0001 else f"= {p:.4f}"


def _on_pairs(outcome: AuditOutcome) -> Iterator[str]:
    if outcome.pairs is None:
        return
    scorer, sure = outcome.pairs.scorer, False
    if outcome.pairs.failed:
        yield f"The versions of {outcome.pairs.failed:,} queries could not be scored by '{scorer}'."
    for it in outcome.pairs.comparisons:
        if it.difference.p is None or it.difference.p > ALPHA:
            continue
        sure = True
        higher, lower = it.first, it.second
        if it.difference.value < 0:
            higher, lower = lower, higher
        yield (
            f"'{scorer}' scores the version '{higher}' of a document higher than the version "
            f"'{lower}' of the same, by {abs(it.difference.value):.2f} standard deviations."
        )
    if not sure:
        yield (
            "Between versions of the same document, no difference in the scores of "
            f"'{scorer}' could be told from chance."
        )


def _on_probe(outcome: AuditOutcome) -> Iterator[str]:
    if outcome.probe is not None:
        yield f"'{outcome.probe.model}' as a ranker: {outcome.probe.sentence}"
