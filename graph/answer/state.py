"""The state of a run that answers, besides the search inside it."""

from __future__ import annotations

import operator
from typing import Annotated, Any

# Before Python 3.12, pydantic cannot make a JSON schema, which Studio needs, of typing's TypedDict.
from typing_extensions import TypedDict

from fairqr.graph.search.state import InputState
from fairqr.graph.search.state import OutputState as SearchOutput
from fairqr.graph.usage import longest


class SampledRanking(TypedDict):
    """A distinct ranking among the samples.

    ``number`` counts from 0 in the order of first draws. ``times`` is how many samples equal this
    ranking. ``ids`` are the documents that the generator reads.
    """

    number: int
    ids: list[str]
    times: int


class GenerationTask(TypedDict):
    """The input of one node that generates.

    ``is_alone`` is true if there is only one ranking. Only then is the answer streamed, since
    nobody can read the pieces of several answers at once.
    """

    query: str
    ranking: SampledRanking
    seed: int
    seconds: float
    is_alone: bool


class GenerationRecord(TypedDict):
    """The answer from the ranking with this number, or why there is none."""

    number: int
    status: str
    text: str
    message: str
    usage: dict[str, Any]


class AttributionTask(TypedDict):
    """The input of one node that attributes."""

    ranking: SampledRanking
    text: str
    seconds: float


class VerdictRecord(TypedDict):
    """Whether the answer used each document of the ranking with this number."""

    number: int
    used: list[bool | None]
    statuses: list[str]
    scores: list[float | None]
    messages: list[str]
    usage: dict[str, Any]


class OutputState(SearchOutput):
    """What a run ends with: the search's result and the answer's.

    ``answer`` is the object of :class:`fairqr.graph.answer.result.AnswerResult`.
    """

    answer: dict[str, Any]


class State(InputState, OutputState, total=False):
    """What the nodes that answer share.

    Attributes:
        seconds: How long the steps have taken so far, including the search.
        seed: The seed of the samples.
        sampled: The distinct rankings among the samples.
        generations: The answer from each ranking.
        verdicts: Which documents each answer used.
        warnings: Sentences for users.
    """

    seconds: Annotated[float, longest]
    seed: int
    sampled: list[SampledRanking]
    generations: Annotated[list[GenerationRecord], operator.add]
    verdicts: Annotated[list[VerdictRecord], operator.add]
    warnings: Annotated[list[str], operator.add]
