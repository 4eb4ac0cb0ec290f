"""Thousands of runs of all kinds, while the memory of the service is watched."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from typing import Any

import numpy as np

from benchmarks.load.accounts import SLUGS, runs_of, settled
from benchmarks.load.clients import FINE, Crowd, new_client
from benchmarks.load.world import EMBEDDED, World
from benchmarks.measuring import taken_by

CLIENTS = 8
SETTLING, FORGETTING = 240, 150
"""At most so many seconds pass until all runs have ended, and until they are forgotten."""
MOST_GROWTH, MOST_MORE = 1.1, 8
"""The most times the memory, and the most more files and threads, in the last tenth."""
ENOUGH = 1_000
"""Runs from which on the growth of memory says something."""
PLAIN = {"search": 8.0, "stream": 1.0, "background": 0.5, "leave": 0.5}
MIXED = {"search": 5.0, "stream": 1.5, "background": 1.5, "leave": 1.0, "return": 0.5}
MIXED |= {"answer": 0.3, "probe": 0.2}


async def soak(world: World, runs: int, seconds: float, retention: float) -> dict[str, Any]:
    """Ask for so many runs, or for as many as fit into so many seconds.

    Half of the clients search without the model, and the others do all kinds of things.

    Args:
        world: With its model server running.
        runs: How many.
        seconds: At the most.
        retention: Of runs that are over, in seconds; the database then holds few of all.

    Returns:
        ``runs``, ``seconds``, how often clients were ``told`` what, what the process had ``early``
        (in the second tenth) and ``late`` (in the last), and the ``violations`` of promises.
    """
    world.model.steer(delay=0.002, failures={})
    samples: list[dict[str, float]] = []
    with world.workers(f"sqlite:///{world.new_file()}", retention=retention) as (worker,):
        plain = Crowd([worker.url], world.queries, world.request(EMBEDDED, "baseline"), PLAIN, 1)
        mixed = Crowd([worker.url], world.queries, world.request(EMBEDDED), MIXED, 2)

        def asked() -> int:
            return len(plain.attempts) + len(mixed.attempts)

        begun, told = time.perf_counter(), 0
        async with plain.asking(CLIENTS // 2), mixed.asking(CLIENTS // 2):
            while asked() < runs and time.perf_counter() - begun < seconds:
                samples.append(taken_by(worker.child.pid))
                await asyncio.sleep(min(1.0, seconds / 100, runs / 500))
                if asked() // max(1, runs // 50) > told:
                    told = asked() // max(1, runs // 50)
                    print(f"      {asked()} runs", file=sys.stderr)
        taken = time.perf_counter() - begun
        attempts = [*plain.attempts, *mixed.attempts]
        async with new_client() as http:
            violations = await settled(http, worker.url, SETTLING)
            end = time.monotonic() + FORGETTING
            while (kept := len(await runs_of(http, worker.url))) and time.monotonic() < end:
                await asyncio.sleep(1)
        said = worker.said()
    for it in attempts:
        wrong = [*it.faults]
        if it.told not in FINE:
            wrong.append(f"told '{it.told}'" if it.told not in SLUGS else f"failed with {it.told}")
        violations += [f"{it.way} {it.mark}: {fault}" for fault in wrong]
    tenths = np.array_split(np.array([[*it.values()] for it in samples]), 10)
    names = [*samples[0]]
    early, late = (dict(zip(names, np.median(it, axis=0), strict=True)) for it in tenths[1::8])
    if len(attempts) >= ENOUGH and late["own"] > MOST_GROWTH * early["own"]:
        violations.append(f"memory grew by {late['own'] / early['own']:.2f}×")
    for name in ("files", "threads"):
        if late[name] > early[name] + MOST_MORE:
            violations.append(f"from {early[name]:g} {name} to {late[name]:g}")
    violations += [f"{kept} runs were not forgotten"] if kept else []
    violations += ["the service printed a traceback"] if "Traceback" in said else []
    return {
        "runs": len(attempts),
        "seconds": taken,
        "told": dict(Counter(f"{it.way}: {it.told}" for it in attempts)),
        "early": early,
        "late": late,
        "violations": violations,
    }
