"""A linear reconstruction of DLF, which learns fairness from the target (Chen & Fang 2023).

It follows "Learn to be Fair without Labels: a Distribution-based Learning Framework for Fair
Ranking" (ICTIR 2023, arXiv 2405.17798), as far as its abstract and summaries go:

- no document needs a fairness label, because the loss compares the exposure that the scores give
  with the target distribution ε*, by a differentiable KL divergence;
- the fairness model and the relevance model are trained separately, and their scores are blended
  with a weight α, which sets the trade-off;
- it can learn for several attributes at once.

We decided the following, because those sources leave it open or the paper does it differently:

- both models are linear; the paper's fairness model reads Sentence-BERT embeddings of the text,
  ours the features in :mod:`fairqr.retrieval.rerankers.examples` and the memberships;
- it sees the target of each query through one feature for each attribute,
  Σ_g m_ig·ln(ε*_g/π_g), with π the shares of the groups among the candidates;
- exposure is that of the first draw from softmax(scores), as in DELTR;
- the relevance model is ListNet (Cao et al. 2007). We standardise its scores within the query
  before blending, because their scale only reflects the grades. The scores of the fairness model
  stay as they are: if the candidates are near the target, they hardly differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.divergence import DEFAULT_SMOOTHING, smooth
from fairqr.retrieval.fairness.exposure import FloatArray, normalise
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.rerankers.base import Candidates, Reranked, RerankOptions
from fairqr.retrieval.rerankers.examples import Examples, features
from fairqr.retrieval.rerankers.learning import (
    LinearModel,
    TrainedModel,
    Training,
    check_features,
    fit,
    group_positions,
    list_cross_entropy,
    log_softmax,
    padded,
    standardisation,
)


class DlfTraining(Training):
    """Options of the training of both models. It is deterministic: both start at zero."""


class DlfOptions(RerankOptions):
    """Options of the linear reconstruction of DLF."""

    weights: Path = Field(description="The file of weights from 'fairqr train dlf'.")
    alpha: float = Field(
        0.6,
        ge=0,
        le=1,
        description="α: 1 ranks by the relevance model, 0 by the fairness model.",
    )


class DlfModel(TrainedModel):
    """Trained weights.

    Attributes:
        dimensions: The attributes that it was trained for, and the groups of each.
        relevance: The relevance model.
        fairness: The fairness model; its last columns are the target features.
        training: The options of the training.
        relevance_loss: The final loss of the relevance model over the examples.
        fairness_loss: The final loss of the fairness model over the examples.
    """

    kind: ClassVar[str] = "dlf"

    name: Literal["dlf"] = "dlf"
    dimensions: dict[str, tuple[str, ...]]
    relevance: LinearModel
    fairness: LinearModel
    training: DlfTraining
    relevance_loss: float
    fairness_loss: float

    def scores(self, features: FloatArray, target_features: FloatArray, alpha: float) -> FloatArray:
        """Return α·relevance + (1−α)·fairness of each document, shape (n,).

        Args:
            features: The features, shape (n, F).
            target_features: The target feature of each attribute, shape (n, A).
            alpha: The weight of the relevance model, in [0, 1].
        """
        relevance = self.relevance.scores(features)
        deviation = float(relevance.std())
        # Equal scores may deviate by rounding.
        varies = deviation > 1e-9 * (1 + float(np.abs(relevance).max(initial=0.0)))
        relevance = (relevance - relevance.mean()) / (deviation if varies else 1.0)
        fairness = self.fairness.scores(np.column_stack([features, target_features]))
        return np.asarray(alpha * relevance + (1 - alpha) * fairness)


class DlfReranker:
    """Orders by a trained model; the scores are the blended ones."""

    name = "dlf"

    def __init__(self, options: DlfOptions, engine: SearchEngine) -> None:
        self._model = model = DlfModel.load(options.weights)
        self._alpha = options.alpha
        self._engine = engine
        check_features(self.name, options.weights, model.relevance)
        check_features(
            self.name, options.weights, model.fairness, _target_names(list(model.dimensions))
        )

    async def rerank(self, query: str, candidates: Candidates, k: int) -> Reranked:
        """See :meth:`fairqr.retrieval.rerankers.base.Reranker.rerank`."""
        if not len(candidates):
            return Reranked(Ranking([], []))
        positions = [
            group_positions(self.name, candidates, dimension, groups)[0]
            for dimension, groups in self._model.dimensions.items()
        ]
        columns = await features(self._engine, query, candidates.ranking)
        scores = self._model.scores(columns, _target_features(candidates, positions), self._alpha)
        pairs = zip(candidates.ranking.ids, scores.tolist(), strict=True)
        return Reranked(Ranking.of(pairs).top(k))


def target_feature(memberships: FloatArray, target: FloatArray) -> FloatArray:
    """Return Σ_g m_ig·ln(ε*_g/π_g) of each document, shape (n,).

    π_g is the share of the group among the documents; both distributions are smoothed alike. If
    each document belongs to one group, scores equal to this feature make the exposure of the first
    draw from their softmax equal to the target. A document without a label has 0.

    Args:
        memberships: Shape (n, G).
        target: ε*, shape (G,).
    """
    shares = normalise(memberships.sum(axis=0))
    return np.asarray(memberships @ np.log(smooth(target) / smooth(shares)))


def distribution_loss(
    scores: FloatArray,
    mask: NDArray[np.bool_],
    memberships: Sequence[FloatArray],
    targets: Sequence[FloatArray],
) -> tuple[float, FloatArray]:
    """Return the loss of the fairness model and its gradient by the scores, shape (Q, N).

    The loss is KL(ε*‖ε) in nats, with both distributions smoothed alike, averaged over the lists
    and attributes. ε_g = Σ_i P_i·m_ig / Σ_ih P_i·m_ih is the exposure of the first draw from
    P = softmax(scores). A list without any label of an attribute is left out of the average.

    With e the smoothed ε, λ the smoothing and T = Σ_ih P_i·m_ih, the gradient follows from
    ∂KL/∂ε_g = −(1−λ)·ε*_g/e_g =: u_g,  v_i = Σ_g m_ig·(u_g − Σ_h u_h·ε_h)/T  and
    ∂KL/∂s_i = P_i·(v_i − Σ_j P_j·v_j).

    Args:
        scores: Shape (Q, N).
        mask: Which positions have a document, shape (Q, N).
        memberships: For each attribute, shape (Q, N, G_a).
        targets: For each attribute, shape (Q, G_a).
    """
    given = np.exp(log_softmax(scores, mask))
    slope = np.zeros_like(given)
    loss = 0.0
    for members, target in zip(memberships, targets, strict=True):
        exposures = np.einsum("qn,qng->qg", given, members)
        total = exposures.sum(axis=1, keepdims=True)
        labelled = total > 0
        count = max(1, int(labelled.sum())) * len(targets)
        total = np.where(labelled, total, 1.0)
        exposures = exposures / total
        wanted, shown = smooth(target), smooth(exposures)
        loss += float((labelled * wanted * np.log(wanted / shown)).sum()) / count
        by_exposure = -(1 - DEFAULT_SMOOTHING) * labelled * wanted / shown
        by_exposure -= (by_exposure * exposures).sum(axis=1, keepdims=True)
        by_draw = np.einsum("qng,qg->qn", members, by_exposure / total)
        slope += given * (by_draw - (given * by_draw).sum(axis=1, keepdims=True)) / count
    return loss, slope


def train_dlf(examples: Examples, options: DlfTraining | None = None) -> DlfModel:
    """Train both models of the reconstruction of DLF on topics.

    The relevance model learns from the grades, the fairness model only from memberships and
    targets. The features are standardised over all documents, the target features are not.

    Raises:
        InputError: There is nothing to learn from.
    """
    options = options or DlfTraining()
    examples.check()
    items = examples.items
    own = [item.features for item in items]
    means, scales = standardisation(own)
    columns = padded([(it - means) / scales for it in own])
    grades = padded([item.grades for item in items])
    mask = padded([np.ones(len(item.grades)) for item in items]) > 0
    first = items[0].candidates
    every = range(len(first.dimensions))
    told = padded([_target_features(item.candidates, every) for item in items])
    memberships = [padded([item.candidates.memberships[a] for item in items]) for a in every]
    targets = [np.array([item.candidates.targets[a] for item in items]) for a in every]

    def by_relevance(scores: FloatArray) -> tuple[float, FloatArray]:
        return list_cross_entropy(grades, scores, mask)[:2]

    def by_distribution(scores: FloatArray) -> tuple[float, FloatArray]:
        return distribution_loss(scores, mask, memberships, targets)

    both = np.concatenate([columns, told], axis=2)
    relevance, fairness = (
        fit(read, loss, np.zeros(read.shape[2]), options)
        for read, loss in ((columns, by_relevance), (both, by_distribution))
    )
    names = examples.feature_names
    told_names = _target_names(first.dimensions)
    return DlfModel(
        trained_on=examples.sha256(),
        topics=len(items),
        dimensions={first.dimensions[a]: tuple(first.groups[a]) for a in every},
        relevance=LinearModel.of(names, own, relevance.weights),
        fairness=LinearModel.of((*names, *told_names), own, fairness.weights),
        training=options,
        relevance_loss=relevance.loss,
        fairness_loss=fairness.loss,
    )


def _target_names(dimensions: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"target({dimension})" for dimension in dimensions)


def _target_features(candidates: Candidates, dimensions: Sequence[int]) -> FloatArray:
    return np.column_stack(
        [target_feature(candidates.memberships[a], candidates.targets[a]) for a in dimensions]
    )
