"""The state of a run that answers, besides the search inside it."""

from __future__ import annotations

import operator
from typing import Annotated, Any

# Before Python 3.12, pydantic cannot make a JSON schema, which Studio needs, of typing's TypedDict.
from typing_extensions import TypedDict

from fairqr.graph.search import state as search
from fairqr.graph.steps import longest


class RankingTask(TypedDict):
    """The input of a node that answers from a ranking, or judges the answer.

    ``ranking`` is the object of :class:`fairqr.graph.answer.result.SampledRanking`, or of
    :class:`fairqr.graph.answer.result.RankingAnswer` once there is an answer.
    """

    query: str
    seed: int
    seconds: float
    ranking: dict[str, Any]


class OutputState(search.OutputState):
    """What a run ends with: the search's result and the answer's.

    ``answer`` is the object of :class:`fairqr.graph.answer.result.AnswerResult`.
    """

    answer: dict[str, Any]


class State(search.InputState, OutputState, total=False):
    """What the nodes that answer share.

    Attributes:
        seconds: How long the steps have taken so far, including the search.
        seed: The seed of the samples.
        sampled: The distinct rankings, as objects of
            :class:`fairqr.graph.answer.result.SampledRanking`.
        generated: What was answered from each of them, as objects of
            :class:`fairqr.graph.answer.result.RankingAnswer`.
        judged: Those of them that were judged, with the verdicts.
        spent: What each question to a model cost.
        warnings: Sentences for users.
    """

    seconds: Annotated[float, longest]
    seed: int
    sampled: list[dict[str, Any]]
    generated: Annotated[list[dict[str, Any]], operator.add]
    judged: Annotated[list[dict[str, Any]], operator.add]
    spent: Annotated[list[dict[str, Any]], operator.add]
    warnings: Annotated[list[str], operator.add]
