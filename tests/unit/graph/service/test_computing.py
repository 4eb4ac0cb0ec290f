"""Runs compute in turns of keys, and hold no turn while a model is asked."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fairqr import Context, build_search_graph
from fairqr.graph.integrations import order
from fairqr.graph.running import compute, in_turns
from fairqr.graph.service.execution.executor import COMPUTING
from fairqr.graph.service.slots import Slots
from fairqr.retrieval.engines.engine import SearchEngine
from tests.patience import PATIENCE
from tests.servers.service_client import in_process
from tests.unit.graph.corpora import AlteredEngine, KnownRefiner, corpus, engine

__all__ = ["corpus", "engine"]

ALONE = Context(attributes=("gender",), k=4, max_iterations=0)


class WatchedTurns:
    """Turns of keys.

    Attributes:
        held: How many each key holds.
        most: How many each held at most.
        begun: How many each ever took.
    """

    def __init__(self) -> None:
        self.held: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.begun: Counter[str] = Counter()
        self._slots = Slots(2, share=0.5)

    @asynccontextmanager
    async def of(self, key: str) -> AsyncIterator[None]:
        """Hold a turn."""
        async with self._slots.hold(key):
            self.held[key] += 1
            self.most[key] = max(self.most[key], self.held[key])
            self.begun[key] += 1
            try:
                yield
            finally:
                self.held[key] -= 1


async def run(graph: Any, turns: WatchedTurns, key: str, context: Context) -> Any:
    """Search as a key, and return the ids of the ranking."""
    async with in_turns(partial(turns.of, key)):
        state = await graph.ainvoke({"query": "science"}, context=context)
    return [place["id"] for place in state["result"]["ranking"]]


async def test_a_key_with_many_runs_computes_only_its_share(
    engine: SearchEngine,
) -> None:
    turns = WatchedTurns()
    graph = build_search_graph(engine)
    keys = ["greedy"] * 8 + ["other"]
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(run(graph, turns, key, ALONE)) for key in keys]

    assert turns.most == {"greedy": 1, "other": 1}
    assert turns.begun == {"greedy": 8, "other": 1}, "a run holds its turn from node to node"
    assert not +turns.held

    unhindered = await graph.ainvoke({"query": "science"}, context=ALONE)
    expected = [place["id"] for place in unhindered["result"]["ranking"]]
    assert [task.result() for task in running] == [expected] * len(keys)


async def test_a_run_that_asks_a_model_lets_others_compute(
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

    assert turns.begun["one"] == 3, "the run that asked took its turn again"


async def test_a_run_that_fails_gives_its_turn_back(engine: SearchEngine) -> None:
    turns = WatchedTurns()

    def failing(*_: Any) -> Any:
        assert turns.held["one"] == 1
        raise ConnectionError

    graph = build_search_graph(AlteredEngine(engine, failing))
    with pytest.raises(ConnectionError):
        await run(graph, turns, "one", ALONE)
    assert turns.held["one"] == 0


@pytest.mark.parametrize("between_nodes", [True, False])
async def test_a_run_that_is_given_up_holds_its_turn_with_its_thread(
    between_nodes: bool,
) -> None:
    """Nobody can stop the thread; so a key that gives up many runs has no more of them at work."""
    turns = WatchedTurns()
    is_computing = asyncio.Event()
    may_end = threading.Event()
    loop = asyncio.get_running_loop()

    def compute_slowly() -> None:
        loop.call_soon_threadsafe(is_computing.set)
        assert may_end.wait(PATIENCE)

    async def run_alone(work: Any) -> None:
        async with in_turns(partial(turns.of, "one"), between_nodes=between_nodes):
            await compute(work)

    given_up = asyncio.create_task(run_alone(compute_slowly))
    await is_computing.wait()
    given_up.cancel()

    with pytest.raises(asyncio.CancelledError):
        await given_up
    assert turns.held["one"] == 1

    following = asyncio.create_task(run_alone(lambda: None))
    _, going_on = await asyncio.wait({following}, timeout=0.1)
    assert going_on, "it waits for its turn"

    may_end.set()
    await following
    assert not +turns.held
    assert turns.most["one"] == 1


async def test_lists_of_others_are_ranked_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many are sent at once, some threads are left for all else."""
    monkeypatch.setenv("FAIRQR_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "goods.jsonl").write_text('{"id": "a", "text": "lamp", "maker": "x"}\n')
    source = tmp_path / "goods.yaml"
    source.write_text(
        "{name: goods, engine: tantivy, documents: goods.jsonl, "
        "attributes: {maker: {field: maker, groups: [x, y]}}}"
    )
    ranking = threading.Semaphore(0)
    may_end = threading.Event()
    fair_order = order.fair_order

    def rank_slowly(*arguments: Any) -> Any:
        ranking.release()
        assert may_end.wait(PATIENCE)
        return fair_order(*arguments)

    monkeypatch.setattr(order, "fair_order", rank_slowly)
    documents = [{"text": "lamp", "labels": {"maker": maker}} for maker in "xy"]
    body = {"model": "goods", "documents": documents}
    async with in_process(sources=(source,)) as client, asyncio.TaskGroup() as group:
        asking = [
            group.create_task(client.post("/v1/rerank", json=body)) for _ in range(COMPUTING + 1)
        ]
        try:
            for _ in range(COMPUTING):
                assert await asyncio.to_thread(ranking.acquire, timeout=PATIENCE)

            await asyncio.wait(asking, timeout=0.1)
            assert not ranking.acquire(blocking=False), "one too many"
        finally:
            may_end.set()

    assert {task.result().status_code for task in asking} == {200}
