"""Small corpora of people in science, an engine over that of a module, and a refiner for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairqr.agents.models.replies import Usage
from fairqr.agents.refiners.refiner import GroupRequest, Refinement, TopicRequest
from fairqr.prompts.template import PromptReference
from fairqr.retrieval.engines.engine import Hits, Query, SearchEngine
from fairqr.retrieval.sources.catalog import Catalog
from tests.unit.engines import WatchedEngine

GENDERS = (
    "attributes: {gender: {field: g, groups: [female, male], population: {female: 0.5, male: 0.5}}}"
)

GENDERS_AND_PLACES = (
    "attributes:\n"
    "  gender: {field: g, groups: [female, male], population: {female: 0.5, male: 0.5}}\n"
    "  place: {field: p, groups: [north, south], population: {north: 0.5, south: 0.5}}\n"
)


def write_corpus(
    folder: Path, documents: Iterable[Mapping[str, Any]], schema: str = GENDERS
) -> Path:
    """Write a corpus with a schema beside it; return the file of its documents."""
    (folder / "schema.yaml").write_text(schema)
    path = folder / "people.jsonl"
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return path


async def indexed(
    folder: Path, documents: Iterable[Mapping[str, Any]], schema: str = GENDERS
) -> SearchEngine:
    """Index a corpus of a test's own."""
    return await Catalog(folder / "data").resolve(str(write_corpus(folder, documents, schema)))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty men and twenty women in science; women's texts say 'scholar', and come late."""
    documents = [
        {"id": f"m{i:02}", "title": f"Man {i}", "text": "science " * 3 + "filler " * i, "g": "male"}
        | {"p": "north" if i % 4 else "south"}
        for i in range(40)
    ]
    documents += [
        {"id": f"w{i:02}", "title": f"Woman {i}", "text": "science scholar " + "filler " * (i + 20)}
        | {"g": "female", "p": "north"}
        for i in range(20)
    ]
    documents += [{"id": f"x{i}", "text": "scholar other"} for i in range(5)]
    return write_corpus(tmp_path_factory.mktemp("corpus"), documents, GENDERS_AND_PLACES)


@pytest.fixture
async def engine(corpus: Path) -> AsyncIterator[SearchEngine]:
    """Built by the first test of a module, and opened by the others."""
    engine = await Catalog(corpus.parent / "data").resolve(str(corpus))
    yield engine
    await engine.aclose()


class AlteredEngine(WatchedEngine):
    """An engine whose hits are not quite those of another.

    Args:
        engine: The other.
        altered: Returns the fields of hits that differ.
    """

    def __init__(self, engine: SearchEngine, altered: Callable[[Hits], dict[str, Any]]) -> None:
        super().__init__(engine)
        self.altered = altered

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        found = await super().search(queries)
        return [replace(hits, **self.altered(hits)) if len(hits) else hits for hits in found]


class KnownRefiner:
    """Proposes the first of its words that is not yet in use.

    Args:
        words: Some for all groups, or by group (else those of ``any``), or what a coroutine
            function of the request returns. A refinement stands for itself.

    Attributes:
        asked: The requests.
        most_at_once: How many were under way at the same time.
    """

    name = "known"
    prompts: Sequence[PromptReference] = ()

    def __init__(self, words: Any = ("laboratory", "she")) -> None:
        self.words = words
        self.asked: list[GroupRequest] = []
        self.started = self.at_once = self.most_at_once = 0

    async def start(self) -> None:
        self.started += 1

    async def refine(self, request: GroupRequest, deadline: float | None = None) -> Refinement:
        self.asked.append(request)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        words = self.words
        if isinstance(words, Mapping):
            words = words.get(request.group, words.get("any", ()))
        elif callable(words):
            words = await words(request)
        if isinstance(words, Refinement):
            return words
        new = [word for word in words if word not in request.keywords]
        usage = Usage(model_calls=1, prompt_tokens=10, completion_tokens=2)
        if not new:
            return Refinement("repeated", usage=usage, message="No new word.")
        return Refinement("ok", keywords=(new[0],), usage=usage)


class KnownTopicRefiner(KnownRefiner):
    """Also proposes something about the topic.

    Args:
        topic: What it answers about the topic.
        words: As in :class:`KnownRefiner`.

    Attributes:
        topics: The requests about the topic.
    """

    def __init__(self, topic: Refinement, words: Any = ()) -> None:
        super().__init__(words)
        self.topic = topic
        self.topics: list[TopicRequest] = []

    async def refine_topic(
        self, request: TopicRequest, deadline: float | None = None
    ) -> Refinement:
        self.topics.append(request)
        return self.topic
