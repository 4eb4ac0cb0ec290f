"""The test of FA*IR for several protected groups at once (Zehlike et al. 2022).

We model a ranking of k documents as k draws from the protected groups 1 to G and the rest, with
probabilities p_1 … p_G and p_0. A prefix of length i with counts τ_1 … τ_G passes if the
multinomial CDF F_i(τ) = P(X_1 ≤ τ_1, …, X_G ≤ τ_G) is above α_c.

We keep all counts that k draws can give in memory: C(k+G, G) of them, and C(k+G+1, G+1) over all
prefixes. This is exact, and feasible up to ``MAX_STATES``: 2 groups up to k = 226, 3 up to 80,
4 up to 44, 5 up to 30, 6 up to 22. Beyond that, :mod:`fairqr.retrieval.rerankers.group_tables` has
a bound.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.rerankers.binomial_table import ROUNDING, distinct, last_allowed

__all__ = ["MAX_STATES", "MultinomialTable", "Openings", "multinomial_table", "states_of"]

IntArray = NDArray[np.intp]
BoolArray = NDArray[np.bool_]

MAX_STATES = 2_000_000


def states_of(k: int, groups: int) -> int:
    """Return how many different counts k draws can give, summed over all prefixes."""
    return math.comb(k + groups + 1, groups + 1)


@dataclass(frozen=True, slots=True)
class MultinomialTable:
    """The counts of the protected groups that each prefix may have.

    Attributes:
        proportions: p_1 … p_G.
        significance: α_c, at which each prefix is tested.
        failure_probability: The probability that a random ranking fails at any prefix.
    """

    proportions: tuple[float, ...]
    significance: float
    failure_probability: float
    _lattice: _Lattice
    _cdfs: list[FloatArray]

    def cdf(self, counts: tuple[int, ...], length: int) -> float:
        """Return F_i(τ) of a prefix of length i, at least 1, with these counts."""
        return float(self._cdfs[length - 1][self._lattice.position(counts)])

    def passes_at(self, counts: tuple[int, ...], length: int) -> bool:
        """Return whether a prefix of this length with these counts passes."""
        return self.cdf(counts, length) > self.significance * (1 + ROUNDING)

    def openings(self, supply: tuple[int, ...]) -> Openings:
        """Return which prefixes can be continued with the available documents.

        Args:
            supply: How many documents there are of the rest, and of each protected group.
        """
        bound = self.significance * (1 + ROUNDING)
        states = _open_states(self._lattice, self._cdfs, bound, supply)
        return Openings(self._lattice, states)


@dataclass(frozen=True, slots=True)
class Openings:
    """The prefixes that pass the test and can be continued so that each longer prefix passes too.

    A count may pass and still be a dead end: one more draw would have to add to two groups, or a
    group has no document left. If no ranking passes up to k, prefixes are continued as far as any
    ranking passes, which may be nowhere.
    """

    _lattice: _Lattice
    _states: list[BoolArray]

    def is_open(self, counts: tuple[int, ...], length: int) -> bool:
        """Return whether a prefix of this length with these counts can be continued."""
        if length > len(self._states):
            return False
        return bool(self._states[length - 1][self._lattice.position(counts)])


@functools.lru_cache(maxsize=8)
def multinomial_table(k: int, proportions: tuple[float, ...], alpha: float) -> MultinomialTable:
    """Return the test with the model-adjusted significance.

    α_c is the largest value at which a random ranking fails with probability at most α. The failure
    probability only changes where α_c reaches a value of F_i, and never decreases, so a binary
    search over these values finds the last allowed step. We compute it exactly, by carrying the
    distribution of the counts from prefix to prefix.

    Args:
        k: The length of the ranking.
        proportions: p_1 … p_G; at least 0, with a sum of at most 1.
        alpha: The allowed probability of rejecting a fair ranking, in (0, 1).
    """
    lattice = _lattice(k, len(proportions))
    cdfs = _cdfs(lattice, proportions)
    values = np.concatenate(cdfs)
    values = np.sort(values[(values <= alpha) & (values > 0)])
    significance = last_allowed(
        np.concatenate([[0.0], distinct(values)]),
        lambda step: _failure_probability(lattice, cdfs, proportions, step, alpha),
        alpha,
    )
    return MultinomialTable(
        proportions,
        significance,
        _failure_probability(lattice, cdfs, proportions, significance, 1.0),
        lattice,
        cdfs,
    )


class _Lattice:
    """The counts τ with Σ τ_g ≤ k, in order of their sum, so that few draws come first.

    Attributes:
        k: The number of draws.
        groups: G.
        size: C(k+G, G), the number of counts.
        counts: The counts, shape (size, G).
        before: The position of τ − e_g, or ``size`` if that is not a count, shape (G, size).
    """

    def __init__(self, k: int, groups: int) -> None:
        counts, sums = np.zeros((1, 0), dtype=np.intp), np.zeros(1, dtype=np.intp)
        for _ in range(groups):
            choices = k - sums + 1
            ends = np.cumsum(choices)
            added = np.arange(ends[-1]) - np.repeat(ends - choices, choices)
            counts = np.column_stack([np.repeat(counts, choices, axis=0), added])
            sums = np.repeat(sums, choices) + added
        radix = (k + 1) ** np.arange(groups, dtype=np.intp)
        keys = counts @ radix
        order = np.lexsort((keys, sums))
        self.k, self.groups, self.size = k, groups, len(order)
        self._radix, self._key_order = radix, np.argsort(keys[order])
        self._keys = keys[order][self._key_order]
        self.before = np.full((groups, self.size), self.size, dtype=np.intp)
        self.counts = counts[order]
        for group in range(groups):
            has = np.flatnonzero(self.counts[:, group] > 0)
            self.before[group, has] = self._positions(keys[order][has] - radix[group])

    def _positions(self, keys: IntArray) -> IntArray:
        return self._key_order[np.searchsorted(self._keys, keys)]

    def position(self, counts: tuple[int, ...]) -> int:
        """Return the position of these counts."""
        key = np.array(counts, dtype=np.intp) @ self._radix
        return int(self._positions(key))

    def reached(self, draws: int) -> int:
        """Return how many of the first counts this many draws can give."""
        return math.comb(draws + self.groups, self.groups)

    def drawn(self, values: FloatArray, proportions: tuple[float, ...], end: int) -> FloatArray:
        """Return p_0·v(τ) + Σ_g p_g·v(τ − e_g) for the first ``end`` counts.

        Applied to a distribution of counts, this gives the distribution after one more draw; the
        same holds for its CDF. ``values`` and the result have one extra entry, a zero.
        """
        rest = max(0.0, 1 - math.fsum(proportions))
        result = np.zeros(self.size + 1)
        result[:end] = rest * values[:end]
        for proportion, before in zip(proportions, self.before, strict=True):
            result[:end] += proportion * values[before[:end]]
        return result


@functools.lru_cache(maxsize=8)
def _lattice(k: int, groups: int) -> _Lattice:
    return _Lattice(k, groups)


def _cdfs(lattice: _Lattice, proportions: tuple[float, ...]) -> list[FloatArray]:
    """Return F_i for all counts that i draws can give, for i = 1 to k."""
    values = np.ones(lattice.size + 1)
    values[-1] = 0.0
    cdfs = []
    for draws in range(1, lattice.k + 1):
        values = lattice.drawn(values, proportions, lattice.size)
        cdfs.append(values[: lattice.reached(draws)].copy())
    return cdfs


def _failure_probability(
    lattice: _Lattice,
    cdfs: list[FloatArray],
    proportions: tuple[float, ...],
    significance: float,
    limit: float,
) -> float:
    """Return the probability that a draw fails at any prefix; may stop once above the limit."""
    alive = np.zeros(lattice.size + 1)
    alive[0] = 1.0
    failed = 0.0
    bound = significance * (1 + ROUNDING)
    for cdf in cdfs:
        end = len(cdf)
        alive = lattice.drawn(alive, proportions, end)
        refused = np.flatnonzero(cdf <= bound)
        failed += float(alive[refused].sum())
        alive[refused] = 0.0
        if failed > limit:
            break
    return failed


def _open_states(
    lattice: _Lattice, cdfs: list[FloatArray], bound: float, supply: tuple[int, ...]
) -> list[BoolArray]:
    """Return for each prefix the counts that pass and can be continued up to the last one.

    The last prefix has length k, or is the longest that passes with this many documents per kind.
    """
    enough = np.all(lattice.counts <= supply[1:], axis=1)
    drawn = lattice.counts.sum(axis=1)
    states: list[BoolArray] = []
    reached = np.zeros(lattice.size + 1, dtype=bool)
    reached[0] = True
    for length, cdf in enumerate(cdfs, start=1):
        end = len(cdf)
        # One more of the rest leaves the counts unchanged; one more of a group adds to its count.
        now = reached[:end].copy()
        for before in lattice.before:
            now |= reached[before[:end]]
        now &= (cdf > bound) & enough[:end] & (length - drawn[:end] <= supply[0])
        if not now.any():
            break
        states.append(now)
        reached[:end] = now
    for earlier, later in zip(states[-2::-1], states[:0:-1], strict=True):
        leads = np.zeros(lattice.size + 1, dtype=bool)
        leads[: len(later)] = later
        for before in lattice.before:
            leads[before[: len(later)][later]] = True
        earlier &= leads[: len(earlier)]
    return states
