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
from fairqr.graph.service.runs.doing import DurableRun, Observer
from fairqr.graph.service.runs.manager import Runs
from fairqr.graph.service.store import Store
from fairqr.graph.stream import RunEvent, Step
from tests.integration.postgres_server import new_database, running_postgres
from tests.patience import PATIENCE
from tests.unit.graph.service.test_runs import ended

KEY = "k"


async def steps(id_: str) -> AsyncGenerator[RunEvent, None]:
    yield Step("retrieve", {"pending": ["text"] * 100})
    yield AIMessageChunk("piece")
    yield Step("rerank", {"result": {"ranking": ["text"] * 100}})


async def trivial(run: Run, durable: DurableRun) -> AsyncGenerator[RunEvent, None]:
    async for event in steps(run.id):
        await ended(durable, event)
        yield event


async def test_memory_does_not_grow_with_the_number_of_runs(tmp_path: Path) -> None:
    """Over 2,000 of them, a tenth of them durable; counted are the objects that are alive."""
    store = await Store.open(f"sqlite:///{tmp_path}/runs.sqlite")
    runs = Runs(store, trivial, ServiceSettings(), Observer())
    await runs.start()

    async def client(number: int) -> None:
        for each in range(number):
            if each % 10 == 0:
                stored = await runs.submit("search", {}, key=KEY, query="q")
                events = runs.events(stored, KEY)
                assert [event.name async for event in events][-1] == "end"
                continue
            run = await runs.begin("search", "q", steps, key=KEY, carrier={})
            async with run as told:
                assert [event.name async for event in told][-1] == "end"

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

    async def __call__(self, run: Run, durable: DurableRun) -> AsyncGenerator[RunEvent, None]:
        await ended(durable, Step("retrieve", {}))
        self.begun += 1
        await self.go.wait()
        last = Step("rerank", {"result": {"ranking": []}})
        await ended(durable, last)
        yield last


async def test_runs_that_are_under_way_outlive_a_restart_of_the_database() -> None:
    """Each ends once, and an ephemeral run does not notice."""
    with running_postgres() as server, new_database(server.url) as url:
        store = await Store.open(url)
        gated = Gated()
        runs = Runs(store, gated, ServiceSettings(lease=600), Observer())
        await runs.start()
        kept = [await runs.submit("search", {}, key=KEY, query="q") for _ in range(2)]

        told: dict[str, list[Any]] = {run.id: [] for run in kept}

        async def read(run: Run) -> None:
            async for event in runs.events(run, KEY):
                told[run.id].append((event.number, event.name))

        readers = [asyncio.create_task(read(run)) for run in kept]
        async with asyncio.timeout(PATIENCE):
            while any(len(events) < 2 for events in told.values()):
                await asyncio.sleep(0.01)
        await asyncio.to_thread(server.kill)
        own = await runs.begin("search", "q", steps, key=KEY, carrier={})
        async with own as events:
            assert [event.name async for event in events][-1] == "end"
        gated.go.set()
        await asyncio.sleep(1)  # the time of the outage
        assert not any(reader.done() for reader in readers)
        await asyncio.to_thread(server.start)
        await asyncio.wait_for(asyncio.gather(*readers), PATIENCE)
        for events in told.values():
            # procrastinate may have ended its worker; the run is then told to begin once more.
            numbers, names = zip(*events, strict=True)
            assert numbers == tuple(range(1, len(events) + 1))
            assert [name for name in names if name != "run"] == ["step", "step", "end"]
        for each in kept:
            run = await store.run(each.id, KEY)
            assert run.status == "done"
        await runs.drain(1)
        await store.close()
