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


class OutputState(search.OutputState):
    """What a run ends with: the search's result and the probe's.

    ``probe`` is the object of :class:`fairqr.graph.probe.result.ProbeResult`.
    """

    probe: dict[str, Any]


class State(search.InputState, OutputState, total=False):
    """What the nodes that probe share.

    Attributes:
        seconds: How long the steps have taken so far, including the search.
        status: ``ok``, or why nothing is asked.
        message: A sentence that explains the status; empty if ``ok``.
        tasks: What to ask.
        pairs: Objects of :class:`fairqr.graph.probe.result.ProbedPair`.
        asked_by: How the pairs of each task were decided: ``probabilities`` or ``reply``.
        orders: Objects of :class:`fairqr.graph.probe.result.AskerOrder`, without their exposure.
        spent: What each task cost.
        warnings: Sentences for users.
    """

    seconds: Annotated[float, longest]
    status: str
    message: str
    tasks: list[ProbeTask]
    pairs: Annotated[list[dict[str, Any]], operator.add]
    asked_by: Annotated[list[str], operator.add]
    orders: Annotated[list[dict[str, Any]], operator.add]
    spent: Annotated[list[dict[str, Any]], operator.add]
    warnings: Annotated[list[str], operator.add]
