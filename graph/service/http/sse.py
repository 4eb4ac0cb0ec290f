"""Server-sent events: what happens in a run, while it happens."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fairqr.base.errors import FairqrError
from fairqr.graph.service.records import Event

HEARTBEAT = b": still here\n\n"
_LINE_BREAKS = re.compile("[\u0085\u2028\u2029]")

READ_WITHIN = 60.0
"""Seconds that a client has to read what we send; after that we close its connection."""


def encoded(event: Event) -> bytes:
    """Return an event in the form of the stream, with one line of data."""
    number = f"id: {event.number}\n" if event.number else ""
    return f"{number}event: {event.name}\n".encode() + data_line(event.data)


def data_line(data: Mapping[str, Any]) -> bytes:
    """Return the last lines of an event: its data and an empty line.

    We escape Unicode's line breaks, since some clients split lines there.
    """
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    text = _LINE_BREAKS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return f"data: {text}\n\n".encode(errors="replace")


async def _all_encoded(events: AsyncIterator[Event]) -> AsyncGenerator[bytes, None]:
    async for event in events:
        yield encoded(event)


class EventStream(Response):
    """A stream of events. It ends after the last event, or when the client disconnects.

    We take an event only after the previous one was sent, so a slow client only delays itself, and
    nothing piles up here.

    Args:
        source: Opens the events; closed when the stream ends, for whatever reason.
        heartbeat: The seconds of silence after which we send a comment.
        headers: More headers.
        write: Turns events into bytes; defaults to our own form.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        source: AbstractAsyncContextManager[AsyncGenerator[Event, None]],
        heartbeat: float,
        headers: dict[str, str] | None = None,
        write: Callable[[AsyncIterator[Event]], AsyncGenerator[bytes, None]] = _all_encoded,
    ) -> None:
        # Proxies such as nginx must not buffer events.
        sent = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", **(headers or {})}
        super().__init__(headers=sent)
        del self.headers["content-length"]
        self._source = source
        self._heartbeat = heartbeat
        self._write = write

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events, or stop when the client disconnects."""
        async with self._source as events, aclosing(self._write(events)) as pieces:
            sending = asyncio.create_task(self._send(pieces, send))
            leaving = asyncio.create_task(gone(receive))
            try:
                await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (sending, leaving):
                    task.cancel()
                await asyncio.wait({sending, leaving})
        if not sending.cancelled():
            with suppress(OSError, TimeoutError):  # the client reads nothing
                sending.result()

    async def _send(self, pieces: AsyncIterator[bytes], send: Send) -> None:
        """Send all pieces."""

        async def say(body: bytes, *, more: bool = True) -> None:
            async with asyncio.timeout(READ_WITHIN):
                await send({"type": "http.response.body", "body": body, "more_body": more})

        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        await say(HEARTBEAT)  # sends the headers at once
        coming: asyncio.Task[bytes] | None = None
        try:
            while True:
                coming = coming or asyncio.ensure_future(anext(pieces))
                done, _ = await asyncio.wait({coming}, timeout=self._heartbeat)
                if not done:
                    await say(HEARTBEAT)
                    continue
                try:
                    piece = coming.result()
                except (StopAsyncIteration, FairqrError):
                    # If the database is away, the run still goes on. A client that misses the last
                    # event knows that it should reconnect.
                    break
                coming = None
                await say(piece)
        finally:
            if coming is not None and not coming.done():
                coming.cancel()
                await asyncio.wait({coming})
        await say(b"", more=False)


async def gone(receive: Receive) -> None:
    """Wait until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
