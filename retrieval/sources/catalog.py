"""What a user can search by name: embedded indexes, attached sources, and built-in corpora.

They share one name space. Embedded indexes are in ``<data>/indexes``, see :class:`EmbeddedIndexes`.
Each attached source has a note ``<data>/sources/<name>.json`` that says where its file is. The file
stays there, so edits take effect.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fairqr.base.errors import (
    FairqrError,
    IndexNotFoundError,
    InputError,
    SourceError,
    nearest_names,
    one_line,
)
from fairqr.base.files import write_beside
from fairqr.base.settings import data_dir
from fairqr.retrieval.encoders.encoder import PROBE, Encoder, encode_documents
from fairqr.retrieval.encoders.opening import Retriever
from fairqr.retrieval.engines import opening
from fairqr.retrieval.engines.engine import EngineInfo, SearchEngine
from fairqr.retrieval.engines.tantivy.store import Announce, EmbeddedIndexes
from fairqr.retrieval.sources.corpus import BUILT_IN, Corpus, find_corpus, holds_documents
from fairqr.retrieval.sources.documents import ProgressFunction
from fairqr.retrieval.sources.source import Source, TantivySource, is_source_file, load_source

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
"""The names that an index may have."""
AnyRetriever = str | Encoder | Retriever


class Catalog:
    """The indexes and attached sources in a folder.

    Args:
        folder: The user's data folder by default.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._root = folder or data_dir()
        self._indexes = EmbeddedIndexes(self._root / "indexes")
        self._notes = self._root / "sources"

    def names(self) -> list[str]:
        """Return the names of all indexes and attached sources."""
        return sorted({*self._indexes.names(), *self.sources()})

    async def resolve(
        self,
        corpus: str | Source,
        *,
        retriever: AnyRetriever = "bm25",
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
        if isinstance(corpus, str) and is_source_file(corpus):
            corpus = await asyncio.to_thread(load_source, Path(corpus))
        is_path = isinstance(corpus, str) and await asyncio.to_thread(self._is_path, corpus)
        if schema is not None and not is_path:
            raise InputError("Only a corpus given by its path takes a schema; leave it out.")

        if isinstance(corpus, Source):
            return await opening.open_source(
                corpus, retriever=retriever, store=self._root, progress=progress
            )
        if not is_path and corpus not in BUILT_IN:
            return await self.open(corpus, retriever=retriever, progress=progress)

        opened_retriever = Retriever.of(retriever)  # Refuse a wrong name before we index anything.
        path = BUILT_IN.get(corpus, Path(corpus))
        files = await asyncio.to_thread(find_corpus, path, schema)
        name = corpus
        label = corpus
        if is_path:
            name = opening.name_of_index(files.path.name.split(".")[0], files.path)
            label = str(files.path.resolve())
        engine = await self._indexes.up_to_date(name, files, label, progress)
        return await opening.with_retriever(engine, opened_retriever, progress)

    def _is_path(self, corpus: str) -> bool:
        """Return whether this is the path of a corpus, rather than a name."""
        if not corpus or corpus in BUILT_IN:
            return False
        path = Path(corpus)
        looks_like_path = "/" in corpus or path.suffix in (".jsonl", ".gz")
        if looks_like_path:
            return True
        # A name that fits both means the index.
        has_documents = path.is_file() or holds_documents(path)
        return has_documents and corpus not in self.names()

    async def open(
        self, name: str, *, retriever: AnyRetriever = "bm25", progress: Announce | None = None
    ) -> SearchEngine:
        """Open an index or an attached source by its name; see :meth:`resolve`."""
        names = await asyncio.to_thread(self.names)
        if name not in names:
            advice = nearest_names(name, {*BUILT_IN, *names})
            advice = advice or "'fairqr index create NAME PATH' makes one."
            raise IndexNotFoundError(f"There is no index '{one_line(name, 60)}'; {advice}")

        if name in self._indexes.names():
            engine = await self._indexes.open(name)
            return await opening.with_retriever(engine, retriever, progress)
        source, _ = await asyncio.to_thread(self.source, name)
        return await self.resolve(source, retriever=retriever, progress=progress)

    async def create(
        self,
        name: str,
        corpus: Corpus,
        *,
        encoder: Encoder | None = None,
        progress: ProgressFunction | None = None,
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
            from fairqr.retrieval.engines.hybrid.embedded import VectorEngine

            await VectorEngine.open(engine, encoder, progress)
        return engine

    async def upsert(
        self, name: str, path: Path, *, progress: ProgressFunction | None = None
    ) -> int:
        """Add the documents of a file to an index, replacing those with the same ids.

        The next search by vectors encodes them.

        Returns:
            How many were written.

        Raises:
            IndexNotFoundError: There is no such index.
            InputError: It is an attached source, and we never write to those.
            CorpusError: The file cannot be read, or a line is wrong; the index stays unchanged.
            BuildInProgressError: Another process is writing to the index.
        """
        self._refuse_attached(name)
        return await self._indexes.upsert(name, path, progress)

    async def remove(self, name: str, ids: Sequence[str]) -> int:
        """Remove documents from an index.

        Returns:
            How many were removed.

        Raises:
            IndexNotFoundError: There is no such index.
            InputError: It is an attached source, and we never write to those.
            BuildInProgressError: Another process is writing to the index.
        """
        self._refuse_attached(name)
        return await self._indexes.remove(name, ids)

    async def delete(self, name: str) -> None:
        """Delete an embedded index.

        Raises:
            IndexNotFoundError: There is no such index.
            InputError: It is an attached source.
            BuildInProgressError: Another process is writing to it.
        """
        self._refuse_attached(name)
        await self._indexes.delete(name)

    async def infos(self) -> list[EngineInfo | tuple[str, str, str]]:
        """Return what we know of all indexes and attached sources, without indexing anything.

        An entry that cannot be opened is a tuple of its name, its engine, and the reason.
        """
        names = await asyncio.to_thread(self.names)
        infos = await asyncio.gather(*map(self._info, names))

        # The embedded index of an attached source is listed once, as the source.
        sources = self.sources()
        locations_of_sources = {
            info.location for info in infos if isinstance(info, EngineInfo) and info.name in sources
        }
        listed: list[EngineInfo | tuple[str, str, str]] = []
        for info in infos:
            is_index_of_source = (
                isinstance(info, EngineInfo)
                and info.name not in sources
                and info.location in locations_of_sources
            )
            if not is_index_of_source:
                listed.append(info)
        return listed

    async def _info(self, name: str) -> EngineInfo | tuple[str, str, str]:
        """Return what we know of an index or a source, or why it cannot be opened."""
        kind = "tantivy"
        index = name
        try:
            if name in self.sources():
                kind = "source"
                source, path = await asyncio.to_thread(self.source, name)
                kind = source.engine
                if not isinstance(source, TantivySource):
                    return await info_of(await self.resolve(source))
                index = opening.name_of_index(source.name, source.path(source.documents))
                if index not in self._indexes.names():
                    return EngineInfo(name, kind, None, str(path), str(path), source.fingerprint)
            return await info_of(await self._indexes.open(index, name))
        except FairqrError as error:
            return name, kind, str(error)

    def stamp(self, name: str) -> str:
        """Return a string that changes when an index or an attached source is replaced.

        Adding documents to an index does not change it: engines notice those on their own.
        """
        path = self.sources().get(name)
        if path is None:
            return self._indexes.version(name)
        return str(path.stat().st_mtime_ns) if path.exists() else ""

    def sources(self) -> dict[str, Path]:
        """Return the file of each attached source, by name."""
        files = {}
        for note in sorted(self._notes.glob("*.json")):
            # A note that somebody damaged is no source.
            with suppress(OSError, ValueError, LookupError, TypeError):
                files[note.stem] = Path(json.loads(note.read_bytes())["path"])
        return files

    def source(self, name: str) -> tuple[Source, Path]:
        """Return an attached source as its file describes it now, and the file.

        Raises:
            IndexNotFoundError: There is no such source.
            SourceError: The file is gone, or no longer describes the source.
        """
        path = self._file_of(name)
        problem = "is gone"
        if path.exists():
            source = load_source(path)
            if source.name == name:
                return source, path
            problem = f"now has the name '{source.name}'"
        raise SourceError(
            f"The file {path} of the source '{name}' {problem}; attach it again with 'fairqr "
            f"attach FILE', or forget it with 'fairqr source remove {name}'."
        )

    def attach(self, path: Path) -> Source:
        """Register the source that a file describes by its name; the file stays where it is.

        Raises:
            SourceError: The file does not describe a source.
            InputError: The name belongs to something else.
        """
        path = path.absolute()
        source = load_source(path)
        self.refuse_taken_by_others(source.name, path)
        attached_file = self.sources().get(source.name, path)
        if attached_file != path and attached_file.exists():
            problem = f"The name '{source.name}' belongs to the source {attached_file}"
            raise InputError(f"{problem}; give this one another name.")
        write_beside(self._notes / f"{source.name}.json", json.dumps({"path": str(path)}))
        return source

    def detach(self, name: str) -> None:
        """Forget an attached source; its file and its engine stay as they are.

        Raises:
            IndexNotFoundError: There is no such source.
        """
        self._file_of(name)
        (self._notes / f"{name}.json").unlink(missing_ok=True)

    def refuse_taken_by_others(self, name: str, path: Path) -> None:
        """Refuse a source's name that belongs to a built-in corpus or an index.

        Raises:
            InputError: The name is taken.
        """
        if name in BUILT_IN:
            owner = "a built-in corpus"
        elif name in self._indexes.names():
            owner = "an index"
        else:
            return
        raise InputError(f"'{name}' is the name of {owner}; give the source {path} another one.")

    def _file_of(self, name: str) -> Path:
        sources = self.sources()
        if name not in sources:
            advice = nearest_names(name, sources) or "'fairqr source list' lists them."
            problem = f"There is no attached source '{one_line(name, 60)}'"
            raise IndexNotFoundError(f"{problem}; {advice}")
        return sources[name]

    def _refuse_attached(self, name: str) -> None:
        if name in self.sources():
            raise InputError(
                f"'{name}' is an attached source, and fairqr never changes those; "
                f"'fairqr source remove {name}' only forgets its name."
            )

    def _refuse_taken(self, name: str, corpus: Corpus) -> None:
        """Refuse a new index's name that is not valid, or belongs to something else."""
        if not NAME.fullmatch(name):
            allowed = "lower-case letters, digits, dots, dashes and underscores"
            raise InputError(f"'{name}' cannot be the name of an index; use only {allowed}.")

        owner = ""
        if name in self.sources():
            owner = "an attached source"
        if name in BUILT_IN and not _is_same(find_corpus(BUILT_IN[name]), corpus):
            owner = "a built-in corpus"
        if owner:
            raise InputError(f"'{name}' is the name of {owner}; choose another one for this index.")


def _is_same(first: Corpus, second: Corpus) -> bool:
    """Return whether two corpora have the same documents and the same schema."""
    has_same_path = first.path.resolve() == second.path.resolve()
    return has_same_path and first.schema == second.schema


async def info_of(engine: SearchEngine) -> EngineInfo:
    """Return what we know of an engine, and close it even if it does not respond."""
    try:
        return await engine.info()
    finally:
        await engine.aclose()
