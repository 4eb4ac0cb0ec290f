"""Fair search as a part of other people's agents and chains: a tool, a retriever, a re-ranker."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
    Callbacks,
)
from langchain_core.documents import BaseDocumentCompressor
from langchain_core.documents import Document as Passage
from langchain_core.language_models import BaseChatModel
from langchain_core.retrievers import BaseRetriever
from langchain_core.tools import BaseTool, StructuredTool, ToolException
from pydantic import BaseModel, ConfigDict, Field, field_validator

from fairqr.agents.chat import ChatModel
from fairqr.agents.refiner import Refiner
from fairqr.api import FairSearch, Opening, SyncFairSearch
from fairqr.base.errors import FairqrError, QueryError, one_line
from fairqr.graph.search.context import Context, checked_context
from fairqr.graph.search.result import RankedDocument, SearchResult
from fairqr.retrieval.documents import Document
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.engines.langchain import from_langchain
from fairqr.retrieval.schema import Schema
from fairqr.retrieval.source import Source

__all__ = ["FairReranker", "FairRetriever", "search_tool"]

_OF_SEARCH = frozenset(Context.model_fields)
LINE = 200
"""So many characters of a document's text are shown to a model that calls the tool."""


class SearchArguments(BaseModel):
    """What a model says when it calls the tool."""

    query: str = Field(description="What to search for, in a few words.")
    attributes: list[str] | None = Field(
        None, description="Whose groups get a fair share of exposure, such as gender."
    )
    k: int | None = Field(None, ge=1, le=50, description="How many results, if it matters.")


def search_tool(
    source: FairSearch | SyncFairSearch | SearchEngine | Source | Mapping[str, Any] | Path | str,
    model: ChatModel | BaseChatModel | Refiner | str | None = None,
    *,
    context: Context | None = None,
    name: str = "fair_search",
) -> BaseTool:
    """Return a tool of LangChain that searches fairly.

    A model that calls it reads a compact text: for each result the rank, the title, the groups and
    a line of text, and then how exposure changed. The whole result, the object of
    :class:`fairqr.graph.search.result.SearchResult`, is the artifact of the tool's message.

    Args:
        source: What to search, or a :class:`FairSearch` of yours, which stays yours to close.
        model: What refines queries, as :class:`FairSearch` takes it.
        context: What is asked where the call says nothing else.
        name: What models call the tool.
    """
    if isinstance(source, SyncFairSearch):
        source = source.asynchronous
    search = source if isinstance(source, FairSearch) else FairSearch(source, model)

    bound = Context(k=10) if context is None else context
    said = {field: getattr(bound, field) for field in bound.model_fields_set & _OF_SEARCH}

    def asked(attributes: list[str] | None, k: int | None) -> Context:
        values = {**said, **({"attributes": attributes} if attributes else {})}
        if k is not None:
            values["k"] = k
            values["depth"] = bound.depth and max(bound.depth, k)
        return checked_context(Context, values)

    async def afair_search(
        query: str, attributes: list[str] | None = None, k: int | None = None
    ) -> tuple[str, dict[str, Any]]:
        try:
            result = await search.search(query, asked(attributes, k))
            texts = await search.documents([place.id for place in result.ranking])
        except FairqrError as error:
            raise ToolException(str(error)) from None  # the model may mend what it asked for
        return in_words(result, texts), result.model_dump(mode="json")

    def fair_search(
        query: str, attributes: list[str] | None = None, k: int | None = None
    ) -> tuple[str, dict[str, Any]]:
        try:
            result = search.sync.search(query, asked(attributes, k))
            texts = search.sync.documents([place.id for place in result.ranking])
        except FairqrError as error:
            raise ToolException(str(error)) from None
        return in_words(result, texts), result.model_dump(mode="json")

    return StructuredTool.from_function(
        func=fair_search,
        coroutine=afair_search,
        name=name,
        description=(
            "Search documents so that groups of people get a fair share of what is shown. Returns "
            "ranked titles with a line of text, and how the exposure of each group changed."
        ),
        args_schema=SearchArguments,
        response_format="content_and_artifact",
        handle_tool_error=True,
    )


def in_words(result: SearchResult, documents: Sequence[Document]) -> str:
    """Return a result as a compact text for a model."""
    texts = {document.id: document.text for document in documents}
    lines = [_place_in_words(place, texts.get(place.id, "")) for place in result.ranking]
    for attribute, shares in result.exposure.items():
        before, target = result.baseline.exposure[attribute], result.target[attribute]
        changes = [
            f"{group} {before[group]:.0%} to {share:.0%} (target {target[group]:.0%})"
            for group, share in shares.items()
        ]
        lines.append(f"Exposure by {attribute}: {', '.join(changes)}.")
    return "\n".join([*lines, *result.warnings])


def _place_in_words(place: RankedDocument, text: str) -> str:
    groups = "; ".join(
        f"{attribute}: {', '.join(shares) or 'unknown'}"
        for attribute, shares in place.groups.items()
    )
    line = " ".join(text.split())
    if len(line) > LINE:
        line = f"{line[:LINE].rsplit(' ', 1)[0]} …"
    return f"{place.rank}. {one_line(place.title, LINE)} [{groups}] {line}".rstrip()


def _passages(places: Sequence[RankedDocument], documents: Sequence[Document]) -> list[Passage]:
    texts = {document.id: document.text for document in documents}
    return [
        Passage(
            texts.get(place.id, ""),
            id=place.id,
            metadata={
                "id": place.id,
                "title": place.title,
                "rank": place.rank,
                "score": place.score,
                "groups": place.groups,
            },
        )
        for place in places
    ]


class FairRetriever(BaseRetriever):
    """A retriever of LangChain whose results are a fair search's, with their texts.

    Attributes:
        search: What searches; yours to close.
        context: What each search is asked to do.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    search: FairSearch
    context: Context = Context()

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun
    ) -> list[Passage]:
        try:
            result = await self.search.search(query, self.context)
        except QueryError:
            return []  # nothing matches
        documents = await self.search.documents([place.id for place in result.ranking])
        return _passages(result.ranking, documents)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Passage]:
        try:
            result = self.search.sync.search(query, self.context)
        except QueryError:
            return []
        documents = self.search.sync.documents([place.id for place in result.ranking])
        return _passages(result.ranking, documents)


ANY_QUERY = "documents"
"""The documents are there already, whatever was asked."""


class _Given(BaseRetriever):
    """Gives the documents that it was made with, whatever the query."""

    passages: list[Passage]

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Passage]:
        return self.passages


class FairReranker(BaseDocumentCompressor):
    """Re-ranks what another retriever found, for those who keep their own.

    It goes no further from the given order than the target asks for, and asks no model. Documents
    that the retriever did not find cannot be shown: what a group lacks in the pool stays lacking.

    Attributes:
        labels: The attributes and groups, and the fields of the metadata that hold the labels; as
            :func:`fairqr.from_langchain` takes a schema.
        context: What is asked; its ``k`` is how many documents are kept.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    labels: Schema | Mapping[str, Any] | str | Path
    context: Context = Context()

    @field_validator("context")
    @classmethod
    def _asks_no_model(cls, context: Context) -> Context:
        if context.strategy.ranker is not None:
            raise ValueError("no model is asked here; leave out a ranker as method or rerank")
        return context

    async def acompress_documents(
        self, documents: Sequence[Passage], query: str, callbacks: Callbacks | None = None
    ) -> list[Passage]:
        """Return the first k documents in their fair order."""
        if not documents:
            return []
        async with self._over(documents) as search:
            result = await search.search(ANY_QUERY, self._asked(len(documents)))
        return self._ordered(documents, result)

    def compress_documents(
        self, documents: Sequence[Passage], query: str, callbacks: Callbacks | None = None
    ) -> list[Passage]:
        """Return the first k documents in their fair order."""
        if not documents:
            return []
        with self._over(documents) as search:
            result = search.search(ANY_QUERY, self._asked(len(documents)))
        return self._ordered(documents, result)

    def _over(self, documents: Sequence[Passage]) -> Opening:
        # The places are the ids: documents of other retrievers may have none, or share one.
        passages = [
            Passage(document.page_content, id=str(place), metadata=document.metadata)
            for place, document in enumerate(documents)
        ]
        engine = from_langchain(_Given(passages=passages), schema=self.labels, name="given")
        return FairSearch.open(engine)

    def _asked(self, size: int) -> Context:
        k = min(self.context.k, size)
        depth = max(size, k)
        return self.context.model_copy(update={"k": k, "depth": depth, "max_iterations": 0})

    def _ordered(self, documents: Sequence[Passage], result: SearchResult) -> list[Passage]:
        for warning in result.warnings:
            if "No population is stated" not in warning:
                warnings.warn(warning, stacklevel=3)
        return [documents[int(place.id)] for place in result.ranking]
