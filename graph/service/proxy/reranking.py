"""Re-ranks the searches of a reply with whole windows, and cuts their pages from it."""

from __future__ import annotations

from collections.abc import Sequence

from fairqr.graph.service.proxy.ordering import IndexOrder
from fairqr.graph.service.proxy.records import Outcome
from fairqr.graph.service.proxy.replies import Window, windows_last_first, with_page
from fairqr.graph.service.proxy.requests import ProxiedSearch, UnavailableError
from fairqr.graph.service.proxy.swaps import order_shown


async def reranked(
    order: IndexOrder, searches: Sequence[ProxiedSearch], reply: str, until: float
) -> tuple[list[Outcome], str]:
    """Re-rank searches of a reply.

    Args:
        order: Finds the fair order.
        searches: Those of its index that can be re-ranked.
        reply: The cluster's reply to whole windows.
        until: How long somebody waits for it, by the monotonic clock.

    Returns:
        What became of each search, and the reply with their pages.

    Raises:
        UnavailableError: The reply cannot be cut.
    """
    outcomes: list[Outcome] = []
    for search, window in windows_last_first(reply, searches):
        positions: list[int] = []
        outcome = await _outcome_of(order, search, window, until)
        if search.fair and not isinstance(outcome, str):
            positions = order_shown(outcome)
        outcomes.append(outcome)
        reply = with_page(reply, search, window.hits, positions)
    return outcomes[::-1], reply


async def _outcome_of(
    order: IndexOrder, search: ProxiedSearch, window: Window, until: float
) -> Outcome:
    """Return the record of a fair list, or why there is none."""
    if window.is_partial:
        return "partial"
    documents = [hit.value for hit in window.hits]
    try:
        return await order(documents, search, until)
    except UnavailableError as error:
        return str(error)


def as_asked(searches: Sequence[ProxiedSearch], reply: str) -> str:
    """Cut the pages of searches from whole windows, in the cluster's own order.

    Raises:
        UnavailableError: The reply cannot be cut.
    """
    for search, window in windows_last_first(reply, searches):
        reply = with_page(reply, search, window.hits, [])
    return reply
