"""Intervals of all figures hold as often as they say, in twelve cells of ``benchmarks.audit``."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from fairqr.evaluation.audit import estimates
from fairqr.evaluation.audit.figures import ESTIMATES, Gathered
from tests.unit.evaluation.audit.simulated import SHARES, World, audits, world

ENOUGH = 300
"""Of fewer intervals, chance alone could put less than 930 of 1,000 right."""


@functools.cache
def made(groups: int, lean: float) -> World:
    return world(SHARES[groups], lean, seed=2, queries=5_000)


@pytest.mark.parametrize(
    ("groups", "lean", "relevance", "size", "spread"),
    [
        (0, 0.0, "judged", 100, 0.0),
        (0, 1.0, "estimated", 50, 1.0),
        (1, 0.0, "estimated", 12, 0.0),
        (1, 0.0, "judged", 6, 0.0),
        (1, 1.0, "judged", 25, 1.0),
        (1, 1.0, "estimated", 100, 0.0),
        (2, 0.0, "judged", 12, 1.0),
        (2, 1.0, "judged", 25, 0.0),
        (3, 0.0, "estimated", 25, 1.0),
        (3, 1.0, "judged", 6, 0.0),
        (4, 0.0, "judged", 50, 0.0),
        (4, 1.0, "estimated", 12, 1.0),
    ],
)
def test_true_values_are_in_930_of_1000_intervals(
    monkeypatch: pytest.MonkeyPatch,
    groups: int,
    lean: float,
    relevance: str,
    size: int,
    spread: float,
) -> None:
    monkeypatch.setattr(estimates, "PERMUTATIONS", 50)  # tests are checked elsewhere
    outcome = audits(made(groups, lean), relevance, size, spread, seed=3)
    given = [name for name in ESTIMATES if outcome[name] >= ENOUGH]
    assert {"exposure", "target", "lean", "ranking_gap"} <= set(given)
    rates = {name: outcome[f"{name} held"] / outcome[name] for name in given}
    assert min(rates.values()) >= 0.93, rates


def test_intervals_of_ratios_are_less_than_twice_as_wide_as_those_of_a_bootstrap() -> None:
    """By the median of 40 audits, where the bootstrap holds the true value in nine of ten."""
    it, random = made(2, 1.0), np.random.default_rng(4)
    wider = []
    for _ in range(40):
        gathered, weights = Gathered(it.dimension), random.lognormal(size=25)
        for weight, place in zip(weights, random.integers(0, 5_000, 25), strict=True):
            gathered.add(weight, it.shown["judged"][place])
        found = gathered.listed(random)[0].exposure_ratio
        drawn = random.integers(0, 25, (10_000, 25))
        exposure, target = (
            (weights[drawn, None] * gathered.array(name)[drawn]).sum(axis=1)
            for name in ("exposure", "target")
        )
        rates = exposure / target
        low, high = np.quantile(rates[:, 0] / rates.max(axis=1), [0.025, 0.975])
        wider.append((found.high - found.low) / (high - low))
    assert np.nanmedian(wider) < 2
