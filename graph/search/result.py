"""The result of a search: a contract that other programs read, and that the service returns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict

from fairqr.graph.search.context import Method
from fairqr.graph.search.state import StopReason
from fairqr.graph.usage import UsageReport
from fairqr.prompts.template import PromptReference
from fairqr.retrieval.dimension import Dimension
from fairqr.retrieval.exposure import FloatArray, intersection

__all__ = [
    "Baseline",
    "Iteration",
    "RankedDocument",
    "RefinedGroup",
    "Reranking",
    "SearchResult",
    "memberships_of",
]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RankedDocument(_Frozen):
    """One place of a ranking.

    Attributes:
        rank: From 1.
        id: The document's.
        title: The document's.
        score: What it was ordered by before the final step: the retriever's score, a fused one, or
            one over the rank that a model gave it.
        groups: For each attribute the share of each group in the document; no groups if unknown.
    """

    rank: int
    id: str
    title: str
    score: float
    groups: dict[str, dict[str, float]]


class RefinedGroup(_Frozen):
    """What was added to the query for a group.

    Attributes:
        attribute: e.g. ``gender``.
        group: e.g. ``female``.
        keywords: Added; empty unless the status is ``ok``.
        dropped: Keywords of earlier rounds that were taken out again.
        reason: The model's, if the prompt asks for one.
        status: ``ok``, or why there are no keywords.
    """

    attribute: str
    group: str
    keywords: list[str]
    dropped: list[str] = []
    reason: str = ""
    status: str = "ok"


class Iteration(_Frozen):
    """A round: 0 is the original query, and each later one a refinement.

    ``ids`` are the first k of the list that the round had, before any re-ranking; exposure and
    divergence are theirs. See :class:`SearchResult` for what None means.
    """

    index: int
    queries: list[str]
    refinements: list[RefinedGroup]
    ids: list[str] = []
    exposure: dict[str, dict[str, float]]
    divergence: float | None
    divergences: dict[str, float | None]


class Baseline(_Frozen):
    """The plain retrieval of the original query."""

    ranking: list[RankedDocument]
    exposure: dict[str, dict[str, float]]
    divergence: float | None
    divergences: dict[str, float | None]


class Reranking(_Frozen):
    """What came of re-ranking by a model.

    Attributes:
        ranker: What re-ranked, e.g. ``listwise(local:smollm2-135m, 20/10)``.
        lists: How many lists it was asked about: a method that refines may try those of several
            rounds. 0 where the budget had no room for any.
        documents: How many documents it read of a list.
        asked: How many questions all orders rest on: windows, or comparisons in both orders; 0 for
            a model that scores by itself.
        failures: How many of them failed, by status.
        repairs: How often replies were mended, by kind, in documents.
    """

    ranker: str
    lists: int
    documents: int
    asked: int
    failures: dict[str, int]
    repairs: dict[str, int]


class SearchResult(_Frozen):
    """A fair search.

    Attributes:
        query: As it was asked.
        corpus: The index searched.
        method: One of :data:`fairqr.graph.search.context.METHODS`.
        retriever: ``bm25``, or ``dense:…`` for vector search.
        model: What was asked to refine; None if nothing was.
        prompt: The prompt it was asked with; None for a refiner that has none.
        ranker: The model that re-ranked, and how; None where none was asked.
        reranking: What came of that; None where none was asked.
        attributes: Those measured.
        target: ε* by attribute and group.
        iterations: The rounds.
        unused_refinements: What was proposed at last, if no query came of it; it stands in no
            round. The status of each says why.
        best_iteration: The index of the round whose lists the ranking comes from.
        stop_reason: Why the loop ended.
        ranking: The first k.
        exposure: Of the ranking, by attribute and group; zeros if no document has a label.
        divergence: KL(ε*‖ε) in nats, the mean over the attributes; None where it is undefined since
            no document has a label.
        divergences: For each attribute.
        unknown: For each attribute the share of exposure that went to documents without a label.
        baseline: The plain retrieval.
        usage: What it cost.
        warnings: Sentences for people.
    """

    query: str
    corpus: str
    method: Method
    retriever: str = "bm25"
    model: str | None
    prompt: PromptReference | None
    ranker: str | None = None
    reranking: Reranking | None = None
    attributes: list[str]
    target: dict[str, dict[str, float]]
    iterations: list[Iteration]
    unused_refinements: list[RefinedGroup] = []
    best_iteration: int
    stop_reason: StopReason
    ranking: list[RankedDocument]
    exposure: dict[str, dict[str, float]]
    divergence: float | None
    divergences: dict[str, float | None]
    unknown: dict[str, float]
    baseline: Baseline
    usage: UsageReport
    warnings: list[str] = []

    @property
    def improvement(self) -> float | None:
        """How much lower the divergence is than the plain retrieval's, in nats."""
        if self.divergence is None or self.baseline.divergence is None:
            return None
        return self.baseline.divergence - self.divergence


def memberships_of(places: Sequence[RankedDocument], dimension: Dimension) -> FloatArray:
    """Return the share of each group in the documents of a ranking, shape (len(places), G)."""
    factors = []
    for factor in dimension.factors:
        rows = [
            [place.groups[factor.name].get(group, 0.0) for group in factor.universe]
            for place in places
        ]
        factors.append(np.array(rows).reshape(len(places), len(factor.universe)))
    return intersection(factors)
