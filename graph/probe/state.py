"""The state of a run that probes, besides the search inside it."""

from __future__ import annotations

import operator
from typing import Annotated, Any

# Before Python 3.12, pydantic cannot make a JSON schema, which Studio needs, of typing's TypedDict.
from typing_extensions import TypedDict

from fairqr.graph.search.state import InputState
from fairqr.graph.search.state import OutputState as SearchOutput
from fairqr.graph.usage import longest


class ProbePlan(TypedDict):
    """What to probe: the ids of the documents of both sides, the pairs, and the order of lists.

    ``undecided`` documents are of neither side. The protected document comes first in a pair.
    ``status`` is ``ok``, or why nothing is asked.
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
    """The input of one node that probes: pairs to compare, or a list to order for an asker."""

    query: str
    seconds: float
    number: int
    words: list[str]
    pairs: list[tuple[str, str]]
    order: list[str]
    asker: str


class ProbedRecord(TypedDict):
    """The outcome of a task.

    ``outcomes`` has, for each pair, the preferences in both orders (or the status of a failure) and
    the log-odds. ``order`` has the ids in the model's order; it is empty if all questions failed.
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
    usage: dict[str, Any]


class OutputState(SearchOutput):
    """What a run ends with: the search's result and the probe's.

    ``probe`` is the object of :class:`fairqr.graph.probe.result.ProbeResult`.
    """

    probe: dict[str, Any]


class State(InputState, OutputState, total=False):
    """What the nodes that probe share.

    Attributes:
        seconds: How long the steps have taken so far, including the search.
        plan: What to probe.
        probed: The outcome of each task of the plan.
    """

    seconds: Annotated[float, longest]
    plan: ProbePlan
    probed: Annotated[list[ProbedRecord], operator.add]
