"""Answers requests with fair lists, made of whole windows of hits that the cluster returns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import httpx
from starlette.responses import Response

from fairqr.graph.integrations.logged import RERANKED
from fairqr.graph.service.proxy.cluster import Cluster, answered
from fairqr.graph.service.proxy.filters import filtered
from fairqr.graph.service.proxy.first_pages import FirstPages
from fairqr.graph.service.proxy.large import (
    LARGE,
    REMEMBERED,
    page_by_ids,
    with_documents,
    without_documents,
)
from fairqr.graph.service.proxy.pages import ShownReply
from fairqr.graph.service.proxy.reading import ParsedRequest
from fairqr.graph.service.proxy.records import Outcome, Record
from fairqr.graph.service.proxy.remembered import Remembered
from fairqr.graph.service.proxy.requests import ProxiedSearch, UnavailableError
from fairqr.graph.service.proxy.reranking import as_asked
from fairqr.graph.service.proxy.seen import Seen
from fairqr.graph.service.proxy.watching import NOT_MADE, Watcher
from fairqr.graph.service.proxy.worker import Worker

UNFINISHED = 60.0
"""Seconds for which asynchronous searches of an index pass after one that took too long."""


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


class FairAnswers:
    """Answers requests with fair lists, and records what became of their searches.

    Args:
        cluster: The cluster.
        workers: Re-rank, by index.
        within: Seconds that re-ranking a search may take.
        first_pages: In which order first pages went out.
        seen: Records lists.
        watcher: Finds out what was shown where no list was made.

    Attributes:
        unfinished: The indexes whose asynchronous searches took too long a moment ago.
    """

    def __init__(
        self,
        cluster: Cluster,
        workers: Mapping[str, Worker],
        within: float,
        first_pages: FirstPages,
        seen: Seen,
        watcher: Watcher,
    ) -> None:
        self.unfinished = Remembered(UNFINISHED)
        self._cluster = cluster
        self._workers = workers
        self._within = within
        self._first_pages = first_pages
        self._seen = seen
        self._watcher = watcher
        self._large = Remembered(REMEMBERED)

    async def answer(self, parsed: ParsedRequest) -> Response:
        """Answer with fair lists, and with the cluster's own where there are none.

        Raises:
            RefusedError: The cluster's error is the reply.
            UnavailableError: The cluster has to be asked for its own reply.
        """
        narrowed = self._without_documents(parsed)
        if narrowed is not None:
            return await self._answer_by_ids(parsed, narrowed)

        reply, text = await self._windows(parsed, parsed.with_windows())
        until = time.monotonic() + self._within * len(parsed.searches)
        lists: list[Listed] = []
        for index, searches in _by_index(parsed.searches):
            listed = await self._listed(index, searches, text, until)
            lists.append(listed)
            text = listed.text

        outcomes: list[Outcome] = []
        for listed in lists:
            outcomes += [outcome for search, outcome in listed.by_search() if search.fair]
        header = _header(outcomes, parsed.reasons)
        response = await _response(parsed, reply, text, header)
        self._record(lists)
        shown = ShownReply(text.encode(), "")
        for page in parsed.pages:
            self._watcher.page(page, shown)
        return response

    def _without_documents(self, parsed: ParsedRequest) -> ProxiedSearch | None:
        """Return the only search of a request without its large documents, if it has them."""
        search = parsed.searches[0]
        if len(parsed.lines) > 1 or search.index not in self._large:
            return None
        return without_documents(search, parsed.lines[0], parsed.parameters)

    async def _answer_by_ids(self, parsed: ParsedRequest, search: ProxiedSearch) -> Response:
        """Answer with a fair list of large documents.

        Args:
            parsed: The request.
            search: Its only search, for a window without documents.

        Raises:
            RefusedError: The cluster's error is the reply.
            UnavailableError: The cluster has to be asked for its own reply.
        """
        reply, window = await self._windows(parsed, [search.body])
        until = time.monotonic() + self._within
        listed = await self._listed(search.index, [search], window, until)

        text = listed.text
        hits = await asyncio.to_thread(ShownReply(text.encode(), "").hits, search.line)
        if hits:
            page = page_by_ids(parsed.lines[0], hits)
            _, documents = await self._windows(parsed, [page])
            text = await asyncio.to_thread(with_documents, text, documents, search)

        header = _header(listed.outcomes, parsed.reasons)
        response = await _response(parsed, reply, text, header)
        self._record([listed])
        return response

    async def _windows(
        self, parsed: ParsedRequest, lines: Sequence[object]
    ) -> tuple[httpx.Response, str]:
        """Ask for whole windows, and learn how large they are, and whether they come at once.

        Args:
            parsed: The request.
            lines: The lines of the body with windows.

        Raises:
            RefusedError: The cluster's error is the reply.
            UnavailableError: The cluster has to be asked for its own reply.
        """
        indexes = {search.index for search in parsed.searches}
        try:
            reply, text = await self._cluster.windows(parsed.request, lines)
        except UnavailableError as error:
            reason = str(error)
            if reason == "long":
                self._large.add(*indexes)
            if reason == "async":
                self.unfinished.add(*indexes)
            raise
        if len(parsed.searches) == 1 and len(text) > LARGE:
            self._large.add(*indexes)
        return reply, text

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

        seconds = time.monotonic() - started
        listed = Listed(searches, outcomes, window, text, seconds)
        for search, outcome in listed.by_search():
            self._first_pages.add(search, outcome)
        return listed

    def _record(self, lists: Sequence[Listed]) -> None:
        """Record what became of searches, or have their windows looked at."""
        for listed in lists:
            for search, outcome in listed.by_search():
                self._record_search(search, outcome, listed)

    def _record_search(self, search: ProxiedSearch, outcome: Outcome, listed: Listed) -> None:
        if isinstance(outcome, str):
            self._record_without_list(search, outcome, listed.window)
            return
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
        self._watcher.window(search, name, window)


def _by_index(searches: Sequence[ProxiedSearch]) -> Iterator[tuple[str, list[ProxiedSearch]]]:
    """Yield the searches of each index."""
    indexes = dict.fromkeys(search.index for search in searches)
    for index in indexes:
        yield index, [search for search in searches if search.index == index]


async def _response(
    parsed: ParsedRequest, reply: httpx.Response, text: str, header: str
) -> Response:
    """Answer a request with what its client wants to see of a reply.

    Args:
        parsed: The request.
        reply: The cluster's reply, whose headers count.
        text: The reply with fair lists.
        header: What became of the request.
    """
    filter_path = parsed.parameters.get("filter_path")
    if filter_path:
        text = await asyncio.to_thread(filtered, text, filter_path)
    return answered(parsed.request, reply, text.encode(), header)


def _header(fair: Sequence[Outcome], reasons: Sequence[str]) -> str:
    """Say what became of a request, as its reply's header has it.

    Args:
        fair: What became of the searches that should have fair lists.
        reasons: Why the other searches passed.
    """
    records: list[Record] = []
    passed = [*reasons]
    for outcome in fair:
        if isinstance(outcome, str):
            passed.append(outcome)
        else:
            records.append(outcome)
    if not records:
        return f"passed; {passed[0]}"
    header = f"re-ranked; {_how_ranked(records)}"
    if passed:
        header += f"; passed {len(passed)}, {passed[0]}"
    return header


def _how_ranked(records: Sequence[Record]) -> str:
    """Say by what the fair lists of a reply were made, and whether chance swapped ranks."""
    text = str(min(record["by"] for record in records))
    models = [record["model"] for record in records if record["model"]]
    if models:
        text += f", words of {models[0]}"
    swaps = [record["swap"] for record in records if "swap" in record]
    swapped_ranks = [swap["rank"] for swap in swaps if swap["is_swapped"]]
    if swapped_ranks:
        text += f", ranks 1 and {swapped_ranks[0]} swapped"
    return text
