"""Writing an embedded index: building one, and adding and removing documents.

One process may write at a time. Everything that is read in order to write is read under its lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import tantivy

from fairqr.base.errors import BuildInProgressError, CorpusError
from fairqr.base.files import write_beside
from fairqr.retrieval.documents import Document, Progress, chunks
from fairqr.retrieval.engines.tantivy_folder import (
    Manifest,
    columns_of,
    create_text,
    open_text,
    read_manifest,
    refuse_damaged,
    to_stored,
)
from fairqr.retrieval.engines.tantivy_ids import IdReader, IdWriter
from fairqr.retrieval.labels import LabelReader

__all__ = ["build_index", "remove_documents", "upsert_documents"]

WRITER_BYTES = 64 << 20
DOCUMENTS_AT_ONCE = 500


def build_index(
    folder: Path,
    manifest: Manifest,
    documents: Iterable[Document],
    labels: LabelReader | None = None,
    progress: Progress | None = None,
) -> None:
    """Write a new index into an empty folder.

    Args:
        folder: Where.
        manifest: Of the index.
        documents: At least one, with distinct ids.
        labels: Reads the labels; needed if some are in files beside the corpus.
        progress: Told how many documents are written.

    Raises:
        CorpusError: There are no documents, or two have the same id.
        SourceError: A label fits no group.
    """
    index = create_text(folder, manifest.corpus_schema)
    write_beside(folder / "manifest.json", manifest.model_dump_json(indent=1))
    count = _write(index, folder, manifest, documents, labels, progress, replace=False)
    if count == 0:
        raise CorpusError(f"The corpus {manifest.source} is empty; it needs a document.")
    _refuse_duplicates(folder, manifest.source)


def upsert_documents(
    folder: Path,
    documents: Iterable[Document],
    labels: LabelReader | None = None,
    progress: Progress | None = None,
) -> int:
    """Add documents, in place of those with the same ids, and return how many were written.

    An error changes nothing.

    Raises:
        BuildInProgressError: Another process writes to the index.
        SourceError: A label fits no group.
    """
    manifest = read_manifest(folder)
    return _write(open_text(folder), folder, manifest, documents, labels, progress, replace=True)


def remove_documents(folder: Path, ids: Sequence[str]) -> int:
    """Remove documents, and return how many there were.

    Raises:
        BuildInProgressError: Another process writes to the index.
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
        # One thread keeps the order of the documents, and so the files, the same each time.
        return index.writer(WRITER_BYTES, 1)
    except ValueError as error:
        if "Lock" in str(error):
            raise BuildInProgressError(
                f"Another process is writing to the index in {folder}; wait until it has finished."
            ) from None
        refuse_damaged(folder, error)


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
    with _open_writer(index, folder) as writer, IdWriter(folder) as ids:
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
                    entry.add_text("body", f"{document.title}\n{document.text}")
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
        # The ids are on disk before the documents that refer to them.
        ids.flush()
        writer.commit()
    return count


def _refuse_duplicates(folder: Path, source: str) -> None:
    """Look for ids that stand twice in what was written.

    Raises:
        CorpusError: One does; it and its places are named.
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
                f"The id '{id_}' stands twice in {source}, in documents {first + 1} and "
                f"{second + 1}; 'fairqr corpus check' names the lines."
            )
