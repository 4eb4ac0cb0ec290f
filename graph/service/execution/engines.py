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
            catalog = self._catalog
            open_ = partial(catalog.resolve, fixed) if fixed else partial(catalog.open, corpus)
            opening = asyncio.create_task(open_(retriever=retriever, progress=progress))
            # Nobody may be left to take the error.
            opening.add_done_callback(lambda done: done.cancelled() or done.exception())
            opened = self._opened[key] = _Opened(stamp, opening)
            if known is not None:
                self._release(known)
        opened.users += 1
        try:
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
    found = await engine.documents([id_])
    if not found:
        known = "" if "read_by_id" in engine.capabilities else " that a search has found"
        raise DocumentNotFoundError(
            f"'{engine.name}' has no document '{one_line(id_, 60)}'{known}; check the id."
        )
    title, text, address = found[0].title, found[0].text, _link_of(found[0], link)
    (hits,) = await engine.search([Query("", 1, only=(id_,))])
    groups = hits.groups(0, engine.schema) if hits.ids else {}
    return ServedDocument(id=id_, title=title, text=text, groups=groups, link=address)


class DocumentLine(BaseModel):
    """One line about a document."""

    id: str
    title: str
    line: str = Field(description="The first 160 characters of its text, at most.")


async def read_lines(engine: SearchEngine, ids: Sequence[str]) -> list[DocumentLine]:
    """Return one line for each of these documents that the engine finds."""
    return [
        DocumentLine(id=it.id, title=it.title, line=one_line(it.text, LONGEST_LINE))
        for it in await engine.documents(ids)
    ]


async def links_of(engine: SearchEngine, ids: Sequence[str], link: str | None) -> dict[str, str]:
    """Return the web addresses of documents, by id; not every document has one."""
    documents = await engine.documents(ids) if link and ids else []
    links = {document.id: _link_of(document, link) for document in documents}
    return {id_: address for id_, address in links.items() if address}


def _link_of(document: Document, field: str | None) -> str | None:
    """Return the web address of a document, if the field holds one."""
    link = value_at(document.fields, field) if field else None
    is_link = isinstance(link, str) and len(link) <= LONGEST_LINK and is_web_address(link)
    return link if is_link else None
