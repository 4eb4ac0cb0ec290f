"""What the fields of an index hold: how long their texts are, and how many differ."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from fairqr.retrieval.engines.elasticsearch.client import Body
from fairqr.retrieval.engines.elasticsearch.mapping import (
    KEYWORDS,
    TEXTS,
    Hit,
    IndexMapping,
    MappedField,
)
from fairqr.retrieval.sources.source import ElasticsearchSource

LONG = 10
"""A field with at least this many words on average holds texts that people search."""

MOST_FIELDS = 200
"""How many fields of an index we look at."""
SAMPLED_TEXTS = 100
"""How many random documents we read to see what fields hold."""


@dataclass(frozen=True, slots=True)
class FieldContents:
    """What a field of texts or keywords holds in a sample of documents.

    Attributes:
        name: The name of the field.
        is_analysed: Whether its words can be searched one by one.
        documents: The share of the documents that have a value, in [0, 1].
        words: The mean number of words of those.
        distinct: The share of different values among them, in [0, 1].
    """

    name: str
    is_analysed: bool
    documents: float
    words: float
    distinct: float

    @property
    def is_long(self) -> bool:
        """Whether it holds texts that people search, and not names or categories."""
        return self.words >= LONG and self.distinct > 0.5

    @property
    def in_words(self) -> str:
        """What it holds, for a person."""
        return f"{self.words:.0f} words on average, {self.distinct:.0%} of them different"


def fields_with_text(mapping: IndexMapping) -> list[str]:
    """Return the fields of texts and keywords whose values can be read from the documents.

    A part of another field, such as ``title.raw``, and one that others are copied to hold the same
    as those.
    """
    repeated: set[str] = set()
    for name, field in mapping.fields.items():
        repeated.update(_parts_of(name, field.settings))
        repeated.update(_copies_of(field.settings))

    names = []
    for name, field in mapping.fields.items():
        if name in repeated or not _has_own_text(field):
            continue
        if mapping.keeps(name):
            names.append(name)
    return names[:MOST_FIELDS]


def _has_own_text(field: MappedField) -> bool:
    """Return whether a field has texts or keywords, and is no alias of another one."""
    is_alias = "path" in field.settings
    return field.type in TEXTS | KEYWORDS and not field.nested and not is_alias


def _parts_of(name: str, settings: Mapping[str, Any]) -> list[str]:
    """Return the full names of a field's parts, such as ``title.raw``."""
    return [f"{name}.{part}" for part in settings.get("fields", {})]


def request_for(mapping: IndexMapping) -> Body:
    """Return what is requested of documents that show what the fields hold."""
    names = fields_with_text(mapping)
    # OpenSearch refuses an empty list where documents are not kept.
    if not names:
        return {"_source": False}
    return {"_source": False, "fields": names}


def contents_of(mapping: IndexMapping, hits: Sequence[Hit]) -> list[FieldContents]:
    """Return what each field holds in these documents; fields without any value are left out."""
    contents: list[FieldContents] = []
    for name in fields_with_text(mapping):
        texts = _texts_in(name, hits)
        if not texts:
            continue
        contents.append(
            FieldContents(
                name=name,
                is_analysed=mapping.fields[name].type in TEXTS,
                documents=len(texts) / len(hits),
                words=sum(len(text.split()) for text in texts) / len(texts),
                distinct=len(set(texts)) / len(texts),
            )
        )
    return contents


def _texts_in(name: str, hits: Sequence[Hit]) -> list[str]:
    """Return the text of a field in each document that has words there."""
    texts = []
    for hit in hits:
        values = hit.get("fields", {}).get(name, [])
        text = " ".join(map(str, values))
        if text.strip():
            texts.append(text)
    return texts


def remarks_on_searched(
    source: ElasticsearchSource, mapping: IndexMapping, contents: Sequence[FieldContents]
) -> list[str]:
    """Return a warning for each field of long texts that the source does not search."""
    remarks = []
    for field in contents:
        is_for_search = field.is_analysed and field.is_long
        if is_for_search and not _is_searched(source, field.name, mapping):
            remarks.append(
                f"The field '{field.name}' holds texts ({field.in_words}) and is not searched; add "
                "it to 'text', or to the fields of 'query'."
            )
    return remarks


def _copies_of(settings: Mapping[str, Any]) -> list[str]:
    """Return the fields that a field is copied to."""
    copies = settings.get("copy_to", [])
    return [copies] if isinstance(copies, str) else [*copies]


def _is_searched(source: ElasticsearchSource, name: str, mapping: IndexMapping) -> bool:
    """Return whether a source searches a field, a part of it, or a field it is copied to."""
    settings = mapping.fields[name].settings
    names = [name, *_copies_of(settings), *_parts_of(name, settings)]
    if source.body is not None:
        body = json.dumps(source.body, ensure_ascii=False, default=str)
        return "*" in body or any(field in body for field in names)
    patterns = [field.partition("^")[0] for field in source.searched_fields]
    return any(fnmatchcase(*pair) for pair in itertools.product(names, patterns))
