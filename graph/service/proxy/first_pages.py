"""Remembers in which order first pages went out, so that later pages repeat and skip no hit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fairqr.base.kept import Kept
from fairqr.graph.search.pages import PAGED_SECONDS
from fairqr.graph.service.proxy.ordering import KEPT_LISTS, Outcome, Record, order_shown
from fairqr.graph.service.proxy.requests import ProxiedSearch, windows_in, with_page


@dataclass(frozen=True, slots=True)
class _FirstPage:
    """A first page that went out.

    Attributes:
        record: What is said of its list; None if it went out in the cluster's own order.
    """

    record: Record | None


class FirstPages:
    """The order in which the first page of each query went out last, for as long as lists are kept.

    Clients cannot be told apart, so the last one counts.
    """

    def __init__(self) -> None:
        self._pages: Kept[tuple[str, str], _FirstPage] = Kept(KEPT_LISTS, PAGED_SECONDS)

    def add(self, search: ProxiedSearch, outcome: Outcome) -> None:
        """Remember a page, if it is the first of a query whose fair lists are shown.

        Args:
            search: The search.
            outcome: What became of it; a word if it went out in the cluster's own order.
        """
        if search.start or not search.fair:
            return
        record = None if isinstance(outcome, str) else outcome
        self._pages.add((search.index, search.key), _FirstPage(record))

    def passed(self, search: ProxiedSearch) -> bool:
        """Return whether this is a later page, and the first went out in the cluster's order."""
        first = self._first_of(search)
        return first is not None and first.record is None

    def were_fair(self, searches: Sequence[ProxiedSearch]) -> bool:
        """Return whether these are later pages, and the first of each was of a fair list."""
        for search in searches:
            first = self._first_of(search)
            if first is None or first.record is None:
                return False
        return True

    def continued(
        self, searches: Sequence[ProxiedSearch], reply: str
    ) -> tuple[list[Record], str] | None:
        """Cut later pages from the lists of which first pages were shown.

        Args:
            searches: The searches, in the order of the reply.
            reply: The reply to whole windows.

        Returns:
            The record of each search, and the reply; None if the hits are others than before.

        Raises:
            UnavailableError: The reply cannot be cut.
        """
        records: list[Record] = []
        pairs = [*zip(searches, windows_in(reply, searches), strict=True)]
        # From the last one on, so that what comes before stays where it is in the reply.
        for search, window in reversed(pairs):
            first = self._first_of(search)
            if first is None or first.record is None or window.is_partial:
                return None
            ids = [hit.get("_id") for *_, hit in window.hits[: search.window]]
            if ids != first.record["ids"]:
                return None
            records.append(first.record)
            reply = with_page(reply, search, window.hits, order_shown(first.record))
        return records[::-1], reply

    def _first_of(self, search: ProxiedSearch) -> _FirstPage | None:
        """Return the first page that a later one belongs to, if it is remembered."""
        if not search.start:
            return None
        return self._pages.get((search.index, search.key))
