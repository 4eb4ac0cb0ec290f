"""The optimiser, the softmax over padded lists, and the scaling of features."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.rerankers.listwise import (
    Scaling,
    list_cross_entropy,
    log_softmax,
    minimise,
    padded,
)


def test_the_optimiser_finds_the_minimum_of_a_hard_valley() -> None:
    """Rosenbrock's function; its minimum is at (1, 1)."""

    def valley(w: FloatArray) -> tuple[float, FloatArray]:
        x, y = w
        loss = (1 - x) ** 2 + 100 * (y - x**2) ** 2
        return float(loss), np.array([-2 * (1 - x) - 400 * x * (y - x**2), 200 * (y - x**2)])

    found = minimise(valley, np.array([-1.2, 1.0]), 200)
    assert found.weights == pytest.approx([1.0, 1.0], abs=1e-5)
    assert 0 < found.iterations < 100


@given(arrays(np.float64, (4, 4), elements=st.floats(-2, 2)), st.integers(0, 5))
def test_the_optimiser_solves_least_squares_and_every_step_lowers_the_loss(
    matrix: FloatArray, seed: int
) -> None:
    square = matrix.T @ matrix + np.eye(4)
    goal = np.random.default_rng(seed).normal(size=4)
    seen: list[float] = []

    def bowl(w: FloatArray) -> tuple[float, FloatArray]:
        return float(w @ square @ w / 2 - goal @ w), square @ w - goal

    for iterations in range(1, 12):
        seen.append(minimise(bowl, np.zeros(4), iterations).loss)
    assert all(later <= earlier for earlier, later in itertools.pairwise(seen))
    found = minimise(bowl, np.zeros(4), 200)
    assert found.weights == pytest.approx(np.linalg.solve(square, goal), abs=1e-4)


def test_no_step_raises_the_loss_where_the_function_curves_downward() -> None:
    """Two valleys, and a start near the hill between them."""
    seen = []

    def valleys(w: FloatArray) -> tuple[float, FloatArray]:
        return float((w**4 / 4 - w**2 / 2).sum()), w**3 - w

    start = np.array([0.01, -0.02, 0.3])
    for iterations in range(1, 30):
        seen.append(minimise(valleys, start, iterations).loss)
    assert seen[0] < valleys(start)[0]
    assert all(later <= earlier for earlier, later in itertools.pairwise(seen))
    assert minimise(valleys, start, 100).weights == pytest.approx([1, -1, 1], abs=1e-5)


def test_a_start_at_the_minimum_is_left_alone() -> None:
    found = minimise(lambda w: (float(w @ w), 2 * w), np.zeros(3), 50)
    assert (found.iterations, found.loss) == (0, 0.0)


def test_padding_does_not_take_part_in_the_softmax() -> None:
    lists = [np.array([1.0, 2.0, 3.0]), np.array([700.0, -700.0])]
    mask = padded([np.ones(3), np.ones(2)]) > 0
    given_ = np.exp(log_softmax(padded(lists), mask))
    for row, scores in zip(given_, lists, strict=True):
        alone = np.exp(scores - scores.max())
        assert row[: len(scores)] == pytest.approx(alone / alone.sum())
        assert row[len(scores) :].tolist() == [0.0] * (3 - len(scores))


def test_the_loss_of_listnet_by_hand() -> None:
    """Two documents, the first relevant: P_y = (e/(e+1), 1/(e+1)); scores equal, P_f = ½."""
    grades, scores = np.array([[1.0, 0.0]]), np.array([[0.3, 0.3]])
    loss, gradient, given_ = list_cross_entropy(grades, scores, np.ones((1, 2), dtype=bool))
    first = np.e / (np.e + 1)
    assert loss == pytest.approx(np.log(2))
    assert gradient == pytest.approx(np.array([[0.5 - first, 0.5 - (1 - first)]]))
    assert given_ == pytest.approx(np.array([[0.5, 0.5]]))


def test_features_are_standardised_over_all_lists_and_constants_are_left() -> None:
    lists = [np.array([[1.0, 0.1], [3.0, 0.1]]), np.array([[5.0, 0.1]])]
    rows = np.concatenate([Scaling.of(lists)(columns) for columns in lists])
    assert rows[:, 0].mean() == pytest.approx(0)
    assert rows[:, 0].std() == pytest.approx(1)
    assert rows[:, 1] == pytest.approx(np.zeros(3))
