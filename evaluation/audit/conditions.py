"""Conditions on the figures of an audit, for CI, such as ``impact_ratio < 0.8``."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import ge, gt, le, lt

import numpy as np

from fairqr.base.errors import InputError, one_line
from fairqr.evaluation.audit.figures import ESTIMATES, REASONS, GroupFigures
from fairqr.evaluation.audit.measuring import AuditFigures
from fairqr.evaluation.estimates import Estimate

OPERATORS = {"<=": le, "<": lt, ">=": ge, ">": gt}
_WRITTEN = re.compile(r"\s*([a-z_]+)\s*([<>]=?)\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d\d?)?)\s*")

GAPS = ("exposure_gap", "ranking_gap")
RATIOS = ("exposure_ratio", "impact_ratio")
RATES = (*RATIOS, "selection_rate", "precision", "ndcg")
TESTED = (*GAPS, *RATIOS)
"""The figures that a verdict is about: ratios follow the verdict on the gap."""

MOST_NAMED = 5
"""How many groups one sentence names."""

MOST_EMPTY = 0.1
"""The share of queries without an answer that a sure check goes without."""

FLIPS = "missing labels could change that"
REACHES = "its interval reaches beyond the line"


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
        value = self._figure_of(group).value
        if not sure:
            return self._meets(value)
        is_tested = self.figure in TESTED and not math.isnan(group.test.value)
        has_verdict = group.is_sure and not group.could_flip
        if is_tested and not has_verdict:
            return False
        ends = self._ends_by_labels(group)
        return all(map(self._meets, (value, *ends)))

    def doubt(self, group: GroupFigures, *, sure: bool) -> str:
        """Return why nobody can tell for a group whether it holds; empty if it is decided.

        Args:
            group: The figures of the group, for which it does not surely hold.
            sure: Whether an interval that reaches beyond the line, or a missing label, is a reason.
        """
        if self._passes_over(group):
            return ""
        missing = self._lacks_figure(group)
        if missing:
            return missing
        figure = self._figure_of(group)
        ends_by_chance = (figure.value, figure.low, figure.high)
        by_chance = set(map(self._meets, ends_by_chance))
        crosses_line = len(by_chance) > 1
        open_by = REACHES if crosses_line and not group.could_flip else FLIPS
        if self.figure in TESTED:
            could_flip = self.figure in RATIOS and group.could_flip
            may_turn = group.verdict == "unlabelled" or could_flip
            if (sure and may_turn) or self.holds(group, sure=False):
                return REASONS.get(group.verdict, open_by)
        if group.known < 0.5 and not self._is_over_all_queries(group):
            return "target shares are known for less than half of the queries by weight"
        by_labels = set(map(self._meets, self._ends_by_labels(group)))
        may_hold = True in by_chance | by_labels
        return open_by if sure and may_hold else ""

    def _lacks_figure(self, group: GroupFigures) -> str:
        """Return why the figure of a group says nothing; empty if it says something."""
        figure = self._figure_of(group)
        if math.isnan(figure.value):
            return REASONS["saturated"] if group.verdict == "saturated" else "there is no figure"
        is_open = group.verdict in ("saturated", "too_few")
        if is_open and not self._is_over_all_queries(group):
            return REASONS[group.verdict]
        # A ratio that may be anything has an interval.
        may_be_anything = self.figure in RATIOS and figure.low <= 0 and figure.high >= 1
        if math.isnan(figure.low) or may_be_anything:
            return "too few queries tell of it"
        return ""

    def _is_over_all_queries(self, group: GroupFigures) -> bool:
        """Return whether the figure is over all queries, and needs no target.

        An exposure is over the queries that have a target, unless none has.
        """
        if self.figure == "exposure":
            return not group.known
        return self.figure == "absent"

    def _figure_of(self, group: GroupFigures) -> Estimate:
        figure: Estimate = getattr(group, self.figure)
        return figure

    def _meets(self, value: float) -> bool:
        """Return whether a value is beyond the line; a comparison with NaN is never true."""
        return bool(OPERATORS[self.comparison](value, self.line))

    def _ends_by_labels(self, group: GroupFigures) -> tuple[float, float]:
        """Return the ends of the interval if missing labels were such that it is widest."""
        figure = self._figure_of(group)
        low = figure.low
        high = figure.high
        least, greatest = (end - group.test.value for end in group.gap_bounds)
        if self.figure in GAPS:
            return low + min(least, 0.0), high + max(greatest, 0.0)
        unlabelled = math.inf if group.unknown else 0.0
        if self.figure == "exposure":
            span = group.unknown
        elif self.figure == "absent" or math.isnan(least):
            span = unlabelled
        else:
            span = greatest - least
        if self.figure not in RATES:
            return low - span, high + span
        # Rates go with the group's share, and ratios also with another group's.
        lesser_share = min(group.exposure.value, group.share_of_candidates)
        share = np.nan_to_num(lesser_share).clip(1e-9, 0.5)
        factor = (1 + span / share) * (1 + span / (1 - share))
        return low / factor, high * factor

    def _passes_over(self, group: GroupFigures) -> bool:
        """Return whether a group gets more than its target share, which no low ratio is about."""
        is_low = self.figure in RATIOS and self.comparison in ("<", "<=")
        return is_low and group.verdict == "more" and not group.could_flip


def parse_condition(text: str) -> Condition:
    """Read a condition.

    Raises:
        InputError: The text is not a condition.
    """
    match = _WRITTEN.fullmatch(text)
    if match is None:
        advice = "write a figure, a comparison and a number, such as 'impact_ratio < 0.8'"
        raise InputError(f"'{one_line(text, 80)}' is not a condition; {advice}.")
    figure, comparison, line = match.groups()
    if figure not in ESTIMATES:
        raise InputError(f"There is no figure '{figure}'; choose among {', '.join(ESTIMATES)}.")
    return Condition(figure, comparison, float(line))


def check(
    conditions: Sequence[Condition], figures: AuditFigures, *, sure: bool
) -> tuple[list[str], list[str]]:
    """Check conditions; one that is in neither list holds for no group of any attribute.

    Args:
        conditions: What must not hold.
        figures: The figures of the audit.
        sure: Whether only what is sure counts; see :meth:`Condition.holds`. A condition that the
            figure of a group meets, but not surely, is doubtful. In segments of the queries only
            what is sure counts.

    Returns:
        A sentence on each condition that holds for a group. A sentence with the reason on each
        condition that cannot be decided.
    """
    empty_share = figures.counts.empty_share
    if conditions and figures.too_many_failed:
        return [], ["No condition was checked: too many queries failed."]
    if conditions and empty_share > 0.5:
        return [], ["No condition was checked: most queries found nothing."]
    broken: list[str] = []
    doubtful: list[str] = []
    for condition in conditions:
        groups = [group for group in figures.groups if condition.holds(group, sure=sure)]
        groups += [segment for segment in figures.segments if condition.holds(segment, sure=True)]
        if groups:
            broken.append(f"'{condition}' holds for {_named(condition.figure, groups)}.")
        else:
            doubtful += _doubts(condition, figures, sure=sure)
    if sure and empty_share > MOST_EMPTY:
        doubtful.append("Queries that found nothing are in no figure, and are more than a tenth.")
    return broken, doubtful


def _doubts(condition: Condition, figures: AuditFigures, *, sure: bool) -> list[str]:
    """Return a sentence for each reason why nobody can tell whether a condition holds."""
    by_reason = defaultdict[str, list[GroupFigures]](list)
    for groups in figures.by_attribute.values():
        reasons = [condition.doubt(group, sure=sure) for group in groups]
        # One group of an attribute that is decided is enough, unless all has to be sure.
        if not sure and not all(reasons):
            continue
        for reason, group in zip(reasons, groups, strict=True):
            if reason:
                by_reason[reason].append(group)
    return [
        f"'{condition}' may hold for {_named(condition.figure, groups)}: {reason}."
        for reason, groups in by_reason.items()
    ]


def _named(figure: str, groups: Sequence[GroupFigures]) -> str:
    """Name groups in a sentence, each with its figure."""
    names = []
    for group in groups[:MOST_NAMED]:
        name = f"{group.attribute}={group.group}"
        if group.segment:
            name += f" in {group.segment}"
        estimate: Estimate = getattr(group, figure)
        if not math.isnan(estimate.value):
            value = f"{estimate.value:.3g}"
            if not math.isnan(estimate.low):
                value += f", {estimate.low:.3g} to {estimate.high:.3g}"
            name += f" ({value})"
        names.append(name)
    further = len(groups) - MOST_NAMED
    if further > 0:
        names.append(f"and {further} more")
    return ", ".join(names)
