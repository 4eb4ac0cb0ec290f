"""What lasts: memory that does not grow with the runs, and runs that outlive their database."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessageChunk

from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.records import Run
from fairqr.graph.service.runs.manager import Runs
from fairqr.graph.service.store import Store
from fairqr.graph.stream import RunEvent, Step
from tests.integration.postgres_server import new_database, running_postgres
from tests.integration.resuming_worker import Silent

KEY = "k"


async def trivial(run: Run, resume: bool) -> AsyncGenerator[RunEvent, None]:
    yield Step("retrieve", {"pending": ["text"] * 100}, f"{run.id}-1")
    yield AIMessageChunk("piece")
    yield Step("rerank", {"result": {"ranking": ["text"] * 100}}, f"{run.id}-2")


async def test_memory_does_not_grow_with_the_number_of_runs(tmp_path: Path) -> None:
    """Over 2,000 of them, a tenth of them kept; counted are the objects that are alive."""
    store = await Store.open(f"sqlite:///{tmp_path}/runs.sqlite")
    runs = Runs(store, trivial, ServiceSettings(), Silent())
    await runs.start()

    async def client(number: int) -> None:
        for each in range(number):
            keep = each % 10 == 0
            run = await runs.submit("search", {}, key=KEY, query="q", keep=keep)
            async with runs.attached(run.id, KEY) as events:
                assert [event.name async for event in events][-1] == "end"

    async def held(number: int) -> int:
        await asyncio.gather(*(client(number // 8) for _ in range(8)))
        gc.collect()
        return len(gc.get_objects())

    await held(200)
    first = await held(200)
    last = await held(1600)
    await runs.drain(1)
    await store.close()
    assert last < first + 800  # each run that were held would be a dozen of them


class Gated:
    """A step before something is waited for, and one after it."""

    def __init__(self) -> None:
        self.begun = 0
        self.go = asyncio.Event()

    async def __call__(self, run: Run, resume: bool) -> AsyncGenerator[RunEvent, None]:
        yield Step("retrieve", {}, f"{run.id}-1")
        self.begun += 1
        await self.go.wait()
        yield Step("rerank", {"result": {"ranking": []}}, f"{run.id}-2")


async def test_runs_that_are_under_way_outlive_a_restart_of_the_database() -> None:
    """Kept or not, each ends once; meanwhile nothing new is taken on, and that is said."""
    with running_postgres() as server, new_database(server.url) as url:
        store = await Store.open(url)
        gated = Gated()
        runs = Runs(store, gated, ServiceSettings(), Silent())
        await runs.start()
        ids = [
            (await runs.submit("search", {}, key=KEY, query="q", keep=keep)).id
            for keep in (True, False, True, False)
        ]

        async def told(id_: str) -> list[Any]:
            async with runs.attached(id_, KEY) as events:
                return [(event.number, event.name) async for event in events]

        readers = [asyncio.create_task(told(id_)) for id_ in ids]
        while gated.begun < len(ids):
            await asyncio.sleep(0.01)
        await asyncio.to_thread(server.kill)
        gated.go.set()
        await asyncio.sleep(1)  # the time of the outage
        assert not any(reader.done() for reader in readers)
        await asyncio.to_thread(server.start)
        whole = [(1, "run"), (2, "step"), (3, "step"), (4, "end")]
        assert await asyncio.wait_for(asyncio.gather(*readers), 30) == [whole] * len(ids)
        for id_ in ids:
            run = await store.run(id_, KEY)
            assert (run.status, run.attempts) == ("done", 1)
        await runs.drain(1)
        await store.close()
