"""DELTR, a linear model trained for relevance and equal exposure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fairqr.retrieval.fairness.exposure import INVERSE_LOG, FloatArray
from fairqr.retrieval.rerankers.base import Candidates
from fairqr.retrieval.rerankers.learning import (
    FEATURES,
    LinearModel,
    Lists,
    TopicExample,
    TrainedModel,
    TrainedReranker,
    TrainingOptions,
    list_cross_entropy,
    padded,
    trained_dimension,
)
from fairqr.retrieval.rerankers.protection import PROTECTED_HELP, choose_protected, group_of_each

TOP_WEIGHT = float(INVERSE_LOG.weights(1)[0])
"""v(1) = 1/ln 2, the weight of the first rank in the paper."""


class DeltrTraining(TrainingOptions):
    """Options of DELTR's training."""

    gamma: float = Field(
        1e3, ge=0, description="γ, the weight of the penalty on disparate exposure."
    )
    protected: str | None = Field(None, description=PROTECTED_HELP)
    k: int = Field(20, ge=1, description="How many ranks to check for under-representation.")
    seed: int = Field(0, ge=0, description="The seed of the initial weights.")


class DeltrModel(TrainedModel):
    """Trained weights.

    Attributes:
        dimension: The attribute that it was trained for.
        protected: Its protected groups.
        model: The model of the features; the last one marks protected documents.
        training: The options of the training.
    """

    name: Literal["deltr"] = "deltr"
    dimension: str
    protected: tuple[str, ...]
    model: LinearModel
    training: DeltrTraining


class Deltr(TrainedReranker):
    """DELTR, a linear model trained for relevance and equal exposure (Zehlike & Castillo 2020)."""

    model_type = DeltrModel

    def scores(self, columns: FloatArray, candidates: Candidates) -> FloatArray:
        """See :meth:`fairqr.retrieval.rerankers.learning.TrainedReranker.scores`."""
        model: DeltrModel = self._model
        dimension = trained_dimension("deltr", candidates, model.dimension, model.protected)
        mark = _mark(candidates, dimension, model.protected)
        return model.model.scores(np.column_stack([columns, mark]))


def contrast(protected: FloatArray) -> FloatArray:
    """Return v(1)/|G0| for unprotected documents and −v(1)/|G1| for protected ones, shape (n,).

    So E(G0) − E(G1) = Σ_i contrast_i·P_f(i). It is 0 for a list without both kinds, since their
    exposures cannot be compared.

    Args:
        protected: 1 for each protected document, otherwise 0, shape (n,).
    """
    unprotected = 1 - protected
    size_of_protected = protected.sum()
    size_of_unprotected = unprotected.sum()
    if not size_of_protected or not size_of_unprotected:
        return np.zeros_like(protected)
    difference = unprotected / size_of_unprotected - protected / size_of_protected
    return np.asarray(TOP_WEIGHT * difference)


def deltr_loss(
    scores: FloatArray,
    grades: FloatArray,
    mask: NDArray[np.bool_],
    contrasts: FloatArray,
    gamma: float,
) -> tuple[float, FloatArray]:
    """Return the loss of DELTR and its gradient by the scores, shape (Q, N).

    With P_s = softmax(s) over a list, it is the mean over the lists of

        −Σ_i P_y(i)·ln P_f(i) + γ·max(0, E(G0) − E(G1))²,   E(G) = mean over G of P_f(i)·v(1)

    where G1 is protected (Zehlike & Castillo 2020). With the contrast c, the penalty is
    γ·max(0, d)² with d = Σ_i c_i·P_f(i), and ∂d/∂f_i = P_f(i)·(c_i − d).

    Args:
        scores: f, shape (Q, N).
        grades: y, shape (Q, N).
        mask: Which positions have a document, shape (Q, N).
        contrasts: c of each list, shape (Q, N).
        gamma: γ ≥ 0.
    """
    loss, slope, probabilities = list_cross_entropy(grades, scores, mask)
    disparity = (contrasts * probabilities).sum(axis=1)
    excess = np.maximum(disparity, 0.0)
    loss += gamma * float((excess**2).mean())
    by_disparity = 2 * gamma / len(excess) * excess[:, None]
    return loss, slope + by_disparity * probabilities * (contrasts - disparity[:, None])


def train_deltr(examples: Sequence[TopicExample], options: DeltrTraining) -> DeltrModel:
    """Train DELTR on topics.

    The features are standardised over all documents, the mark of the protected group is not. By
    default, the protected group is the one that lacks most exposure on average over the topics.

    Raises:
        InputError: There is nothing to learn from, or a protected group does not exist.
    """
    lists = Lists.of(examples)
    candidates_of_topics = [example.candidates for example in examples]
    dimension, groups = choose_protected(candidates_of_topics, options.k, options.protected)
    first_candidates = candidates_of_topics[0]
    protected = tuple(first_candidates.groups[dimension][group] for group in groups)
    marks = [_mark(candidates, dimension, protected) for candidates in candidates_of_topics]
    contrasts = padded([contrast(mark) for mark in marks])

    def loss(scores: FloatArray) -> tuple[float, FloatArray]:
        return deltr_loss(scores, lists.grades, lists.mask, contrasts, options.gamma)

    start = np.random.default_rng(options.seed).normal(0.0, 0.01, size=len(FEATURES) + 1)
    return DeltrModel(
        topics=len(examples),
        dimension=first_candidates.dimensions[dimension],
        protected=protected,
        model=lists.fit(loss, options, {"protected": padded(marks)}, start),
        training=options,
    )


def _mark(candidates: Candidates, dimension: int, protected: Sequence[str]) -> FloatArray:
    """Return 1 for each document of a protected group, otherwise 0, shape (n,)."""
    groups = [candidates.groups[dimension].index(name) for name in protected]
    group_of_document = group_of_each(candidates.memberships[dimension])
    return np.isin(group_of_document, groups).astype(np.float64)
