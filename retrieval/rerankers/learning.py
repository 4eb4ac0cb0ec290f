"""What trained re-rankers share: linear models that learn from the features of judged lists."""

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
from fairqr.retrieval.fairness.exposure import LOG2, Discount, FloatArray
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.fairness.table import DocumentTable
from fairqr.retrieval.rerankers.base import Candidates, RerankedList, Reranker, min_max
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
    scores = await _bm25_scores(engine, query, ranking)
    documents = {document.id: document for document in await engine.documents(ranking.ids)}
    query_terms = set(terms_of(query))
    coverage = np.zeros(len(ranking))
    lengths = np.zeros(len(ranking))
    for row, id_ in enumerate(ranking.ids):
        if id_ not in documents:
            continue
        terms_in_title = query_terms & set(terms_of(documents[id_].title))
        coverage[row] = len(terms_in_title) / (len(query_terms) or 1)
        lengths[row] = len(terms_of(documents[id_].text))

    ranks = np.arange(1, len(ranking) + 1)
    columns = [min_max(scores), np.log1p(scores), 1 / ranks, coverage, np.log1p(lengths)]
    return np.column_stack(columns)


async def _bm25_scores(engine: SearchEngine, query: str, ranking: Ranking) -> FloatArray:
    """Return BM25 of a ranking's documents, shape (n,); 0 for documents without a word of it."""
    lexical = lexical_of(engine)
    require(lexical, "rescore", "A trained re-ranker")
    (hits,) = await lexical.search([Query(query, len(ranking), only=tuple(ranking.ids))])
    score_of = dict(zip(hits.ids, hits.scores, strict=True))
    return np.array([max(0.0, score_of.get(id_, 0.0)) for id_ in ranking.ids])


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
        targets = target_of(retrieved, table)
        ranking = retrieved.top(depth)
        grades = [max(0, judged.get(id_, 0)) for id_ in ranking.ids]
        examples.append(
            TopicExample(
                topic,
                Candidates.of(table, ranking, dimensions, targets, discount),
                await features(engine, topics[topic], ranking),
                np.array(grades, dtype=np.float64),
            )
        )
    # Fails if there is nothing to learn from.
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
    highest = scores.max(1, where=mask, initial=-np.inf)
    shifted = np.where(mask, scores - highest[:, None], -np.inf)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


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
    of_grades = np.exp(log_softmax(grades, mask))
    logarithms = log_softmax(scores, mask)
    of_scores = np.exp(logarithms)
    # The logarithm of padding is −∞.
    terms = np.where(mask, of_grades * np.where(mask, logarithms, 0.0), 0.0)
    loss = -float(terms.sum()) / len(scores)
    return loss, (of_scores - of_grades) / len(scores), of_scores


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
        if not any(len(set(example.grades.tolist())) > 1 for example in examples):
            raise InputError(
                "There is nothing to train on: no topic has both relevant and other documents "
                "among its candidates; check that the judgements fit the topics and the corpus."
            )
        rows = np.concatenate([example.features for example in examples])
        means = rows.mean(axis=0)
        scales = rows.std(axis=0)
        # A constant column may deviate by rounding.
        is_constant = scales <= 1e-9 * (1 + np.abs(rows).max(axis=0))
        scales[is_constant] = 1.0
        return cls(
            columns=padded([(example.features - means) / scales for example in examples]),
            grades=padded([example.grades for example in examples]),
            mask=padded([np.ones(len(example.grades)) for example in examples]) > 0,
            means=means,
            scales=scales,
        )

    def fit(
        self,
        loss: Loss,
        options: TrainingOptions,
        extra: Mapping[str, FloatArray] | None = None,
        start: FloatArray | None = None,
    ) -> LinearModel:
        """Minimise loss(X·w) + ½·l2·|w|² by L-BFGS (Liu & Nocedal 1989), with scipy.

        It ends when the gradient is nearly 0, when no step lowers the loss any more, or after the
        given number of steps.

        Args:
            loss: The loss of scores.
            options: The options of the training.
            extra: Columns beside the features by name, each of shape (Q, N); they stay as they are.
            start: The initial weights; 0 by default.
        """
        optimize = library("scipy.optimize", "The training of a ranker")
        extra = extra or {}
        extra_columns = [column[..., None] for column in extra.values()]
        columns = np.concatenate([self.columns, *extra_columns], axis=2)

        def objective(weights: FloatArray) -> tuple[float, FloatArray]:
            value, slope = loss(columns @ weights)
            decay = options.l2 * float(weights @ weights) / 2
            gradient = np.tensordot(slope, columns, axes=2) + options.l2 * weights
            return value + decay, gradient

        steps = options.iterations
        limits = {"maxiter": steps, "maxfun": 50 * steps, "gtol": 1e-7, "ftol": 0.0}
        if start is None:
            start = np.zeros(columns.shape[2])
        minimum = optimize.minimize(objective, start, jac=True, method="L-BFGS-B", options=limits)
        return LinearModel(
            features=(*FEATURES, *extra),
            means=(*self.means.tolist(), *[0.0] * len(extra)),
            scales=(*self.scales.tolist(), *[1.0] * len(extra)),
            weights=tuple(minimum.x.tolist()),
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
            location, problem = first_problem(error)
            reason = f"wrong at {location or 'the file'}: {one_line(problem, 120)}"
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
        if isinstance(self.weights, TrainedModel):
            self._model = self.weights
        else:
            self._model = self.model_type.load(self.weights)

    async def rerank(
        self, engine: SearchEngine, query: str, candidates: Candidates, k: int
    ) -> RerankedList:
        """See :meth:`fairqr.retrieval.rerankers.base.Reranker.rerank`."""
        if not len(candidates):
            return RerankedList(Ranking([], []))
        columns = await features(engine, query, candidates.ranking)
        scores = self.scores(columns, candidates).tolist()
        ranking = Ranking.of(zip(candidates.ranking.ids, scores, strict=True))
        return RerankedList(ranking.top(k))

    @abstractmethod
    def scores(self, columns: FloatArray, candidates: Candidates) -> FloatArray:
        """Return the score of each candidate, shape (n,), from its features, shape (n, F)."""


def trained_dimension(kind: str, candidates: Candidates, name: str, groups: Sequence[str]) -> int:
    """Return the position of a dimension, with these groups, that weights were trained for.

    Raises:
        InputError: The dimension or a group is not measured here.
    """
    for position, measured_groups in enumerate(candidates.groups):
        has_name = candidates.dimensions[position] == name
        if has_name and set(groups) <= set(measured_groups):
            return position
    raise InputError(
        f"These weights of {kind} were trained for {name}={','.join(groups)}, which this search "
        f"does not measure; train on this corpus and for {', '.join(candidates.dimensions)}, with "
        f"'fairqr train {kind}'."
    )
