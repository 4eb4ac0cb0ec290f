"""Calling a LangChain retriever or vector store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from fairqr.base.errors import FairqrError, IndexUnavailableError, InputError, one_line
from fairqr.base.retries import with_retries
from fairqr.retrieval.engines.limits import Limits

if TYPE_CHECKING:
    from langchain_core.documents import Document as Found
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.vectorstores import VectorStore

T = TypeVar("T")

CONCURRENCY = 8


class LangChainClient:
    """Calls a retriever or a vector store, with a few calls at a time.

    Args:
        wrapped: The retriever or vector store.
        name: Its name in messages.
    """

    def __init__(self, wrapped: BaseRetriever | VectorStore, name: str) -> None:
        from langchain_core.vectorstores import VectorStore

        self._wrapped, self._name = wrapped, name
        self._store = wrapped if isinstance(wrapped, VectorStore) else None
        self._has_relevance_scores = True
        self._limits = Limits(CONCURRENCY)

    async def search(self, text: str, n: int) -> Sequence[tuple[Found, float | None]]:
        """Return the documents found, in their order, with relevance scores if there are any.

        Raises:
            IndexUnavailableError: The search failed.
            InputError: It returned something other than documents.
        """
        from langchain_core.documents import Document

        found = await self._call(partial(self._search, text, n))
        for item, _ in found:
            if not isinstance(item, Document):
                raise InputError(
                    f"The retriever '{self._name}' ({type(self._wrapped).__name__}) returns "
                    f"{type(item).__name__} objects; make it return LangChain's Document objects."
                )
        return found

    async def read(self, ids: list[str]) -> Sequence[Found]:
        """Return documents by their own ids, or none if the store cannot do that.

        Raises:
            IndexUnavailableError: The store failed.
        """
        return await self._call(partial(self._read, ids))

    async def _call(self, call: Callable[[], Awaitable[T]]) -> T:
        try:
            async with self._limits:
                return await with_retries(call)
        except FairqrError:
            raise
        except Exception as error:
            raise IndexUnavailableError(
                f"The retriever '{self._name}' ({type(self._wrapped).__name__}) failed with "
                f"{type(error).__name__}: {one_line(error, 200) or 'no message'}."
            ) from error

    async def _read(self, ids: list[str]) -> Sequence[Found]:
        if self._store is None:
            return []
        try:
            return await self._store.aget_by_ids(ids)
        except NotImplementedError:
            return []

    async def _search(self, text: str, n: int) -> Sequence[tuple[Found, float | None]]:
        store = self._store
        if store is None:
            return [(item, None) for item in await _sized(self._wrapped, n).ainvoke(text)]
        if self._has_relevance_scores:
            try:
                return await store.asimilarity_search_with_relevance_scores(text, k=n)
            except (NotImplementedError, ValueError):
                pass  # Many stores have none; if the search itself fails, the next line raises.
        found = await store.asimilarity_search(text, k=n)
        # The query was fine, so the store has no relevance scores.
        self._has_relevance_scores = False
        return [(item, None) for item in found]


def _sized(retriever: Any, n: int) -> Any:
    """Return a copy of a retriever that returns n documents, if its number can be set."""
    if isinstance(getattr(retriever, "search_kwargs", None), dict):
        wanted = {**retriever.search_kwargs, "k": n}
        if getattr(retriever, "search_type", None) == "mmr":
            # It chooses from these; LangChain's own default is 20.
            wanted["fetch_k"] = max(n, wanted.get("fetch_k", 20))
        return retriever.model_copy(update={"search_kwargs": wanted})
    if "k" in type(retriever).model_fields:
        return retriever.model_copy(update={"k": n})
    return retriever
