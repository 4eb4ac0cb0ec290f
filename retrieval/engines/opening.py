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
    encoder_of_field = field.embeddings if field else None
    if retriever == AUTO and isinstance(source, RunSource):
        retriever = "bm25"
    elif retriever == AUTO:
        retriever = automatic(encoder_of_field)
    # Refuse a wrong name before we open anything.
    retriever = Retriever.of(retriever, encoder_of_field)

    engine: Any
    if isinstance(source, TantivySource):
        engine = await _open_embedded(source, store, progress)
        return await with_retriever(engine, retriever, progress)

    labels = await LabelReader.open(
        source.attributes,
        source.folder,
        store=store / "labels",
        progress=announced(progress, f"labels of {source.name}"),
    )
    engine = await resolve_name(source.opener)(source, labels)
    encoder = retriever.encoder
    is_hybrid = retriever.kind == "hybrid"
    if field and encoder and is_hybrid and encoder.name == encoder_of_field:
        from fairqr.retrieval.engines.elasticsearch.vectors import FieldHybridEngine

        hybrid = await FieldHybridEngine.open(engine, field.field, encoder)
        if hybrid is not None:
            return hybrid
    return await with_retriever(engine, retriever, progress)


async def _open_embedded(
    source: TantivySource, store: Path, progress: Announce | None
) -> SearchEngine:
    """Open the index of a source's documents, and build it first if it is not up to date."""
    schema = Schema(attributes=source.attributes)
    corpus = Corpus(source.path(source.documents), schema, source.folder)
    name = name_of_index(source.name, corpus.path)
    indexes = EmbeddedIndexes(store / "indexes")
    return await indexes.up_to_date(name, corpus, str(corpus.path), progress, source.name)


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
    """Report the labels of the first documents, and what a query of the first title finds."""
    all_documents = read_documents(source.path(source.documents), engine.schema)
    documents = await asyncio.to_thread(lambda: [*islice(all_documents, CHECKED)])
    labels = await LabelReader.open(source.attributes, source.folder)
    ids = [document.id for document in documents]
    attributes = labels.reports(labels.in_fields(documents), ids)

    first = documents[0]
    sample = first.title or " ".join(first.text.split()[:3])
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
    retriever = Retriever.of(retriever)
    if retriever.encoder is None:
        return engine
    try:
        if isinstance(engine, TantivyEngine):
            return await _over_index(engine, retriever, retriever.encoder, progress)
        if retriever.kind == "dense" or "new_queries" not in engine.capabilities:
            raise UnsupportedError(
                f"The source '{engine.name}' only ranks in its own way; leave the retriever out."
            )
        return await _over_texts(engine, retriever.encoder, progress, keeps_order=True)
    except BaseException:
        await engine.aclose()
        raise


async def _over_index(
    engine: TantivyEngine, retriever: Retriever, encoder: Encoder, progress: Announce | None
) -> SearchEngine:
    """Return an engine over an embedded index that searches by vectors, too."""
    from fairqr.retrieval.engines.hybrid.embedded import HybridEngine, VectorEngine, vectors_path

    encoding = announced(progress, f"vectors of {engine.name}")
    if retriever.kind == "dense":
        return await VectorEngine.open(engine, encoder, encoding)
    has_vectors = vectors_path(engine.folder, encoder.name).exists()
    if retriever.stores_vectors or has_vectors:
        return await HybridEngine.open(engine, encoder, encoding)
    return await _over_texts(engine, encoder, progress, keeps_order=False)


async def _over_texts(
    engine: SearchEngine, encoder: Encoder, progress: Announce | None, *, keeps_order: bool
) -> SearchEngine:
    """Return an engine that estimates relevance by the texts that another one finds."""
    from fairqr.retrieval.engines.hybrid.encoded_pool import EncodedPoolEngine

    encoding = announced(progress, f"texts of {engine.name}")
    return await EncodedPoolEngine.open(engine, encoder, encoding, keeps_order=keeps_order)


def name_of_index(stem: str, path: Path) -> str:
    """Return the name of a file's index: something readable, and a hash of the file's path."""
    readable = re.sub(r"[^a-z0-9_-]+", "-", stem.lower()).strip("-_")
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()
    return f"{readable[:80] or 'corpus'}-{digest[:8]}"
