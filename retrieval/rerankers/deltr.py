"""DELTR: learning to rank with a penalty on disparate exposure (Zehlike & Castillo 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from fairqr.base.errors import InputError
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.exposure import INVERSE_LOG, FloatArray
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.rerankers.base import Candidates, Reranked, RerankOptions
from fairqr.retrieval.rerankers.examples import Examples
from fairqr.retrieval.rerankers.features import FEATURES, features
from fairqr.retrieval.rerankers.listwise import (
    Minimum,
    Scaling,
    list_cross_entropy,
    minimise,
    padded,
    with_decay,
)
from fairqr.retrieval.rerankers.protection import PROTECTED_HELP, choose_protected, group_of_each
from fairqr.retrieval.rerankers.weights import LinearModel, TrainedModel, group_positions

TOP_WEIGHT = float(INVERSE_LOG.weights(1)[0])
"""v(1) = 1/ln 2, the weight of the first rank in the paper."""

List = tuple[FloatArray, FloatArray, FloatArray]


class DeltrTraining(BaseModel):
    """Options of DELTR's training."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    gamma: float = Field(
        1e3, ge=0, description="γ, the weight of the penalty on disparate exposure."
    )
    protected: str | None = Field(None, description=PROTECTED_HELP)
    k: int = Field(20, ge=1, description="How many ranks to check for under-representation.")
    l2: float = Field(
        1e-3, ge=0, description="The weight of ½·|w|², which keeps the weights small."
    )
    iterations: int = Field(200, ge=1, le=100_000, description="The maximum number of steps.")
    seed: int = Field(0, ge=0, description="The seed of the initial weights.")


class DeltrOptions(RerankOptions):
    """Options of DELTR."""

    weights: Path = Field(description="The file of weights from 'fairqr train deltr'.")


class DeltrModel(TrainedModel):
    """Trained weights.

    Attributes:
        dimension: The attribute that it was trained for.
        protected: Its protected groups.
        model: The model of the features; the last one marks protected documents.
        training: The options of the training.
        loss: The final loss over the examples.
        iterations: The number of steps taken.
    """

    kind: ClassVar[str] = "deltr"

    name: Literal["deltr"] = "deltr"
    dimension: str
    protected: tuple[str, ...]
    model: LinearModel
    training: DeltrTraining
    loss: float
    iterations: int

    def scores(self, features: FloatArray, protected: FloatArray) -> FloatArray:
        """Return the score of each document, shape (n,).

        Args:
            features: The features, shape (n, F).
            protected: 1 for a protected document, otherwise 0, shape (n,).
        """
        return self.model.scores(np.column_stack([features, protected]))


class DeltrReranker:
    """Orders by a trained model; the scores are the model's."""

    name = "deltr"

    def __init__(self, model: DeltrModel, engine: SearchEngine) -> None:
        self._model = model
        self._engine = engine

    async def rerank(self, query: str, candidates: Candidates, k: int) -> Reranked:
        """See :meth:`fairqr.retrieval.rerankers.base.Reranker.rerank`."""
        dimension, groups = group_positions(
            self.name, candidates, self._model.dimension, self._model.protected
        )
        if not len(candidates):
            return Reranked(Ranking([], []))
        columns = await features(self._engine, query, candidates.ranking)
        protected = _protected(candidates, dimension, groups)
        scores = self._model.scores(columns, protected).tolist()
        return Reranked(Ranking.of(zip(candidates.ranking.ids, scores, strict=True)).top(k))


@dataclass(frozen=True, slots=True)
class DeltrBatch:
    """All lists of a training, padded.

    Attributes:
        features: Shape (Q, N, F).
        grades: Shape (Q, N).
        mask: Which positions have a document, shape (Q, N).
        contrast: Shape (Q, N): v(1)/|G0| for an unprotected document, −v(1)/|G1| for a protected
            one. So E(G0) − E(G1) = Σ_i contrast_i·P_f(i). All zeros for a list without both kinds,
            since their exposures cannot be compared.
    """

    features: FloatArray
    grades: FloatArray
    mask: NDArray[np.bool_]
    contrast: FloatArray

    @classmethod
    def of(cls, lists: Sequence[List]) -> DeltrBatch:
        """Pad lists of (features (n, F), grades (n,), protected (n,))."""
        contrasts = []
        for _, _, protected in lists:
            ours, others = protected.sum(), (1 - protected).sum()
            contrasts.append(
                TOP_WEIGHT * ((1 - protected) / others - protected / ours)
                if ours and others
                else np.zeros_like(protected)
            )
        return cls(
            padded([columns for columns, _, _ in lists]),
            padded([grades for _, grades, _ in lists]),
            padded([np.ones(len(grades)) for _, grades, _ in lists]) > 0,
            padded(contrasts),
        )


def deltr_loss(weights: FloatArray, batch: DeltrBatch, gamma: float) -> tuple[float, FloatArray]:
    """Return the loss of DELTR and its gradient.

    With f = Xw and P_s = softmax(s) over a list, it is the mean over the lists of

        −Σ_i P_y(i)·ln P_f(i) + γ·max(0, E(G0) − E(G1))²,   E(G) = mean over G of P_f(i)·v(1)

    where G1 is protected (Zehlike & Castillo 2020). With the batch's contrast c, the penalty is
    γ·max(0, d)² with d = Σ_i c_i·P_f(i), and ∂d/∂f_i = P_f(i)·(c_i − d).

    Args:
        weights: w, shape (F,).
        batch: The lists.
        gamma: γ ≥ 0.

    Returns:
        The loss, and its gradient, shape (F,).
    """
    loss, slope, given = list_cross_entropy(batch.grades, batch.features @ weights, batch.mask)
    disparity = (batch.contrast * given).sum(axis=1)
    excess = np.maximum(disparity, 0.0)
    loss += gamma * float((excess**2).mean())
    slope += (
        (2 * gamma / len(excess)) * excess[:, None] * given * (batch.contrast - disparity[:, None])
    )
    return loss, np.tensordot(slope, batch.features, axes=2)


def fit_deltr(lists: Sequence[List], options: DeltrTraining) -> Minimum:
    """Learn the weights of DELTR.

    Args:
        lists: For each query the features (n, F), standardised and including the mark of the
            protected group; the grades (n,); and 1 for each protected document, otherwise 0, (n,).
        options: The options of the training.
    """
    batch = DeltrBatch.of(lists)
    columns = int(batch.features.shape[2])
    start = np.random.default_rng(options.seed).normal(0.0, 0.01, size=columns)

    def objective(weights: FloatArray) -> tuple[float, FloatArray]:
        return deltr_loss(weights, batch, options.gamma)

    return minimise(with_decay(objective, options.l2), start, options.iterations)


def train_deltr(examples: Examples, options: DeltrTraining | None = None) -> DeltrModel:
    """Train DELTR on topics.

    The features are standardised over all documents, the mark of the protected group is not. By
    default, the protected group is the one that lacks most exposure on average over the topics.

    Raises:
        InputError: There is nothing to learn from, or a protected group does not exist.
    """
    options = options or DeltrTraining()
    examples.check()
    lists_of_candidates = [item.candidates for item in examples.items]
    chosen = choose_protected(lists_of_candidates, options.k, options.protected)
    scaling = Scaling.of([item.features for item in examples.items])
    lists = []
    for item in examples.items:
        protected = _protected(item.candidates, chosen.dimension, chosen.groups)
        columns = np.column_stack([scaling(item.features), protected])
        lists.append((columns, item.grades, protected))
    found = fit_deltr(lists, options)
    first = lists_of_candidates[0]
    return DeltrModel(
        trained_on=examples.sha256(),
        topics=len(examples.items),
        dimension=first.dimensions[chosen.dimension],
        protected=tuple(first.groups[chosen.dimension][group] for group in chosen.groups),
        model=LinearModel.of(
            (*examples.feature_names, "protected"), scaling.and_unscaled(1), found.weights
        ),
        training=options,
        loss=found.loss,
        iterations=found.iterations,
    )


def _protected(candidates: Candidates, dimension: int, groups: Sequence[int]) -> FloatArray:
    belongs = group_of_each(candidates.memberships[dimension])
    return np.isin(belongs, list(groups)).astype(np.float64)


def build(options: DeltrOptions, engine: SearchEngine) -> DeltrReranker:
    """Return the re-ranker with the weights in the file named by the options."""
    model = DeltrModel.load(options.weights)
    if model.model.features != (*FEATURES, "protected"):
        raise InputError(
            f"{options.weights} was trained on other features than this version of fairqr has; "
            "train it again with 'fairqr train deltr'."
        )
    return DeltrReranker(model, engine)
