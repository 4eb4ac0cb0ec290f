"""The search engines of a process, opened once and closed when nobody uses them; documents."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from pydantic import BaseModel, Field

from fairqr.base.errors import DocumentNotFoundError, one_line
from fairqr.base.settings import is_web_address
from fairqr.retrieval.encoders.opening import AUTO
from fairqr.retrieval.engines.engine import Query, SearchEngine
from fairqr.retrieval.engines.tantivy.store import Announce
from fairqr.retrieval.sources.catalog import Catalog
from fairqr.retrieval.sources.corpus import BUILT_IN
from fairqr.retrieval.sources.documents import Document, value_at
from fairqr.retrieval.sources.source import Source

LONGEST_LINK = 2000
"""The most characters of a web address; browsers guarantee no more."""

LONGEST_LINE = 160
"""The most characters of a document's line."""

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Opened:
    """A search engine that is open, or being opened.

    Attributes:
        stamp: The stamp of the index or source as it was opened.
        opening: The task that opens the engine.
        users: How many use it; one of them is the list of engines itself.
    """

    stamp: str
    opening: asyncio.Task[SearchEngine]
    users: int = 1

    @property
    def failed(self) -> bool:
        if not self.opening.done():
            return False
        return self.opening.cancelled() or self.opening.exception() is not None

    async def close(self) -> None:
        """Close the engine, or stop opening it."""
        self.opening.cancel()
        await asyncio.wait([self.opening])
        if self.failed:
            return
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
        opened = self._open(corpus, retriever, progress)
        opened.users += 1
        try:
            yield await asyncio.shield(opened.opening)
        finally:
            self._release(opened)

    def _open(self, corpus: str, retriever: str, progress: Announce | None) -> _Opened:
        """Return the engine that is open, or one that begins to open now."""
        fixed: Source | str | None = self._sources.get(corpus)
        if fixed is None and corpus in BUILT_IN:
            fixed = corpus
        # The stamp of an index or an attached source changes when it is replaced.
        stamp = "" if fixed else self._catalog.stamp(corpus)

        key = (corpus, retriever)
        previous = self._opened.get(key)
        if previous is not None and not previous.failed and previous.stamp == stamp:
            return previous

        # `open` takes only names, so what a client names is never the path of a file.
        open_engine = partial(self._catalog.open, corpus)
        if fixed:
            open_engine = partial(self._catalog.resolve, fixed)
        opening = asyncio.create_task(open_engine(retriever=retriever, progress=progress))
        # Nobody may be waiting any more to take the error.
        opening.add_done_callback(lambda task: task.cancelled() or task.exception())
        opened = _Opened(stamp, opening)
        self._opened[key] = opened
        if previous is not None:
            self._release(previous)
        return opened

    def _release(self, opened: _Opened) -> None:
        """Count one user less, and close the engine after the last one, who may leave meanwhile."""
        opened.users -= 1
        if opened.users > 0:
            return
        closing = asyncio.create_task(opened.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all search engines, and stop what is being opened."""
        engines = [*self._opened.values()]
        self._opened.clear()
        await asyncio.gather(*(opened.close() for opened in engines), *self._closing)


class ServedDocument(BaseModel):
    """A document."""

    id: str
    title: str
    text: str
    groups: dict[str, dict[str, float]] = Field(
        description=(
            "For each attribute, the share of each group in the document; empty if unknown."
        )
    )
    link: str | None = Field(
        description="Its address on the web; null if the source names no field for it."
    )


async def read_document(engine: SearchEngine, id_: str, link: str | None) -> ServedDocument:
    """Return a document with its groups.

    Args:
        engine: The engine that has the document.
        id_: The id of the document.
        link: The field with its web address, if the source names one.

    Raises:
        DocumentNotFoundError: The engine does not find it.
    """
    documents = await engine.documents([id_])
    if not documents:
        only_searched = "" if "read_by_id" in engine.capabilities else " that a search has found"
        raise DocumentNotFoundError(
            f"'{engine.name}' has no document '{one_line(id_, 60)}'{only_searched}; check the id."
        )
    document = documents[0]

    only_this = Query("", 1, only=(id_,))
    (hits,) = await engine.search([only_this])
    groups = hits.groups(0, engine.schema) if hits.ids else {}
    return ServedDocument(
        id=id_,
        title=document.title,
        text=document.text,
        groups=groups,
        link=_link_of(document, link),
    )


class DocumentLine(BaseModel):
    """One line about a document."""

    id: str
    title: str
    line: str = Field(description="The first 160 characters of its text, at most.")


async def read_lines(engine: SearchEngine, ids: Sequence[str]) -> list[DocumentLine]:
    """Return one line for each of these documents that the engine finds."""
    lines = []
    for document in await engine.documents(ids):
        text = one_line(document.text, LONGEST_LINE)
        lines.append(DocumentLine(id=document.id, title=document.title, line=text))
    return lines


async def links_of(engine: SearchEngine, ids: Sequence[str], link: str | None) -> dict[str, str]:
    """Return the web addresses of documents, by id; not every document has one."""
    if not (link and ids):
        return {}
    links: dict[str, str] = {}
    for document in await engine.documents(ids):
        address = _link_of(document, link)
        if address:
            links[document.id] = address
    return links


def _link_of(document: Document, field: str | None) -> str | None:
    """Return the web address of a document, if the field holds one."""
    if not field:
        return None
    link = value_at(document.fields, field)
    if not isinstance(link, str) or len(link) > LONGEST_LINK:
        return None
    return link if is_web_address(link) else None
