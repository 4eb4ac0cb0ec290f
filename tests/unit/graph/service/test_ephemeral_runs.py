"""Runs that live and die with their clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from fairqr.base.errors import BusyError
from fairqr.graph.service.configuration import Limits, ServiceSettings
from fairqr.graph.service.records import Event
from fairqr.graph.service.runs.ephemeral import EphemeralRun, EphemeralRuns
from fairqr.graph.stream import RunEvent, Step
from tests.patience import PATIENCE
from tests.unit.graph.service.runs import KEY, RESULT, WHOLE, Steps, Told, shape


class World(Steps):
    """Ephemeral runs of these steps."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.told = Told()
        self.runs = EphemeralRuns(ServiceSettings(**settings), self.told)

    async def begin(self, key: str = KEY) -> EphemeralRun:
        return await self.runs.begin("search", "q", self.of, key=key, carrier={})


async def over(run: EphemeralRun) -> None:
    assert run.task is not None
    await asyncio.wait({run.task})


async def collected(run: EphemeralRun) -> list[Event]:
    async with run as events:
        return [event async for event in events]


async def test_a_run_is_told_to_its_client() -> None:
    world = World()
    world.go.set()
    run = await world.begin()
    happened = await collected(run)
    assert shape(happened) == WHOLE
    assert happened[0].data["id"] == run.run.id
    assert happened[1].data == {"step": "retrieve", "iteration": 0}
    assert happened[3].data == {"step": "rerank"}, "the result comes once, at the end"
    assert happened[-1].data == {"run": run.run.id, "result": RESULT}
    assert world.told.said == ["accepted", "begun", "done"]
    await over(run)
    assert not world.runs.under_way


async def test_the_end_can_be_waited_for() -> None:
    world = World()
    world.go.set()
    final = await (await world.begin()).end()
    assert (final.status, final.result) == ("done", RESULT)


async def test_a_client_that_reads_slowly_holds_up_nobody() -> None:
    world = World(concurrency=1)
    world.go.set()
    slow = await world.begin()
    async with slow as events:
        assert (await anext(events)).name == "run"
        # Its slot is free as soon as the run is over, whether or not that was read.
        assert (await (await world.begin()).end()).status == "done"
        assert [event.name async for event in events][-1] == "end"


@pytest.mark.parametrize("waits_for_the_end", [True, False])
async def test_a_client_that_goes_away_cancels_its_run(waits_for_the_end: bool) -> None:
    world = World()
    run = await world.begin()
    if waits_for_the_end:
        waiting = asyncio.create_task(run.end())
        await world.begun.wait()
        waiting.cancel()
        await asyncio.wait({waiting})
    else:
        async with run as events:
            assert (await anext(events)).name == "run"
            await world.begun.wait()
    await over(run)
    assert world.closed == 1
    assert world.told.said[-1] == "cancelled"
    assert not world.runs.under_way


async def test_a_client_that_goes_while_it_waits_leaves_no_run() -> None:
    world = World(concurrency=1, limits=Limits(live=2))
    first = await world.begin()
    waiting = asyncio.create_task(world.begin())
    await asyncio.sleep(0)
    assert len(world.runs.waiting) == 1
    waiting.cancel()
    await asyncio.wait({waiting})
    world.go.set()
    await first.end()
    assert (await (await world.begin()).end()).status == "done"
    assert world.told.said.count("accepted") == 2


async def test_who_asks_first_is_served_first() -> None:
    world = World(concurrency=1)
    first = await world.begin()
    order: list[int] = []

    async def one_more(number: int) -> None:
        run = await world.begin()
        order.append(number)
        await run.end()

    more = [asyncio.create_task(one_more(number)) for number in range(5)]
    await asyncio.sleep(0)
    world.go.set()
    await first.end()
    await asyncio.gather(*more)
    assert order == [0, 1, 2, 3, 4]


async def test_more_than_the_limits_allow_is_refused() -> None:
    world = World(concurrency=1, limits=Limits(live=2, queue=1))
    first = await world.begin()
    waiting = asyncio.create_task(world.begin())
    await asyncio.sleep(0)
    with pytest.raises(BusyError) as own:
        await world.begin()
    assert own.value.own
    with pytest.raises(BusyError) as all_of_them:
        await world.begin("another")
    assert not all_of_them.value.own
    world.go.set()
    await first.end()
    await (await waiting).end()


async def test_a_run_waits_no_longer_than_it_may() -> None:
    world = World(concurrency=1, limits=Limits(wait=0.05))
    first = await world.begin()
    with pytest.raises(BusyError) as refused:
        await world.begin()
    assert refused.value.retry_after > 0
    assert not world.runs.waiting
    world.go.set()
    await first.end()
    assert (await (await world.begin()).end()).status == "done"


async def test_the_runs_of_a_revoked_key_end() -> None:
    world = World()
    mine, others = await world.begin("mine"), await world.begin("others")
    await world.begun.wait()
    world.runs.stop_runs_of({"mine"})
    final = await mine.end()
    assert final.problem is not None
    assert (final.status, final.problem["type"]) == ("failed", "urn:fairqr:error:access")
    world.go.set()
    assert (await others.end()).status == "done"


async def test_what_runs_may_end_and_nothing_more_begins() -> None:
    world = World(concurrency=1)
    run = await world.begin()
    reading = asyncio.create_task(collected(run))
    waiting = asyncio.create_task(world.begin())
    await world.begun.wait()
    draining = asyncio.create_task(world.runs.drain(20))
    with pytest.raises(BusyError):  # at once, not when a slot is free
        await asyncio.wait_for(waiting, PATIENCE)
    with pytest.raises(BusyError) as refused:
        await world.begin()
    assert refused.value.retry_after > 0
    assert not draining.done()
    world.go.set()
    assert shape(await reading) == WHOLE
    await asyncio.wait_for(draining, PATIENCE)


async def test_what_does_not_end_in_time_is_interrupted() -> None:
    world = World()
    reading = asyncio.create_task(collected(await world.begin()))
    await world.begun.wait()
    await world.runs.drain(0.05)
    last = (await reading)[-1]
    assert (last.name, last.data["type"]) == ("error", "urn:fairqr:error:interrupted")


async def test_it_ends_in_time_whatever_a_run_does() -> None:
    world, begun, enough = World(), asyncio.Event(), asyncio.Event()

    async def stubborn(id_: str) -> AsyncGenerator[RunEvent, None]:
        yield Step("retrieve", {})
        begun.set()
        while not enough.is_set():
            try:
                await enough.wait()
            except asyncio.CancelledError:
                continue

    run = await world.runs.begin("search", "q", stubborn, key=KEY, carrier={})
    reading = asyncio.create_task(collected(run))
    await begun.wait()
    await asyncio.wait_for(world.runs.drain(0.05), PATIENCE)
    assert shape(await reading) == [(1, "run"), (2, "step"), (3, "error")]
    enough.set()
    await over(run)
