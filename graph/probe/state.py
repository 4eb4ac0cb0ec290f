"""What a run that probes knows so far, beside the search inside it."""

from __future__ import annotations

import operator
from typing import Annotated, Any

# Before Python 3.12 pydantic makes no JSON schema of typing's own; Studio's forms are made of it.
from typing_extensions import TypedDict

from fairqr.graph.search.state import InputState
from fairqr.graph.search.state import OutputState as SearchOutput
from fairqr.graph.usage import UsageRecord, longest

__all__ = ["OutputState", "ProbePlan", "ProbeTask", "ProbedRecord", "State"]


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
    asker: str
    askers: list[str]


class ProbeTask(TypedDict):
    """What one node that probes is sent: pairs to compare, or a list to order for an asker."""

    query: str
    seconds: float
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


class OutputState(SearchOutput):
    """What a run ends with: the search's result, and the object of the probe's.

    That is the object of :class:`fairqr.graph.probe.result.ProbeResult`.
    """

    probe: dict[str, Any]


class State(InputState, OutputState, total=False):
    """What the nodes that probe share.

    Attributes:
        seconds: How long the steps took so far, those of the search included.
        plan: What is probed.
        probed: What came of each task of the plan.
    """

    seconds: Annotated[float, longest]
    plan: ProbePlan
    probed: Annotated[list[ProbedRecord], operator.add]
