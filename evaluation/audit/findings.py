"""What an audit found, in plain sentences, from the numbers that its tables show.

``audit_findings.txt.j2`` has the words; what is chosen here is who is spoken of.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fairqr.base.statistics import too_few
from fairqr.evaluation.audit.estimates import Estimate
from fairqr.evaluation.audit.figures import ALPHA, ESTIMATE_ERROR, GroupFigures
from fairqr.evaluation.audit.mending import after_mending
from fairqr.evaluation.audit.outcomes import AuditOutcome, is_combination
from fairqr.evaluation.reports.drawing import GREY, LINES
from fairqr.evaluation.reports.text import MINUS
from fairqr.evaluation.reports.writer import paragraphs

SMALL = 0.0005
"""What is less than this rounds to 0.0 points or percent, and is not spoken of."""

NAMED = 5
"""So many groups are named in one sentence."""

LEAST_QUERIES = next(number for number in itertools.count(1) if not too_few(number, ALPHA))
"""The fewest queries of equal weight for an interval or a test."""


class Wording(NamedTuple):
    """How a verdict is told.

    Attributes:
        words: Of one group.
        colour: Of its bar.
        headline: Of an audit in which no group has a verdict above this one.
    """

    words: str
    colour: str
    headline: str


VERDICTS = {
    "less": Wording("gets less", LINES[1][0], "Against"),
    "more": Wording("gets more", LINES[0][0], "In favour of"),
    "within_error": Wording(
        "within the error of the estimate",
        GREY,
        "No verdict: the error of the estimate of relevance could explain what we found.",
    ),
    "saturated": Wording(
        "cannot tell: more relevant documents than were looked at",
        GREY,
        "No verdict: there are more relevant documents than were looked at.",
    ),
    "cannot_tell": Wording("cannot tell", GREY, "We found no clear difference."),
    "too_few": Wording("too few queries", GREY, "No verdict: there are too few queries."),
}
"""The verdicts, the one that leads a report first; the first two name groups and points."""


def findings_of(outcome: AuditOutcome) -> dict[str, list[str]]:
    """Return the ``verdict`` with its threshold, up to three ``sentences``, and ``notes``.

    The sentences say who is affected and by how much, how sure that is, and what mending would
    cost; the notes what else a reader has to know.

    Raises:
        InputError: Jinja is not installed.
    """
    figures, counts = outcome.figures, outcome.figures.counts
    # Attributes come before their combinations, and then the greatest differences.
    ordered = sorted(
        figures.groups,
        key=lambda it: (is_combination(it.attribute), -np.nan_to_num(difference_of(it)[0].value)),
    )
    plain = [it for it in ordered if not is_combination(it.attribute)] or ordered
    sure = [it for it in plain if it.is_sure] or ordered
    foremost = next(name for name in VERDICTS if any(it.verdict == name for it in sure))
    first = next(it for it in ordered if it.verdict == foremost)
    values = {
        "spec": outcome.spec,
        "figures": figures,
        "counts": counts,
        "pairs": outcome.pairs,
        "foremost": foremost,
        "headline": VERDICTS[foremost].headline,
        "told": [it for it in ordered if it.verdict == foremost],
        "doubtful": [it for it in ordered if it.verdict == "within_error"],
        "plain": plain,
        "saturated": figures.saturated.get(first.attribute, 0.0),
        "has_target": not all(math.isnan(it.target.value) for it in ordered),
        "mended": after_mending(figures.costs.get(first.attribute, [])),
        "detectable": max((it.detectable for it in plain if it.detectable > 0), default=None),
        "difference": difference_of,
        "share": _share,
        "in_points": _points,
        "listing": _listed,
        "alpha": ALPHA,
        "estimate_error": ESTIMATE_ERROR,
        "least_queries": LEAST_QUERIES,
        "small": SMALL,
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


def _listed(texts: Sequence[str], most: int = NAMED) -> str:
    """Return the first texts as a sentence lists them, and how many others there are."""
    rest = len(texts) - most
    named = [*texts[:most], f"{rest:,} other{'s' * (rest > 1)}"] if rest > 0 else texts
    return " and ".join(filter(None, [", ".join(named[:-1]), named[-1]]))


def _share(share: float) -> str:
    return f"{100 * share:.1f}%"


def _points(share: float) -> str:
    text = f"{100 * share:.1f}"
    return text.replace("-", "" if not text.strip("-0.") else MINUS)
