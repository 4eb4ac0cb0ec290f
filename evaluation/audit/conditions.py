"""Conditions on the figures of an audit, such as ``impact_ratio < 0.8``, for checks in CI."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter, ge, gt, le, lt

import numpy as np

from fairqr.base.errors import InputError, one_line
from fairqr.evaluation.audit.figures import ESTIMATES, REASONS, GroupFigures
from fairqr.evaluation.audit.measuring import AuditFigures

OPERATORS = {"<=": le, "<": lt, ">=": ge, ">": gt}
_WRITTEN = re.compile(r"\s*([a-z_]+)\s*([<>]=?)\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d\d?)?)\s*")
LEANS = ("lean", "lack", "ranking_gap")
RATIOS = ("exposure_ratio", "impact_ratio")
RATES = (*RATIOS, "selection_rate", "precision", "ndcg")
TESTED = (*LEANS, *RATIOS)
"""The figures that a verdict is about: ratios follow that of the lean."""
SHOWN = 5
"""How many groups one sentence names."""

MOST_EMPTY = 0.1
"""The share of queries without an answer that a sure check goes without."""

FLIPS = "missing labels could change that"
REACHES = "its interval reaches beyond the line"
MOSTLY_UNKNOWN = "what is due is known for less than half of the queries by weight"


@dataclass(frozen=True, slots=True)
class Condition:
    """What must not hold for any group.

    Attributes:
        figure: One of :data:`ESTIMATES`.
        comparison: One of :data:`OPERATORS`.
        line: What the figure is compared with.
    """

    figure: str
    comparison: str
    line: float

    def __str__(self) -> str:
        return f"{self.figure} {self.comparison} {self.line:g}"

    def holds(self, group: GroupFigures, *, sure: bool) -> bool:
        """Return whether the figure of a group meets it; one that is undefined does not.

        Args:
            group: The figures of the group.
            sure: Whether the whole interval must meet it, too, whatever missing labels are. For a
                figure that a verdict is about there must be one.
        """
        if self._passes_over(group):
            return False
        is_tested = self.figure in TESTED and not math.isnan(group.test.value)
        if sure and is_tested and (group.flips or not group.is_sure):
            return False
        ends = self._ends_by_labels(group) if sure else ()
        return all(map(self._meets, (getattr(group, self.figure).value, *ends)))

    def doubt(self, group: GroupFigures, *, sure: bool) -> str:
        """Return why nobody can tell whether it holds for a group for which it does not surely.

        Args:
            group: The figures of the group.
            sure: Whether an interval that reaches beyond the line, or a missing label, is a reason.
        """
        it = getattr(group, self.figure)
        is_ratio, is_tested = self.figure in RATIOS, self.figure in TESTED
        if self._passes_over(group):
            return ""
        if math.isnan(it.value):
            return REASONS["saturated"] if group.verdict == "saturated" else "there is no figure"
        # An exposure is over the queries that have a target, unless none has.
        is_over_all = self.figure == "absent" or (self.figure == "exposure" and not group.known)
        if group.verdict in ("saturated", "too_few") and not is_over_all:
            return REASONS[group.verdict]
        # A ratio that may be anything has an interval.
        if math.isnan(it.low) or (is_ratio and it.low <= 0 and it.high >= 1):
            return "too few queries tell of it"
        sides = {*map(self._meets, (it.value, it.low, it.high))}
        open_by = REACHES if len(sides) > 1 and not group.flips else FLIPS
        may_turn = sure and (group.verdict == "unlabelled" or (is_ratio and group.flips))
        if is_tested and (may_turn or self.holds(group, sure=False)):
            return REASONS.get(group.verdict, open_by)
        if group.known < 0.5 and not is_over_all:
            return MOSTLY_UNKNOWN
        sides |= {*map(self._meets, self._ends_by_labels(group))}
        return open_by if sure and True in sides else ""

    def _meets(self, value: float) -> bool:
        """Return whether a value is beyond the line; a comparison with NaN is never true."""
        return bool(OPERATORS[self.comparison](value, self.line))

    def _ends_by_labels(self, group: GroupFigures) -> tuple[float, float]:
        """Return the ends of the interval if missing labels were such that it is widest."""
        it = getattr(group, self.figure)
        low, high = it.low, it.high
        least, greatest = (end - group.test.value for end in group.lean_bounds)
        if self.figure in LEANS:
            return low + min(least, 0.0), high + max(greatest, 0.0)
        unlabelled = math.inf if group.unknown else 0.0
        span = unlabelled if math.isnan(least) else greatest - least
        span = {"exposure": group.unknown, "absent": unlabelled}.get(self.figure, span)
        if self.figure not in RATES:
            return low - span, high + span
        # Rates go with the group's share, and ratios also with that of another group.
        share = np.nan_to_num(min(group.exposure.value, group.share_of_candidates)).clip(1e-9, 0.5)
        factor = (1 + span / share) * (1 + span / (1 - share))
        return low / factor, high * factor

    def _passes_over(self, group: GroupFigures) -> bool:
        """Return whether a group gets more than is due, which no low ratio is about."""
        is_low = self.figure in RATIOS and self.comparison in ("<", "<=")
        return is_low and group.verdict == "more" and not group.flips


def parse_condition(text: str) -> Condition:
    """Read a condition.

    Raises:
        InputError: It is none.
    """
    found = _WRITTEN.fullmatch(text)
    if found is None:
        why = "write a figure, a comparison and a number, such as 'impact_ratio < 0.8'"
        raise InputError(f"'{one_line(text, 80)}' is not a condition; {why}.")
    if found[1] not in ESTIMATES:
        raise InputError(f"There is no figure '{found[1]}'; choose among {', '.join(ESTIMATES)}.")
    return Condition(found[1], found[2], float(found[3]))


def check(
    conditions: Sequence[Condition], figures: AuditFigures, *, sure: bool
) -> tuple[list[str], list[str]]:
    """Check conditions; one that is in neither list holds for no group of any attribute.

    Args:
        conditions: What must not hold.
        figures: Of the audit.
        sure: Whether only what is sure counts; see :meth:`Condition.holds`. A condition that the
            figure of a group meets, but not surely, is doubtful. In segments of the queries only
            what is sure counts.

    Returns:
        A sentence on each condition that holds for a group, and on each of which nobody can tell
        whether it does, with the reason.
    """
    broken, doubtful = list[str](), list[str]()
    if conditions and (figures.too_many_failed or figures.counts.empty_share > 0.5):
        why = "too many queries failed" if figures.too_many_failed else "most queries found nothing"
        return [], [f"No condition was checked: {why}."]
    attributes = [[*of] for _, of in groupby(figures.groups, attrgetter("attribute"))]
    for it in conditions:
        met = [one for one in figures.groups if it.holds(one, sure=sure)]
        if met := met + [one for one in figures.segments if it.holds(one, sure=True)]:
            broken.append(f"'{it}' holds for {_named(it.figure, met)}.")
            continue
        doubts = defaultdict[str, list[GroupFigures]](list)
        for groups in attributes:
            reasons = [it.doubt(one, sure=sure) for one in groups]
            for why, one in zip(reasons, groups, strict=True) if sure or all(reasons) else ():
                doubts[why].append(one)
        doubts.pop("", None)
        for why, named in doubts.items():
            doubtful.append(f"'{it}' may hold for {_named(it.figure, named)}: {why}.")
    if sure and figures.counts.empty_share > MOST_EMPTY:
        doubtful.append("Queries that found nothing are in no figure, and are more than a tenth.")
    return broken, doubtful


def _named(figure: str, groups: Sequence[GroupFigures]) -> str:
    named = []
    for group in groups[:SHOWN]:
        it = getattr(group, figure)
        ends = "" if math.isnan(it.low) else f", {it.low:.3g} to {it.high:.3g}"
        value = "" if math.isnan(it.value) else f" ({it.value:.3g}{ends})"
        where = f" in {group.segment}" if group.segment else ""
        named.append(f"{group.attribute}={group.group}{where}{value}")
    return ", ".join(named) + (f", and {len(groups) - SHOWN} more" if groups[SHOWN:] else "")
