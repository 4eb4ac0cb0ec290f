"""Records what searches and answers give, for tests/unit/graph/test_golden_results.py.

Run it from the root of a checkout whose results are known to be right:
``python -m tests.golden.record searches > tests/golden/searches.json``, and likewise for the
answers.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

from fairqr.agents.generators import GenerationRequest
from fairqr.agents.models.replies import Reply
from fairqr.agents.refiners.refiner import GroupRequest, Refinement

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


def asked(what: str, *attributes: str, **more: Any) -> dict[str, Any]:
    """Return the arguments of a search or an answer."""
    return {"query": what, "attributes": [*attributes], **more}


FA_IR = {"proportion": 0.4, "alpha": 0.1, "protected": "female"}
SHARES, MIXED = "gender=female:0.6,male:0.4", "corpus:0.5,retrieved:0.5"
CASES = {
    "default-gender": asked("physicist", "gender"),
    "default-both": asked("writer", "gender", "continent"),
    "fusion": asked(
        "physicist", "gender", groups="all", rerank="fusion", final_step="exposure-aware", depth=200
    ),
    "intersect": asked("painter", "gender", "continent", intersect=True),
    "fair-qr-gender": asked("physicist", "gender", method="fair-qr"),
    "fair-qr-union": asked("chemist", "gender", method="fair-qr", pool="union", depth=100),
    "no-model": asked("astronomer", "gender", max_iterations=0),
    "baseline": asked("explorer", "gender", "continent", method="baseline"),
    "mmr": asked("explorer", "gender", method="mmr"),
    "fa-ir": asked("explorer", "gender", method="fa-ir", options=FA_IR),
    "shares": asked("actor", "gender", target=SHARES, discount="rbp(0.8)", k=30, patience=2),
    "corpus-target": asked("soccer player", "continent", target=MIXED, direction="exposure_target"),
    "feedback": asked("physicist", "gender", refiner="feedback"),
}

ANSWERS = {
    "one": asked("physicist", "gender", k=20),
    "worths": asked(
        "painter", "gender", "continent", intersect=True, samples=8, form="worths", k=10
    ),
    "fair": asked(
        "writer",
        "continent",
        method="fairqr",
        ask="always",
        samples=5,
        alpha=0,
        documents=4,
        word_weights={"topic": 1, "group": 1},
    ),
}
"""Questions, answered from rankings that are drawn with the seed 1."""


class ScriptedRefiner:
    """Proposes the words above, whatever the query."""

    name = "scripted"
    prompts = ()

    async def start(self) -> None:
        """Nothing is missing."""

    async def refine(self, request: GroupRequest, deadline: float | None = None) -> Refinement:
        """Propose the first words of the group that are not in use."""
        for words in WORDS[request.group.rpartition(" × ")[2]]:
            if not set(words) <= set(request.keywords):
                return Refinement("ok", keywords=words)
        return Refinement("repeated", message="No new word.")


class EchoingGenerator:
    """Answers with the first title that it reads."""

    name = "echo"

    async def start(self) -> None:
        """Nothing is missing."""

    async def generate(
        self, request: GenerationRequest, deadline: float | None = None, on_token: Any = None
    ) -> Reply:
        """Return the title."""
        return Reply("ok", {"text": f"It is {request.sources[0]['title']}."})


def rounded(value: Any) -> Any:
    """Round numbers to eight digits, which other builds of numpy share."""
    if isinstance(value, float):
        return float(f"{value:.8g}")
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list) else value


def shortened(result: dict[str, Any]) -> dict[str, Any]:
    """Leave out what takes time, titles, which the corpus has, and what needs an estimate."""
    left_out = {"usage", "reranking", "attainable", "explanation"}
    result = {key: value for key, value in result.items() if key not in left_out}
    for holder in (result, result["baseline"]):
        assert holder.pop("relevance") is None
        assert holder.pop("gaps") is None
        holder["ranking"] = [[it["id"], it["score"], it["groups"]] for it in holder["ranking"]]
    return rounded(result)  # type: ignore[no-any-return]


async def searches(names: list[str]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Yield the result of each search."""
    from fairqr import FairSearch

    for name in names:
        context = dict(CASES[name])
        query, refiner = context.pop("query"), context.pop("refiner", None)
        if "method" not in context:
            context["ask"] = "always"
            context["word_weights"] = {"topic": 1, "group": 1}
        words = refiner or ScriptedRefiner()
        async with FairSearch.open("notables", words, retriever="bm25") as search:
            result = await search.search(query, **context)
            yield name, shortened(result.model_dump(mode="json"))


async def answers(names: list[str]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Yield what is answered to each question."""
    from fairqr import FairSearch

    given: Any = {"generator": EchoingGenerator(), "attributor": "overlap", "retriever": "bm25"}
    for name in names:
        context = dict(ANSWERS[name])
        question = context.pop("query")
        async with FairSearch.open("notables", ScriptedRefiner(), **given) as search:
            answer = await search.answer(question, seed=1, **context)
            yield name, rounded(answer.model_dump(mode="json", exclude={"usage"}))


KINDS = {"searches": (CASES, searches), "answers": (ANSWERS, answers)}


async def main() -> None:
    """Print all results of a kind as JSON, one case a line."""
    cases, results = KINDS[sys.argv[1]]
    lines = [
        f"{json.dumps(name)}: {json.dumps(result, ensure_ascii=False)}"
        async for name, result in results(list(cases))
    ]
    sys.stdout.write("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    asyncio.run(main())
