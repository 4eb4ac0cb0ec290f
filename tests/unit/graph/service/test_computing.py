"""The nodes of runs compute in turns of keys, and hold no turn while a model is asked."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fairqr import Context, build_search_graph
from fairqr.graph.running import in_turns
from fairqr.graph.service.slots import Slots
from fairqr.retrieval.engines.engine import SearchEngine
from tests.unit.graph.corpora import KnownRefiner, corpus, engine

__all__ = ["corpus", "engine"]

ALONE = Context(attributes=("gender",), k=4, max_iterations=0)


class WatchedTurns:
    """Turns of keys.

    Attributes:
        held: How many each key holds.
        most: How many each held at most.
    """

    def __init__(self) -> None:
        self.held: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self._slots = Slots(2, share=0.5)

    @asynccontextmanager
    async def of(self, key: str) -> AsyncIterator[None]:
        """Hold a turn."""
        async with self._slots.held(key):
            self.held[key] += 1
            self.most[key] = max(self.most[key], self.held[key])
            yield
            self.held[key] -= 1


async def run(graph: Any, turns: WatchedTurns, key: str, context: Context) -> Any:
    """Search as a key, and return the ids of the ranking."""
    with in_turns(partial(turns.of, key)):
        state = await graph.ainvoke({"query": "science"}, context=context)
    return [place["id"] for place in state["result"]["ranking"]]


async def test_a_key_with_many_runs_computes_no_more_at_once_than_its_share(
    engine: SearchEngine,
) -> None:
    turns = WatchedTurns()
    graph = build_search_graph(engine)
    keys = ["greedy"] * 8 + ["other"]
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(run(graph, turns, key, ALONE)) for key in keys]
    assert turns.most == {"greedy": 1, "other": 1}
    unhindered = await graph.ainvoke({"query": "science"}, context=ALONE)
    expected = [place["id"] for place in unhindered["result"]["ranking"]]
    assert [task.result() for task in running] == [expected] * len(keys)


async def test_a_run_whose_model_is_asked_keeps_no_other_from_computing(
    engine: SearchEngine,
) -> None:
    turns = WatchedTurns()
    is_asked = asyncio.Event()
    may_answer = asyncio.Event()

    async def words(_: Any) -> list[str]:
        is_asked.set()
        await may_answer.wait()
        return ["laboratory"]

    asking = Context(attributes=("gender",), k=4, ask="always", max_iterations=1)
    graph = build_search_graph(engine, KnownRefiner(words))  # type: ignore[arg-type]
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(run(graph, turns, "one", asking))
        await is_asked.wait()
        assert turns.held["one"] == 0
        await run(graph, turns, "one", ALONE)
        assert not waiting.done()
        may_answer.set()
