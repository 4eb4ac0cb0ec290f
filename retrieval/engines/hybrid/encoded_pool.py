"""Hybrid retrieval over an engine without vectors: we encode the texts of what it finds."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairqr.retrieval.encoders.encoder import (
    Encoder,
    EncoderMark,
    Float32Array,
    KeptVectors,
    encode_query,
    text_of,
)
from fairqr.retrieval.engines.engine import (
    Capability,
    EngineOverWords,
    Hits,
    Query,
    SearchEngine,
    best_first,
    first_of,
)
from fairqr.retrieval.engines.tantivy.analysis import shared_analyzer
from fairqr.retrieval.fairness.relevance import (
    CALIBRATED,
    Background,
    fused_best,
    moved_toward,
    rank_evidence,
)
from fairqr.retrieval.sources.documents import Progress
from fairqr.retrieval.sources.retriever_parameters import Hybrid
from fairqr.retrieval.texts.sendable import sendable

ESTIMATES: frozenset[Capability] = frozenset({"relevance"})

RANKED = 500
"""How many ranks are evidence, as deep as the first search of a run."""


LONGEST = 100_000
"""How many characters of a text we read; more would only cost time."""

SECONDS_KEPT = 600.0
KEPT_BYTES = 150_000_000
"""How much we keep: about 60,000 texts of 100 words with MiniLM."""

OVERHEAD = 500
"""The bytes that Python needs for each text."""

Terms = NDArray[np.uint32]


class Text(NamedTuple):
    """What we know of the text of a document.

    Attributes:
        vector: Of length 1, or zeros without a text, shape (d,).
        terms: The stems of its words, as numbers.
    """

    vector: Float32Array
    terms: Terms


Texts = Mapping[str, Text]


def terms_of(text: str) -> Terms:
    """Return stems as numbers. Among a million distinct ones, one in 4,000 shares its number."""
    stems = shared_analyzer().analyze(text)
    return np.array([zlib.crc32(stem.encode()) for stem in stems], dtype=np.uint32)


class TextReader:
    """Reads the texts of an engine's documents, and keeps what it knows of them for ten minutes.

    Args:
        engine: Has the documents.
        encoder: Makes vectors of texts; none is encoded twice, see :class:`KeptVectors`.
        mark: Identifies the encoder.
        with_terms: Whether terms are needed; without, there are none.
    """

    def __init__(
        self, engine: SearchEngine, encoder: Encoder, mark: EncoderMark, *, with_terms: bool = False
    ) -> None:
        self._engine, self._with_terms = engine, with_terms
        self._vectors = KeptVectors(encoder, mark)
        self._blank = Text(np.zeros(mark.dimensions, dtype=np.float32), terms_of(""))
        self._kept: dict[str, Text] = {}
        self._since, self._size = time.monotonic(), 0

    async def read(self, ids: Iterable[str], progress: Progress | None = None) -> Texts:
        """Return texts by id, at least these; one that the engine does not return is blank."""
        if time.monotonic() - self._since >= SECONDS_KEPT or self._size > KEPT_BYTES:
            # A new dictionary, since others may still use the old one.
            self._kept, self._since, self._size = {}, time.monotonic(), 0
        kept = self._kept
        if missing := [id_ for id_ in dict.fromkeys(ids) if id_ not in kept]:
            documents = await self._engine.documents(missing)
            texts = [sendable(text_of(document))[:LONGEST] for document in documents]
            vectors = await self._vectors.encode(texts, progress)
            terms = [self._blank.terms] * len(texts)
            if self._with_terms:
                terms = await asyncio.to_thread(lambda: [*map(terms_of, texts)])
            kept |= dict.fromkeys(missing, self._blank)
            kept |= zip([d.id for d in documents], map(Text, vectors, terms), strict=True)
            self._size += len(missing) * OVERHEAD + vectors.nbytes + sum(it.nbytes for it in terms)
        return kept


class EncodedPoolEngine(EngineOverWords):
    """Estimates how likely what an engine finds is relevant, by its ranks and the texts.

    An engine that is not ours keeps its own ranking, with its own scores; the estimates stand
    beside it (``Hits.relevance``). Documents of an index of ours are ranked by them.

    We encode the first ``pool`` documents that it finds, or all documents that a query is limited
    to. Documents further down, or without text, get the mean similarity; if none of the pool has a
    text, nothing is estimated. The mean and deviation of similarities come from 200 documents that
    common words find, since the engine may not list its documents. For ten minutes we do not ask
    for a text again, and we never encode a text twice; see :class:`TextReader`. Within a group, the
    first ``pool`` documents are the group's, so a document may have its own similarity there but
    not in a search of all documents.

    It finds only what the engine finds. An index with its own vectors finds more
    (:class:`fairqr.retrieval.engines.hybrid.embedded.HybridEngine`).
    """

    calibrations = CALIBRATED
    background: Background

    def __init__(
        self,
        lexical: SearchEngine,
        encoder: Encoder,
        mark: EncoderMark,
        options: Hybrid,
        *,
        keeps_order: bool,
    ) -> None:
        """Take what :meth:`open` has prepared; there is no background yet."""
        super().__init__(lexical)
        self.options, self.retriever = options, options.named("hybrid-pool", encoder.name)
        self.capabilities = lexical.capabilities - {"vectors"} | ESTIMATES
        self._encoder, self._dimensions = encoder, mark.dimensions
        self._texts = TextReader(lexical, encoder, mark)
        self._keeps_order = keeps_order

    @classmethod
    async def open(
        cls,
        lexical: SearchEngine,
        encoder: Encoder,
        progress: Progress | None = None,
        options: Hybrid | None = None,
        *,
        keeps_order: bool,
    ) -> EncodedPoolEngine:
        """Wrap an engine, and encode the documents that common words find.

        Args:
            lexical: Finds documents.
            encoder: Makes vectors of their texts.
            progress: Called with the number of encoded texts, if any are new.
            options: The parameters; by default those of :class:`Hybrid`.
            keeps_order: Whether the engine's own ranking stays.

        Raises:
            ModelError: The encoder failed.
            ModelUnavailableError: The encoder cannot be started.
            FairqrError: Any error of the engine.
        """
        mark = await EncoderMark.of(encoder)
        engine = cls(lexical, encoder, mark, options or Hybrid(), keeps_order=keeps_order)
        found = await lexical.search(Background.sample())
        sample = await engine._texts.read([id_ for hits in found for id_ in hits.ids], progress)
        engine.background = Background.of(engine._stacked(sample, sample))
        return engine

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        """Answer all queries: one round trip for their hits, and one for new texts."""
        plan = [self._searches(query) for query in queries]
        answers = iter(await self.lexical.search([search for own in plan for search in own]))
        found = [[next(answers) for _ in own] for own in plan]
        pools = [
            (*hits[-1].ids[: self.options.pool], *self._encoded(query, hits[0]))
            for query, hits in zip(queries, found, strict=True)
            if query.is_ranking
        ]
        texts = await self._texts.read(id_ for pool in pools for id_ in pool)
        return [
            await self._estimated(query, hits[0], hits[-1], texts) if query.is_ranking else hits[0]
            for query, hits in zip(queries, found, strict=True)
        ]

    def _searches(self, query: Query) -> list[Query]:
        """Return the search for a query, and the one whose ranks are evidence if it is another."""
        if not query.is_ranking:
            return [query]
        pool = self.options.pool if query.only is None else len(query.only)
        own = replace(query, n=max(query.n, pool))
        if query.only is not None and "rescore" not in self.lexical.capabilities:
            own = replace(own, text="", boost="")  # only looks them up
        if query.only is None and query.within is None:
            return [own]
        # Ranks are those among the best of all documents.
        depth = max(self.options.pool, RANKED)
        return [own, replace(query, n=depth, only=None, within=None)]

    async def _estimated(self, query: Query, hits: Hits, leading: Hits, texts: Texts) -> Hits:
        asked = await encode_query(self._encoder, query.words, self._dimensions)
        candidates = self._stacked(leading.ids[: self.options.pool], texts)
        nearest = np.argsort(-np.vecdot(candidates, asked), kind="stable").tolist()
        best = fused_best([range(len(candidates)), nearest], self.options)
        moved = moved_toward(asked, candidates[best], self.options.weight)
        # Other texts may be known from other queries, but a score must not depend on these.
        vectors = self._stacked(self._encoded(query, hits), texts)
        if not (candidates.any() or vectors.any()):
            return first_of(hits, query.n)
        cosines = np.full(len(hits), np.nan)
        cosines[: len(vectors)] = np.where(vectors.any(axis=1), vectors @ moved, np.nan)
        chances = self.calibrations.rank.probability(
            rank_evidence(hits.ids, leading.ids[:RANKED]),
            self.background.standardised(moved, cosines),
        )
        if self._keeps_order:
            return first_of(replace(hits, relevance=chances), query.n)
        ranked = best_first(
            hits.ids, chances.tolist(), hits.memberships, query.n, warnings=hits.warnings
        )
        return replace(ranked, relevance=np.array(ranked.scores))

    def _encoded(self, query: Query, hits: Hits) -> Sequence[str]:
        """Return the documents of a query whose own vectors count."""
        return hits.ids[: self.options.pool] if query.only is None else hits.ids

    def _stacked(self, ids: Iterable[str], texts: Texts) -> Float32Array:
        """Return the vectors of documents, shape (len(ids), d)."""
        rows = [texts[id_].vector for id_ in ids]
        return np.array(rows, dtype=np.float32).reshape(-1, self._dimensions)
