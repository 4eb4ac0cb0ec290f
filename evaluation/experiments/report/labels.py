"""Where the labels of points go, so that they cover neither each other nor a point."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Box", "place_labels"]

_RADII = (9.0, 16.0, 26.0, 38.0, 52.0, 68.0)
_ANGLES = 16
_MARKER = 5.0


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle, by its corners."""

    left: float
    bottom: float
    right: float
    top: float

    def overlap(self, other: Box) -> float:
        """Return the area that both cover."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(width, 0.0) * max(height, 0.0)

    def outside(self, other: Box) -> float:
        """Return the area of this box that the other one does not cover."""
        return (self.right - self.left) * (self.top - self.bottom) - self.overlap(other)


def place_labels(
    points: Sequence[tuple[float, float]],
    sizes: Sequence[tuple[float, float]],
    room: Box,
) -> list[Box]:
    """Return a box for the label of each point.

    Each label in turn takes the nearest place that is free; where there is none, the place where it
    covers least. Units are those of the points, meant as typographic points.

    Args:
        points: Where they are drawn.
        sizes: Width and height of each label.
        room: Where labels may be.
    """
    taken = [Box(x - _MARKER, y - _MARKER, x + _MARKER, y + _MARKER) for x, y in points]
    placed: list[Box] = []
    for (x, y), (width, height) in zip(points, sizes, strict=True):
        best: tuple[float, Box] | None = None
        for box in _places(x, y, width, height):
            covered = sum(box.overlap(other) for other in taken) + 4 * box.outside(room)
            if best is None or covered < best[0] - 1e-9:
                best = (covered, box)
            if covered == 0:
                break
        if best is not None:
            placed.append(best[1])
            taken.append(best[1])
    return placed


def _places(x: float, y: float, width: float, height: float) -> Iterator[Box]:
    """Yield boxes around a point, nearest first and to the right of it first."""
    for radius in _RADII:
        for step in range(_ANGLES):
            turn = (step + 1) // 2 * (-1) ** step
            angle = 2 * math.pi * turn / _ANGLES
            toward, up = math.cos(angle), math.sin(angle)
            middle = x + radius * toward + width / 2 * toward
            level = y + radius * up + height / 2 * up
            yield Box(
                middle - width / 2, level - height / 2, middle + width / 2, level + height / 2
            )
