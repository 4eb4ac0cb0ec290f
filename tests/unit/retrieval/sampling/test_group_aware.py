"""Plackett–Luce whose expected exposure of groups is a target."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chisquare

from fairqr.retrieval.sampling.group_aware import shifted
from fairqr.retrieval.sampling.plackett_luce import log_weights_of, race, stream_of

SAMPLES = 20_000


def sample_group_aware(
    weights: np.ndarray,
    memberships: np.ndarray,
    target: np.ndarray,
    samples: int,
    k: int,
    stream: np.random.Generator,
) -> np.ndarray:
    return race(shifted(weights, memberships, target, k, stream), samples, k, stream)


def shares(drawn: np.ndarray, memberships: np.ndarray) -> np.ndarray:
    exposed = memberships[drawn].sum(axis=(0, 1))
    return exposed / exposed.sum()


@pytest.mark.parametrize("alpha", [0, 1, 8, 32])
@pytest.mark.parametrize("seed", range(3))
def test_groups_get_their_target_in_expectation(alpha: float, seed: int) -> None:
    stream = np.random.default_rng(seed)
    n, groups, k = int(stream.integers(20, 150)), int(stream.integers(2, 5)), 5
    memberships = np.eye(groups)[np.arange(n) % groups]
    memberships[-2:] = 0  # without a label
    memberships[1] = np.full(groups, 1 / groups)
    scores, target = stream.random(n), stream.dirichlet(np.full(groups, 3.0))
    weights = log_weights_of(scores, alpha)
    drawn = sample_group_aware(weights, memberships, target, SAMPLES, k, stream_of(seed))
    assert shares(drawn, memberships) == pytest.approx(target, abs=0.02)


def test_within_a_group_chances_stay_in_proportion() -> None:
    weights, memberships = np.log([8.0, 4.0, 2.0, 1.0]), np.eye(2)[[0, 0, 1, 1]]
    target = np.array([0.3, 0.7])
    drawn = sample_group_aware(weights, memberships, target, SAMPLES, 1, stream_of(1))
    counts = np.bincount(drawn[:, 0], minlength=4)
    for pair in (counts[:2], counts[2:]):
        assert chisquare(pair, np.array([2, 1]) / 3 * pair.sum()).pvalue > 0.001
    assert chisquare([counts[:2].sum(), counts[2:].sum()], target * SAMPLES).pvalue > 0.0001


def test_a_group_with_too_few_documents_comes_whenever_it_can() -> None:
    """And one without documents leaves its share to the others."""
    memberships = np.eye(3)[[0] + [1] * 30]
    target = np.array([0.5, 0.3, 0.2])
    drawn = sample_group_aware(np.zeros(31), memberships, target, 500, 4, stream_of(3))
    assert (drawn == 0).any(axis=1).mean() > 0.99
    unlabelled = np.zeros((31, 3))
    assert (shifted(np.zeros(31), unlabelled, target, 4, stream_of(3)) == 0).all()


def test_a_group_that_shall_have_nothing_gets_nothing_while_others_last() -> None:
    memberships = np.eye(2)[[0] * 10 + [1] * 10]
    drawn = sample_group_aware(
        np.zeros(20), memberships, np.array([1.0, 0.0]), 500, 5, stream_of(4)
    )
    assert (drawn < 10).mean() > 0.99
