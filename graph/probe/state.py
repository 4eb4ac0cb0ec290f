"""The state of a run that probes, besides the search inside it."""

from __future__ import annotations

import operator
from typing import Annotated, Any, NotRequired

# Before Python 3.12, pydantic cannot make a JSON schema, which Studio needs, of typing's TypedDict.
from typing_extensions import TypedDict

from fairqr.agents.ranking.rankers import Asker
from fairqr.graph.search import state as search
from fairqr.graph.steps import longest


class ProbeTask(TypedDict):
    """Pairs to compare for an asker, the protected document first; or else a list to order.

    As the input of a node, it also has ``query`` and ``seconds``.
    """

    asker: Asker
    pairs: list[tuple[str, str]]
    order: list[str]
    query: NotRequired[str]
    seconds: NotRequired[float]


class ProbePlan(TypedDict):
    """What to probe: the sides of the documents, and the tasks.

    ``status`` is ``ok``, or why there are no tasks; ``message`` then says it in a sentence.
    """

    status: str
    message: str
    sides: dict[str, str]
    tasks: list[ProbeTask]


class ProbedRecord(TypedDict):
    """The outcome of a task.

    ``pairs`` are objects of :class:`fairqr.graph.probe.result.ProbedPair`, and ``orders`` those of
    :class:`fairqr.graph.probe.result.AskerOrder`, without their exposure. ``asked_by`` says how
    pairs were decided.
    """

    pairs: list[dict[str, Any]]
    orders: list[dict[str, Any]]
    asked_by: str


class OutputState(search.OutputState):
    """What a run ends with: the search's result and the probe's.

    ``probe`` is the object of :class:`fairqr.graph.probe.result.ProbeResult`.
    """

    probe: dict[str, Any]


class State(search.InputState, OutputState, total=False):
    """What the nodes that probe share.

    Attributes:
        seconds: How long the steps have taken so far, including the search.
        plan: What to probe.
        probed: The outcome of each task of the plan.
        spent: What each task cost.
        warnings: Sentences for users.
    """

    seconds: Annotated[float, longest]
    plan: ProbePlan
    probed: Annotated[list[ProbedRecord], operator.add]
    spent: Annotated[list[dict[str, Any]], operator.add]
    warnings: Annotated[list[str], operator.add]
