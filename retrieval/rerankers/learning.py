"""The trained re-rankers: DELTR and DLF, linear models that learn from judged lists."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, FiniteFloat, ValidationError, model_validator

from fairqr.base.errors import InputError, first_problem, one_line
from fairqr.base.extras import library
from fairqr.base.files import write_beside
from fairqr.retrieval.engines.engine import Query, SearchEngine, lexical_of, require
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.divergence import DEFAULT_SMOOTHING, smooth
from fairqr.retrieval.fairness.exposure import INVERSE_LOG, LOG2, Discount, FloatArray, normalise
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.fairness.table import DocumentTable
from fairqr.retrieval.rerankers.base import Candidates, Reranker, RerankResult, min_max
from fairqr.retrieval.rerankers.protection import PROTECTED_HELP, choose_protected, group_of_each
from fairqr.retrieval.texts.words import terms_of

TargetOf = Callable[[Ranking, DocumentTable], Sequence[FloatArray]]
"""Returns the targets of the dimensions for the retrieved documents and their groups."""

Loss = Callable[[FloatArray], tuple[float, FloatArray]]
"""Takes scores, shape (Q, N), and returns the loss and its gradient by the scores."""

FEATURES = ("bm25_min_max", "bm25_log", "reciprocal_rank", "title_coverage", "text_length_log")
"""The names of the columns of :func:`features`."""

TARGET_DEPTH = 500
"""How many documents the target of a topic is estimated from."""


@dataclass(frozen=True, slots=True)
class TopicExample:
    """One topic to learn from; all topics of a training have the same dimensions.

    Attributes:
        topic: The topic's id.
        candidates: The documents retrieved for it.
        features: The features of the documents, shape (n, F).
        grades: The grades, at least 0, shape (n,); an unjudged document has 0.
    """

    topic: str
    candidates: Candidates
    features: FloatArray
    grades: FloatArray


async def features(engine: SearchEngine, query: str, ranking: Ranking) -> FloatArray:
    """Return the features of a ranking's documents, shape (n, 5).

    ===================  =====================================================================
    ``bm25_min_max``     BM25 of the document for the query, min-max over the n
    ``bm25_log``         ln(1 + BM25)
    ``reciprocal_rank``  1/rank in the ranking, which may come from another retriever
    ``title_coverage``   the share of the query's distinct words that the title has
    ``text_length_log``  ln(1 + the number of words in the text), stop words left out
    ===================  =====================================================================

    A document that has since been deleted has zeros in place of missing texts and scores.

    Args:
        engine: The engine that has the documents.
        query: The original query.
        ranking: The n documents, from best to worst.
    """
    lexical = lexical_of(engine)
    require(lexical, "rescore", "A trained re-ranker")
    (rescored,) = await lexical.search([Query(query, len(ranking), only=tuple(ranking.ids))])
    score_of = dict(zip(rescored.ids, rescored.scores, strict=True))
    scores = np.array([max(0.0, score_of.get(id_, 0.0)) for id_ in ranking.ids])
    found = {document.id: document for document in await engine.documents(ranking.ids)}
    wanted = set(terms_of(query))
    coverage, lengths = np.zeros(len(ranking)), np.zeros(len(ranking))
    for row, id_ in enumerate(ranking.ids):
        if id_ in found:
            lengths[row] = len(terms_of(found[id_].text))
            coverage[row] = len(wanted & set(terms_of(found[id_].title))) / (len(wanted) or 1)
    ranks = np.arange(1, len(ranking) + 1)
    columns = [min_max(scores), np.log1p(scores), 1 / ranks, coverage, np.log1p(lengths)]
    return np.column_stack(columns)


async def gather_examples(
    engine: SearchEngine,
    topics: Mapping[str, str],
    qrels: Mapping[str, Mapping[str, int]],
    dimensions: Sequence[Dimension],
    target_of: TargetOf,
    *,
    depth: int = 200,
    discount: Discount = LOG2,
) -> list[TopicExample]:
    """Run a search for each topic, and look up everything that training needs.

    We leave out a topic that retrieves nothing, or has no relevant judged document.

    Args:
        engine: The engine to search.
        topics: The query of each topic.
        qrels: The grade of each judged document, by topic.
        dimensions: The dimensions to measure exposure over.
        target_of: Returns ε* of a topic; in training it should be estimated as at query time.
        depth: How many documents to learn from.
        discount: The weight of each rank.

    Returns:
        The examples in order of topic, so that the same topics always give the same weights.

    Raises:
        InputError: There is nothing to learn from.
    """
    examples = []
    for topic in sorted(topics):
        judged = qrels.get(topic, {})
        if not any(grade > 0 for grade in judged.values()):
            continue
        (hits,) = await engine.search([Query(topics[topic], max(depth, TARGET_DEPTH))])
        if not hits.ids:
            continue
        table = DocumentTable()
        table.add(hits.ids, hits.memberships)
        retrieved = Ranking(hits.ids, hits.scores)
        ranking, targets = retrieved.top(depth), target_of(retrieved, table)
        examples.append(
            TopicExample(
                topic,
                Candidates.of(table, ranking, dimensions, targets, discount),
                await features(engine, topics[topic], ranking),
                np.array([max(0, judged.get(id_, 0)) for id_ in ranking.ids], dtype=np.float64),
            )
        )
    Lists.of(examples)
    return examples


def padded(lists: Sequence[FloatArray]) -> FloatArray:
    """Stack arrays of shape (n_q, …) into one of shape (Q, max n_q, …), padded with zeros."""
    longest = max(len(values) for values in lists)
    batch = np.zeros((len(lists), longest, *np.shape(lists[0])[1:]))
    for row, values in enumerate(lists):
        batch[row, : len(values)] = values
    return batch


def log_softmax(scores: FloatArray, mask: NDArray[np.bool_]) -> FloatArray:
    """Return ln(exp(s_i) / Σ_j exp(s_j)) over each list, shape (Q, N); −∞ for padding."""
    held = np.where(mask, scores - scores.max(1, where=mask, initial=-np.inf)[:, None], -np.inf)
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


class LinearModel(BaseModel, frozen=True, extra="forbid"):
    """A linear function of standardised features.

    Attributes:
        features: The name of each column.
        means, scales: The standardisation of each column.
        weights: The weight of each column.
    """

    features: tuple[str, ...]
    means: tuple[FiniteFloat, ...]
    scales: tuple[Annotated[FiniteFloat, Field(gt=0)], ...]
    weights: tuple[FiniteFloat, ...]

    @model_validator(mode="after")
    def _columns_fit(self) -> Self:
        if not len(self.means) == len(self.scales) == len(self.weights) == len(self.features):
            raise ValueError("the columns of the weights do not fit each other")
        return self

    def scores(self, features: FloatArray) -> FloatArray:
        """Return the score of each document, shape (n,), from its features, shape (n, F)."""
        standardised = (features - np.array(self.means)) / np.array(self.scales)
        return np.asarray(standardised @ np.array(self.weights))


class TrainingOptions(BaseModel, frozen=True, extra="forbid"):
    """Options of every training."""

    l2: float = Field(
        1e-3, ge=0, description="The weight of ½·|w|², which keeps the weights small."
    )
    iterations: int = Field(200, ge=1, le=100_000, description="The maximum number of steps.")


@dataclass(frozen=True, slots=True)
class Lists:
    """The examples of a training, padded to the same length.

    Attributes:
        columns: The features, standardised over all documents, shape (Q, N, F).
        grades: Shape (Q, N).
        mask: Which positions have a document, shape (Q, N).
        means, scales: The standardisation of each feature.
    """

    columns: FloatArray
    grades: FloatArray
    mask: NDArray[np.bool_]
    means: FloatArray
    scales: FloatArray

    @classmethod
    def of(cls, examples: Sequence[TopicExample]) -> Lists:
        """Return the lists of examples.

        Raises:
            InputError: No example has both relevant and other candidates.
        """
        if not any(len(set(item.grades.tolist())) > 1 for item in examples):
            raise InputError(
                "There is nothing to train on: no topic has both relevant and other documents "
                "among its candidates; check that the judgements fit the topics and the corpus."
            )
        rows = np.concatenate([item.features for item in examples])
        means, scales = rows.mean(axis=0), rows.std(axis=0)
        # A constant column may deviate by rounding.
        scales[scales <= 1e-9 * (1 + np.abs(rows).max(axis=0))] = 1.0
        columns = padded([(item.features - means) / scales for item in examples])
        grades = padded([item.grades for item in examples])
        mask = padded([np.ones(len(item.grades)) for item in examples]) > 0
        return cls(columns, grades, mask, means, scales)

    def fit(
        self,
        loss: Loss,
        options: TrainingOptions,
        more: Mapping[str, FloatArray] | None = None,
        start: FloatArray | None = None,
    ) -> LinearModel:
        """Minimise loss(X·w) + ½·l2·|w|² by L-BFGS (Liu & Nocedal 1989), with scipy.

        It ends when the gradient is nearly 0, when no step lowers the loss any more, or after the
        given number of steps.

        Args:
            loss: The loss of scores.
            options: The options of the training.
            more: Columns beside the features by name, each of shape (Q, N); they stay as they are.
            start: The initial weights; 0 by default.
        """
        optimize = library("scipy.optimize", "The training of a ranker")
        more = more or {}
        columns = np.concatenate([self.columns, *(it[..., None] for it in more.values())], axis=2)

        def objective(weights: FloatArray) -> tuple[float, FloatArray]:
            value, slope = loss(columns @ weights)
            decay = options.l2 * float(weights @ weights) / 2
            return value + decay, np.tensordot(slope, columns, axes=2) + options.l2 * weights

        steps = options.iterations
        limits = {"maxiter": steps, "maxfun": 50 * steps, "gtol": 1e-7, "ftol": 0.0}
        begin = np.zeros(columns.shape[2]) if start is None else start
        found = optimize.minimize(objective, begin, jac=True, method="L-BFGS-B", options=limits)
        return LinearModel(
            features=(*FEATURES, *more),
            means=(*self.means.tolist(), *[0.0] * len(more)),
            scales=(*self.scales.tolist(), *[1.0] * len(more)),
            weights=tuple(found.x.tolist()),
        )


class TrainedModel(BaseModel, frozen=True):
    """Base of all files of weights.

    Attributes:
        format: The version of the file format, which also says what :func:`features` are.
        topics: The number of examples.
    """

    format: Literal[1] = 1
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
            reason = error.strerror
        except ValidationError as error:
            where, problem = first_problem(error)
            reason = f"wrong at {where or 'the file'}: {one_line(problem, 120)}"
        kind = cls.model_fields["name"].default
        raise InputError(
            f"{path} does not contain weights of {kind} ({reason}); write them with 'fairqr "
            f"train {kind}'."
        )


class TrainedReranker(Reranker):
    """Orders by a trained model; the scores are the model's."""

    model_type: ClassVar[type[TrainedModel]]

    weights: Path | TrainedModel = Field(
        description="The file of weights that 'fairqr train' wrote."
    )
    _model: Any = None

    def model_post_init(self, context: Any, /) -> None:
        """Read the weights."""
        given, kind = self.weights, self.model_type
        self._model = given if isinstance(given, TrainedModel) else kind.load(given)

    async def rerank(
        self, engine: SearchEngine, query: str, candidates: Candidates, k: int
    ) -> RerankResult:
        """See :meth:`fairqr.retrieval.rerankers.base.Reranker.rerank`."""
        if not len(candidates):
            return RerankResult(Ranking([], []))
        columns = await features(engine, query, candidates.ranking)
        scores = self.scores(columns, candidates).tolist()
        return RerankResult(Ranking.of(zip(candidates.ranking.ids, scores, strict=True)).top(k))

    @abstractmethod
    def scores(self, columns: FloatArray, candidates: Candidates) -> FloatArray:
        """Return the score of each candidate, shape (n,), from its features, shape (n, F)."""


def trained_dimension(kind: str, candidates: Candidates, name: str, groups: Sequence[str]) -> int:
    """Return the position of a dimension, with these groups, that weights were trained for.

    Raises:
        InputError: The dimension or a group is not measured here.
    """
    for position, known in enumerate(candidates.groups):
        if candidates.dimensions[position] == name and set(groups) <= set(known):
            return position
    raise InputError(
        f"These weights of {kind} were trained for {name}={','.join(groups)}, which this search "
        f"does not measure; train on this corpus and for {', '.join(candidates.dimensions)}, with "
        f"'fairqr train {kind}'."
    )


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
        place = trained_dimension("deltr", candidates, model.dimension, model.protected)
        mark = _mark(candidates, place, model.protected)
        return model.model.scores(np.column_stack([columns, mark]))


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


def train_deltr(examples: Sequence[TopicExample], options: DeltrTraining) -> DeltrModel:
    """Train DELTR on topics.

    The features are standardised over all documents, the mark of the protected group is not. By
    default, the protected group is the one that lacks most exposure on average over the topics.

    Raises:
        InputError: There is nothing to learn from, or a protected group does not exist.
    """
    lists = Lists.of(examples)
    every = [item.candidates for item in examples]
    dimension, groups = choose_protected(every, options.k, options.protected)
    protected = tuple(every[0].groups[dimension][group] for group in groups)
    marks = [_mark(candidates, dimension, protected) for candidates in every]
    contrasts = padded([contrast(mark) for mark in marks])

    def loss(scores: FloatArray) -> tuple[float, FloatArray]:
        return deltr_loss(scores, lists.grades, lists.mask, contrasts, options.gamma)

    start = np.random.default_rng(options.seed).normal(0.0, 0.01, size=len(FEATURES) + 1)
    return DeltrModel(
        topics=len(examples),
        dimension=every[0].dimensions[dimension],
        protected=protected,
        model=lists.fit(loss, options, {"protected": padded(marks)}, start),
        training=options,
    )


def _mark(candidates: Candidates, dimension: int, protected: Sequence[str]) -> FloatArray:
    """Return 1 for each document of a protected group, otherwise 0, shape (n,)."""
    groups = [candidates.groups[dimension].index(name) for name in protected]
    return np.isin(group_of_each(candidates.memberships[dimension]), groups).astype(np.float64)


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
        places = [trained_dimension("dlf", candidates, *it) for it in model.dimensions.items()]
        told = [target_feature(candidates, place) for place in places]
        fairness = model.fairness.scores(np.column_stack([columns, *told]))
        relevance = model.relevance.scores(columns)
        deviation = float(relevance.std())
        # Equal scores may deviate by rounding.
        varies = deviation > 1e-9 * (1 + float(np.abs(relevance).max(initial=0.0)))
        relevance = (relevance - relevance.mean()) / (deviation if varies else 1.0)
        return np.asarray(self.alpha * relevance + (1 - self.alpha) * fairness)


def target_feature(candidates: Candidates, dimension: int) -> FloatArray:
    """Return Σ_g m_ig·ln(ε*_g/π_g) of each document, shape (n,), for one of the dimensions.

    π_g is the share of the group among the documents; both distributions are smoothed alike. If
    each document belongs to one group, scores equal to this feature make the exposure of the first
    draw from their softmax equal to the target. A document without a label has 0.
    """
    members, target = candidates.memberships[dimension], candidates.targets[dimension]
    shares = normalise(members.sum(axis=0))
    return np.asarray(members @ np.log(smooth(target) / smooth(shares)))


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


def train_dlf(examples: Sequence[TopicExample], options: TrainingOptions) -> DlfModel:
    """Train both models of the reconstruction of DLF on topics.

    The relevance model learns from the grades, the fairness model only from memberships and
    targets. The features are standardised over all documents, the target features are not. The
    training is deterministic: both models start at zero.

    Raises:
        InputError: There is nothing to learn from.
    """
    lists = Lists.of(examples)
    every = [item.candidates for item in examples]
    dimensions = dict(enumerate(every[0].dimensions))
    memberships = [padded([it.memberships[a] for it in every]) for a in dimensions]
    targets = [np.array([it.targets[a] for it in every]) for a in dimensions]
    told = {
        f"target({name})": padded([target_feature(it, a) for it in every])
        for a, name in dimensions.items()
    }

    def by_relevance(scores: FloatArray) -> tuple[float, FloatArray]:
        return list_cross_entropy(lists.grades, scores, lists.mask)[:2]

    def by_distribution(scores: FloatArray) -> tuple[float, FloatArray]:
        return distribution_loss(scores, lists.mask, memberships, targets)

    return DlfModel(
        topics=len(examples),
        dimensions={name: tuple(every[0].groups[a]) for a, name in dimensions.items()},
        relevance=lists.fit(by_relevance, options),
        fairness=lists.fit(by_distribution, options, told),
        training=options,
    )
