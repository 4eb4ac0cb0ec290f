"""The state that the nodes of an answer share. It is plain data, like a search's."""

from __future__ import annotations

import operator
from typing import Annotated

from fairqr.graph.running import longest
from fairqr.graph.search.state import InputState, Record, SearchOutput


class AnswerOutput(SearchOutput):
    """What a run ends with: the search's result and the answer's.

    ``answer`` is the object of :class:`fairqr.graph.answer.result.AnswerResult`.
    """

    answer: Record | None


class AnswerState(InputState, AnswerOutput, total=False):
    """What the nodes that answer share.

    Attributes:
        seconds: How long the nodes have taken so far, including the search.
        seed: The seed of the samples.
        sampled: Each distinct ``SampledRanking``, in the order in which they were first drawn.
        answers: The ``RankingAnswer`` of each sampled ranking; it has verdicts after ``attribute``.
        usages: The ``Usage`` of each node that asked a model.
        notes: What the judge says to users.
    """

    seconds: Annotated[float, longest]
    seed: int
    sampled: list[Record]
    answers: Annotated[list[Record], operator.add]
    usages: Annotated[list[Record], operator.add]
    notes: list[str]


class RankingTask(InputState):
    """What it takes to answer from one of the sampled rankings.

    ``ranking`` is the object of :class:`fairqr.graph.answer.result.SampledRanking`.
    """

    seconds: float
    seed: int
    ranking: Record
