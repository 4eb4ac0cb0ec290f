"""How we store a corpus in an index that we make on an Elasticsearch server.

A document has ``id``, ``title`` and ``text``; ``body``, which searches both as one field; and the
fields of its labels, named as in the corpus. Labels are keywords or numbers. If a label has
weights, or repeats a value, its field is an object of weights: ``{"Europe": 2, "Asia": 1}``.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

import numpy as np

from fairqr.base.errors import CorpusError, one_line
from fairqr.retrieval.corpus import Corpus
from fairqr.retrieval.documents import Document
from fairqr.retrieval.engines.elasticsearch_mapping import NUMBERS, IndexMapping
from fairqr.retrieval.label_values import values_of
from fairqr.retrieval.schema import Attribute, as_text

__all__ = ["DocumentForm", "mappings_of", "stored_form", "survey"]

Kind = Literal["keyword", "long", "double", "weights", "any_weights"]

OWN_FIELDS = ("id", "title", "text", "body", "vector")
FIELD = re.compile(r"[A-Za-z0-9][^\x00-\x1f*,\"\\]{0,199}")
PLAIN_NAME = re.compile(r"[A-Za-z0-9][^.\x00-\x1f*,\"\\]{0,99}")
MOST_PLAIN_NAMES = 500
LONG = 2**63


@dataclass(frozen=True, slots=True)
class DocumentForm:
    """How documents are stored.

    Attributes:
        kinds: For each label field ``keyword``, ``long``, ``double``, ``weights``, or
            ``any_weights`` if its values cannot be names of fields.
    """

    kinds: Mapping[str, Kind]

    def entry(self, document: Document) -> dict[str, Any]:
        """Return the form in which a document is sent.

        Raises:
            CorpusError: It has a label with weights, and the index cannot store those.
        """
        entry: dict[str, Any] = {
            "id": document.id,
            "title": document.title,
            "text": document.text,
        }
        for name, kind in self.kinds.items():
            label = document.fields.get(name)
            if label in (None, "", [], {}):
                continue
            if kind in ("weights", "any_weights"):
                entry[name] = _weights(label)
            elif has_weights(label):
                raise CorpusError(
                    f"The document '{document.id}' has weights in '{name}', and the index cannot "
                    "store them; create the index again."
                )
            elif kind == "keyword":
                entry[name] = [as_text(value) for value in values_of(label)]
            else:
                entry[name] = label
        return entry


def survey(corpus: Corpus) -> DocumentForm:
    """Read a corpus once, to see how its labels must be stored.

    Raises:
        CorpusError: It is empty or wrong, two documents have the same id, or the server does not
            accept the name of a label field.
    """
    names = {one.field for one in corpus.schema.attributes.values() if one.field}
    for name in names:
        if name in OWN_FIELDS or not FIELD.fullmatch(name):
            raise CorpusError(
                f"Elasticsearch cannot store labels in a field named '{one_line(name, 60)}'; "
                "rename it in the corpus and its schema."
            )
    seen = {name: _Seen() for name in names}
    hashes = array("Q")
    for document in corpus.documents():
        hashes.append(_hash(document.id))
        for name, what in seen.items():
            what.add(document.fields.get(name))
    if not hashes:
        raise CorpusError(f"The corpus {corpus.path} is empty; add at least one document.")
    _refuse_duplicates(corpus, hashes)
    return DocumentForm({name: what.kind() for name, what in seen.items()})


def stored_form(mapping: IndexMapping, attributes: Mapping[str, Attribute]) -> DocumentForm:
    """Return how documents are stored in an existing index."""
    kinds: dict[str, Kind] = {}
    for name in {one.field for one in attributes.values() if one.field}:
        found = mapping.find(name)
        kind = found.type if found else "keyword"
        if kind == "object":
            kinds[name] = "weights"
        elif kind == "flattened":
            kinds[name] = "any_weights"
        else:
            kinds[name] = "double" if kind in NUMBERS else "keyword"
    return DocumentForm(kinds)


def mappings_of(form: DocumentForm, dimensions: int | None) -> dict[str, Any]:
    """Return the mapping of an index.

    Args:
        form: How documents are stored in it.
        dimensions: The dimensions of the documents' vectors, or None for no vectors.
    """
    text = {"type": "text", "analyzer": "english"}
    properties: dict[str, Any] = {
        "id": {"type": "keyword"},
        "title": {**text, "copy_to": "body"},
        "text": {**text, "copy_to": "body"},
        "body": text,
    }
    templates = []
    for name, kind in form.kinds.items():
        if kind == "weights":
            properties[name] = {"type": "object", "dynamic": True}
            template = {"path_match": f"{name}.*", "mapping": {"type": "double"}}
            templates.append({f"weights of {name}": template})
        else:
            properties[name] = {"type": "flattened" if kind == "any_weights" else kind}
    if dimensions is not None:
        properties["vector"] = {
            "type": "dense_vector",
            "dims": dimensions,
            "index": True,
            "similarity": "cosine",
            # We name the index type, since later servers would otherwise round vectors to bytes.
            "index_options": {"type": "hnsw", "m": 16, "ef_construction": 100},
        }
    return {"dynamic": "strict", "dynamic_templates": templates, "properties": properties}


def has_weights(label: object) -> bool:
    """Return whether a label needs weights: it has some, or it repeats a value."""
    values = values_of(label)
    return isinstance(label, Mapping) or len({as_text(v) for v in values}) < len(values)


class _Seen:
    """The labels of one field that were seen so far."""

    def __init__(self) -> None:
        self.weighted = False
        self.numbers: Literal["long", "double", ""] = "long"
        self.empty = True
        self.names: set[str] = set()

    def add(self, label: object) -> None:
        values = values_of(label)
        self.weighted |= has_weights(label)
        for value in values:
            self.empty = False
            kind = _number_kind(value)
            if not kind or not self.numbers:
                self.numbers = ""
            elif kind == "double":
                self.numbers = "double"
            if len(self.names) <= MOST_PLAIN_NAMES:
                self.names.add(as_text(value))

    def kind(self) -> Kind:
        if not self.weighted:
            return "keyword" if self.empty or not self.numbers else self.numbers
        plain = all(PLAIN_NAME.fullmatch(name) for name in self.names)
        return "weights" if plain and len(self.names) <= MOST_PLAIN_NAMES else "any_weights"


def _number_kind(value: object) -> Literal["long", "double", ""]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    if isinstance(value, int):
        return "long" if -LONG <= value < LONG else ""
    return "double" if math.isfinite(value) else ""


def _weights(label: object) -> dict[str, float]:
    if isinstance(label, Mapping):
        return {str(value): float(weight) for value, weight in label.items()}
    return {value: float(n) for value, n in Counter(map(as_text, values_of(label))).items()}


def _hash(id_: str) -> int:
    return int.from_bytes(blake2b(id_.encode("utf-8"), digest_size=8).digest(), "big")


def _refuse_duplicates(corpus: Corpus, hashes: Iterable[int]) -> None:
    """Look for duplicate ids.

    Raises:
        CorpusError: There is one; the error names it and its places.
    """
    values, counts = np.unique(np.array(hashes, dtype=np.uint64), return_counts=True)
    suspects = set(values[counts > 1].tolist())
    if not suspects:
        return
    first: dict[str, int] = {}
    for place, document in enumerate(corpus.documents(), start=1):
        if _hash(document.id) in suspects and first.setdefault(document.id, place) != place:
            raise CorpusError(
                f"The id '{document.id}' occurs twice in {corpus.path}, in documents "
                f"{first[document.id]} and {place}; 'fairqr corpus check' names the lines."
            )
