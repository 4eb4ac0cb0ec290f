"""A ranking: document ids with scores, in a repeatable order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Ranking"]


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
        pairs = scores.items() if isinstance(scores, Mapping) else scores
        ordered = sorted(pairs, key=lambda pair: (-pair[1], pair[0]))
        return cls([pair[0] for pair in ordered], [pair[1] for pair in ordered])

    def __len__(self) -> int:
        return len(self.ids)

    def top(self, n: int) -> Ranking:
        """Return the first n documents."""
        return Ranking(self.ids[:n], self.scores[:n])

    def reordered(self, positions: Sequence[int]) -> list[str]:
        """Return the ids that stand at these positions, in that order."""
        return [self.ids[position] for position in positions]
