"""Windows that slide over a list from its end to its begin, so that the best items rise."""

from __future__ import annotations

from fairqr.base.errors import InputError

__all__ = ["windows"]


def windows(n: int, size: int, step: int) -> list[range]:
    """Return the windows over a list, in the order in which they are ranked.

    The first one covers the last ``size`` positions, each next one begins ``step`` nearer to the
    front, and the last one begins at 0 (RankGPT, Sun et al. 2023). All have the same size, so that
    the last one may overlap its neighbour by more than the others do. With rankings that are right
    the best ``size - step`` of all items come to the front, in their order.

    Args:
        n: How many items the list has.
        size: Positions of a window; a list that is not longer has one window.
        step: In [1, size - 1].

    Returns:
        Ranges of positions; none for fewer than two items, of which there is nothing to rank.

    Raises:
        InputError: ``size`` or ``step`` is out of its range.
    """
    if size < 2:
        raise InputError(f"A window has at least 2 items, not {size}.")
    if not 1 <= step < size:
        raise InputError(
            f"The step of windows of {size} must be from 1 to {size - 1}, not {step}; half of the "
            "window is usual."
        )
    if n < 2:
        return []
    size = min(size, n)
    return [range(begin, begin + size) for begin in [*range(n - size, 0, -step), 0]]
