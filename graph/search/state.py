"""The state that the nodes of a search share. It is plain data: ids, scores and words, no texts.

Where the result has a class, the state has the fields of an object of it: a record in the state is
the record in the result.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from langgraph.channels import DeltaChannel

# Before Python 3.12, pydantic cannot make a JSON schema, which Studio needs, of typing's TypedDict.
from typing_extensions import TypedDict

from fairqr.graph.search.result import GroupKey, StopReason
from fairqr.retrieval.fairness.table import CodedMemberships


class QueryRecord(TypedDict):
    """A query to run.

    A document must match a term of ``text``; the terms of ``boost`` only raise its score.
    ``attribute`` and ``group`` name the group that the query was refined toward. They are None for
    the original query, and for a query that only has words of the topic.
    """

    text: str
    boost: str
    attribute: str | None
    group: str | None


class RankingRecord(TypedDict):
    """What a query retrieved in a round, with the groups of these documents by attribute.

    The first ``own`` documents are the engine's own ranking; it found the others by their
    similarity. ``scores`` are empty for a refined query whose ranks alone count. ``relevance`` has
    the estimated probabilities of relevance, if the engine has any. The first ranking of a round of
    refinement has in ``rescored`` and ``estimated`` what the original query says of documents that
    the round found: their scores, and the probabilities that they are relevant.
    """

    iteration: int
    query: QueryRecord
    ids: list[str]
    own: int
    scores: list[float]
    relevance: list[float] | None
    memberships: dict[str, CodedMemberships]
    rescored: dict[str, float]
    estimated: dict[str, float]


T = TypeVar("T")


def joined(known: Sequence[T], added: Sequence[Sequence[T]]) -> list[T]:
    """Return a list of the state with what nodes add to it."""
    return [*known, *itertools.chain.from_iterable(added)]


Record = dict[str, Any]
"""The fields of an object by name."""


class InputState(TypedDict):
    """What a run starts with."""

    query: str


class OutputState(TypedDict):
    """What a run ends with: the object of :class:`fairqr.graph.search.result.SearchResult`."""

    result: Record


class State(InputState, OutputState, total=False):
    """What the nodes of a search share.

    Of what grows with the rounds, a checkpoint only keeps what its node added.

    Attributes:
        seconds: How long the nodes have taken so far.
        iteration: The current round; 0 is the round of the original query.
        rankings: Each ``RankingRecord`` so far.
        corpus_shares: The share of each group in all documents, by attribute, if it is needed.
        target: ε* by attribute and group.
        cost: The ``RankingCost``; None if no model re-ranks.
        iterations: Each ``Round`` that was measured.
        first_fair: The ``FairList`` of the plain retrieval.
        best_fair: The best ``FairList`` so far.
        chosen: The groups to ask the model about.
        lacking: The chosen groups that lack exposure.
        keywords: The keywords in use, by attribute and then by group.
        topic_words: The keywords that belong to the topic of the query.
        refinements: Each ``RefinedGroup`` of the current round.
        usage: The ``Usage`` of models so far.
        stop_reason: Why the loop ended; None while it runs.
        warnings: Sentences for users.
    """

    seconds: float
    iteration: int
    rankings: Annotated[list[RankingRecord], DeltaChannel(joined)]
    corpus_shares: dict[str, list[float]]
    target: dict[str, dict[str, float]]
    cost: Record | None
    iterations: Annotated[list[Record], DeltaChannel(joined)]
    first_fair: Record | None
    best_fair: Record | None
    chosen: list[GroupKey]
    lacking: list[GroupKey]
    keywords: dict[str, dict[str, list[str]]]
    topic_words: list[str]
    refinements: list[Record]
    usage: Record
    stop_reason: StopReason | None
    warnings: Annotated[list[str], DeltaChannel(joined)]
