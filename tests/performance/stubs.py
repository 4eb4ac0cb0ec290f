"""Parts that answer at once, so that what is left is the cost of the machine around them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from fairqr.agents.refiner import Refinement, RefinementRequest
from fairqr.prompts.template import PromptReference
from fairqr.retrieval.documents import Document
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.index import IndexInfo, Progress
from fairqr.retrieval.ranking import Ranking
from fairqr.retrieval.schema import Attribute, Schema

__all__ = ["InstantIndex", "InstantRefiner"]

SCHEMA = Schema(
    attributes={
        "gender": Attribute(
            name="gender",
            field="gender",
            groups=("female", "male"),
            population={"female": 0.5, "male": 0.5},
        )
    }
)


class InstantIndex:
    """An index whose every search finds the same 20 documents, all of one group."""

    name = "instant"
    schema = SCHEMA
    retriever = "bm25"

    def __init__(self) -> None:
        self._ranking = Ranking([f"d{n:07}" for n in range(20)], [20.0 - n for n in range(20)])
        self._documents = {
            id_: Document(id_, id_, id_, {"gender": "male"}) for id_ in self._ranking.ids
        }
        self._members = np.tile([0.0, 1.0], (20, 1))

    @property
    def lexical(self) -> InstantIndex:
        return self

    async def info(self) -> IndexInfo:
        return IndexInfo(self.name, "instant", 20, "", "", "")

    async def search(self, query: str, n: int, *, boost: str = "") -> Ranking:
        return self._ranking

    async def rescore(self, query: str, ids: Sequence[str]) -> Ranking:
        return self._ranking.top(len(ids))

    async def documents(self, ids: Sequence[str]) -> list[Document]:
        return [self._documents[id_] for id_ in ids]

    async def memberships(self, attribute: str, ids: Sequence[str]) -> FloatArray:
        return self._members[: len(ids)]

    async def corpus_shares(self, attribute: str) -> FloatArray:
        return np.array([0.0, 1.0])

    async def document_frequencies(self, words: Sequence[str]) -> list[int]:
        return [1] * len(words)

    async def upsert(self, documents: Iterable[Document], progress: Progress | None = None) -> int:
        raise NotImplementedError

    async def delete(self, ids: Sequence[str]) -> int:
        raise NotImplementedError

    async def close(self) -> None:
        return None


class InstantRefiner:
    """A refiner that has new keywords each time it is asked.

    Args:
        words: By group, what it takes its keywords from; made up where a group has none.
        seconds: How long it sleeps first.
    """

    name = "instant"
    prompt: PromptReference | None = None

    def __init__(self, words: dict[str, list[str]] | None = None, seconds: float = 0.0) -> None:
        self._words = words or {}
        self._seconds = seconds
        self._numbers = itertools.count()

    async def start(self) -> None:
        return None

    async def refine(self, request: RefinementRequest, deadline: float | None = None) -> Refinement:
        if self._seconds:
            await asyncio.sleep(self._seconds)
        known = [w for w in self._words.get(request.group, ()) if w not in request.keywords]
        return Refinement("ok", tuple(known[:3]) or (f"word{next(self._numbers)}",))
