"""What a run knows so far. Plain data only: ids, scores, exposures and keywords, never texts."""

from __future__ import annotations

import operator
from typing import Annotated, Any, Literal

# Before Python 3.12 pydantic makes no JSON schema of typing's own; Studio's forms are made of it.
from typing_extensions import TypedDict

from fairqr.graph.usage import UsageRecord, longest
from fairqr.retrieval.ranking import Ranking
from fairqr.retrieval.table import CodedMemberships

__all__ = [
    "CostRecord",
    "GroupKey",
    "InputState",
    "IterationRecord",
    "OutputState",
    "QueryRecord",
    "RankingRecord",
    "RefinementRecord",
    "State",
    "StopReason",
    "ranking_of",
]

StopReason = Literal[
    "converged", "no_improvement", "max_iterations", "budget", "model_failed", "not_refining"
]
GroupKey = tuple[str, str]
"""The names of an attribute and of one of its groups."""


class QueryRecord(TypedDict):
    """A query to run.

    Documents need a term of ``text``; those of ``boost`` only add to their scores. Attribute and
    group are those it was refined toward; None for the original query, and for one that was refined
    by words of the topic only.
    """

    text: str
    boost: str
    attribute: str | None
    group: str | None


class RankingRecord(TypedDict):
    """What a query retrieved in a round, with the groups of these documents by attribute."""

    iteration: int
    query: QueryRecord
    ids: list[str]
    scores: list[float]
    memberships: dict[str, CodedMemberships]


class RefinementRecord(TypedDict):
    """What a refiner proposed for a group, or why it did not."""

    attribute: str
    group: str
    keywords: list[str]
    dropped: list[str]
    reason: str
    status: str


class IterationRecord(TypedDict):
    """What a round retrieved by, the first k that it had, and how exposure then was.

    ``divergences`` has None for an attribute that no document of the measured list has a label of;
    ``divergence`` is the mean of the others, and None if there is none.
    """

    index: int
    queries: list[str]
    refinements: list[RefinementRecord]
    ids: list[str]
    exposure: dict[str, dict[str, float]]
    divergences: dict[str, float | None]
    divergence: float | None


class CostRecord(TypedDict):
    """The most that re-ranking by a model will cost, and what is left for later steps.

    ``calls`` and ``tokens`` are of one list of so many ``documents``; so many ``lists`` may be
    re-ranked, as far as the budget has room.
    """

    documents: int
    calls: int
    tokens: int
    lists: int
    reserved_calls: int
    reserved_tokens: int


class InputState(TypedDict):
    """What a run starts with."""

    query: str


class OutputState(TypedDict):
    """What a run ends with: the object of :class:`fairqr.graph.search.result.SearchResult`."""

    result: dict[str, Any]


class State(InputState, OutputState, total=False):
    """What the nodes of a search share.

    Attributes:
        seconds: How long the steps took so far.
        iteration: The round that is under way; 0 is the original query's.
        pending: The queries that the next step retrieves by.
        rankings: All that was retrieved so far.
        corpus_shares: Of the groups of each attribute in all documents, where they are needed.
        target: ε* by attribute and group.
        iterations: The rounds that were measured.
        chosen: The groups to ask about.
        lacking: Those of them that lack exposure.
        keywords: Those in use, by attribute and then by group.
        topic_words: Those of them that are of the query's topic.
        refinements: Those of the round under way.
        usage: What models cost so far.
        stop_reason: Set once the loop is over.
        warnings: Sentences for people.
        cost: Of a model that re-ranks, as far as it is known beforehand.
    """

    seconds: Annotated[float, longest]
    iteration: int
    pending: list[QueryRecord]
    rankings: Annotated[list[RankingRecord], operator.add]
    corpus_shares: dict[str, list[float]]
    target: dict[str, dict[str, float]]
    iterations: Annotated[list[IterationRecord], operator.add]
    chosen: list[GroupKey]
    lacking: list[GroupKey]
    keywords: dict[str, dict[str, list[str]]]
    topic_words: list[str]
    refinements: list[RefinementRecord]
    usage: UsageRecord
    stop_reason: StopReason | None
    warnings: Annotated[list[str], operator.add]
    cost: CostRecord | None


def ranking_of(record: RankingRecord, depth: int | None = None) -> Ranking:
    """Return the ranking of a record, cut to a depth."""
    return Ranking(record["ids"][:depth], record["scores"][:depth])
