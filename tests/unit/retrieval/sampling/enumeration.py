"""Plackett–Luce by brute force, and how far frequencies are from it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
from scipy.stats import chi2

SIGNIFICANCE = 1e-5
"""Of each test of frequencies. The seeds are fixed, so a test that passes goes on passing."""


def probability(weights: Sequence[float | Fraction], ranking: Sequence[int]) -> float | Fraction:
    """P of the rankings that begin so: place by place, over the weights that are left."""
    left = sum(weights)
    result: float | Fraction = Fraction(1)
    for item in ranking:
        result *= weights[item] / left
        left = left - weights[item]
    return result


def probabilities(weights: Sequence[float], k: int) -> dict[tuple[int, ...], float]:
    """P of each order of k items; the weights are taken as exact."""
    exact = [Fraction(weight) for weight in weights]
    return {
        ranking: float(probability(exact, ranking))
        for ranking in itertools.permutations(range(len(weights)), k)
    }


def counts(drawn: np.ndarray) -> dict[tuple[int, ...], int]:
    """How often each row was drawn."""
    rows, numbers = np.unique(drawn, axis=0, return_counts=True)
    return {tuple(row): int(number) for row, number in zip(rows.tolist(), numbers, strict=True)}


def p_value(drawn: np.ndarray, expected: Mapping[tuple[int, ...], float]) -> float:
    """The p value of Pearson's χ² of rows; cells that expect fewer than 10 are taken together."""
    found = counts(drawn)
    assert set(found) <= set(expected), "a ranking that cannot be"
    wanted = np.array([expected[cell] * len(drawn) for cell in expected])
    observed = np.array([found.get(cell, 0) for cell in expected], dtype=float)
    order = wanted.argsort()
    wanted, observed = wanted[order], observed[order]
    # All that are rare, and more of them until they expect ten as well.
    together = max(
        int(np.count_nonzero(wanted < 10)), int(np.searchsorted(wanted.cumsum(), 10)) + 1
    )
    wanted = np.append(wanted[:together].sum(), wanted[together:])
    observed = np.append(observed[:together].sum(), observed[together:])
    assert wanted.size > 1
    statistic = ((observed - wanted) ** 2 / wanted).sum()
    return float(chi2.sf(statistic, wanted.size - 1))
