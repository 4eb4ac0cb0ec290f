"""What tests of runs of both kinds share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from langchain_core.messages import AIMessageChunk

from fairqr.graph.service.records import Event, Run
from fairqr.graph.service.runs.doing import Observer
from fairqr.graph.stream import RunEvent, Step

KEY = "k"
RESULT = {"ranking": ["d1"]}

WHOLE = [(1, "run"), (2, "step"), (0, "token"), (3, "step"), (4, "end")]
"""The shape of the events of :class:`Steps`."""


class Told(Observer):
    """Notes what becomes of runs."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def accepted(self, run: Run) -> None:
        self.said.append("accepted")

    def begun(self, run: Run) -> None:
        self.said.append("begun")

    def finished(self, run: Run) -> None:
        self.said.append(run.status)


class Steps:
    """What is done in each run: a step, a wait for ``go``, and the last step."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.begun = asyncio.Event()
        self.closed = 0
        self.fails: BaseException | None = None

    async def of(self, id_: str) -> AsyncGenerator[RunEvent, None]:
        try:
            yield Step("retrieve", {"iteration": 0, "rankings": ["large"]})
            self.begun.set()
            await self.go.wait()
            if self.fails is not None:
                raise self.fails
            yield AIMessageChunk("piece")
            yield Step("rerank", {"result": RESULT})
        finally:
            self.closed += 1


def shape(events: list[Event]) -> list[tuple[int, str]]:
    return [(event.number, event.name) for event in events]
