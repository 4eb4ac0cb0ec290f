"""The proxy: an ASGI application that passes everything on, and re-ranks what it can."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
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
from fairqr.graph.integrations.logged import RERANKED
from fairqr.graph.service.http.serving import Server
from fairqr.graph.service.proxy.asked import SEARCH, Asked, Reader
from fairqr.graph.service.proxy.cluster import (
    Cluster,
    RefusedError,
    answered,
    has_body,
    parameters_of,
)
from fairqr.graph.service.proxy.encoding import TextEncoder
from fairqr.graph.service.proxy.filters import filtered
from fairqr.graph.service.proxy.first_pages import FirstPages
from fairqr.graph.service.proxy.large import (
    LARGE,
    REMEMBERED,
    page_by_ids,
    with_documents,
    without_documents,
)
from fairqr.graph.service.proxy.ordering import Outcome, as_asked
from fairqr.graph.service.proxy.pages import PassingPage, ShownReply
from fairqr.graph.service.proxy.remembered import Remembered
from fairqr.graph.service.proxy.requests import ProxiedSearch, UnavailableError
from fairqr.graph.service.proxy.seen import Seen
from fairqr.graph.service.proxy.settings import ProxySettings
from fairqr.graph.service.proxy.templates import rendered
from fairqr.graph.service.proxy.watching import NOT_MADE, PATIENT, Watcher
from fairqr.graph.service.proxy.worker import Worker

GRACE = 20
"""Seconds that requests under way have when the proxy is told to end."""

UNFINISHED = 60.0
"""Seconds for which asynchronous searches of an index pass after one that took too long."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Listed:
    """The searches of an index in a reply.

    Attributes:
        searches: The searches.
        outcomes: What became of each.
        window: The reply with their whole windows.
        text: The reply with their pages.
        seconds: How long that took.
    """

    searches: Sequence[ProxiedSearch]
    outcomes: Sequence[Outcome]
    window: str
    text: str
    seconds: float

    def by_search(self) -> Iterator[tuple[ProxiedSearch, Outcome]]:
        """Return each search with what became of it."""
        return zip(self.searches, self.outcomes, strict=True)


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
        self._large = Remembered(REMEMBERED)
        self._unfinished = Remembered(UNFINISHED)
        self._refusing: set[str] = set()
        self.watcher = Watcher(workers, self._seen)

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
        path = SEARCH.fullmatch(unquote(request.scope["raw_path"].decode("latin-1")))
        if path is None or request.method not in ("GET", "POST"):
            return await self.cluster.pass_on(request, stack, request.stream(), "no search")
        name = path["index"]
        reached = self._reader.reached(name) or self._reader.perhaps_reached(name)
        names_indexes_in_its_body = path["kind"] == "_msearch"
        if not reached and not names_indexes_in_its_body:
            return await self.cluster.pass_on(request, stack, request.stream(), "index")

        body = b""
        pieces = request.stream()
        async for piece in pieces:
            body += piece
            if len(body) > self._settings.body:
                return await self._pass_unread(request, stack, _joined(body, pieces), name)
        try:
            asked = await self._read(request, path, body)
        except RefusedError as refused:
            self._count_unread(name, "cluster")
            return refused.response
        except Exception:  # whatever is wrong with it, the cluster says so
            return await self._pass_unread(request, stack, body, name)

        if any(search.fair for search in asked.searches):
            response = await self._reranked_or_passed(request, stack, body, asked)
        else:
            response = await self._pass(request, stack, body, asked)
        if self._settings.log:
            response.raw_headers.append((b"fairqr-search", asked.id.encode()))
        return response

    async def _reranked_or_passed(
        self, request: Request, stack: AsyncExitStack, body: bytes, asked: Asked
    ) -> Response:
        """Answer with fair lists, or pass the request on as it is where that does not work."""
        try:
            with self._expecting(asked):
                return await self._reranked(asked)
        except RefusedError as refused:
            for search in asked.searches:
                self._seen.add_unseen(search, "cluster", "cluster")
            for page in asked.pages:
                self.watcher.unread(page, "cluster")
            return refused.response
        except Exception as error:  # whatever it is, the cluster's own hits are shown
            why = _in_a_word(error)
            for search in asked.searches:
                self._first_pages.add(search, why)
            pages = [_as_page(search, why) for search in asked.searches]
            passing = replace(
                asked, searches=[], pages=[*asked.pages, *pages], whys=[why, *asked.whys]
            )
            response = await self._pass(request, stack, body, passing)
            if why == "cluster" and response.status_code == 200:
                self._say_it_refuses_windows({search.index for search in asked.searches})
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
    def _expecting(self, asked: Asked) -> Iterator[None]:
        """Keep the workers free that will make the lists of a request."""
        with ExitStack() as stack:
            for index in {search.index for search in asked.searches}:
                stack.enter_context(self._workers[index].expecting())
            yield

    async def _read(self, request: Request, path: re.Match[str], body: bytes) -> Asked:
        """Return the searches of a request, also that for which a template stands.

        Raises:
            RefusedError: The cluster's error is the reply.
            ValueError: The body is no JSON, or too long.
        """
        searching, lines = self._reader.body_of(request, path, body)
        is_unfinished = path["kind"] == "_async_search" and path["index"] in self._unfinished
        why = "async" if is_unfinished else ""
        if path["template"]:
            try:
                searching, lines = await self._rendered(searching, path, lines)
            except UnavailableError:
                why = "template"
        return self._reader.read(searching, path, lines, why)

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

    def _count_unread(self, name: str | None, why: str) -> None:
        """Count a request for each index that a name reaches, whatever it asks for."""
        for page in self._reader.unread(name, why):
            self.watcher.unread(page, why)

    async def _pass(
        self, request: Request, stack: AsyncExitStack, body: bytes, asked: Asked
    ) -> Response:
        """Pass a request on as it is, and look afterwards at what was shown."""
        look = self._look_at(asked.pages) if asked.pages else None
        why = asked.whys[0] if asked.whys else "shadow"
        response = await self.cluster.pass_on(request, stack, body, why, look)
        for search in asked.searches:
            if response.status_code == 200:
                stack.callback(self._look_at_window, asked, search)
            else:  # whatever is wrong, asking again for more makes it no better
                self._seen.add_unseen(search, "cluster", "cluster")
        return response

    def _look_at(self, pages: Sequence[PassingPage]) -> Callable[[bytes | None, str], None]:
        """Return what has these pages looked at, once their reply is out."""

        def look(reply: bytes | None, packing: str) -> None:
            shown = ShownReply(reply, packing)
            for page in pages:
                self.watcher.page(page, shown)

        return look

    def _look_at_window(self, asked: Asked, search: ProxiedSearch) -> None:
        """Have the window behind a page looked at that went out as it was."""
        lines = [search.body]
        alone = search
        if len(asked.lines) > 1:
            lines = [asked.lines[search.place - 1], search.body]
            alone = replace(search, place=1)

        async def window() -> str:
            _, reply = await self.cluster.windows(asked.request, lines, PATIENT)
            return reply

        self.watcher.later(alone, "shadow", window)

    async def _reranked(self, asked: Asked) -> Response:
        """Answer with fair lists, and with the cluster's own where there are none.

        Raises:
            RefusedError: The cluster's error is the reply.
            UnavailableError: The cluster has to be asked for its own reply.
        """
        small = self._without_documents(asked)
        if small is not None:
            return await self._reranked_by_ids(asked, small)
        reply, text = await self._windows(asked, asked.with_windows())
        until = time.monotonic() + self._settings.within * len(asked.searches)
        lists: list[Listed] = []
        for index, of_index in _by_index(asked.searches):
            listed = await self._listed(index, of_index, text, until)
            lists.append(listed)
            text = listed.text
        fair: list[Outcome] = []
        for listed in lists:
            fair += [outcome for search, outcome in listed.by_search() if search.fair]
        response = await _answered(asked, reply, text, _header(fair, asked.whys))
        self._record(lists)
        shown = ShownReply(text.encode(), "")
        for page in asked.pages:
            self.watcher.page(page, shown)
        return response

    async def _windows(self, asked: Asked, lines: Sequence[Any]) -> tuple[httpx.Response, str]:
        """Ask for whole windows, and learn how large they are, and whether they come at once.

        Args:
            asked: What is asked for.
            lines: The lines of the body.

        Raises:
            RefusedError: The cluster's error is the reply.
            UnavailableError: The cluster has to be asked for its own reply.
        """
        indexes = {search.index for search in asked.searches}
        try:
            reply, text = await self.cluster.windows(asked.request, lines)
        except UnavailableError as error:
            if str(error) == "long":
                self._large.add(*indexes)
            if str(error) == "async":
                self._unfinished.add(*indexes)
            raise
        if len(asked.searches) == 1 and len(text) > LARGE:
            self._large.add(*indexes)
        return reply, text

    def _without_documents(self, asked: Asked) -> ProxiedSearch | None:
        """Return the only search of a request without its large documents, if it has them."""
        search = asked.searches[0]
        if len(asked.lines) > 1 or search.index not in self._large:
            return None
        return without_documents(search, asked.lines[0], dict(parameters_of(asked.request)))

    async def _reranked_by_ids(self, asked: Asked, search: ProxiedSearch) -> Response:
        """Answer with a fair list of large documents.

        Args:
            asked: What is asked for.
            search: Its only search, for a window without documents.

        Raises:
            RefusedError: The cluster's error is the reply.
            UnavailableError: The cluster has to be asked for its own reply.
        """
        reply, window = await self._windows(asked, [search.body])
        until = time.monotonic() + self._settings.within
        listed = await self._listed(search.index, [search], window, until)
        text = listed.text
        hits = await asyncio.to_thread(ShownReply(text.encode(), "").hits, search.place)
        if hits:
            page = page_by_ids(asked.lines[0], hits)
            _, documents = await self._windows(asked, [page])
            text = await asyncio.to_thread(with_documents, text, documents, search)
        response = await _answered(asked, reply, text, _header(listed.outcomes, asked.whys))
        self._record([listed])
        return response

    async def _listed(
        self, index: str, searches: list[ProxiedSearch], window: str, until: float
    ) -> Listed:
        """Return what became of the searches of an index, and the reply with their pages.

        Raises:
            UnavailableError: The reply cannot be cut.
        """
        started = time.monotonic()
        outcomes: Sequence[Outcome]
        continued = None
        if self._first_pages.were_fair(searches):
            continued = await asyncio.to_thread(self._first_pages.continued, searches, window)
        if continued is not None:
            outcomes, text = continued
        else:
            try:
                outcomes, text = await self._workers[index].rerank(searches, window, until)
            except UnavailableError as error:
                outcomes = [str(error)] * len(searches)
                text = await asyncio.to_thread(as_asked, searches, window)
        listed = Listed(searches, outcomes, window, text, time.monotonic() - started)
        for search, outcome in listed.by_search():
            self._first_pages.add(search, outcome)
        return listed

    def _record(self, lists: Sequence[Listed]) -> None:
        """Record what became of searches, or have their windows looked at."""
        for listed in lists:
            for search, outcome in listed.by_search():
                if isinstance(outcome, str):
                    self._record_without_list(search, outcome, listed.window)
                    continue
                name = RERANKED if search.fair else "shadow"
                if search.start:
                    self._seen.add_unseen(search, name, "further page")
                else:
                    timed = outcome | {"seconds": round(listed.seconds, 6)}
                    self._seen.add_shown(search, name, timed)

    def _record_without_list(self, search: ProxiedSearch, reason: str, window: str) -> None:
        """Record a search that has no list; where it only came too late, it is made afterwards."""
        if reason not in NOT_MADE:
            self._seen.add_unseen(search, reason, reason)
            return
        name = reason if search.fair else "shadow"  # a shadow waits for no list
        self.watcher.window(search, name, window)


def _by_index(searches: Sequence[ProxiedSearch]) -> Iterator[tuple[str, list[ProxiedSearch]]]:
    """Yield the searches of each index."""
    for index in dict.fromkeys(search.index for search in searches):
        yield index, [search for search in searches if search.index == index]


async def _answered(asked: Asked, reply: httpx.Response, text: str, outcome: str) -> Response:
    """Answer a request with what its client wants to see of a reply.

    Args:
        asked: What is asked for.
        reply: The cluster's reply, whose headers count.
        text: The reply with fair lists.
        outcome: What became of the request.
    """
    filter_path = dict(parameters_of(asked.request)).get("filter_path")
    if filter_path:
        text = await asyncio.to_thread(filtered, text, filter_path)
    return answered(asked.request, reply, text.encode(), outcome)


def _header(fair: Sequence[Outcome], whys: Sequence[str]) -> str:
    """Say what became of a request, as its reply's header has it.

    Args:
        fair: What became of the searches that should have fair lists.
        whys: Why others passed.
    """
    records = [outcome for outcome in fair if not isinstance(outcome, str)]
    reasons = [outcome for outcome in fair if isinstance(outcome, str)]
    passed = [*whys, *reasons]
    if not records:
        return f"passed; {passed[0]}"
    header = f"re-ranked; {min(record['by'] for record in records)}"
    models = [record["model"] for record in records if record["model"]]
    if models:
        header += f", words of {models[0]}"
    swaps = [record["swap"] for record in records if "swap" in record]
    swapped_ranks = [swap["rank"] for swap in swaps if swap["is_swapped"]]
    if swapped_ranks:
        header += f", ranks 1 and {swapped_ranks[0]} swapped"
    if passed:
        header += f"; passed {len(passed)}, {passed[0]}"
    return header


def _in_a_word(error: Exception) -> str:
    """Return why nothing is re-ranked, and log what nobody expects."""
    if isinstance(error, UnavailableError):
        return str(error)
    log.exception("A search is not re-ranked.")
    return type(error).__name__


def _as_page(search: ProxiedSearch, why: str) -> PassingPage:
    """Return a search that passes."""
    outcome = why if search.fair else "shadow"
    return PassingPage(
        index=search.index,
        place=search.place,
        why=outcome,
        start=search.start,
        size=search.size,
        words=search.words,
        key=search.key,
        fair=search.fair,
        id=search.id,
        share=search.share,
    )


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
        why = (error.strerror or "it is no certificate").lower()
        raise ConfigError(f"A certificate cannot be read: {why}.") from None
    lasting = [encoder.keep(), proxy.watcher.keep()]
    lasting += [worker.keep() for worker in workers.values()]
    tasks = [asyncio.create_task(coroutine) for coroutine in lasting]
    async with proxy.cluster.connections:
        await server.run_on(listener, started)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
