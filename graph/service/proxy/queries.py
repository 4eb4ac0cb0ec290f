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

BY_FIELD = frozenset(["knn", "neural"])
"""Queries that may hold their filter below the name of a field."""

EXCLUDED = frozenset(["filter", "must_not", "negative"])
"""The fields whose queries say nothing of what is searched for."""

Clause = tuple[str, Any]
"""The kind of a query or retriever, such as match, and what it says."""


def as_list(value: Any) -> list[Any]:
    """Return the values of an option that may be a list, a single value, or missing."""
    if value is None:
        return []
    if isinstance(value, list):
        return value
    return [value]


def clauses_in(query: Any) -> Iterator[Clause]:
    """Yield one or several queries and those in them."""
    for alternative in as_list(query):
        if not isinstance(alternative, Mapping):
            continue
        for kind, options in alternative.items():
            yield kind, options
            for nested in _nested_queries(kind, options):
                yield from clauses_in(nested)


def _nested_queries(kind: str, options: Any) -> Iterator[Any]:
    """Yield the queries that a query of this kind holds directly."""
    if not isinstance(options, Mapping):
        return
    for name in CLAUSES & options.keys():
        yield options[name]
    if kind in BY_FIELD:
        for field in options.values():
            if isinstance(field, Mapping):
                yield field.get("filter")


def retrievers_in(retriever: Any) -> Iterator[Clause]:
    """Yield a retriever and those in it; some say of each what it weighs."""
    if not isinstance(retriever, Mapping):
        return
    for kind, options in retriever.items():
        yield kind, options
        if not isinstance(options, Mapping):
            continue
        children = [*as_list(options.get("retriever")), *as_list(options.get("retrievers"))]
        for child in children:
            is_weighted = isinstance(child, Mapping) and "retriever" in child
            yield from retrievers_in(child["retriever"] if is_weighted else child)


def words_in(query: Any) -> Iterator[str]:
    """Yield what queries and retrievers search texts for; filters and exclusions are left out."""
    if isinstance(query, list):
        for alternative in query:
            yield from words_in(alternative)
    elif isinstance(query, Mapping):
        for name, options in query.items():
            if name not in EXCLUDED:
                yield from _words_of(name, options, has_fields="fields" in query)


def _words_of(name: str, options: Any, *, has_fields: bool) -> Iterator[str]:
    """Yield what a query of this kind, or a member of a query, searches texts for.

    Args:
        name: The kind, or the name of the member.
        options: What it says.
        has_fields: Whether the fields that are searched stand beside it.
    """
    if isinstance(options, str):
        is_text = name in TEXTS or (name == "query" and has_fields)
        if is_text:
            yield options
    elif name in WORDS and isinstance(options, Mapping):
        yield from _texts_of(options)
    else:
        yield from words_in(options)


def _texts_of(query: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts of a query, which may stand below the names of fields."""
    fields = [query] if "query" in query else query.values()
    for field in fields:
        text = field.get("query") if isinstance(field, Mapping) else field
        if isinstance(text, str):
            yield text
