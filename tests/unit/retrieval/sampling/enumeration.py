"""Plackett–Luce by brute force, and how far frequencies are from it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
from scipy.stats import chi2

SIGNIFICANCE = 1e-5
"""Of each test of frequencies. The seeds are fixed, so a test that passes goes on passing."""


def probabilities(weights: Sequence[float], k: int) -> dict[tuple[int, ...], float]:
    """P of each order of k items, place by place over the weights left, which are exact."""
    return {
        ranking: float(_probability([Fraction(weight) for weight in weights], ranking))
        for ranking in itertools.permutations(range(len(weights)), k)
    }


def _probability(weights: Sequence[Fraction], ranking: Sequence[int]) -> Fraction:
    left, result = sum(weights), Fraction(1)
    for item in ranking:
        result *= weights[item] / left
        left -= weights[item]
    return result


def class_probabilities(
    sizes: Sequence[int], weights: Sequence[float], k: int
) -> dict[tuple[int, ...], float]:
    """P of the classes of the first k; a class weighs what is left of it times its weight."""
    expected = {}
    for kinds in itertools.product(range(len(sizes)), repeat=k):
        left, chance = np.array(sizes, dtype=float), 1.0
        for kind in kinds:
            chance *= left[kind] * weights[kind] / float(left @ np.array(weights))
            left[kind] -= 1
        expected[kinds] = chance
    return expected


def p_value(drawn: np.ndarray, expected: Mapping[tuple[int, ...], float]) -> float:
    """The p value of Pearson's χ² of rows; cells that expect fewer than 10 are taken together."""
    rows, counts = np.unique(drawn, axis=0, return_counts=True)
    found = dict(zip(map(tuple, rows.tolist()), counts.tolist(), strict=True))
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
