"""Remembers in which order first pages went out, so that later pages repeat and skip no hit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fairqr.base.kept import Kept
from fairqr.graph.search.pages import PAGED_SECONDS
from fairqr.graph.service.proxy.ordering import KEPT_LISTS, Told, order_shown
from fairqr.graph.service.proxy.requests import ProxiedSearch, windows_in, with_page


@dataclass(frozen=True, slots=True)
class _FirstPage:
    """A first page that went out.

    Attributes:
        told: What became of its list; None if it went out in the cluster's own order.
    """

    told: Told | None


class FirstPages:
    """The order in which the first page of each query went out last, for as long as lists are kept.

    Clients cannot be told apart, so the last one counts.
    """

    def __init__(self) -> None:
        self._pages: Kept[tuple[str, str], _FirstPage] = Kept(KEPT_LISTS, PAGED_SECONDS)

    def add(self, search: ProxiedSearch, told: Told | str) -> None:
        """Remember a page, if it is the first of a query whose fair lists are shown.

        Args:
            search: The search.
            told: What became of its list; a word if it went out in the cluster's own order.
        """
        if search.start or not search.fair:
            return
        shown = _FirstPage(None if isinstance(told, str) else told)
        self._pages.add((search.index, search.key), shown)

    def passed(self, search: ProxiedSearch) -> bool:
        """Return whether this is a later page, and the first went out in the cluster's order."""
        first = self._first_of(search)
        return first is not None and first.told is None

    def were_fair(self, searches: Sequence[ProxiedSearch]) -> bool:
        """Return whether these are later pages, and the first of each was of a fair list."""
        firsts = [self._first_of(search) for search in searches]
        return all(first is not None and first.told is not None for first in firsts)

    def continued(
        self, searches: Sequence[ProxiedSearch], reply: str
    ) -> tuple[list[Told], str] | None:
        """Cut later pages from the lists of which first pages were shown.

        Args:
            searches: The searches, in the order of the reply.
            reply: The reply to whole windows.

        Returns:
            What became of each search, and the reply; None if the hits are others than before.

        Raises:
            UnavailableError: The reply cannot be cut.
        """
        every = list[Told]()
        pairs = [*zip(searches, windows_in(reply, searches), strict=True)]
        for search, window in reversed(pairs):  # so that what comes before stays in place
            first = self._first_of(search)
            if first is None or first.told is None or window.is_partial:
                return None
            ids = [hit.get("_id") for *_, hit in window.hits[: search.window]]
            if ids != first.told["ids"]:
                return None
            every.insert(0, first.told)
            reply = with_page(reply, search, window.hits, order_shown(first.told))
        return every, reply

    def _first_of(self, search: ProxiedSearch) -> _FirstPage | None:
        """Return the first page that a later one belongs to, if it is remembered."""
        return self._pages.get((search.index, search.key)) if search.start else None
