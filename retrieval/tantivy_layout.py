"""The layout of an embedded index: what lies in its folder, and what is wrong with it.

``manifest.json`` (schema, source, format), ``text/`` (tantivy's own files), ``ids.*`` (see
:mod:`fairqr.retrieval.id_store`) and ``patterns.json``: for each attribute the distinct membership
vectors, which documents refer to by number.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import tantivy
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from fairqr.errors import IndexVersionError, one_line
from fairqr.retrieval.analysis import ANALYZER_NAME
from fairqr.retrieval.documents import Document
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.schema import Schema

__all__ = [
    "FORMAT",
    "Manifest",
    "from_source",
    "pattern_field",
    "pattern_tables",
    "read_manifest",
    "read_patterns",
    "refuse_damaged",
    "text_schema",
    "to_source",
]

FORMAT = 1
Pattern = tuple[float, ...]
_PATTERNS = TypeAdapter(dict[str, list[Pattern]])


class Manifest(BaseModel):
    """What a folder says of the index in it."""

    model_config = ConfigDict(frozen=True)

    format: int
    name: str
    source: str
    source_sha256: str
    corpus_schema: Schema


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a folder.

    Raises:
        IndexVersionError: It is damaged or of another version.
    """
    try:
        text = (folder / "manifest.json").read_text(encoding="utf-8")
        found = json.loads(text).get("format")
        if found == FORMAT:
            return Manifest.model_validate_json(text)
    except (OSError, ValueError, AttributeError, ValidationError):
        found = "damaged"
    raise IndexVersionError(
        f"The index in {folder} has format {found}, and this version of fairqr reads {FORMAT}; "
        "delete it with 'fairqr index delete' and create it again."
    )


def refuse_damaged(folder: Path, manifest: Manifest, why: object) -> NoReturn:
    """Raise for a folder that is not as it was written.

    Raises:
        IndexVersionError: In any case.
    """
    if not folder.exists():
        raise IndexVersionError(
            f"The index '{manifest.name}' was built anew or deleted meanwhile; open it again."
        ) from None
    raise IndexVersionError(
        f"The index '{manifest.name}' in {folder} is damaged ({one_line(why)}); "
        "delete it with 'fairqr index delete' and create it again."
    ) from None


def read_patterns(folder: Path, manifest: Manifest) -> dict[str, list[Pattern]]:
    """Return the patterns of each attribute that has any.

    Raises:
        IndexVersionError: The file is damaged.
    """
    try:
        patterns = _PATTERNS.validate_json((folder / "patterns.json").read_bytes())
    except ValidationError:
        refuse_damaged(folder, manifest, "patterns.json is not as it was written")
    except OSError as error:
        refuse_damaged(folder, manifest, error)
    for name, known in patterns.items():
        attribute = manifest.corpus_schema.attributes.get(name)
        size = len(attribute.universe) if attribute else -1
        if any(len(pattern) != size for pattern in known):
            refuse_damaged(folder, manifest, "patterns.json does not fit the schema")
    return patterns


def pattern_tables(folder: Path, manifest: Manifest) -> dict[str, FloatArray]:
    """Return the patterns of each attribute as an array, shape (patterns, groups)."""
    return {name: np.array(known) for name, known in read_patterns(folder, manifest).items()}


def pattern_field(schema: Schema, attribute: str) -> str:
    """Return the field that holds the number of a document's pattern."""
    schema.attribute(attribute)  # names what there is, where this one is not
    return f"pattern{list(schema.attributes).index(attribute)}"


def text_schema(schema: Schema) -> tantivy.Schema:
    """Return the fields that tantivy keeps of a document."""
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("id", fast=True, tokenizer_name="raw", index_option="basic")
    builder.add_text_field("body", tokenizer_name=ANALYZER_NAME, index_option="freq")
    builder.add_bytes_field("source", stored=True)
    builder.add_unsigned_field("number", fast=True)
    for attribute in schema.attributes:
        builder.add_unsigned_field(pattern_field(schema, attribute), fast=True)
    return builder.build()


def to_source(document: Document) -> bytes:
    """Return a document as it is stored."""
    source: dict[str, Any] = {
        "id": document.id,
        "title": document.title,
        "text": document.text,
        "fields": dict(document.fields),
    }
    return json.dumps(source, ensure_ascii=False).encode()


def from_source(source: bytes) -> Document:
    """Return a document that was stored."""
    return Document(**json.loads(bytes(source)))
