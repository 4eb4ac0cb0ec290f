"""DLF, a linear model trained for the distribution of exposure, from its paper's abstract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fairqr.retrieval.fairness.divergence import DEFAULT_SMOOTHING, smooth
from fairqr.retrieval.fairness.exposure import FloatArray, normalise
from fairqr.retrieval.rerankers.base import Candidates
from fairqr.retrieval.rerankers.learning import (
    LinearModel,
    Lists,
    TopicExample,
    TrainedModel,
    TrainedReranker,
    TrainingOptions,
    list_cross_entropy,
    log_softmax,
    padded,
    trained_dimension,
)


class DlfModel(TrainedModel):
    """Trained weights.

    Attributes:
        dimensions: The attributes that it was trained for, and the groups of each.
        relevance: The relevance model.
        fairness: The fairness model; its last columns are the target features.
        training: The options of the training.
    """

    name: Literal["dlf"] = "dlf"
    dimensions: dict[str, tuple[str, ...]]
    relevance: LinearModel
    fairness: LinearModel
    training: TrainingOptions


class Dlf(TrainedReranker):
    """DLF, a linear reconstruction from its paper's abstract (Chen & Fang 2023).

    It follows "Learn to be Fair without Labels: a Distribution-based Learning Framework for Fair
    Ranking" (ICTIR 2023, arXiv 2405.17798), as far as its abstract and summaries go:

    - no document needs a fairness label, because the loss compares the exposure that the scores
      give with the target distribution ε*, by a differentiable KL divergence;
    - the fairness model and the relevance model are trained separately, and their scores are
      blended with a weight α, which sets the trade-off;
    - it can learn for several attributes at once.

    We decided the following, because those sources leave it open or the paper does it differently:

    - both models are linear; the paper's fairness model reads Sentence-BERT embeddings of the text,
      ours the features in :func:`features` and the memberships;
    - it sees the target of each query through one feature for each attribute, Σ_g
      m_ig·ln(ε*_g/π_g), with π the shares of the groups among the candidates;
    - exposure is taken from the first draw from softmax(scores), as in DELTR;
    - the relevance model is ListNet (Cao et al. 2007). We standardise its scores within the query
      before blending, because their scale only reflects the grades. The scores of the fairness
      model stay as they are: if the candidates are near the target, they hardly differ.
    """

    model_type = DlfModel

    alpha: float = Field(
        0.6, ge=0, le=1, description="α: 1 ranks by the relevance model, 0 by the fairness model."
    )

    def scores(self, columns: FloatArray, candidates: Candidates) -> FloatArray:
        """Return α·relevance + (1−α)·fairness of each candidate, shape (n,)."""
        model: DlfModel = self._model
        target_features = []
        for name, groups in model.dimensions.items():
            dimension = trained_dimension("dlf", candidates, name, groups)
            target_features.append(target_feature(candidates, dimension))
        fairness = model.fairness.scores(np.column_stack([columns, *target_features]))
        relevance = _standardised(model.relevance.scores(columns))
        return np.asarray(self.alpha * relevance + (1 - self.alpha) * fairness)


def _standardised(scores: FloatArray) -> FloatArray:
    """Return scores with a mean of 0 and, unless they are equal, a deviation of 1."""
    deviation = float(scores.std())
    # Equal scores may deviate by rounding.
    largest = float(np.abs(scores).max(initial=0.0))
    is_constant = not deviation > 1e-9 * (1 + largest)
    return np.asarray((scores - scores.mean()) / (1.0 if is_constant else deviation))


def target_feature(candidates: Candidates, dimension: int) -> FloatArray:
    """Return Σ_g m_ig·ln(ε*_g/π_g) of each document, shape (n,), for one of the dimensions.

    π_g is the share of the group among the documents; both distributions are smoothed alike. If
    each document belongs to one group, scores equal to this feature make the exposure of the first
    draw from their softmax equal to the target. A document without a label has 0.
    """
    members = candidates.memberships[dimension]
    target = smooth(candidates.targets[dimension])
    shares = smooth(normalise(members.sum(axis=0)))
    return np.asarray(members @ np.log(target / shares))


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
    probabilities = np.exp(log_softmax(scores, mask))
    slope = np.zeros_like(probabilities)
    loss = 0.0
    for members, target in zip(memberships, targets, strict=True):
        exposures = np.einsum("qn,qng->qg", probabilities, members)
        total = exposures.sum(axis=1, keepdims=True)
        has_labels = total > 0
        count = max(1, int(has_labels.sum())) * len(targets)
        total = np.where(has_labels, total, 1.0)
        exposures = exposures / total

        smooth_target = smooth(target)
        smooth_exposures = smooth(exposures)
        terms = has_labels * smooth_target * np.log(smooth_target / smooth_exposures)
        loss += float(terms.sum()) / count

        by_exposure = -(1 - DEFAULT_SMOOTHING) * has_labels * smooth_target / smooth_exposures
        by_exposure -= (by_exposure * exposures).sum(axis=1, keepdims=True)
        by_draw = np.einsum("qng,qg->qn", members, by_exposure / total)
        mean = (probabilities * by_draw).sum(axis=1, keepdims=True)
        slope += probabilities * (by_draw - mean) / count
    return loss, slope


def train_dlf(examples: Sequence[TopicExample], options: TrainingOptions) -> DlfModel:
    """Train both models of the reconstruction of DLF on topics.

    The relevance model learns from the grades, the fairness model only from memberships and
    targets. The features are standardised over all documents, the target features are not. The
    training is deterministic: both models start at zero.

    Raises:
        InputError: There is nothing to learn from.
    """
    lists = Lists.of(examples)
    candidates_of_topics = [example.candidates for example in examples]
    dimensions = {}
    memberships = []
    targets = []
    target_features = {}
    for position, name in enumerate(candidates_of_topics[0].dimensions):
        dimensions[name] = tuple(candidates_of_topics[0].groups[position])
        memberships.append(
            padded([candidates.memberships[position] for candidates in candidates_of_topics])
        )
        targets.append(
            np.array([candidates.targets[position] for candidates in candidates_of_topics])
        )
        target_features[f"target({name})"] = padded(
            [target_feature(candidates, position) for candidates in candidates_of_topics]
        )

    def by_relevance(scores: FloatArray) -> tuple[float, FloatArray]:
        return list_cross_entropy(lists.grades, scores, lists.mask)[:2]

    def by_distribution(scores: FloatArray) -> tuple[float, FloatArray]:
        return distribution_loss(scores, lists.mask, memberships, targets)

    return DlfModel(
        topics=len(examples),
        dimensions=dimensions,
        relevance=lists.fit(by_relevance, options),
        fairness=lists.fit(by_distribution, options, target_features),
        training=options,
    )
