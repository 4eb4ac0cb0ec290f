"""Writing an embedded index: building one, and adding and removing documents.

Only one process may write at a time. It reads everything that it needs under the same lock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import tantivy

from fairqr.base.errors import BuildInProgressError, CorpusError, IndexUnavailableError
from fairqr.base.files import write_beside
from fairqr.retrieval.engines.tantivy.folder import (
    Manifest,
    columns_of,
    create_text,
    open_text,
    read_manifest,
    refuse_damaged,
    to_stored,
)
from fairqr.retrieval.engines.tantivy.ids import IdReader, IdWriter
from fairqr.retrieval.sources.documents import Document, Progress, chunks
from fairqr.retrieval.sources.labels import LabelReader
from fairqr.retrieval.texts.words import composed

WRITER_BYTES = 64 << 20
DOCUMENTS_AT_ONCE = 500

_DISK_ERRORS = ("An error occurred in a thread", "An IO error occurred")
"""How tantivy begins what it says when it cannot write."""


def build_index(
    folder: Path,
    manifest: Manifest,
    documents: Iterable[Document],
    labels: LabelReader | None = None,
    progress: Progress | None = None,
) -> None:
    """Write a new index into an empty folder.

    Args:
        folder: The empty folder.
        manifest: The manifest of the index.
        documents: At least one, with distinct ids.
        labels: Reads the labels; needed if some are in files beside the corpus.
        progress: Called with the number of documents written.

    Raises:
        CorpusError: There are no documents, or two have the same id.
        SourceError: A label belongs to no group.
    """
    index = create_text(folder, manifest.corpus_schema)
    write_beside(folder / "manifest.json", manifest.model_dump_json(indent=1))
    count = _write(index, folder, manifest, documents, labels, progress, replace=False)
    if count == 0:
        raise CorpusError(f"The corpus {manifest.source} is empty; add at least one document.")
    _refuse_duplicates(folder, manifest.source)


def upsert_documents(
    folder: Path,
    documents: Iterable[Document],
    labels: LabelReader | None = None,
    progress: Progress | None = None,
) -> int:
    """Add documents, replacing those with the same ids, and return how many were written.

    An error changes nothing.

    Raises:
        BuildInProgressError: Another process is writing to the index.
        SourceError: A label belongs to no group.
    """
    manifest = read_manifest(folder)
    return _write(open_text(folder), folder, manifest, documents, labels, progress, replace=True)


def remove_documents(folder: Path, ids: Sequence[str]) -> int:
    """Remove documents, and return how many were removed.

    Raises:
        BuildInProgressError: Another process is writing to the index.
    """
    index = open_text(folder)
    with _open_writer(index, folder) as writer:
        before = _count(index)
        for id_ in ids:
            writer.delete_documents_by_term("id", id_)
        writer.commit()
    return before - _count(index)


def _count(index: tantivy.Index) -> int:
    index.reload()
    return int(index.searcher().num_docs)


def _open_writer(index: tantivy.Index, folder: Path) -> tantivy.IndexWriter:
    try:
        # A single thread keeps the order of the documents, and so the files, the same each time.
        return index.writer(WRITER_BYTES, 1)
    except ValueError as error:
        if "Lock" in str(error):
            raise BuildInProgressError(
                f"Another process is writing to the index in {folder}; wait until it has finished."
            ) from None
        refuse_damaged(folder, error)


@contextlib.contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    """Say in one sentence that tantivy could not write."""
    try:
        yield
    except ValueError as error:
        if not str(error).startswith(_DISK_ERRORS):
            raise
        raise IndexUnavailableError(
            f"The index in {folder} cannot be written; make room on the disk, or name another "
            "folder in FAIRQR_DATA_DIR."
        ) from None


def _write(
    index: tantivy.Index,
    folder: Path,
    manifest: Manifest,
    documents: Iterable[Document],
    labels: LabelReader | None,
    progress: Progress | None,
    *,
    replace: bool,
) -> int:
    columns = columns_of(manifest.corpus_schema)
    labels = labels or LabelReader(manifest.corpus_schema, {}, strict=True)
    count = 0
    with _disk_errors(folder), _open_writer(index, folder) as writer, IdWriter(folder) as ids:
        try:
            for some in chunks(documents, DOCUMENTS_AT_ONCE):
                of_fields = labels.in_fields(some)
                memberships = labels.memberships([document.id for document in some], of_fields)
                shares = {name: rows.tolist() for name, rows in memberships.items()}
                for row, document in enumerate(some):
                    if replace:
                        writer.delete_documents_by_term("id", document.id)
                    entry = tantivy.Document()
                    entry.add_text("id", document.id)
                    entry.add_text("body", composed(f"{document.title}\n{document.text}"))
                    entry.add_bytes("source", to_stored(document))
                    entry.add_unsigned("number", ids.append(document.id))
                    for name, names in columns.items():
                        for column, share in zip(names, shares[name][row], strict=True):
                            entry.add_float(column, share)
                    writer.add_document(entry)
                count += len(some)
                if progress:
                    progress(count)
        except BaseException:
            writer.rollback()
            raise
        # Write the ids to disk before the documents that refer to them.
        ids.flush()
        writer.commit()
    return count


def _refuse_duplicates(folder: Path, source: str) -> None:
    """Look for duplicate ids in what was written.

    Raises:
        CorpusError: There is one; the error names it and its places.
    """
    reader = IdReader(folder)
    hashes = np.fromiter(reader.hashes(), dtype=np.int64)
    order = np.argsort(hashes, kind="stable")
    twice = np.flatnonzero(np.diff(hashes[order]) == 0)
    for position in twice:
        first, second = sorted(int(n) for n in order[position : position + 2])
        id_, other = reader[[first, second]]
        if id_ == other:
            raise CorpusError(
                f"The id '{id_}' occurs twice in {source}, in documents {first + 1} and "
                f"{second + 1}; 'fairqr corpus check' names the lines."
            )
