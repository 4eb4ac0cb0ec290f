"""Server-sent events: what happens in a run, while it happens."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

from fastapi.sse import ServerSentEvent

from fairqr.base.errors import FairqrError
from fairqr.graph.service.http.answers import as_json
from fairqr.graph.service.records import Event

Events = AsyncGenerator[Event, None]


_LINE_BREAKS = {ord(each): f"\\u{ord(each):04x}" for each in "\u0085\u2028\u2029"}


def compact(data: Mapping[str, Any]) -> str:
    """Return the data of an event as one line of JSON.

    We escape Unicode's line breaks, since some clients split lines there.
    """
    return as_json(data).decode().translate(_LINE_BREAKS)


async def sent(events: AsyncIterator[Event]) -> AsyncGenerator[ServerSentEvent, None]:
    """Yield events in the form of the stream.

    If the database is away, the stream ends, and the run still goes on. A client that misses the
    last event knows that it should reconnect.
    """
    with suppress(FairqrError):
        async for event in events:
            number = str(event.number) if event.number else None
            yield ServerSentEvent(raw_data=compact(event.data), event=event.name, id=number)
