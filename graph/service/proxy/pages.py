"""First pages of searches that passed: what their clients saw is the cluster's list."""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from fairqr.graph.service.proxy.requests import (
    SIZE,
    ProxiedSearch,
    is_fair,
    key_of,
    share_of,
    words_of,
)
from fairqr.graph.service.proxy.settings import ProxiedIndex

GZIP_OR_DEFLATE = 47
"""The ``wbits`` by which zlib unpacks both, and tells them apart by their first bytes."""


@dataclass(frozen=True, slots=True)
class PassingPage:
    """A search that passes, of an index whose searches are re-ranked.

    Attributes:
        index: The index, as the settings name it.
        line: The line of the client's body that has the search.
        reason: Why it passes.
        start: How many hits it skips; None if that is not known.
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
    line: int
    reason: str
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
    for entry in (name or "*").split(","):
        pattern = "*" if entry == "_all" else entry
        if any(fnmatchcase(index_name, pattern) for index_name in names):
            return True
    return False


def page_of(
    body: Any, parameters: Mapping[str, str], index: ProxiedIndex, name: str, line: int, reason: str
) -> PassingPage:
    """Return what is known of a search that passes.

    Args:
        body: The body as JSON.
        parameters: The parameters in the address, which win over the body's.
        index: What to do with the searches of the index.
        name: The index, as the settings name it.
        line: The line of the body that has the search.
        reason: Why it passes.
    """
    if not isinstance(body, Mapping):
        body = {}
    options = {**body, **parameters}
    start = _number(options.get("from", 0))
    if "search_after" in body:  # it follows a page, and nothing says which
        start = None
    size = _number(options.get("size", SIZE))
    key = key_of(body, parameters)
    return PassingPage(
        index=name,
        line=line,
        reason=reason,
        start=start,
        size=SIZE if size is None else size,
        words=words_of(body, parameters),
        key=key,
        fair=is_fair(key, index),
        share=share_of(index),
    )


def page_in_own_order(search: ProxiedSearch, reason: str) -> PassingPage:
    """Return a search that could have been re-ranked, as one that passes for this reason."""
    return PassingPage(
        index=search.index,
        line=search.line,
        reason=reason if search.fair else "shadow",
        start=search.start,
        size=search.size,
        words=search.words,
        key=search.key,
        fair=search.fair,
        id=search.id,
        share=search.share,
    )


def _number(value: Any) -> int | None:
    """Return a number of hits, or None if the value is no number."""
    try:
        return max(0, int(value))
    except (TypeError, ValueError):
        return None


class ShownReply:
    """A reply that went out.

    Args:
        reply: The reply; None if it was an error, too long, or did not arrive.
        packing: Its ``content-encoding``.
    """

    def __init__(self, reply: bytes | None, packing: str) -> None:
        self._reply = reply or b""
        self._packing = packing
        self.size = len(self._reply)

    def hits(self, line: int) -> list[Any] | None:
        """Return the hits of a search, or None if they cannot be read.

        Args:
            line: The line of the client's body that has the search.
        """
        number = line // 2
        try:
            hits = self._replies[number]["hits"]["hits"]
        except (LookupError, TypeError):
            return None
        return hits if isinstance(hits, list) else None

    @cached_property
    def _replies(self) -> list[Any]:
        """The replies to single searches; empty if they cannot be read."""
        try:
            reply = json.loads(unpacked(self._reply, self._packing))
            reply = reply.get("response", reply)  # of an asynchronous search
            replies = reply.get("responses", [reply])
            return [*replies]
        except (ValueError, AttributeError, TypeError, zlib.error):
            return []


def unpacked(body: bytes, packing: str, most_bytes: int = 0) -> bytes:
    """Return a body without its compression.

    Args:
        body: The body.
        packing: Its ``content-encoding``, such as gzip; empty if there is none.
        most_bytes: How long the text may be; 0 for any length.

    Raises:
        ValueError: It is longer, or cut off.
        zlib.error: It is not compressed like this.
    """
    if packing in ("", "identity"):
        return body
    unpacker = zlib.decompressobj(GZIP_OR_DEFLATE)
    text = unpacker.decompress(body, most_bytes)
    if not unpacker.eof:
        raise ValueError("too long")
    return text
