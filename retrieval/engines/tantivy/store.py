"""The embedded indexes of a user: one folder for each index, with one folder for each build.

We write a build such as ``<name>/v3`` beside the current one, and its manifest at the end. The
newest build with a manifest is the current one. So a killed build leaves the old index or none, and
whoever reads the old one continues to.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import shutil
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import tantivy
from filelock import FileLock, Timeout

from fairqr.base.errors import (
    BuildInProgressError,
    CorpusError,
    IndexNotFoundError,
    IndexUnavailableError,
    IndexVersionError,
)
from fairqr.retrieval.engines.tantivy.engine import (
    ID_COLUMNS,
    IndexManifest,
    TantivyEngine,
    columns_of,
    open_index,
    with_ids,
)
from fairqr.retrieval.sources.corpus import Corpus
from fairqr.retrieval.sources.documents import Document, ProgressFunction, chunks, read_documents
from fairqr.retrieval.sources.labels import LabelReader
from fairqr.retrieval.sources.schema import Schema
from fairqr.retrieval.texts.words import ANALYZER_NAME, english_analyzer, indexed_text

Announce = Callable[[str], ProgressFunction]
"""Called with the name of what is being made; returns the callback for the number of documents."""

T = TypeVar("T")

WAIT_SECONDS = 0.1
"""Between two looks whether another process has built an index."""
WRITER_BYTES = 64 << 20
"""The memory of a writer."""
DOCUMENTS_AT_ONCE = 500
"""How many documents are labelled and written together."""

_DISK_ERRORS = ("An error occurred in a thread", "An IO error occurred")
"""How tantivy begins what it says when it cannot write."""


class EmbeddedIndexes:
    """The embedded indexes in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        """Return the names of all indexes."""
        return sorted({path.parts[-3] for path in self._folder.glob("*/v*/manifest.json")})

    async def open(self, name: str, engine_name: str | None = None) -> TantivyEngine:
        """Open an index.

        Args:
            name: The name of the index.
            engine_name: The name the engine gives itself; the index name by default.

        Raises:
            IndexNotFoundError: There is no such index.
            IndexVersionError: It is damaged, or was written by another version.
        """
        engine = await asyncio.to_thread(self._open, name)
        engine.name = engine_name or name
        return engine

    def version(self, name: str) -> str:
        """Return the current version of an index, if there is one; each build makes a new one."""
        manifests = (self._folder / name).glob("v*/manifest.json")
        versions = [manifest.parent.name for manifest in manifests]
        return max(versions, key=_number_of, default="")

    async def create(
        self, name: str, corpus: Corpus, source: str, progress: ProgressFunction | None = None
    ) -> TantivyEngine:
        """Build an index, replacing one of the same name, and open it.

        Args:
            name: The name of the index.
            corpus: What to index.
            source: Where the documents come from, for users.
            progress: Called with the number of documents written.

        Raises:
            CorpusError: The corpus is empty or wrong; an existing index stays unchanged.
            BuildInProgressError: Another process is writing to the same index.
        """
        manifest = await asyncio.to_thread(_manifest, corpus, source)
        labels = await self._labels(manifest)
        return await self._build(name, corpus, manifest, labels, progress)

    async def up_to_date(
        self,
        name: str,
        corpus: Corpus,
        source: str,
        announce: Announce | None = None,
        engine_name: str | None = None,
    ) -> TantivyEngine:
        """Open the index of a corpus, building it first if it is missing or the corpus changed.

        If another process is building it, this waits and opens the result.
        """
        engine_name = engine_name or name
        engine = None
        with contextlib.suppress(IndexNotFoundError, IndexVersionError):
            engine = await self.open(name, engine_name)
        files = await asyncio.to_thread(corpus.files)
        if engine is not None and files and files == engine.manifest.files:
            return engine

        # To hash the content takes longer than to look at sizes and times.
        manifest = await asyncio.to_thread(_manifest, corpus, source)
        if engine is not None and manifest.fingerprint == engine.manifest.fingerprint:
            # Note the files, so that we need not hash them again; a folder may be read-only.
            with contextlib.suppress(OSError):
                updated = engine.manifest.model_copy(update={"files": manifest.files})
                await asyncio.to_thread(updated.write, engine.folder)
            return engine

        labels = await self._labels(manifest, announced(announce, f"labels of {engine_name}"))
        progress = announced(announce, engine_name)
        engine = await self._build(name, corpus, manifest, labels, progress, share=True)
        engine.name = engine_name
        return engine

    async def upsert(self, name: str, path: Path, progress: ProgressFunction | None = None) -> int:
        """Add a file's documents, replacing those with the same ids; return how many were written.

        Raises:
            IndexNotFoundError: There is no such index.
            BuildInProgressError: Another process is writing to it.
            CorpusError: The file or a document is wrong; the index stays unchanged.
        """
        manifest = (await self.open(name)).manifest
        labels = await self._labels(manifest)
        documents = read_documents(path, manifest.corpus_schema)
        return await self._locked(
            name, lambda: upsert_documents(self._current(name), documents, labels, progress)
        )

    async def remove(self, name: str, ids: Sequence[str]) -> int:
        """Remove documents, and return how many were removed.

        Raises:
            IndexNotFoundError: There is no such index.
            BuildInProgressError: Another process is writing to it.
        """
        self._current(name)
        return await self._locked(name, lambda: remove_documents(self._current(name), ids))

    async def delete(self, name: str) -> None:
        """Delete an index, or the remains of a damaged one.

        Raises:
            IndexNotFoundError: There is no such index.
            BuildInProgressError: Another process is writing to it.
        """
        if not (self._folder / name).is_dir():
            raise _no_such(name)
        await self._locked(name, lambda: shutil.rmtree(self._folder / name))

    async def _build(
        self,
        name: str,
        corpus: Corpus,
        manifest: IndexManifest,
        labels: LabelReader,
        progress: ProgressFunction | None,
        *,
        share: bool = False,
    ) -> TantivyEngine:
        """Build an index and open it; with ``share``, use what others make of this corpus."""
        # With the groups that label files name.
        manifest = manifest.model_copy(update={"corpus_schema": labels.schema})
        stop = threading.Event()

        def documents() -> Iterator[Document]:
            for document in corpus.documents():
                if stop.is_set():
                    raise asyncio.CancelledError
                yield document

        def build() -> TantivyEngine:
            if share:
                engine = self._open_if_built(name, manifest.fingerprint)
                if engine is not None:
                    return engine
            self._replace(name, manifest, documents(), labels, progress)
            return self._open(name)

        while True:
            try:
                return await self._locked(name, build)
            except asyncio.CancelledError:
                # The thread continues alone; this makes it leave everything unchanged.
                stop.set()
                raise
            except BuildInProgressError:
                if not share:
                    raise
                # Not in a thread: many may be waiting, and there are few threads.
                await asyncio.sleep(WAIT_SECONDS)

    def _open_if_built(self, name: str, fingerprint: str) -> TantivyEngine | None:
        """Open an index if it is one of the corpus with this fingerprint."""
        with contextlib.suppress(IndexNotFoundError, IndexVersionError):
            engine = self._open(name)
            if engine.manifest.fingerprint == fingerprint:
                return engine
        return None

    def _replace(
        self,
        name: str,
        manifest: IndexManifest,
        documents: Iterable[Document],
        labels: LabelReader,
        progress: ProgressFunction | None,
    ) -> None:
        """Write the next version of an index, and remove the others."""
        index = self._folder / name
        old = self.version(name)
        # Remove what killed builds left behind.
        _remove_versions(index, keep=old)
        new = index / f"v{_number_of(old) + 1}"
        try:
            build_index(new, manifest, documents, labels, progress)
        except BaseException:
            shutil.rmtree(new if old else index, ignore_errors=True)
            raise
        # Readers of the old version keep their files open.
        _remove_versions(index, keep=new.name)

    async def _labels(
        self, manifest: IndexManifest, progress: ProgressFunction | None = None
    ) -> LabelReader:
        """Open the labels of the documents of an index."""
        return await LabelReader.open(
            manifest.corpus_schema.attributes,
            manifest.labels_folder,
            store=self._folder.parent / "labels",
            progress=progress,
        )

    def _current(self, name: str) -> Path:
        """Return the folder of the current version of an index.

        Raises:
            IndexNotFoundError: There is no such index.
        """
        version = self.version(name)
        if not version:
            raise _no_such(name)
        return self._folder / name / version

    def _open(self, name: str) -> TantivyEngine:
        folder = self._current(name)
        try:
            return TantivyEngine(folder, name)
        except IndexVersionError:
            # A build may have replaced the version in the meantime.
            if self._current(name) == folder:
                raise
        return self._open(name)

    async def _locked(self, name: str, work: Callable[[], T]) -> T:
        """Work in a thread under the lock on an index, which ends when the process dies."""

        def work_under_lock() -> T:
            self._folder.mkdir(parents=True, exist_ok=True)
            try:
                with FileLock(self._folder / f".{name}.lock", timeout=0):
                    return work()
            except Timeout:
                raise BuildInProgressError(
                    f"Another process is writing to the index '{name}'; wait until it has finished."
                ) from None

        return await asyncio.to_thread(work_under_lock)


def announced(announce: Announce | None, name: str) -> ProgressFunction | None:
    """Return a progress callback that announces the name when it is first called."""
    if announce is None:
        return None
    announce_once = functools.cache(announce)

    def report_progress(done: int, /, *total: int | None) -> None:
        announce_once(name)(done, *total)

    return report_progress


def build_index(
    folder: Path,
    manifest: IndexManifest,
    documents: Iterable[Document],
    labels: LabelReader,
    progress: ProgressFunction | None = None,
) -> None:
    """Write a new index into an empty folder.

    Args:
        folder: The empty folder.
        manifest: The manifest of the index.
        documents: At least one, with distinct ids.
        labels: Reads the labels.
        progress: Called with the number of documents written.

    Raises:
        CorpusError: There are no documents, or two have the same id.
    """
    index = _create(folder / "text", manifest.corpus_schema)
    hashes = array("q")
    with _writer(index, folder) as writer:
        for batch in _batches(documents, progress):
            _add(writer, index.schema, batch, labels, len(hashes))
            hashes.extend(hash(document.id) for document in batch)
    if not hashes:
        raise CorpusError(f"The corpus {manifest.source} is empty; add at least one document.")
    # By chance two of ten million ids have one hash in one of 300,000 builds. Python's hashes
    # differ from process to process, so building again helps.
    if len(np.unique(hashes)) < len(hashes):
        raise CorpusError(
            f"Two documents of {manifest.source} have the same id; 'fairqr corpus check' names the "
            "id and its lines."
        )
    manifest.write(folder)


def upsert_documents(
    folder: Path,
    documents: Iterable[Document],
    labels: LabelReader,
    progress: ProgressFunction | None = None,
) -> int:
    """Add documents, replacing those with the same ids, and return how many were written.

    An error changes nothing. Only one process may write at a time; see :class:`EmbeddedIndexes`.
    """
    index, _ = open_index(folder)
    count = 0
    with _writer(index, folder) as writer:
        # tantivy counts all additions and deletions that were ever committed. So from here on no
        # number was used, whatever was removed since.
        number = writer.commit_opstamp
        for batch in _batches(documents, progress):
            # The last of several with one id counts.
            document_of = {document.id: document for document in batch}
            writer.delete_documents_by_query(with_ids(index.schema, list(document_of)))
            _add(writer, index.schema, list(document_of.values()), labels, number)
            # Those that come twice are not added twice, and so tantivy does not count them.
            number += len(document_of)
            count += len(batch)
    return count


def remove_documents(folder: Path, ids: Sequence[str]) -> int:
    """Remove documents, and return how many were removed; see :func:`upsert_documents`."""
    index, _ = open_index(folder)
    before = index.searcher().num_docs
    with _writer(index, folder) as writer:
        writer.delete_documents_by_query(with_ids(index.schema, ids))
    index.reload()
    return int(before - index.searcher().num_docs)


def _manifest(corpus: Corpus, source: str) -> IndexManifest:
    return IndexManifest(
        source=source,
        files=corpus.files(),
        fingerprint=corpus.fingerprint(),
        labels_folder=corpus.labels_folder.absolute(),
        corpus_schema=corpus.schema,
    )


def _remove_versions(index: Path, keep: str) -> None:
    for path in index.glob("v*"):
        if path.name != keep:
            shutil.rmtree(path, ignore_errors=True)


def _number_of(version: str) -> int:
    """Return the number of a version such as ``v3``; 0 if there is no version."""
    return int(version[1:] or 0)


def _no_such(name: str) -> IndexNotFoundError:
    return IndexNotFoundError(
        f"There is no index '{name}'; create it with 'fairqr index create {name} PATH'."
    )


def _create(path: Path, schema: Schema) -> tantivy.Index:
    """Create an empty tantivy index for documents with these attributes."""
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("id", fast=True, tokenizer_name="raw", index_option="basic")
    builder.add_text_field("body", tokenizer_name=ANALYZER_NAME, index_option="freq")
    builder.add_bytes_field("source", stored=True)
    for column in ("number", *ID_COLUMNS):
        builder.add_unsigned_field(column, fast=True)
    for columns in columns_of(schema).values():
        for column in columns:
            builder.add_float_field(column, fast=True)
    path.mkdir(parents=True)
    index = tantivy.Index(builder.build(), str(path), sort_by_field="id")
    index.register_tokenizer(ANALYZER_NAME, english_analyzer())
    return index


@contextlib.contextmanager
def _writer(index: tantivy.Index, folder: Path) -> Iterator[tantivy.IndexWriter]:
    """Yield a writer, and commit what it wrote at the end; an error changes nothing."""
    try:
        # A single thread keeps the order of the documents, and so the files, the same each time.
        with index.writer(WRITER_BYTES, 1) as writer:
            try:
                yield writer
            except BaseException:
                writer.rollback()
                raise
            writer.commit()
    except ValueError as error:
        if not str(error).startswith(_DISK_ERRORS):
            raise
        raise IndexUnavailableError(
            f"The index in {folder} cannot be written; make room on the disk, or name another "
            "folder in FAIRQR_DATA_DIR."
        ) from None


def _batches(
    documents: Iterable[Document], progress: ProgressFunction | None
) -> Iterator[list[Document]]:
    """Yield documents in lists, and report after each how many were handled."""
    done = 0
    for batch in chunks(documents, DOCUMENTS_AT_ONCE):
        yield batch
        done += len(batch)
        if progress:
            progress(done)


def _add(
    writer: tantivy.IndexWriter,
    schema: tantivy.Schema,
    documents: Sequence[Document],
    labels: LabelReader,
    first_number: int,
) -> None:
    """Add documents, with numbers from this one on."""
    ids = [document.id for document in documents]
    memberships = labels.memberships(ids, labels.in_fields(documents))
    columns: list[str] = []
    listed_shares = []
    open_shares = {}
    for name, columns_of_attribute in columns_of(labels.schema).items():
        if columns_of_attribute:
            columns += columns_of_attribute
            listed_shares.append(memberships[name])
        else:
            open_shares[name] = memberships[name]
    rows = np.hstack(listed_shares).tolist() if listed_shares else [[]] * len(documents)

    for row, document in enumerate(documents):
        shares_by_name = {name: shares[row] for name, shares in open_shares.items()}
        parts = [document.id, document.title, document.text, dict(document.fields), shares_by_name]
        fields = {
            "id": document.id,
            "body": indexed_text(f"{document.title}\n{document.text}"),
            "source": json.dumps(parts, ensure_ascii=False).encode(),
            "number": first_number + row,
            **dict(zip(ID_COLUMNS, _words_of_id(document.id), strict=False)),
            **dict(zip(columns, rows[row], strict=True)),
        }
        writer.add_document(tantivy.Document.from_dict(fields, schema))


def _words_of_id(id_: str) -> list[int]:
    """Return an id as numbers of eight bytes."""
    id_bytes = id_.encode() + b"."  # The mark of the end; zeros follow.
    padding = bytes(-len(id_bytes) % 8)
    words: list[int] = np.frombuffer(id_bytes + padding, ">u8").tolist()
    return words
