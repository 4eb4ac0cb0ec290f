"""Which searches are re-ranked, and what is asked of the cluster for them.

A search is re-ranked if only the order of its hits would change. Everything else passes, also what
is not listed in ``searches.yaml``: what clusters learn tomorrow passes until somebody lists it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairqr.graph.service.proxy.bounds import (
    UNBOUNDED,
    UnsuitedError,
    WindowBounds,
    bounds_of,
    count_of,
    pinned_in,
)
from fairqr.graph.service.proxy.label_fields import NO_FIELDS, LabelFields
from fairqr.graph.service.proxy.queries import as_list, words_in
from fairqr.graph.service.proxy.searches import names_of
from fairqr.graph.service.proxy.settings import ProxiedIndex

BODY = names_of("body") | names_of("ranking")
PARAMETERS = names_of("parameters")
COUNTED = names_of("counted")

ASIDE = names_of("aside")
"""What may stand in a body and changes no list."""

CHOOSING = names_of("choosing")
"""The parameters in the address by which hits are chosen or ranked."""

SEARCHED = ("query", "knn", "retriever")
"""What may have the words of a search."""

UBI = "ubi"
"""What User Behavior Insights calls itself; it changes no list."""

LONGEST_ID = 100
"""Characters that are kept of an id which a client gives a search."""

LONGEST_REASON = 50
"""Characters of the name of an option that are kept as the reason why a search passes."""

SIZE = 10
"""How many hits a search returns that does not say."""


class UnavailableError(Exception):
    """Nothing is re-ranked; the text is one word that says why."""


@dataclass(frozen=True, slots=True)
class ProxiedSearch:
    """A search that can be re-ranked.

    Attributes:
        index: The index, as the client names it.
        line: The line of the client's body that has it.
        body: What the cluster is asked: the whole window, and the page if that reaches beyond.
        start: How many hits to skip.
        size: How many to return.
        window: How many of the first hits are re-ranked.
        words: What was searched for, empty if the query has no words.
        key: Stands for the query, whatever the page.
        fair: Whether the fair list is shown; otherwise it is only recorded.
        added: The fields that were asked for beside those of the client, and are cut out again.
        pinned: The ids of documents that come first where they are found, as the client wishes.
        id: Names this one search in the log.
        share: The chance that its query is one of those that get fair lists.
    """

    index: str
    line: int
    body: dict[str, Any]
    start: int
    size: int
    window: int
    words: str
    key: str
    fair: bool
    added: frozenset[str] = frozenset()
    pinned: frozenset[str] = frozenset()
    id: str = ""
    share: float = 0.0


def planned(
    body: Any,
    parameters: Mapping[str, str],
    index: ProxiedIndex,
    name: str = "",
    line: int = 0,
    labels: LabelFields = NO_FIELDS,
) -> ProxiedSearch | str:
    """Return how to re-rank a search, or why it passes.

    Args:
        body: The body as JSON; None if there is none.
        parameters: The parameters in the address, which win over the body's.
        index: What to do with its searches; all pages of a query are of one kind.
        name: The index, as the client names it.
        line: The line of the body that has it.
        labels: The fields of labels.
    """
    if body is None:
        body = {}
    if not isinstance(body, Mapping):
        return "body"
    try:
        _check_options(body, parameters)
        bounds = bounds_of(body, parameters)
        page = _page_of(body, parameters, bounds, index.window)
    except UnsuitedError as error:
        return _reason_of(error)
    runtime_fields = body.get("runtime_mappings")
    if isinstance(runtime_fields, Mapping) and labels.names & runtime_fields.keys():
        return "runtime_mappings"  # the client means something else by the name of a label

    added = labels.missing_from(body, parameters)
    window = {**body, **added.beside(body, parameters), "from": 0, "size": page.requested}
    if page.requested is None:
        del window["size"]

    key = key_of(body, parameters)
    return ProxiedSearch(
        index=name,
        line=line,
        body=window,
        start=page.start,
        size=page.size,
        window=page.window,
        words=words_of(body, parameters),
        key=key,
        fair=is_fair(key, index),
        share=share_of(index),
        added=added.names,
        pinned=_pinned_ids(body),
    )


def _check_options(body: Mapping[str, Any], parameters: Mapping[str, str]) -> None:
    """Check that all options of a search are known.

    Raises:
        UnsuitedError: One is not.
    """
    unknown = (body.keys() - BODY) | (parameters.keys() - PARAMETERS)
    if unknown:
        raise UnsuitedError(min(unknown))
    if not _plugins_of(body).keys() <= {UBI}:
        raise UnsuitedError("ext")


def _plugins_of(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what plugins of the cluster are asked for."""
    plugins = body.get("ext")
    return plugins if isinstance(plugins, Mapping) else {}


def _reason_of(error: UnsuitedError) -> str:
    """Return why a search passes as a word for a header."""
    # Clients choose these words, and a header takes few characters.
    word = re.sub(r"[^\w.]+", "_", str(error), flags=re.ASCII)
    return word[:LONGEST_REASON] or "_"


def named_by_client(body: Any) -> str:
    """Return the id that a client gives a search for User Behavior Insights; empty if none."""
    if not isinstance(body, Mapping):
        return ""
    ubi = _plugins_of(body).get(UBI)
    if not isinstance(ubi, Mapping):
        return ""
    id_ = ubi.get("query_id")
    return id_[:LONGEST_ID] if isinstance(id_, str) else ""


def key_of(body: Mapping[str, Any], parameters: Mapping[str, str]) -> str:
    """Return what stands for a query in logs: a hash of all that its list depends on but the page.

    Args:
        body: The client's body.
        parameters: The parameters in the address.
    """
    query = {name: body[name] for name in body.keys() - ASIDE}
    chosen = {name: parameters[name] for name in parameters.keys() & CHOOSING}
    text = json.dumps([query, chosen], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_fair(key: str, index: ProxiedIndex) -> bool:
    """Return whether a query is one of those that get fair lists."""
    return int(key, 16) / 2**64 < share_of(index)


def share_of(index: ProxiedIndex) -> float:
    """Return the share of queries that get fair lists."""
    return index.share if index.mode == "fair" else 0.0


def words_of(body: Mapping[str, Any], parameters: Mapping[str, str]) -> str:
    """Return what a search is for; empty if it has no words."""
    in_address = parameters.get("q", "")
    if in_address:
        return in_address
    searched = [body[name] for name in SEARCHED if name in body]
    each_once = dict.fromkeys(words_in(searched))
    return " ".join(each_once)


@dataclass(frozen=True, slots=True)
class _Page:
    """What a client sees of a search, and what is asked for it.

    Attributes:
        start: How many hits to skip.
        size: How many to return.
        window: How many of the first hits are re-ranked.
        requested: How many hits the cluster is asked for; None leaves it to the cluster.
    """

    start: int
    size: int
    window: int
    requested: int | None


def _page_of(
    body: Mapping[str, Any],
    parameters: Mapping[str, str],
    bounds: WindowBounds,
    largest_window: int,
) -> _Page:
    """Return what a client sees.

    Args:
        body: The client's body.
        parameters: The parameters in the address.
        bounds: How far the search ranks its hits.
        largest_window: How many hits are re-ranked at most.

    Raises:
        UnsuitedError: Nothing of it is re-ranked.
    """
    options = {**body, **parameters}
    start = count_of(options.get("from", 0), "size")
    size = count_of(options.get("size", SIZE), "size")
    is_sized = "size" in options
    is_page = bounds.is_page
    if not is_sized and bounds.largest_size < UNBOUNDED:
        # Some clusters then return all that a retriever ranks.
        is_page = True
        size = bounds.largest_size
    if size == 0 or size > bounds.largest_size:
        raise UnsuitedError("size")

    window = min(largest_window, bounds.ranked)
    if is_page:
        movable = size - 1 if bounds.keeps_last else size
        window = min(window, movable)
    if window < 2:
        raise UnsuitedError("size")
    # Hits below the window stay where they are, and those of a later page are not known.
    if start >= window or (is_page and start):
        raise UnsuitedError("from")

    requested: int | None = min(max(window, start + size), bounds.largest_size)
    if is_page:
        requested = size if is_sized else None
    return _Page(start, size, window, requested)


def _pinned_ids(body: Mapping[str, Any]) -> frozenset[str]:
    """Return the ids of the documents that a client puts first."""
    ids: set[str] = set()
    for pinned in (*pinned_in(body.get("query")), *pinned_in(body.get("retriever"))):
        ids.update(str(id_) for id_ in as_list(pinned.get("ids")))
        for document in as_list(pinned.get("docs")):
            if isinstance(document, Mapping):
                ids.add(str(document.get("_id")))
    return frozenset(ids)
