"""What lasts: memory that does not grow with the runs, and runs that outlive their database."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from langchain_core.messages import AIMessageChunk

from fairqr.graph.journal import RunJournal
from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.records import Run
from fairqr.graph.service.runs import manager, worker
from fairqr.graph.service.runs.doing import Observer
from fairqr.graph.service.runs.manager import Runs
from fairqr.graph.service.store import Store
from fairqr.graph.stream import RunEvent, Step
from tests.integration.postgres_server import new_database, running_postgres
from tests.patience import PATIENCE

KEY = "k"


async def steps(id_: str) -> AsyncGenerator[RunEvent, None]:
    yield Step("retrieve", {"pending": ["text"] * 100}, f"{id_}-1")
    yield AIMessageChunk("piece")
    yield Step("rerank", {"result": {"ranking": ["text"] * 100}}, f"{id_}-2")


def trivial(run: Run, journal: RunJournal) -> AsyncGenerator[RunEvent, None]:
    return steps(run.id)


async def test_memory_does_not_grow_with_the_number_of_runs(tmp_path: Path) -> None:
    """Over 2,000 of them, a tenth of them durable; counted are the objects that are alive."""
    store = await Store.open(f"sqlite:///{tmp_path}/runs.sqlite")
    runs = Runs(store, trivial, ServiceSettings(), Observer())
    await runs.start()

    async def client(number: int) -> None:
        for each in range(number):
            if each % 10 == 0:
                stored = await runs.submit("search", {}, key=KEY, query="q")
                events = runs.events(stored.id, KEY)
                assert [event.name async for event in events][-1] == "end"
                continue
            run = await runs.ephemeral.begin("search", "q", steps, key=KEY, carrier={})
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

    async def __call__(self, run: Run, journal: RunJournal) -> AsyncGenerator[RunEvent, None]:
        yield Step("retrieve", {}, f"{run.id}-1")
        self.begun += 1
        await self.go.wait()
        yield Step("rerank", {"result": {"ranking": []}}, f"{run.id}-2")


async def test_runs_that_are_under_way_outlive_a_restart_of_the_database() -> None:
    """Each ends once, and an ephemeral run does not notice."""
    with running_postgres() as server, new_database(server.url) as url:
        store = await Store.open(url)
        gated = Gated()
        runs = Runs(store, gated, ServiceSettings(lease=600), Observer())
        await runs.start()
        ids = [(await runs.submit("search", {}, key=KEY, query="q")).id for _ in range(2)]

        told: dict[str, list[Any]] = {id_: [] for id_ in ids}

        async def read(id_: str) -> None:
            async for event in runs.events(id_, KEY):
                told[id_].append((event.number, event.name))

        readers = [asyncio.create_task(read(id_)) for id_ in ids]
        async with asyncio.timeout(PATIENCE):
            while any(len(events) < 2 for events in told.values()):
                await asyncio.sleep(0.01)
        await asyncio.to_thread(server.kill)
        own = await runs.ephemeral.begin("search", "q", steps, key=KEY, carrier={})
        assert (await own.end()).status == "done"
        gated.go.set()
        await asyncio.sleep(1)  # the time of the outage
        assert not any(reader.done() for reader in readers)
        await asyncio.to_thread(server.start)
        whole = [(1, "run"), (2, "step"), (3, "step"), (4, "end")]
        await asyncio.wait_for(asyncio.gather(*readers), PATIENCE)
        assert told == dict.fromkeys(ids, whole)
        for id_ in ids:
            run = await store.run(id_, KEY)
            assert (run.status, run.attempts) == ("done", 1)
        await runs.drain(1)
        await store.close()


async def test_workers_on_one_postgresql_hear_of_each_other(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of runs that wait, of their events, and of those to be cancelled; nobody looks meanwhile."""
    monkeypatch.setattr(manager, "FOLLOW", 600.0)
    monkeypatch.setattr(worker, "POLL", 600.0)
    monkeypatch.setattr(worker, "BEAT", 600.0)
    store, another = await Store.open(postgres_url), await Store.open(postgres_url)
    gated = Gated()
    here = Runs(store, gated, ServiceSettings(lease=3600), Observer())
    elsewhere = Runs(another, gated, ServiceSettings(lease=3600), Observer())
    try:
        await elsewhere.start()
        await _listen(store, 1)
        run = await here.submit("search", {}, key=KEY, query="q")  # this process does not do it
        async with asyncio.timeout(PATIENCE):
            while not gated.begun:
                await asyncio.sleep(0.01)
        await here.start()
        await _listen(store, 2)
        follower = asyncio.create_task(anext(here.events(run.id, KEY, after=1)))
        assert (await asyncio.wait_for(follower, PATIENCE)).name == "step"
        final = asyncio.create_task(elsewhere.result(run.id, KEY))
        await here.cancel(run.id, KEY)
        assert (await asyncio.wait_for(final, PATIENCE)).status == "cancelled"
    finally:
        for runs, opened in ((here, store), (elsewhere, another)):
            await runs.drain(0)
            await opened.close()


async def _listen(store: Store, workers: int) -> None:
    """Wait until so many workers hear of what happens in a database."""
    listening = sa.text(
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND state = 'idle' AND query LIKE 'LISTEN %'"
    )
    async with asyncio.timeout(PATIENCE):
        while await store._database.read(lambda it: it.scalar(listening)) < workers:
            await asyncio.sleep(0.01)
