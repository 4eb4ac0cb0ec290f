"""What lasts: memory that does not grow with the number of runs."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from langchain_core.messages import AIMessageChunk

from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.records import Run
from fairqr.graph.service.runs.durable import DurableRun
from fairqr.graph.service.runs.manager import Runs
from fairqr.graph.service.store import Store
from fairqr.graph.step import Step
from fairqr.graph.stream import RunOutput
from tests.unit.graph.service.test_runs import store_step

KEY = "k"


async def steps(id_: str) -> AsyncGenerator[RunOutput, None]:
    yield Step("retrieve", {"pending": ["text"] * 100})
    yield AIMessageChunk("piece")
    yield Step("rerank", {"result": {"ranking": ["text"] * 100}})


async def trivial(run: Run, durable: DurableRun) -> AsyncGenerator[RunOutput, None]:
    async for event in steps(run.id):
        yield await store_step(durable, event)


async def do_durable_run(runs: Runs) -> None:
    run = await runs.accept(KEY, kind="search", query="q", request={}, carrier={})
    names = [event.name async for event in runs.events(run, KEY)]
    assert names[-1] == "end"


async def do_ephemeral_run(runs: Runs) -> None:
    run = await runs.start_ephemeral("search", "q", steps, key=KEY, carrier={})
    async with run as events:
        names = [event.name async for event in events]
    assert names[-1] == "end"


@pytest.mark.promise("service")
async def test_memory_does_not_grow_with_the_number_of_runs(tmp_path: Path) -> None:
    """The memory of the service does not grow with the number of runs that it has done.

    Over 1,000 of them, a tenth of them durable; counted are the objects that are alive.
    """
    async with Store.opened(f"sqlite:///{tmp_path}/runs.sqlite") as store:
        runs = Runs(store, trivial, ServiceSettings(), lambda _: None)
        await runs.start()

        async def client(number: int) -> None:
            for position in range(number):
                if position % 10 == 0:
                    await do_durable_run(runs)
                else:
                    await do_ephemeral_run(runs)

        async def objects_after(number: int) -> int:
            """Do so many runs, and count the objects that are alive."""
            await asyncio.gather(*(client(number // 8) for _ in range(8)))
            gc.collect()
            return len(gc.get_objects())

        await objects_after(800)  # what is compiled once is there by now
        first = await objects_after(100)
        last = await objects_after(800)
        await runs.drain(1)

    assert last < first + 400  # each run that were held would be a dozen of them
