"""The objective: one number for how good a ranking is, and the ranking for which it is highest.

J = V · F^w, where

- V = Σ_r d(r)·p(r) / Σ_r d(r)·p_(r) is the **expected relevance**: p is the estimated probability
  that a document is relevant, d(r) the discount of rank r, and p_(1) ≥ p_(2) ≥ … are the highest
  estimates of the pool. It is 1 for the order of relevance, and 1 if every p is 0.
- F = 1 − mean over attributes of JS(ε*, ε), in bits, is the **fairness**: ε is the exposure of the
  groups and ε* its target. If no document of the ranking has a label of an attribute, that has no ε
  and is left out; a ranking with more defined attributes is preferred, whatever its J.
- w ≥ 0 is the **weight of fairness**. With w = 0 only relevance counts, with w = ∞ only fairness.
  Attributes may have weights of their own: then F takes their weighted mean, and w is their mean.

Since dJ/J = dV/V + w·dF/F, a document is worth moving if it adds more fairness than it takes
relevance, in shares. Near the target F is flat, so its last bit is not bought at any price.

Documents with the same memberships (a *pattern*) differ only in p. Exchanging two of them leaves ε
unchanged, so a ranking takes the documents of each pattern in one order, usually from the most
relevant down. It remains to find a sequence of patterns:

1. Fill the ranks from first to last, each with the pattern of the highest p + λ·owed. A pattern is
   owed the exposure that the target has given to its groups so far, minus what they got. This is
   online dual descent on a relaxed problem with step λ. We fill at sixteen prices λ, from 0
   (relevance alone) to one that only considers exposure.
2. Improve the best of these by exchanges as long as J grows: swap the patterns of two ranks, or put
   another pattern at a rank.

If there are few sequences, we look at each of them instead.

Decisions compare values rounded to nine digits, and ties go to the first position. So all machines
choose alike, although their logarithms and sums differ in the last bits.
``tests/unit/retrieval/test_objective.py`` compares the result with an exhaustive search.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairqr.retrieval.fairness.exposure import LOG2, Discount, FloatArray, exposure, group_exposure

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
DIGITS = 9
"""Values that are equal when rounded to this many digits count as equal."""

LEAST = 1e-12
"""Smaller values of V and F count as this, so that they have a logarithm."""

Weight = float | Sequence[float]
"""w; or the weight of each attribute, all finite."""

Positions = NDArray[np.intp]
Patterns = NDArray[np.intp]
"""The pattern at each rank; or several such sequences."""


@dataclass(frozen=True, slots=True)
class Quality:
    """How good a ranking is.

    Attributes:
        relevance: V, in [0, 1].
        fairness: F, in [0, 1].
        value: J = V · F^w.
        most: The highest Σ d·p of the pool, of which V is a share.
        undefined: How many attributes have no exposure.
    """

    relevance: float
    fairness: float
    value: float
    most: float
    undefined: int


def fairness(
    exposures: Sequence[FloatArray], targets: Sequence[FloatArray], weight: Weight = 1.0
) -> tuple[FloatArray, NDArray[np.intp]]:
    """Return F of rankings, and how many attributes of each have no exposure.

    Args:
        exposures: ε of each attribute, shape (…, G_a), not necessarily normalised; all zeros where
            no document has a label.
        targets: ε* of each attribute, shape (G_a,).
        weight: w, or that of each attribute.

    Returns:
        Both of shape (…); F is 1 if no attribute is defined.
    """
    shares = _shares(weight, len(targets))
    return _fairness([np.moveaxis(np.asarray(e), -1, 0) for e in exposures], targets, shares)


def _mean(weight: Weight) -> float:
    """Return w itself, or the mean of those of the attributes."""
    return float(weight if isinstance(weight, (int, float)) else sum(weight) / len(weight))


def _shares(weight: Weight, attributes: int) -> list[float]:
    """Return the weights of attributes in the mean of F, as shares of their mean."""
    if isinstance(weight, (int, float)) or not any(weight):
        return [1.0] * attributes
    return [own / _mean(weight) for own in weight]


def _fairness(
    exposures: Sequence[FloatArray], targets: Sequence[FloatArray], shares_of_mean: Sequence[float]
) -> tuple[FloatArray, NDArray[np.intp]]:
    """Do what :func:`fairness` does for exposures of shape (G_a, …), which is faster."""
    distance = np.zeros(exposures[0].shape[1:])
    counted = np.zeros(distance.shape)
    defined = np.zeros(distance.shape, dtype=np.intp)
    for given, target, own in zip(exposures, targets, shares_of_mean, strict=True):
        total = given.sum(axis=0)
        # Exchanges may leave a residue of rounding where nothing is left.
        is_known = total > 10**-DIGITS
        shares = given / np.where(is_known, total, 1.0)
        aim = target.reshape(-1, *[1] * (shares.ndim - 1))
        # JS as the entropy of the middle less the mean entropy of both.
        bits = (_times_log(shares) / 2 - _times_log((shares + aim) / 2)).sum(axis=0)
        bits += _times_log(target).sum() / 2
        distance += np.where(is_known, own * np.maximum(bits, 0.0), 0.0)
        counted += own * is_known
        defined += is_known
    return 1 - distance / np.where(defined > 0, counted, 1.0), len(targets) - defined


def _times_log(shares: FloatArray) -> FloatArray:
    """Return p·log2 p of each share, with 0·log 0 = 0."""
    return np.asarray(shares * np.log2(np.maximum(shares, np.finfo(np.float64).tiny)))


def quality(
    ranked: Sequence[int] | Positions,
    relevance: FloatArray,
    memberships: Sequence[FloatArray],
    targets: Sequence[FloatArray],
    *,
    weight: Weight = 1.0,
    discount: Discount = LOG2,
    length: int | None = None,
) -> Quality:
    """Return V, F and J of a ranking.

    Args:
        ranked: The positions of its documents in the pool, best first.
        relevance: p of each document of the pool, shape (n,), in [0, 1].
        memberships: One array (n, G_a) for each attribute a. Rows that sum to less than 1 have
            unknown mass.
        targets: ε* of each attribute, shape (G_a,), sums to 1.
        weight: w, at least 0, or that of each attribute; a single one may be infinite.
        discount: The weight of each rank.
        length: How many ranks there are to fill, where the ranking may be shorter; by default as
            many as it fills.
    """
    rows = np.asarray(ranked, dtype=np.intp)
    most = _discounted(np.sort(relevance)[::-1][: length or len(rows)], discount)
    got = _discounted(np.asarray(relevance)[rows], discount) / most if most > 0 else 1.0
    given = [group_exposure(members[rows], discount) for members in memberships]
    fair, undefined = _fairness(given, targets, _shares(weight, len(targets)))
    power = _mean(weight)
    value = got * float(fair) ** power if np.isfinite(power) else float(fair)
    return Quality(got, float(fair), value, most, int(undefined))


def _discounted(relevance: FloatArray, discount: Discount) -> float:
    return float((discount.weights(len(relevance)) * relevance).sum())


def best_ranking(
    relevance: FloatArray,
    memberships: Sequence[FloatArray],
    targets: Sequence[FloatArray],
    *,
    weight: Weight = 1.0,
    discount: Discount = LOG2,
    length: int,
    order: Positions | None = None,
) -> Positions:
    """Return the ranking of highest J.

    Args:
        relevance: p of each document, shape (n,), in [0, 1].
        memberships: One array (n, G_a) for each attribute a.
        targets: ε* of each attribute, shape (G_a,).
        weight: w, at least 0, or that of each attribute; a single one may be infinite.
        discount: The weight of each rank.
        length: How many ranks to fill.
        order: All positions in the order in which documents of the same pattern are taken; by
            default the order of relevance, ties by position.

    Returns:
        The positions of min(length, n) documents, from the first rank to the last.
    """
    pool = _Pool(relevance, memberships, targets, weight, discount, length, order)
    if len(pool.patterns) < 2 or not pool.length:
        # Only the relevance differs.
        return pool.positions(np.zeros(pool.length, dtype=np.intp))
    is_small = len(pool.patterns) ** pool.length <= EVERY
    sequences = pool.every() if is_small else pool.filled()
    given, expected = pool.given(sequences), pool.expected(sequences)
    values = pool.values(given, expected)
    best = np.lexsort((-expected.round(DIGITS), -values))
    if is_small or pool.length > EXCHANGED_RANKS:
        return pool.positions(sequences[best[0]])
    starts = best[: max(2, STARTS // pool.length**2)]
    ends = [
        _exchanged(pool, sequences[start], given[:, start], expected[start], values[start])
        for start in starts
    ]
    return pool.positions(max(ends, key=lambda end: end[:2])[2])


def attainable(memberships: FloatArray, discount: Discount, length: int) -> FloatArray:
    """Return the most exposure that each group could get by itself, shape (G,).

    All its documents stand first, and others fill the remaining ranks.

    Args:
        memberships: Of the documents to rank, shape (n, G).
        discount: The weight of each rank.
        length: How many ranks there are.
    """
    weights = discount.weights(min(length, len(memberships)))
    if not len(weights):
        return np.zeros(memberships.shape[1])
    # Those with the largest share of the group first.
    first = -np.sort(-memberships, axis=0)[: len(weights)]
    return np.asarray(weights @ first / weights.sum())


def supply(
    memberships: FloatArray, target: FloatArray, discount: Discount, length: int
) -> FloatArray:
    """Return the exposure that documents could give to each group, shape (G,).

    That is the target itself where each group could reach its share; that ranks are whole is not
    held against an engine. Otherwise it is the exposure of the ranking that comes nearest to the
    target; zeros if no document has a label.

    Args:
        memberships: Of the documents that are relevant, shape (n, G).
        target: ε*, shape (G,).
        discount: The weight of each rank.
        length: How many ranks there are.
    """
    if (attainable(memberships, discount, length) >= target - 10**-DIGITS).all():
        return target
    chances = np.ones(len(memberships))
    best = best_ranking(
        chances, [memberships], [target], weight=np.inf, discount=discount, length=length
    )
    return exposure(memberships[best], discount)


class _Pool:
    """The documents by pattern; of each pattern, the first that a ranking may need.

    Attributes:
        length: How many ranks there are to fill.
        weights: The discount of each rank, as a share of the highest Σ d·p; so sums with
            probabilities are V.
        patterns: The groups of all attributes side by side, shape (P, G).
        relevance: The relevance of each pattern's documents in the order in which they are taken,
            padded with 0, shape (P, length + 2).
        available: How many documents each pattern has, at most the length, shape (P,).
    """

    def __init__(
        self,
        relevance: FloatArray,
        memberships: Sequence[FloatArray],
        targets: Sequence[FloatArray],
        weight: Weight,
        discount: Discount,
        length: int,
        order: Positions | None,
    ) -> None:
        chances = np.asarray(relevance, dtype=np.float64).round(DIGITS)
        if not chances.any():
            chances = np.ones_like(chances)  # V is 1 for all rankings
        members = np.concatenate([np.asarray(m, dtype=np.float64) for m in memberships], axis=1)
        by_relevance = np.argsort(-chances, kind="stable")
        taken = by_relevance if order is None else order
        self.length = min(length, len(members))
        self.discounts = discount.weights(self.length)
        most = float((self.discounts * chances[by_relevance[: self.length]]).sum())
        self.weights = self.discounts / (most or 1.0)
        self.weight = _mean(weight)
        self._shares = _shares(weight, len(targets))
        self._highest = float(chances.max(initial=0.0)) or 1.0
        places: dict[bytes, list[int]] = {}
        rows = _as_bytes(members)
        for place in taken.tolist():
            held = places.setdefault(rows[place], [])
            if len(held) < self.length:
                held.append(place)
        self._places = list(places.values())
        number = {row: pattern for pattern, row in enumerate(places)}
        best = by_relevance[: self.length].tolist()
        self._by_relevance = [number[rows[place]] for place in best]
        self.patterns = members[[held[0] for held in self._places]].reshape(-1, members.shape[1])
        self.available = np.array([len(held) for held in self._places], dtype=np.intp)
        self.relevance = np.zeros((len(self._places), self.length + 2))
        for row, held in zip(self.relevance, self._places, strict=True):
            row[: len(held)] = chances[held]
        ends = np.cumsum([np.shape(m)[1] for m in memberships]).tolist()
        self._groups = [slice(a, b) for a, b in zip([0, *ends], ends, strict=False)]
        self._targets = [np.asarray(target, dtype=np.float64) for target in targets]

    def positions(self, sequence: Patterns) -> Positions:
        """Return the documents of a sequence of patterns."""
        documents = [iter(held) for held in self._places]
        return np.array([next(documents[pattern]) for pattern in sequence], dtype=np.intp)

    def every(self) -> Patterns:
        """Return all sequences that there are documents for, shape (m, length)."""
        count = len(self.patterns)
        found = np.indices((count,) * self.length).reshape(self.length, -1).T
        needed = (found[..., None] == np.arange(count)).sum(axis=1)
        return np.asarray(found[(needed <= self.available).all(axis=1)])

    def filled(self) -> Patterns:
        """Return the sequences filled at each price, and that of relevance, shape (m, length)."""
        target = np.concatenate(self._targets)
        # A document exposes an attribute through its labels; without a label it exposes nothing.
        given = [self.patterns[:, columns].sum(axis=1) for columns in self._groups]
        shares = np.repeat(np.stack(given, axis=1), [len(t) for t in self._targets], axis=1)
        owed_after = target * shares - self.patterns
        # A price λ as two shares, so that rounding means the same at all prices.
        of_owed = (PRICES / (1 + PRICES))[:, None]
        of_relevance = (1 - of_owed) / self._highest
        rows = np.arange(len(PRICES))
        every = np.arange(len(self.patterns))
        due = np.zeros((len(PRICES), len(target)))
        placed = np.zeros((len(PRICES), len(self.patterns)), dtype=np.intp)
        sequences = np.zeros((len(PRICES), self.length), dtype=np.intp)
        for rank, weight in enumerate(self.discounts.tolist()):
            owed = (due + weight * target) @ self.patterns.T
            worth = of_relevance * self.relevance[every, placed] + of_owed * owed
            worth = worth.round(DIGITS)
            worth[placed == self.available] = -np.inf
            chosen = worth.argmax(axis=1)
            sequences[:, rank] = chosen
            placed[rows, chosen] += 1
            due += weight * owed_after[chosen]
        return np.array(sorted({*map(tuple, sequences.tolist()), tuple(self._by_relevance)}))

    def expected(self, sequences: Patterns) -> FloatArray:
        """Return V of sequences of shape (…, length), shape (…)."""
        ranks = np.arange(self.length)
        is_earlier = (sequences[..., None] == sequences[..., None, :]) & (ranks < ranks[:, None])
        worth = self.relevance[sequences, is_earlier.sum(axis=-1)]
        return np.asarray((self.weights * worth).sum(axis=-1))

    def given(self, sequences: Patterns) -> FloatArray:
        """Return what sequences of shape (…, length) give to each group, shape (G, …)."""
        return np.asarray((self.discounts * self.patterns.T[:, sequences]).sum(axis=-1))

    def values(self, given: FloatArray, expected: FloatArray) -> FloatArray:
        """Return what to maximise, rounded: log J, or log F if w is infinite.

        Each attribute without exposure makes it lower than any ranking with more attributes has.

        Args:
            given: Exposures, shape (G, m), not normalised.
            expected: V of the same rankings, shape (m,).
        """
        exposures = [given[rows] for rows in self._groups]
        fair, undefined = _fairness(exposures, self._targets, self._shares)
        value = np.log(np.maximum(fair, LEAST))
        if np.isfinite(self.weight):
            value = self.weight * value + np.log(np.maximum(expected, LEAST))
        worst = 1 + (self.weight if np.isfinite(self.weight) else 0)
        value = value + worst * np.log(LEAST) * undefined
        return np.asarray(np.where(np.isneginf(expected), -np.inf, value.round(DIGITS)))


def _as_bytes(rows: FloatArray) -> list[bytes]:
    """Return each row as bytes; much faster than one by one."""
    if not rows.size:
        return []
    whole = np.ascontiguousarray(rows)
    found: list[bytes] = whole.view(f"V{whole.itemsize * rows.shape[1]}").ravel().tolist()
    return found


@functools.lru_cache
def _pairs(length: int) -> tuple[Positions, Positions]:
    """Return the upper and the lower rank of each swap."""
    return np.triu_indices(length, 1)


def _exchanged(
    pool: _Pool, sequence: Patterns, given: FloatArray, expected: float, value: float
) -> tuple[float, float, Patterns]:
    """Improve a sequence by exchanges, each time by the best possible one.

    Args:
        pool: The documents.
        sequence: The sequence.
        given: What it gives to each group, not normalised.
        expected: Its V.
        value: What :meth:`_Pool.values` says of it.

    Returns:
        Its value and V, both rounded, and the sequence.
    """
    now, expected = sequence.copy(), round(float(expected), DIGITS)
    discounts, groups = pool.discounts, np.ascontiguousarray(pool.patterns.T)
    first, second = _pairs(len(now))
    apart = discounts[first] - discounts[second]
    least = LEAST_GAIN / (1 + pool.weight)
    for _ in range(MOST_EXCHANGES):
        replacing, swapping = _gains(pool, now, first, second)
        # The exposure after each exchange: of a rank and a pattern, and of two ranks.
        shown = groups[:, now]
        moved = given[:, None, None] + discounts[:, None] * (groups[:, None] - shown[:, :, None])
        turned = given[:, None] + apart * (shown[:, second] - shown[:, first])
        after = np.concatenate([moved.reshape(len(groups), -1), turned], axis=1)
        reached = expected + np.concatenate([replacing.ravel(), swapping])
        # An exchange that cannot be made has V = −∞.
        values = pool.values(np.maximum(after, 0.0), reached)
        highest = np.flatnonzero(values == values.max())
        chosen = int(highest[reached[highest].round(DIGITS).argmax()])
        if (values[chosen] - least, reached[chosen].round(DIGITS)) <= (value, expected):
            break
        if chosen < replacing.size:
            rank, pattern = divmod(chosen, len(pool.patterns))
            now[rank] = pattern
        else:
            one, other = first[chosen - replacing.size], second[chosen - replacing.size]
            now[one], now[other] = now[other], now[one]
        given, expected = after[:, chosen], float(reached[chosen].round(DIGITS))
        value = float(values[chosen])
    return value, expected, now


def _gains(
    pool: _Pool, now: Patterns, first: Patterns, second: Patterns
) -> tuple[FloatArray, FloatArray]:
    """Return how much each exchange adds to V.

    An exchange also shifts the later documents of its patterns by one: where a document leaves, the
    next one of its pattern takes its rank, and so on.

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
    # How many documents of each pattern are above each rank, and the worth of the next one there.
    above = np.zeros((length + 1, len(chances)), dtype=np.intp)
    np.cumsum(now[:, None] == every, axis=0, out=above[1:])
    at = weights[:, None] * chances[every, above[:-1]]
    # What V gains above each rank if the documents of a pattern come one place later, or earlier.
    own = above[ranks, now]
    held = chances[now, own]
    shifts = np.zeros((2, length + 1, len(chances)))
    shifts[0, ranks + 1, now] = weights * (chances[now, own + 1] - held)
    shifts[1, ranks + 1, now] = weights * (chances[now, np.maximum(own - 1, 0)] - held)
    later, earlier = shifts.cumsum(axis=1)
    leaving = earlier[-1, now] - earlier[ranks + 1, now] - weights * held
    replacing = at + (later[-1] - later[1:]) + leaving[:, None]
    replacing[:, above[-1] == pool.available] = -np.inf
    replacing[ranks, now] = -np.inf
    up, down = now[second], now[first]
    rises = at[first, up] + later[second, up] - later[first + 1, up] - (weights * held)[second]
    falls = weights[second] * chances[down, above[second, down] - 1] - (weights * held)[first]
    swapping = rises + falls + earlier[second, down] - earlier[first + 1, down]
    swapping[up == down] = -np.inf
    return replacing, swapping
