"""What an audit found, in plain sentences, computed from the numbers that its tables show.

``audit_findings.txt.j2`` has the words; what is chosen here is who is spoken of.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from fairqr.evaluation.audit.estimates import Estimate
from fairqr.evaluation.audit.figures import ALPHA, ESTIMATE_ERROR, GroupFigures
from fairqr.evaluation.audit.mending import after_mending
from fairqr.evaluation.audit.outcomes import AuditOutcome, is_combination
from fairqr.evaluation.audit.specification import AUDIT_TARGET
from fairqr.evaluation.reports.text import MINUS
from fairqr.evaluation.reports.writer import paragraphs

SMALL = 0.0005
"""What is less than this rounds to 0.0 points or percent, and is not spoken of."""

SENTENCES = {"less": 6, "more": 3}
"""So many groups of an attribute with each verdict have a sentence of their own."""

NAMED = 5
"""So many groups are named in one sentence."""


def findings_of(outcome: AuditOutcome) -> list[str]:
    """Return sentences that say who gets less, how sure that is, and what mending would cost.

    Raises:
        InputError: Jinja is not installed.
    """
    figures, counts = outcome.figures, outcome.figures.counts
    has_verdicts = counts.answered and not figures.too_many_failed
    combined = [it for it in figures.groups if is_combination(it.attribute) and has_verdicts]
    compared = outcome.pairs.comparisons if outcome.pairs else ()
    values = {
        "spec": outcome.spec,
        "figures": figures,
        "counts": counts,
        "due": due_of(outcome),
        "of_relevance": f"{'judged' if counts.relevance == 'judged' else 'estimated'} relevance",
        "estimate_error": ESTIMATE_ERROR,
        "small": SMALL,
        "ends": _ends,
        "share": _share,
        "in_points": _points,
        "listing": _listed,
        "spoken_of": [
            _spoken_of(outcome, attribute, groups)
            for attribute, groups in outcome.attributes().items()
            if not is_combination(attribute) and counts.answered
        ],
        "combined": len(combined),
        "less": _named(it for it in combined if it.verdict == "less"),
        "doubtful": _named(
            it for it in combined if it.verdict == "within_error" and it.lean.value > 0
        ),
        "unlabelled": {
            attribute: unknown
            for attribute, unknown in figures.unknown.items()
            if not is_combination(attribute) and unknown.value > SMALL
        },
        "pairs": outcome.pairs,
        "sure_pairs": [
            it for it in compared if it.difference.p is not None and it.difference.p <= ALPHA
        ],
    }
    return paragraphs("audit_findings", values)


def due_of(outcome: AuditOutcome) -> str:
    """Return what the target of an audit is, in words."""
    if outcome.spec.target == AUDIT_TARGET:
        estimated = outcome.figures.counts.relevance == "estimated"
        return f"{'estimated ' * estimated}share of the relevant documents"
    return "target"


def _named(groups: Iterable[GroupFigures]) -> tuple[int, list[str]]:
    """Return how many groups there are, and the names of those that get least by their target."""
    ordered = _by_need(groups)
    names = [f"{it.group} ({_points(it.test.value)} points less)" for it in ordered[:NAMED]]
    rest = len(ordered) - NAMED
    return len(ordered), [*names, f"{rest} others"] if rest > 0 else names


def _by_need(groups: Iterable[GroupFigures]) -> list[GroupFigures]:
    """Return groups in order, those that get least by their target first."""
    return sorted(groups, key=lambda it: -it.test.value)


def _spoken_of(
    outcome: AuditOutcome, attribute: str, groups: Sequence[GroupFigures]
) -> dict[str, Any]:
    """Return what is said of an attribute, the greatest differences first."""
    less = _by_need(it for it in groups if it.verdict == "less")
    more = _by_need(it for it in groups if it.verdict == "more")[::-1]
    exposed = [it for it in groups if not math.isnan(it.exposure.value)]
    exposed.sort(key=lambda it: -it.exposure.value)
    lacking = [it for it in groups if it.supply_gap.value > SMALL and not it.supply_gap.low <= 0]
    lacking.sort(key=lambda it: -it.supply_gap.value)
    unseen = [it.group for it in groups if not (it.exposure.value or it.candidates)]
    points = outcome.figures.costs.get(attribute, [])
    mended = after_mending(points)
    if not less or mended is None or math.isnan(mended.relevance.value):
        mended = None
    today = points[0].divergence.value if points else 0.0
    would_get = [
        f"{it.group} would get {_share(it.if_mended)}" for it in groups if it.verdict == "less"
    ]
    test = groups[0].test
    return {
        "attribute": attribute,
        "sure": [
            (verdict, found[: SENTENCES[verdict]], max(0, len(found) - SENTENCES[verdict]))
            for verdict, found in (("less", less), ("more", more))
        ],
        "is_sure": bool(less or more),
        "doubtful": [it for it in groups if it.verdict == "within_error"],
        "mended": mended,
        "would_get": [*would_get[:NAMED], "so on"] if len(would_get) > NAMED else would_get,
        "distance_left": mended.divergence.value / today if mended and today else 0.0,
        "has_target": not all(math.isnan(it.target.value) for it in groups),
        "seen": [f"{it.group} gets {_share(it.exposure.value)}" for it in exposed[:NAMED]],
        "not_said": max(0, len(exposed) - NAMED),
        "too_few": all(it.verdict == "too_few" for it in groups),
        "lacking": [
            f"{it.group} {_share(it.supply.value)} of its target of {_share(it.target.value)}"
            for it in lacking[:NAMED]
        ],
        "smallest": max(
            (it.detectable for it in groups if not math.isnan(it.detectable)), default=math.nan
        ),
        "test": test,
        "is_narrow": test.queries < outcome.figures.counts.answered
        and not math.isnan(groups[0].target.value),
        "by_lean": groups[0].tested == "lean",
        "unseen": unseen if len(unseen) < len(groups) else [],
    }


def _listed(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def _ends(test: Estimate, sign: int, p: float | None) -> str:
    """Return how sure a difference is, in parentheses."""
    low, high = sorted((sign * test.low, sign * test.high))
    said = [] if math.isnan(low) else [f"between {_points(low)} and {_points(high)}"]
    if p is not None:
        said.append("p < 0.0001" if p < 0.0001 else f"p = {p:.4f}")
    return f"({', '.join(said)})" if said else ""


def _share(share: float) -> str:
    return "an unknown share" if math.isnan(share) else f"{100 * share:.1f}%"


def _points(share: float) -> str:
    text = f"{100 * share:.1f}"
    return text.replace("-", "" if not text.strip("-0.") else MINUS)
