"""Opens the engine of a source of any kind, and checks what it contains."""

from __future__ import annotations

import asyncio
import hashlib
import re
from itertools import islice
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from fairqr.base.errors import UnsupportedError
from fairqr.base.settings import data_dir
from fairqr.retrieval.encoders.encoder import Encoder
from fairqr.retrieval.encoders.opening import AUTO, Retriever, automatic
from fairqr.retrieval.engines.engine import Query, SearchEngine
from fairqr.retrieval.engines.report import SAMPLE_SIZE, SourceReport, report_on
from fairqr.retrieval.engines.tantivy.engine import TantivyEngine
from fairqr.retrieval.engines.tantivy.store import Announce, EmbeddedIndexes, announced
from fairqr.retrieval.sources.corpus import Corpus
from fairqr.retrieval.sources.documents import read_documents
from fairqr.retrieval.sources.labels import LabelReader
from fairqr.retrieval.sources.schema import Schema
from fairqr.retrieval.sources.source import ElasticsearchSource, RunSource, Source, TantivySource

CHECKED = 10_000
"""How many documents of an embedded index we check for labels."""


async def open_source(
    source: Source,
    *,
    retriever: str | Encoder | Retriever = "bm25",
    store: Path | None = None,
    progress: Announce | None = None,
) -> SearchEngine:
    """Open the engine that a source describes.

    Args:
        source: The source.
        retriever: See :meth:`Retriever.of`. An attached engine always ranks in its own way. With
            ``auto`` or ``hybrid`` we also estimate how likely its documents are relevant: by the
            vectors in its own field, if an encoder that we have made them, or else by the texts of
            what it finds. ``auto`` estimates nothing if MiniLM was not pulled, or for a run.
        store: The folder of indexes and of parsed labels; in the user's data folder by default.
        progress: Called with the name of what has to be indexed, encoded or read first.

    Raises:
        FairqrError: The source cannot be searched as described.
    """
    store = store or data_dir()
    field = source.vectors if isinstance(source, ElasticsearchSource) else None
    made_by = field.embeddings if field else None
    if retriever == AUTO:
        retriever = "bm25" if isinstance(source, RunSource) else automatic(made_by)
    asked = Retriever.of(retriever, made_by)  # Refuse a wrong name before we open anything.
    if isinstance(source, TantivySource):
        corpus = Corpus(
            source.path(source.documents), Schema(attributes=source.attributes), source.folder
        )
        engine: Any = await EmbeddedIndexes(store / "indexes").up_to_date(
            name_of_index(source.name, corpus.path), corpus, str(corpus.path), progress, source.name
        )
        return await with_retriever(engine, asked, progress)
    told = announced(progress, f"labels of {source.name}")
    labels = await LabelReader.open(
        source.attributes, source.folder, store=store / "labels", progress=told
    )
    engine = await resolve_name(source.opener)(source, labels)
    if field and asked.encoder and asked.kind == "hybrid" and asked.encoder.name == made_by:
        from fairqr.retrieval.engines.elasticsearch.vectors import FieldHybridEngine

        found = await FieldHybridEngine.open(engine, field.field, asked.encoder)
        if found is not None:
            return found
    return await with_retriever(engine, asked, progress)


async def check_source(source: Source, *, progress: Announce | None = None) -> SourceReport:
    """Open a source as a search would, and report what it contains.

    Args:
        source: The source.
        progress: Called with the name of what has to be indexed or read first.

    Raises:
        FairqrError: The source cannot be searched as described.
    """
    engine = await open_source(source, progress=progress)
    try:
        if isinstance(source, TantivySource):
            return await _check_embedded(source, engine)
        module, _, _ = source.opener.partition(":")
        report: SourceReport = await resolve_name(f"{module}:check")(engine)
        return report
    finally:
        await engine.aclose()


async def _check_embedded(source: TantivySource, engine: SearchEngine) -> SourceReport:
    whole = read_documents(source.path(source.documents), engine.schema)
    documents = await asyncio.to_thread(lambda: [*islice(whole, CHECKED)])
    labels = await LabelReader.open(source.attributes, source.folder)
    attributes = labels.reports(labels.in_fields(documents), [it.id for it in documents])
    sample = documents[0].title or " ".join(documents[0].text.split()[:3])
    (hits,) = await engine.search([Query(sample, SAMPLE_SIZE)])
    return await report_on(engine, attributes, sample, hits)


async def with_retriever(
    engine: SearchEngine, retriever: str | Encoder | Retriever, progress: Announce | None = None
) -> SearchEngine:
    """Return an engine over another one's documents with the requested retriever.

    A hybrid over an embedded index without vectors, or over another engine, encodes the texts that
    are found. Only over an embedded index it re-ranks them by their estimated relevance.

    Args:
        engine: The engine over the documents; closed if this fails.
        retriever: See :meth:`Retriever.of`.
        progress: Called with the name of what has to be encoded first.
    """
    asked = Retriever.of(retriever)
    if asked.encoder is None:
        return engine
    from fairqr.retrieval.engines.hybrid.embedded import HybridEngine, VectorEngine, vectors_path
    from fairqr.retrieval.engines.hybrid.texts import EncodedPoolEngine

    keeps_order = not isinstance(engine, TantivyEngine)
    try:
        if keeps_order and (asked.kind == "dense" or "new_queries" not in engine.capabilities):
            raise UnsupportedError(
                f"The source '{engine.name}' only ranks in its own way; leave the retriever out."
            )
        if isinstance(engine, TantivyEngine):
            told = announced(progress, f"vectors of {engine.name}")
            if asked.kind == "dense":
                return await VectorEngine.open(engine, asked.encoder, told)
            has_vectors = vectors_path(engine.folder, asked.encoder.name).exists()
            if asked.stores_vectors or has_vectors:
                return await HybridEngine.open(engine, asked.encoder, told)
        told = announced(progress, f"texts of {engine.name}")
        return await EncodedPoolEngine.open(engine, asked.encoder, told, keeps_order=keeps_order)
    except BaseException:
        await engine.aclose()
        raise


def name_of_index(stem: str, path: Path) -> str:
    """Return the name of a file's index: something readable, and a hash of the file's path."""
    readable = re.sub(r"[^a-z0-9_-]+", "-", stem.lower()).strip("-_")
    place = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    return f"{readable[:80] or 'corpus'}-{place}"
