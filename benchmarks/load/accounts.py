"""Holding what clients were told against what the service and the model server have written down.

Every run that was accepted must end, with a result or a problem of a known type; once; and no
question of it that the model had answered may be asked again, but for the step that a worker was in
when it was killed. A durable run has the result of the same run without a fault, unless its
model failed. Of an ephemeral run nothing may be stored: what its client was told is its end.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.load.clients import ACCEPTED, GONE, LEFT, RESULT, Attempt, events_of, slug_of
from benchmarks.load.model import ANSWERED, MARK
from benchmarks.load.model import LEFT as CLIENT_LEFT
from fairqr.base import errors

PAGE = 100
AT_ONCE = 8
"""Questions of one run that are under way at the same time, at the most."""
LIVE = ("queued", "running")
DURABLE = ("background", "question", "return")
"""The ways of asking that make a durable run."""
KINDS = [it for it in vars(errors).values() if isinstance(it, type)]
SLUGS = {it.slug for it in KINDS if issubclass(it, errors.FairqrError)} - {"error"}
"""All errors that a user may be told."""
REFUSED = "busy"


@dataclass(slots=True)
class Verdict:
    """What became of the runs of some clients.

    Attributes:
        accepted: Runs that the service took on.
        results: Of these, how many have one.
        problems: Those that failed or were cancelled, by the slug of the problem.
        refused: How often clients were told at once that it cannot be, or reached nobody.
        durable: Of those accepted, how many would outlive their client and their worker.
        equal: Of these, how many were compared with the same run without a fault, and are equal.
        resumed: Those that were begun more than once.
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


async def settled(http: httpx.AsyncClient, url: str, seconds: float) -> list[str]:
    """Wait until no run is live, and say how many still are after so many seconds."""
    end, live = time.monotonic() + seconds, 1
    while live and time.monotonic() < end:
        live = 0
        for status in LIVE:
            answer = await http.get(f"{url}/v1/runs", params={"status": status, "limit": PAGE})
            live += len(answer.raise_for_status().json()["runs"])
        await asyncio.sleep(0.1 if live else 0)
    return [f"{live} runs did not end"] if live else []


async def runs_of(http: httpx.AsyncClient, url: str) -> list[dict[str, Any]]:
    """Return the summaries of all runs that the service lists."""
    found: dict[str, dict[str, Any]] = {}
    page, parameters = [{}] * PAGE, {"limit": PAGE}
    while len(page) == PAGE:
        answer = await http.get(f"{url}/v1/runs", params=parameters)
        page = answer.raise_for_status().json()["runs"]
        found |= {run["id"]: run for run in page}
        if page:
            parameters["before"] = page[-1]["created"]
    return [*found.values()]


class Judge:
    """Holds attempts against the runs of the service and the questions of the model.

    Args:
        http: To ask the service with.
        url: Of a worker.
        log: Of the model server.
    """

    def __init__(self, http: httpx.AsyncClient, url: str, log: Path) -> None:
        self.http, self.url, self.verdict = http, url, Verdict()
        self._rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._again, self._failed = _repeats(log)
        self._gate = asyncio.Semaphore(16)

    async def judge(self, attempts: Sequence[Attempt]) -> Verdict:
        """Return what became of the attempts of clients that have ended."""
        for summary in await runs_of(self.http, self.url):
            if mark := MARK.search(summary["query"]):
                self._rows[mark[0]].append(summary)
        await asyncio.gather(*map(self._look, attempts))
        return self.verdict

    async def _look(self, attempt: Attempt) -> None:
        wrong = [*attempt.faults]
        if attempt.told in ("untyped", "internal"):
            wrong.append(f"told an error without a type, with status {attempt.status}")
        self.verdict.again += self._again[attempt.mark]
        async with self._gate:
            look = self._durable if attempt.way in DURABLE else self._ephemeral
            wrong += [it async for it in look(attempt)]
        self.verdict.violations.extend(f"{attempt.way} {attempt.mark}: {it}" for it in wrong)

    def _failed_with(self, slug: str) -> None:
        self.verdict.problems[slug] = self.verdict.problems.get(slug, 0) + 1

    async def _ephemeral(self, attempt: Attempt) -> AsyncIterator[str]:
        """Count what became of an ephemeral run, and yield what was wrong."""
        if self._rows[attempt.mark]:
            yield "it is stored, though nobody asked for that"
        if again := self._again[attempt.mark]:
            yield f"{again} questions were asked again that had been answered"
        if attempt.told == REFUSED or not (attempt.status or attempt.run):
            self.verdict.refused += 1
            return
        self.verdict.accepted += 1
        self.verdict.results += attempt.told == RESULT
        if attempt.told != RESULT:
            self._failed_with(attempt.told)
            if attempt.told not in {*SLUGS, LEFT, GONE}:
                yield f"ended with the problem '{attempt.told}'"

    async def _durable(self, attempt: Attempt) -> AsyncIterator[str]:
        """Count what became of a durable run, and yield what was wrong."""
        rows, again = self._rows[attempt.mark], self._again[attempt.mark]
        if not rows:
            self.verdict.refused += 1
            if attempt.told in (RESULT, ACCEPTED) or attempt.run:
                yield f"lost: told '{attempt.told}', but there is no such run"
            return
        if len(rows) > 1:
            yield f"there are {len(rows)} runs of it"
        self.verdict.accepted += 1
        self.verdict.durable += 1
        answer = await self.http.get(place := f"{self.url}/v1/runs/{rows[0]['id']}")
        if answer.status_code != 200:
            yield f"cannot be read: {answer.status_code}"
            return
        run: dict[str, Any] = answer.json()
        status, is_done = run["status"], run["status"] == "done"
        self.verdict.resumed += run["attempts"] > 1
        self.verdict.results += is_done
        if again > AT_ONCE * max(0, run["attempts"] - 1):
            yield f"{again} questions were asked again that had been answered"
        if status in LIVE:
            yield f"is still {status}"
            return
        if not is_done:
            self._failed_with(slug := slug_of(run["problem"]))
            if slug not in SLUGS:
                yield f"ended as {status} with the problem '{slug}'"
        if bool(run["result"]) != is_done or bool(run["problem"]) == is_done:
            yield f"is {status}, which its result or its problem does not say"
        if attempt.told == RESULT and not is_done:
            yield f"its client was told a result, but it is {status}"
        if status == "cancelled" and attempt.told != LEFT:
            yield f"is cancelled, but its client did not leave; it was told '{attempt.told}'"
        for wrong in await _wrong_events(self.http, f"{place}/events"):
            yield wrong
        # What found no model says so in its result, and the model's log nothing.
        if is_done and attempt.mark not in self._failed and _statuses(run["result"]) <= {"ok"}:
            answer = await self.http.post(f"{self.url}/v1/{run['kind']}", json=attempt.body)
            if _figures(answer.json()) == _figures(run["result"]):
                self.verdict.equal += 1
            else:
                yield "its result differs from an unbroken run's"


async def _wrong_events(http: httpx.AsyncClient, url: str) -> list[str]:
    """Return what is wrong with the events that are kept of a run that is over."""
    async with http.stream("GET", url) as answer:
        if answer.status_code != 200:
            return [f"its events cannot be read: {answer.status_code}"]
        events = [(number, name) async for number, name, _ in events_of(answer)]
    numbers, names = [number for number, _ in events if number], [name for _, name in events]
    wrong = []
    if numbers != [*range(1, len(numbers) + 1)]:
        wrong.append(f"its events are numbered {numbers}")
    ends = [place for place, name in enumerate(names, 1) if name in ("end", "error")]
    if ends != [len(names)]:
        wrong.append(f"its events end {len(ends)} times: {names}")
    return wrong


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


def _repeats(log: Path) -> tuple[Counter[str], set[str]]:
    """Return how often each run asked again what had been answered, and whose model failed."""
    answered: set[tuple[str, str]] = set()
    again: Counter[str] = Counter()
    failed: set[str] = set()
    for line in log.read_text(encoding="ascii").splitlines():
        mark, digest, outcome = line.split(" ")
        again[mark] += (mark, digest) in answered
        if outcome == ANSWERED:
            answered.add((mark, digest))
        elif outcome != CLIENT_LEFT:
            failed.add(mark)
    return again, failed
