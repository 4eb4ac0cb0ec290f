"""Durable runs of one process, on a real store: what is told, what is stored, how they end."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk

from fairqr.base.errors import (
    BusyError,
    ConfigError,
    QueryError,
    RunInterruptedError,
    RunNotFoundError,
)
from fairqr.graph.service.configuration import Caps, Limits, ServiceSettings
from fairqr.graph.service.records import Event, Run
from fairqr.graph.service.runs.doing import done
from fairqr.graph.service.runs.durable import DurableRun
from fairqr.graph.service.runs.manager import Runs
from fairqr.graph.service.store import Store
from fairqr.graph.stream import RunEvent, Step
from tests.integration.stores import begun
from tests.patience import PATIENCE
from tests.unit.graph.service.runs import KEY, RESULT, WHOLE, Steps, Told, shape


class Script(Steps):
    """Steps of durable runs; ``attempts`` notes the number of each."""

    def __init__(self) -> None:
        super().__init__()
        self.attempts: list[int] = []

    async def __call__(self, run: Run, durable: DurableRun) -> AsyncGenerator[RunEvent, None]:
        self.attempts.append(run.attempts)
        async with aclosing(self.of(run.id)) as steps:
            async for step in steps:
                await ended(durable, step)
                yield step


async def ended(durable: DurableRun, event: RunEvent, key: str = "") -> None:
    """Tell of a step, as the nodes of a graph do; its name is its key where it has no other."""
    if isinstance(event, Step):
        durable.ended(key or event.name, event.name, event.update)
        await durable.flush()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = await Store.open(f"sqlite:///{tmp_path}/runs.sqlite")
    yield opened
    await opened.close()


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def told() -> Told:
    return Told()


@asynccontextmanager
async def running(
    store: Store, script: Callable[..., Any], told: Told | None = None, **settings: Any
) -> AsyncIterator[Runs]:
    """Runs that are done, and ended with the test."""
    runs = Runs(store, script, ServiceSettings(**settings), told or Told())
    await runs.start()
    try:
        yield runs
    finally:
        await runs.drain(0)


async def submitted(runs: Runs, *, key: str = KEY) -> Run:
    return await runs.submit("search", {"query": "q"}, key=key, query="q")


async def within(seconds: float, condition: Callable[[], Awaitable[bool]]) -> None:
    end = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


async def written(store: Store, run: Run, number: int) -> None:
    """Wait until so many events of a run are stored."""

    async def there() -> bool:
        return len(await store.events(run.id)) == number

    await within(PATIENCE, there)


async def test_a_run_is_told_and_stored(store: Store, script: Script, told: Told) -> None:
    script.go.set()
    async with running(store, script, told) as runs:
        run = await submitted(runs)
        happened = [event async for event in runs.events(run.id, KEY)]
        # Pieces of text are told to those alone who are there when they are written.
        assert [it for it in shape(happened) if it[0]] == [it for it in WHOLE if it[0]]
        (step, *_) = [event for event in happened if event.name == "step"]
        assert step.data == {"step": "retrieve", "iteration": 0}
        assert happened[-1].data == {"run": run.id, "result": RESULT}
        stored = await store.run(run.id, KEY)
        assert (stored.status, stored.result) == ("done", RESULT)
        assert shape(await store.events(run.id)) == [it for it in WHOLE if it[0]][:-1]
        assert told.said == ["accepted", "begun", "done"]
        # Asked for once more, it is told again.
        assert [event.name async for event in runs.events(run.id, KEY)][-1] == "end"


async def test_a_run_is_told_the_same_to_all_and_from_any_event_on(
    store: Store, script: Script
) -> None:
    async with running(store, script) as here:
        elsewhere = Runs(store, None, ServiceSettings(), Told())  # a process that does no runs
        run = await submitted(here)
        readers = [
            asyncio.create_task(collected(runs.events(run.id, KEY))) for runs in (here, elsewhere)
        ]
        results = [asyncio.create_task(runs.result(run.id, KEY)) for runs in (here, elsewhere)]
        await script.begun.wait()
        script.go.set()
        for reader in readers:
            # Pieces of text reach those only who are where they are written.
            assert shape([e for e in await reader if e.number]) == [w for w in WHOLE if w[0]]
        assert {(await result).status for result in results} == {"done"}
        later = [event async for event in here.events(run.id, KEY, after=2)]
        assert shape(later) == [(3, "step"), (4, "end")]
        assert script.attempts == [1]


async def collected(events: AsyncGenerator[RunEvent, None]) -> list[Event]:
    return [event async for event in events]


async def test_a_reader_that_is_slower_than_memory_is_long_gets_a_kept_run_whole(
    store: Store,
) -> None:
    async def long(run: Run, durable: DurableRun) -> AsyncGenerator[RunEvent, None]:
        for number in range(150):
            for _ in range(20):
                yield AIMessageChunk("piece")
            step = Step("measure", {"result": RESULT})
            await ended(durable, step, f"{number}")
            yield step

    async with running(store, long) as runs:
        run = await submitted(runs)
        events = runs.events(run.id, KEY)
        first = await anext(events)
        await runs.result(run.id, KEY)
        numbers = [first.number] + [event.number async for event in events if event.number]
        assert numbers == list(range(1, 153))


async def test_a_kept_run_goes_on_when_its_client_goes_away(store: Store, script: Script) -> None:
    async with running(store, script) as runs:
        run = await submitted(runs)
        async with aclosing(runs.events(run.id, KEY)) as events:
            await anext(events)
        script.go.set()
        assert (await runs.result(run.id, KEY)).status == "done"


@pytest.mark.parametrize("here", [True, False])
async def test_what_runs_is_cancelled_from_wherever_that_is_asked(
    store: Store, script: Script, told: Told, here: bool
) -> None:
    async with running(store, script, told) as runs:
        run = await submitted(runs)
        reader = asyncio.create_task(collected(runs.events(run.id, KEY)))
        await script.begun.wait()
        other = Runs(store, None, ServiceSettings(), Told())
        await (runs if here else other).cancel(run.id, KEY)
        final = await runs.result(run.id, KEY)
        assert final.status == "cancelled"
        # What happened just before is told and stored, and the end is numbered after it.
        assert shape(await reader) == [(1, "run"), (2, "step"), (3, "error")]
        assert shape(await store.events(run.id)) == [(1, "run"), (2, "step")]
        assert script.closed == 1
        assert told.said[-1] == "cancelled"


async def test_what_waits_is_cancelled_at_once(store: Store, script: Script) -> None:
    async with running(store, script, concurrency=1) as runs:
        await submitted(runs)
        await script.begun.wait()
        run = await submitted(runs)
        assert (await runs.cancel(run.id, KEY)).status == "cancelled"
        assert (await runs.result(run.id, KEY)).status == "cancelled"
        assert [event.name async for event in runs.events(run.id, KEY)] == ["error"]


async def test_a_run_of_another_key_is_not_found(store: Store, script: Script) -> None:
    async with running(store, script) as runs:
        run = await submitted(runs)
        await script.begun.wait()
        for asking in (runs.result, runs.cancel, lambda *a: anext(runs.events(*a))):
            with pytest.raises(RunNotFoundError):
                await asking(run.id, "another")  # type: ignore[operator]


async def both(runs: Runs, script: Script) -> list[tuple[Run, str]]:
    """Do an ephemeral run and a durable one; return how each ended, and what problems name."""
    run = await runs.ephemeral.begin("search", "q", script.of, key=KEY, carrier={})
    ephemeral = await run.end()
    durable = await runs.result((await submitted(runs)).id, KEY)
    return [(ephemeral, "/v1/search"), (durable, f"/v1/runs/{durable.id}")]


async def test_a_users_error_is_told_and_a_mistake_of_ours_is_not(
    store: Store, script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    script.go.set()
    async with running(store, script) as runs:
        for error, type_ in (
            (QueryError("No document has it."), "query"),
            (RuntimeError("SECRET"), "internal"),
        ):
            script.fails = error
            for final, path in await both(runs, script):
                assert final.status == "failed"
                assert final.problem is not None
                assert final.problem["type"] == f"urn:fairqr:error:{type_}"
                assert final.problem["instance"] == path
                assert "SECRET" not in str(final.problem)
    assert "RuntimeError" in caplog.text
    assert "SECRET" not in caplog.text


async def test_a_run_that_takes_too_long_is_ended(store: Store, script: Script) -> None:
    async with running(store, script, caps=Caps(seconds=0.05)) as runs:
        for final, _ in await both(runs, script):
            assert final.problem is not None
            assert final.problem["type"] == "urn:fairqr:error:run-timeout"
            assert final.problem["status"] == 504
    assert script.closed == 2


async def test_a_result_that_cannot_be_stored_fails_the_run(store: Store) -> None:
    async def strange(run: Run, durable: DurableRun) -> AsyncGenerator[RunEvent, None]:
        yield Step("rerank", {"result": {"strange": object()}})

    async with running(store, strange) as runs:
        run = await submitted(runs)
        final = await runs.result(run.id, KEY)
        assert final.status == "failed"
        assert (await store.run(run.id, KEY)).problem == final.problem


async def test_more_than_the_limits_allow_is_refused(store: Store, script: Script) -> None:
    limits = Limits(live=2, queue=1)
    async with running(store, script, concurrency=1, limits=limits) as runs:
        await submitted(runs)
        await script.begun.wait()
        await submitted(runs)
        with pytest.raises(BusyError) as own:
            await submitted(runs)
        assert own.value.own
        with pytest.raises(BusyError) as all_of_them:
            await submitted(runs, key="another")
        assert not all_of_them.value.own


class TestDraining:
    async def test_what_runs_may_end_and_nothing_more_is_taken_on(
        self, store: Store, script: Script, told: Told
    ) -> None:
        async with running(store, script, told) as runs:
            run = await submitted(runs)
            async with aclosing(runs.events(run.id, KEY)) as events:
                await script.begun.wait()
                draining = asyncio.create_task(runs.drain(20))
                await asyncio.sleep(0)
                assert not runs.accepting
                with pytest.raises(BusyError) as refused:
                    await submitted(runs)
                assert refused.value.retry_after > 0
                script.go.set()
                told_then = shape([event async for event in events])
                assert [it for it in told_then if it[0]] == [it for it in WHOLE if it[0]]
            await asyncio.wait_for(draining, PATIENCE)

    async def test_what_does_not_end_is_resumed_elsewhere(
        self, store: Store, script: Script
    ) -> None:
        async with running(store, script, concurrency=1) as runs:
            run = await submitted(runs)
            await written(store, run, 2)
            waits = await submitted(runs)
            readers = {
                it.id: asyncio.create_task(collected(runs.events(it.id, KEY)))
                for it in (run, waits)
            }
            result = asyncio.create_task(runs.result(run.id, KEY))
            await asyncio.sleep(0)
            began = time.monotonic()
            await runs.drain(0.2)
            assert time.monotonic() - began < 30
            # Their clients come back, and find them elsewhere.
            assert shape(await readers[run.id]) == WHOLE[:2]
            assert shape(await readers[waits.id]) == []
            with pytest.raises(RunInterruptedError):
                await result
        script.go.set()
        async with running(store, script) as runs:
            for it in (run, waits):
                assert (await runs.result(it.id, KEY)).status == "done"
            events = await collected(runs.events(run.id, KEY))
            # The first step was told before, and is not told again. Pieces of text are told only
            # while memory has them.
            assert [it for it in shape(events) if it[0]] == [
                (1, "run"),
                (2, "step"),
                (3, "run"),
                (4, "step"),
                (5, "end"),
            ]
        assert sorted(script.attempts) == [1, 1, 2]

    async def test_it_ends_in_time_whatever_a_run_does(self, store: Store) -> None:
        enough = asyncio.Event()

        async def stubborn(run: Run, durable: DurableRun) -> AsyncGenerator[RunEvent, None]:
            await ended(durable, Step("retrieve", {}))
            yield Step("retrieve", {})
            while not enough.is_set():
                with suppress(asyncio.CancelledError):
                    await enough.wait()

        runs = Runs(store, stubborn, ServiceSettings(), Told())
        await runs.start()
        run = await submitted(runs)
        reader = asyncio.create_task(collected(runs.events(run.id, KEY)))
        await written(store, run, 2)
        began = time.monotonic()
        await runs.drain(0.1)
        assert time.monotonic() - began < 30
        assert shape(await reader) == [(1, "run"), (2, "step")]
        enough.set()
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})


async def test_an_attempt_that_is_not_the_last_is_stopped_and_told_no_more(
    store: Store, script: Script, told: Told
) -> None:
    """Its reader goes on with what the next one does."""
    async with running(store, script, told) as runs:
        run = await submitted(runs)
        reader = asyncio.create_task(collected(runs.events(run.id, KEY)))
        await written(store, run, 2)
        another = await begun(store, run.id)
        script.go.set()

        async def stopped() -> bool:
            return script.closed == 1

        await within(PATIENCE, stopped)
        assert await store.add(another, [Event(number=3, name="step", data={"step": "rerank"})], {})
        assert await store.finish(done(another, RESULT))
        happened = shape(await asyncio.wait_for(reader, PATIENCE))
        assert [it for it in happened if it[0]] == [it for it in WHOLE if it[0]]
    assert told.said == ["accepted", "begun"]


async def test_a_run_that_ends_five_processes_fails_for_good(store: Store, script: Script) -> None:
    runs = Runs(store, None, ServiceSettings(), Told())
    run = await submitted(runs)
    for _ in range(6):
        await begun(store, run.id)
    async with running(store, script) as runs:
        final = await runs.result(run.id, KEY)
    assert final.problem is not None
    assert final.problem["type"] == "urn:fairqr:error:interrupted"
    assert script.attempts == []


async def test_a_second_process_on_the_same_file_is_refused(store: Store, script: Script) -> None:
    async with running(store, script):
        second = Runs(store, script, ServiceSettings(), Told())
        with pytest.raises(ConfigError, match=r"Another process serves the runs in .*sqlite"):
            await second.start()
    async with running(store, script):  # once the first has ended
        pass


async def test_traces_are_kept_for_as_long_as_runs(
    store: Store, script: Script, tmp_path: Path
) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    old, new, own = (traces / f"{name}.jsonl" for name in ("0" * 32, "1" * 32, "mine"))
    for file in (old, new, own):
        file.touch()
    for file in (old, own):
        os.utime(file, (1, 1))
    async with running(store, script, traces=traces, retention=60):

        async def gone() -> bool:
            return not old.exists()

        await within(PATIENCE, gone)
    assert new.exists()
    assert own.exists()
