"""The fair step with a target of one's own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairqr.retrieval.fairness.exposure import exposure
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.rerankers.base import Candidates
from fairqr.retrieval.rerankers.fair import FairOptions, take_step

HALF = np.full(2, 0.5)


def candidates(
    draw: np.random.Generator, shares: Sequence[float], n: int = 200, likely: int = 120
) -> Candidates:
    """Documents of two attributes, the first with these shares of its first group; some likely."""
    members = [np.eye(2)[(draw.random(n) > share).astype(int)] for share in shares]
    relevance = np.sort(np.where(np.arange(n) < likely, draw.uniform(0.6, 1, n), 0.02))[::-1]
    ranking = Ranking([f"d{place}" for place in range(n)], relevance.tolist())
    targets = [HALF, *(np.array([0.9, 0.1]) for _ in shares[1:])]
    names = ["gender", "continent"][: len(shares)]
    return Candidates(
        ranking, members, targets, names, [("a", "b")] * len(shares), relevance=relevance
    )


def test_only_the_pursued_attribute_comes_to_its_target_at_any_price() -> None:
    """The default target of another attribute neither keeps it away, nor costs any relevance."""
    draw = np.random.default_rng(4)
    for _ in range(25):
        pool = candidates(draw, (0.3, 0.1))
        for k in (10, 20):
            step = take_step(pool, FairOptions(pursue=("gender",)), k)
            reached = exposure(pool.memberships[0][step.positions])
            assert step.missed == 0
            assert np.abs(reached - HALF).max() <= 0.01 + 1e-9
            assert step.quality.relevance > 0.8


def test_what_cannot_be_reached_is_not_paid_for() -> None:
    """Without a single document of a group the list is that of the default weight, or near it."""
    draw = np.random.default_rng(5)
    pool = candidates(draw, (0.0,))
    plain = take_step(pool, FairOptions(), 20)
    step = take_step(pool, FairOptions(pursue=("*",)), 20)
    assert step.missed == 50
    assert step.weight == 1
    assert step.positions.tolist() == plain.positions.tolist()
