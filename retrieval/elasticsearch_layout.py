"""How a corpus lies on an Elasticsearch server: names, mapping, and what documents become.

The documents of the index ``NAME`` are in a server index ``fairqr-NAME-<time>-<token>``, and the
alias ``fairqr-NAME`` points at the one that is live. What fairqr knows of a server index stands in
``_meta.fairqr`` of its mapping.

A document has ``id``; ``body``, the title and the text, which alone is searched;
``membership.<attribute>.<position>``, the share of the group at that position of the universe (not
its name, which may hold anything); and ``source``, which is kept and not looked into.

Vectors are added later, by :mod:`fairqr.retrieval.vectors`: ``vectors.<encoder>`` is a document's
vector, and ``wordless`` names the encoders that found no word in the document and gave no vector.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, field_serializer, field_validator

from fairqr.errors import IndexVersionError, InputError
from fairqr.retrieval.documents import Document
from fairqr.retrieval.schema import Schema

__all__ = [
    "FORMAT",
    "BuildMark",
    "Meta",
    "alias_of",
    "mappings_of",
    "new_index_name",
    "read_meta",
    "vector_mapping",
    "with_vector",
]

FORMAT = 1
PREFIX = "fairqr-"
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,199}")
STALE_SECONDS = 3600.0


def alias_of(name: str) -> str:
    """Return the alias that points at the live server index of a name.

    Raises:
        InputError: Elasticsearch does not take such a name.
    """
    if not NAME.fullmatch(name):
        raise InputError(
            f"'{name}' cannot name an index on Elasticsearch; use up to 200 lower-case letters, "
            "digits, '-', '_' and '.', beginning with a letter or digit."
        )
    return PREFIX + name


def new_index_name(name: str) -> str:
    """Return a name for a server index that no other has."""
    return f"{alias_of(name)}-{datetime.now(UTC):%Y%m%d%H%M%S}-{secrets.token_hex(4)}"


class BuildMark(BaseModel):
    """Who builds a server index, and a sign of life that is renewed while it is built.

    Attributes:
        token: Distinguishes this build from all others.
        renewed: When it last showed that it lives, in seconds since 1970 by its clock.
        machine: Where it runs; None where that cannot be told apart from other machines.
        pid: Its process there.
    """

    model_config = ConfigDict(frozen=True)

    token: str
    renewed: float
    machine: str | None
    pid: int

    @classmethod
    def own(cls) -> BuildMark:
        """Return the mark of a build that this process begins."""
        return cls(
            token=secrets.token_hex(8), renewed=time.time(), machine=_machine(), pid=os.getpid()
        )

    def alive(self) -> BuildMark:
        """Return the mark with a new sign of life."""
        return self.model_copy(update={"renewed": time.time()})

    def abandoned(self) -> bool:
        """Tell whether the build has ended: its process is gone, or was silent for an hour."""
        if time.time() - self.renewed > STALE_SECONDS:
            return True
        if self.machine is None or self.machine != _machine():
            return False
        return not Path(f"/proc/{self.pid}").exists()


def _machine() -> str | None:
    """Return what is the same only for processes that see each other's process ids."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        namespace = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return None
    return sha256(f"{socket.gethostname()} {boot} {namespace}".encode()).hexdigest()[:16]


class Meta(BaseModel):
    """What stands in ``_meta.fairqr`` of a server index.

    The schema is stored as text, since Elasticsearch loses the order of the keys in ``_meta``.
    """

    model_config = ConfigDict(frozen=True)

    format: int = FORMAT
    name: str
    source: str
    source_sha256: str
    corpus_schema: Schema
    complete: bool = False
    build: BuildMark

    @field_validator("corpus_schema", mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return json.loads(value) if isinstance(value, str) else value

    @field_serializer("corpus_schema")
    def _to_text(self, value: Schema) -> str:
        return value.model_dump_json()

    def stored(self) -> dict[str, Any]:
        """Return the content of ``_meta``."""
        return {"fairqr": self.model_dump(mode="json")}


def raw_meta(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``_meta.fairqr`` of what Elasticsearch says of an index, empty where it has none."""
    meta = state.get("mappings", {}).get("_meta", {}).get("fairqr", {})
    return meta if isinstance(meta, Mapping) else {}


def read_meta(state: Mapping[str, Any], name: str, url: str) -> Meta:
    """Read what is known of a server index.

    Args:
        state: What Elasticsearch says of it, with its mapping.
        name: How commands call it.
        url: Of the server.

    Raises:
        IndexVersionError: Another version wrote it, or something other than fairqr.
    """
    raw = raw_meta(state)
    found = raw.get("format", "unknown")
    if found == FORMAT:
        try:
            return Meta.model_validate(raw)
        except (ValidationError, ValueError):
            found = "damaged"
    raise IndexVersionError(
        f"The index '{name}' at {url} has format {found}, and this version of fairqr reads "
        f"{FORMAT}; delete it with 'fairqr index delete' and create it again."
    )


def mappings_of(meta: Meta) -> dict[str, Any]:
    """Return the mapping of a server index."""
    attributes = meta.corpus_schema.attributes
    memberships = {
        name: {
            "properties": {
                str(position): {"type": "double", "index": False}
                for position in range(len(attribute.universe))
            }
        }
        for name, attribute in attributes.items()
    }
    return {
        "_meta": meta.stored(),
        "dynamic": "strict",
        # What is searched stands in `source` already.
        "_source": {"excludes": ["id", "body"]},
        "properties": {
            "id": {"type": "keyword", "index": False},
            "body": {"type": "text", "analyzer": "english", "index_options": "freqs"},
            "membership": {"properties": memberships},
            "source": {"type": "object", "enabled": False},
        },
    }


def settings_of(schema: Schema, shards: int) -> dict[str, Any]:
    """Return the settings of a server index that is being built."""
    fields = sum(len(attribute.universe) + 1 for attribute in schema.attributes.values())
    return {
        "number_of_shards": shards,
        "refresh_interval": "-1",
        "mapping.total_fields.limit": max(1000, fields + 100),
    }


def stored_document(document: Document, schema: Schema, number: int | None = None) -> str:
    """Return the JSON that is stored for a document.

    Args:
        document: What to store.
        schema: Of its index.
        number: Its place in the corpus, from 1, by which a build tells a repeated id from a
            document that it sent twice.
    """
    # As text, since fields may hold what Elasticsearch does not take, such as NaN.
    source = {"title": document.title, "text": document.text, "fields": json.dumps(document.fields)}
    memberships = {
        name: {
            str(position): share
            for position, share in enumerate(document.membership(attribute))
            if share
        }
        for name, attribute in schema.attributes.items()
    }
    entry = {
        "id": document.id,
        "body": f"{document.title}\n{document.text}",
        "membership": memberships,
        "source": source if number is None else {**source, "number": number},
    }
    return json.dumps(entry, ensure_ascii=False)


def vector_mapping(key: str, dimensions: int, note: Mapping[str, str]) -> dict[str, Any]:
    """Return what is added to the mapping for the vectors of an encoder.

    Args:
        key: The encoder's, of letters, digits and underscores.
        dimensions: Of its vectors.
        note: Kept with the field; values of at most 50 characters.
    """
    field = {
        "type": "dense_vector",
        "dims": dimensions,
        "index": True,
        "similarity": "cosine",
        # Named, since later servers would round the vectors to bytes.
        "index_options": {"type": "hnsw", "m": 16, "ef_construction": 100},
        "meta": dict(note),
    }
    return {"vectors": {"properties": {key: field}}, "wordless": {"type": "keyword"}}


def with_vector(
    id_: str, stored: Mapping[str, Any], key: str, vector: Sequence[float] | None
) -> str:
    """Return the JSON of a stored document with the vector of an encoder added.

    Args:
        id_: Of the document.
        stored: Its ``_source``, all of it. The searched fields are not in there, and an update
            without them would take them off the index; so they are made again.
        key: The encoder's.
        vector: None where the encoder found no word in the document.
    """
    source = stored["source"]
    entry = {
        **stored,
        "id": id_,
        "body": f"{source['title']}\n{source['text']}",
    }
    if vector is None:
        entry["wordless"] = sorted({*stored.get("wordless", ()), key})
    else:
        entry["vectors"] = {**stored.get("vectors", {}), key: list(vector)}
    return json.dumps(entry, ensure_ascii=False)


def read_document(id_: str, source: Mapping[str, Any]) -> Document:
    """Return the document that was stored."""
    return Document(
        id=id_,
        title=source["title"],
        text=source["text"],
        fields=json.loads(source["fields"]),
    )
