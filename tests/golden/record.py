"""Records what searches of notables give, for tests/unit/graph/test_golden_searches.py.

Run it from the root of a checkout whose results are known to be right:
``python -m tests.golden.record > tests/golden/searches.json``.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

from fairqr.agents.refiner import Refinement, RefinementRequest

WORDS: dict[str, list[tuple[str, ...]]] = {
    "female": [("woman", "female"), ("wife", "daughter"), ("actress",)],
    "male": [("man", "theory"), ("king",), ("he",)],
    "Africa": [("African", "Egypt"), ("Nigeria",), ("Morocco",)],
    "Asia": [("China", "Japan"), ("India", "dynasty"), ("Asian",)],
    "Europe": [("physics", "Germany"), ("France",), ("Italy",)],
    "North America": [("American", "Nobel"), ("Canada",), ("Mexico",)],
    "South America": [("Brazil",), ("Argentina",), ("Chile",)],
    "Oceania": [("Australia",), ("New Zealand",), ("Fiji",)],
}
"""What the refiner of these tests proposes for each group, round by round."""

CASES: dict[str, dict[str, Any]] = {
    "default-gender": {"query": "physicist", "attributes": ["gender"]},
    "default-continent": {"query": "politician", "attributes": ["continent"], "k": 10},
    "default-both": {"query": "writer", "attributes": ["gender", "continent"]},
    "default-all": {"query": "religious leader of the church"},
    "intersect": {"query": "painter", "attributes": ["gender", "continent"], "intersect": True},
    "fair-qr-gender": {"query": "physicist", "attributes": ["gender"], "method": "fair-qr"},
    "fair-qr-continent": {"query": "tennis", "attributes": ["continent"], "method": "fair-qr"},
    "fair-qr-union": {
        "query": "chemist",
        "attributes": ["gender"],
        "method": "fair-qr",
        "pool": "union",
        "depth": 100,
    },
    "per-group": {
        "query": "composer",
        "attributes": ["continent"],
        "pool": "per_group",
        "rerank": "original_query",
    },
    "no-model": {"query": "astronomer", "attributes": ["gender"], "max_iterations": 0},
    "no-evidence": {"query": "mathematician", "attributes": ["gender"], "evidence": False},
    "most": {"query": "singer", "attributes": ["continent"], "groups": "most"},
    "lacking": {"query": "singer", "attributes": ["continent"], "groups": "lacking"},
    "plain": {"query": "explorer", "attributes": ["gender", "continent"], "method": "plain"},
    "mmr": {"query": "explorer", "attributes": ["gender"], "method": "mmr"},
    "fa-ir": {
        "query": "explorer",
        "attributes": ["gender"],
        "method": "fa-ir",
        "options": {"proportion": 0.4, "alpha": 0.1, "protected": "female"},
    },
    "shares": {
        "query": "actor",
        "attributes": ["gender"],
        "target": "gender=female:0.6,male:0.4",
        "discount": "rbp(0.8)",
        "k": 30,
        "patience": 2,
    },
    "corpus-target": {
        "query": "soccer player",
        "attributes": ["continent"],
        "target": "corpus:0.5,retrieved:0.5",
        "direction": "exposure_target",
    },
    "feedback": {"query": "physicist", "attributes": ["gender"], "refiner": "feedback"},
}


class ScriptedRefiner:
    """Proposes the words above, whatever the query."""

    name = "scripted"
    prompt = None

    async def start(self) -> None:
        """Nothing is missing."""

    async def refine(self, request: RefinementRequest, deadline: float | None = None) -> Refinement:
        """Propose the first words of the group that are not in use."""
        for words in WORDS[request.group.rpartition(" × ")[2]]:
            if not set(words) <= set(request.keywords):
                return Refinement("ok", keywords=words)
        return Refinement("repeated", message="No new word.")


def rounded(value: Any) -> Any:
    """Round numbers to eight digits, which other builds of numpy share."""
    if isinstance(value, float):
        return float(f"{value:.8g}")
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list) else value


def shortened(result: dict[str, Any]) -> dict[str, Any]:
    """Leave out what takes time, and titles, which the corpus has."""
    result = {key: value for key, value in result.items() if key not in ("usage", "reranking")}
    for holder in (result, result["baseline"]):
        holder["ranking"] = [
            [place["id"], place["score"], place["groups"]] for place in holder["ranking"]
        ]
    return rounded(result)  # type: ignore[no-any-return]


async def results(names: list[str]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Yield the result of each case."""
    from fairqr import FairSearch

    for name in names:
        context = dict(CASES[name])
        query, refiner = context.pop("query"), context.pop("refiner", None)
        with FairSearch("notables", refiner or ScriptedRefiner()) as search:
            result = await asyncio.to_thread(search.search, query, **context)
            yield name, shortened(result.model_dump(mode="json"))


async def main() -> None:
    """Print all results as JSON, one case a line."""
    lines = [
        f"{json.dumps(name)}: {json.dumps(result, ensure_ascii=False)}"
        async for name, result in results(list(CASES))
    ]
    sys.stdout.write("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    asyncio.run(main())
