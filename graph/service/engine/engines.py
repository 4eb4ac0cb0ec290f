"""The search engines of a process: each is opened once, and closed when nobody uses it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fairqr.base.errors import one_line
from fairqr.retrieval.encoders.opening import AUTO
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.engines.tantivy.store import Announce
from fairqr.retrieval.sources.catalog import Catalog
from fairqr.retrieval.sources.corpus import BUILT_IN
from fairqr.retrieval.sources.source import Source

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Opened:
    """A search engine that is open, or being opened.

    Attributes:
        stamp: Of the index or source as it was opened.
        opening: The task that opens the engine.
        users: How many use it; one of them is the list of engines itself.
    """

    stamp: str
    opening: asyncio.Task[SearchEngine]
    users: int = 1

    @property
    def failed(self) -> bool:
        done = self.opening
        return done.done() and (done.cancelled() or done.exception() is not None)

    async def close(self) -> None:
        """Close the engine, or stop opening it."""
        self.opening.cancel()
        await asyncio.wait([self.opening])
        if not self.failed:
            try:
                await self.opening.result().aclose()
            except Exception as error:
                log.warning("An engine could not be closed: %s", one_line(error))


class Engines:
    """Search engines, opened when they are first used.

    Args:
        catalog: What can be searched.
        sources: The sources whose files the configuration lists, by name.
    """

    def __init__(self, catalog: Catalog, sources: Mapping[str, Source]) -> None:
        self._catalog = catalog
        self._sources = sources
        self._opened: dict[tuple[str, str], _Opened] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def lend(
        self, corpus: str, retriever: str = AUTO, progress: Announce | None = None
    ) -> AsyncIterator[SearchEngine]:
        """Lend a search engine; open or build it if necessary.

        Args:
            corpus: The name of a source, an index or a built-in corpus; never a path.
            retriever: See :data:`fairqr.retrieval.encoders.opening.RETRIEVERS`.
            progress: See :meth:`Catalog.resolve`.

        Raises:
            IndexNotFoundError: The index does not exist.
            IndexUnavailableError: It cannot be reached.
        """
        fixed = self._sources.get(corpus) or (corpus if corpus in BUILT_IN else None)
        # The stamp of an index or an attached source changes when it is replaced.
        stamp = "" if fixed else self._catalog.stamp(corpus)
        key = (corpus, retriever)
        known = opened = self._opened.get(key)
        if opened is None or opened.failed or opened.stamp != stamp:
            # `open` takes only names, so what a client names is never the path of a file.
            found = (
                self._catalog.resolve(fixed, retriever=retriever, progress=progress)
                if fixed
                else self._catalog.open(corpus, retriever=retriever, progress=progress)
            )
            opening = asyncio.create_task(found)
            # Nobody may be left to take the error.
            opening.add_done_callback(lambda done: done.cancelled() or done.exception())
            opened = self._opened[key] = _Opened(stamp, opening)
        opened.users += 1
        try:
            if known is not None and known is not opened:
                self._release(known)
            yield await asyncio.shield(opened.opening)
        finally:
            self._release(opened)

    def _release(self, opened: _Opened) -> None:
        """Count a user less, and close the engine after the last one, who may leave meanwhile."""
        opened.users -= 1
        if not opened.users:
            task = asyncio.create_task(opened.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all search engines, and stop what is being opened."""
        opened = [*self._opened.values()]
        self._opened.clear()
        await asyncio.gather(*(one.close() for one in opened), *self._closing)
