"""Drawing from many items with probability proportional to their weight."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairqr.retrieval.fairness.exposure import FloatArray

BLOCKS = 1 << 14
"""This many sums are fast to build and to search; adding up a million one by one is not."""


@dataclass(frozen=True, slots=True, eq=False)
class WeightTable:
    """Independent draws: first a block of neighbouring items by its sum, then an item in it.

    Attributes:
        blocks: The weights, shape (b, c), padded with zeros; item j is at (j // c, j % c).
        cumulative: Sums over the blocks, shape (b,). Anything below 1e−16 of the last sum is lost
            in rounding; it would be drawn about as rarely.
    """

    blocks: FloatArray
    cumulative: FloatArray

    @classmethod
    def of(cls, log_weights: FloatArray, without: NDArray[np.intp], unit: float) -> WeightTable:
        """Prepare draws.

        Args:
            log_weights: ln w, shape (n,), finite.
            without: The positions of items that are never drawn, whatever their weight.
            unit: ln w of the heaviest of the other items.
        """
        n = log_weights.size
        length = -(-n // BLOCKS)
        weights = np.zeros(-(-n // length) * length)
        used = weights[:n]
        with np.errstate(over="ignore"):
            np.subtract(log_weights, unit, out=used)
            np.exp(used, out=used)
        used[without] = 0
        blocks = weights.reshape(-1, length)
        return cls(blocks, blocks.sum(axis=1).cumsum())

    @property
    def total(self) -> float:
        """The sum of all weights to draw from, in units of the heaviest; at least 1."""
        return float(self.cumulative[-1])

    def draw(self, shape: tuple[int, int], stream: np.random.Generator) -> NDArray[np.intp]:
        """Return positions of items; an item may be drawn repeatedly."""
        reached = self.cumulative.searchsorted(stream.random(shape) * self.total, side="right")
        # Rounding may reach the total, which belongs to the last block with any weight.
        block = np.minimum(reached, self.cumulative.searchsorted(self.total))
        length = self.blocks.shape[1]
        if length == 1:
            return block
        within = self.blocks[block].cumsum(axis=-1)
        total = within[..., -1:]
        passed = (within <= stream.random((*shape, 1)) * total) & (within < total)
        return np.asarray(block * length + passed.sum(axis=-1))
