"""Holding what clients were told against what the service and the model server have written down.

Every run that was accepted must end, with a result or a problem of a known type; once; and no
question of it that the model had answered may be asked again, but for the step that a worker was in
when it was killed. The result of a durable run is that of the same run without a fault, unless its
model failed. Of an ephemeral run nothing may be stored: what its client was told is its end.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.load.attempts import ACCEPTED, GONE, LEFT, RESULT, Attempt, events_of
from benchmarks.load.model import ANSWERED, MARK
from fairqr.base import errors

PAGE = 100
AT_ONCE = 8
"""Questions of one run that are under way at the same time, at the most."""

LIVE = ("queued", "running")

DURABLE = ("background", "question", "return")
"""The ways of asking that make a durable run."""

REFUSALS = ("busy",)
"""Slugs of requests that were turned away."""


def told_slugs() -> set[str]:
    """Return the slugs of all errors that a user may be told."""
    found = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    return {kind.slug for kind in found if issubclass(kind, errors.FairqrError)} - {"error"}


@dataclass(slots=True)
class Verdict:
    """What became of the runs of some clients.

    Attributes:
        asked: How often clients asked.
        refused: How often they were told at once that it cannot be, or reached nobody.
        accepted: Runs that the service took on.
        results: Of these, how many have one.
        durable: Of those accepted, how many would outlive their client and their worker.
        equal: Of these, how many were compared with the same run without a fault, and are equal.
        problems: Those that failed or were cancelled, by the slug of the problem.
        resumed: Those that were begun more than once.
        again: Questions that the model was asked again after it had answered them.
        violations: The promises that were broken, one sentence each.
    """

    asked: int = 0
    refused: int = 0
    accepted: int = 0
    results: int = 0
    durable: int = 0
    equal: int = 0
    problems: dict[str, int] = field(default_factory=dict)
    resumed: int = 0
    again: int = 0
    violations: list[str] = field(default_factory=list)


async def settled(http: httpx.AsyncClient, url: str, seconds: float) -> int:
    """Wait until no run is live, and return how many still are after so many seconds."""
    end = time.monotonic() + seconds
    while True:
        live = 0
        for status in LIVE:
            answer = await http.get(f"{url}/v1/runs", params={"status": status, "limit": PAGE})
            answer.raise_for_status()
            live += len(answer.json()["runs"])
        if not live or time.monotonic() > end:
            return live
        await asyncio.sleep(0.1)


async def runs_of(http: httpx.AsyncClient, url: str) -> list[dict[str, Any]]:
    """Return the summaries of all runs that the service lists."""
    found: dict[str, dict[str, Any]] = {}
    before: float | None = None
    while True:
        parameters = {"limit": PAGE} | ({"before": before} if before is not None else {})
        answer = await http.get(f"{url}/v1/runs", params=parameters)
        answer.raise_for_status()
        page = answer.json()["runs"]
        found |= {run["id"]: run for run in page}
        if len(page) < PAGE:
            return list(found.values())
        before = page[-1]["created"]


async def judge(
    attempts: Sequence[Attempt], http: httpx.AsyncClient, url: str, log: Path, *, live: int = 0
) -> Verdict:
    """Hold attempts against the runs of the service and the questions of the model.

    Args:
        attempts: Of clients that have ended.
        http: To ask the service with.
        url: Of a worker.
        log: Of the model server.
        live: How many runs did not end.
    """
    verdict = Verdict(asked=len(attempts))
    verdict.violations += [f"{live} runs did not end"] if live else []
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for summary in await runs_of(http, url):
        if mark := MARK.search(summary["query"]):
            rows[mark[0]].append(summary)
    asked, failed = _repeats(log, {attempt.mark for attempt in attempts})
    gate = asyncio.Semaphore(16)

    async def look(attempt: Attempt) -> None:
        async with gate:
            mark = attempt.mark
            run = await _look(attempt, rows[mark], asked[mark], http, url, verdict)
            # What found no model says so in its result, and the model's log nothing.
            done = run is not None and run["status"] == "done" and mark not in failed
            if run and done and _statuses(run["result"]) <= {"ok"}:
                answer = await http.post(f"{url}/v1/{run['kind']}", json=attempt.body)
                if _figures(answer.json()) == _figures(run["result"]):
                    verdict.equal += 1
                else:
                    verdict.violations.append(f"{mark}: its result is not that of an unbroken run")

    await asyncio.gather(*map(look, attempts))
    return verdict


def _statuses(result: Any) -> set[str]:
    """Return all statuses in a result: of replies of models, and of what was read from them."""
    if isinstance(result, dict):
        own = {str(result["status"])} if "status" in result else set()
        return own.union(*map(_statuses, result.values()))
    return set().union(*map(_statuses, result)) if isinstance(result, list) else set()


def _figures(result: Any) -> Any:
    """Return a result without what it took."""
    if isinstance(result, dict):
        return {key: _figures(value) for key, value in result.items() if key != "usage"}
    return [_figures(each) for each in result] if isinstance(result, list) else result


async def _look(
    attempt: Attempt,
    rows: Sequence[dict[str, Any]],
    again: int,
    http: httpx.AsyncClient,
    url: str,
    verdict: Verdict,
) -> dict[str, Any] | None:
    """Look at one attempt, and return its durable run."""

    def broken(what: str) -> None:
        verdict.violations.append(f"{attempt.way} {attempt.mark}: {what}")

    for fault in attempt.faults:
        broken(fault)
    if attempt.told in ("untyped", "internal"):
        broken(f"told an error without a type, with status {attempt.status}")
    verdict.again += again
    if attempt.way not in DURABLE:
        _ephemeral(attempt, rows, again, verdict, broken)
        return None
    if not rows:
        if attempt.told in (RESULT, ACCEPTED) or attempt.run:
            broken(f"lost: told '{attempt.told}', but there is no such run")
        verdict.refused += 1
        return None
    if len(rows) > 1:
        broken(f"there are {len(rows)} runs of it")
    verdict.accepted += 1
    verdict.durable += 1
    answer = await http.get(f"{url}/v1/runs/{rows[0]['id']}")
    if answer.status_code != 200:
        broken(f"cannot be read: {answer.status_code}")
        return None
    run: dict[str, Any] = answer.json()
    verdict.resumed += run["attempts"] > 1
    if again > AT_ONCE * max(0, run["attempts"] - 1):
        broken(f"{again} questions were asked again that had been answered")
    _outcome(run, attempt, verdict, broken)
    if run["status"] not in LIVE:
        for fault in await _faults_of_events(http, f"{url}/v1/runs/{run['id']}/events"):
            broken(fault)
    return run


def _ephemeral(
    attempt: Attempt, rows: Sequence[dict[str, Any]], again: int, verdict: Verdict, broken: Any
) -> None:
    """Count what became of an ephemeral run."""
    if rows:
        broken("it is stored, though nobody asked for that")
    if again:
        broken(f"{again} questions were asked again that had been answered")
    if attempt.told in REFUSALS or not (attempt.status or attempt.run):
        verdict.refused += 1
        return
    verdict.accepted += 1
    if attempt.told == RESULT:
        verdict.results += 1
        return
    verdict.problems[attempt.told] = verdict.problems.get(attempt.told, 0) + 1
    if attempt.told not in {*told_slugs(), LEFT, GONE}:
        broken(f"ended with the problem '{attempt.told}'")


def _outcome(run: dict[str, Any], attempt: Attempt, verdict: Verdict, broken: Any) -> None:
    """Count what became of a run, and hold it against what the client was told."""
    slug = str((run["problem"] or {}).get("type", "")).rpartition(":")[2]
    if run["status"] == "done":
        verdict.results += 1
        if not run["result"] or run["problem"]:
            broken("is done, but has no result")
    elif run["status"] in ("failed", "cancelled"):
        verdict.problems[slug] = verdict.problems.get(slug, 0) + 1
        if slug not in told_slugs() or run["result"]:
            broken(f"ended as {run['status']} with the problem '{slug}'")
    else:
        broken(f"is still {run['status']}")
    if run["status"] == "cancelled" and attempt.told != LEFT:
        broken(f"is cancelled, but its client did not leave; it was told '{attempt.told}'")
    if attempt.told == RESULT and run["status"] != "done":
        broken(f"its client was told a result, but it is {run['status']}")


async def _faults_of_events(http: httpx.AsyncClient, url: str) -> list[str]:
    """Return what is wrong with the events that are kept of a run that is over."""
    numbers: list[int] = []
    names: list[str] = []
    async with http.stream("GET", url) as answer:
        if answer.status_code != 200:
            return [f"its events cannot be read: {answer.status_code}"]
        async for number, name, _ in events_of(answer):
            if number:
                numbers.append(number)
            names.append(name)
    faults = []
    if numbers != list(range(1, len(numbers) + 1)):
        faults.append(f"its events are numbered {numbers}")
    ends = [name for name in names if name in ("end", "error")]
    if len(ends) != 1 or names[-1] not in ("end", "error"):
        faults.append(f"its events end {len(ends)} times: {names}")
    return faults


def _repeats(log: Path, marks: Iterable[str]) -> tuple[Counter[str], set[str]]:
    """Return how often each run asked again what had been answered, and whose model failed."""
    wanted = set(marks)
    answered: set[tuple[str, str]] = set()
    again: Counter[str] = Counter()
    failed: set[str] = set()
    for line in log.read_text(encoding="ascii").splitlines():
        mark, digest, outcome = line.split(" ")
        if mark not in wanted:
            continue
        again[mark] += (mark, digest) in answered
        if outcome == ANSWERED:
            answered.add((mark, digest))
        elif outcome != LEFT:
            failed.add(mark)
    return again, failed
