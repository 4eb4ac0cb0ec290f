"""A ranking: document ids with scores, in a repeatable order."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Ranking", "best_positions"]


def best_positions(
    ids: Sequence[str], scores: Sequence[float], *, descending: bool = False
) -> list[int]:
    """Return the positions of documents from best to worst, equal scores in order of id.

    Args:
        ids: The documents.
        scores: As many scores.
        descending: Put the greatest id first among equal scores.
    """
    values = np.asarray(scores, dtype=np.float64)
    order = np.argsort(-values, kind="stable")
    ordered = values[order]
    positions: list[int] = order.tolist()
    # Ids are compared only where scores are equal: that is rare, and texts are slow to compare.
    begins = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    if len(begins) + 1 < len(positions):
        bounds = [0, *begins.tolist(), len(positions)]
        for start, end in itertools.pairwise(bounds):
            if end - start > 1:
                positions[start:end] = sorted(
                    positions[start:end], key=ids.__getitem__, reverse=descending
                )
    return positions


@dataclass(frozen=True, slots=True)
class Ranking:
    """Documents from best to worst.

    Attributes:
        ids: Distinct document ids.
        scores: As many scores, not increasing. Equal scores stand in order of id.
    """

    ids: list[str]
    scores: list[float]

    @classmethod
    def of(cls, scores: Mapping[str, float] | Iterable[tuple[str, float]]) -> Ranking:
        """Sort documents by score, and equal scores by id."""
        known = scores if isinstance(scores, Mapping) else dict(scores)
        ids, values = list(known), list(known.values())
        order = best_positions(ids, values)
        return cls([ids[position] for position in order], [values[position] for position in order])

    def __len__(self) -> int:
        return len(self.ids)

    def top(self, n: int) -> Ranking:
        """Return the first n documents."""
        return Ranking(self.ids[:n], self.scores[:n])

    def reordered(self, positions: Sequence[int]) -> list[str]:
        """Return the ids that stand at these positions, in that order."""
        return [self.ids[position] for position in positions]
