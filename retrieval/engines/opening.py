"""Opening the engine of a source, whatever kind it is."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from fairqr.base.errors import InputError, ModelUnavailableError, UnsupportedError
from fairqr.base.settings import data_dir
from fairqr.retrieval.corpus import Corpus
from fairqr.retrieval.documents import Progress
from fairqr.retrieval.encoders.encoder import Encoder
from fairqr.retrieval.encoders.opening import AUTO, Retriever, open_encoder
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.engines.tantivy_folder import VECTORS
from fairqr.retrieval.engines.tantivy_store import Announce, EmbeddedIndexes, announced
from fairqr.retrieval.labels import LabelReader
from fairqr.retrieval.schema import Schema
from fairqr.retrieval.source import (
    ElasticsearchSource,
    HttpSource,
    RunSource,
    Source,
    TantivySource,
)

if TYPE_CHECKING:
    from fairqr.retrieval.engines.tantivy import TantivyEngine

__all__ = [
    "encode_index",
    "encode_written",
    "index_of_source",
    "name_of_index",
    "open_source",
    "with_retriever",
]

OVER_WORDS = ("rm3", "hybrid")


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
        retriever: See :meth:`Retriever.of`. An attached engine ranks in its own way with ``auto``
            and with ``bm25``: ``hybrid`` may read many texts from it, so that has to be asked for.
            It searches the source's own field of vectors if its encoder made them.
        store: The folder of indexes and of labels that were read; the user's data folder by
            default.
        progress: Called with the name of what has to be indexed, encoded or read first.

    Raises:
        FairqrError: The source cannot be searched as it is described.
    """
    store = store or data_dir()
    if isinstance(source, TantivySource):
        retriever = Retriever.of(retriever)  # refused before anything is indexed
        indexes = EmbeddedIndexes(store / "indexes")
        corpus = Corpus(
            source.path(source.documents), Schema(attributes=source.attributes), source.folder
        )
        index = index_of_source(source)
        engine = await indexes.up_to_date(
            index, corpus, str(corpus.path), progress, shown=source.name
        )
        return await with_retriever(engine, retriever, progress)
    if retriever == AUTO:
        retriever = "bm25"
    if _is_over_words(retriever) and not isinstance(source, RunSource):
        own = source.vectors if isinstance(source, ElasticsearchSource) else None
        # Refused before anything is opened.
        asked = Retriever.of(retriever, own.embeddings if own else None)
        lexical = await open_source(source, store=store, progress=progress)
        if own and asked.encoder and asked.encoder.name == own.embeddings:
            from fairqr.retrieval.engines.elasticsearch import open_hybrid

            if over_field := await open_hybrid(lexical, asked.encoder, asked.hybrid):
                return over_field
        return await over_words(lexical, asked, progress)
    labels = await LabelReader.open(
        source.attributes,
        source.folder,
        store=store / "labels",
        progress=announced(progress, f"labels of {source.name}"),
    )
    # The clients take their time to import, so each is imported by those who need it.
    if isinstance(source, ElasticsearchSource):
        from fairqr.retrieval.engines.elasticsearch import open_elasticsearch

        if isinstance(retriever, Retriever):
            retriever = retriever.encoder or "bm25"
        return await open_elasticsearch(source, labels, retriever=retriever)
    if retriever != "bm25":
        raise UnsupportedError(
            f"The source '{source.name}' ranks in its own way only; leave the retriever out."
        )
    if isinstance(source, HttpSource):
        from fairqr.retrieval.engines.http import open_http

        return await open_http(source, labels)
    if isinstance(source, RunSource):
        from fairqr.retrieval.engines.run import open_run

        return await open_run(source, labels)
    raise UnsupportedError(f"There is no engine '{source.engine}'.")


def _is_over_words(retriever: str | Encoder | Retriever) -> bool:
    """Whether a retriever works over any engine that searches by words.

    An encoder alone does not: it is for the engine's own field of vectors.
    """
    if isinstance(retriever, Retriever):
        return retriever.kind in OVER_WORDS
    return isinstance(retriever, str) and retriever.strip().startswith(OVER_WORDS)


async def over_words(
    engine: SearchEngine, retriever: Retriever, progress: Announce | None = None
) -> SearchEngine:
    """Return an engine that ranks what another finds by words; that one is closed if this fails.

    ``rm3`` expands its queries, and ``hybrid`` encodes the texts of its hits.
    """
    from fairqr.retrieval.engines.encoded_pool import EncodedPoolEngine
    from fairqr.retrieval.engines.rm3 import Rm3Engine

    try:
        if retriever.encoder is None:
            return Rm3Engine(engine, retriever.rm3)
        told = announced(progress, f"texts of {engine.name}")
        return await EncodedPoolEngine.open(engine, retriever.encoder, told, retriever.hybrid)
    except BaseException:
        await engine.aclose()
        raise


async def with_retriever(
    engine: TantivyEngine, retriever: str | Encoder | Retriever, progress: Announce | None = None
) -> SearchEngine:
    """Return an embedded engine that retrieves in the way that is asked for.

    An index without vectors of its own is searched by words, and the texts found are encoded.

    Args:
        engine: Over the documents; closed if this fails.
        retriever: See :meth:`Retriever.of`.
        progress: Called with the name of what has to be encoded first.
    """
    asked = Retriever.of(retriever)
    if asked.kind == "bm25":
        return engine
    if asked.encoder is None:
        return await over_words(engine, asked)
    from fairqr.retrieval.engines.hybrid import HybridEngine
    from fairqr.retrieval.engines.vector_array import encoder_names
    from fairqr.retrieval.engines.vectors import VectorEngine

    if asked.kind == "hybrid":
        names = await asyncio.to_thread(encoder_names, engine.folder / VECTORS)
        if asked.encoder.name not in names:
            return await over_words(engine, asked, progress)
    try:
        told = announced(progress, f"vectors of {engine.name}")
        if asked.kind == "hybrid":
            return await HybridEngine.open(engine, asked.encoder, told, asked.hybrid)
        return await VectorEngine.open(engine, asked.encoder, told)
    except BaseException:
        await engine.aclose()
        raise


async def encode_index(
    engine: TantivyEngine, encoder: Encoder, progress: Progress | None = None
) -> None:
    """Make a vector for each document that has none of this encoder yet.

    Raises:
        InputError: The vectors of another encoder have this one's name.
        ModelError: The encoder fails.
        ModelUnavailableError: It cannot be started.
    """
    from fairqr.retrieval.engines.vectors import VectorEngine

    await VectorEngine.open(engine, encoder, progress)


async def encode_written(engine: TantivyEngine, progress: Progress | None = None) -> None:
    """Encode what was written to an index, by each encoder that made vectors for it.

    An encoder that its name does not open is left out; the next search with it encodes the rest.

    Raises:
        ModelError: An encoder fails.
    """
    from fairqr.retrieval.engines.vector_array import encoder_names

    for name in await asyncio.to_thread(encoder_names, engine.folder / VECTORS):
        with contextlib.suppress(ModelUnavailableError, InputError):
            await encode_index(engine, open_encoder(name), progress)


def index_of_source(source: TantivySource) -> str:
    """Return the name of the embedded index of a source."""
    return name_of_index(source.name, source.path(source.documents))


def name_of_index(stem: str, path: Path) -> str:
    """Return the name of the index of a file: something readable, and a hash of where it is."""
    readable = re.sub(r"[^a-z0-9_-]+", "-", stem.lower()).strip("-_")
    place = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    return f"{readable[:80] or 'corpus'}-{place}"
