"""What a run knows so far. Plain data only: ids, scores, exposures and keywords, never texts."""

from __future__ import annotations

import dataclasses
import operator
from typing import Annotated, Literal, NotRequired, cast

# Before Python 3.12 pydantic makes no JSON schema of typing's own; Studio's forms are made of it.
from typing_extensions import TypedDict

from fairqr.agents.replies import Usage
from fairqr.retrieval.ranking import Ranking
from fairqr.retrieval.table import CodedMemberships

__all__ = [
    "AttributionTask",
    "CostRecord",
    "GenerationRecord",
    "GenerationTask",
    "GroupKey",
    "InputState",
    "IterationRecord",
    "OutputState",
    "ProbePlan",
    "ProbeTask",
    "ProbedRecord",
    "QueryRecord",
    "RankingRecord",
    "RefinementRecord",
    "SampledRanking",
    "State",
    "StopReason",
    "UsageRecord",
    "VerdictRecord",
    "ranking_of",
    "usage_record",
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
    unknown: dict[str, float]


class UsageRecord(TypedDict):
    """What models cost so far."""

    model_calls: int
    cached_calls: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cached_milliseconds: float


class CostRecord(TypedDict):
    """What re-ranking by a model, and probing it, will cost at the most.

    ``calls`` and ``tokens`` are of one list of so many ``documents``; so many ``lists`` may be
    re-ranked, as far as the budget has room. ``probe_calls`` and ``probe_tokens`` are of the probe.
    """

    documents: int
    calls: int
    tokens: int
    lists: int
    probe_calls: int
    probe_tokens: int


class ProbePlan(TypedDict):
    """What is probed: ids of the documents of both sides, the pairs, and the order of lists.

    ``undecided`` are of neither side. In a pair the protected document stands first. ``status`` is
    ``ok``, or why nothing is asked.
    """

    status: str
    message: str
    words: list[str]
    protected: list[str]
    unprotected: list[str]
    undecided: list[str]
    pairs: list[tuple[str, str]]
    order: list[str]


class ProbeTask(TypedDict):
    """What one node that probes is sent: pairs to compare, or a list to order for an asker."""

    query: str
    started: float
    number: int
    words: list[str]
    pairs: list[tuple[str, str]]
    order: list[str]
    asker: str


class ProbedRecord(TypedDict):
    """What came of a task.

    ``outcomes`` has for each pair what was preferred in both orders, or the status of what failed,
    and the log-odds; ``order`` has the ids in the model's order, empty where all failed.
    """

    number: int
    asker: str
    outcomes: list[tuple[str, str, float | None, float | None]]
    order: list[str]
    asked: int
    failures: dict[str, int]
    repairs: dict[str, int]
    asked_by: str
    messages: list[str]
    usage: UsageRecord


class SampledRanking(TypedDict):
    """A distinct ranking among the samples.

    ``number`` counts from 0 in the order of first draws; ``times`` is how many samples it is.
    ``ids`` are the documents that the generator reads.
    """

    number: int
    ids: list[str]
    times: int


class GenerationTask(TypedDict):
    """What one node that generates is sent."""

    query: str
    ranking: SampledRanking
    seed: int
    started: float
    stream: bool


class GenerationRecord(TypedDict):
    """What was generated from the ranking of that number, or why there is nothing."""

    number: int
    status: str
    text: str
    message: str
    usage: UsageRecord


class AttributionTask(TypedDict):
    """What one node that attributes is sent."""

    ranking: SampledRanking
    text: str


class VerdictRecord(TypedDict):
    """For each document of the ranking of that number whether the answer used it."""

    number: int
    used: list[bool | None]
    statuses: list[str]
    scores: list[float | None]
    messages: list[str]
    usage: UsageRecord


class InputState(TypedDict):
    """What a run starts with."""

    query: str


class OutputState(TypedDict):
    """What a run ends with.

    Attributes:
        result: The object of :class:`fairqr.graph.result.SearchResult`.
        answer: That of :class:`fairqr.graph.answer_result.AnswerResult`, if one was asked for.
        probe: That of :class:`fairqr.graph.probe_result.ProbeResult`, if one was asked for.
    """

    result: dict[str, object]
    answer: NotRequired[dict[str, object] | None]
    probe: NotRequired[dict[str, object] | None]


class State(InputState, OutputState, total=False):
    """What the nodes of a run share.

    Attributes:
        started: When the run began, in seconds since the epoch.
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
        seed: Of the samples.
        sampled: The distinct rankings among them.
        generations: What was answered from each.
        verdicts: Which documents each answer used.
        cost: Of a model that re-ranks or is probed, as far as it is known beforehand.
        probing: What is probed.
        probed: What came of each task of the probe.
    """

    started: float
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
    seed: int
    sampled: list[SampledRanking]
    generations: Annotated[list[GenerationRecord], operator.add]
    verdicts: Annotated[list[VerdictRecord], operator.add]
    cost: CostRecord | None
    probing: ProbePlan
    probed: Annotated[list[ProbedRecord], operator.add]


def usage_record(usage: Usage) -> UsageRecord:
    """Return a usage as plain data."""
    return cast("UsageRecord", dataclasses.asdict(usage))


def ranking_of(record: RankingRecord, depth: int | None = None) -> Ranking:
    """Return the ranking of a record, cut to a depth."""
    return Ranking(record["ids"][:depth], record["scores"][:depth])
