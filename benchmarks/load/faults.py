"""One fault after the other, each while clients ask; and what became of the runs."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from typing import Any, NamedTuple

from benchmarks.load.accounts import Judge, Verdict, wait_for_ends
from benchmarks.load.clients import Crowd, new_client
from benchmarks.load.servers import Worker, wrong_clock
from benchmarks.load.world import EMBEDDED, GRACE, LEASE, World

CLIENTS = 8
PATIENCE = 240
"""Seconds until we give up; a busy machine takes long."""

SILENCE = 5.0
"""Seconds after which a model that does not answer is asked again."""

OUTAGE = 5
"""Seconds that a server is away; longer than a restart takes."""

SHORT_GRACE = 0.2
"""Seconds that a worker has to end, too few for what is under way."""

CLOCK_AHEAD = 3600
"""Seconds by which a clock is wrong; more than any lease, and than a run may take."""

SLOWER = 20
"""How many times as slow a slow model is."""

FAILURES = {"500": 0.3, "429": 0.1, "cut": 0.1, "garbage": 0.1, "never": 0.02}
WAYS = {
    "search": 3.0,
    "stream": 1.5,
    "background": 3.0,
    "question": 1.0,
    "leave": 0.5,
    "return": 1.0,
    "answer": 0.5,
}

# A server ends with the thread that started it, as far as Linux is concerned; this one stays.
_THREAD = ThreadPoolExecutor(1)


class Scene(NamedTuple):
    """What a fault happens to."""

    world: World
    workers: Sequence[Worker]
    notes: list[str]


class Fault(NamedTuple):
    """A fault.

    Attributes:
        sentence: What happens.
        begin: Lets it happen; this blocks, while the clients go on.
        end: Ends it; blocks too.
    """

    sentence: str
    begin: Callable[[Scene], object]
    end: Callable[[Scene], object] = lambda _: None


def _slow_model(scene: Scene) -> None:
    scene.world.model.steer(delay=SLOWER * scene.world.delay)


def _fast_model(scene: Scene) -> None:
    scene.world.model.steer(delay=scene.world.delay)


def _failing_model(scene: Scene) -> None:
    scene.world.model.steer(failures=FAILURES)


def _mended_model(scene: Scene) -> None:
    scene.world.model.steer(failures={})


def _kill_model(scene: Scene) -> None:
    scene.world.model.kill()


def _start_model(scene: Scene) -> None:
    scene.world.model.start(scene.world.delay)


def _restart_postgres(scene: Scene) -> None:
    scene.world.postgres.stop()
    scene.world.postgres.start()


def _kill_postgres(scene: Scene) -> None:
    scene.world.postgres.kill()
    time.sleep(OUTAGE)
    scene.world.postgres.start()


def _kill_worker(scene: Scene) -> None:
    scene.workers[0].kill()


def _freeze_worker(scene: Scene) -> None:
    scene.workers[0].child.send_signal(signal.SIGSTOP)
    # From outside nothing shows that a lease has run out.
    time.sleep(2.5 * LEASE)
    scene.workers[0].child.send_signal(signal.SIGCONT)


def _terminate_worker(scene: Scene, grace: float = GRACE) -> None:
    worker = scene.workers[0]
    longest = grace + 2
    start = time.monotonic()
    worker.child.send_signal(signal.SIGTERM)
    code: object = "none"
    with suppress(subprocess.TimeoutExpired):
        code = worker.child.wait(longest + 10)
    seconds = time.monotonic() - start
    if code or seconds > longest:
        scene.notes.append(f"the worker took {seconds:.1f} s to end, with exit code {code}")
    worker.kill()


def _cut_worker_short(scene: Scene) -> None:
    _slow_model(scene)
    # Runs that are under way then take longer than the grace time.
    time.sleep(2 * SLOWER * scene.world.delay)
    _terminate_worker(scene, SHORT_GRACE)


def _start_worker(scene: Scene, ahead: int = 0) -> None:
    _fast_model(scene)
    scene.workers[0].kill()
    scene.workers[0].start(ahead)


def _start_worker_ahead(scene: Scene) -> None:
    _start_worker(scene, CLOCK_AHEAD)


FAULTS = {
    "slow-model": Fault("model server 20 times as slow", _slow_model, _fast_model),
    "failing-model": Fault(
        "model server: 30% 500, 10% 429, 10% cut off, 10% garbage, 2% no answer",
        _failing_model,
        _mended_model,
    ),
    "killed-model": Fault("model server killed (-9) and started again", _kill_model, _start_model),
    "restarted-postgres": Fault("PostgreSQL restarted", _restart_postgres),
    "killed-postgres": Fault(f"PostgreSQL ended at once, and away for {OUTAGE} s", _kill_postgres),
    "killed-worker": Fault("one of two workers killed (-9)", _kill_worker, _start_worker),
    "frozen-worker": Fault("one of two workers frozen beyond its lease", _freeze_worker),
    "told-to-end": Fault("SIGTERM to one of two workers", _terminate_worker, _start_worker),
    "cut-short": Fault(
        f"the same with {SHORT_GRACE} s of grace and a slow model",
        _cut_worker_short,
        _start_worker,
    ),
    "wrong-clock": Fault(
        "one of two workers killed, and started an hour ahead", _start_worker_ahead
    ),
}
CHAOS = {
    "chaos": (
        "wrong-clock",
        "failing-model",
        "killed-worker",
        "frozen-worker",
        "killed-postgres",
        "told-to-end",
    ),
    "chaos-sqlite": ("killed-worker", "failing-model"),
}
"""Faults that happen one after the other to the same runs; the second to one process on SQLite."""


def missing_for(name: str) -> str:
    """Say what a part needs that this machine lacks; empty if nothing."""
    if name == "speed" and not shutil.which("wrk"):
        return "it takes wrk, which Debian has under this name"
    if name == "wrong-clock" and wrong_clock() is None:
        return "it takes libfaketime, which Debian has under this name"
    return ""


async def survive(world: World, name: str, size: int, only: int | None) -> dict[str, Any]:
    """Let a fault happen under load, and look what became of the runs.

    Two workers share a PostgreSQL, or one has a SQLite file; requests are made before the fault,
    meanwhile and after it.

    Args:
        world: With its model server running.
        name: One of :data:`FAULTS`, or of :data:`CHAOS`.
        size: How many requests to wait for before it, meanwhile, and after it.
        only: How many faults of a chaos happen; all by default.

    Returns:
        The ``fault`` in words, the ``verdict`` on all runs of before, meanwhile and after, how many
        seconds it ``lasted``, and ``recovered``: seconds from its end until as many requests were
        served again as there are clients, or None. Then the ``violations`` of promises.
    """
    chosen = CHAOS.get(name, (name,))[:only]
    faults = [fault for fault in chosen if not missing_for(fault)]
    world.model.steer(delay=world.delay, failures={})
    settings: dict[str, Any] = {}
    if "cut-short" in faults:
        settings["grace"] = SHORT_GRACE
    if "failing-model" in faults:
        settings["model_seconds"] = SILENCE
    number = 2
    if name == "chaos-sqlite":
        number = 1
        database = f"sqlite:///{world.new_file()}"
    else:
        database = world.new_database()

    with world.workers(database, number, **settings) as workers:
        urls = [worker.url for worker in workers]
        crowd = Crowd(urls, world.queries, world.request(EMBEDDED), WAYS, 3)
        scene = Scene(world, workers, [])
        async with crowd.asking(CLIENTS):
            await _wait_for_served(crowd, size, scene)
            if scene.notes:
                raise RuntimeError(f"{scene.notes[0]} before anything failed")
            start = time.monotonic()
            for fault in faults:
                recovered, end = await _let_happen(FAULTS[fault], crowd, size, scene)
                await _wait_for_served(crowd, size, scene)
        async with new_client() as http:
            scene.notes.extend(await wait_for_ends(http, urls[-1], PATIENCE))
            verdict = await Judge(http, urls[-1], world.model.log).judge(crowd.attempts)
        verdict.violations += scene.notes
        if recovered is None:
            verdict.violations.append("nothing was served after it")
        for worker in workers:
            _look_at_output(worker, verdict)

    figures = asdict(verdict)
    violations = figures.pop("violations")
    return {
        "fault": name if name in CHAOS else FAULTS[name].sentence,
        "lasted": end - start,
        "recovered": recovered,
        "violations": violations,
        "verdict": figures,
    }


async def _wait_for_served(crowd: Crowd, size: int, scene: Scene) -> None:
    """Wait until further requests were served, and note it if that takes too long."""
    if not await crowd.wait_for_served(size, PATIENCE):
        scene.notes.append(f"{size} requests were not served in {PATIENCE} s")


async def _let_happen(
    fault: Fault, crowd: Crowd, size: int, scene: Scene
) -> tuple[float | None, float]:
    """Let a fault happen and end.

    Returns:
        The seconds until clients were served again, or None if they were not; and when it ended.
    """
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(_THREAD, fault.begin, scene)
    # Some more attempts end, however they end.
    goal = len(crowd.attempts) + size
    await crowd.wait_until(lambda: len(crowd.attempts) >= goal, 20)
    await loop.run_in_executor(_THREAD, fault.end, scene)
    end = time.monotonic()
    is_served = await crowd.wait_for_served(CLIENTS, PATIENCE)
    recovered = time.monotonic() - end if is_served else None
    return recovered, end


def _look_at_output(worker: Worker, verdict: Verdict) -> None:
    """Note a traceback that a worker printed; print its output if a promise was broken."""
    output, traceback, frames = worker.printed().partition("Traceback")
    if traceback:
        verdict.violations.append(f"{worker.name} printed a traceback")
    if verdict.violations:
        excerpt = f"{output[-1000:]}{traceback}{frames[:3000]}"
        print(f"{worker.name} said:\n{excerpt}", file=sys.stderr)
