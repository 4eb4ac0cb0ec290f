"""How the sentences and tables of an audit's report name groups, verdicts and differences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fairqr.evaluation.audit.calibration import GroupCalibration
from fairqr.evaluation.audit.figures import REASONS, GroupFigures
from fairqr.evaluation.estimates import Estimate
from fairqr.evaluation.reports import text
from fairqr.retrieval.fairness.dimension import TIMES

VERDICTS: Mapping[str, str] = {
    "less": "gets less",
    "more": "gets more",
    **{name: f"cannot tell: {reason}" for name, reason in REASONS.items()},
}
"""What a table says of the verdict on a group; the verdict that leads a report stands first."""


def difference_of(group: GroupFigures) -> tuple[Estimate, str]:
    """Return how much ``less`` or ``more`` than its target share a group gets, as it was tested.

    The difference is not above 0 where the group gets something between its attainable exposure
    and its target.
    """
    test = group.test
    if not test.value < 0:
        return test, "less"
    if group.tested == "ranking_gap":
        return replace(group.excess, p=test.p), "more"
    return replace(test, value=-test.value, low=-test.high, high=-test.low), "more"


def reference_of(group: GroupFigures, side: str) -> str:
    """Return what a difference of :func:`difference_of` is to: the end of a sentence after "than".

    Args:
        group: The figures of the group.
        side: ``less`` or ``more``.
    """
    if group.tested != "ranking_gap":
        return "its target"
    if side == "more":
        return "both its target and its relevant documents call for"
    return "its relevant documents could give it"


def name_of(group: GroupFigures | GroupCalibration) -> str:
    """Return a group's name with its attribute, unless it combines several."""
    name = text.plain(group.group)
    if TIMES in group.attribute:
        return name
    return f"{name} ({text.plain(group.attribute)})"


def in_points(amount: float, side: str = "") -> text.Markdown:
    """Write how many points, and whether that is less or more than the target share."""
    if side and not amount > 0:
        return text.Markdown(text.NOTHING)
    number = text.percent(amount).rstrip("%")
    return text.Markdown(f"{number} {side}".strip())


def points_of(group: GroupFigures) -> str:
    """Write by how many points a group gets less, or more, than its target share."""
    difference, side = difference_of(group)
    return f"{name_of(group)} gets {in_points(difference.value)} points {side}"


def ends_of(estimate: Estimate, form: str) -> str:
    """Write the ends of an interval behind a figure: `` (low to high)``; nothing if it has none.

    Args:
        estimate: The figure.
        form: ``points``, ``percent``, or a format such as ``.2f``.
    """
    if math.isnan(estimate.low):
        return ""

    def written(end: float) -> str:
        if form == "points":
            return in_points(end)
        return text.percent(end) if form == "percent" else format(end, form)

    return f" ({written(estimate.low)} to {written(estimate.high)})"


def listing(texts: Sequence[str], most: int = 5) -> str:
    """Return the first texts as a sentence lists them, and how many others there are."""
    names = list(texts)
    rest = len(texts) - most
    if rest > 0:
        others = "other" if rest == 1 else "others"
        names = [*texts[:most], f"{rest:,} {others}"]
    head = ", ".join(names[:-1])
    return f"{head} and {names[-1]}" if head else names[-1]


def paragraph(sentences: Iterable[str]) -> list[str]:
    """Return sentences as one paragraph of plain text; none if there are none."""
    words = text.plain(" ".join(sentences))
    return [words] if words else []


def in_order_of_names(groups: Iterable[GroupFigures]) -> dict[str, list[GroupFigures]]:
    """Return groups by attribute, in the order of the attributes' names."""
    by_attribute: dict[str, list[GroupFigures]] = {}
    for group in groups:
        by_attribute.setdefault(group.attribute, []).append(group)
    names = sorted(by_attribute, key=str.lower)
    return {name: by_attribute[name] for name in names}
