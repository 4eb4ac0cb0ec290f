"""Thousands of runs of all kinds, while the memory of the service is watched."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.load.accounts import SLUGS, runs_of, wait_for_ends
from benchmarks.load.clients import FINE, Attempt, Crowd, new_client
from benchmarks.load.world import EMBEDDED, World
from benchmarks.measuring import taken_by

CLIENTS = 8
SETTLING = 240
"""The most seconds until all runs have ended."""

FORGETTING = 150
"""The most seconds until all runs are forgotten."""

MOST_GROWTH = 1.1
"""The most that the memory may grow until the last tenth, as a factor."""

MOST_ADDED = 8
"""How many more files, and threads, there may be in the last tenth."""

ENOUGH = 1_000
"""With fewer runs, the growth of memory says nothing."""

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


async def soak(world: World, runs: int, seconds: float, retention: float) -> dict[str, Any]:
    """Ask for runs until there are enough, or the time is over.

    Half of the clients search without the model, and the others do all kinds of things.

    Args:
        world: With its model server running.
        runs: How many runs to ask for at most.
        seconds: How long to ask at most.
        retention: How long the service keeps runs that have ended, in seconds; so its database
            holds few of all.

    Returns:
        ``runs``, ``seconds``, how often clients were ``told`` what, what the process had ``early``
        (in the second tenth) and ``late`` (in the last), and the ``violations`` of promises.
    """
    world.model.steer(delay=0.002, failures={})
    samples: list[dict[str, float]] = []
    with world.workers(f"sqlite:///{world.new_file()}", retention=retention) as (worker,):
        plain = Crowd([worker.url], world.queries, world.request(EMBEDDED, "baseline"), PLAIN, 1)
        mixed = Crowd([worker.url], world.queries, world.request(EMBEDDED), MIXED, 2)

        def count() -> int:
            return len(plain.attempts) + len(mixed.attempts)

        start = time.perf_counter()
        pause = min(1.0, seconds / 100, runs / 500)
        line_every = max(1, runs // 50)
        lines = 0
        async with plain.asking(CLIENTS // 2), mixed.asking(CLIENTS // 2):
            while count() < runs and time.perf_counter() - start < seconds:
                samples.append(taken_by(worker.child.pid))
                await asyncio.sleep(pause)
                if count() // line_every > lines:
                    lines = count() // line_every
                    print(f"      {count()} runs", file=sys.stderr)
        duration = time.perf_counter() - start

        async with new_client() as http:
            violations = await wait_for_ends(http, worker.url, SETTLING)
            end = time.monotonic() + FORGETTING
            while (remaining := len(await runs_of(http, worker.url))) and time.monotonic() < end:
                await asyncio.sleep(1)
        printed = worker.printed()

    attempts = [*plain.attempts, *mixed.attempts]
    for attempt in attempts:
        violations += _faults_of(attempt)
    early, late = _early_and_late(samples)
    violations += _growth(early, late, len(attempts))
    if remaining:
        violations.append(f"{remaining} runs were not forgotten")
    if "Traceback" in printed:
        violations.append("the service printed a traceback")
    return {
        "runs": len(attempts),
        "seconds": duration,
        "told": dict(Counter(f"{attempt.way}: {attempt.outcome}" for attempt in attempts)),
        "early": early,
        "late": late,
        "violations": violations,
    }


def _faults_of(attempt: Attempt) -> list[str]:
    """Return what was wrong with the answer to a client, one sentence each."""
    faults = [*attempt.faults]
    if attempt.outcome in SLUGS and attempt.outcome not in FINE:
        faults.append(f"failed with {attempt.outcome}")
    elif attempt.outcome not in FINE:
        faults.append(f"told '{attempt.outcome}'")
    return [f"{attempt.way} {attempt.mark}: {fault}" for fault in faults]


def _growth(early: dict[str, float], late: dict[str, float], runs: int) -> Iterator[str]:
    """Yield what of the process grew too much in the soak."""
    if runs >= ENOUGH and late["own"] > MOST_GROWTH * early["own"]:
        yield f"memory grew by {late['own'] / early['own']:.2f}×"
    for name in ("files", "threads"):
        if late[name] > early[name] + MOST_ADDED:
            yield f"from {early[name]:g} {name} to {late[name]:g}"


def _early_and_late(
    samples: list[dict[str, float]],
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the medians of the second and of the last tenth of samples."""
    names = [*samples[0]]
    values = np.array([[*sample.values()] for sample in samples])
    tenths = np.array_split(values, 10)
    early = dict(zip(names, np.median(tenths[1], axis=0), strict=True))
    late = dict(zip(names, np.median(tenths[9], axis=0), strict=True))
    return early, late
