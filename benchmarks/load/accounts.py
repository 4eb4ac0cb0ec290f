"""Compares what clients were told with what the service and the model server have written down.

Every run that was accepted must end once, with a result or a problem of a known type. No question
that the model had answered may be asked again, except in the step that a worker was in when it was
killed. A durable run has the result of the same run without a fault, unless its model failed.
Nothing of an ephemeral run may be stored: it ends with what its client was told.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.load.clients import ACCEPTED, GONE, LEFT, RESULT, Attempt, events_of, slug_of
from benchmarks.load.model import ANSWERED, CLIENT_LEFT, MARK
from fairqr.base import errors

PAGE = 100
AT_ONCE = 8
"""How many questions of one run are under way at the same time, at most."""

LIVE = ("queued", "running")
DURABLE = ("background", "question", "return")
"""The ways of asking that make a durable run."""

REFUSED = "busy"


def _slugs() -> set[str]:
    slugs = set()
    for error in vars(errors).values():
        if isinstance(error, type) and issubclass(error, errors.FairqrError):
            slugs.add(error.slug)
    return slugs - {"error"}


SLUGS = _slugs()
"""All errors that a user may be told."""


@dataclass(slots=True)
class Verdict:
    """What became of the runs of some clients.

    Attributes:
        accepted: Runs that the service took on.
        results: Accepted runs with a result.
        problems: Runs that failed or were cancelled, by the slug of the problem.
        refused: Requests that the service refused at once, or that reached nobody.
        durable: Accepted runs that would outlive their client and their worker.
        equal: Durable runs that have the result of the same run without a fault.
        resumed: Runs that were begun more than once.
        again: Questions that the model was asked again after it had answered them.
        violations: The promises that were broken, one sentence each.
    """

    accepted: int = 0
    results: int = 0
    problems: dict[str, int] = field(default_factory=dict)
    refused: int = 0
    durable: int = 0
    equal: int = 0
    resumed: int = 0
    again: int = 0
    violations: list[str] = field(default_factory=list)


async def wait_for_ends(http: httpx.AsyncClient, url: str, seconds: float) -> list[str]:
    """Wait until all runs have ended; return a sentence if some have not ended in time."""
    end = time.monotonic() + seconds
    live = await _count_live(http, url)
    while live and time.monotonic() < end:
        await asyncio.sleep(0.1)
        live = await _count_live(http, url)
    return [f"{live} runs did not end"] if live else []


async def _count_live(http: httpx.AsyncClient, url: str) -> int:
    """Return how many runs are queued or running, up to a page of each."""
    live = 0
    for status in LIVE:
        answer = await http.get(f"{url}/v1/runs", params={"status": status, "limit": PAGE})
        live += len(answer.raise_for_status().json()["runs"])
    return live


async def runs_of(http: httpx.AsyncClient, url: str) -> list[dict[str, Any]]:
    """Return the summaries of all runs that the service lists."""
    runs: dict[str, dict[str, Any]] = {}
    parameters: dict[str, Any] = {"limit": PAGE}
    while True:
        answer = await http.get(f"{url}/v1/runs", params=parameters)
        page = answer.raise_for_status().json()["runs"]
        for run in page:
            runs[run["id"]] = run
        if len(page) < PAGE:
            return [*runs.values()]
        parameters["before"] = page[-1]["created"]


class Judge:
    """Compares attempts with the runs of the service and the questions of the model.

    Args:
        http: The client to ask the service with.
        url: The address of a worker.
        log: The log of the model server.
    """

    def __init__(self, http: httpx.AsyncClient, url: str, log: Path) -> None:
        self.http = http
        self.url = url
        self.verdict = Verdict()
        self._summaries: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._repeats, self._failed = _read_log(log)
        self._gate = asyncio.Semaphore(16)

    async def judge(self, attempts: Sequence[Attempt]) -> Verdict:
        """Return the verdict on the attempts of clients that have ended."""
        for summary in await runs_of(self.http, self.url):
            mark = MARK.search(summary["query"])
            if mark:
                self._summaries[mark[0]].append(summary)
        await asyncio.gather(*map(self._judge_attempt, attempts))
        return self.verdict

    async def _judge_attempt(self, attempt: Attempt) -> None:
        faults = [*attempt.faults]
        if attempt.outcome in ("untyped", "internal"):
            faults.append(f"told an error without a type, with status {attempt.status}")
        self.verdict.again += self._repeats[attempt.mark]
        judge = self._judge_durable if attempt.way in DURABLE else self._judge_ephemeral
        async with self._gate:
            faults += [fault async for fault in judge(attempt)]
        for fault in faults:
            self.verdict.violations.append(f"{attempt.way} {attempt.mark}: {fault}")

    def _count_problem(self, slug: str) -> None:
        self.verdict.problems[slug] = self.verdict.problems.get(slug, 0) + 1

    async def _judge_ephemeral(self, attempt: Attempt) -> AsyncIterator[str]:
        """Count how an ephemeral run ended, and yield what was wrong."""
        if self._summaries[attempt.mark]:
            yield "it is stored, though nobody asked for that"
        repeats = self._repeats[attempt.mark]
        if repeats:
            yield f"{repeats} questions were asked again that had been answered"

        reached_nobody = not attempt.status and not attempt.run
        if attempt.outcome == REFUSED or reached_nobody:
            self.verdict.refused += 1
            return
        self.verdict.accepted += 1
        if attempt.outcome == RESULT:
            self.verdict.results += 1
            return
        self._count_problem(attempt.outcome)
        if attempt.outcome not in {*SLUGS, LEFT, GONE}:
            yield f"ended with the problem '{attempt.outcome}'"

    async def _judge_durable(self, attempt: Attempt) -> AsyncIterator[str]:
        """Count how a durable run ended, and yield what was wrong."""
        summaries = self._summaries[attempt.mark]
        if not summaries:
            self.verdict.refused += 1
            if attempt.outcome in (RESULT, ACCEPTED) or attempt.run:
                yield f"lost: told '{attempt.outcome}', but there is no such run"
            return
        if len(summaries) > 1:
            yield f"there are {len(summaries)} runs of it"
        self.verdict.accepted += 1
        self.verdict.durable += 1

        path = f"{self.url}/v1/runs/{summaries[0]['id']}"
        answer = await self.http.get(path)
        if answer.status_code != 200:
            yield f"cannot be read: {answer.status_code}"
            return
        async for fault in self._faults_of_run(answer.json(), path, attempt):
            yield fault

    async def _faults_of_run(
        self, run: dict[str, Any], path: str, attempt: Attempt
    ) -> AsyncIterator[str]:
        """Yield what is wrong with a durable run, its events and its result."""
        restarts = max(0, run["attempts"] - 1)
        if restarts:
            self.verdict.resumed += 1
        if run["status"] == "done":
            self.verdict.results += 1
        repeats = self._repeats[attempt.mark]
        if repeats > AT_ONCE * restarts:
            yield f"{repeats} questions were asked again that had been answered"
        if run["status"] in LIVE:
            yield f"is still {run['status']}"
            return
        faults = [*self._faults_of_end(run, attempt)]
        faults += await _faults_of_events(self.http, f"{path}/events")
        if await self._differs_from_unbroken(run, attempt):
            faults.append("its result differs from an unbroken run's")
        for fault in faults:
            yield fault

    def _faults_of_end(self, run: dict[str, Any], attempt: Attempt) -> Iterator[str]:
        """Yield what is wrong with the end of a durable run."""
        status = run["status"]
        is_done = status == "done"
        if not is_done:
            slug = slug_of(run["problem"])
            self._count_problem(slug)
            if slug not in SLUGS:
                yield f"ended as {status} with the problem '{slug}'"
        if bool(run["result"]) != is_done or bool(run["problem"]) == is_done:
            yield f"is {status}, which its result or its problem does not say"
        if attempt.outcome == RESULT and not is_done:
            yield f"its client was told a result, but it is {status}"
        if status == "cancelled" and attempt.outcome != LEFT:
            yield f"is cancelled, but its client did not leave; it was told '{attempt.outcome}'"

    async def _differs_from_unbroken(self, run: dict[str, Any], attempt: Attempt) -> bool:
        """Do a run once more without a fault, and return whether its result is another."""
        # A run that found no model says so in its result, and the model's log does not.
        has_failed = attempt.mark in self._failed or not _statuses(run["result"]) <= {"ok"}
        if run["status"] != "done" or has_failed:
            return False
        answer = await self.http.post(f"{self.url}/v1/{run['kind']}", json=attempt.body)
        if _figures(answer.json()) != _figures(run["result"]):
            return True
        self.verdict.equal += 1
        return False


async def _faults_of_events(http: httpx.AsyncClient, url: str) -> list[str]:
    """Return what is wrong with the events that are kept of a run that has ended."""
    async with http.stream("GET", url) as answer:
        if answer.status_code != 200:
            return [f"its events cannot be read: {answer.status_code}"]
        events = [(number, name) async for number, name, _ in events_of(answer)]
    numbers = [number for number, _ in events if number]
    names = [name for _, name in events]

    faults = []
    if numbers != [*range(1, len(numbers) + 1)]:
        faults.append(f"its events are numbered {numbers}")
    ends = sum(name in ("end", "error") for name in names)
    is_last_an_end = bool(names) and names[-1] in ("end", "error")
    if ends != 1 or not is_last_an_end:
        faults.append(f"its events end {ends} times: {names}")
    return faults


def _statuses(result: Any) -> set[str]:
    """Return all statuses in a result: of replies of models, and of what was read from them."""
    statuses: set[str] = set()
    parts = []
    if isinstance(result, dict):
        parts = [*result.values()]
        if "status" in result:
            statuses.add(str(result["status"]))
    elif isinstance(result, list):
        parts = result
    for part in parts:
        statuses |= _statuses(part)
    return statuses


def _figures(result: Any) -> Any:
    """Return a result without what it took."""
    if isinstance(result, dict):
        return {key: _figures(value) for key, value in result.items() if key != "usage"}
    if isinstance(result, list):
        return [_figures(part) for part in result]
    return result


def _read_log(log: Path) -> tuple[Counter[str], set[str]]:
    """Return how often each run asked again what had been answered, and whose model failed."""
    answered: set[tuple[str, str]] = set()
    repeats: Counter[str] = Counter()
    failed: set[str] = set()
    for line in log.read_text(encoding="ascii").splitlines():
        mark, digest, outcome = line.split(" ")
        repeats[mark] += (mark, digest) in answered
        if outcome == ANSWERED:
            answered.add((mark, digest))
        elif outcome != CLIENT_LEFT:
            failed.add(mark)
    return repeats, failed
