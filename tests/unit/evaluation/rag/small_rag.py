"""A small collection, a generator that says which documents it was shown, and runs of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fairqr.agents.attribution.attributor import Entailment, Pair
from fairqr.agents.generators import GenerationRequest
from fairqr.agents.models.cache import ReplyCache
from fairqr.agents.models.replies import Reply, Usage
from fairqr.evaluation.experiments.workers import Tools
from fairqr.evaluation.rag.answering import answer_query
from fairqr.evaluation.rag.collection import PoolDocument, RagCollection, RagQuery, Utility
from fairqr.evaluation.rag.measured import MeasuredRag, measure_fair_rag
from fairqr.evaluation.rag.running import RagPlan, make_rag_plan
from fairqr.evaluation.rag.specification import FairRagExperiment
from fairqr.evaluation.rag.store import PolicyRecord, RagManifest
from fairqr.prompts.library import PromptLibrary
from tests.unit.retrieval.embedded import GENDER

GROUPS = {"a": "female", "b": "male", "c": "male", "d": "female", "e": "male"}
"""Who the documents with these letters are about; of others nothing is known."""


def _begins_rightly(answer: str, golds: Sequence[str]) -> float:
    """1 for an answer that begins with a gold."""
    return float(answer.split(" ")[0] in golds)


class Namer:
    """Answers with the titles of its documents.

    Attributes:
        asked: What it was asked: the question and the titles.
        ends: By the titles it was shown, separated by spaces, how it ends instead.
    """

    def __init__(self, ends: dict[str, str] | None = None, name: str = "namer") -> None:
        self.asked: list[tuple[str, str]] = []
        self.ends = ends or {}
        self.name = name

    async def start(self) -> None:
        """Nothing is needed."""

    async def generate(self, request: GenerationRequest, *_: Any) -> Reply:
        await asyncio.sleep(0)  # others have their turn, as while a model is waited for
        titles = " ".join(source["title"] for source in request.sources)
        self.asked.append((request.question, titles))
        usage = Usage(model_calls=1, prompt_tokens=7, completion_tokens=3)
        match self.ends.get(titles, "ok"):
            case "ok":
                return Reply("ok", {"text": titles or "nothing"}, usage=usage)
            case "empty":
                return Reply("empty", usage=usage)
            case "cached":
                return Reply("ok", {"text": titles}, usage=Usage(0, 1, 0, 0, 10, 250.0))
            case "refuses":
                return Reply("refused", message="No.", usage=usage)
            case _:
                return Reply("timeout", message="It took too long.", usage=usage)


class LetterJudge:
    """An answer used the documents whose letter it has, but b; and e is no document.

    Attributes:
        pairs: What it was asked.
    """

    name = "letters"

    def __init__(self) -> None:
        self.pairs: list[tuple[str, str]] = []

    async def start(self) -> None:
        """Nothing is needed."""

    async def judge(self, pairs: Sequence[Pair]) -> list[Entailment]:
        self.pairs += [(pair.premise, pair.hypothesis) for pair in pairs]
        letters = [pair.premise.removeprefix("Text ").removesuffix(".") for pair in pairs]
        return [
            Entailment("empty_document")
            if letter == "e"
            else Entailment("ok", letter != "b" and letter in pair.hypothesis.split())
            for letter, pair in zip(letters, pairs, strict=True)
        ]


@dataclass
class Scorer:
    """A retriever that scores each query's documents by chance."""

    name: str

    async def start(self) -> None:
        """Nothing is needed."""

    async def scores(self, query: str, texts: Sequence[str]) -> Any:
        return np.random.default_rng([*f"{self.name}{query}".encode()]).random(len(texts))


async def tools_with(**opened: Any) -> Tools:
    """Return tools in which these are open, by their places, under their own names."""
    tools = Tools(PromptLibrary(), ReplyCache())
    for key, tool in opened.items():
        await tools.keep(key, tool.name, partial(_itself, tool))
    return tools


async def _itself(tool: Any) -> Any:
    return tool


def query_of(name: str, size: int = 5, useful: int = 2) -> RagQuery:
    """A query with documents a, b, c …, of which the first are useful."""
    letters = "abcdefghij"[:size]
    pool = tuple(
        PoolDocument(
            f"{name}-{letter}",
            {"title": letter},
            f"Text {letter}.",
            {"gender": {GROUPS[letter]: 1.0}},
        )
        if letter in GROUPS
        else PoolDocument(f"{name}-{letter}", {"title": letter}, f"Text {letter}.", {})
        for letter in letters
    )
    return RagQuery(name, f"What of {name}?", name, tuple(letters[:useful]), pool)


def collection_of(*queries: RagQuery, **changes: Any) -> RagCollection:
    """A collection of these queries."""
    values = {"name": "letters", "title": "Letters", "prompt": "answer", "fingerprint": "f0"}
    utility = Utility("begins rightly", _begins_rightly)
    return RagCollection(**{"queries": queries, "utility": utility, **values, **changes})


def experiment_of(**changes: Any) -> FairRagExperiment:
    """A small experiment."""
    values: dict[str, Any] = {"kind": "fair_rag", "title": "Letters", "collections": ["letters"]}
    values |= {"generators": ["namer"], "alphas": [1, 8], "samples": 30, "generated": 5, "k": 3}
    return FairRagExperiment.model_validate(values | changes)


def plan_of(
    *queries: RagQuery, attributor: str = "", of: dict[str, Any] | None = None, **changes: Any
) -> RagPlan:
    """Plan a small experiment, with changes of its collection."""
    collection = collection_of(*queries, **(of or {}))
    experiment = experiment_of(**changes)
    return make_rag_plan(experiment, {collection.name: collection}, PromptLibrary(), attributor)


@dataclass
class Made:
    """What a run would have left."""

    manifest: RagManifest
    records: list[PolicyRecord]
    collections: dict[str, RagCollection]

    def measured(self) -> MeasuredRag:
        """Measure it."""
        return measure_fair_rag(self.manifest, self.records, self.collections)


def made(
    queries: int = 6, of: dict[str, Any] | None = None, judge: str = "letters", **changes: Any
) -> Made:
    """Run an experiment whose last query is dropped, and one of whose generators refuses.

    Args:
        queries: How many are kept.
        of: Changes of the collection, which has groups.
        judge: The name of what judges; empty for nothing.
        changes: Of the experiment.
    """
    rag_queries = [query_of(f"q{n}", 6, 2 + n % 2) for n in range(queries)]
    of = {"schema": GENDER, **(of or {})}
    collection = collection_of(*rag_queries, query_of("dropped", 6, 1), **of)
    changes = {"generators": ["small", "large"], "retrievers": ["bm25", "dense"], **changes}
    experiment = experiment_of(**{"k": 2, "samples": 20, "generated": 10, **changes})
    named = {collection.name: collection}
    plan = make_rag_plan(experiment, named, PromptLibrary(), judge, ["It was made."])

    async def answers() -> list[PolicyRecord]:
        records: list[PolicyRecord] = []
        for name in experiment.generators:
            places: dict[str, Any] = {
                f"retriever {name}": Scorer(name) for name in experiment.retrievers
            }
            namer = Namer({"c d": "refuses"} if name == "large" else {}, name)
            tools = await tools_with(**places, generator=namer, attributor=LetterJudge())
            for part, query in plan.tasks:
                if part.generator == name:
                    records += (await answer_query(tools, part, query, ())).records
        return [record.model_copy(update={"milliseconds": 12.5}) for record in records]

    fixed = {"versions": {"fairqr": "1"}, "started": "2026-01-01T00:00:00Z"}
    return Made(plan.manifest.model_copy(update=fixed), asyncio.run(answers()), named)
