"""Pages of a search: each is the list that the final step makes of what earlier pages left.

So pages that follow each other never repeat a document, and together they have all that was found.
What a search found is kept for a while, since a model might answer otherwise the next time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from fairqr.graph.running import compute
from fairqr.graph.search.context import Context
from fairqr.graph.search.pool import Pool
from fairqr.graph.search.rankers import ModelRanking
from fairqr.graph.search.result import Measured
from fairqr.graph.search.state import SearchState
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.rerankers.base import Reranker
from fairqr.retrieval.rerankers.fair import FairStep

PAGED_SECONDS = 300.0
"""For how long we keep a fair list, so that all its pages are cut from one."""

KEPT_LISTS = 50
"""How many lists of a graph we keep."""


class FoundList(NamedTuple):
    """What a search found.

    Attributes:
        state: The state of the search before its last node.
        by_model: How a model re-ranked the list, if one did.
    """

    state: SearchState
    by_model: ModelRanking | None


def list_key(query: str, context: Context) -> tuple[str, str]:
    """Return what all pages of a list have in common."""
    return query, str(context.model_dump(exclude={"page", "front"}))


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the final list, and what is left for the next one.

    Attributes:
        iteration: The index of the round that the list comes from.
        ranking: The documents, with their scores before the final step.
        measured: The exposure in them.
        remaining: The documents that may follow, in their order before the final step.
        step: The final step, which the next page takes as well; optional.
        earlier: The ids of the documents on earlier pages.
        weight: The weight of fairness that led to the page; None if the fair step did not make it.
        missed: By how many points a group missed a target that was given.
        warnings: Sentences about how the page came about.
        by_model: How a model re-ranked the list, if one did.
    """

    iteration: int
    ranking: Ranking
    measured: Measured
    remaining: Ranking
    step: Reranker | None = None
    earlier: Sequence[str] = ()
    weight: float | None = None
    missed: int = 0
    warnings: Sequence[str] = ()
    by_model: ModelRanking | None = None


def pages_of(first: Page, k: int) -> int:
    """Return how many pages of k documents the list has that a first page begins."""
    if not first.ranking.ids:
        return 0
    return 1 + math.ceil(len(first.remaining) / k)


async def page_of(pool: Pool, first: Page) -> Page:
    """Return the page that the context of a run asks for, empty if the list ends before it.

    Args:
        pool: What the run has found.
        first: The first page.
    """
    page = first
    for _ in range(1, pool.context.page):
        if page.ranking.ids:
            page = await next_page(pool, page)
    return page


async def next_page(pool: Pool, page: Page) -> Page:
    """Return the page after another one, which may be empty."""
    k = pool.context.k
    remaining = page.remaining
    ids = remaining.ids[:k]
    weight = page.weight
    missed = 0
    warnings = list(page.by_model.warnings) if page.by_model else []
    if ids and isinstance(page.step, FairStep):
        take = partial(page.step.take, pool.candidates(remaining), k)
        fair = await compute(take)
        ids = [remaining.ids[position] for position in fair.positions]
        weight = fair.weight
        missed = fair.missed
    elif ids and page.step is not None:
        candidates = pool.candidates(remaining)
        reranked = await page.step.rerank(pool.engine, pool.state["query"], candidates, k)
        ids = reranked.ranking.ids
        warnings += reranked.warnings
    return replace(
        page,
        ranking=remaining.picked(ids),
        measured=pool.measured(ids),
        remaining=remaining.without(set(ids)),
        earlier=[*page.earlier, *page.ranking.ids],
        weight=weight,
        missed=missed,
        warnings=warnings,
    )
