"""Any LangChain retriever or vector store as an engine, with labels from the metadata.

We always keep LangChain's order. Its scores are distances in some stores and similarities in
others, so we use them only if they are relevance scores and never increase; otherwise the score is
1/rank.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairqr.base.errors import IndexUnavailableError, InputError, SchemaError, one_line
from fairqr.base.loops import run_blocking
from fairqr.base.retries import with_retries
from fairqr.retrieval.engines.engine import EngineInfo
from fairqr.retrieval.engines.limits import RequestLimits
from fairqr.retrieval.engines.search_only import ScoredDocuments, SearchOnlyEngine
from fairqr.retrieval.sources.documents import Document, value_at
from fairqr.retrieval.sources.labels import LabelReader
from fairqr.retrieval.sources.schema import Schema, load_schema, validated
from fairqr.retrieval.texts.words import sendable

if TYPE_CHECKING:
    from langchain_core.documents import Document as Passage
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.vectorstores import VectorStore

CONCURRENCY = 8
"""How many searches of a retriever may run at a time."""

WITHOUT_ID = (
    "Some documents have no id, so we use a hash of their text; two documents with the same text "
    "count as one."
)
SHARED_ID = (
    "Some documents with different texts have the same id, so only the first of them counts; set "
    "'id' to a field that differs."
)


class LangChainEngine(SearchOnlyEngine):
    """A retriever or a vector store; see :func:`from_langchain`.

    Args:
        wrapped: The retriever or vector store.
        labels: Reads the labels in the metadata.
        name: Its name in results.
        fields: Where the metadata has the ``id`` and the ``title``.
    """

    def __init__(
        self,
        wrapped: BaseRetriever | VectorStore,
        labels: LabelReader,
        name: str,
        fields: Mapping[str, str | None],
    ) -> None:
        kind = type(wrapped)
        description = f"{kind.__qualname__} {fields} {labels.schema.model_dump_json()}"
        info = EngineInfo(
            name=name,
            engine="langchain",
            documents=None,
            location=f"{kind.__module__}.{kind.__qualname__}",
            source="Python",
            fingerprint=hashlib.sha256(description.encode()).hexdigest(),
        )
        super().__init__(info, labels, f"langchain:{kind.__name__}")
        self._subject = f"The retriever '{name}' ({kind.__name__})"
        self._wrapped: Any = wrapped
        self._is_store = hasattr(wrapped, "asimilarity_search")
        self._fields = fields
        self._limits = RequestLimits(CONCURRENCY)

    async def _answer(self, text: str, n: int) -> ScoredDocuments:
        documents: dict[str, Document] = {}
        scores: list[float | None] = []
        warnings: dict[str, None] = {}
        passages = await self._passages(text, n)
        for passage, relevance in passages[:n]:
            id_ = self._id_of(passage)
            if id_ is None:
                warnings[WITHOUT_ID] = None
                id_ = _hash_of(passage)
            title = sendable(str(self._value("title", passage) or ""))
            content = sendable(passage.page_content)
            document = Document(id_, title, content, passage.metadata)
            first = documents.setdefault(document.id, document)
            if first is document:
                scores.append(relevance)
            elif first.text != document.text:
                warnings[SHARED_ID] = None
        return ScoredDocuments([*documents.values()], _never_increasing(scores), [*warnings])

    def _id_of(self, passage: Passage) -> str | None:
        """Return the id in the metadata, or the passage's own; None if it has neither."""
        id_ = self._value("id", passage)
        if id_ is None:
            id_ = passage.id
        return None if id_ in (None, "") else str(id_)

    def _value(self, option: str, passage: Passage) -> Any:
        """Return what the metadata has in the field of an option; None without a field."""
        field = self._fields.get(option)
        return value_at(passage.metadata, field) if field else None

    async def _passages(self, text: str, n: int) -> Sequence[tuple[Passage, float | None]]:
        """Search, and return what was found with its relevance, if the store says it.

        Raises:
            IndexUnavailableError: The retriever failed.
        """
        try:
            async with self._limits:
                return await with_retries(partial(self._search, text, n))
        except Exception as error:
            reason = one_line(error, 200) or "no message"
            raise IndexUnavailableError(
                f"{self._subject} failed with {type(error).__name__}: {reason}."
            ) from error

    async def _search(self, text: str, n: int) -> Sequence[tuple[Passage, float | None]]:
        if not self._is_store:
            passages = await _sized(self._wrapped, n).ainvoke(text)
            return [(passage, None) for passage in passages]
        try:
            scored: Sequence[tuple[Passage, float | None]]
            scored = await self._wrapped.asimilarity_search_with_relevance_scores(text, k=n)
            return scored
        except (NotImplementedError, ValueError):
            # Many stores have none; if the search itself fails, the next line raises.
            passages = await self._wrapped.asimilarity_search(text, k=n)
            return [(passage, None) for passage in passages]


def from_langchain(
    engine: BaseRetriever | VectorStore,
    *,
    schema: Schema | Mapping[str, Any] | str | Path,
    name: str = "langchain",
    id: str | None = None,
    title: str | None = None,
) -> LangChainEngine:
    """Wrap a LangChain retriever or vector store as a search engine.

    Example::

        engine = fairqr.from_langchain(
            store,
            schema={"attributes": {"gender": {"field": "person.sex", "groups": ["f", "m"]}}},
            title="headline",
        )
        result = fairqr.FairSearch(engine).search("tennis player")

    Fields are read from the metadata. Label files are read before this returns; their paths are
    relative to the schema's file, or to the working folder. The number of documents to find is set
    through ``k`` or ``search_kwargs`` in a copy of the retriever; one that has neither returns as
    many as it likes.

    Args:
        engine: The retriever or vector store. Keep it open while you use the returned engine.
        schema: The attributes and groups, or a YAML file of them.
        name: Its name in results.
        id: Where the metadata has a document's id, such as ``doi`` or ``source.key``. By default,
            or if it is missing, we use the document's own ``id``, or else a hash of its text.
        title: Where the metadata has the title; by default there are no titles.

    Raises:
        InputError: The object is neither a retriever nor a vector store.
        SchemaError: The schema is wrong.
        SourceError: A label file cannot be read.
    """
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.vectorstores import VectorStore

    if not isinstance(engine, BaseRetriever | VectorStore):
        raise InputError(
            f"from_langchain takes a BaseRetriever or a VectorStore, not {type(engine).__name__}."
        )
    # LangChain's warning would print the texts of all documents found if a store's relevance
    # scores leave [0, 1].
    warnings.filterwarnings("ignore", "Relevance scores must be between")
    if isinstance(schema, str | Path):
        folder = Path(schema).absolute().parent
        schema = load_schema(Path(schema))
    else:
        folder = Path.cwd()
        schema = validated(Schema, schema, "The schema", SchemaError)
    labels = run_blocking(LabelReader.open(schema.attributes, folder))
    return LangChainEngine(engine, labels, name, {"id": id, "title": title})


def _hash_of(passage: Passage) -> str:
    """Return an id made of a passage's text."""
    content = passage.page_content.encode(errors="replace")
    return hashlib.sha256(content).hexdigest()[:32]


def _sized(retriever: Any, n: int) -> Any:
    """Return a copy of a retriever that returns n documents, if its number can be set."""
    if isinstance(getattr(retriever, "search_kwargs", None), dict):
        search_kwargs = {**retriever.search_kwargs, "k": n}
        if getattr(retriever, "search_type", None) == "mmr":
            # It chooses from these; LangChain's own default is 20.
            search_kwargs["fetch_k"] = max(n, search_kwargs.get("fetch_k", 20))
        return retriever.model_copy(update={"search_kwargs": search_kwargs})
    if "k" in type(retriever).model_fields:
        return retriever.model_copy(update={"k": n})
    return retriever


def _never_increasing(scores: Sequence[float | None]) -> list[float]:
    """Return the scores if they fit the order, otherwise 1/rank."""
    numbers = [math.nan if score is None else float(score) for score in scores]
    are_finite = all(map(math.isfinite, numbers))
    if are_finite and numbers == sorted(numbers, reverse=True):
        return numbers
    return [1 / rank for rank in range(1, len(scores) + 1)]
