"""One fault after the other, each while clients ask; and what became of the runs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from benchmarks.load.accounts import Verdict, judge, settled
from benchmarks.load.clients import Crowd, new_client
from benchmarks.load.servers import Worker, wrong_clock
from benchmarks.load.world import EMBEDDED, GRACE, LEASE, REMOTE, World

CLIENTS = 8
DELAY = 0.02
PATIENCE = 240
"""Seconds until we give up; a busy machine takes long."""
SILENCE = 5.0
"""Seconds after which a model that does not answer is asked again."""
AWAY = 5
"""Seconds that make an outage longer than a restart."""
SHORT_GRACE = 0.2
CLOCK_AHEAD = 3600
"""Seconds; more than any lease, and any time that a run may take."""
FAILURES = {"500": 0.3, "429": 0.1, "cut": 0.1, "garbage": 0.1, "never": 0.02}
WAYS = {"search": 3.0, "stream": 1.5, "background": 3.0, "question": 1.0, "leave": 0.5}
WAYS |= {"return": 1.0, "answer": 0.5}

CHAOS = {
    "chaos": (
        *("wrong-clock", "failing-model", "killed-worker", "frozen-worker", "killed-postgres"),
        *("told-to-end", "full-disk"),
    ),
    "chaos-sqlite": ("killed-worker", "failing-model", "full-disk"),
}
"""Faults that happen one after the other to the same runs, by the name of the whole."""


@dataclass(slots=True)
class Survived:
    """A fault, and what became of the runs under it.

    Attributes:
        fault: In words.
        verdict: On all runs of before, meanwhile and after.
        lasted: Seconds that it lasted.
        recovered: Seconds from its end until as many requests were served again as there are
            clients; None where that did not happen.
    """

    fault: str
    verdict: Verdict
    lasted: float
    recovered: float | None


@dataclass(slots=True)
class Scene:
    """What a fault happens to."""

    world: World
    workers: Sequence[Worker]
    crowd: Crowd
    size: int
    chaos: Sequence[str]
    notes: list[str] = field(default_factory=list)

    async def more(self) -> None:
        """Wait until some more requests were served."""
        if not await self.crowd.more(self.size, PATIENCE):
            self.notes.append(f"{self.size} requests were not served in {PATIENCE} s")

    async def ready(self, status: int) -> None:
        """Wait until the first worker says whether it is ready."""
        try:
            await _aside(self.workers[0].wait_until, "/readyz", status)
        except RuntimeError:
            self.notes.append(f"/readyz never answered {status}")

    async def over(self) -> None:
        """Wait until some more attempts have ended, however they ended."""
        wanted = len(self.crowd.attempts) + self.size
        await self.crowd.until(lambda: len(self.crowd.attempts) >= wanted, 20)


# A server ends with the thread that started it, as far as Linux is concerned; this one stays.
_THREAD = ThreadPoolExecutor(1)
FAULTS: dict[str, tuple[str, Callable[[Scene], Any]]] = {}
"""The faults by name, each with its words and what it does."""


async def _aside(call: Callable[..., Any], *arguments: Any) -> Any:
    """Run what blocks, while clients go on."""
    return await asyncio.get_running_loop().run_in_executor(_THREAD, call, *arguments)


def _fault(
    name: str, words: str
) -> Callable[[Callable[[Scene], AsyncIterator[None]]], Callable[[Scene], AsyncIterator[None]]]:
    def add(happens: Callable[[Scene], AsyncIterator[None]]) -> Any:
        FAULTS[name] = words, asynccontextmanager(happens)
        return happens

    return add


@_fault("slow-model", "model server 20 times as slow")
async def _(scene: Scene) -> AsyncIterator[None]:
    scene.world.model.steer(delay=20 * DELAY)
    yield
    scene.world.model.steer(delay=DELAY)


@_fault("failing-model", "model server: 30% 500, 10% 429, 10% cut off, 10% garbage, 2% no answer")
async def _(scene: Scene) -> AsyncIterator[None]:
    scene.world.model.steer(failures=FAILURES)
    yield
    scene.world.model.steer(failures={})


@_fault("killed-model", "model server killed (-9) and started again")
async def _(scene: Scene) -> AsyncIterator[None]:
    scene.world.model.kill()
    yield
    await _aside(scene.world.model.start, DELAY)


@_fault("killed-elasticsearch", "Elasticsearch killed (-9) and started again")
async def _(scene: Scene) -> AsyncIterator[None]:
    await _aside(scene.world.elasticsearch.kill)
    yield
    await _aside(scene.world.elasticsearch.start)


@_fault("restarted-postgres", "PostgreSQL restarted")
async def _(scene: Scene) -> AsyncIterator[None]:
    await _aside(scene.world.postgres.stop)
    await _aside(scene.world.postgres.start)
    yield


@_fault("killed-postgres", f"PostgreSQL ended at once, and away for {AWAY} s")
async def _(scene: Scene) -> AsyncIterator[None]:
    await _aside(scene.world.postgres.kill)
    await asyncio.sleep(AWAY)
    await _aside(scene.world.postgres.start)
    yield


@_fault("killed-worker", "one of two workers killed (-9)")
async def _(scene: Scene) -> AsyncIterator[None]:
    scene.workers[0].kill()
    yield
    await _aside(scene.workers[0].start)


@_fault("frozen-worker", "one of two workers frozen beyond its lease")
async def _(scene: Scene) -> AsyncIterator[None]:
    scene.workers[0].child.send_signal(signal.SIGSTOP)
    # Nothing tells from outside that a lease has run out.
    await asyncio.sleep(2.5 * LEASE)
    scene.workers[0].child.send_signal(signal.SIGCONT)
    yield


async def _told_to_end(scene: Scene, grace: float = GRACE) -> AsyncIterator[None]:
    worker, longest = scene.workers[0], grace + 2
    worker.child.send_signal(signal.SIGTERM)
    began = time.monotonic()
    try:
        code = await _aside(worker.child.wait, longest + 10)
    except subprocess.TimeoutExpired:
        code = "none"
        worker.kill()
    if code or time.monotonic() - began > longest:
        taken = time.monotonic() - began
        scene.notes.append(f"the worker took {taken:.1f} s to end, with exit code {code}")
    yield
    await _aside(worker.start)


_fault("told-to-end", "SIGTERM to one of two workers")(_told_to_end)


@_fault("cut-short", f"the same with {SHORT_GRACE} s of grace and a slow model")
async def _(scene: Scene) -> AsyncIterator[None]:
    scene.world.model.steer(delay=20 * DELAY)
    # What asks now takes longer than the grace time.
    await scene.crowd.more(CLIENTS, PATIENCE)
    async with asynccontextmanager(_told_to_end)(scene, SHORT_GRACE):
        yield
    scene.world.model.steer(delay=DELAY)


@_fault("full-disk", "the database's disk full until a worker is not ready")
async def _(scene: Scene) -> AsyncIterator[None]:
    ballast = scene.world.small_disk / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):  # until there is no space
        while True:
            file.write(bytes(65536))
    await scene.ready(503)
    yield
    ballast.unlink()
    await scene.ready(200)


@_fault("wrong-clock", "one of two workers killed, and started an hour ahead")
async def _(scene: Scene) -> AsyncIterator[None]:
    scene.workers[0].kill()
    await _aside(scene.workers[0].start, CLOCK_AHEAD)
    yield


@_fault("chaos", "several of these, one after the other")
@_fault("chaos-sqlite", "one process on SQLite: killed (-9), failing model, full disk")
async def _(scene: Scene) -> AsyncIterator[None]:
    for name in scene.chaos:
        async with FAULTS[name][1](scene):
            await scene.over()
        await scene.more()
    yield


def missing_for(name: str) -> str:
    """Say what a fault needs that this machine lacks; empty if nothing."""
    if name == "full-disk" and os.geteuid() != 0:
        return "it mounts a disk of its own, which takes root"
    if name == "wrong-clock" and wrong_clock() is None:
        return "it takes libfaketime, which Debian has under this name"
    return ""


async def survive(world: World, name: str, size: int, *, only: int | None = None) -> Survived:
    """Let a fault happen under load, and look what became of the runs.

    Two workers share a PostgreSQL, or one has a SQLite file; requests are made before the fault,
    meanwhile and after it.

    Args:
        world: With its model server running.
        name: One of :data:`FAULTS`.
        size: How many requests to wait for before it, meanwhile, and after it.
        only: Of a chaos, only so many faults.
    """
    words, fault = FAULTS[name]
    world.model.steer(delay=DELAY, failures={})
    index = EMBEDDED
    if name == "killed-elasticsearch":
        index = REMOTE
        _ = world.elasticsearch
    chaos = [each for each in CHAOS.get(name, ())[:only] if not missing_for(each)]
    settings = {"grace": SHORT_GRACE} if name == "cut-short" else {}
    if "failing-model" in (name, *chaos):
        settings["model_seconds"] = SILENCE
    small = "full-disk" in (name, *chaos)
    if name == "chaos-sqlite":
        database, number = f"sqlite:///{world.new_file(on_small_disk=small)}", 1
    else:
        database, number = world.new_database(on_small_disk=small), 2
    with world.workers(database, number, index, **settings) as workers:
        urls = [worker.url for worker in workers]
        crowd = Crowd(urls, world.queries, world.request(index), WAYS, 3)
        scene = Scene(world, workers, crowd, size, chaos)
        async with crowd.asking(CLIENTS):
            await scene.more()
            if scene.notes:
                raise RuntimeError(f"{scene.notes[0]} before anything failed")
            began = time.monotonic()
            async with fault(scene):
                await scene.over()
            ended = time.monotonic()
            back = await crowd.more(CLIENTS, PATIENCE)
            recovered = time.monotonic() - ended if back else None
            await scene.more()
        async with new_client() as http:
            scene.notes += await settled(http, urls[-1], PATIENCE)
            verdict = await judge(crowd.attempts, http, urls[-1], world.model.log)
        verdict.violations += scene.notes + ([] if back else ["nothing was served after it"])
        for worker in workers:
            said, traceback, more = worker.said().partition("Traceback")
            if traceback:
                verdict.violations.append(f"{worker.name} printed a traceback")
            if verdict.violations:
                told = f"{said[-1000:]}{traceback}{more[:3000]}"
                print(f"{worker.name} said:\n{told}", file=sys.stderr)
    return Survived(words, verdict, ended - began, recovered)
