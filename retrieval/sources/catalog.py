"""What a user can search by name: embedded indexes, attached sources, and built-in corpora.

They share one name space. Embedded indexes are in ``<data>/indexes``, see :class:`EmbeddedIndexes`;
notes of attached sources are in ``<data>/sources``, see :class:`AttachedSources`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

from fairqr.base.errors import (
    FairqrError,
    IndexNotFoundError,
    InputError,
    nearest_names,
    one_line,
)
from fairqr.base.settings import data_dir
from fairqr.retrieval.encoders.encoder import PROBE, Encoder, encode_documents
from fairqr.retrieval.encoders.opening import Retriever
from fairqr.retrieval.engines.engine import EngineInfo, SearchEngine
from fairqr.retrieval.engines.opening import (
    encode_index,
    encode_written,
    index_of_source,
    name_of_index,
    open_source,
    with_retriever,
)
from fairqr.retrieval.engines.tantivy.store import Announce, EmbeddedIndexes
from fairqr.retrieval.sources.attached import AttachedSources
from fairqr.retrieval.sources.corpus import BUILT_IN, Corpus, find_corpus, holds_documents
from fairqr.retrieval.sources.documents import Progress, read_documents
from fairqr.retrieval.sources.source import Source, TantivySource, is_source_file, load_source

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")


class Catalog:
    """The indexes and attached sources in a folder.

    Args:
        folder: The user's data folder by default.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._root = folder or data_dir()
        self._indexes = EmbeddedIndexes(self._root / "indexes")
        self._attached = AttachedSources(self._root / "sources")

    def names(self) -> list[str]:
        """Return the names of all indexes and attached sources."""
        return sorted({*self._indexes.names(), *self.sources()})

    async def resolve(
        self,
        corpus: str | Source,
        *,
        retriever: str | Encoder | Retriever = "bm25",
        schema: Path | None = None,
        progress: Announce | None = None,
    ) -> SearchEngine:
        """Open what a user calls a corpus, and index it first if necessary.

        If another process is indexing it, this waits and opens the result.

        Args:
            corpus: The name of an index, of an attached source or of a built-in corpus; the path of
                a corpus or of a source file; or a source. A name that fits both an index and a
                file or folder in the current folder means the index.
            retriever: See :meth:`Retriever.of`.
            schema: The schema file of a corpus given by its path.
            progress: Called with the name of what has to be indexed, encoded or read first.

        Raises:
            IndexNotFoundError: Nothing has this name.
            FairqrError: The corpus cannot be searched; the message says what to do.
        """
        if schema is not None and (isinstance(corpus, Source) or not await self._is_path(corpus)):
            raise InputError(
                "Only a corpus given by its path takes a schema; an index and a source have their "
                "own, so leave it out."
            )
        if isinstance(corpus, Source):
            return await self._open_source(corpus, retriever, progress)
        if corpus in BUILT_IN:
            found = await asyncio.to_thread(find_corpus, BUILT_IN[corpus])
            return await self._open_corpus(corpus, found, corpus, retriever, progress)
        if is_source_file(corpus):
            source = await asyncio.to_thread(load_source, Path(corpus))
            return await self._open_source(source, retriever, progress)
        if not await self._is_path(corpus):
            return await self.open(corpus, retriever=retriever, progress=progress)
        path = Path(corpus)
        found = await asyncio.to_thread(find_corpus, path, schema)
        name = name_of_index(found.path.name.split(".")[0], found.path)
        shown = str(found.path.resolve())
        return await self._open_corpus(name, found, shown, retriever, progress)

    async def _is_path(self, corpus: str) -> bool:
        """Return whether this is the path of a corpus, rather than a name."""
        if not corpus or corpus in BUILT_IN or is_source_file(corpus):
            return False
        path = Path(corpus)
        if "/" in corpus or path.suffix in (".jsonl", ".gz"):
            return True
        if corpus in await asyncio.to_thread(self.names):
            return False
        return await asyncio.to_thread(lambda: _is_corpus(path))

    async def open(
        self,
        name: str,
        *,
        retriever: str | Encoder | Retriever = "bm25",
        progress: Announce | None = None,
    ) -> SearchEngine:
        """Open an index or an attached source by its name; see :meth:`resolve`."""
        if name in await asyncio.to_thread(self._indexes.names):
            return await with_retriever(await self._indexes.open(name), retriever, progress)
        if name not in await asyncio.to_thread(self.sources):
            raise await asyncio.to_thread(self._no_such, name)
        source, _ = await asyncio.to_thread(self.source, name)
        return await self._open_source(source, retriever, progress)

    async def create(
        self,
        name: str,
        corpus: Corpus,
        *,
        encoder: Encoder | None = None,
        progress: Progress | None = None,
    ) -> SearchEngine:
        """Build an embedded index, replacing one of the same name, and open it.

        Args:
            name: Lower-case letters, digits, dots, dashes and underscores.
            corpus: What to index.
            encoder: Makes a vector for each document; optional. Vectors that it made of the same
                texts for the replaced index are reused.
            progress: Called with the number of documents written, then with the number encoded.

        Raises:
            InputError: The name is not valid, or belongs to something else.
            CorpusError: The corpus is empty or wrong; an existing index stays unchanged.
            BuildInProgressError: Another process is building the same index.
            ModelError: The encoder failed; the index exists, but lacks some of its vectors.
            ModelUnavailableError: The encoder cannot be started; nothing was built.
        """
        await asyncio.to_thread(self._refuse_taken, name, corpus)
        if encoder is not None:
            await encode_documents(encoder, [PROBE])
        source = name if name in BUILT_IN else str(corpus.path.resolve())
        engine = await self._indexes.create(name, corpus, source, progress)
        if encoder is not None:
            await encode_index(engine, encoder, progress)
        return engine

    async def upsert(
        self, name: str, path: Path, *, progress: Progress | None = None
    ) -> tuple[int, int]:
        """Add the documents of a file to an index, replacing those with the same ids.

        Returns:
            How many were written, and how many the index has now.

        Raises:
            IndexNotFoundError: There is no such index.
            InputError: It is an attached source, and we never write to those.
            CorpusError: The file cannot be read, or a line is wrong; the index stays unchanged.
            BuildInProgressError: Another process is writing to the index.
        """
        await asyncio.to_thread(self._attached.refuse, name)
        engine = await self._indexes.open(name)
        documents = read_documents(path, engine.schema)
        written = await self._indexes.upsert(name, documents, progress)
        await encode_written(engine, progress)
        return written, await self._count(name)

    async def remove(self, name: str, ids: Sequence[str]) -> tuple[int, int]:
        """Remove documents from an index.

        Returns:
            How many were removed, and how many documents are left.

        Raises:
            IndexNotFoundError: There is no such index.
            InputError: It is an attached source, and we never write to those.
            BuildInProgressError: Another process is writing to the index.
        """
        await asyncio.to_thread(self._attached.refuse, name)
        removed = await self._indexes.remove(name, ids)
        return removed, await self._count(name)

    async def delete(self, name: str) -> None:
        """Delete an embedded index.

        Raises:
            IndexNotFoundError: There is no such index.
            InputError: It is an attached source.
            BuildInProgressError: Another process is writing to it.
        """
        await asyncio.to_thread(self._attached.refuse, name)
        await self._indexes.delete(name)

    async def infos(self) -> list[EngineInfo | tuple[str, str, str]]:
        """Return what we know of all indexes and attached sources, without indexing anything.

        An entry that cannot be opened is a tuple of its name, its engine, and the reason.
        """
        names = await asyncio.to_thread(self.names)
        sources = await asyncio.to_thread(self.sources)
        infos = dict(zip(names, await asyncio.gather(*map(self._info, names)), strict=True))
        # The embedded index of an attached source is listed once, as the source.
        theirs = {
            info.location
            for name, info in infos.items()
            if name in sources and isinstance(info, EngineInfo)
        }
        return [
            info
            for name, info in infos.items()
            if name in sources or not (isinstance(info, EngineInfo) and info.location in theirs)
        ]

    def attach(self, path: Path) -> Source:
        """Register the source that a file describes by its name; the file stays where it is.

        Raises:
            SourceError: The file does not describe a source.
            InputError: The name belongs to something else.
        """
        self.refuse_taken_by_others(load_source(path).name, path)
        return self._attached.attach(path)

    def refuse_taken_by_others(self, name: str, path: Path) -> None:
        """Refuse a source's name that belongs to a built-in corpus or an index.

        Raises:
            InputError: The name is taken.
        """
        if name in BUILT_IN or name in self._indexes.names():
            what = "a built-in corpus" if name in BUILT_IN else "an index"
            raise InputError(f"'{name}' is the name of {what}; give the source {path} another one.")

    def detach(self, name: str) -> None:
        """Forget an attached source; its file and its engine stay as they are.

        Raises:
            IndexNotFoundError: There is no such source.
        """
        self._attached.detach(name)

    def sources(self) -> dict[str, Path]:
        """Return the file of each attached source, by name."""
        return self._attached.paths()

    def stamp(self, name: str) -> str:
        """Return a string that changes when an index or an attached source is replaced.

        Adding documents to an index does not change it: engines notice those on their own.
        """
        path = self.sources().get(name)
        if path is None:
            return self._indexes.version(name)
        try:
            return str(path.stat().st_mtime_ns)
        except OSError:  # It is gone; opening it will say so.
            return ""

    def source(self, name: str) -> tuple[Source, Path]:
        """Return an attached source as its file describes it now, and the file.

        Raises:
            IndexNotFoundError: There is no such source.
            SourceError: The file is gone, or no longer describes the source.
        """
        return self._attached.source(name)

    async def _open_source(
        self,
        source: Source,
        retriever: str | Encoder | Retriever = "bm25",
        progress: Announce | None = None,
    ) -> SearchEngine:
        return await open_source(source, retriever=retriever, store=self._root, progress=progress)

    async def _open_corpus(
        self,
        name: str,
        corpus: Corpus,
        source: str,
        retriever: str | Encoder | Retriever,
        progress: Announce | None,
    ) -> SearchEngine:
        searched_with = Retriever.of(retriever)  # Refuse a wrong name before we index anything.
        engine = await self._indexes.up_to_date(name, corpus, source, progress)
        return await with_retriever(engine, searched_with, progress)

    async def _info(self, name: str) -> EngineInfo | tuple[str, str, str]:
        kind = "tantivy"
        try:
            indexes = await asyncio.to_thread(self._indexes.names)
            if name in indexes:
                return await info_of(await self._indexes.open(name))
            kind = "source"
            source, path = await asyncio.to_thread(self.source, name)
            kind = source.engine
            if not isinstance(source, TantivySource):
                return await info_of(await self._open_source(source))
            index = index_of_source(source)
            if index in indexes:
                return await info_of(await self._indexes.open(index, name))
            return EngineInfo(name, kind, None, str(path), str(path), source.fingerprint)
        except FairqrError as error:
            return name, kind, str(error)

    async def _count(self, name: str) -> int:
        engine = await self.open(name)
        return (await info_of(engine)).documents or 0

    def _refuse_taken(self, name: str, corpus: Corpus) -> None:
        """Refuse a new index's name that belongs to something else."""
        check_name(name)
        taken = None
        if name in BUILT_IN:
            if not _is_same(find_corpus(BUILT_IN[name]), corpus):
                taken = "a built-in corpus"
        elif name in self.sources():
            taken = "an attached source"
        if taken:
            raise InputError(f"'{name}' is the name of {taken}; choose another one for this index.")

    def _no_such(self, name: str) -> IndexNotFoundError:
        near = nearest_names(name, {*BUILT_IN, *self.names()})
        listed = (
            "'fairqr index list' lists those you have, and 'fairqr index create NAME PATH' makes "
            "a new one."
        )
        return IndexNotFoundError(f"There is no index '{one_line(name, 60)}'; {near or listed}")


def check_name(name: str) -> None:
    """Refuse a name that cannot be a folder.

    Raises:
        InputError: The name is not valid.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"'{name}' cannot be the name of an index; use only lower-case letters, digits, dots, "
            "dashes and underscores."
        )


def _is_same(one: Corpus, other: Corpus) -> bool:
    return one.path.resolve() == other.path.resolve() and one.schema == other.schema


def _is_corpus(path: Path) -> bool:
    return path.is_file() or holds_documents(path)


async def info_of(engine: SearchEngine) -> EngineInfo:
    """Return what we know of an engine, and close it even if it does not respond."""
    try:
        return await engine.info()
    finally:
        await engine.aclose()
