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
from itertools import pairwise
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
        described = f"{kind.__qualname__} {fields} {labels.schema.model_dump_json()}"
        fingerprint = hashlib.sha256(described.encode()).hexdigest()
        location = f"{kind.__module__}.{kind.__qualname__}"
        info = EngineInfo(name, "langchain", None, location, "Python", fingerprint)
        super().__init__(info, labels, f"langchain:{kind.__name__}")
        self._wrapped: Any = wrapped
        self._is_store, self._fields = hasattr(wrapped, "asimilarity_search"), fields
        self._limits = RequestLimits(CONCURRENCY)
        self._shown = f"The retriever '{name}' ({kind.__name__})"

    async def _answer(self, text: str, n: int) -> ScoredDocuments:
        documents: dict[str, Document] = {}
        scores: list[float | None] = []
        warnings: dict[str, None] = {}
        for passage, relevance in (await self._found(text, n))[:n]:
            id_ = self._value("id", passage)
            id_ = passage.id if id_ is None else id_
            if id_ in (None, ""):
                warnings[WITHOUT_ID] = None
                content = passage.page_content.encode(errors="replace")
                id_ = hashlib.sha256(content).hexdigest()[:32]
            title = sendable(str(self._value("title", passage) or ""))
            shown = sendable(passage.page_content)
            document = Document(str(id_), title, shown, passage.metadata)
            first = documents.setdefault(document.id, document)
            if first is document:
                scores.append(relevance)
            elif first.text != document.text:
                warnings[SHARED_ID] = None
        return ScoredDocuments([*documents.values()], _never_increasing(scores), [*warnings])

    def _value(self, option: str, passage: Passage) -> Any:
        field = self._fields.get(option)
        return value_at(passage.metadata, field) if field else None

    async def _found(self, text: str, n: int) -> Sequence[tuple[Passage, float | None]]:
        try:
            async with self._limits:
                return await with_retries(partial(self._search, text, n))
        except Exception as error:
            raise IndexUnavailableError(
                f"{self._shown} failed with {type(error).__name__}: "
                f"{one_line(error, 200) or 'no message'}."
            ) from error

    async def _search(self, text: str, n: int) -> Sequence[tuple[Passage, float | None]]:
        if self._is_store:
            try:
                found: Sequence[tuple[Passage, float | None]]
                found = await self._wrapped.asimilarity_search_with_relevance_scores(text, k=n)
                return found
            except (NotImplementedError, ValueError):
                # Many stores have none; if the search itself fails, the next line raises.
                passages = await self._wrapped.asimilarity_search(text, k=n)
        else:
            passages = await _sized(self._wrapped, n).ainvoke(text)
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
        read, folder = load_schema(Path(schema)), Path(schema).absolute().parent
    else:
        read = validated(Schema, schema, "The schema", SchemaError)
        folder = Path.cwd()
    labels = run_blocking(LabelReader.open(read.attributes, folder))
    return LangChainEngine(engine, labels, name, {"id": id, "title": title})


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


def _never_increasing(scores: Sequence[float | None]) -> list[float]:
    """Return the scores if they fit the order, otherwise 1/rank."""
    numbers = [math.nan if score is None else float(score) for score in scores]
    fits = all(map(math.isfinite, numbers)) and all(a >= b for a, b in pairwise(numbers))
    return numbers if fits else [1 / rank for rank in range(1, len(scores) + 1)]
