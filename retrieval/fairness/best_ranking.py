"""The ranking of highest J, the objective of :mod:`fairqr.retrieval.fairness.objective`.

Documents with the same memberships (a *pattern*) differ only in p. Exchanging two of them leaves ε
unchanged, so a ranking takes the documents of each pattern in one order, usually from the most
relevant down. It remains to find a sequence of patterns:

1. Fill the ranks from first to last, each with the pattern of the highest p + λ·deficit. The
   deficit is the exposure that the target has given to its groups so far, minus what they got. This
   is online dual descent on a relaxed problem with step λ. We fill at sixteen prices λ, from 0
   (relevance alone) to one that only considers exposure.
2. Improve the best of these by exchanges as long as J grows: swap the patterns of two ranks, or put
   another pattern at a rank.

If there are few sequences, we look at each of them instead. Ties go to the first position.
``tests/unit/retrieval/test_objective.py`` compares the result with an exhaustive search.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from fairqr.retrieval.fairness.exposure import Discount, FloatArray, distinct_rows, exposure
from fairqr.retrieval.fairness.objective import DIGITS, Positions, RankingObjective, fairness

PRICES = np.array([0.0, *np.geomspace(1 / 32, 64, 14), 1e6])
STARTS = 800
"""How many filled rankings we try to improve by exchanges, times the square of their length, as the
work grows: two of 20 ranks, eight of 10. Shorter rankings have more dead ends."""
EVERY = 10_000
"""Up to this many sequences of patterns we look at each of them, and fill none."""
EXCHANGED_RANKS = 50
"""The longest ranking for which we try exchanges. In longer ones each rank has little weight, so
filling alone comes near the best."""
MOST_EXCHANGES = 40
LEAST_GAIN = 1e-4
"""What an exchange must add to log J; many exchanges would gain less. At a high weight, it is less:
then small steps toward the target count."""
LEAST = 1e-12
"""Smaller values of V and F count as this, so that they have a logarithm."""

Patterns = NDArray[np.intp]
"""The pattern at each rank; or several such sequences."""


def best_ranking(objective: RankingObjective, order: Positions | None = None) -> Positions:
    """Return the positions of the documents of the ranking of highest J, from the first rank on.

    Args:
        objective: The pool, the targets, and how many ranks to fill.
        order: All positions in the order in which documents of the same pattern are taken; by
            default the order of relevance, ties by position.
    """
    pool = _Pool(objective, order)
    if len(pool.patterns) < 2 or not pool.length:  # Only the relevance differs.
        return pool.positions(np.zeros(pool.length, dtype=np.intp))
    is_small = len(pool.patterns) ** pool.length <= EVERY
    sequences = pool.every() if is_small else pool.filled()
    relevance = pool.relevance_of(sequences)
    values = pool.values(pool.given(sequences), relevance)
    best = np.lexsort((-relevance.round(DIGITS), -values))
    if is_small or pool.length > EXCHANGED_RANKS:
        return pool.positions(sequences[best[0]])
    starts = best[: max(2, STARTS // pool.length**2)]
    ends = [_improved(pool, sequences[start]) for start in starts]
    return pool.positions(max(ends, key=lambda end: end[:2])[2])


def highest_exposure(memberships: FloatArray, discount: Discount, length: int) -> FloatArray:
    """Return the most exposure that each group could get alone, shape (G,).

    All its documents stand first, and others fill the remaining ranks.

    Args:
        memberships: The memberships of the documents to rank, shape (n, G).
        discount: The weight of each rank.
        length: How many ranks there are.
    """
    weights = discount.weights(min(length, len(memberships)))
    # Those with the largest share of the group first.
    first = -np.sort(-memberships, axis=0)[: len(weights)]
    return np.asarray(weights @ first / (weights.sum() or 1.0))


def attainable_exposure(
    memberships: FloatArray, target: FloatArray, discount: Discount, length: int
) -> FloatArray:
    """Return the exposure that documents could give to each group, shape (G,).

    That is the target itself where each group could reach its share; that ranks are whole is not
    held against an engine. Otherwise it is the exposure of the ranking that comes nearest to the
    target; zeros if no document has a label.

    Args:
        memberships: The memberships of the documents that are relevant, shape (n, G).
        target: ε*, shape (G,).
        discount: The weight of each rank.
        length: How many ranks there are.
    """
    if (highest_exposure(memberships, discount, length) >= target - 10**-DIGITS).all():
        return target
    alike = np.ones(len(memberships))
    nearest = RankingObjective(alike, [memberships], [target], length, np.inf, discount)
    return exposure(memberships[best_ranking(nearest)], discount)


class _Pool:
    """The documents by pattern; of each pattern, the first that a ranking may need.

    Attributes:
        length: How many ranks there are to fill.
        discounts: The discount of each rank, and 0 for the rank below the last.
        weights: The same as shares of the highest Σ d·p; so sums with probabilities are V.
        patterns: The groups of all attributes side by side, shape (P, G).
        available: How many documents each pattern has, at most the length, shape (P,).
        documents: The positions of each pattern's documents as they are taken, shape (P, length).
        relevance: Their relevance, padded with 0, shape (P, length + 2).
    """

    def __init__(self, objective: RankingObjective, order: Positions | None) -> None:
        self.objective = objective
        probabilities = np.asarray(objective.relevance, dtype=np.float64).round(DIGITS)
        if not probabilities.any():
            probabilities = np.ones_like(probabilities)  # V is 1 for all rankings
        members = np.concatenate(objective.memberships, axis=1, dtype=np.float64)
        by_relevance = np.argsort(-probabilities, kind="stable")
        taken = by_relevance if order is None else order
        self.length = min(objective.length, len(members))
        discounts = objective.discount.weights(self.length)
        best = by_relevance[: self.length]
        most = float((discounts * probabilities[best]).sum())
        self.discounts = np.append(discounts, 0.0)
        self.weights = self.discounts / (most or 1.0)
        self.highest = float(probabilities.max(initial=0.0)) or 1.0
        self.patterns, numbers = distinct_rows(members[taken])
        nth = _earlier(numbers)
        needed = nth < self.length
        places = numbers[needed], nth[needed]
        self.available = np.bincount(numbers[needed], minlength=len(self.patterns))
        self.documents = np.zeros((len(self.patterns), self.length), dtype=np.intp)
        self.documents[places] = taken[needed]
        self.relevance = np.zeros((len(self.patterns), self.length + 2))
        self.relevance[places] = probabilities[self.documents[places]]
        self.by_relevance = numbers[np.argsort(taken)[best]]
        ends = np.cumsum([len(target) for target in objective.targets]).tolist()
        self.attributes = [slice(a, b) for a, b in zip([0, *ends], ends, strict=False)]

    def positions(self, sequence: Patterns) -> Positions:
        """Return the documents of a sequence of patterns."""
        return np.asarray(self.documents[sequence, _earlier(sequence)])

    def every(self) -> Patterns:
        """Return all sequences that there are documents for, shape (m, length)."""
        count = len(self.patterns)
        found = np.indices((count,) * self.length).reshape(self.length, -1).T
        needed = (found[..., None] == np.arange(count)).sum(axis=1)
        return np.asarray(found[(needed <= self.available).all(axis=1)])

    def filled(self) -> Patterns:
        """Return the sequences filled at each price, and by relevance alone, shape (m, length)."""
        target = np.concatenate(self.objective.targets)
        # A document exposes an attribute through its labels; without a label it exposes nothing.
        labelled = [self.patterns[:, columns].sum(axis=1) for columns in self.attributes]
        sizes = [len(own) for own in self.objective.targets]
        deficit_after = (
            target * np.repeat(np.stack(labelled, axis=1), sizes, axis=1) - self.patterns
        )
        # A price λ as two shares, so that rounding means the same at all prices.
        of_deficit = (PRICES / (1 + PRICES))[:, None]
        of_relevance = (1 - of_deficit) / self.highest
        rows, every = np.arange(len(PRICES)), np.arange(len(self.patterns))
        deficit = np.zeros((len(PRICES), len(target)))
        placed = np.zeros((len(PRICES), len(self.patterns)), dtype=np.intp)
        sequences = np.zeros((len(PRICES), self.length), dtype=np.intp)
        for rank, weight in enumerate(self.discounts[:-1].tolist()):
            of_pattern = (deficit + weight * target) @ self.patterns.T
            worth = (of_relevance * self.relevance[every, placed] + of_deficit * of_pattern).round(
                DIGITS
            )
            worth[placed == self.available] = -np.inf
            chosen = worth.argmax(axis=1)
            sequences[:, rank] = chosen
            placed[rows, chosen] += 1
            deficit += weight * deficit_after[chosen]
        found = {*map(tuple, sequences.tolist()), tuple(self.by_relevance.tolist())}
        return np.array(sorted(found))

    def relevance_of(self, sequences: Patterns) -> FloatArray:
        """Return V of sequences of shape (…, length), shape (…)."""
        shown = self.relevance[sequences, _earlier(sequences)]
        return np.asarray((self.weights[:-1] * shown).sum(axis=-1))

    def given(self, sequences: Patterns) -> FloatArray:
        """Return what sequences of shape (…, length) give to each group, shape (G, …)."""
        return np.asarray((self.discounts[:-1] * self.patterns.T[:, sequences]).sum(axis=-1))

    def values(self, given: FloatArray, relevance: FloatArray) -> FloatArray:
        """Return what to maximise, rounded: log J, or log F if w is infinite.

        Each attribute without exposure makes it lower than any ranking with more attributes has.

        Args:
            given: Exposures, shape (G, …), not normalised.
            relevance: V of the same rankings, shape (…).
        """
        exposures = [given[columns] for columns in self.attributes]
        goal = self.objective
        fair, undefined = fairness(exposures, goal.targets, goal.shares)
        value, worst = np.log(np.maximum(fair, LEAST)), 1.0
        if np.isfinite(goal.power):
            value = goal.power * value + np.log(np.maximum(relevance, LEAST))
            worst += goal.power
        return np.asarray((value + worst * np.log(LEAST) * undefined).round(DIGITS))


def _earlier(sequences: Patterns) -> Patterns:
    """Return how many places before each one have the same pattern; both of shape (…, length)."""
    rows = np.atleast_2d(sequences)
    # One flat sequence, in which no two rows share a pattern.
    apart = (rows + np.arange(len(rows))[:, None] * (rows.max(initial=0) + 1)).ravel()
    order, places = np.argsort(apart, kind="stable"), np.arange(len(apart))
    grouped, starts = apart[order], places.copy()
    starts[1:][grouped[1:] == grouped[:-1]] = 0
    earlier = np.empty_like(apart)
    earlier[order] = places - np.maximum.accumulate(starts)
    return np.asarray(earlier.reshape(sequences.shape))


def _improved(pool: _Pool, sequence: Patterns) -> tuple[float, float, Patterns]:
    """Improve a sequence by exchanges, each time by the best possible one.

    Returns:
        Its value and V, both rounded, and the sequence.
    """
    now, given = sequence.copy(), pool.given(sequence)
    relevance = pool.relevance_of(sequence)
    value, relevance = pool.values(given, relevance), relevance.round(DIGITS)
    groups = np.ascontiguousarray(pool.patterns.T)
    least = LEAST_GAIN / (1 + pool.objective.power)
    for _ in range(MOST_EXCHANGES):
        upper, lower, rising, falling, gains = _exchanges(pool, now)
        apart = pool.discounts[upper] - pool.discounts[lower]
        after = given[:, None] + apart * (
            groups.take(rising, axis=1) - groups.take(falling, axis=1)
        )
        reached = relevance + gains
        values = pool.values(np.maximum(after, 0.0), reached)
        highest = np.flatnonzero(values == values.max())
        chosen = int(highest[reached[highest].round(DIGITS).argmax()])
        better, relevant = values[chosen], reached[chosen].round(DIGITS)
        if (better - least, relevant) <= (value, relevance):
            break
        now[upper[chosen]] = rising[chosen]
        if lower[chosen] < pool.length:
            now[lower[chosen]] = falling[chosen]
        given, relevance, value = after[:, chosen], relevant, better
    return float(value), float(relevance), now


@functools.lru_cache(maxsize=8)
def _exchanged_ranks(length: int, count: int) -> tuple[Positions, Positions, Patterns]:
    """Return the ranks of exchanges with each pattern outside, then of swaps, and the former."""
    one, other = np.triu_indices(length, 1)
    outside = np.tile(np.arange(count), length)
    upper = np.concatenate([np.repeat(np.arange(length), count), one])
    lower = np.concatenate([np.full(len(outside), length), other])
    return upper, lower, outside


def _exchanges(
    pool: _Pool, now: Patterns
) -> tuple[Positions, Positions, Patterns, Patterns, FloatArray]:
    """Return all exchanges that there are documents for, and how much each adds to V.

    The pattern of a rank gives way to another one: to a lower rank's, which takes the first one in
    return, or to one from outside the ranking. Outside counts as the rank below the last, which has
    no weight. Between the two ranks, an exchange also shifts the documents of its patterns by one:
    where a document leaves, the next one of its pattern takes its rank, and so on.

    Returns:
        The upper and the lower rank; the pattern that comes to the upper one, and that which leaves
        it; and the gains. Each has shape (m,).
    """
    length, count = pool.length, len(pool.patterns)
    ranks, every = np.arange(length), np.arange(count)
    upper, lower, outside = _exchanged_ranks(length, count)
    rising = np.concatenate([outside, now[lower[len(outside) :]]])
    # How many documents of each pattern stand above each rank.
    above = np.zeros((length + 1, count), dtype=np.intp)
    np.cumsum(now[:, None] == every, axis=0, out=above[1:])
    is_left = (lower < length) | (above[-1] < pool.available)[rising]
    possible = np.flatnonzero(is_left & (rising != now[upper]))
    upper, lower, rising = upper[possible], lower[possible], rising[possible]
    falling = now[upper]
    # What V gains above each rank if the documents of a pattern come one place later, or earlier.
    own = above[ranks, now]
    held = pool.relevance[now, own]
    shifts = np.zeros((2, length + 1, count))
    shifts[0, ranks + 1, now] = pool.weights[:-1] * (pool.relevance[now, own + 1] - held)
    before = pool.relevance[now, np.maximum(own - 1, 0)]
    shifts[1, ranks + 1, now] = pool.weights[:-1] * (before - held)
    later, earlier = shifts.cumsum(axis=1)
    shown = np.zeros(length + 1)
    shown[:-1] = pool.weights[:-1] * held
    gains = pool.weights[upper] * pool.relevance[rising, above[upper, rising]] - shown[upper]
    last = pool.relevance[falling, above[lower, falling] - 1]
    gains += pool.weights[lower] * last - shown[lower]
    gains += later[lower, rising] - later[upper + 1, rising]
    gains += earlier[lower, falling] - earlier[upper + 1, falling]
    return upper, lower, rising, falling, gains
