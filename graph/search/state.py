"""The state that the nodes of a search share. It is plain data: ids, scores and words, no texts.

Where the result has a class, the state has the fields of an object of it: a record in the state is
the record in the result.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, cast

from langgraph.channels import DeltaChannel

# Before Python 3.12, pydantic cannot make a JSON schema, which Studio needs, of typing's TypedDict.
from typing_extensions import TypedDict

from fairqr.graph.running import longest
from fairqr.graph.search.result import GroupKey, StopReason
from fairqr.retrieval.fairness.table import CodedMemberships

EvidenceKind = Literal["query", "topic", "queries", "passage", "group", "named"]
"""The kinds of evidence of relevance: by the original query, by the query with the model's words of
the topic, its other ways to ask, its passage, or its words of a group; and ``named`` for a title
that holds a name that the model gave."""


class QueryRecord(TypedDict):
    """A query to run.

    Attributes:
        kind: What it is made of.
        part: Which of the model's words of a group it has: ``keywords``, ``phrases``, ``names`` or
            ``passage``; empty for other kinds.
        text: Its words.
        names: The names that a document must hold one of, whole; empty for other parts.
        attribute, group: The group that the query was refined toward; None for other kinds.
    """

    kind: EvidenceKind
    part: str
    text: str
    names: list[str]
    attribute: str | None
    group: str | None


class RankingRecord(TypedDict):
    """What a query retrieved in a round, with the groups of these documents by attribute.

    The first ``own`` documents are the engine's own ranking; it found the others by their
    similarity. ``scores`` are empty for a refined query whose ranks alone count. ``relevance`` has
    the estimated probabilities of relevance, if the engine has any, given that anything is
    relevant; ``answerable`` is the probability of that. ``claims`` say which documents say the
    same, if they were compared (:data:`fairqr.retrieval.fairness.claims.Claims`).
    """

    iteration: int
    query: QueryRecord
    ids: list[str]
    own: int
    scores: list[float]
    relevance: list[float] | None
    answerable: float
    claims: list[int] | None
    memberships: dict[str, CodedMemberships]


class LookupRecord(TypedDict):
    """What a query says of documents that other queries found, by id.

    Attributes:
        iteration: The round that found them.
        kind: The kind of the query.
        scores: Their scores, if the engine can score given documents.
        relevance: The probabilities that they are relevant, if the engine estimates them, given
            that anything is.
    """

    iteration: int
    kind: EvidenceKind
    scores: dict[str, float]
    relevance: dict[str, float]


class FairListRecord(TypedDict):
    """The list that the fair step made of all documents found up to a round.

    Attributes:
        iteration: The round.
        ids: The first k documents.
        weight: The weight of fairness that led to it.
        missed: By how many points a group missed a target that was given.
    """

    iteration: int
    ids: list[str]
    weight: float
    missed: int


class TopicWords(TypedDict):
    """The model's words of the topic that are in use."""

    words: list[str]
    queries: list[str]
    passage: str


class GroupWords(TypedDict):
    """The model's words of a group that are in use."""

    keywords: list[str]
    phrases: list[str]
    names: list[str]
    passage: str


T = TypeVar("T")


def joined(entries: Sequence[T], added: Sequence[Sequence[T]]) -> list[T]:
    """Return a list of the state with what nodes add to it."""
    return [*entries, *itertools.chain.from_iterable(added)]


Record = dict[str, Any]
"""The fields of an object by name."""


class InputState(TypedDict):
    """What a run starts with."""

    query: str


class SearchOutput(TypedDict):
    """What a run ends with: the object of :class:`fairqr.graph.search.result.SearchResult`."""

    result: Record


class SearchState(InputState, SearchOutput, total=False):
    """What the nodes of a search share.

    Of what grows with the rounds, a checkpoint only keeps what its node added.

    Attributes:
        seconds: How long the nodes have taken so far.
        iteration: The current round; 0 is the round of the original query.
        review: Whether a person is asked about the model's words.
        weights: The ``EvidenceWeights`` of the model's words.
        rankings: Each ``RankingRecord`` so far.
        lookups: Each ``LookupRecord`` so far.
        corpus_shares: The share of each group in all documents, by attribute, if it is needed.
        target: ε* by attribute and group.
        cost: The ``RankingCost``; None if no model re-ranks.
        iterations: Each ``Round`` that was measured.
        fair_lists: The ``FairListRecord`` of each round.
        chosen: The groups to ask the model about.
        lacking: The chosen groups that lack exposure.
        topic: The model's words of the topic; None before it was asked.
        words: The model's words of groups, by attribute and then by group.
        refined_topic: The ``RefinedTopic`` of the current round; None if the topic was not asked
            about in this round.
        refinements: Each ``RefinedGroup`` of the current round.
        usage: The ``Usage`` of models so far.
        stop_reason: Why the loop ended; None while it runs.
        warnings: Sentences for users.
    """

    seconds: Annotated[float, longest]
    iteration: int
    review: bool
    weights: dict[str, float]
    rankings: Annotated[list[RankingRecord], DeltaChannel(joined)]
    lookups: Annotated[list[LookupRecord], DeltaChannel(joined)]
    corpus_shares: dict[str, list[float]]
    target: dict[str, dict[str, float]]
    cost: Record | None
    iterations: Annotated[list[Record], DeltaChannel(joined)]
    fair_lists: Annotated[list[FairListRecord], DeltaChannel(joined)]
    chosen: list[GroupKey]
    lacking: list[GroupKey]
    topic: TopicWords | None
    words: dict[str, dict[str, GroupWords]]
    refined_topic: Record | None
    refinements: list[Record]
    usage: Record
    stop_reason: StopReason | None
    warnings: Annotated[list[str], DeltaChannel(joined)]


def with_update(state: SearchState, update: Mapping[str, object]) -> SearchState:
    """Return a state with the changes of a node, or with others."""
    return cast("SearchState", {**state, **update})
