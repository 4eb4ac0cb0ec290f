"""Thousands of runs of all kinds, while the memory of the service is watched."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.load.accounts import runs_of, settled, told_slugs
from benchmarks.load.attempts import ACCEPTED, LEFT, RESULT, Attempt
from benchmarks.load.clients import Crowd, new_client
from benchmarks.load.watching import Watch
from benchmarks.load.world import EMBEDDED, World

CLIENTS = 8
SETTLING_SECONDS = 240
FORGETTING_SECONDS = 150
MOST_GROWTH = 1.1
MOST_MORE = 8

PLAIN = {"search": 8.0, "stream": 1.0, "background": 0.5, "leave": 0.5}
MIXED = {
    "search": 5.0,
    "stream": 1.5,
    "background": 1.5,
    "leave": 1.0,
    "return": 0.5,
    "answer": 0.3,
    "probe": 0.2,
}


@dataclass(slots=True)
class Soak:
    """What came of it.

    Attributes:
        runs: How many were asked for.
        seconds: That took.
        told: How often clients were told what, by way and word.
        early, late: Memory of its own in the second and in the last tenth, in MB.
        resident_early, resident_late: The same with the pages of mapped files, in MB.
        files_early, files_late: Open descriptors.
        threads_early, threads_late: Threads.
        largest: Bytes of the database, with its log, at its largest.
        left: Bytes of it once all runs were forgotten.
        kept: Runs that are listed then.
        violations: The promises that were broken, one sentence each.
    """

    runs: int
    seconds: float
    told: dict[str, int]
    early: float
    late: float
    resident_early: float
    resident_late: float
    files_early: float
    files_late: float
    threads_early: float
    threads_late: float
    largest: int
    left: int
    kept: int
    violations: list[str] = field(default_factory=list)

    @property
    def growth(self) -> float:
        """The memory late by the memory early."""
        return self.late / self.early

    def as_json(self) -> dict[str, Any]:
        """Return it as an object for JSON."""
        return {**asdict(self), "growth": self.growth}


async def soak(world: World, runs: int, seconds: float, retention: float) -> Soak:
    """Ask for so many runs, or for as many as fit into so many seconds.

    Half of the clients search without the model, and the others do all kinds of things.

    Args:
        world: With its model server running.
        runs: How many.
        seconds: At the most.
        retention: Of runs that are over, in seconds; the database then holds few of all.
    """
    world.model.steer(delay=0.002, failures={})
    path = world.new_file()
    with world.workers(f"sqlite:///{path}", retention=retention) as (worker,):
        plain = Crowd([worker.url], world.queries, world.request(EMBEDDED, "plain"), PLAIN, 1)
        mixed = Crowd([worker.url], world.queries, world.request(EMBEDDED), MIXED, 2)
        crowds = (plain, mixed)
        sizes: list[int] = []
        watch = Watch(worker.pid, min(1.0, seconds / 100, runs / 500))
        begun = time.perf_counter()
        async with watch.looking(), plain.asking(CLIENTS // 2), mixed.asking(CLIENTS // 2):
            while _asked(crowds) < runs and time.perf_counter() - begun < seconds:
                enough = _asked(crowds) + max(1, runs // 50)
                wanted = min(runs, enough)
                await _reached(crowds, wanted)
                sizes.append(_size(path))
                print(f"      {_asked(crowds)} runs", file=sys.stderr)
        taken = time.perf_counter() - begun
        attempts = [attempt for crowd in crowds for attempt in crowd.attempts]
        async with new_client() as http:
            live = await settled(http, worker.url, SETTLING_SECONDS)
            kept = await _forgotten(http, worker.url)
        violations = [f"{live} runs did not end"] if live else []
        violations += _wrong(attempts)
        found = Soak(
            runs=len(attempts),
            seconds=taken,
            told=dict(Counter(f"{attempt.way}: {attempt.told}" for attempt in attempts)),
            early=watch.part(1, "own"),
            late=watch.part(9, "own"),
            resident_early=watch.part(1, "resident"),
            resident_late=watch.part(9, "resident"),
            files_early=watch.part(1, "files"),
            files_late=watch.part(9, "files"),
            threads_early=watch.part(1, "threads"),
            threads_late=watch.part(9, "threads"),
            largest=max(sizes, default=0),
            left=_size(path),
            kept=kept,
            violations=violations,
        )
        found.violations += _grown(found)
        if "Traceback" in worker.said():
            found.violations.append("the service printed a traceback")
    return found


async def _reached(crowds: Sequence[Crowd], number: int) -> bool:
    """Wait until there are so many attempts, or until it is worth telling how far it is."""
    return await crowds[-1].until(lambda: _asked(crowds) >= number, 10)


def _asked(crowds: Iterable[Crowd]) -> int:
    return sum(len(crowd.attempts) for crowd in crowds)


def _size(path: Path) -> int:
    total = 0
    for file in path.parent.glob(f"{path.name}*"):
        with suppress(FileNotFoundError):
            total += file.stat().st_size
    return total


async def _forgotten(http: httpx.AsyncClient, url: str) -> int:
    """Wait until the time of retention is over, and return how many runs are still listed."""
    end = time.monotonic() + FORGETTING_SECONDS
    while (listed := len(await runs_of(http, url))) and time.monotonic() < end:
        await asyncio.sleep(1)
    return listed


def _wrong(attempts: Iterable[Attempt]) -> list[str]:
    """Return what must not happen where nothing fails."""
    fine = (RESULT, ACCEPTED, LEFT)
    wrong = []
    for attempt in attempts:
        if attempt.told not in fine and attempt.told not in told_slugs():
            wrong.append(f"{attempt.way} {attempt.mark}: told '{attempt.told}'")
        elif attempt.told not in fine:
            wrong.append(f"{attempt.way} {attempt.mark}: failed with '{attempt.told}'")
        wrong += [f"{attempt.way} {attempt.mark}: {fault}" for fault in attempt.faults]
    return wrong


def _grown(found: Soak) -> list[str]:
    """Return what grew, where there were enough runs to tell."""
    grown = []
    if found.runs >= 1000 and found.growth > MOST_GROWTH:
        grown.append(f"memory grew by {found.growth:.2f}×")
    for name in ("files", "threads"):
        early, late = getattr(found, f"{name}_early"), getattr(found, f"{name}_late")
        if late > early + MOST_MORE:
            grown.append(f"from {early:g} {name} to {late:g}")
    if found.kept:
        grown.append(f"{found.kept} runs were not forgotten")
    return grown
