"""DELTR: learning to rank with a penalty on disparate exposure (Zehlike & Castillo 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.exposure import INVERSE_LOG, FloatArray
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.rerankers.base import Candidates, Reranked, RerankOptions
from fairqr.retrieval.rerankers.examples import Examples, features
from fairqr.retrieval.rerankers.learning import (
    LinearModel,
    Minimum,
    TrainedModel,
    Training,
    check_features,
    fit,
    group_positions,
    list_cross_entropy,
    padded,
    standardisation,
)
from fairqr.retrieval.rerankers.protection import PROTECTED_HELP, choose_protected, group_of_each

TOP_WEIGHT = float(INVERSE_LOG.weights(1)[0])
"""v(1) = 1/ln 2, the weight of the first rank in the paper."""

List = tuple[FloatArray, FloatArray, FloatArray]
"""Of a query the features (n, F), standardised and with the mark of the protected group; the grades
(n,); and 1 for each protected document, otherwise 0, (n,)."""


class DeltrTraining(Training):
    """Options of DELTR's training."""

    gamma: float = Field(
        1e3, ge=0, description="γ, the weight of the penalty on disparate exposure."
    )
    protected: str | None = Field(None, description=PROTECTED_HELP)
    k: int = Field(20, ge=1, description="How many ranks to check for under-representation.")
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


class DeltrReranker:
    """Orders by a trained model; the scores are the model's."""

    name = "deltr"

    def __init__(self, options: DeltrOptions, engine: SearchEngine) -> None:
        self._model = DeltrModel.load(options.weights)
        self._engine = engine
        check_features(self.name, options.weights, self._model.model, ["protected"])

    async def rerank(self, query: str, candidates: Candidates, k: int) -> Reranked:
        """See :meth:`fairqr.retrieval.rerankers.base.Reranker.rerank`."""
        dimension, groups = group_positions(
            self.name, candidates, self._model.dimension, self._model.protected
        )
        if not len(candidates):
            return Reranked(Ranking([], []))
        columns = await features(self._engine, query, candidates.ranking)
        marked = np.column_stack([columns, _protected(candidates, dimension, groups)])
        scores = self._model.model.scores(marked).tolist()
        return Reranked(Ranking.of(zip(candidates.ranking.ids, scores, strict=True)).top(k))


def contrast(protected: FloatArray) -> FloatArray:
    """Return v(1)/|G0| for unprotected documents and −v(1)/|G1| for protected ones, shape (n,).

    So E(G0) − E(G1) = Σ_i contrast_i·P_f(i). It is 0 for a list without both kinds, since their
    exposures cannot be compared.

    Args:
        protected: 1 for each protected document, otherwise 0, shape (n,).
    """
    ours, others = protected.sum(), (1 - protected).sum()
    if not ours or not others:
        return np.zeros_like(protected)
    return np.asarray(TOP_WEIGHT * ((1 - protected) / others - protected / ours))


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
    loss, slope, given = list_cross_entropy(grades, scores, mask)
    disparity = (contrasts * given).sum(axis=1)
    excess = np.maximum(disparity, 0.0)
    loss += gamma * float((excess**2).mean())
    change = 2 * gamma / len(excess) * excess[:, None]
    return loss, slope + change * given * (contrasts - disparity[:, None])


def fit_deltr(lists: Sequence[List], options: DeltrTraining) -> Minimum:
    """Learn the weights of DELTR."""
    columns = padded([own for own, _, _ in lists])
    grades = padded([own for _, own, _ in lists])
    mask = padded([np.ones(len(own)) for _, own, _ in lists]) > 0
    contrasts = padded([contrast(own) for _, _, own in lists])
    start = np.random.default_rng(options.seed).normal(0.0, 0.01, size=(columns.shape[2],))

    def loss(scores: FloatArray) -> tuple[float, FloatArray]:
        return deltr_loss(scores, grades, mask, contrasts, options.gamma)

    return fit(columns, loss, start, options)


def train_deltr(examples: Examples, options: DeltrTraining | None = None) -> DeltrModel:
    """Train DELTR on topics.

    The features are standardised over all documents, the mark of the protected group is not. By
    default, the protected group is the one that lacks most exposure on average over the topics.

    Raises:
        InputError: There is nothing to learn from, or a protected group does not exist.
    """
    options = options or DeltrTraining()
    examples.check()
    every = [item.candidates for item in examples.items]
    chosen = choose_protected(every, options.k, options.protected)
    own = [item.features for item in examples.items]
    means, scales = standardisation(own)
    lists = []
    for item in examples.items:
        protected = _protected(item.candidates, chosen.dimension, chosen.groups)
        columns = np.column_stack([(item.features - means) / scales, protected])
        lists.append((columns, item.grades, protected))
    found = fit_deltr(lists, options)
    return DeltrModel(
        trained_on=examples.sha256(),
        topics=len(examples.items),
        dimension=every[0].dimensions[chosen.dimension],
        protected=tuple(every[0].groups[chosen.dimension][group] for group in chosen.groups),
        model=LinearModel.of((*examples.feature_names, "protected"), own, found.weights),
        training=options,
        loss=found.loss,
        iterations=found.iterations,
    )


def _protected(candidates: Candidates, dimension: int, groups: Sequence[int]) -> FloatArray:
    belongs = group_of_each(candidates.memberships[dimension])
    return np.isin(belongs, list(groups)).astype(np.float64)
