"""What a run that answers knows so far, beside the search inside it."""

from __future__ import annotations

import operator
from typing import Annotated, Any

# Before Python 3.12 pydantic makes no JSON schema of typing's own; Studio's forms are made of it.
from typing_extensions import TypedDict

from fairqr.graph.search.state import InputState
from fairqr.graph.search.state import OutputState as SearchOutput
from fairqr.graph.usage import UsageRecord, longest

__all__ = [
    "AttributionTask",
    "GenerationRecord",
    "GenerationTask",
    "OutputState",
    "SampledRanking",
    "State",
    "VerdictRecord",
]


class SampledRanking(TypedDict):
    """A distinct ranking among the samples.

    ``number`` counts from 0 in the order of first draws; ``times`` is how many samples it is.
    ``ids`` are the documents that the generator reads.
    """

    number: int
    ids: list[str]
    times: int


class GenerationTask(TypedDict):
    """What one node that generates is sent.

    ``is_alone`` says whether there is one ranking to answer from: pieces of several answers at once
    are of no use to a reader.
    """

    query: str
    ranking: SampledRanking
    seed: int
    seconds: float
    is_alone: bool


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
    seconds: float


class VerdictRecord(TypedDict):
    """For each document of the ranking of that number whether the answer used it."""

    number: int
    used: list[bool | None]
    statuses: list[str]
    scores: list[float | None]
    messages: list[str]
    usage: UsageRecord


class OutputState(SearchOutput):
    """What a run ends with: the search's result, and the object of the answer's.

    That is the object of :class:`fairqr.graph.answer.result.AnswerResult`.
    """

    answer: dict[str, Any]


class State(InputState, OutputState, total=False):
    """What the nodes that answer share.

    Attributes:
        seconds: How long the steps took so far, those of the search included.
        seed: Of the samples.
        sampled: The distinct rankings among them.
        generations: What was answered from each.
        verdicts: Which documents each answer used.
        warnings: Sentences for people.
    """

    seconds: Annotated[float, longest]
    seed: int
    sampled: list[SampledRanking]
    generations: Annotated[list[GenerationRecord], operator.add]
    verdicts: Annotated[list[VerdictRecord], operator.add]
    warnings: Annotated[list[str], operator.add]
