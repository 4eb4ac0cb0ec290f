"""A small collection, and a generator that says which documents it was shown."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fairqr.agents.attribution.attributor import Entailment, Pair
from fairqr.agents.generators import GenerationRequest, OnToken
from fairqr.agents.models.cache import ReplyCache
from fairqr.agents.models.replies import Reply, Usage
from fairqr.evaluation.experiments.workers import Tools
from fairqr.evaluation.rag.collection import PoolDocument, RagCollection, RagQuery, RagTask
from fairqr.evaluation.rag.specification import FairRagExperiment
from fairqr.prompts.library import PromptLibrary


class _Names:
    """1 for an answer that begins with a gold."""

    name = "begins rightly"
    greatest = 1.0

    def __call__(self, answer: str, golds: Sequence[str]) -> float:
        return float(answer.split(" ")[0] in golds)


class Namer:
    """Answers with the titles of its documents.

    Attributes:
        asked: What it was asked: the question and the titles.
        ends: By the titles it was shown, separated by spaces, how it ends instead.
    """

    name = "namer"

    def __init__(self, ends: dict[str, str] | None = None) -> None:
        self.asked: list[tuple[str, str]] = []
        self.ends = ends or {}

    async def start(self) -> None:
        """Nothing is needed."""

    async def generate(
        self,
        request: GenerationRequest,
        deadline: float | None = None,
        on_token: OnToken | None = None,
    ) -> Reply:
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
    """An answer used the documents whose letter it has; a document that says so is no document.

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
            if it == "e"
            else Entailment("ok", it in pair.hypothesis.split())
            for it, pair in zip(letters, pairs, strict=True)
        ]


async def tools_with(folder: Path, **opened: Any) -> Tools:
    """Return tools in which a generator, or an attributor, is open under its own name."""
    tools = Tools(PromptLibrary(), ReplyCache(folder / "replies.sqlite"))
    for place, thing in opened.items():
        await tools.keep(place, thing.name, partial(_itself, thing))
    return tools


async def _itself(thing: Any) -> Any:
    return thing


def query_of(name: str, size: int = 5, useful: int = 2) -> RagQuery:
    """A query with documents a, b, c …, of which the first are useful."""
    letters = "abcdefghij"[:size]
    pool = tuple(
        PoolDocument(f"{name}-{letter}", {"title": letter}, f"Text {letter}.", {})
        for letter in letters
    )
    return RagQuery(name, f"What of {name}?", name, tuple(letters[:useful]), pool)


def collection_of(*queries: RagQuery, **changes: Any) -> RagCollection:
    """A collection of these queries."""
    values: dict[str, Any] = {
        "name": "letters",
        "title": "Letters",
        "note": "",
        "task": RagTask("letters", "answer", _Names(), "The letter is {answer}."),
        "queries": queries,
        "fingerprint": "f0",
        "schema": None,
        "left_out": {},
        **changes,
    }
    return RagCollection(**values)


def experiment_of(**changes: Any) -> FairRagExperiment:
    """A small experiment."""
    values: dict[str, Any] = {
        "kind": "fair_rag",
        "title": "Letters",
        "collections": ["letters"],
        "generators": ["namer"],
        "alphas": [1, 8],
        "samples": 30,
        "generated": 5,
        "k": 3,
        **changes,
    }
    return FairRagExperiment.model_validate(values)
