"""Generators, attributors and retrievers that work on workers; who asks them notices nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairqr.agents.attribution.attributors import DEFAULT_ATTRIBUTOR, open_attributor
from fairqr.agents.attribution.verdicts import Attributor, Pair, Verdict
from fairqr.agents.generators import GenerationRequest, Generator, OnToken, open_generator
from fairqr.agents.replies import TextReply
from fairqr.evaluation.workers.tools import Pool, Tools
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.pools.base import PoolRetriever
from fairqr.retrieval.pools.open import open_pool_retriever

__all__ = ["generator_there", "judge_there", "retriever_there"]

HERE = ("bm25", DEFAULT_ATTRIBUTOR)
"""What is quicker than to send it anywhere."""


def generator_there(name: str, pool: Pool) -> Generator:
    """Return a generator that works on workers.

    Raises:
        ModelUnavailableError: The name is none.
    """
    return _Generator(open_generator(name, cache=False).name, name, pool)


def judge_there(attributor: Attributor, pool: Pool) -> Attributor:
    """Return an attributor like this one that works on workers."""
    is_quick = attributor.name.partition("?")[0] in HERE
    return attributor if is_quick else _Attributor(attributor.name, pool)


def retriever_there(name: str, pool: Pool) -> PoolRetriever:
    """Return a retriever over pools that works on workers.

    Raises:
        InputError: There is no such retriever.
        ModelUnavailableError: There is no such encoder.
    """
    retriever = open_pool_retriever(name)
    return retriever if name in HERE else _Retriever(retriever.name, name, pool)


class _There:
    """What works on workers.

    Args:
        name: As it stands in results.
        opened: What opens it.
        pool: The workers.
    """

    def __init__(self, name: str, opened: str, pool: Pool) -> None:
        self.name = name
        self._opened = opened
        self._pool = pool


class _Generator(_There):
    async def start(self) -> None:
        await self._pool.do(_start, "generator", self._opened)

    async def generate(
        self,
        request: GenerationRequest,
        deadline: float | None = None,
        on_token: OnToken | None = None,
    ) -> TextReply:
        found = await self._pool.do(_generate, self._opened, request, deadline)
        if on_token is not None and found.text:
            on_token(found.text)
        return found


class _Attributor(_There):
    def __init__(self, name: str, pool: Pool) -> None:
        super().__init__(name, name, pool)

    async def start(self) -> None:
        await self._pool.do(_start, "attributor", self._opened)

    async def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return await self._pool.do(_judge, self._opened, pairs)


class _Retriever(_There):
    async def start(self) -> None:
        await self._pool.do(_start, "retriever", self._opened)

    async def scores(self, query: str, texts: Sequence[str]) -> FloatArray:
        return await self._pool.do(_scores, self._opened, query, texts)


async def _start(tools: Tools, kind: str, name: str) -> None:
    await _OPENED[kind](tools, name)


async def _generate(
    tools: Tools, name: str, request: GenerationRequest, deadline: float | None
) -> TextReply:
    return await (await _generator(tools, name)).generate(request, deadline)


async def _judge(tools: Tools, name: str, pairs: Sequence[Pair]) -> list[Verdict]:
    return await (await _attributor(tools, name)).judge(pairs)


async def _scores(tools: Tools, name: str, query: str, texts: Sequence[str]) -> FloatArray:
    return await (await _retriever(tools, name)).scores(query, texts)


async def _generator(tools: Tools, name: str) -> Generator:
    # One place for all, since large models do not fit side by side.
    return await tools.keep(
        "generator", name, lambda: _started(open_generator(name, cache=tools.replies))
    )


async def _attributor(tools: Tools, name: str) -> Attributor:
    return await tools.keep(
        "attributor",
        name,
        lambda: _started(open_attributor(name, cache=tools.replies, prompts=tools.prompts)),
    )


async def _retriever(tools: Tools, name: str) -> PoolRetriever:
    return await tools.keep(f"retriever {name}", name, lambda: _started(open_pool_retriever(name)))


async def _started(opened: Any) -> Any:
    await opened.start()
    return opened


_OPENED: dict[str, Any] = {
    "generator": _generator,
    "attributor": _attributor,
    "retriever": _retriever,
}
