"""What clients of the service asked for, and what they were told."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import httpx

RESULT = "result"
"""What a client was told that has what it asked for."""

GONE = "connection lost"
LEFT = "left"
ACCEPTED = "accepted"

Way = str
"""``search``, ``answer`` and ``probe`` wait for the result; ``keep`` waits for a durable search;
``stream`` reads all events, and ``leave`` only the first; ``background`` is told the id of a
search, and ``question`` that of an answer; ``return`` reads the first events of a kept run, leaves,
and comes back for the rest."""


@dataclass(slots=True)
class Attempt:
    """One thing that a client asked for.

    Attributes:
        mark: A word in its query that no other has.
        way: How it was asked for.
        body: What was asked for.
        told: ``result``; the slug of a problem; or what else became of it.
        status: Of HTTP, 0 where there was none.
        run: The id of the run, where it was told.
        began, ended: On the monotonic clock, in seconds.
        faults: What was wrong with the events that it was told.
    """

    mark: str
    way: Way
    body: dict[str, Any] = field(default_factory=dict)
    told: str = GONE
    status: int = 0
    run: str | None = None
    began: float = 0.0
    ended: float = 0.0
    faults: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """From the request to the end of the answer."""
        return self.ended - self.began


async def read(
    answer: httpx.Response, attempt: Attempt, leave_after: int | None, last: int = 0
) -> int:
    """Read a stream, and note what it told.

    Args:
        answer: Whose body is the stream.
        attempt: To note it in.
        leave_after: Leave after the event of this number; None reads to the end.
        last: The number of the last event that is known.

    Returns:
        The number of the last event that was read.
    """
    attempt.status = answer.status_code
    if answer.status_code != 200:
        attempt.told = slug_of(await answer.aread())
        return last
    attempt.told = GONE
    attempt.run = run_of(answer) or attempt.run
    async with aclosing(events_of(answer)) as events:
        async for number, name, data in events:
            if attempt.told != GONE:
                attempt.faults.append(f"{name} after the end")
            if number and number != last + 1:
                attempt.faults.append(f"event {number} after {last}")
            last = number or last
            if name == "run":
                attempt.run = data.get("id") or attempt.run
            elif name == "end":
                attempt.told = RESULT
            elif name == "error":
                attempt.told = str(data.get("type", "")).rpartition(":")[2] or "untyped"
            elif leave_after is not None and last >= leave_after:
                attempt.told = LEFT
                break
    return last


async def events_of(
    answer: httpx.Response,
) -> AsyncGenerator[tuple[int, str, dict[str, Any]], None]:
    """Yield the number (0 where there is none), the name and the data of each event."""
    number, name, data = 0, "", ""
    async for line in answer.aiter_lines():
        if not line:
            if name:
                yield number, name, json.loads(data) if data else {}
            number, name, data = 0, "", ""
        elif line.startswith("id:"):
            number = int(line[3:])
        elif line.startswith("event:"):
            name = line[6:].strip()
        elif line.startswith("data:"):
            data += line[5:].strip()


def run_of(answer: httpx.Response) -> str | None:
    """Return the id of the run that an answer is about, if it names one."""
    place: str = answer.headers.get("location", "")
    return place.rpartition("/")[2] or answer.headers.get("x-request-id")


def slug_of(content: bytes) -> str:
    """Return which problem a body is."""
    try:
        kind = json.loads(content)["type"]
    except (ValueError, KeyError, TypeError):
        return "untyped"
    return str(kind).rpartition(":")[2]
