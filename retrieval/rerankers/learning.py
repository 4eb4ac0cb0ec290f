"""Linear models that learn from lists: training, scores, and files of their weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from fairqr.base.errors import InputError, first_problem, one_line
from fairqr.base.files import write_beside
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.rerankers.base import Candidates
from fairqr.retrieval.rerankers.examples import FEATURES

Loss = Callable[[FloatArray], tuple[float, FloatArray]]
"""Takes scores, shape (Q, N), and returns the loss and its gradient by the scores."""


class Training(BaseModel):
    """Options of every training."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    l2: float = Field(
        1e-3, ge=0, description="The weight of ½·|w|², which keeps the weights small."
    )
    iterations: int = Field(200, ge=1, le=100_000, description="The maximum number of steps.")


@dataclass(frozen=True, slots=True)
class Minimum:
    """The result of a training.

    Attributes:
        weights: The best weights found, shape (F,).
        loss: The loss at these weights.
        iterations: The number of steps taken.
    """

    weights: FloatArray
    loss: float
    iterations: int


def fit(features: FloatArray, loss: Loss, start: FloatArray, options: Training) -> Minimum:
    """Minimise loss(X·w) + ½·l2·|w|² by L-BFGS (Liu & Nocedal 1989), with scipy.

    It ends when the gradient is nearly 0, when no step lowers the loss any more, or after the given
    number of steps.

    Args:
        features: X, shape (Q, N, F).
        loss: The loss of scores.
        start: The initial weights, shape (F,).
        options: The options of the training.
    """
    from scipy import optimize

    def objective(weights: FloatArray) -> tuple[float, FloatArray]:
        value, slope = loss(features @ weights)
        decay = options.l2 * float(weights @ weights) / 2
        return value + decay, np.tensordot(slope, features, axes=2) + options.l2 * weights

    steps = options.iterations
    limits = {"maxiter": steps, "maxfun": 50 * steps, "gtol": 1e-7, "ftol": 0.0}
    found = optimize.minimize(objective, start, jac=True, method="L-BFGS-B", options=limits)
    return Minimum(np.asarray(found.x, dtype=np.float64), float(found.fun), int(found.nit))


def padded(lists: Sequence[FloatArray]) -> FloatArray:
    """Stack arrays of shape (n_q, …) into one of shape (Q, max n_q, …), padded with zeros."""
    longest = max(len(values) for values in lists)
    batch = np.zeros((len(lists), longest, *np.shape(lists[0])[1:]))
    for row, values in enumerate(lists):
        batch[row, : len(values)] = values
    return batch


def log_softmax(scores: FloatArray, mask: NDArray[np.bool_]) -> FloatArray:
    """Return ln(exp(s_i) / Σ_j exp(s_j)) over each list, shape (Q, N); −∞ for padding."""
    held = np.where(mask, scores, -np.inf)
    held = held - held.max(axis=1, keepdims=True)
    return np.asarray(held - np.log(np.exp(held).sum(axis=1, keepdims=True)))


def list_cross_entropy(
    grades: FloatArray, scores: FloatArray, mask: NDArray[np.bool_]
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


class LinearModel(BaseModel):
    """A linear function of standardised features.

    Attributes:
        features: The name of each column.
        means, scales: The standardisation of each column.
        weights: The weight of each column.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    features: tuple[str, ...]
    means: tuple[FiniteFloat, ...]
    scales: tuple[FiniteFloat, ...]
    weights: tuple[FiniteFloat, ...]

    @model_validator(mode="after")
    def _columns_fit(self) -> Self:
        columns = len(self.features)
        if not len(self.means) == len(self.scales) == len(self.weights) == columns:
            raise ValueError("the columns of the weights do not fit each other")
        if not all(scale > 0 for scale in self.scales):
            raise ValueError("a scale is not above 0")
        return self

    @classmethod
    def of(
        cls, names: Sequence[str], lists: Sequence[FloatArray], weights: FloatArray
    ) -> LinearModel:
        """Return the model with weights that were learned on standardised features.

        Args:
            names: The name of each column; columns beyond those of the lists stay as they are.
            lists: The features of each list, shape (n, F).
            weights: The weight of each column, shape (F + columns that stay,).
        """
        means, scales = standardisation(lists)
        rest = len(names) - len(means)
        return cls(
            features=tuple(names),
            means=(*means.tolist(), *[0.0] * rest),
            scales=(*scales.tolist(), *[1.0] * rest),
            weights=tuple(weights.tolist()),
        )

    def scores(self, features: FloatArray) -> FloatArray:
        """Return the score of each document, shape (n,), from its features, shape (n, F)."""
        standardised = (features - np.array(self.means)) / np.array(self.scales)
        return np.asarray(standardised @ np.array(self.weights))


def standardisation(lists: Sequence[FloatArray]) -> tuple[FloatArray, FloatArray]:
    """Return the mean and the deviation of each column over all lists, 1 if it does not vary."""
    rows = np.concatenate(lists)
    deviations = rows.std(axis=0)
    # A constant column may deviate by rounding.
    varies = deviations > 1e-9 * (1 + np.abs(rows).max(axis=0))
    return rows.mean(axis=0), np.where(varies, deviations, 1.0)


class TrainedModel(BaseModel):
    """Base of all files of weights.

    Attributes:
        format: The version of the file format.
        trained_on: The SHA-256 of the examples.
        topics: The number of examples.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: ClassVar[str]

    format: Literal[1] = 1
    trained_on: str
    topics: int

    def save(self, path: Path) -> None:
        """Write the model as JSON, whole or not at all."""
        write_beside(path, self.model_dump_json(indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a model.

        Raises:
            InputError: The file cannot be read, or does not contain weights of this kind.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise InputError(
                f"The weights {path} cannot be read: {error.strerror or error}."
            ) from None
        except ValidationError as error:
            where, reason = first_problem(error)
            raise InputError(
                f"{path} does not contain weights of {cls.kind} (wrong at {where or 'the file'}: "
                f"{one_line(reason, 120)}); write them with 'fairqr train {cls.kind}'."
            ) from None


def check_features(kind: str, path: Path, model: LinearModel, others: Sequence[str] = ()) -> None:
    """Refuse weights of other features than those of this version, followed by others.

    Raises:
        InputError: They are of others.
    """
    if model.features != (*FEATURES, *others):
        raise InputError(
            f"{path} was trained on other features than this version of fairqr has; train it again "
            f"with 'fairqr train {kind}'."
        )


def group_positions(
    kind: str, candidates: Candidates, dimension: str, groups: tuple[str, ...]
) -> tuple[int, list[int]]:
    """Return the positions of a trained dimension and its groups among the candidates'.

    Raises:
        InputError: The dimension or a group is not measured here.
    """
    if dimension not in candidates.dimensions:
        raise InputError(
            f"These weights of {kind} were trained for the attribute '{dimension}', but this "
            f"search measures {', '.join(candidates.dimensions)}; use weights trained for that."
        )
    position = list(candidates.dimensions).index(dimension)
    known = list(candidates.groups[position])
    if missing := [group for group in groups if group not in known]:
        raise InputError(
            f"These weights of {kind} were trained for the group '{missing[0]}', which "
            f"'{dimension}' does not have here; train on this corpus, with 'fairqr train {kind}'."
        )
    return position, [known.index(group) for group in groups]
