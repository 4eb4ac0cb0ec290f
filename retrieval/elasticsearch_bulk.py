"""Writing to Elasticsearch in bulk: in bounded chunks, with a result for each document."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from elasticsearch import AsyncElasticsearch

from fairqr.errors import IndexNotFoundError, IndexUnavailableError
from fairqr.retrieval.elasticsearch_client import Server, reason_of

__all__ = ["Action", "Outcome", "Tally", "bulk"]

CHUNK_DOCUMENTS = 500
CHUNK_CHARACTERS = 4_000_000
BUSY = frozenset({429, 502, 503, 504})
"""What may succeed later, for a single document; 500 is also what a failing pipeline gives."""


@dataclass(frozen=True, slots=True)
class Action:
    """One document to write or to delete.

    Attributes:
        verb: ``create`` refuses an id that is there, ``index`` replaces it.
        id: Of the document.
        entry: Its stored JSON; empty for ``delete``.
        number: Its place among the documents, from 1.
        version: The ``_seq_no`` and ``_primary_term`` of the document that it replaces; where that
            has changed meanwhile, the outcome is a conflict, 409.
    """

    verb: Literal["create", "index", "delete"]
    id: str
    entry: str
    number: int
    version: tuple[int, int] | None = None

    def lines(self) -> list[str]:
        """Return the lines that a bulk request has for it."""
        about: dict[str, Any] = {"_id": self.id}
        if self.version:
            about["if_seq_no"], about["if_primary_term"] = self.version
        first = json.dumps({self.verb: about}, ensure_ascii=False)
        return [first, self.entry] if self.entry else [first]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an action.

    Attributes:
        action: What was asked.
        status: As of HTTP; 2xx is done, 404 is a document that was not there to delete.
        reason: Why it was refused; empty where it was not.
    """

    action: Action
    status: int
    reason: str = ""


class Tally:
    """Counts what was written and what was refused, and remembers the first refusal."""

    def __init__(self) -> None:
        self.written = 0
        self.refused = 0
        self.first: Outcome | None = None

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Count outcomes.

        Raises:
            IndexUnavailableError: All were refused for the server's sake, as by an overload or a
                full disk, so that the rest would not fare better.
        """
        hopeless = True
        for outcome in outcomes:
            if outcome.status < 300:
                self.written += 1
            else:
                self.refused += 1
                self.first = self.first or outcome
            hopeless = hopeless and (outcome.status in (401, 403, 429) or outcome.status >= 500)
        if hopeless:
            self.complain()

    def complain(self) -> None:
        """Raise an error where something was refused.

        Raises:
            IndexUnavailableError: It says how many were, and names the first.
        """
        if self.first:
            raise IndexUnavailableError(
                f"Elasticsearch refused {self.refused} of the {self.refused + self.written} "
                f"documents sent; the first is '{self.first.action.id}', status "
                f"{self.first.status} ({self.first.reason}); mend the cause and send them again."
            )


async def bulk(
    server: Server, index: str, actions: Iterable[Action], *, alias: bool
) -> AsyncIterator[list[Outcome]]:
    """Send actions in chunks, and yield the outcomes of each chunk, in order.

    The iterable is read in threads, a chunk at a time, since it may read from a file. What the
    server was too busy for is sent again, as often as the connection says.

    Args:
        server: Where to send them.
        index: An index or an alias.
        actions: What to write.
        alias: Refuse to write where the name is not an alias, so that none is created by accident.
    """
    chunks = _chunks(actions)
    while chunk := await asyncio.to_thread(next, chunks, None):
        yield await _send(server, index, chunk, alias)


def _chunks(actions: Iterable[Action]) -> Iterator[list[Action]]:
    chunk: list[Action] = []
    size = 0
    for action in actions:
        if chunk and (len(chunk) == CHUNK_DOCUMENTS or size + len(action.entry) > CHUNK_CHARACTERS):
            yield chunk
            chunk, size = [], 0
        chunk.append(action)
        size += len(action.entry)
    if chunk:
        yield chunk


class _Busy(Exception):  # noqa: N818  (never leaves this module)
    """Some actions of a chunk may succeed later; the status makes it one that is tried again."""

    status_code = 429


async def _send(server: Server, index: str, chunk: list[Action], alias: bool) -> list[Outcome]:
    outcomes: dict[int, Outcome] = {}

    async def attempt(client: AsyncElasticsearch) -> None:
        waiting = [
            place
            for place in range(len(chunk))
            if place not in outcomes or outcomes[place].status in BUSY
        ]
        lines: list[Any] = [line for place in waiting for line in chunk[place].lines()]
        answer = await client.bulk(
            index=index,
            operations=lines,
            require_alias=alias,
            filter_path=["items.*.status", "items.*.error"],
        )
        for place, item in zip(waiting, answer["items"], strict=True):
            outcomes[place] = _outcome(chunk[place], next(iter(item.values())))
        if any(outcome.status in BUSY for outcome in outcomes.values()):
            raise _Busy

    with suppress(_Busy):  # the outcomes say what is still refused
        await server.call(attempt)
    return [outcomes[place] for place in range(len(chunk))]


def _outcome(action: Action, item: dict[str, Any]) -> Outcome:
    error = item.get("error")
    if not error:
        return Outcome(action, item["status"])
    if error.get("type") == "index_not_found_exception":
        raise IndexNotFoundError(
            "The index was deleted while it was written to; create it with 'fairqr index create'."
        )
    return Outcome(action, item["status"], reason_of(error))
