"""Conditions on the figures of an audit, such as ``impact_ratio < 0.8``, for checks in CI."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fairqr.base.errors import InputError, one_line
from fairqr.evaluation.audit.estimates import Estimate
from fairqr.evaluation.audit.figures import ESTIMATES, GroupFigures
from fairqr.evaluation.audit.measuring import AuditFigures

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
}
_WRITTEN = re.compile(r"\s*([a-z_]+)\s*(<=|<|>=|>)\s*(\S+)\s*")
LEANS = ("lean", "lack", "ranking_gap")
TESTED = (*LEANS, "exposure_ratio", "impact_ratio")
"""The figures that a verdict is about: ratios follow that of the lean."""
SHOWN = 5
"""How many groups one sentence names."""


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
        estimate: Estimate = getattr(group, self.figure)
        meets = OPERATORS[self.comparison]
        ends = [estimate.low, estimate.high]
        if self.figure in LEANS and all(map(math.isnan, ends)):
            ends = [estimate.value]  # There is a verdict, and every query says the same.
        values = [estimate.value, *(ends if sure else [])]
        # A comparison with NaN is never true.
        return all(meets(value, self.line) for value in values)


def parse_condition(text: str) -> Condition:
    """Read a condition.

    Raises:
        InputError: It is none.
    """
    found = _WRITTEN.fullmatch(text)
    try:
        line = float(found[3]) if found else math.nan
    except ValueError:
        line = math.nan
    if found is None or not math.isfinite(line):
        raise InputError(
            f"'{one_line(text, 80)}' is not a condition; write a figure, a comparison and a "
            "number, such as 'impact_ratio < 0.8'."
        )
    if found[1] not in ESTIMATES:
        raise InputError(
            f"There is no figure '{one_line(found[1], 60)}' of a group; choose among "
            f"{', '.join(ESTIMATES)}."
        )
    return Condition(found[1], found[2], line)


class Gate(NamedTuple):
    """What became of conditions, in sentences.

    Attributes:
        broken: The conditions that hold for a group.
        doubtful: The conditions of which nobody can tell whether they hold, and why.
    """

    broken: list[str]
    doubtful: list[str]


def check(conditions: Sequence[Condition], figures: AuditFigures, *, sure: bool) -> Gate:
    """Check conditions; one that neither holds nor is doubtful does not hold for any group.

    Args:
        conditions: What must not hold.
        figures: Of the audit.
        sure: Whether only what is sure counts; see :meth:`Condition.holds`. A condition that the
            figure of a group meets, but not surely, is doubtful.
    """
    gate = Gate([], [])
    if conditions and figures.too_many_failed:
        share = figures.counts.failed_share
        gate.doubtful.append(f"No condition was checked: {share:.0%} of the queries failed.")
        return gate
    for condition in conditions:
        found = [(it, getattr(it, condition.figure)) for it in figures.groups]
        known = [(it, figure) for it, figure in found if not math.isnan(figure.value)]
        met = [pair for pair in known if condition.holds(pair[0], sure=sure)]
        maybe = [pair for pair in known if condition.holds(pair[0], sure=False)]
        if not known:
            gate.doubtful.append(f"'{condition}' was not checked: no group has this figure.")
        elif met:
            gate.broken.append(f"'{condition}' holds for {_named(met)}.")
        elif maybe:
            why = ", ".join(sorted({_REASONS.get(it.verdict, _OPEN) for it, _ in maybe}))
            gate.doubtful.append(
                f"Nobody can tell whether '{condition}' holds for {_named(maybe)}: {why}."
            )
        elif sure and all(math.isnan(it.test.value + it.test.low) for it, _ in known):
            gate.doubtful.append(f"'{condition}' cannot be told: {_REASONS['too_few']}.")
    return gate


_REASONS = {
    "cannot_tell": "its difference may be chance",
    "within_error": "the estimate of relevance may be off by as much",
    "saturated": "there are more relevant documents than were looked at",
    "too_few": "the audit has too few queries",
}
"""Why what a group's figure says is not sure, by its verdict."""
_OPEN = "its interval reaches beyond, or missing labels could turn the verdict"


def _named(met: Sequence[tuple[GroupFigures, Estimate]]) -> str:
    named = [f"{it.attribute}={it.group} ({_shown(found)})" for it, found in met[:SHOWN]]
    return ", ".join(named) + (f", and {len(met) - SHOWN} more" if met[SHOWN:] else "")


def _shown(estimate: Estimate) -> str:
    if math.isnan(estimate.low):
        return f"{estimate.value:.3g}"
    return f"{estimate.value:.3g}, {estimate.low:.3g} to {estimate.high:.3g}"
