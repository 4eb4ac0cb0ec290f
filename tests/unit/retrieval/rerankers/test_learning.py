"""Learning from lists: the optimiser, the softmax over padded lists, and scaled features."""

from __future__ import annotations

import numpy as np
import pytest

from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.rerankers.learning import (
    Training,
    fit,
    list_cross_entropy,
    log_softmax,
    padded,
    standardisation,
)


@pytest.mark.parametrize("l2", [0.0, 0.5])
def test_the_optimiser_solves_least_squares_with_decay(l2: float) -> None:
    """And every further step lowers the loss."""
    random = np.random.default_rng(3)
    features, goal = random.normal(size=(3, 5, 4)), random.normal(size=(3, 5))

    def loss(scores: FloatArray) -> tuple[float, FloatArray]:
        return float(((scores - goal) ** 2).sum()) / 2, scores - goal

    losses = [fit(features, loss, np.zeros(4), Training(l2=l2, iterations=n)).loss for n in (1, 3)]
    found = fit(features, loss, np.zeros(4), Training(l2=l2))
    assert losses[0] > losses[1] >= found.loss
    rows = features.reshape(-1, 4)
    exact = np.linalg.solve(rows.T @ rows + l2 * np.eye(4), rows.T @ goal.reshape(-1))
    assert found.weights == pytest.approx(exact, abs=1e-5)
    assert 0 < found.iterations < 100


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
    means, scales = standardisation(lists)
    rows = (np.concatenate(lists) - means) / scales
    assert rows[:, 0].mean() == pytest.approx(0)
    assert rows[:, 0].std() == pytest.approx(1)
    assert rows[:, 1] == pytest.approx(np.zeros(3))
