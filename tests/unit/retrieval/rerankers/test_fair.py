"""The fair step with a target of one's own, and the exposure-aware step."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqr.retrieval.fairness.divergence import jensen_shannon
from fairqr.retrieval.fairness.exposure import exposure
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.rerankers.base import Candidates
from fairqr.retrieval.rerankers.fair import FairStep, exposure_aware

HALF = np.full(2, 0.5)
PATTERNS = {"f": (1.0, 0.0), "m": (0.0, 1.0), "b": (0.5, 0.5), "?": (0.0, 0.0)}


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
            step = FairStep(pursue=("gender",)).take(pool, k)
            reached = exposure(pool.memberships[0][step.positions])
            assert step.missed == 0
            assert np.abs(reached - HALF).max() <= 0.01 + 1e-9
            assert step.quality.relevance > 0.8


def test_what_cannot_be_reached_is_not_paid_for() -> None:
    """Without a single document of a group the list is that of the default weight, or near it."""
    draw = np.random.default_rng(5)
    pool = candidates(draw, (0.0,))
    plain = FairStep().take(pool, 20)
    step = FairStep(pursue=("*",)).take(pool, 20)
    assert step.missed == 50
    assert step.weight == 1
    assert step.positions.tolist() == plain.positions.tolist()


def members_of(labels: str) -> np.ndarray:
    """f, m, b(oth) and ?(unknown) as memberships."""
    return np.array([PATTERNS[label] for label in labels])


@given(
    labels=st.text("fmb?", min_size=1, max_size=30),
    share=st.floats(0, 1),
    length=st.integers(1, 35),
)
def test_the_best_of_each_pattern_are_placed_in_order_and_the_unlabelled_stay(
    labels: str, share: float, length: int
) -> None:
    target = np.array([share, 1 - share])
    order = exposure_aware([members_of(labels)], [target], length=length).tolist()
    assert len(order) == len(set(order)) == min(length, len(labels))
    for label in "fmb":
        own = [position for position in range(len(labels)) if labels[position] == label]
        placed = [position for position in order if labels[position] == label]
        assert placed == own[: len(placed)]
    assert all(order[rank] == rank for rank in range(len(order)) if labels[rank] == "?")


@settings(max_examples=60)
@given(share=st.floats(0.1, 0.9))
def test_it_comes_near_the_best_of_all_orders(share: float) -> None:
    """Over all ways to place 8 documents of two groups, with enough of both to choose from."""
    members, target = members_of("m" * 8 + "f" * 8), np.array([share, 1 - share])
    order = exposure_aware([members], [target], length=8)
    found = jensen_shannon(target, exposure(members[order]))
    every = np.array([members_of("".join(it)) for it in itertools.product("fm", repeat=8)])
    assert found <= jensen_shannon(target, exposure(every)).min() + 0.004


def test_several_attributes_are_mended_together() -> None:
    gender = np.array([[0.0, 1.0]] * 20 + [[1.0, 0.0]] * 20)
    place = np.array([[0.0, 1.0], [1.0, 0.0]] * 20)
    order = exposure_aware([gender, place], [np.full(2, 0.5)] * 2, length=20)
    for members in (gender, place):
        assert exposure(members[order]) == pytest.approx([0.5, 0.5], abs=0.03)
