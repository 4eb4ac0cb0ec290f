"""Draws the share of each group as bars, with a mark where its target is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from fairqr.cli.output import console, number, percent, shortened, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

    Shares = Mapping[str, float]

BAR_WIDTH = 20
NAME_WIDTH = 24
MOST_GROUPS = 12  # rows of bars for an attribute

NEAR = 0.02
"""An exposure is near its target within two points."""


def draw_bars(lists: Mapping[str, Shares], target: Shares, digits: int = 0) -> RenderableType:
    """Draw the share of each group in several lists, with a mark where its target is.

    Args:
        lists: The shares of the groups, by the title of the list.
        target: The target of each group.
        digits: How many digits a percentage has after the point.
    """
    # In a narrow terminal bars and names are shorter, and figures whole from 40 columns.
    width = console().width
    bar_width = min(BAR_WIDTH, max(width // 4 - 6, 3))
    name_width = min(NAME_WIDTH, max(width - 2 * bar_width - 27, 4))

    target, lists = _with_most_exposure(target, lists)
    rows = []
    for group, aim in target.items():
        row: list[Any] = [f"  {shortened(group, name_width)}"]
        for shares in lists.values():
            share = shares[group]
            style = "green" if abs(share - aim) <= NEAR else "yellow"
            row.append(_bar(share, aim, bar_width, style))
            row.append(Text(percent(share, digits), style))
        row.append(Text(percent(aim, digits), "dim"))
        rows.append(row)

    heads: list[Any] = [""]
    for title in lists:
        heads += [title, number()]
    heads.append(number("target"))
    return table(heads, rows, gap=1)


def _bar(share: float, aim: float, width: int, style: str) -> Text:
    """Draw one bar, with a mark where the target is."""
    full = round(share * width)
    cells = []
    for position in range(width):
        cells.append(("█", style) if position < full else ("·", "dim"))
    mark = min(round(aim * width), width - 1)
    cells[mark] = ("┃", "bold white")
    return Text.assemble(*cells)


def _with_most_exposure(
    target: Shares, lists: Mapping[str, Shares]
) -> tuple[Shares, Mapping[str, Shares]]:
    """Return the target and the lists for the groups with most exposure, the others as one."""
    if len(target) <= MOST_GROUPS:
        return target, lists

    def largest_share(group: str) -> float:
        return max(shares[group] for shares in (target, *lists.values()))

    groups = sorted(target, key=largest_share, reverse=True)[: MOST_GROUPS - 1]
    shorter_lists = {title: _others_as_one(shares, groups) for title, shares in lists.items()}
    return _others_as_one(target, groups), shorter_lists


def _others_as_one(shares: Shares, groups: list[str]) -> Shares:
    """Return the shares of some groups, and of all others together."""
    named = {group: shares[group] for group in groups}
    remainder = sum(shares.values()) - sum(named.values())
    count = len(shares) - len(groups)
    return {**named, f"{count} others": max(0.0, remainder)}
