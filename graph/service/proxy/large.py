"""Indexes with large documents: a window of them would be megabytes that nobody sees.

Such a window is asked for without its documents. The hits of the page come by another search, which
is the client's own with a filter for their ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fairqr.graph.service.proxy.queries import clauses_in
from fairqr.graph.service.proxy.requests import ProxiedSearch, UnavailableError, windows_in
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
"""What a search for the hits of a page leaves out, since the window has told it."""

_OF_THE_SEARCH = "indices_boost min_score post_filter runtime_mappings seq_no_primary_term stats"
NARROWED = OF_DOCUMENTS | OF_ALL_HITS | {*_OF_THE_SEARCH.split(), "timeout", "track_scores"}
"""What may stand in a search whose hits are asked for in two steps."""


def without_documents(
    search: ProxiedSearch, asked: Any, parameters: Mapping[str, str]
) -> ProxiedSearch | None:
    """Return the same search for a window without documents; None if it cannot do without them.

    Args:
        search: The search.
        asked: What its client asked for.
        parameters: The parameters in the address.
    """
    if not isinstance(asked, Mapping) or "q" in parameters or asked.keys() - NARROWED:
        return None
    kinds = {kind for kind, _ in clauses_in(asked.get("query"))}
    if kinds - QUERIES or parameters.keys() & OF_DOCUMENTS:
        return None
    if search.body.get("size", 0) <= search.size:  # the window is but the page
        return None
    kept = {name: it for name, it in search.body.items() if name not in OF_DOCUMENTS}
    labels = {
        option: [entry for entry in search.body.get(option, ()) if _is_added(entry, search)]
        for option in ("docvalue_fields", "fields")
    }
    fields = {option: entries for option, entries in labels.items() if entries}
    return replace(search, body={**kept, "_source": False, **fields})


def _is_added(entry: Any, search: ProxiedSearch) -> bool:
    return isinstance(entry, Mapping) and entry.get("field") in search.added


def page_by_ids(asked: Mapping[str, Any], hits: Sequence[Any]) -> dict[str, Any]:
    """Return the search for some hits as their client asked for them.

    Args:
        asked: What the client asked for.
        hits: The hits, in any order.
    """
    own = {name: it for name, it in asked.items() if name not in OF_ALL_HITS}
    query = {
        "bool": {
            "must": [asked.get("query") or {"match_all": {}}],
            "filter": [{"ids": {"values": [hit["_id"] for hit in hits]}}],
        }
    }
    return {**own, "query": query, "size": len(hits), "track_total_hits": False}


def with_documents(page: str, documents: str, search: ProxiedSearch) -> str:
    """Return a page whose hits are those of another reply.

    Args:
        page: The reply with the page, without documents.
        documents: The reply with the hits of the page, in any order.
        search: The search, alone in both.

    Raises:
        UnavailableError: A hit is not there any more.
    """
    ((hits, _),) = windows_in(page, [search])
    ((found, _),) = windows_in(documents, [search])
    texts = {_key(value): documents[begin:end] for begin, end, value in found}
    try:
        written = ",".join(texts[_key(value)] for _, _, value in hits)
    except KeyError:
        raise UnavailableError("changed") from None
    if not hits:
        return page
    return page[: hits[0][0]] + written + page[hits[-1][1] :]


def _key(hit: Mapping[str, Any]) -> tuple[Any, Any]:
    return hit.get("_index"), hit.get("_id")
