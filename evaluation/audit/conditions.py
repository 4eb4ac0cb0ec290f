"""Conditions on the figures of an audit, such as ``impact_ratio < 0.8``, for checks in CI."""

from __future__ import annotations

import math
import operator
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from fairqr.base.errors import InputError, one_line
from fairqr.evaluation.audit.figures import ESTIMATES, GroupFigures
from fairqr.evaluation.audit.measuring import AuditFigures

OPERATORS = {"<=": operator.le, "<": operator.lt, ">=": operator.ge, ">": operator.gt}
_WRITTEN = re.compile(r"\s*([a-z_]+)\s*([<>]=?)\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d\d?)?)\s*")
LEANS = ("lean", "lack", "ranking_gap")
TESTED = (*LEANS, "exposure_ratio", "impact_ratio")
"""The figures that a verdict is about: ratios follow that of the lean."""
OF_ANSWERS = ("exposure", "absent")
"""The figures that rest on what was answered alone, and not on what is relevant."""
SHOWN = 5
"""How many groups one sentence names."""

REASONS = {
    "cannot_tell": "its difference may be chance",
    "within_error": "the estimate of relevance may be off by as much",
    "saturated": "there are more relevant documents than were looked at",
    "too_few": "the audit has too few queries",
}
"""Why what a group's figure says is not sure, by its verdict."""
OPEN = "its interval reaches beyond, or missing labels could turn the verdict"


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
            sure: Whether the whole interval must meet it, too. For a figure that a verdict is about
                there must be one, which missing labels alone could not make wrong.
        """
        is_tested = self.figure in TESTED and not math.isnan(group.test.value)
        if sure and is_tested and (group.flips or not group.is_sure):
            return False
        estimate = getattr(group, self.figure)
        values = [estimate.value, estimate.low, estimate.high] if sure else [estimate.value]
        if self.figure in LEANS and math.isnan(estimate.low):
            values = [estimate.value]  # There is a verdict, and every query says the same.
        # A comparison with NaN is never true.
        return all(OPERATORS[self.comparison](value, self.line) for value in values)


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
        A sentence on each condition that holds for a group, and on each that could not be decided
        for all groups, or for those of an attribute, with the reason.
    """
    broken, doubtful = list[str](), list[str]()
    if conditions and figures.too_many_failed:
        return [], ["No condition was checked: too many queries failed."]
    attributes = defaultdict[str, list[GroupFigures]](list)
    for group in figures.groups:
        attributes[group.attribute].append(group)
    for it in conditions:
        maybe = [one for one in figures.groups if it.holds(one, sure=False)]
        met = [one for one in maybe if it.holds(one, sure=sure)]
        if met := met + [one for one in figures.segments if it.holds(one, sure=True)]:
            broken.append(f"'{it}' holds for {_named(it.figure, met)}.")
        elif maybe:
            why = ", ".join(sorted({REASONS.get(group.verdict, OPEN) for group in maybe}))
            doubtful.append(f"'{it}' may hold for {_named(it.figure, maybe)}: {why}.")
        met_by, unchecked = {one.attribute for one in maybe}, defaultdict[str, list[str]](list)
        for name in attributes.keys() - met_by:
            unchecked[_undecided(it.figure, attributes[name])].append(name)
        unchecked.pop("", None)
        for why, names in unchecked.items():
            doubtful.append(f"'{it}' was not checked for {', '.join(sorted(names))}: {why}.")
    return broken, doubtful


def _undecided(figure: str, groups: Sequence[GroupFigures]) -> str:
    """Return why it is not known that a figure of an attribute's groups does not meet a line."""
    found = [getattr(one, figure) for one in groups]
    if all(math.isnan(it.value) for it in found):
        return "no group has this figure"
    if figure not in OF_ANSWERS and any(one.verdict == "saturated" for one in groups):
        return REASONS["saturated"]
    # A lean that is the same in every query has no interval, and yet a test.
    is_known = any(one.is_sure for one in groups) or not all(math.isnan(it.low) for it in found)
    return "" if is_known else REASONS["too_few"]


def _named(figure: str, groups: Sequence[GroupFigures]) -> str:
    named = []
    for group in groups[:SHOWN]:
        it = getattr(group, figure)
        ends = "" if math.isnan(it.low) else f", {it.low:.3g} to {it.high:.3g}"
        where = f" in {group.segment}" if group.segment else ""
        named.append(f"{group.attribute}={group.group}{where} ({it.value:.3g}{ends})")
    return ", ".join(named) + (f", and {len(groups) - SHOWN} more" if groups[SHOWN:] else "")
