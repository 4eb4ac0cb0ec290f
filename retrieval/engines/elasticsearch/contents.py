"""What the fields of an index hold: how long their texts are, and how many differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from fairqr.retrieval.engines.elasticsearch.client import Body
from fairqr.retrieval.engines.elasticsearch.mapping import KEYWORDS, TEXTS, Hit, IndexMapping
from fairqr.retrieval.sources.source import ElasticsearchSource

LONG = 10
"""From so many words on average, a field holds texts that people search."""

MOST_FIELDS = 200
SAMPLED_TEXTS = 100
"""So many random documents show what fields hold."""


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
    same: set[str] = set()
    for name, held in mapping.fields.items():
        same |= {f"{name}.{part}" for part in held.settings.get("fields", {})}
        same |= {*_copies_of(held.settings)}
    found = [
        name
        for name, held in mapping.fields.items()
        if held.type in TEXTS | KEYWORDS and not held.nested and "path" not in held.settings
    ]
    return [name for name in found if name not in same and mapping.keeps(name)][:MOST_FIELDS]


def request_for(mapping: IndexMapping) -> Body:
    """Return what is requested of documents that show what the fields hold."""
    names = fields_with_text(mapping)
    # OpenSearch refuses even none where documents are not kept.
    return {"_source": False, **({"fields": names} if names else {})}


def contents_of(mapping: IndexMapping, hits: Sequence[Hit]) -> list[FieldContents]:
    """Return what each field holds in these documents; fields without any value are left out."""
    found: list[FieldContents] = []
    for name in fields_with_text(mapping):
        values = [hit["fields"][name] for hit in hits if name in hit.get("fields", {})]
        texts = [" ".join(map(str, each)) for each in values]
        texts = [text for text in texts if text.strip()]
        if not texts:
            continue
        contents = FieldContents(
            name=name,
            is_analysed=mapping.fields[name].type in TEXTS,
            documents=len(texts) / len(hits),
            words=sum(len(text.split()) for text in texts) / len(texts),
            distinct=len({*texts}) / len(texts),
        )
        found.append(contents)
    return found


def remarks_on_searched(
    source: ElasticsearchSource, mapping: IndexMapping, contents: Sequence[FieldContents]
) -> list[str]:
    """Return a warning for each field of long texts that the source does not search."""
    return [
        f"The field '{each.name}' holds texts ({each.in_words}) and is not searched; add it to "
        "'text', or to the fields of 'query'."
        for each in contents
        if each.is_analysed
        and each.is_long
        and not _is_searched(source, each.name, mapping.fields[each.name].settings)
    ]


def _copies_of(settings: Mapping[str, Any]) -> list[str]:
    """Return the fields that a field is copied to."""
    copies = settings.get("copy_to", [])
    return [copies] if isinstance(copies, str) else [*copies]


def _is_searched(source: ElasticsearchSource, name: str, settings: Mapping[str, Any]) -> bool:
    names = [
        name,
        *_copies_of(settings),
        *(f"{name}.{part}" for part in settings.get("fields", {})),
    ]
    if source.body is not None:
        body = json.dumps(source.body, ensure_ascii=False, default=str)
        return "*" in body or any(one in body for one in names)
    patterns = [field.partition("^")[0] for field in source.searched_fields]
    return any(fnmatchcase(one, pattern) for one in names for pattern in patterns)
