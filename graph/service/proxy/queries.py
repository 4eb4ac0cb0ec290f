"""What is in the queries and retrievers of a search: their kinds, and what was searched for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fairqr.graph.service.proxy.searches import names_of

WORDS = names_of("words")
TEXTS = names_of("texts")
CLAUSES = frozenset(
    [
        "filter",
        "must",
        "must_not",
        "negative",
        "organic",
        "positive",
        "queries",
        "query",
        "should",
    ]
)
"""The fields in which queries hold other queries."""

BY_FIELD = frozenset({"knn", "neural"})
"""Queries that may hold their filter below the name of a field."""

EXCLUDED = frozenset({"filter", "must_not", "negative"})
"""The fields whose queries say nothing of what is searched for."""

Clause = tuple[str, Any]
"""The kind of a query or retriever, such as match, and what it says."""


def listed(value: Any) -> list[Any]:
    """Return a list of what may be one, or of one, or nothing."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def clauses_in(query: Any) -> Iterator[Clause]:
    """Yield one or several queries and those in them."""
    for one in listed(query):
        for kind, inner in one.items() if isinstance(one, Mapping) else ():
            yield kind, inner
            if not isinstance(inner, Mapping):
                continue
            for name in CLAUSES & inner.keys():
                yield from clauses_in(inner[name])
            if kind in BY_FIELD:
                for below in inner.values():
                    yield from clauses_in(below.get("filter") if isinstance(below, Mapping) else ())


def retrievers_in(retriever: Any) -> Iterator[Clause]:
    """Yield a retriever and those in it; some say of each what it weighs."""
    for kind, inner in retriever.items() if isinstance(retriever, Mapping) else ():
        yield kind, inner
        if not isinstance(inner, Mapping):
            continue
        for child in [*listed(inner.get("retriever")), *listed(inner.get("retrievers"))]:
            is_weighted = isinstance(child, Mapping) and "retriever" in child
            yield from retrievers_in(child["retriever"] if is_weighted else child)


def words_in(query: Any) -> Iterator[str]:
    """Yield what queries and retrievers search texts for; filters and exclusions are left out."""
    if isinstance(query, list):
        for one in query:
            yield from words_in(one)
    if not isinstance(query, Mapping):
        return
    for name, inner in query.items():
        if name in EXCLUDED:
            continue
        is_text = name in TEXTS or (name == "query" and "fields" in query)
        if is_text and isinstance(inner, str):
            yield inner
        elif name in WORDS and isinstance(inner, Mapping):
            yield from _texts_of(inner)
        else:
            yield from words_in(inner)


def _texts_of(query: Mapping[str, Any]) -> Iterator[str]:
    for field in [query] if "query" in query else query.values():
        text = field.get("query") if isinstance(field, Mapping) else field
        if isinstance(text, str):
            yield text
