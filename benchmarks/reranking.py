"""Re-ranking a pool of 1,000 documents without a model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
from generated import queries
from measuring import Row, in_turns_async, median
from workspace import Workspace

from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.fairness.best_ranking import best_ranking
from fairqr.retrieval.fairness.objective import RankingObjective
from fairqr.retrieval.fairness.ranking import Ranking, reciprocal_rank_fusion

POOL = 1_000
SHOWN = 20
MAX_MILLISECONDS = 5.0


def rerank_rows(workspace: Workspace) -> Iterator[Row]:
    """Measure fusion and the fair step beside rescoring the same pool by its ids."""
    engine = workspace.engine()
    query, *refined = queries(3)
    (hits,) = asyncio.run(engine.search([Query(query, POOL)]))
    pool, two, eight = tuple(hits.ids), hits.memberships["gender"], hits.memberships["region"]

    def ranked(text: str) -> Query:
        return Query(text, POOL, only=pool)

    scored = asyncio.run(engine.search([ranked(text) for text in (query, *refined)]))
    rankings = [Ranking(hits.ids, hits.scores) for hits in scored]
    even = {2: np.full(2, 1 / 2), 8: np.full(8, 1 / 8)}
    random = np.random.default_rng(1)
    relevance = np.sort(random.uniform(size=POOL))[::-1]
    fractional = random.dirichlet(np.ones(8), POOL)

    async def rescore(_: int) -> object:
        return await engine.search([ranked(query)])

    async def fuse(_: int) -> object:
        return reciprocal_rank_fusion(rankings)

    async def step_two(_: int) -> object:
        return best_ranking(RankingObjective(relevance, [two], [even[2]], SHOWN))

    async def step_eight(_: int) -> object:
        return best_ranking(RankingObjective(relevance, [eight], [even[8]], SHOWN))

    async def step_both(_: int) -> object:
        return best_ranking(RankingObjective(relevance, [two, eight], [even[2], even[8]], SHOWN))

    async def step_fractional(_: int) -> object:
        return best_ranking(RankingObjective(relevance, [fractional], [even[8]], SHOWN))

    async def step_all(_: int) -> object:
        return best_ranking(RankingObjective(relevance, [eight], [even[8]], POOL))

    what = {
        fuse: f"reciprocal rank fusion of 3 × {POOL:,}",
        step_two: f"fair step for 2 groups, first {SHOWN} of {POOL:,}",
        step_eight: f"fair step for 8 groups, first {SHOWN} of {POOL:,}",
        step_both: f"fair step for 2 and 8 groups at once, first {SHOWN} of {POOL:,}",
        step_fractional: f"fair step, no two memberships equal, first {SHOWN} of {POOL:,}",
        step_all: f"fair step for 8 groups, all {POOL:,}",
    }
    calls = {call.__name__: call for call in (rescore, *what)}
    taken = asyncio.run(in_turns_async(calls, workspace.rounds(40), 2))
    for call, words in what.items():
        mine = median(taken[call.__name__])
        judged = call is step_eight
        yield Row(
            "rerank",
            words,
            mine,
            "ms",
            f"rescore the {POOL:,} by ids",
            median(taken["rescore"]),
            f"≤ {MAX_MILLISECONDS:g} ms" if judged else "",
            mine <= MAX_MILLISECONDS if judged else None,
        )
