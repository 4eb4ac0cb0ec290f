"""Durable runs of real graphs that are left somewhere, and go on from their checkpoints."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fairqr.agents.models.replies import Reply, Usage
from fairqr.graph.search.builder import build_search_graph
from fairqr.graph.search.context import Context
from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.records import Event, Kind, Run
from fairqr.graph.service.runs.doing import DurableRun, Observer
from fairqr.graph.service.runs.manager import Runs
from fairqr.graph.service.store import Store
from fairqr.graph.stream import RunEvent, Step, run_graph
from fairqr.retrieval.engines.engine import SearchEngine
from tests.integration.stores import over
from tests.patience import PATIENCE
from tests.unit.graph.corpora import write_corpus

SEARCH = Context.of(attributes=["gender"], k=6, ask="always", patience=5)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty men and twenty women in science."""
    texts = [("m", "science science science work", "male")] * 40
    texts += [("w", "science scholar more", "female")] * 20
    documents = [
        {"id": f"{kind}{n:02}", "title": kind, "text": f"{text} {n}", "g": gender}
        for n, (kind, text, gender) in enumerate(texts)
    ]
    return write_corpus(tmp_path_factory.mktemp("corpus"), documents)


class Graph:
    """Does runs with a graph; leaves the first attempt at each after so many steps.

    Attributes:
        version: Of the index.
        steps: The names of the steps that ran, with those of all attempts.
    """

    def __init__(self, graph: Any, context: Context = SEARCH) -> None:
        self.graph, self.context = graph, context
        self.leaves_after = 0
        self.version = "first"
        self.steps: list[str] = []

    async def __call__(self, run: Run, durable: DurableRun) -> AsyncGenerator[RunEvent, None]:
        await durable.begin_over(self.version)
        graph = self.graph.copy({"checkpointer": durable.saver})
        options: dict[str, Any] = {"thread": run.id, "resume": durable.resumed}
        events = run_graph(
            graph, run.query, self.context, journal=durable, durability="async", **options
        )
        number = 0
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Step) and event.name != "result":
                    self.steps.append(event.name)
                    number += 1
                yield event
                if run.attempts == 1 and number == self.leaves_after:
                    raise asyncio.CancelledError  # as a process that is told to stop


@asynccontextmanager
async def doing(store: Store, execute: Any) -> AsyncIterator[Runs]:
    runs = Runs(store, execute, ServiceSettings(), Observer())
    await runs.start()
    try:
        yield runs
    finally:
        await runs.drain(0)


async def whole(store: Store, graph: Graph, kind: Kind = "search") -> tuple[Run, list[Event]]:
    """Do a run; where it is left, go on as the next process does."""
    async with doing(store, graph) as runs:
        submitted = await runs.submit(kind, {}, key="k", query="science")
        async with asyncio.timeout(PATIENCE):
            while not runs.doing:
                await asyncio.sleep(0.001)
            while runs.doing:
                await asyncio.sleep(0.001)
    async with doing(store, graph) as runs:
        run = await over(runs, store, submitted)
    return run, await store.events(run.id)


def result_of(run: Run) -> dict[str, Any]:
    assert run.result is not None, run.problem
    return {**run.result, "usage": {**run.result["usage"], "milliseconds": 0}}


def steps_of(events: list[Event]) -> list[str]:
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    json.dumps([event.data for event in events])
    return [event.data["step"] for event in events if event.name == "step"]


async def test_wherever_it_is_left_it_goes_on_and_comes_to_the_same(
    store: Store, engine: SearchEngine
) -> None:
    graph = Graph(build_search_graph(engine, "feedback"))
    unbroken, events = await whole(store, graph)
    told = steps_of(events)
    assert told[:4] == ["begin", "measure", "choose_group", "refine"]
    assert told == graph.steps
    for number in range(1, len(told) + 1):
        graph.leaves_after = number
        graph.steps.clear()
        run, events = await whole(store, graph)
        assert run.attempts == 2
        assert result_of(run) == result_of(unbroken)
        assert steps_of(events) == told  # each once, whatever ran twice
        assert len(graph.steps) <= len(told) + 2  # it went on where it was, or a step before


async def test_a_run_whose_index_was_built_again_starts_over(
    store: Store, engine: SearchEngine
) -> None:
    graph = Graph(build_search_graph(engine, "feedback"))
    unbroken, events = await whole(store, graph)
    graph.leaves_after = 4
    graph.steps.clear()

    class Rebuilt(Graph):
        async def __call__(self, run: Run, durable: DurableRun) -> AsyncGenerator[RunEvent, None]:
            self.version = str(run.attempts)
            async with aclosing(super().__call__(run, durable)) as happenings:
                async for event in happenings:
                    yield event

    rebuilt = Rebuilt(graph.graph)
    rebuilt.leaves_after = 4
    run, again = await whole(store, rebuilt)
    assert result_of(run) == result_of(unbroken)
    assert rebuilt.steps[4:] == steps_of(events)
    assert steps_of(again) == rebuilt.steps  # what was told before is told again, as it is new


async def test_what_was_asked_twice_is_kept_twice_and_what_may_heal_is_not_kept(
    store: Store,
) -> None:
    replies = [
        Reply("ok", {"text": "one"}, usage=Usage(model_calls=2)),
        Reply("timeout", message="too slow"),
        Reply("ok", {"text": "three"}),
        Reply("ok", {"text": "two"}),
    ]
    told: list[list[Reply]] = []

    async def ask() -> Reply:
        return replies.pop(0)

    async def asks(run: Run, durable: DurableRun) -> AsyncGenerator[RunEvent, None]:
        times = 3 if run.attempts == 1 else 4
        told.append([await durable.once("same", dict, ask) for _ in range(times)])
        if run.attempts == 1:
            raise asyncio.CancelledError
        yield Step("rerank", {"result": {}})
        yield Step("rerank", {"result": {"ranking": []}})

    async with doing(store, asks) as runs:
        submitted = await runs.submit("search", {}, key="k", query="q")
        async with asyncio.timeout(PATIENCE):
            while not told:
                await asyncio.sleep(0.01)
    async with doing(store, asks) as runs:
        assert (await over(runs, store, submitted)).status == "done"
    first, again = told
    assert not replies
    assert [again[0], again[2]] == [first[0], first[2]]
    assert again[1].value == {"text": "two"}
    assert again[3] == first[2]  # by the last that is known, and not asked again
