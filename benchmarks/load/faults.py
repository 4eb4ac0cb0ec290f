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

from benchmarks.load.accounts import Judge, settled
from benchmarks.load.clients import Crowd, new_client
from benchmarks.load.servers import Worker, wrong_clock
from benchmarks.load.world import EMBEDDED, GRACE, LEASE, World

CLIENTS = 8
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
# A server ends with the thread that started it, as far as Linux is concerned; this one stays.
_THREAD = ThreadPoolExecutor(1)


class Scene(NamedTuple):
    """What a fault happens to."""

    world: World
    workers: Sequence[Worker]
    notes: list[str]


class Fault(NamedTuple):
    """What happens, in words, how it begins, and how it ends; both block, beside the clients."""

    words: str
    begin: Callable[[Scene], object]
    end: Callable[[Scene], object] = lambda _: None


def _restart(scene: Scene, how: str, away: float = 0.0) -> None:
    getattr(scene.world.postgres, how)()
    time.sleep(away)
    scene.world.postgres.start()


def _freeze(scene: Scene) -> None:
    scene.workers[0].child.send_signal(signal.SIGSTOP)
    # From outside nothing shows that a lease has run out.
    time.sleep(2.5 * LEASE)
    scene.workers[0].child.send_signal(signal.SIGCONT)


def _tell_to_end(scene: Scene, grace: float = GRACE) -> None:
    worker, longest, began = scene.workers[0], grace + 2, time.monotonic()
    worker.child.send_signal(signal.SIGTERM)
    code: object = "none"
    with suppress(subprocess.TimeoutExpired):
        code = worker.child.wait(longest + 10)
    taken = time.monotonic() - began
    if code or taken > longest:
        scene.notes.append(f"the worker took {taken:.1f} s to end, with exit code {code}")
    worker.kill()


def _cut_short(scene: Scene) -> None:
    scene.world.model.steer(delay=20 * scene.world.delay)
    time.sleep(40 * scene.world.delay)  # what is under way then takes longer than the grace time
    _tell_to_end(scene, SHORT_GRACE)


def _start_again(scene: Scene, ahead: int = 0) -> None:
    scene.world.model.steer(delay=scene.world.delay)
    scene.workers[0].kill()
    scene.workers[0].start(ahead)


FAULTS = {
    "slow-model": Fault(
        "model server 20 times as slow",
        lambda it: it.world.model.steer(delay=20 * it.world.delay),
        lambda it: it.world.model.steer(delay=it.world.delay),
    ),
    "failing-model": Fault(
        "model server: 30% 500, 10% 429, 10% cut off, 10% garbage, 2% no answer",
        lambda it: it.world.model.steer(failures=FAILURES),
        lambda it: it.world.model.steer(failures={}),
    ),
    "killed-model": Fault(
        "model server killed (-9) and started again",
        lambda it: it.world.model.kill(),
        lambda it: it.world.model.start(it.world.delay),
    ),
    "restarted-postgres": Fault("PostgreSQL restarted", lambda it: _restart(it, "stop")),
    "killed-postgres": Fault(
        f"PostgreSQL ended at once, and away for {AWAY} s", lambda it: _restart(it, "kill", AWAY)
    ),
    "killed-worker": Fault(
        "one of two workers killed (-9)", lambda it: it.workers[0].kill(), _start_again
    ),
    "frozen-worker": Fault("one of two workers frozen beyond its lease", _freeze),
    "told-to-end": Fault("SIGTERM to one of two workers", _tell_to_end, _start_again),
    "cut-short": Fault(
        f"the same with {SHORT_GRACE} s of grace and a slow model", _cut_short, _start_again
    ),
    "wrong-clock": Fault(
        "one of two workers killed, and started an hour ahead",
        lambda it: _start_again(it, CLOCK_AHEAD),
    ),
}
CHAOS = {
    "chaos": (
        *("wrong-clock", "failing-model", "killed-worker", "frozen-worker", "killed-postgres"),
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
        only: Of a chaos, only so many faults.

    Returns:
        The ``fault`` in words, the ``verdict`` on all runs of before, meanwhile and after, how many
        seconds it ``lasted``, and ``recovered``: seconds from its end until as many requests were
        served again as there are clients, or None. Then the ``violations`` of promises.
    """
    names = [it for it in CHAOS.get(name, (name,))[:only] if not missing_for(it)]
    world.model.steer(delay=world.delay, failures={})
    settings = {"grace": SHORT_GRACE} if "cut-short" in names else {}
    settings |= {"model_seconds": SILENCE} if "failing-model" in names else {}
    number = 1 if name == "chaos-sqlite" else 2
    database = f"sqlite:///{world.new_file()}" if number == 1 else world.new_database()
    loop = asyncio.get_running_loop()
    with world.workers(database, number, **settings) as workers:
        urls = [worker.url for worker in workers]
        crowd = Crowd(urls, world.queries, world.request(EMBEDDED), WAYS, 3)
        scene = Scene(world, workers, [])

        async def more() -> None:
            if not await crowd.more(size, PATIENCE):
                scene.notes.append(f"{size} requests were not served in {PATIENCE} s")

        async with crowd.asking(CLIENTS):
            await more()
            if scene.notes:
                raise RuntimeError(f"{scene.notes[0]} before anything failed")
            began = time.monotonic()
            for fault in names:
                await loop.run_in_executor(_THREAD, FAULTS[fault].begin, scene)
                # Some more attempts end, however they end.
                wanted = len(crowd.attempts) + size
                await crowd.until(lambda wanted=wanted: len(crowd.attempts) >= wanted, 20)
                await loop.run_in_executor(_THREAD, FAULTS[fault].end, scene)
                ended = time.monotonic()
                back = await crowd.more(CLIENTS, PATIENCE)
                recovered = time.monotonic() - ended if back else None
                await more()
        async with new_client() as http:
            scene.notes.extend(await settled(http, urls[-1], PATIENCE))
            verdict = await Judge(http, urls[-1], world.model.log).judge(crowd.attempts)
        verdict.violations += scene.notes + ([] if back else ["nothing was served after it"])
        for worker in workers:
            said, traceback, rest = worker.said().partition("Traceback")
            if traceback:
                verdict.violations.append(f"{worker.name} printed a traceback")
            if verdict.violations:
                told = f"{said[-1000:]}{traceback}{rest[:3000]}"
                print(f"{worker.name} said:\n{told}", file=sys.stderr)
    words = name if name in CHAOS else FAULTS[name].words
    found: dict[str, Any] = {"fault": words, "lasted": ended - began, "recovered": recovered}
    told = asdict(verdict)
    return {**found, "violations": told.pop("violations"), "verdict": told}
