"""Indexes with large documents: a window of them would be megabytes that nobody sees.

Such a window is asked for without its documents. The hits of the page come by another search, which
is the client's own with a filter for their ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fairqr.graph.service.proxy.queries import clauses_in
from fairqr.graph.service.proxy.replies import windows_in, with_hits
from fairqr.graph.service.proxy.requests import ProxiedSearch, UnavailableError
from fairqr.graph.service.proxy.searches import names_of

QUERIES = names_of("queries")
"""Queries that find the same hits where a filter says which."""

LARGE = 1_000_000
"""Bytes of a window from which on its documents are left out."""

REMEMBERED = 3_600.0
"""Seconds after which a whole window is asked for again, to see whether it is still large."""

OF_DOCUMENTS = frozenset(
    [
        "_source",
        "docvalue_fields",
        "explain",
        "fields",
        "highlight",
        "script_fields",
        "stored_fields",
    ]
)
"""What a client asks for of each hit."""

OF_ALL_HITS = frozenset(
    [
        "aggregations",
        "aggs",
        "from",
        "profile",
        "query",
        "size",
        "sort",
        "suggest",
        "track_total_hits",
    ]
)
"""What a search for the hits of a page leaves out, since the reply with the window has it."""

OF_BOTH_STEPS = frozenset(
    [
        "indices_boost",
        "min_score",
        "post_filter",
        "runtime_mappings",
        "seq_no_primary_term",
        "stats",
        "timeout",
        "track_scores",
    ]
)
"""What the searches for the window and for its documents both have."""

NARROWED = OF_DOCUMENTS | OF_ALL_HITS | OF_BOTH_STEPS
"""What may stand in a search whose hits are asked for in two steps."""


def without_documents(
    search: ProxiedSearch, body: Any, parameters: Mapping[str, str]
) -> ProxiedSearch | None:
    """Return the same search for a window without documents; None if it cannot do without them.

    Args:
        search: The search.
        body: The client's body.
        parameters: The parameters in the address.
    """
    if not isinstance(body, Mapping) or not _can_be_narrowed(body, parameters):
        return None
    is_only_the_page = search.body.get("size", 0) <= search.size
    if is_only_the_page:
        return None

    narrowed = {name: value for name, value in search.body.items() if name not in OF_DOCUMENTS}
    narrowed["_source"] = False
    for option in ("docvalue_fields", "fields"):
        entries = search.body.get(option, ())
        labels = [entry for entry in entries if _is_added(entry, search)]
        if labels:
            narrowed[option] = labels
    return replace(search, body=narrowed)


def _can_be_narrowed(body: Mapping[str, Any], parameters: Mapping[str, str]) -> bool:
    """Return whether a search finds the same hits where a filter says which."""
    has_other_options = bool(body.keys() - NARROWED)
    asks_in_address = "q" in parameters or bool(parameters.keys() & OF_DOCUMENTS)
    if has_other_options or asks_in_address:
        return False
    kinds = {kind for kind, _ in clauses_in(body.get("query"))}
    return kinds <= QUERIES


def _is_added(entry: Any, search: ProxiedSearch) -> bool:
    """Return whether the client did not ask for this field itself."""
    return isinstance(entry, Mapping) and entry.get("field") in search.added


def page_by_ids(body: Mapping[str, Any], hits: Sequence[Any]) -> dict[str, Any]:
    """Return the search for some hits as their client asked for them.

    Args:
        body: The client's body.
        hits: The hits, in any order.
    """
    options = {name: value for name, value in body.items() if name not in OF_ALL_HITS}
    ids = [hit["_id"] for hit in hits]
    query = {
        "bool": {
            "must": [body.get("query") or {"match_all": {}}],
            "filter": [{"ids": {"values": ids}}],
        }
    }
    return {**options, "query": query, "size": len(hits), "track_total_hits": False}


def with_documents(page: str, documents: str, search: ProxiedSearch) -> str:
    """Return a page whose hits are those of another reply.

    Args:
        page: The reply with the page, without documents.
        documents: The reply with the hits of the page, in any order.
        search: The search, alone in both.

    Raises:
        UnavailableError: A hit is not there any more.
    """
    (page_window,) = windows_in(page, [search])
    (documents_window,) = windows_in(documents, [search])
    texts = {
        _document_of(hit.value): documents[hit.start : hit.end] for hit in documents_window.hits
    }
    try:
        new_hits = [texts[_document_of(hit.value)] for hit in page_window.hits]
    except KeyError:
        raise UnavailableError("changed") from None
    return with_hits(page, page_window.hits, new_hits)


def _document_of(hit: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return which document of which index a hit is."""
    return hit.get("_index"), hit.get("_id")
