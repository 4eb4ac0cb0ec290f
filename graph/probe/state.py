"""The state that the nodes of a probe share. It is plain data, like a search's."""

from __future__ import annotations

import operator
from typing import Annotated

from fairqr.agents.ranking.rankers import Persona
from fairqr.graph.running import longest
from fairqr.graph.search.state import InputState, Record, SearchOutput


class ProbeOutput(SearchOutput):
    """What a run ends with: the search's result and the probe's.

    ``probe`` is the object of :class:`fairqr.graph.probe.result.ProbeResult`.
    """

    probe: Record | None


class ProbeTask(InputState):
    """Pairs to compare for a persona, the protected document first; or else a list to order."""

    persona: Persona
    pairs: list[tuple[str, str]]
    order: list[str]


class AskedTask(ProbeTask):
    """A task, and how long the nodes before it took."""

    seconds: float


class ProbeState(InputState, ProbeOutput, total=False):
    """What the nodes that probe share.

    Attributes:
        seconds: How long the nodes have taken so far, including the search.
        status: ``ok``, or why nothing is asked.
        message: A sentence that explains the status; empty if ``ok``.
        tasks: What to ask.
        cost: What that costs at most, as :class:`fairqr.graph.search.result.RankingCost`.
        outcomes: What each task found: compared ``pairs`` and how the model was ``asked_by``, or an
            ``order``; and its ``usage`` and ``warnings``.
    """

    seconds: Annotated[float, longest]
    status: str
    message: str
    tasks: list[ProbeTask]
    cost: Record | None
    outcomes: Annotated[list[Record], operator.add]
