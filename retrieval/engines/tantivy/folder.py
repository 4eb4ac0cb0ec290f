"""The folder of an embedded index: what is in it, how it is written, and when it is damaged.

``manifest.json`` says what was indexed, ``text/`` has tantivy's own files, and ``dense/`` the
vectors of the documents. tantivy reads stored texts slowly and columns of numbers fast. So each
group's share in a document is a column of numbers, and so are each eight bytes of the ids.

Only one process may write at a time; see :class:`EmbeddedIndexes`.
"""

from __future__ import annotations

import contextlib
import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NoReturn

import numpy as np
import tantivy
from pydantic import BaseModel, ConfigDict, ValidationError

from fairqr.base.errors import (
    BuildInProgressError,
    CorpusError,
    IndexUnavailableError,
    IndexVersionError,
    first_problem,
    one_line,
)
from fairqr.base.files import write_beside
from fairqr.retrieval.engines.tantivy.analysis import ANALYZER_NAME, english_analyzer
from fairqr.retrieval.sources.documents import MAX_ID_BYTES, Document, Progress, chunks
from fairqr.retrieval.sources.labels import LabelReader
from fairqr.retrieval.sources.schema import Schema
from fairqr.retrieval.texts.sendable import sendable
from fairqr.retrieval.texts.words import composed

VECTORS = "dense"
"""The folder of vectors, with one folder for each encoder."""

ID_COLUMNS = [f"id{place}" for place in range(MAX_ID_BYTES // 8 + 1)]
"""The columns of an id, eight bytes each; those behind its end stay empty and take no room."""

WRITER_BYTES = 64 << 20
DOCUMENTS_AT_ONCE = 500

_DISK_ERRORS = ("An error occurred in a thread", "An IO error occurred")
"""How tantivy begins what it says when it cannot write."""


class Manifest(BaseModel):
    """What was indexed.

    Attributes:
        format: The layout of the folder.
        source: Where the documents come from, for users.
        fingerprint: A hash of the corpus content.
        files: The sizes and times of the corpus files.
        labels_folder: Paths of label files are relative to this.
        corpus_schema: The attributes, with the groups that label files name.
    """

    model_config = ConfigDict(frozen=True)

    format: Literal[3] = 3
    source: str
    fingerprint: str
    files: str = ""
    labels_folder: Path = Path()
    corpus_schema: Schema

    def write(self, folder: Path) -> None:
        """Write it into the folder of its index."""
        write_beside(folder / "manifest.json", self.model_dump_json(indent=1))


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a folder.

    Raises:
        IndexVersionError: It is damaged, or from another version.
    """
    try:
        return Manifest.model_validate_json((folder / "manifest.json").read_bytes())
    except ValidationError as error:
        refuse_damaged(folder, "manifest.json: {}: {}".format(*first_problem(error)))
    except OSError as error:
        refuse_damaged(folder, error)


def refuse_damaged(folder: Path, why: object) -> NoReturn:
    """Raise the error for a folder that this version cannot read.

    Raises:
        IndexVersionError: Always.
    """
    if not folder.exists():
        raise IndexVersionError(
            f"The index in {folder} was rebuilt or deleted in the meantime; open it again."
        ) from None
    raise IndexVersionError(
        f"The index in {folder} is damaged or of another version of fairqr ({one_line(why)}); "
        "delete it with 'fairqr index delete' and create it again."
    ) from None


def columns_of(schema: Schema) -> Mapping[str, list[str]]:
    """Return for each attribute the names of its groups' columns, in order."""
    return {
        name: [f"group{place}_{group}" for group in range(len(attribute.universe))]
        for place, (name, attribute) in enumerate(schema.attributes.items())
    }


def with_ids(schema: tantivy.Schema, ids: Sequence[str]) -> tantivy.Query:
    """Return the query for the documents with these ids."""
    return tantivy.Query.term_set_query(schema, "id", [sendable(id_) for id_ in ids])


def open_index(folder: Path) -> tantivy.Index:
    """Open the tantivy index in a folder.

    Raises:
        IndexVersionError: It is damaged.
    """
    try:
        index = tantivy.Index.open(str(folder / "text"))
        # Readers check for new writes themselves; see TantivyEngine.snapshot.
        index.config_reader("Manual")
    except (OSError, ValueError) as error:
        refuse_damaged(folder, error)
    index.register_tokenizer(ANALYZER_NAME, english_analyzer())
    return index


def build_index(
    folder: Path,
    manifest: Manifest,
    documents: Iterable[Document],
    labels: LabelReader,
    progress: Progress | None = None,
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
        SourceError: A label belongs to no group.
    """
    index = _create(folder / "text", manifest.corpus_schema)
    manifest.write(folder)
    hashes = array("q")
    with _writer(index, folder) as writer:
        for some in _told(documents, progress):
            hashes.extend(hash(document.id) for document in some)
            _add(writer, index.schema, some, labels, len(hashes) - len(some))
    if not hashes:
        raise CorpusError(f"The corpus {manifest.source} is empty; add at least one document.")
    # By chance two of ten million ids have one hash in one of 300,000 builds. Python's hashes
    # differ from process to process, so building again helps.
    order = np.argsort(hashes, kind="stable")
    same = np.flatnonzero(np.diff(np.frombuffer(hashes, np.int64)[order]) == 0)
    if len(same):
        first, second = order[same[0] : same[0] + 2] + 1
        raise CorpusError(
            f"The documents {first:,} and {second:,} of {manifest.source} have the same id; "
            "'fairqr corpus check' names the id and its lines."
        )


def upsert_documents(
    folder: Path,
    documents: Iterable[Document],
    labels: LabelReader,
    progress: Progress | None = None,
) -> int:
    """Add documents, replacing those with the same ids, and return how many were written.

    An error changes nothing.

    Raises:
        BuildInProgressError: Another process is writing to the index.
        SourceError: A label belongs to no group.
    """
    index, count = open_index(folder), 0
    with _writer(index, folder) as writer:
        # tantivy counts all additions and deletions that were ever committed. So from here on no
        # number was used, whatever was removed since.
        number = writer.commit_opstamp
        for some in _told(documents, progress):
            # The last of several with one id counts.
            last = list({document.id: document for document in some}.values())
            writer.delete_documents_by_query(with_ids(index.schema, [it.id for it in last]))
            _add(writer, index.schema, last, labels, number)
            # Those that come twice are not added twice, and so tantivy does not count them.
            number += len(last)
            count += len(some)
    return count


def remove_documents(folder: Path, ids: Sequence[str]) -> int:
    """Remove documents, and return how many were removed.

    Raises:
        BuildInProgressError: Another process is writing to the index.
    """
    index = open_index(folder)
    before = index.searcher().num_docs
    with _writer(index, folder) as writer:
        writer.delete_documents_by_query(with_ids(index.schema, ids))
    index.reload()
    return int(before - index.searcher().num_docs)


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
        if "LockBusy" in str(error):
            raise BuildInProgressError(
                f"Another process is writing to the index in {folder}; wait until it has finished."
            ) from None
        if str(error).startswith(_DISK_ERRORS):
            raise IndexUnavailableError(
                f"The index in {folder} cannot be written; make room on the disk, or name another "
                "folder in FAIRQR_DATA_DIR."
            ) from None
        raise


def _told(documents: Iterable[Document], progress: Progress | None) -> Iterator[list[Document]]:
    """Yield documents in lists, and tell after each how many were handled."""
    done = 0
    for some in chunks(documents, DOCUMENTS_AT_ONCE):
        yield some
        done += len(some)
        if progress:
            progress(done)


def _add(
    writer: tantivy.IndexWriter,
    schema: tantivy.Schema,
    documents: Sequence[Document],
    labels: LabelReader,
    number: int,
) -> None:
    """Add documents, with numbers from this one on."""
    memberships = labels.memberships([it.id for it in documents], labels.in_fields(documents))
    shares = np.hstack(list(memberships.values())).tolist()
    columns = [column for columns in columns_of(labels.schema).values() for column in columns]
    for row, document in enumerate(documents):
        id_bytes = document.id.encode() + b"."  # The mark of the end; zeros follow.
        words = np.frombuffer(id_bytes + bytes(-len(id_bytes) % 8), ">u8").tolist()
        fields = {
            "id": document.id,
            "body": composed(f"{document.title}\n{document.text}"),
            "source": stored(document),
            "number": number + row,
            **dict(zip(ID_COLUMNS, words, strict=False)),
            **dict(zip(columns, shares[row], strict=True)),
        }
        writer.add_document(tantivy.Document.from_dict(fields, schema))


def stored(document: Document) -> bytes:
    """Return a document in the form that the index stores."""
    parts = [document.id, document.title, document.text, dict(document.fields)]
    return json.dumps(parts, ensure_ascii=False).encode()


def from_stored(data: bytes) -> Document:
    """Return a document from its stored form."""
    return Document(*json.loads(bytes(data)))
