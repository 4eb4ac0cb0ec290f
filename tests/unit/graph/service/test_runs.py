"""Runs of both kinds in one process, on a real store: what is told, stored, and how they end."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk

from fairqr.base import errors
from fairqr.graph.service.configuration import ServiceLimits, ServiceSettings, Traffic
from fairqr.graph.service.records import Event, Kind, Run
from fairqr.graph.service.runs.live import DurableRun, EphemeralRun
from fairqr.graph.service.runs.manager import Runs
from fairqr.graph.service.store import Store
from fairqr.graph.step import Step
from fairqr.graph.stream import WHOLE_STATE, RunOutput
from tests.patience import PATIENCE
from tests.servers.stores import accepted, done, over, started

KEY = "k"
RESULT = {"ranking": ["d1"]}

WHOLE = [(1, "run"), (2, "step"), (0, "token"), (3, "step"), (4, "end")]
"""The shape of the events of :class:`Script`."""

# Pieces of text reach those only who are there when they are written.
ALL = [it for it in WHOLE if it[0]]


class Script:
    """What is done in each run: a step, a wait for ``go``, and the last step.

    Attributes:
        attempts: The number of each attempt at a durable run.
    """

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.started = asyncio.Event()
        self.closed = 0
        self.fails: BaseException | None = None
        self.attempts: list[int] = []

    async def of(self, id_: str) -> AsyncGenerator[RunOutput, None]:
        try:
            yield Step("retrieve", {"iteration": 0, "rankings": ["large"]})
            self.started.set()
            await self.go.wait()
            if self.fails is not None:
                raise self.fails
            yield AIMessageChunk("piece")
            yield Step("rerank", {"result": RESULT})
        finally:
            self.closed += 1

    async def __call__(self, run: Run, durable: DurableRun) -> AsyncGenerator[RunOutput, None]:
        self.attempts.append(run.attempts)
        async with aclosing(self.of(run.id)) as steps:
            async for step in steps:
                yield await kept(durable, step)


def shape(events: list[Event]) -> list[tuple[int, str]]:
    return [(event.number, event.name) for event in events]


def numbered(events: list[Event]) -> list[tuple[int, str]]:
    """All but pieces of text."""
    return [it for it in shape(events) if it[0]]


async def kept(durable: DurableRun, event: RunOutput) -> RunOutput:
    """Return an event, after it was stored if it is a step; its name is its key."""
    if isinstance(event, Step):
        event = replace(event, key=event.name)
        durable.step_from_node(event)
        await durable.flush()
    return event


@pytest.fixture
def script() -> Script:
    return Script()


@asynccontextmanager
async def running(
    store: Store, script: Callable[..., Any], finished: Any = print, **settings: Any
) -> AsyncIterator[Runs]:
    """Runs that are done, and ended with the test."""
    runs = Runs(store, script, ServiceSettings(**settings), finished)
    await runs.start()
    try:
        yield runs
    finally:
        await runs.drain(0)


async def submitted(runs: Runs, kind: Kind = "search") -> Run:
    return await runs.accept(KEY, kind=kind, query="q", request={}, carrier={})


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


async def first_step(store: Store, run: Run) -> None:
    """Wait until the first step of a run is stored."""
    async with asyncio.timeout(PATIENCE):
        while len(await store.events(run.id)) < 2:
            await asyncio.sleep(0.01)


async def ephemeral(runs: Runs, of: Any) -> EphemeralRun:
    return await runs.start_ephemeral("search", "q", of, key=KEY, carrier={})


async def end(run: EphemeralRun) -> Run:
    async with run as events:
        await collected(events)
    return run.run


async def collected(events: AsyncGenerator[Event, None]) -> list[Event]:
    return [event async for event in events]


async def read(kind: str, runs: Runs, of: Any) -> tuple[str, asyncio.Task[list[Event]]]:
    """Begin a run, and read its events; return its id and the reader."""
    if kind == "durable":
        kept = await submitted(runs)
        return kept.id, asyncio.create_task(collected(runs.events(kept, KEY)))
    run = await ephemeral(runs, of)

    async def reading() -> list[Event]:
        async with run as events:
            return await collected(events)

    return run.run.id, asyncio.create_task(reading())


KINDS = pytest.mark.parametrize("kind", ["ephemeral", "durable"])


@KINDS
async def test_a_run_is_told_and_a_durable_one_stored(
    store: Store, script: Script, kind: str
) -> None:
    told = list[Run]()
    async with running(store, script, told.append) as runs:
        id_, reading = await read(kind, runs, script.of)
        await script.started.wait()
        script.go.set()
        happened = await reading
        assert numbered(happened) == ALL
        assert kind == "durable" or shape(happened) == WHOLE
        assert happened[0].data["id"] == id_
        first, last = (event.data for event in happened if event.name == "step")
        assert first == {"step": "retrieve", "iteration": 0}
        assert last == {"step": "rerank"}, "the result comes once, at the end"
        assert happened[-1].data == {"run": id_, "result": RESULT}
        if kind == "ephemeral":
            with pytest.raises(errors.RunNotFoundError):
                await store.run(id_, KEY)
        else:
            stored = await store.run(id_, KEY)
            assert (stored.status, stored.result) == ("done", RESULT)
            assert shape(await store.events(id_)) == ALL[:-1]
            # Asked for once more, it is told again.
            assert numbered(await collected(runs.events(stored, KEY))) == ALL
    assert [run.status for run in told] == ["done"]
    assert not runs.ephemeral


@pytest.mark.parametrize("here", [True, False])
async def test_what_runs_is_told_and_can_be_cancelled_wherever_that_is_asked(
    store: Store, script: Script, here: bool
) -> None:
    told = list[Run]()
    async with running(store, script, told.append) as runs:
        elsewhere = Runs(store, None, ServiceSettings(), print)  # a process that does no runs
        run = await submitted(runs)
        readers = [
            asyncio.create_task(collected(it.events(run, KEY))) for it in (runs, runs, elsewhere)
        ]
        await script.started.wait()
        await (runs if here else elsewhere).cancel(run.id, KEY)
        final = await over(elsewhere, store, run)
        assert final.status == "cancelled"
        # What happened just before is told and stored, and the end is numbered after it.
        for reader in readers:
            assert shape(await reader) == [(1, "run"), (2, "step"), (3, "error")]
        assert shape(await store.events(run.id)) == [(1, "run"), (2, "step")]
        later = [event async for event in runs.events(final, KEY, after=1)]
        assert shape(later) == [(2, "step"), (3, "error")]
        assert script.closed == 1
        assert [run.status for run in told] == ["cancelled"]


async def both(runs: Runs, store: Store, script: Script) -> list[tuple[Run, str]]:
    """Do an ephemeral run and a durable one; return how each ended, and what problems name."""
    first = await end(await ephemeral(runs, script.of))
    second = await over(runs, store, await submitted(runs))
    return [(first, "/v1/search"), (second, f"/v1/runs/{second.id}")]


async def test_a_users_error_is_told_and_a_mistake_of_ours_is_not(
    store: Store, script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    script.go.set()
    async with running(store, script) as runs:
        for error, type_ in (
            (errors.QueryError("No document has it."), "query"),
            (RuntimeError("SECRET"), "internal"),
        ):
            script.fails = error
            for final, path in await both(runs, store, script):
                assert final.status == "failed"
                assert final.problem is not None
                assert final.problem["type"] == f"urn:fairqr:error:{type_}"
                assert final.problem["instance"] == path
                assert "SECRET" not in str(final.problem)
    assert "RuntimeError" in caplog.text
    assert "SECRET" not in caplog.text


async def test_a_run_that_takes_too_long_is_ended(store: Store, script: Script) -> None:
    async with running(store, script, limits=ServiceLimits(seconds=0.05)) as runs:
        for final, _ in await both(runs, store, script):
            assert final.problem is not None
            assert final.problem["type"] == "urn:fairqr:error:run-timeout"
            assert final.problem["status"] == 504
    assert script.closed == 2


async def test_a_result_that_cannot_be_stored_fails_the_run(store: Store) -> None:
    async def strange(run: Run, durable: DurableRun) -> AsyncGenerator[RunOutput, None]:
        yield Step("rerank", {"result": {"strange": object()}})

    async with running(store, strange) as runs:
        run = await submitted(runs)
        final = await over(runs, store, run)
        assert final.status == "failed"
        assert (await store.run(run.id, KEY)).problem == final.problem


async def test_who_waits_when_the_process_ends_is_told_at_once_and_nothing_more_begins(
    store: Store, script: Script
) -> None:
    async with running(store, script, concurrency=1) as runs:
        await first_step(store, await submitted(runs))
        kept = await submitted(runs)
        waiting = asyncio.create_task(ephemeral(runs, script.of))
        await until(lambda: len(runs.waiting) == 1)
        draining = asyncio.create_task(runs.drain(0.2))
        with pytest.raises(errors.BusyError):  # at once, not when a slot is free
            await asyncio.wait_for(waiting, PATIENCE)
        with pytest.raises(errors.BusyError) as refused:
            await submitted(runs)
        assert refused.value.retry_after > 0
        await asyncio.wait_for(draining, PATIENCE)
    assert script.attempts == [1]
    assert (await store.run(kept.id, KEY)).status == "queued"


@KINDS
async def test_it_ends_in_time_whatever_a_run_does(store: Store, kind: str) -> None:
    begun_, enough = asyncio.Event(), asyncio.Event()

    async def stubborn(run: Any, durable: Any = None) -> AsyncGenerator[RunOutput, None]:
        step: RunOutput = Step("retrieve", {})
        yield await kept(durable, step) if durable else step
        begun_.set()
        while not enough.is_set():
            with suppress(asyncio.CancelledError):
                await enough.wait()

    runs = Runs(store, stubborn, ServiceSettings(), print)
    await runs.start()
    _, reading = await read(kind, runs, stubborn)
    await begun_.wait()
    await asyncio.wait_for(runs.drain(0.05), PATIENCE)
    happened = [(1, "run"), (2, "step"), (3, "error")]
    # The client of a durable run comes back, and finds it elsewhere.
    assert shape(await reading) == happened[: 2 if kind == "durable" else 3]
    enough.set()
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})


async def test_a_run_that_another_process_took_over_is_told_to_its_end_and_stopped_here(
    store: Store, script: Script
) -> None:
    """What waits for a model here does not know yet that another process has done its run."""
    told = list[Run]()
    async with running(store, script, told.append) as runs:
        run = await submitted(runs)
        reader = asyncio.create_task(collected(runs.events(run, KEY)))
        await first_step(store, run)
        another = await started(store, run.id)
        assert await store.add(another, [Event(number=3, name="step", data={"step": "rerank"})], {})
        assert await store.finish(done(another, RESULT))
        follower = collected(runs.events(await store.run(run.id, KEY), KEY))
        assert numbered(await asyncio.wait_for(follower, PATIENCE)) == ALL
        assert script.closed == 0
        script.go.set()
        assert numbered(await asyncio.wait_for(reader, PATIENCE)) == ALL
        await until(lambda: script.closed == 1)
    assert not told


async def test_a_run_that_ends_five_processes_fails_for_good(store: Store, script: Script) -> None:
    runs = Runs(store, None, ServiceSettings(), print)
    run = await submitted(runs)
    for _ in range(6):
        await started(store, run.id)
    async with running(store, script) as runs:
        final = await over(runs, store, run)
    assert final.problem is not None
    assert final.problem["type"] == "urn:fairqr:error:interrupted"
    assert script.attempts == []


async def test_a_second_process_on_the_same_file_is_refused(store: Store, script: Script) -> None:
    """It leaves nothing open."""
    async with running(store, script):
        second, threads = Runs(store, script, ServiceSettings(), print), threading.active_count()
        with pytest.raises(errors.ConfigError, match=r"Another process serves the runs in .*sql"):
            await second.start()
        await until(lambda: threading.active_count() <= threads)
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
        await until(lambda: not old.exists())
    assert new.exists()
    assert own.exists()


async def test_traces_go_with_runs_that_are_too_many(
    store: Store, script: Script, tmp_path: Path
) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    first = await accepted(store)
    last = await accepted(store)
    for id_ in (first, last):
        assert await store.finish(done(await started(store, id_), {}))
        (traces / f"{id_}.jsonl").touch()
    async with running(store, script, traces=traces, kept=1):
        await until(lambda: not (traces / f"{first}.jsonl").exists())
    assert (traces / f"{last}.jsonl").exists()


async def test_a_client_that_goes_while_it_waits_leaves_no_run(
    store: Store, script: Script
) -> None:
    told = list[Run]()
    one = {"concurrency": 1, "traffic": Traffic(live=2)}
    async with running(store, script, told.append, **one) as runs:
        first = await ephemeral(runs, script.of)
        waiting = asyncio.create_task(ephemeral(runs, script.of))
        await until(lambda: len(runs.waiting) == 1)
        waiting.cancel()
        await asyncio.wait({waiting})
        script.go.set()
        await end(first)
        assert (await end(await ephemeral(runs, script.of))).status == "done"
    assert [run.status for run in told] == ["done", "done"]


async def test_who_asks_first_is_served_first_and_nobody_waits_longer_than_they_may(
    store: Store, script: Script
) -> None:
    order: list[int] = []

    async def one_more(number: int) -> None:
        run = await ephemeral(runs, script.of)
        order.append(number)
        await end(run)

    async with running(store, script, concurrency=1) as runs:
        first = await ephemeral(runs, script.of)
        script.go.set()
        await asyncio.gather(end(first), *map(one_more, range(5)))
    assert order == [0, 1, 2, 3, 4]
    script.go.clear()
    async with running(store, script, concurrency=1, traffic=Traffic(wait=0.05)) as runs:
        first = await ephemeral(runs, script.of)
        with pytest.raises(errors.BusyError) as refused:
            await ephemeral(runs, script.of)
        assert refused.value.retry_after > 0
        assert not runs.waiting
        script.go.set()
        await end(first)
        assert (await end(await ephemeral(runs, script.of))).status == "done"


async def test_the_whole_state_is_no_step_that_ended(store: Store, script: Script) -> None:
    """Whoever only waits for a result is not sent the whole state on the way to it."""

    async def unfollowed(id_: str) -> AsyncGenerator[RunOutput, None]:
        yield Step(WHOLE_STATE, {"result": RESULT})

    async with running(store, script) as runs, await ephemeral(runs, unfollowed) as events:
        published = [event async for event in events]
    assert shape(published) == [(1, "run"), (2, "end")]
    assert published[-1].data["result"] == RESULT


async def test_the_runs_of_a_revoked_key_end(store: Store, script: Script) -> None:
    async with running(store, script) as runs:
        mine, others = [
            await runs.start_ephemeral("search", "q", script.of, key=key, carrier={})
            for key in ("mine", "others")
        ]
        await script.started.wait()
        runs.stop_runs_of({"mine"})
        final = await end(mine)
        assert final.problem is not None
        assert (final.status, final.problem["type"]) == ("failed", "urn:fairqr:error:access")
        script.go.set()
        assert (await end(others)).status == "done"
