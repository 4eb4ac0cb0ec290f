"""First pages of searches that passed: what their clients saw is the cluster's list."""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from fairqr.graph.service.proxy.requests import SIZE, is_fair, key_of, share_of, words_of
from fairqr.graph.service.proxy.settings import ProxiedIndex


@dataclass(frozen=True, slots=True)
class PassingPage:
    """A search that passes, of an index whose searches are re-ranked.

    Attributes:
        index: The index, as the settings name it.
        place: The line of the body that has the search.
        why: Why it passes.
        start: How many hits it skips; None if that cannot be told.
        size: How many it asks for.
        words: What was searched for, empty if the query has no words.
        key: Stands for the query, whatever the page.
        fair: Whether its query is one of those that get fair lists.
        name: How the client names the index, if nobody knows yet whether that is the index: its
            names are known once it is open.
        id: Names this one search in the log.
        share: The chance that its query is one of those that get fair lists.
    """

    index: str
    place: int
    why: str
    start: int | None
    size: int
    words: str
    key: str
    fair: bool
    name: str = ""
    id: str = ""
    share: float = 0.0


def reaches(name: str | None, names: Collection[str]) -> bool:
    """Return whether a search finds documents of an index.

    Args:
        name: What the client names: an index or alias, a pattern, a list of these, or nothing.
        names: The names of the index.
    """
    patterns = ["*" if it == "_all" else it for it in (name or "*").split(",")]
    return any(fnmatchcase(own, pattern) for pattern in patterns for own in names)


def page_of(
    body: Any, parameters: Mapping[str, str], index: ProxiedIndex, name: str, place: int, why: str
) -> PassingPage:
    """Return what is known of a search that passes.

    Args:
        body: The body as JSON.
        parameters: The parameters in the address, which win over the body's.
        index: What to do with the searches of the index.
        name: The index, as the settings name it.
        place: The line of the body that has the search.
        why: Why it passes.
    """
    asked = body if isinstance(body, Mapping) else {}
    start = _number(parameters.get("from", asked.get("from", 0)))
    if "search_after" in asked:  # it follows a page, and nothing says which
        start = None
    size = _number(parameters.get("size", asked.get("size", SIZE)))
    key = key_of(asked, parameters)
    return PassingPage(
        index=name,
        place=place,
        why=why,
        start=start,
        size=SIZE if size is None else size,
        words=words_of(asked, parameters),
        key=key,
        fair=is_fair(key, index),
        share=share_of(index),
    )


def _number(given: Any) -> int | None:
    try:
        return max(0, int(given))
    except (TypeError, ValueError):
        return None


class ShownReply:
    """A reply that went out.

    Args:
        reply: The reply; None if it was an error, too long, or did not arrive.
        packing: Its ``content-encoding``.
    """

    def __init__(self, reply: bytes | None, packing: str) -> None:
        self.size = len(reply or b"")
        self._reply = reply
        self._packing = packing

    def hits(self, place: int) -> list[Any] | None:
        """Return the hits of a search, or None if they cannot be read.

        Args:
            place: The line of the body that has the search.
        """
        try:
            hits = self._replies[place // 2]["hits"]["hits"]
        except (LookupError, TypeError):
            return None
        return hits if isinstance(hits, list) else None

    @cached_property
    def _replies(self) -> list[Any]:
        try:
            whole = json.loads(unpacked(self._reply or b"", self._packing))
            whole = whole.get("response", whole)  # of an asynchronous search
            return [*whole.get("responses", [whole])]
        except (ValueError, AttributeError, TypeError, zlib.error):
            return []


def unpacked(body: bytes, packing: str, most: int = 0) -> bytes:
    """Return a body without its compression.

    Args:
        body: The body.
        packing: Its ``content-encoding``, such as gzip; empty if there is none.
        most: The most bytes; 0 for any number.

    Raises:
        ValueError: It is longer, or cut off.
        zlib.error: It is not compressed like this.
    """
    if packing in ("", "identity"):
        return body
    unpack = zlib.decompressobj(47)  # gzip or deflate
    text = unpack.decompress(body, most)
    if not unpack.eof:
        raise ValueError("too long")
    return text
