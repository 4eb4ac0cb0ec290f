"""The folder of an embedded index: what is in it, and errors when it is damaged.

``manifest.json`` says what was indexed, ``text/`` has tantivy's own files, ``ids.*`` the ids by
number, and ``dense/`` the vectors of the documents. Each group's share in a document is a column of
numbers, read together with the hits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import tantivy
from pydantic import BaseModel, ConfigDict

from fairqr.base.errors import IndexVersionError, one_line
from fairqr.retrieval.engines.tantivy.analysis import ANALYZER_NAME, english_analyzer
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.sources.schema import Schema

FORMAT = 2

VECTORS = "dense"
"""The folder of vectors, with one folder for each encoder."""


class Manifest(BaseModel):
    """What was indexed.

    Attributes:
        format: The layout of the folder.
        source: Where the documents come from, for users.
        fingerprint: A hash of the corpus content.
        files: The sizes and times of the corpus files; empty if they say too little.
        labels_folder: Paths of label files are relative to this.
        corpus_schema: The attributes, with the groups that label files name.
    """

    model_config = ConfigDict(frozen=True)

    format: int = FORMAT
    source: str
    fingerprint: str
    files: str = ""
    labels_folder: Path = Path()
    corpus_schema: Schema


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a folder.

    Raises:
        IndexVersionError: It is damaged, or from another version.
    """
    try:
        text = (folder / "manifest.json").read_text(encoding="utf-8")
        found = json.loads(text).get("format")
        if found == FORMAT:
            return Manifest.model_validate_json(text)
    except OSError as error:
        refuse_damaged(folder, error)
    except (ValueError, AttributeError):
        refuse_damaged(folder, "its manifest was changed")
    raise IndexVersionError(
        f"The index in {folder} has format {found}, but this version of fairqr reads {FORMAT}; "
        "delete it with 'fairqr index delete' and create it again."
    )


def refuse_damaged(folder: Path, why: object) -> NoReturn:
    """Raise the error for a damaged folder.

    Raises:
        IndexVersionError: Always.
    """
    if not folder.exists():
        raise IndexVersionError(
            f"The index in {folder} was rebuilt or deleted in the meantime; open it again."
        ) from None
    raise IndexVersionError(
        f"The index in {folder} is damaged ({one_line(why)}); "
        "delete it with 'fairqr index delete' and create it again."
    ) from None


def columns_of(schema: Schema) -> Mapping[str, list[str]]:
    """Return for each attribute the names of its groups' columns, in order."""
    return {
        name: [f"group{place}_{group}" for group in range(len(attribute.universe))]
        for place, (name, attribute) in enumerate(schema.attributes.items())
    }


def create_text(folder: Path, schema: Schema) -> tantivy.Index:
    """Create an empty tantivy index for documents with these attributes."""
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("id", fast=True, tokenizer_name="raw", index_option="basic")
    builder.add_text_field("body", tokenizer_name=ANALYZER_NAME, index_option="freq")
    builder.add_bytes_field("source", stored=True)
    builder.add_unsigned_field("number", fast=True)
    for columns in columns_of(schema).values():
        for column in columns:
            builder.add_float_field(column, fast=True)
    path = folder / "text"
    path.mkdir(parents=True)
    index = tantivy.Index(builder.build(), str(path), sort_by_field="id")
    index.register_tokenizer(ANALYZER_NAME, english_analyzer())
    return index


def open_text(folder: Path) -> tantivy.Index:
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


def to_stored(document: Document) -> bytes:
    """Return a document in the form that the index stores."""
    stored: dict[str, Any] = {
        "id": document.id,
        "title": document.title,
        "text": document.text,
        "fields": dict(document.fields),
    }
    return json.dumps(stored, ensure_ascii=False).encode()


def from_stored(stored: bytes) -> Document:
    """Return a document from its stored form."""
    return Document(**json.loads(bytes(stored)))
