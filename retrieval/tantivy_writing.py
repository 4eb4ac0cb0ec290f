"""Writing to an embedded index, by one process at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import tantivy

from fairqr.errors import BuildInProgressError, CorpusError
from fairqr.retrieval.documents import Document
from fairqr.retrieval.files import write_beside
from fairqr.retrieval.id_store import IdReader, IdWriter
from fairqr.retrieval.index import Progress
from fairqr.retrieval.tantivy_layout import Manifest, pattern_field, read_patterns, to_source

__all__ = ["WRITER_BYTES", "open_writer", "refuse_duplicates", "write_documents"]

WRITER_BYTES = 64 << 20
PROGRESS_EVERY = 500


def open_writer(index: tantivy.Index, name: str) -> tantivy.IndexWriter:
    """Return what writes to an index.

    Raises:
        BuildInProgressError: Another process writes to it.
    """
    try:
        # One thread keeps the order of the documents, and so the files, the same each time.
        return index.writer(WRITER_BYTES, 1)
    except ValueError as error:
        if "Lock" in str(error):
            raise BuildInProgressError(
                f"Another process is writing to the index '{name}'; wait until it has finished."
            ) from None
        raise


def write_documents(
    index: tantivy.Index,
    folder: Path,
    manifest: Manifest,
    documents: Iterable[Document],
    progress: Progress | None,
    *,
    replace: bool,
) -> int:
    """Write documents in one transaction and return how many; an error changes nothing."""
    patterns = {
        name: {pattern: number for number, pattern in enumerate(known)}
        for name, known in read_patterns(folder, manifest).items()
    }
    schema = manifest.corpus_schema
    count = 0
    with open_writer(index, manifest.name) as writer, IdWriter(folder) as ids:
        try:
            for document in documents:
                if replace:
                    writer.delete_documents_by_term("id", document.id)
                entry = tantivy.Document()
                entry.add_text("id", document.id)
                entry.add_text("body", f"{document.title}\n{document.text}")
                entry.add_bytes("source", to_source(document))
                entry.add_unsigned("number", ids.append(document.id))
                for name, attribute in schema.attributes.items():
                    known = patterns.setdefault(name, {})
                    number = known.setdefault(document.membership(attribute), len(known))
                    entry.add_unsigned(pattern_field(schema, name), number)
                writer.add_document(entry)
                count += 1
                if progress and count % PROGRESS_EVERY == 0:
                    progress(count)
        except BaseException:
            writer.rollback()
            raise
        # What documents refer to is on disk before the documents are.
        ids.flush()
        tables = {name: list(known) for name, known in patterns.items()}
        write_beside(folder / "patterns.json", json.dumps(tables))
        writer.commit()
    index.reload()
    if progress:
        progress(count)
    return count


def refuse_duplicates(folder: Path, source: str) -> None:
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
