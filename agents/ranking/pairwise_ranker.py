"""Pairwise ranking prompting: orders a list by comparisons (PRP, Qin et al. 2024).

Each comparison asks in both orders. If the answers differ or one is missing, nobody wins.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections import Counter
from collections.abc import Sequence
from typing import Literal, get_args

from fairqr.agents.models.replies import Usage
from fairqr.agents.ranking.item_ranker import Cost, ItemRanking, RankItem
from fairqr.agents.ranking.pairwise import PairwiseJudge
from fairqr.agents.ranking.pairwise_reply import Comparison, Preference
from fairqr.base.errors import InputError
from fairqr.base.loops import PerLoop, run_together

Strategy = Literal["all", "sorting", "sliding"]
"""Every pair once; a merge sort; or bubble passes from the end of the list to its begin."""


def most_comparisons(items: int, strategy: Strategy, passes: int) -> int:
    """Return the largest number of comparisons that a ranking may take.

    Args:
        items: The number of items in the list.
        strategy: How the list is ordered. ``all`` always takes n(n−1)/2; the others may take fewer.
        passes: The number of passes of the sliding strategy.
    """
    if items < 2:
        return 0
    if strategy == "all":
        return items * (items - 1) // 2
    if strategy == "sliding":
        return sum(items - 1 - done for done in range(min(passes, items - 1)))
    halves = items // 2, items - items // 2
    return sum(most_comparisons(half, strategy, passes) for half in halves) + items - 1


class PairwiseRanker:
    """Orders items by a judge's comparisons of pairs.

    Args:
        judge: Compares two items.
        strategy: With ``all`` pairs, an item's score is its number of wins, plus ½ for each pair
            that nobody wins. ``sorting`` is a merge sort. ``sliding`` makes passes from the end to
            the beginning. Each pass carries the best remaining item to its place, so as many top
            places are right as there are passes. If nobody wins, the order stays.
        passes: The number of passes of the sliding strategy.
        concurrency: How many comparisons run at the same time, over all lists.

    Raises:
        InputError: A parameter is out of range.
    """

    def __init__(
        self,
        judge: PairwiseJudge,
        *,
        strategy: Strategy = "all",
        passes: int = 10,
        concurrency: int = 8,
    ) -> None:
        if strategy not in get_args(Strategy):
            raise InputError(
                f"There is no strategy '{strategy}' of comparisons; choose "
                f"{', '.join(get_args(Strategy))}."
            )
        if passes < 1 or concurrency < 1:
            raise InputError("The passes and the concurrency of comparisons must be at least 1.")
        self._judge = judge
        self._strategy: Strategy = strategy
        self._passes = passes
        self._concurrency = concurrency
        self._slots: PerLoop[asyncio.Semaphore] = PerLoop()

    @property
    def name(self) -> str:
        """The model and the strategy, e.g. ``pairwise(local:smollm2-135m, sorting)``."""
        passes = f" {self._passes}" if self._strategy == "sliding" else ""
        return f"pairwise({self._judge.model.name}, {self._strategy}{passes})"

    async def start(self) -> None:
        """Start the model.

        Raises:
            ModelUnavailableError: Something is missing.
        """
        await self._judge.start()

    def cost(self, query: str, items: Sequence[RankItem], group: str = "") -> Cost:
        """Return the largest cost of :meth:`rank`: two calls for each comparison.

        We count the tokens of the two longest items for each comparison.
        """
        comparisons = most_comparisons(len(items), self._strategy, self._passes)
        if not comparisons:
            return Cost()
        longest = heapq.nlargest(2, items, key=self._judge.tokens)
        each = self._judge.cost(query, *longest, group=group)
        return Cost(comparisons * each.calls, comparisons * each.tokens)

    async def rank(
        self,
        query: str,
        items: Sequence[RankItem],
        *,
        group: str = "",
        deadline: float | None = None,
    ) -> ItemRanking:
        """Rank the items; see :class:`fairqr.agents.ranking.item_ranker.ItemRanker`."""
        slots = self._slots.setdefault(asyncio.Semaphore(self._concurrency))
        asking = _Asking(self._judge, query, items, group, deadline, slots)
        places = list(range(len(items)))
        scores: tuple[float, ...] | None = None
        if self._strategy == "all":
            scores = await _wins(asking, len(items))
            order = sorted(places, key=lambda place: (-scores[place], place))
        elif self._strategy == "sorting":
            order = await _merge_sorted(asking, places)
        else:
            order = await _slid(asking, places, self._passes)
        return ItemRanking(
            order=tuple(order),
            asked=len(asking.told),
            failures=asking.failures(),
            scores=scores,
            usage=asking.usage(),
            warnings=(*self._judge.warnings, *asking.warnings()),
            message=asking.message(),
        )


class _Asking:
    """The comparisons of one list; each pair is asked about once."""

    def __init__(
        self,
        judge: PairwiseJudge,
        query: str,
        items: Sequence[RankItem],
        group: str,
        deadline: float | None,
        slots: asyncio.Semaphore,
    ) -> None:
        self._judge, self._query, self._items, self._group = judge, query, items, group
        self._until = None if deadline is None else time.monotonic() + deadline
        self._slots = slots
        self.told: dict[tuple[int, int], Comparison] = {}

    async def compare(self, one: int, other: int) -> int | None:
        """Return which of two places wins; None for neither."""
        low, high = min(one, other), max(one, other)
        if (low, high) not in self.told:
            self.told[low, high] = await self._ask(low, high)
        winner = self.told[low, high].winner
        return None if winner is None else low if winner == "one" else high

    async def _ask(self, low: int, high: int) -> Comparison:
        async with self._slots:
            left = None if self._until is None else self._until - time.monotonic()
            if left is not None and left <= 0:
                late = Preference("timeout", message="There was no time left to ask.")
                return Comparison(late, late)
            return await self._judge.compare(
                self._query,
                self._items[low],
                self._items[high],
                group=self._group,
                deadline=left,
            )

    def failures(self) -> dict[str, int]:
        """Return how many comparisons failed, by the status of the first failed answer."""
        failures = (comparison.failure for comparison in self.told.values())
        return dict(Counter(status for status in failures if status is not None))

    def message(self) -> str:
        """Return why the last failed comparison failed; empty if unknown."""
        answers = (
            each
            for comparison in reversed(self.told.values())
            for each in (comparison.one_first, comparison.other_first)
        )
        return next((it.message for it in answers if it.status not in ("ok", "tie")), "")

    def usage(self) -> Usage:
        """Return the cost of all comparisons."""
        return sum((comparison.usage for comparison in self.told.values()), Usage())

    def warnings(self) -> tuple[str, ...]:
        """Return a warning if most answers depend on the position."""
        flips = sum(comparison.flips for comparison in self.told.values())
        if 2 * flips <= len(self.told):
            return ()
        return (
            f"{flips} of {len(self.told)} comparisons changed with the order of the two documents; "
            "the ranking is based on the others.",
        )


async def _wins(asking: _Asking, items: int) -> tuple[float, ...]:
    """Return the number of wins of each item, with ½ for each pair that nobody wins."""
    pairs = list(itertools.combinations(range(items), 2))
    winners = await run_together(asking.compare(*pair) for pair in pairs)
    scores = [0.0] * items
    for pair, winner in zip(pairs, winners, strict=True):
        for place in pair:
            scores[place] += 0.5 if winner is None else float(place == winner)
    return tuple(scores)


async def _merge_sorted(asking: _Asking, places: Sequence[int]) -> list[int]:
    """Return places best first by a merge sort; both halves are sorted at the same time."""
    if len(places) < 2:
        return list(places)
    half = len(places) // 2
    ahead, behind = await run_together(
        _merge_sorted(asking, part) for part in (places[:half], places[half:])
    )
    merged: list[int] = []
    while ahead and behind:
        wins = await asking.compare(ahead[0], behind[0]) == behind[0]
        merged.append((behind if wins else ahead).pop(0))
    return merged + ahead + behind


async def _slid(asking: _Asking, places: Sequence[int], passes: int) -> list[int]:
    """Return places after bubble passes; each pass ends one place later than the one before."""
    order = list(places)
    for done in range(min(passes, len(order) - 1)):
        for at in range(len(order) - 1, done, -1):
            if await asking.compare(order[at - 1], order[at]) == order[at]:
                order[at - 1], order[at] = order[at], order[at - 1]
    return order
