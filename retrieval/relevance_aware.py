"""The most relevant ranking whose exposure is near its target.

A ranking of k documents has a discounted expected relevance, V = Σ_r d(r)·p(r), where p is the
estimated probability that a document is relevant, and an exposure ε. We look for the highest V
whose divergence from the target is within a tolerance. If no ranking meets the tolerance, we look
for the one nearest to the target, and among equally near ones for the highest V.

Documents with the same memberships (a *pattern*) differ only in p. Exchanging two of them leaves ε
unchanged, so the best ranking takes the documents of each pattern from the most relevant down. It
remains to find a sequence of patterns, in two steps:

1. Fill the ranks from first to last, each with the pattern of the highest p + λ·owed. A pattern is
   owed the exposure that the target has given to its groups so far, minus what they got. This is
   online dual descent on a relaxed problem with step λ. We fill at several prices λ, from 0
   (relevance alone) to one that only considers exposure.
2. Improve the best of these by exchanges as long as one helps: swap the patterns of two ranks, or
   put another pattern at a rank.

``tests/unit/retrieval/test_relevance_aware.py`` compares the result with an exhaustive search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fairqr.retrieval.exposure import LOG2, Discount, FloatArray, normalise

__all__ = ["Positions", "most_relevant"]

PRICES = np.array([0.0, *np.geomspace(1 / 32, 64, 14), 1e6])
STARTS = 2
"""How many of the filled rankings we try to improve by exchanges."""
EXCHANGED_RANKS = 50
"""The longest ranking for which we try exchanges. In longer ones each rank has little weight, so
filling alone comes near the target."""
MOST_EXCHANGES = 40
LEAST_GAIN = 1e-9

Positions = NDArray[np.intp]
Patterns = NDArray[np.intp]
"""The pattern at each rank; or several such sequences."""
Distance = Callable[[FloatArray, FloatArray], FloatArray]
"""Returns the divergence of exposures, shape (m, G), from a target, shape (G,); shape (m,)."""


def most_relevant(
    relevance: FloatArray,
    memberships: Sequence[FloatArray],
    targets: Sequence[FloatArray],
    *,
    tolerance: float,
    divergence: Distance,
    discount: Discount = LOG2,
    length: int,
) -> Positions:
    """Return the most relevant ranking whose exposure is near its target.

    With several attributes, the mean of their divergences counts. The divergence of an attribute is
    undefined if no document of a ranking has a label; we take such a ranking only as a last resort.

    Args:
        relevance: The probability that each document is relevant, shape (n,).
        memberships: One array (n, G_a) for each attribute a.
        targets: One array (G_a,) for each attribute.
        tolerance: The divergence that counts as near enough, at least 0.
        divergence: Measures how far exposures are from a target.
        discount: The weight of each rank.
        length: How many ranks to fill.

    Returns:
        The positions of min(length, n) documents, from the first rank to the last. Documents of
        equal relevance and memberships keep their order.
    """
    pool = _Pool(relevance, memberships, targets, tolerance, divergence, discount, length)
    if len(pool.patterns) < 2:
        # Only the relevance differs.
        return pool.positions(np.zeros(pool.length, dtype=np.intp))
    filled = pool.filled()
    distances = pool.distances(np.stack([pool.given(sequence) for sequence in filled]))
    expected = np.array([pool.expected(sequence) for sequence in filled])
    best = np.lexsort((-expected, distances.round(9)))
    if pool.length > EXCHANGED_RANKS:
        return pool.positions(filled[best[0]])
    ends = [_exchanged(pool, filled[start]) for start in best[:STARTS]]
    return pool.positions(min(ends, key=lambda end: (round(end[0], 9), end[1]))[2])


class _Pool:
    """The documents by pattern; of each pattern, the best that a ranking may need.

    Attributes:
        length: How many ranks there are to fill.
        patterns: The groups of all attributes side by side, shape (P, G).
        targets: The target of each attribute.
        groups: The columns of each attribute.
        relevance: The relevance of each pattern's documents, best first, padded with 0, shape
            (P, length + 2).
        available: How many documents each pattern has, at most the length, shape (P,).
    """

    def __init__(
        self,
        relevance: FloatArray,
        memberships: Sequence[FloatArray],
        targets: Sequence[FloatArray],
        tolerance: float,
        divergence: Distance,
        discount: Discount,
        length: int,
    ) -> None:
        members = np.concatenate([np.asarray(m, dtype=np.float64) for m in memberships], axis=1)
        chances = np.asarray(relevance, dtype=np.float64)
        self._tolerance, self._divergence = tolerance, divergence
        self.length = min(length, len(members))
        self.weights = discount.weights(self.length)
        by_relevance = np.argsort(-chances, kind="stable")
        places: dict[bytes, list[int]] = {}
        for place, row in zip(by_relevance.tolist(), members[by_relevance], strict=True):
            held = places.setdefault(row.tobytes(), [])
            if len(held) < self.length:
                held.append(place)
        self._places = list(places.values())
        self.patterns = members[[held[0] for held in self._places]].reshape(-1, members.shape[1])
        self.available = np.array([len(held) for held in self._places], dtype=np.intp)
        self.relevance = np.zeros((len(self._places), self.length + 2))
        for row, held in zip(self.relevance, self._places, strict=True):
            row[: len(held)] = chances[held]
        ends = np.cumsum([np.shape(m)[1] for m in memberships]).tolist()
        self.groups = [slice(a, b) for a, b in zip([0, *ends], ends, strict=False)]
        self.targets = [np.asarray(target, dtype=np.float64) for target in targets]

    def positions(self, sequence: Patterns) -> Positions:
        """Return the documents of a sequence of patterns."""
        documents = [iter(held) for held in self._places]
        return np.array([next(documents[pattern]) for pattern in sequence], dtype=np.intp)

    def filled(self) -> Patterns:
        """Return the sequence filled at each price, shape (prices, length)."""
        target = np.concatenate(self.targets)
        # A document exposes an attribute through its labels; without a label it exposes nothing.
        given = [self.patterns[:, columns].sum(axis=1) for columns in self.groups]
        shares = np.repeat(np.stack(given, axis=1), [len(t) for t in self.targets], axis=1)
        owed_after = target * shares - self.patterns
        rows = np.arange(len(PRICES))
        every = np.arange(len(self.patterns))
        due = np.zeros((len(PRICES), len(target)))
        placed = np.zeros((len(PRICES), len(self.patterns)), dtype=np.intp)
        sequences = np.zeros((len(PRICES), self.length), dtype=np.intp)
        for rank, weight in enumerate(self.weights.tolist()):
            owed = (due + weight * target) @ self.patterns.T
            worth = self.relevance[every, placed] + PRICES[:, None] * owed
            worth[placed == self.available] = -np.inf
            chosen = worth.argmax(axis=1)
            sequences[:, rank] = chosen
            placed[rows, chosen] += 1
            due += weight * owed_after[chosen]
        return np.unique(sequences, axis=0)

    def expected(self, sequence: Patterns) -> float:
        """Return V of a sequence."""
        earlier = np.tril(sequence[:, None] == sequence, -1).sum(axis=1)
        return float(self.weights @ self.relevance[sequence, earlier])

    def given(self, sequence: Patterns) -> FloatArray:
        """Return the exposure that a sequence gives to each group, not normalised."""
        return np.asarray(self.weights @ self.patterns[sequence])

    def distances(self, given: FloatArray) -> FloatArray:
        """Return how far exposures, shape (…, G), are from the target, at least the tolerance."""
        total, defined = np.zeros(given.shape[:-1]), np.zeros(given.shape[:-1])
        for target, columns in zip(self.targets, self.groups, strict=True):
            exposure = normalise(given[..., columns])
            known = exposure.any(axis=-1)
            total += np.where(known, self._divergence(target, exposure), 0.0)
            defined += known
        mean = np.divide(total, defined, out=np.zeros_like(total), where=defined > 0)
        # An undefined divergence is worse than any defined one; smoothing bounds those.
        return np.asarray(np.maximum(mean, self._tolerance) + 1e3 * (len(self.targets) - defined))


def _exchanged(pool: _Pool, sequence: Patterns) -> tuple[float, float, Patterns]:
    """Improve a sequence by exchanges, each time by the best possible one.

    Returns:
        The distance from the target, −V, and the sequence.
    """
    now = sequence.copy()
    given, expected = pool.given(now), pool.expected(now)
    distance = float(pool.distances(given))
    first, second = np.triu_indices(len(now), 1)
    for _ in range(MOST_EXCHANGES):
        replacing, swapping = _gains(pool, now, first, second)
        weights, patterns = pool.weights, pool.patterns
        # The change in exposure by each exchange: of a rank and a pattern, and of two ranks.
        moved = weights[:, None, None] * (patterns - patterns[now][:, None])
        apart = (weights[first] - weights[second])[:, None]
        turned = apart * (patterns[now[second]] - patterns[now[first]])
        changes = np.concatenate([moved.reshape(-1, patterns.shape[1]), turned])
        gains = np.concatenate([replacing.ravel(), swapping])
        distances = pool.distances(np.maximum(given + changes, 0.0))
        distances[np.isneginf(gains)] = np.inf
        least = distances.min()
        nearest = np.flatnonzero(distances <= least + LEAST_GAIN)
        best = int(nearest[gains[nearest].argmax()])
        if distance - least < LEAST_GAIN and (
            distance - least < -LEAST_GAIN or gains[best] < LEAST_GAIN
        ):
            break
        if best < replacing.size:
            rank, pattern = divmod(best, len(patterns))
            now[rank] = pattern
        else:
            one, other = first[best - replacing.size], second[best - replacing.size]
            now[one], now[other] = now[other], now[one]
        given, expected = given + changes[best], expected + float(gains[best])
        distance = float(distances[best])
    return distance, -expected, now


def _gains(
    pool: _Pool, now: Patterns, first: Patterns, second: Patterns
) -> tuple[FloatArray, FloatArray]:
    """Return how much each exchange adds to V.

    An exchange shifts the later documents of a pattern by one: where a document leaves, the next
    one takes its rank. So the new V is a sum over the ranks before, at and after the exchange, with
    the documents as they are, one later, or one earlier.

    Args:
        pool: The documents.
        now: The sequence, shape (length,).
        first: The upper rank of each swap.
        second: The lower rank of each swap.

    Returns:
        The gain of another pattern at a rank, shape (length, P), and of each swap; −inf if an
        exchange changes nothing, or needs a document that does not exist.
    """
    length, weights, chances = len(now), pool.weights, pool.relevance
    ranks, every = np.arange(length), np.arange(len(chances))
    used = np.zeros((length, len(chances)))
    used[ranks, now] = weights
    # How many documents of each pattern are above each rank.
    above = np.zeros((length + 1, len(chances)), dtype=np.intp)
    np.cumsum(used > 0, axis=0, out=above[1:])

    def sums(shift: int) -> FloatArray:
        """Return the sum of d·p above each rank, with each document `shift` places later."""
        total = np.zeros((length + 1, len(chances)))
        np.cumsum(used * chances[every, np.maximum(above[:-1] + shift, 0)], axis=0, out=total[1:])
        return total

    as_is, later, earlier = sums(0), sums(1), sums(-1)
    own = as_is[-1]
    at = weights[:, None] * chances[every, above[:-1]]
    added = as_is[:-1] + at + (later[-1] - later[1:]) - own
    taken = as_is[ranks, now] + (earlier[-1, now] - earlier[ranks + 1, now]) - own[now]
    replacing = added + taken[:, None]
    replacing[:, above[-1] == pool.available] = -np.inf
    replacing[ranks, now] = -np.inf
    up, down = now[second], now[first]
    # The pattern that goes down loses a document at the upper rank and has one more at the lower.
    between = earlier[second, down] - earlier[first + 1, down]
    at_second = weights[second] * chances[down, above[second, down] - 1]
    swapping = between + at_second - (as_is[second + 1, down] - as_is[first, down])
    between = later[second, up] - later[first + 1, up]
    at_first = weights[first] * chances[up, above[first, up]]
    swapping += between + at_first - (as_is[second + 1, up] - as_is[first, up])
    swapping[up == down] = -np.inf
    return replacing, swapping
