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
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from benchmarks.load.accounts import Verdict, judge, settled
from benchmarks.load.clients import Crowd, new_client
from benchmarks.load.servers import Worker, wrong_clock
from benchmarks.load.world import EMBEDDED, REMOTE, SETTINGS, World

T = TypeVar("T")

CLIENTS = 8
DELAY = 0.02
SERVING_SECONDS = SETTLING_SECONDS = RECOVERY_SECONDS = 240
"""Until we give up; a busy machine takes long."""
SILENCE = 5.0
"""Seconds after which a model that does not answer is asked again."""
WAYS = {
    "search": 3.0,
    "stream": 1.5,
    "background": 3.0,
    "question": 1.0,
    "leave": 0.5,
    "return": 1.0,
    "answer": 0.5,
}


@dataclass(frozen=True, slots=True)
class Survived:
    """A fault, and what became of the runs under it.

    Attributes:
        fault: In words.
        lasted: Seconds that it lasted.
        recovered: Seconds from its end until as many requests were served again as there are
            clients; None where that did not happen.
        verdict: On all runs of before, meanwhile and after.
    """

    fault: str
    lasted: float
    recovered: float | None
    verdict: Verdict

    @property
    def violations(self) -> list[str]:
        """The promises that were broken."""
        more = [] if self.recovered is not None else ["nothing was served after it"]
        return [*more, *self.verdict.violations]

    def as_json(self) -> dict[str, Any]:
        """Return it as an object for JSON."""
        return {**asdict(self), "violations": self.violations}


@dataclass(slots=True)
class Scene:
    """What a fault happens to."""

    world: World
    workers: Sequence[Worker]
    crowd: Crowd
    size: int
    notes: list[str]
    chaos: Sequence[str]

    async def more(self) -> None:
        """Wait until some more requests were served."""
        if not await self.crowd.more(self.size, SERVING_SECONDS):
            self.notes.append(f"{self.size} requests were not served in {SERVING_SECONDS} s")

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


Fault = Callable[[Scene], Any]


# A server ends with the thread that started it, as far as Linux is concerned; this one stays.
_THREAD = ThreadPoolExecutor(1)


async def _aside(call: Callable[..., T], *arguments: Any) -> T:
    """Run what blocks, while clients go on."""
    return await asyncio.get_running_loop().run_in_executor(_THREAD, call, *arguments)


@asynccontextmanager
async def _slow_model(scene: Scene) -> AsyncIterator[None]:
    scene.world.model.steer(delay=20 * DELAY)
    yield
    scene.world.model.steer(delay=DELAY)


@asynccontextmanager
async def _failing_model(scene: Scene) -> AsyncIterator[None]:
    scene.world.model.steer(failures=FAILURES)
    yield
    scene.world.model.steer(failures={})


FAILURES = {"500": 0.3, "429": 0.1, "cut": 0.1, "garbage": 0.1, "never": 0.02}


@asynccontextmanager
async def _killed_model(scene: Scene) -> AsyncIterator[None]:
    scene.world.model.kill()
    yield
    await _aside(scene.world.model.start, DELAY)


@asynccontextmanager
async def _killed_elasticsearch(scene: Scene) -> AsyncIterator[None]:
    await _aside(scene.world.elasticsearch.kill)
    yield
    await _aside(scene.world.elasticsearch.start)


@asynccontextmanager
async def _restarted_postgres(scene: Scene) -> AsyncIterator[None]:
    await _aside(scene.world.postgres.stop)
    await _aside(scene.world.postgres.start)
    yield


@asynccontextmanager
async def _killed_postgres(scene: Scene) -> AsyncIterator[None]:
    await _aside(scene.world.postgres.kill)
    await asyncio.sleep(AWAY_SECONDS)
    await _aside(scene.world.postgres.start)
    yield


AWAY_SECONDS = 5
"""What makes an outage longer than a restart."""


@asynccontextmanager
async def _killed_worker(scene: Scene) -> AsyncIterator[None]:
    scene.workers[0].kill()
    yield
    await _aside(scene.workers[0].start)


@asynccontextmanager
async def _frozen_worker(scene: Scene) -> AsyncIterator[None]:
    scene.workers[0].signal(signal.SIGSTOP)
    # Nothing tells from outside that a lease has run out.
    await asyncio.sleep(2.5 * SETTINGS["lease"])
    scene.workers[0].signal(signal.SIGCONT)
    yield


@asynccontextmanager
async def _cut_short(scene: Scene) -> AsyncIterator[None]:
    scene.world.model.steer(delay=20 * DELAY)
    # What asks now takes longer than the grace time.
    await scene.crowd.more(CLIENTS, SERVING_SECONDS)
    async with _told_to_end(scene, SHORT_GRACE):
        yield
    scene.world.model.steer(delay=DELAY)


SHORT_GRACE = 0.2


@asynccontextmanager
async def _told_to_end(scene: Scene, grace: float = SETTINGS["grace"]) -> AsyncIterator[None]:
    worker, longest = scene.workers[0], grace + 2
    worker.signal(signal.SIGTERM)
    began = time.monotonic()
    try:
        code = await _aside(worker.ended, longest + 10)
    except subprocess.TimeoutExpired:
        scene.notes.append(f"the worker was still there {longest + 10:g} s after SIGTERM")
        worker.kill()
    else:
        if code:
            scene.notes.append(f"the worker ended with exit code {code}")
        if time.monotonic() - began > longest:
            scene.notes.append(f"the worker took {time.monotonic() - began:.1f} s to end")
    yield
    await _aside(worker.start)


@asynccontextmanager
async def _full_disk(scene: Scene) -> AsyncIterator[None]:
    ballast = scene.world.small_disk / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):  # until there is no space
        while True:
            file.write(bytes(65536))
    await scene.ready(503)
    yield
    ballast.unlink()
    await scene.ready(200)


@asynccontextmanager
async def _wrong_clock(scene: Scene) -> AsyncIterator[None]:
    scene.workers[0].kill()
    await _aside(scene.workers[0].start, CLOCK_AHEAD)
    yield


CLOCK_AHEAD = 3600
"""Seconds; more than any lease, and any time that a run may take."""


@asynccontextmanager
async def _chaos(scene: Scene) -> AsyncIterator[None]:
    for name in scene.chaos:
        async with FAULTS[name][1](scene):
            await scene.over()
        await scene.more()
    yield


CHAOS = {
    "chaos": (
        *("wrong-clock", "failing-model", "killed-worker", "frozen-worker", "killed-postgres"),
        *("told-to-end", "full-disk"),
    ),
    "chaos-sqlite": ("killed-worker", "failing-model", "full-disk"),
}
"""Faults that happen one after the other to the same runs, by the name of the whole."""


def missing_for(name: str) -> str:
    """Say what a fault needs that this machine lacks; empty if nothing."""
    if name == "full-disk" and os.geteuid() != 0:
        return "it mounts a disk of its own, which takes root"
    if name == "wrong-clock" and wrong_clock() is None:
        return "it takes libfaketime, which Debian has under this name"
    return ""


FAULTS: dict[str, tuple[str, Fault]] = {
    "slow-model": ("model server 20 times as slow", _slow_model),
    "failing-model": (
        "model server: 30% 500, 10% 429, 10% cut off, 10% garbage, 2% no answer",
        _failing_model,
    ),
    "killed-model": ("model server killed (-9) and started again", _killed_model),
    "killed-elasticsearch": (
        "Elasticsearch killed (-9) and started again",
        _killed_elasticsearch,
    ),
    "restarted-postgres": ("PostgreSQL restarted", _restarted_postgres),
    "killed-postgres": (
        f"PostgreSQL ended at once, and away for {AWAY_SECONDS} s",
        _killed_postgres,
    ),
    "killed-worker": ("one of two workers killed (-9)", _killed_worker),
    "frozen-worker": ("one of two workers frozen beyond its lease", _frozen_worker),
    "told-to-end": ("SIGTERM to one of two workers", _told_to_end),
    "cut-short": (
        f"the same with {SHORT_GRACE} s of grace and a slow model",
        _cut_short,
    ),
    "full-disk": ("the database's disk full until a worker is not ready", _full_disk),
    "wrong-clock": ("one of two workers killed, and started an hour ahead", _wrong_clock),
    "chaos": ("several of these, one after the other", _chaos),
    "chaos-sqlite": ("one process on SQLite: killed (-9), failing model, full disk", _chaos),
}


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
    settings: dict[str, float] = {}
    if name == "cut-short":
        settings["grace"] = SHORT_GRACE
    chaos = [each for each in CHAOS.get(name, ())[:only] if not missing_for(each)]
    if "failing-model" in (name, *chaos):
        settings["model_seconds"] = SILENCE
    on_small_disk = "full-disk" in (name, *chaos)
    if name == "chaos-sqlite":
        database, number = f"sqlite:///{world.new_file(on_small_disk=on_small_disk)}", 1
    else:
        database, number = world.new_database(on_small_disk=on_small_disk), 2
    with world.workers(database, number, index, **settings) as workers:
        crowd = Crowd(
            [worker.url for worker in workers], world.queries, world.request(index), WAYS, 3
        )
        scene = Scene(world, workers, crowd, size, [], chaos)
        async with crowd.asking(CLIENTS):
            await scene.more()
            if scene.notes:
                raise RuntimeError(f"{scene.notes[0]} before anything failed: {crowd.told()}")
            began = time.monotonic()
            async with fault(scene):
                await scene.over()
            lasted = time.monotonic() - began
            ended = time.monotonic()
            back = await crowd.more(CLIENTS, RECOVERY_SECONDS)
            recovered = time.monotonic() - ended if back else None
            await scene.more()
        async with new_client() as http:
            url = workers[-1].url
            live = await settled(http, url, SETTLING_SECONDS)
            verdict = await judge(crowd.attempts, http, url, world.model.log, live=live)
        verdict.violations += scene.notes
        for worker in workers:
            said, traceback, more = worker.said().partition("Traceback")
            if traceback:
                verdict.violations.append(f"{worker.name} printed a traceback")
            if verdict.violations:
                told = f"{said[-1000:]}{traceback}{more[:3000]}"
                print(f"{worker.name} said:\n{told}", file=sys.stderr)
    return Survived(words, lasted, recovered, verdict)
