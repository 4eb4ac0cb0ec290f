"""Fair search for agents and chains: a tool, a retriever, a re-ranker."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

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
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from fairqr.agents.models.chat import ChatModel
from fairqr.agents.refiners.refiner import Refiner
from fairqr.api import FairSearch, Named, SyncFairSearch
from fairqr.base.errors import InputError
from fairqr.graph.search.builder import build_search_graph
from fairqr.graph.search.context import Context, require_context
from fairqr.graph.search.explanation import passage_lines, search_lines
from fairqr.graph.search.result import SearchResult
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.engines.langchain import LangChainEngine
from fairqr.retrieval.sources.labels import LabelReader
from fairqr.retrieval.sources.schema import Schema, load_schema


def _as_list(value: object) -> object:
    """Wrap a single name in a list; models sometimes send one name instead of a list."""
    return [value] if isinstance(value, str) else value


class SearchArguments(BaseModel):
    """The arguments that a model fills in when it calls the tool."""

    query: str = Field(description="What to search for, in a few words.")
    attributes: Annotated[list[str] | None, BeforeValidator(_as_list)] = Field(
        None,
        description="Attributes whose groups get a fair share of exposure, such as gender; leave "
        "it out for the default ones.",
    )
    k: int | None = Field(
        None, ge=1, le=50, description="How many results to return; leave it out for the default."
    )


def search_tool(
    source: FairSearch | SyncFairSearch | SearchEngine | Named,
    model: ChatModel | BaseChatModel | Refiner | str | None = None,
    *,
    context: Context | None = None,
    name: str = "fair_search",
) -> BaseTool:
    """Return a LangChain tool that searches fairly.

    A model that calls it reads a compact text: the rank, title, groups and a line of text of each
    result, then how exposure changed. The artifact of the tool's message is the whole
    :class:`fairqr.graph.search.result.SearchResult`, as plain data.

    The model is told about errors that it can correct: an empty query, words that nothing matches,
    an attribute that does not exist, or an argument out of range. All other errors are raised, such
    as a source that does not exist or a search engine that is down. If the refining model fails
    from the start, the results are those of the baseline ranking, and the text ends with a warning.

    Args:
        source: What to search, or your own :class:`FairSearch`, which you close yourself.
        model: The model that refines queries, as :class:`FairSearch` takes it.
        context: The options of each search, unless the call gives them; k is 10 by default.
        name: The name of the tool.

    Raises:
        InputError: A model is given for a :class:`FairSearch`, which has its own; or ``source`` or
            ``context`` has a wrong type.
    """
    if isinstance(source, SyncFairSearch):
        source = source.asynchronous
    if isinstance(source, FairSearch):
        if model is not None:
            raise InputError("A FairSearch has its own model; leave model out, or give the source.")
        search = source
    else:
        search = FairSearch(source, model)
    if context is None:
        context = Context(k=10)
    require_context(Context, context)
    fields = context.model_fields_set & Context.model_fields.keys()
    defaults = {field: getattr(context, field) for field in fields}
    least_depth = context.depth

    async def afair_search(
        query: str, attributes: list[str] | None = None, k: int | None = None
    ) -> tuple[str, dict[str, Any]]:
        values = dict(defaults)
        if attributes:
            values["attributes"] = attributes
        if k is not None:
            values["k"] = k
            values["depth"] = least_depth and max(least_depth, k)
        # The model need not see errors of the source, so these are raised before it searches.
        await search._ready()
        try:
            result = await search.search(query, Context.of(**values))
        except InputError as error:
            raise ToolException(str(error)) from None
        documents = await search.documents([document.id for document in result.ranking])
        lines = search_lines(result, passage_lines(result.ranking, documents))
        return "\n".join(lines), result.model_dump(mode="json")

    def fair_search(query: str, **options: Any) -> tuple[str, dict[str, Any]]:
        return search._run(afair_search(query, **options))

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
        handle_validation_error=_wrong_argument,
    )


def _wrong_argument(error: Any) -> str:
    """Return one sentence that says what is wrong with a call."""
    problem = error.errors()[0]
    argument = ".".join(map(str, problem["loc"]))
    return f"The argument '{argument}' is wrong: {problem['msg']}."


class FairRetriever(BaseRetriever):
    """A LangChain retriever that returns the results of a fair search, with their texts.

    If nothing matches the query, it returns an empty list. The warnings of a search become Python
    warnings.

    Attributes:
        search: The search to use; you close it yourself.
        context: The options of each search.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    search: FairSearch
    context: Context = Context()

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Passage]:
        return self.search._run(self._aget_relevant_documents(query))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun | None = None
    ) -> list[Passage]:
        result = await self.search.search(query, self.context)
        for warning in result.warnings:
            warnings.warn(warning, stacklevel=2)
        documents = await self.search.documents([ranked.id for ranked in result.ranking])
        texts = {document.id: document.text for document in documents}
        passages = []
        for ranked in result.ranking:
            metadata = ranked.model_dump(include={"id", "title", "rank", "score", "groups"})
            text = texts.get(ranked.id, "")
            passages.append(Passage(text, id=ranked.id, metadata=metadata))
        return passages


class GivenPassages(BaseRetriever):
    """Returns the documents that it was made with, for any query."""

    passages: list[Passage]

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Passage]:
        return self.passages


def _read_schema(labels: object) -> object:
    """Read the labels from their file, if it is one."""
    if isinstance(labels, str | Path):
        return load_schema(Path(labels))
    return labels


class FairReranker(BaseDocumentCompressor):
    """Re-ranks what another retriever found, for those who keep their own retriever.

    It returns the most relevant fair ranking of them, by their ranks, and calls no model. It cannot
    show what the retriever did not find: a group with too few documents there stays
    under-represented.

    Attributes:
        labels: The attributes and their groups, or a YAML file of them. Each attribute has a
            ``field``, which says where the metadata has its label.
        context: The options; ``k`` is how many documents to keep.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    labels: Annotated[Schema, BeforeValidator(_read_schema)]
    context: Context = Context()

    @field_validator("labels")
    @classmethod
    def _are_in_metadata(cls, labels: Schema) -> Schema:
        for attribute in labels.attributes.values():
            if not attribute.field:
                raise ValueError(
                    f"'{attribute.name}' has no field; name the metadata field that has its label"
                )
        return labels

    @field_validator("context")
    @classmethod
    def _asks_no_model(cls, context: Context) -> Context:
        if context.strategy.ranker is not None:
            raise ValueError("this calls no model; leave out a ranker as method or rerank")
        return context

    def compress_documents(
        self, documents: Sequence[Passage], query: str, callbacks: Callbacks | None = None
    ) -> list[Passage]:
        """Return the first k documents in their fair order."""
        if not documents:
            return []
        # Nobody reads the certificate here.
        context = self.context.model_copy(update={"certify": False})
        result = self._result_of(documents, context, callbacks)
        for warning in result.warnings:
            warnings.warn(warning, stacklevel=2)
        return [documents[int(ranked.id)] for ranked in result.ranking]

    def rank(self, documents: Sequence[Passage]) -> SearchResult:
        """Return the fair order of documents with all that is measured, as of a search.

        Its ``objective`` says how far the list can be from the best order of these documents.

        Args:
            documents: At least one, best first. In the result, the id of each is its position
                here, counted from 0.
        """
        return self._result_of(documents, self.context)

    def _result_of(
        self, documents: Sequence[Passage], context: Context, callbacks: Callbacks | None = None
    ) -> SearchResult:
        # Positions serve as ids: documents of other retrievers may have no id, or share one.
        passages = []
        for position, document in enumerate(documents):
            passage = Passage(document.page_content, id=str(position), metadata=document.metadata)
            passages.append(passage)
        labels = LabelReader(self.labels, {})
        engine = LangChainEngine(GivenPassages(passages=passages), labels, "given", {})
        size = len(documents)
        limits = {"k": min(context.k, size), "depth": size, "max_iterations": 0}

        # Without this, inside a node of another graph, it would use that graph's checkpointer.
        graph = build_search_graph(engine, checkpointer=False)
        state = graph.invoke(
            # We have the documents already, so any query will do.
            {"query": "documents"},
            {"callbacks": callbacks},
            context=context.model_copy(update=limits),
        )
        return SearchResult.model_validate(state["result"])
