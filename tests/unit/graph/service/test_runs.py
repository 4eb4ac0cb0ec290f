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
from fairqr.graph.service.runs.durable import DurableRun
from fairqr.graph.service.runs.live import EphemeralRun
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
ALL = [event for event in WHOLE if event[0]]


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

    async def steps_of(self, id_: str) -> AsyncGenerator[RunOutput, None]:
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
        async with aclosing(self.steps_of(run.id)) as steps:
            async for step in steps:
                yield await store_step(durable, step)


def shape(events: list[Event]) -> list[tuple[int, str]]:
    return [(event.number, event.name) for event in events]


def numbered(events: list[Event]) -> list[tuple[int, str]]:
    """Return the shape of all events but pieces of text."""
    return [(number, name) for number, name in shape(events) if number]


async def store_step(durable: DurableRun, event: RunOutput) -> RunOutput:
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


async def ephemeral(runs: Runs, steps_of: Any) -> EphemeralRun:
    """Begin a run that is not kept."""
    return await runs.start_ephemeral("search", "q", steps_of, key=KEY, carrier={})


async def end(run: EphemeralRun) -> Run:
    """Read a run to its end."""
    async with run as events:
        await collected(events)
    return run.run


async def collected(events: AsyncGenerator[Event, None]) -> list[Event]:
    return [event async for event in events]


async def begin_to_read(
    kind: str, runs: Runs, steps_of: Any
) -> tuple[str, asyncio.Task[list[Event]]]:
    """Begin a run, and read its events; return its id and the reader."""
    if kind == "durable":
        durable = await submitted(runs)
        return durable.id, asyncio.create_task(collected(runs.events(durable, KEY)))

    run = await ephemeral(runs, steps_of)

    async def reading() -> list[Event]:
        async with run as events:
            return await collected(events)

    return run.run.id, asyncio.create_task(reading())


KINDS = pytest.mark.parametrize("kind", ["ephemeral", "durable"])


@KINDS
async def test_whoever_reads_a_run_sees_each_step_and_its_result(
    store: Store, script: Script, kind: str
) -> None:
    ended = list[Run]()
    async with running(store, script, ended.append) as runs:
        id_, reading = await begin_to_read(kind, runs, script.steps_of)
        await script.started.wait()
        script.go.set()
        events = await reading

    assert numbered(events) == ALL
    assert kind == "durable" or shape(events) == WHOLE
    assert events[0].data["id"] == id_

    first, last = (event.data for event in events if event.name == "step")
    assert first == {"step": "retrieve", "iteration": 0}
    assert last == {"step": "rerank"}, "the result comes once, at the end"
    assert events[-1].data == {"run": id_, "result": RESULT}
    assert [run.status for run in ended] == ["done"]
    assert not runs.ephemeral


async def test_an_ephemeral_run_is_not_stored(store: Store, script: Script) -> None:
    async with running(store, script) as runs:
        script.go.set()
        run = await end(await ephemeral(runs, script.steps_of))
        with pytest.raises(errors.RunNotFoundError):
            await store.run(run.id, KEY)


async def test_a_durable_run_is_stored_and_told_again(store: Store, script: Script) -> None:
    async with running(store, script) as runs:
        script.go.set()
        run = await over(runs, store, await submitted(runs))
        stored = await store.run(run.id, KEY)

        assert (stored.status, stored.result) == ("done", RESULT)
        assert shape(await store.events(run.id)) == ALL[:-1]
        assert numbered(await collected(runs.events(stored, KEY))) == ALL


@pytest.mark.parametrize("here", [True, False], ids=["here", "elsewhere"])
async def test_a_run_can_be_cancelled_in_any_process(
    store: Store, script: Script, here: bool
) -> None:
    ended = list[Run]()
    async with running(store, script, ended.append) as runs:
        elsewhere = Runs(store, None, ServiceSettings(), print)  # a process that does no runs
        run = await submitted(runs)
        readers = [
            asyncio.create_task(collected(process.events(run, KEY)))
            for process in (runs, runs, elsewhere)
        ]
        await script.started.wait()
        await (runs if here else elsewhere).cancel(run.id, KEY)
        final = await over(elsewhere, store, run)

        assert final.status == "cancelled"

        # What happened just before is told and stored, and the end is numbered after it.
        for reader in readers:
            assert shape(await reader) == [(1, "run"), (2, "step"), (3, "error")]
        assert shape(await store.events(run.id)) == [(1, "run"), (2, "step")]

        later = await collected(runs.events(final, KEY, after=1))
        assert shape(later) == [(2, "step"), (3, "error")]
        assert script.closed == 1
        assert [run.status for run in ended] == ["cancelled"]


async def problems_of_both_kinds(runs: Runs, store: Store, script: Script) -> list[dict[str, Any]]:
    """Do an ephemeral run and a durable one, which fail; return their problems.

    Each problem has the right path.
    """
    ephemeral_run = await end(await ephemeral(runs, script.steps_of))
    durable_run = await over(runs, store, await submitted(runs))
    paths = {ephemeral_run.id: "/v1/search", durable_run.id: f"/v1/runs/{durable_run.id}"}
    problems = []
    for run in (ephemeral_run, durable_run):
        assert run.status == "failed"
        assert run.problem is not None
        assert run.problem["instance"] == paths[run.id]
        problems.append(run.problem)
    return problems


async def test_a_users_error_is_told(store: Store, script: Script) -> None:
    script.go.set()
    script.fails = errors.QueryError("No document has it.")
    async with running(store, script) as runs:
        problems = await problems_of_both_kinds(runs, store, script)

    assert [problem["type"] for problem in problems] == ["urn:fairqr:error:query"] * 2


async def test_a_mistake_of_ours_is_named_and_not_told(
    store: Store, script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    script.go.set()
    script.fails = RuntimeError("SECRET")
    async with running(store, script) as runs:
        problems = await problems_of_both_kinds(runs, store, script)

    assert [problem["type"] for problem in problems] == ["urn:fairqr:error:internal"] * 2
    assert "SECRET" not in str(problems)
    assert "RuntimeError" in caplog.text
    assert "SECRET" not in caplog.text


async def test_a_run_that_takes_too_long_is_ended(store: Store, script: Script) -> None:
    async with running(store, script, limits=ServiceLimits(seconds=0.05)) as runs:
        problems = await problems_of_both_kinds(runs, store, script)
    assert [problem["type"] for problem in problems] == ["urn:fairqr:error:run-timeout"] * 2
    assert [problem["status"] for problem in problems] == [504] * 2
    assert script.closed == 2


async def test_a_result_that_cannot_be_stored_fails_the_run(store: Store) -> None:
    async def strange(run: Run, durable: DurableRun) -> AsyncGenerator[RunOutput, None]:
        yield Step("rerank", {"result": {"strange": object()}})

    async with running(store, strange) as runs:
        run = await submitted(runs)
        final = await over(runs, store, run)
        assert final.status == "failed"
        assert (await store.run(run.id, KEY)).problem == final.problem


async def test_whoever_waits_as_the_process_ends_is_refused_at_once(
    store: Store, script: Script
) -> None:
    async with running(store, script, concurrency=1) as runs:
        await first_step(store, await submitted(runs))
        waiting = asyncio.create_task(ephemeral(runs, script.steps_of))
        await until(lambda: len(runs.waiting) == 1)
        draining = asyncio.create_task(runs.drain(0.2))

        with pytest.raises(errors.BusyError):  # at once, not when a slot is free
            await asyncio.wait_for(waiting, PATIENCE)

        await asyncio.wait_for(draining, PATIENCE)


async def test_nothing_begins_once_the_process_ends(store: Store, script: Script) -> None:
    async with running(store, script, concurrency=1) as runs:
        await first_step(store, await submitted(runs))
        queued = await submitted(runs)
        waiting = asyncio.create_task(ephemeral(runs, script.steps_of))
        await until(lambda: len(runs.waiting) == 1)
        draining = asyncio.create_task(runs.drain(0.2))
        await asyncio.wait({waiting})

        with pytest.raises(errors.BusyError) as refused:
            await submitted(runs)

        await asyncio.wait_for(draining, PATIENCE)

    assert waiting.exception()
    assert refused.value.retry_after > 0
    assert script.attempts == [1]
    assert (await store.run(queued.id, KEY)).status == "queued"


@KINDS
async def test_it_ends_in_time_whatever_a_run_does(store: Store, kind: str) -> None:
    has_begun = asyncio.Event()
    may_end = asyncio.Event()

    async def stubborn(run: Any, durable: Any = None) -> AsyncGenerator[RunOutput, None]:
        step: RunOutput = Step("retrieve", {})
        if durable:
            step = await store_step(durable, step)
        yield step
        has_begun.set()
        while not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await may_end.wait()

    runs = Runs(store, stubborn, ServiceSettings(), print)
    await runs.start()
    _, reading = await begin_to_read(kind, runs, stubborn)
    await has_begun.wait()
    await asyncio.wait_for(runs.drain(0.05), PATIENCE)

    # The client of a durable run comes back, and finds it elsewhere.
    events = [(1, "run"), (2, "step"), (3, "error")]
    assert shape(await reading) == events[: 2 if kind == "durable" else 3]

    may_end.set()
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})


async def test_a_run_that_was_taken_over_is_told_to_its_end(store: Store, script: Script) -> None:
    """What waits for a model here does not know yet that another process has done its run."""
    ended_here = list[Run]()
    async with running(store, script, ended_here.append) as runs:
        run = await submitted(runs)
        reader = asyncio.create_task(collected(runs.events(run, KEY)))
        await first_step(store, run)
        elsewhere = await started(store, run.id)
        step = Event(number=3, name="step", data={"step": "rerank"})

        assert await store.add(elsewhere, [step], {})
        assert await store.finish(done(elsewhere, RESULT))

        follower = collected(runs.events(await store.run(run.id, KEY), KEY))
        assert numbered(await asyncio.wait_for(follower, PATIENCE)) == ALL
        assert script.closed == 0

        script.go.set()
        assert numbered(await asyncio.wait_for(reader, PATIENCE)) == ALL

        await until(lambda: script.closed == 1)

    assert not ended_here


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
        second = Runs(store, script, ServiceSettings(), print)
        threads = threading.active_count()
        with pytest.raises(errors.ConfigError, match=r"Another process serves the runs in .*sql"):
            await second.start()

        await until(lambda: threading.active_count() <= threads)
    async with running(store, script):  # once the first has ended
        pass


@pytest.mark.promise("service")
async def test_traces_are_kept_for_as_long_as_runs(
    store: Store, script: Script, tmp_path: Path
) -> None:
    """Traces of runs are kept for as long as their runs and then removed; files of others in their
    folder stay.
    """
    traces = tmp_path / "traces"
    traces.mkdir()
    old, new, foreign = (traces / f"{name}.jsonl" for name in ("0" * 32, "1" * 32, "mine"))
    for file in (old, new, foreign):
        file.touch()
    for file in (old, foreign):
        os.utime(file, (1, 1))

    async with running(store, script, traces=traces, retention=60):
        await until(lambda: not old.exists())
    assert new.exists()
    assert foreign.exists()


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
    ended = list[Run]()
    settings = {"concurrency": 1, "traffic": Traffic(live=2)}
    async with running(store, script, ended.append, **settings) as runs:
        first = await ephemeral(runs, script.steps_of)
        waiting = asyncio.create_task(ephemeral(runs, script.steps_of))
        await until(lambda: len(runs.waiting) == 1)
        waiting.cancel()
        await asyncio.wait({waiting})
        script.go.set()
        await end(first)

        assert (await end(await ephemeral(runs, script.steps_of))).status == "done"

    assert [run.status for run in ended] == ["done", "done"]


async def test_who_asks_first_is_served_first(store: Store, script: Script) -> None:
    order: list[int] = []

    async def run_as(number: int) -> None:
        run = await ephemeral(runs, script.steps_of)
        order.append(number)
        await end(run)

    async with running(store, script, concurrency=1) as runs:
        first = await ephemeral(runs, script.steps_of)
        script.go.set()
        await asyncio.gather(end(first), *map(run_as, range(5)))
    assert order == [0, 1, 2, 3, 4]


async def test_nobody_waits_longer_than_they_may(store: Store, script: Script) -> None:
    async with running(store, script, concurrency=1, traffic=Traffic(wait=0.05)) as runs:
        first = await ephemeral(runs, script.steps_of)
        with pytest.raises(errors.BusyError) as refused:
            await ephemeral(runs, script.steps_of)
        assert refused.value.retry_after > 0
        assert not runs.waiting

        script.go.set()
        await end(first)
        assert (await end(await ephemeral(runs, script.steps_of))).status == "done"


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
            await runs.start_ephemeral("search", "q", script.steps_of, key=key, carrier={})
            for key in ("mine", "others")
        ]
        await script.started.wait()
        runs.stop_runs_of({"mine"})
        final = await end(mine)

        assert final.problem is not None
        assert (final.status, final.problem["type"]) == ("failed", "urn:fairqr:error:access")

        script.go.set()
        assert (await end(others)).status == "done"
