"""Parts that answer at once, so that what is left is the cost of the machine around them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.generated import GENDERS, REGIONS, SCHEMA, group_words
from fairqr.agents.refiners.refiner import GroupRequest, Refinement
from fairqr.prompts.template import PromptReference
from fairqr.retrieval.engines.engine import Capability, EngineInfo, Hits, Query
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.sources.schema import Attribute, Schema

ROUNDS = 2

IN_ROUNDS: dict[str, Any] = {"ask": "always", "max_iterations": ROUNDS, "patience": ROUNDS}
"""Options that make a search ask the model in each of its rounds, whatever it expects of them."""

WORDS = {group: group_words(group) for group in (*GENDERS, *REGIONS)}

FOUND = 20
"""How many documents the instant engine has."""

NEW_KEYWORDS = 3
"""How many keywords the instant refiner gives at a time."""

GENDER = Attribute(name="gender", **SCHEMA["attributes"]["gender"])


class InstantEngine:
    """An engine in which every search finds the same 20 documents, all of one group."""

    name = "instant"
    retriever = "bm25"
    in_process = True
    schema = Schema(attributes={"gender": GENDER})
    capabilities: frozenset[Capability] = frozenset(
        {"new_queries", "read_by_id", "rescore", "document_frequencies", "corpus_shares"}
    )
    filterable: frozenset[tuple[str, str]] = frozenset()

    def __init__(self) -> None:
        ids = [f"d{number:07}" for number in range(FOUND)]
        scores = [float(FOUND - number) for number in range(FOUND)]
        members = {"gender": np.tile([0.0, 1.0], (FOUND, 1))}
        self._hits = Hits(ids, scores, members)
        self._no_hits = Hits([], [], {"gender": np.zeros((0, 2))})

    async def info(self) -> EngineInfo:
        return EngineInfo(self.name, "instant", FOUND, "", "", "")

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        return [self._answer(query) for query in queries]

    def _answer(self, query: Query) -> Hits:
        if query.n:
            return self._hits
        # Any word stands in one document of the corpus, and in all that were found.
        is_of_corpus = bool(query.text) and query.only is None
        return replace(self._no_hits, total=1 if is_of_corpus else FOUND)

    async def documents(self, ids: Sequence[str]) -> list[Document]:
        return [Document(id_, id_, id_, {"gender": "male"}) for id_ in ids]

    async def corpus_shares(self) -> Mapping[str, FloatArray]:
        return {"gender": np.array([0.0, 1.0])}

    async def aclose(self) -> None:
        return None


class InstantRefiner:
    """A refiner that has new keywords each time it is asked.

    Args:
        seconds: How long it sleeps first.
    """

    name = "instant"
    prompts: Sequence[PromptReference] = ()

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds
        self._numbers = itertools.count()

    async def start(self) -> None:
        return None

    async def refine(self, request: GroupRequest, deadline: float | None = None) -> Refinement:
        await asyncio.sleep(self._seconds)
        words = WORDS.get(request.group, ())
        unused = [word for word in words if word not in request.keywords]
        keywords = unused[:NEW_KEYWORDS] or [f"word{next(self._numbers)}"]
        return Refinement("ok", keywords=tuple(keywords))
