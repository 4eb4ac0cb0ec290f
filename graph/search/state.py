"""The state of a run. It is plain data: ids, scores, exposures and keywords, but never texts."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from langgraph.channels import DeltaChannel

# Before Python 3.12, pydantic cannot make a JSON schema, which Studio needs, of typing's TypedDict.
from typing_extensions import TypedDict

from fairqr.graph.usage import longest
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
    the estimated probabilities of relevance, if the engine has any.
    """

    iteration: int
    query: QueryRecord
    ids: list[str]
    own: int
    scores: list[float]
    relevance: list[float] | None
    memberships: dict[str, CodedMemberships]


class RefinementRecord(TypedDict):
    """A refiner's proposal for a group, or why there is none."""

    attribute: str
    group: str
    keywords: list[str]
    dropped: list[str]
    reason: str
    status: str


class ObjectiveRecord(TypedDict):
    """How good a list is; see :mod:`fairqr.retrieval.fairness.objective`.

    ``relevance`` is V, ``fairness`` is F, and ``value`` is J at the ``weight`` of fairness.
    ``undefined`` attributes have no exposure. A group whose target was given ``missed`` it by so
    many points; 0 if it is within one. ``most`` is what V is a share of; times it, values of
    different rounds can be compared.
    """

    relevance: float
    fairness: float
    value: float
    weight: float
    undefined: int
    missed: int
    most: float


class Measured(TypedDict):
    """Exposure in the first k documents of a list, by attribute and group.

    ``exposure`` is zero if no document has a label. ``divergences``, in nats, have None for an
    attribute then; ``divergence`` is the mean of the others, or None if all are None. ``unknown``
    is the share of exposure that went to documents without a label, by attribute.
    """

    exposure: dict[str, dict[str, float]]
    divergence: float | None
    divergences: dict[str, float | None]
    unknown: dict[str, float]


class IterationRecord(Measured):
    """The queries of a round, the first k documents that it had, and their exposure.

    ``objective`` is what the fair step reaches with all documents found so far; None if the method
    has another final step.
    """

    index: int
    queries: list[str]
    refinements: list[RefinementRecord]
    ids: list[str]
    objective: ObjectiveRecord | None


class FairListRecord(Measured):
    """The ranking that the fair step made of all documents found up to a round.

    ``relevance`` is the mean probability of relevance over the ranking, weighted by the discount,
    or None if none is estimated.
    """

    iteration: int
    ids: list[str]
    scores: list[float]
    relevance: float | None
    objective: ObjectiveRecord


class CostRecord(TypedDict):
    """The largest cost of re-ranking by a model, and the part reserved for later steps.

    ``calls`` and ``tokens`` are the cost of one list of ``documents``. At most ``lists`` lists are
    re-ranked if the budget has room.
    """

    documents: int
    calls: int
    tokens: int
    lists: int
    reserved_calls: int
    reserved_tokens: int


T = TypeVar("T")


def joined(known: Sequence[T], added: Sequence[Sequence[T]]) -> list[T]:
    """Return a list of the state with what steps add to it."""
    return [*known, *itertools.chain.from_iterable(added)]


def merged(known: Mapping[str, T], added: Sequence[Mapping[str, T]]) -> dict[str, T]:
    """Return a mapping of the state with what steps add to it."""
    return functools.reduce(operator.or_, added, dict(known))


class InputState(TypedDict):
    """What a run starts with."""

    query: str


class OutputState(TypedDict):
    """What a run ends with: the object of :class:`fairqr.graph.search.result.SearchResult`."""

    result: dict[str, Any]


class State(InputState, OutputState, total=False):
    """What the nodes of a search share.

    Of what grows with the rounds, a checkpoint only keeps what its step added.

    Attributes:
        seconds: How long the steps have taken so far.
        iteration: The current round; 0 is the round of the original query.
        pending: The queries that ``retrieve`` runs next.
        rankings: Everything that was retrieved so far.
        rescored: The scores by the original query of documents that refined queries found.
        estimated: The probabilities that these documents are relevant to the original query.
        first_fair: The ranking that the fair step made of the plain retrieval.
        best_fair: The best ranking that this step has made so far.
        corpus_shares: The share of each group in all documents, by attribute, if it is needed.
        target: ε* by attribute and group.
        iterations: The rounds that were measured.
        chosen: The groups to ask the model about.
        lacking: The chosen groups that lack exposure.
        keywords: The keywords in use, by attribute and then by group.
        topic_words: The keywords that belong to the topic of the query.
        refinements: The refinements of the current round.
        usage: What models have cost so far.
        stop_reason: Why the loop ended; None while it runs.
        warnings: Sentences for users.
        cost: The largest cost of re-ranking by a model; None if no model re-ranks.
    """

    seconds: Annotated[float, longest]
    iteration: int
    pending: list[QueryRecord]
    rankings: Annotated[list[RankingRecord], DeltaChannel(joined)]
    rescored: Annotated[dict[str, float], DeltaChannel(merged)]
    estimated: Annotated[dict[str, float], DeltaChannel(merged)]
    first_fair: FairListRecord | None
    best_fair: FairListRecord | None
    corpus_shares: dict[str, list[float]]
    target: dict[str, dict[str, float]]
    iterations: Annotated[list[IterationRecord], DeltaChannel(joined)]
    chosen: list[GroupKey]
    lacking: list[GroupKey]
    keywords: dict[str, dict[str, list[str]]]
    topic_words: list[str]
    refinements: list[RefinementRecord]
    usage: dict[str, Any]
    stop_reason: StopReason | None
    warnings: Annotated[list[str], DeltaChannel(joined)]
    cost: CostRecord | None
