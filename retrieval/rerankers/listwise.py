"""Listwise learning: padded batches, the softmax over a list, and a deterministic optimiser."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairqr.retrieval.fairness.exposure import FloatArray

BoolArray = NDArray[np.bool_]
Objective = Callable[[FloatArray], tuple[float, FloatArray]]
"""Returns the loss at some weights, and its gradient."""


def padded(lists: Sequence[FloatArray]) -> FloatArray:
    """Stack arrays of shape (n_q, …) into one of shape (Q, max n_q, …), padded with zeros."""
    longest = max(len(values) for values in lists)
    batch = np.zeros((len(lists), longest, *np.shape(lists[0])[1:]))
    for row, values in enumerate(lists):
        batch[row, : len(values)] = values
    return batch


def log_softmax(scores: FloatArray, mask: BoolArray) -> FloatArray:
    """Return ln(exp(s_i) / Σ_j exp(s_j)) over each list, shape (Q, N); −∞ for padding."""
    held = np.where(mask, scores, -np.inf)
    held = held - held.max(axis=1, keepdims=True)
    return np.asarray(held - np.log(np.exp(held).sum(axis=1, keepdims=True)))


def list_cross_entropy(
    grades: FloatArray, scores: FloatArray, mask: BoolArray
) -> tuple[float, FloatArray, FloatArray]:
    """Return the loss of ListNet (Cao et al. 2007), its gradient, and the distributions P_f.

    The loss is the mean over the lists of −Σ_i P_y(i)·ln P_f(i), with P the softmax over a list.

    Args:
        grades: y, shape (Q, N).
        scores: f, shape (Q, N).
        mask: Which positions have a document, shape (Q, N).

    Returns:
        The loss; its gradient by the scores, (P_f − P_y)/Q, shape (Q, N); and P_f, shape (Q, N).
    """
    wanted = np.exp(log_softmax(grades, mask))
    logs = log_softmax(scores, mask)
    given = np.exp(logs)
    loss = -float(np.where(mask, wanted * np.where(mask, logs, 0.0), 0.0).sum()) / len(scores)
    return loss, (given - wanted) / len(scores), given


@dataclass(frozen=True, slots=True)
class Scaling:
    """Standardisation of features: (x − mean) / scale, by column.

    Attributes:
        means: Shape (F,).
        scales: Standard deviations, shape (F,); 1 for a column that does not vary.
    """

    means: FloatArray
    scales: FloatArray

    @classmethod
    def of(cls, lists: Sequence[FloatArray]) -> Scaling:
        """Measure the columns over all documents in all lists."""
        rows = np.concatenate(lists)
        deviations = rows.std(axis=0)
        # A constant column may deviate by rounding.
        varies = deviations > 1e-9 * (1 + np.abs(rows).max(axis=0))
        return cls(rows.mean(axis=0), np.where(varies, deviations, 1.0))

    def and_unscaled(self, columns: int) -> Scaling:
        """Return this scaling with further columns that it leaves unchanged."""
        return Scaling(
            np.append(self.means, np.zeros(columns)), np.append(self.scales, np.ones(columns))
        )

    def __call__(self, features: FloatArray) -> FloatArray:
        """Standardise features, shape (…, F)."""
        return np.asarray((features - self.means) / self.scales)


@dataclass(frozen=True, slots=True)
class Minimum:
    """The result of an optimiser.

    Attributes:
        weights: The best weights found.
        loss: The loss at these weights.
        iterations: The number of steps taken.
    """

    weights: FloatArray
    loss: float
    iterations: int


def with_decay(objective: Objective, l2: float) -> Objective:
    """Return the loss plus ½·l2·|w|², which keeps the weights small."""

    def decayed(weights: FloatArray) -> tuple[float, FloatArray]:
        loss, gradient = objective(weights)
        return loss + l2 * float(weights @ weights) / 2, gradient + l2 * weights

    return decayed


def minimise(
    objective: Objective, start: FloatArray, iterations: int, tolerance: float = 1e-7
) -> Minimum:
    """Minimise a smooth function by L-BFGS (Liu & Nocedal 1989), with scipy.

    It ends when no component of the gradient is above the tolerance, when no step lowers the loss
    any more, or after the given number of steps.

    Args:
        objective: The function and its gradient.
        start: The initial weights, shape (F,).
        iterations: The maximum number of steps.
        tolerance: The tolerance for the gradient.
    """
    from scipy import optimize

    found = optimize.minimize(
        objective,
        start,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": iterations, "maxfun": 50 * iterations, "gtol": tolerance, "ftol": 0.0},
    )
    return Minimum(np.asarray(found.x, dtype=np.float64), float(found.fun), int(found.nit))
