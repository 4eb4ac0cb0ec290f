"""The proxy: an ASGI application that passes everything on, and re-ranks what it can."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from socket import socket
from typing import Any
from urllib.parse import unquote

import httpx
from anyio import create_task_group
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from fairqr.base.errors import ConfigError
from fairqr.graph.service.http.serving import Server
from fairqr.graph.service.proxy.answers import FairAnswers
from fairqr.graph.service.proxy.cluster import Cluster, RefusedError, TakeReply, has_body
from fairqr.graph.service.proxy.encoding import TextEncoder
from fairqr.graph.service.proxy.first_pages import FirstPages
from fairqr.graph.service.proxy.pages import PassingPage, ShownReply
from fairqr.graph.service.proxy.reading import SEARCH, ParsedRequest, Reader
from fairqr.graph.service.proxy.requests import ProxiedSearch, UnavailableError
from fairqr.graph.service.proxy.seen import Seen
from fairqr.graph.service.proxy.settings import ProxySettings
from fairqr.graph.service.proxy.templates import rendered
from fairqr.graph.service.proxy.watching import PATIENT, Watcher
from fairqr.graph.service.proxy.worker import Worker

GRACE = 20
"""Seconds that requests under way have when the proxy is told to end."""

log = logging.getLogger(__name__)


class Proxy:
    """Stands in front of a cluster.

    Args:
        settings: What it does.
        workers: Re-rank, by index.

    Attributes:
        cluster: The cluster.
        watcher: Finds out what was shown, once it is.
    """

    def __init__(self, settings: ProxySettings, workers: Mapping[str, Worker]) -> None:
        self.cluster = Cluster(settings)
        self._settings = settings
        self._workers = workers
        self._first_pages = FirstPages()
        self._reader = Reader(settings, workers, self._first_pages)
        self._seen = Seen(settings)
        self.watcher = Watcher(workers, self._seen)
        self._answers = FairAnswers(
            self.cluster, workers, settings.within, self._first_pages, self._seen, self.watcher
        )
        self._refusing: set[str] = set()
        """The indexes of which the cluster returns no whole windows."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, unless its client leaves: then the cluster's reply is not awaited."""
        is_read = asyncio.Event()

        async def receive_body() -> Message:
            message = await receive()
            if not message.get("more_body"):
                is_read.set()
            return message

        async def end_with_client() -> None:
            await is_read.wait()
            while (await receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

        request = Request(scope, receive_body)
        if not has_body(request):
            is_read.set()
        async with AsyncExitStack() as stack, create_task_group() as tasks:
            tasks.start_soon(end_with_client)
            # Where a reply of the cluster breaks off, that to the client breaks off as well.
            with suppress(ClientDisconnect, httpx.TransportError):
                response = await self._answer(request, stack)
                await response(scope, receive_body, send)
            tasks.cancel_scope.cancel()

    async def _answer(self, request: Request, stack: AsyncExitStack) -> Response:
        raw_path = request.scope["raw_path"].decode("latin-1")
        path = SEARCH.fullmatch(unquote(raw_path))
        if path is None or request.method not in ("GET", "POST"):
            return await self.cluster.pass_on(request, stack, request.stream(), "no search")
        name = path["index"]
        reached = self._reader.reached(name) or self._reader.perhaps_reached(name)
        names_indexes_in_its_body = path["kind"] == "_msearch"
        if not reached and not names_indexes_in_its_body:
            return await self.cluster.pass_on(request, stack, request.stream(), "index")
        return await self._answer_search(request, stack, path)

    async def _answer_search(
        self, request: Request, stack: AsyncExitStack, path: re.Match[str]
    ) -> Response:
        """Answer a request for hits, perhaps of an index whose searches are re-ranked."""
        name = path["index"]
        body = b""
        pieces = request.stream()
        async for piece in pieces:
            body += piece
            if len(body) > self._settings.body:
                return await self._pass_unread(request, stack, _joined(body, pieces), name)
        try:
            parsed = await self._read(request, path, body)
        except RefusedError as refused:
            self._count_unread(name, "cluster")
            return refused.response
        except Exception:  # whatever is wrong with it, the cluster says so
            return await self._pass_unread(request, stack, body, name)

        if any(search.fair for search in parsed.searches):
            response = await self._reranked_or_passed(request, stack, body, parsed)
        else:
            response = await self._pass(request, stack, body, parsed)
        if self._settings.log:
            response.raw_headers.append((b"fairqr-search", parsed.id.encode()))
        return response

    async def _reranked_or_passed(
        self, request: Request, stack: AsyncExitStack, body: bytes, parsed: ParsedRequest
    ) -> Response:
        """Answer with fair lists, or pass the request on as it is where that does not work."""
        try:
            with self._expecting(parsed):
                return await self._answers.answer(parsed)
        except RefusedError as refused:
            for search in parsed.searches:
                self._seen.add_unseen(search, "cluster", "cluster")
            for page in parsed.pages:
                self.watcher.unread(page, "cluster")
            return refused.response
        except Exception as error:  # whatever it is, the cluster's own hits are shown
            reason = _in_a_word(error)
            for search in parsed.searches:
                self._first_pages.add(search, reason)
            passing = parsed.passing(reason)
            response = await self._pass(request, stack, body, passing)
            if reason == "cluster" and response.status_code == 200:
                self._say_it_refuses_windows({search.index for search in parsed.searches})
            return response

    def _say_it_refuses_windows(self, indexes: set[str]) -> None:
        """Say once of each index that the cluster answers a page of it, but no whole window."""
        for index in indexes - self._refusing:
            log.warning(
                "The cluster answers a search of '%s', but not for the first %d hits with their "
                "labels: its max_result_window may be below 'window', or a label's field may have "
                "another type now.",
                index,
                self._settings.indexes[index].window,
            )
        self._refusing |= indexes

    @contextmanager
    def _expecting(self, parsed: ParsedRequest) -> Iterator[None]:
        """Keep the workers free that will make the lists of a request."""
        with ExitStack() as stack:
            for index in {search.index for search in parsed.searches}:
                stack.enter_context(self._workers[index].expecting())
            yield

    async def _read(self, request: Request, path: re.Match[str], body: bytes) -> ParsedRequest:
        """Return the searches of a request, also that for which a template stands.

        Raises:
            RefusedError: The cluster's error is the reply.
            ValueError: The body is no JSON, or too long.
        """
        request, lines = self._reader.body_of(request, path, body)
        reason = ""
        if path["kind"] == "_async_search" and path["index"] in self._answers.unfinished:
            reason = "async"
        if path["template"]:
            try:
                request, lines = await self._rendered(request, path, lines)
            except UnavailableError:
                reason = "template"
        return self._reader.read(request, path, lines, reason)

    async def _rendered(
        self, request: Request, path: re.Match[str], lines: Sequence[Any]
    ) -> tuple[Request, list[Any]]:
        """Return the request for the search of a template, and the lines of its body.

        Raises:
            RefusedError: The cluster's error is the reply.
            UnavailableError: It stays a template.
        """
        if path["kind"] != "_search" or path["index"] not in self._settings.indexes:
            raise UnavailableError("template")
        return await rendered(self.cluster, request, lines[0])

    async def _pass_unread(
        self,
        request: Request,
        stack: AsyncExitStack,
        body: bytes | AsyncIterator[bytes],
        name: str | None,
    ) -> Response:
        """Pass a request on whose body is not read, and count it."""
        self._count_unread(name, "body")
        return await self.cluster.pass_on(request, stack, body, "body")

    def _count_unread(self, name: str | None, reason: str) -> None:
        """Count a request for each index that a name reaches, whatever it asks for."""
        for page in self._reader.unread(name, reason):
            self.watcher.unread(page, reason)

    async def _pass(
        self, request: Request, stack: AsyncExitStack, body: bytes, parsed: ParsedRequest
    ) -> Response:
        """Pass a request on as it is, and look afterwards at what was shown."""
        look = self._look_at(parsed.pages) if parsed.pages else None
        reason = parsed.reasons[0] if parsed.reasons else "shadow"
        response = await self.cluster.pass_on(request, stack, body, reason, look)
        for search in parsed.searches:
            if response.status_code == 200:
                stack.callback(self._look_at_window, parsed, search)
            else:  # whatever is wrong, asking again for more makes it no better
                self._seen.add_unseen(search, "cluster", "cluster")
        return response

    def _look_at(self, pages: Sequence[PassingPage]) -> TakeReply:
        """Return what has these pages looked at, once their reply is out."""

        def look(reply: bytes | None, packing: str) -> None:
            shown = ShownReply(reply, packing)
            for page in pages:
                self.watcher.page(page, shown)

        return look

    def _look_at_window(self, parsed: ParsedRequest, search: ProxiedSearch) -> None:
        """Have the window behind a page looked at that went out as it was."""
        lines = [search.body]
        alone = search
        if len(parsed.lines) > 1:
            lines = [parsed.lines[search.line - 1], search.body]
            alone = replace(search, line=1)

        async def window() -> str:
            _, reply = await self.cluster.windows(parsed.request, lines, PATIENT)
            return reply

        self.watcher.later(alone, "shadow", window)


def _in_a_word(error: Exception) -> str:
    """Return why nothing is re-ranked, and log what nobody expects."""
    if isinstance(error, UnavailableError):
        return str(error)
    log.exception("A search is not re-ranked.")
    return type(error).__name__


async def _joined(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece


async def serve(
    settings: ProxySettings, path: Path, listener: socket, started: Callable[[], None]
) -> None:
    """Serve until the process is told to end.

    Args:
        settings: What the file says.
        path: The file.
        listener: Where to listen.
        started: Called when clients can connect.
    """
    encoder = TextEncoder()
    workers = {index: Worker(path, index, encoder.add) for index in settings.indexes}
    try:
        proxy = Proxy(settings, workers)
        server = Server(
            proxy, lambda: asyncio.sleep(0), GRACE, date_header=False, **settings.certified()
        )
        server.config.load()
    except OSError as error:
        reason = (error.strerror or "it is no certificate").lower()
        raise ConfigError(f"A certificate cannot be read: {reason}.") from None

    lasting = [encoder.keep(), proxy.watcher.keep()]
    lasting += [worker.keep() for worker in workers.values()]
    tasks = [asyncio.create_task(coroutine) for coroutine in lasting]
    async with proxy.cluster.connections:
        await server.run_on(listener, started)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
