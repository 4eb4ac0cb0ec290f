"""Finds the hits of searches in a cluster's reply, and cuts pages from them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from fairqr.graph.service.proxy.json_text import Part, first_member, parts_of, rewritten
from fairqr.graph.service.proxy.requests import ProxiedSearch, UnavailableError


class Window(NamedTuple):
    """What a reply has for a search.

    Attributes:
        hits: The hits.
        is_partial: Whether only a part of the shards answered, or not in time.
    """

    hits: list[Part]
    is_partial: bool


def windows_in(text: str, searches: Sequence[ProxiedSearch]) -> list[Window]:
    """Return what a reply has for each of these searches.

    Raises:
        UnavailableError: This is no reply, or a search failed.
    """
    windows: list[Window] = []
    try:
        replies = _replies_in(json.loads(text))
        starts = _starts_of_replies(text)
        for search in searches:
            number = search.line // 2
            windows.append(_window_in(text, starts[number], replies[number]))
    except (ValueError, LookupError):
        raise UnavailableError("reply") from None
    return windows


def windows_last_first(
    text: str, searches: Sequence[ProxiedSearch]
) -> Iterator[tuple[ProxiedSearch, Window]]:
    """Yield searches with what a reply has for each, the last one first.

    So the hits of the others stay where they are in the text when a page is cut from one.

    Raises:
        UnavailableError: This is no reply, or a search failed.
    """
    windows = windows_in(text, searches)
    pairs = [*zip(searches, windows, strict=True)]
    yield from reversed(pairs)


def _replies_in(reply: Any) -> list[Any]:
    """Return the replies to single searches.

    Raises:
        ValueError: This is no object.
    """
    if not isinstance(reply, dict):
        raise ValueError("no object")
    if "responses" in reply:
        return list(reply["responses"])
    return [reply.get("response", reply)]


def _starts_of_replies(text: str) -> list[int]:
    """Return where the replies to single searches begin.

    Raises:
        LookupError: The text has no hits.
    """
    name, start = first_member(text, 0, ("responses", "response", "hits"))
    if name == "responses":
        return [reply.start for reply in parts_of(text, start).values()]
    if name == "response":  # of an asynchronous search
        return [start]
    return [0]


def _window_in(text: str, start: int, reply: Any) -> Window:
    """Return what the reply to a single search has, whose text starts there.

    Raises:
        LookupError: The search failed.
    """
    _, outer_start = first_member(text, start, ("hits",))
    _, hits_start = first_member(text, outer_start, ("hits",))
    is_partial = bool(reply["timed_out"] or reply["_shards"].get("failed"))
    hits = parts_of(text, hits_start).values()
    return Window([*hits], is_partial)


def with_page(text: str, search: ProxiedSearch, hits: Sequence[Part], order: Sequence[int]) -> str:
    """Return a reply with a page of these hits, in a new order; those it lacks follow."""
    first_hits = [hits[position] for position in order]
    ordered = [*first_hits, *hits[len(order) :]]
    page = ordered[search.start : search.start + search.size]
    return with_hits(text, hits, [_without_added(text, hit, search.added) for hit in page])


def with_hits(text: str, hits: Sequence[Part], new_hits: Sequence[str]) -> str:
    """Return a reply with the texts of other hits in place of its own, if it has any."""
    if not hits:
        return text
    return text[: hits[0].start] + ",".join(new_hits) + text[hits[-1].end :]


def _without_added(text: str, hit: Part, added: frozenset[str]) -> str:
    """Return a hit as it would be without the fields that the client did not ask for."""
    names = hit.value.get("fields", {}).keys()
    if not added & names:
        return text[hit.start : hit.end]
    if names <= added:
        return rewritten(text, hit.start, hit.end, {"fields": None})

    fields = parts_of(text, hit.start)["fields"]
    clients_fields = rewritten(text, fields.start, fields.end, dict.fromkeys(added))
    return text[hit.start : fields.start] + clients_fields + text[fields.end : hit.end]
