"""Prints what the fair step, a search with refinement and an audit decide, for another process."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import fairqr
from fairqr.evaluation.collections.finding import find_collection
from fairqr.retrieval.fairness.best_ranking import best_ranking
from fairqr.retrieval.fairness.objective import RankingObjective


def steps() -> list[Any]:
    """Fair lists of random pools, many of them with ties and fractional memberships."""
    draw = np.random.default_rng(0)
    decisions = []
    for number in range(200):
        groups = int(draw.integers(2, 9))
        size = int(draw.integers(5, 400))
        shares = draw.dirichlet(np.ones(groups))
        members = np.eye(groups)[draw.choice(groups, size, p=shares)]
        if number % 3 == 0:
            members = (members + np.eye(groups)[draw.integers(0, groups, size)]) / 2
        probabilities = 1 / (1 + np.exp(-draw.normal(size=size)))
        if number % 2:
            probabilities = probabilities.round(2)
        target = draw.dirichlet(np.full(groups, 3.0))
        objective = RankingObjective(probabilities, [members], [target], 20)
        ranked = best_ranking(objective)
        decisions.append([ranked.tolist(), objective.quality(ranked).value])
    return decisions


async def searches() -> list[Any]:
    """Searches of several rounds."""
    results = []
    async with fairqr.FairSearch.open("notables", model="feedback", retriever="bm25") as search:
        for query in ("physicist", "writer", "painter of Spain", "composer born in Vienna"):
            for attribute in ("gender", "continent"):
                result = await search.search(query, attribute=attribute, ask="always")
                content = result.model_dump(mode="json", exclude={"usage"})
                results.append(content)
    return results


async def audit(folder: Path) -> Any:
    """An audit by judgements."""
    collection = find_collection("notables")
    queries = [{"id": topic.id, "query": topic.text(0)} for topic in collection.topics[:20]]
    await fairqr.audit(
        "notables", queries, qrels=collection.qrels, retriever="bm25", folder=folder, seed=1
    )
    return json.loads((folder / "audit.json").read_text())


async def main() -> None:
    """Print everything as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        audited = await audit(Path(folder) / "audit")
    print(json.dumps({"steps": steps(), "searches": await searches(), "audit": audited}))


if __name__ == "__main__":
    asyncio.run(main())
