"""Any LangChain retriever or vector store as an engine, with labels from the metadata.

We always keep LangChain's order. Its scores are distances in some stores and similarities in
others, so we use them only if they are relevance scores, or come from a named field of the
metadata, and never increase; otherwise the score is 1/rank.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairqr.base.errors import InputError, SchemaError, UnsupportedError
from fairqr.base.loops import run_together
from fairqr.retrieval.engines.engine import (
    Capability,
    EngineInfo,
    Hits,
    Query,
    best_first,
    require,
    require_groups,
)
from fairqr.retrieval.engines.langchain_client import LangChainClient
from fairqr.retrieval.engines.met import MetDocuments
from fairqr.retrieval.engines.report import SourceReport, sample_hits
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.sources.documents import Document, value_at
from fairqr.retrieval.sources.labels import LabelReader
from fairqr.retrieval.sources.schema import Schema, load_schema, validated
from fairqr.retrieval.texts.sendable import sendable

if TYPE_CHECKING:
    from langchain_core.documents import Document as Found
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.vectorstores import VectorStore

WITHOUT_ID = (
    "Some documents have no id, so we use a hash of their text; two documents with the same text "
    "count as one."
)
SHARED_ID = (
    "Some documents with different texts have the same id, so only the first of them counts; set "
    "'id' to a field that differs."
)
IN_PROCESS = frozenset(
    {"InMemoryVectorStore", "DocArrayInMemorySearch", "FAISS", "Annoy", "SKLearnVectorStore"}
    | {"BM25Retriever", "TFIDFRetriever", "KNNRetriever", "SVMRetriever"}
)
"""LangChain classes that keep their documents in memory; all others may call another system."""


class LangChainEngine:
    """A retriever or a vector store; see :class:`SearchEngine`, and :func:`from_langchain`.

    It can only read documents that a search has returned, and forgets the oldest of them.
    """

    capabilities: frozenset[Capability] = frozenset({"new_queries"})
    filterable: frozenset[tuple[str, str]] = frozenset()

    def __init__(
        self,
        wrapped: BaseRetriever | VectorStore,
        labels: LabelReader,
        *,
        name: str,
        id: str | None = None,
        title: str | None = None,
        score: str | None = None,
    ) -> None:
        self.name, self.schema = name, labels.schema
        self._kind, self.labels = type(wrapped), labels
        self.retriever = f"langchain:{self._kind.__name__}"
        holder = type(getattr(wrapped, "vectorstore", wrapped))
        self.in_process = not IN_PROCESS.isdisjoint(kind.__name__ for kind in holder.__mro__)
        self._id, self._title, self._score = id, title, score
        self._client = LangChainClient(wrapped, name)
        self._met = MetDocuments()

    async def info(self) -> EngineInfo:
        """Return what we know of the engine; the number of documents is unknown."""
        kind = self._kind
        described = f"{kind.__qualname__} {self._id} {self._title} {self.schema.model_dump_json()}"
        return EngineInfo(
            name=self.name,
            engine="langchain",
            documents=None,
            location=f"{kind.__module__}.{kind.__qualname__}",
            source="Python",
            fingerprint=hashlib.sha256(described.encode()).hexdigest(),
        )

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        """Answer all queries, several at a time."""
        require_groups(self, queries)
        return await run_together(self._answer(query) for query in queries)

    async def documents(self, ids: Sequence[str]) -> list[Document]:
        """Return these documents, in this order; unknown ones are left out."""
        known = {document.id: document for document in self._met.get(ids)}
        missing = [id_ for id_ in ids if id_ not in known]
        if missing and self._id is None:
            # A search returned them long ago, or in another process.
            found = await self._client.read(missing)
            known |= {document.id: document for document in map(self._document, found)}
        return [known[id_] for id_ in dict.fromkeys(ids) if id_ in known]

    async def corpus_shares(self) -> Mapping[str, FloatArray]:
        """Raise an error, because LangChain cannot count."""
        require(self, "corpus_shares", "The share of each group in all documents")
        return {}

    async def aclose(self) -> None:
        """Do nothing: the wrapped object belongs to the caller."""

    async def _answer(self, query: Query) -> Hits:
        if query.only is not None and not query.text:
            known = self._met.get(list(dict.fromkeys(query.only)))
            return self._hits(known, [0.0] * len(known), query.n, [])
        if query.only is not None or query.every_word:
            raise UnsupportedError(
                f"'{self.name}' is searched through LangChain, which can neither score given "
                "documents nor count matching ones."
            )
        if query.n < 1:
            return self._hits([], [], 0, [])
        text = sendable(query.words.strip())
        found = (await self._client.search(text, query.n))[: query.n]
        documents: dict[str, Document] = {}
        scores: list[object] = []
        shared_id = False
        for item, relevance in found:
            document = self._document(item)
            first = documents.setdefault(document.id, document)
            if first is document:
                scores.append(value_at(item.metadata, self._score) if self._score else relevance)
            shared_id |= first.text != document.text
        self._met.add(documents.values())
        kept = list(documents.values())
        without_id = any(self._own_id(item) is None for item, _ in found)
        warnings = [
            *([WITHOUT_ID] if without_id else []),
            *([SHARED_ID] if shared_id else []),
            *self._without_fields([item for item, _ in found]),
            *self._without_labels(kept),
        ]
        return self._hits(kept, _never_increasing(scores), query.n, warnings)

    def _hits(
        self, documents: list[Document], scores: list[float], n: int, warnings: list[str]
    ) -> Hits:
        ids = [document.id for document in documents]
        memberships = self.labels.memberships(ids, self.labels.in_fields(documents))
        return best_first(ids, scores, memberships, n, warnings=warnings)

    def _document(self, found: Found) -> Document:
        id_ = self._own_id(found)
        if id_ is None:
            id_ = hashlib.sha256(found.page_content.encode(errors="replace")).hexdigest()[:32]
        title = value_at(found.metadata, self._title) if self._title else None
        return Document(
            id_,
            "" if title is None else sendable(str(title)),
            sendable(found.page_content),
            found.metadata,
        )

    def _own_id(self, found: Found) -> str | None:
        id_ = value_at(found.metadata, self._id) if self._id else None
        id_ = found.id if id_ is None else id_
        return None if id_ in (None, "") else str(id_)

    def _without_fields(self, found: Sequence[Found]) -> list[str]:
        named = {"id": self._id, "title": self._title, "score": self._score}
        return [
            f"None of the documents found has '{field}' in its metadata, which '{option}' names; "
            "correct it, or remove it."
            for option, field in named.items()
            if found and field and all(value_at(item.metadata, field) is None for item in found)
        ]

    def _without_labels(self, documents: Sequence[Document]) -> list[str]:
        return [
            f"None of the {len(documents)} documents found has '{attribute.field}' in its "
            f"metadata, which '{attribute.name}' reads; correct the field if there should be one."
            for attribute in self.labels.unlabelled(documents)
        ]


def from_langchain(
    engine: BaseRetriever | VectorStore,
    *,
    schema: Schema | Mapping[str, Any] | str | Path,
    name: str = "langchain",
    id: str | None = None,
    title: str | None = None,
    score: str | None = None,
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
        score: Where the metadata has the score. By default we use the relevance score of a vector
            store that has one, or else 1/rank.

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
    read, folder = _schema(schema)
    # LangChain's warning would print the texts of all documents found if a store's relevance
    # scores leave [0, 1].
    warnings.filterwarnings("ignore", "Relevance scores must be between")
    return LangChainEngine(
        engine, _labels(read, folder), name=name, id=id, title=title, score=score
    )


async def check(engine: LangChainEngine, query: str, n: int = 100) -> SourceReport:
    """Report what a query finds, and its labels.

    Args:
        engine: The engine.
        query: The query to try.
        n: How many documents to check.
    """
    info = await engine.info()
    (hits,) = await engine.search([Query(query, n)])
    documents = await engine.documents(hits.ids)
    remarks = list(hits.warnings)
    if len(hits) < n:
        remarks.append(
            f"The query found {len(hits)} documents instead of {n}; if there are more, raise the "
            "number that the retriever returns."
        )
    return SourceReport(
        name=info.name,
        engine=info.engine,
        location=info.location,
        attributes=engine.labels.reports(engine.labels.in_fields(documents), hits.ids),
        sample_query=query,
        sample=sample_hits(engine.schema, hits, documents),
        remarks=remarks,
    )


def _schema(schema: Schema | Mapping[str, Any] | str | Path) -> tuple[Schema, Path]:
    """Return the schema, and the folder to which its label files are relative."""
    if isinstance(schema, str | Path):
        return load_schema(Path(schema)), Path(schema).absolute().parent
    return validated(Schema, schema, "The schema", SchemaError, "the top"), Path.cwd()


def _labels(schema: Schema, folder: Path) -> LabelReader:
    if all(attribute.field for attribute in schema.attributes.values()):
        return LabelReader(schema, {})
    # In a separate thread, because the caller's thread may already run an event loop.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, LabelReader.open(schema.attributes, folder)).result()


def _never_increasing(scores: Sequence[object]) -> list[float]:
    """Return the scores if they fit the order, otherwise 1/rank."""
    numbers = [float(score) if isinstance(score, Real) else math.nan for score in scores]
    fits = all(map(math.isfinite, numbers)) and all(a >= b for a, b in pairwise(numbers))
    return numbers if fits else [1 / rank for rank in range(1, len(scores) + 1)]
