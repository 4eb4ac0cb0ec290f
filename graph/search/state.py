"""The state of a run. It is plain data: ids, scores, exposures and keywords, but never texts.

What :mod:`fairqr.graph.search.result` has a class for is written as a dictionary of its fields.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from langgraph.channels import DeltaChannel

# Before Python 3.12, pydantic cannot make a JSON schema, which Studio needs, of typing's TypedDict.
from typing_extensions import TypedDict

from fairqr.graph.steps import longest
from fairqr.retrieval.fairness.table import CodedMemberships

StopReason = Literal[
    "converged",
    "little_to_gain",
    "no_hits",
    "no_improvement",
    "max_iterations",
    "budget",
    "model_failed",
    "not_refining",
]
GroupKey = tuple[str, str]
"""The names of an attribute and of one of its groups."""


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
    """Return a list of the state with what steps add to it."""
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

    Of what grows with the rounds, a checkpoint only keeps what its step added.

    Attributes:
        seconds: How long the steps have taken so far.
        iteration: The current round; 0 is the round of the original query.
        rankings: Everything that was retrieved so far.
        first_fair: The ``FairList`` of the plain retrieval.
        best_fair: The best ``FairList`` so far.
        corpus_shares: The share of each group in all documents, by attribute, if it is needed.
        target: ε* by attribute and group.
        iterations: Each ``Round`` that was measured.
        chosen: The groups to ask the model about.
        lacking: The chosen groups that lack exposure.
        keywords: The keywords in use, by attribute and then by group.
        topic_words: The keywords that belong to the topic of the query.
        refinements: Each ``RefinedGroup`` of the current round.
        usage: The ``Usage`` of models so far.
        stop_reason: Why the loop ended; None while it runs.
        warnings: Sentences for users.
        cost: The ``RankingCost``; None if no model re-ranks or is asked later.
    """

    seconds: Annotated[float, longest]
    iteration: int
    rankings: Annotated[list[RankingRecord], DeltaChannel(joined)]
    first_fair: Record | None
    best_fair: Record | None
    corpus_shares: dict[str, list[float]]
    target: dict[str, dict[str, float]]
    iterations: Annotated[list[Record], DeltaChannel(joined)]
    chosen: list[GroupKey]
    lacking: list[GroupKey]
    keywords: dict[str, dict[str, list[str]]]
    topic_words: list[str]
    refinements: list[Record]
    usage: Record
    stop_reason: StopReason | None
    warnings: Annotated[list[str], DeltaChannel(joined)]
    cost: Record | None
