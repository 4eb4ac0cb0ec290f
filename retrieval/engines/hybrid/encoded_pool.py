"""Hybrid retrieval over an engine without vectors: we encode the texts of what it finds."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fairqr.retrieval.encoders.encoder import (
    Encoder,
    EncoderMark,
    Float32Array,
    encode_query,
    text_of,
)
from fairqr.retrieval.encoders.kept_vectors import KeptVectors
from fairqr.retrieval.engines.engine import (
    Capability,
    EngineOverWords,
    Hits,
    Query,
    SearchEngine,
    best_first,
    first_of,
)
from fairqr.retrieval.fairness.relevance import (
    CALIBRATED,
    Background,
    fused_best,
    moved_toward,
    rank_evidence,
)
from fairqr.retrieval.sources.documents import Progress
from fairqr.retrieval.sources.retriever_parameters import Hybrid

KEPT = 20_000
SECONDS_KEPT = 600.0

RANKED = 500
"""How many ranks are evidence, as deep as the first search of a run."""


class EncodedPoolEngine(EngineOverWords):
    """Estimates how likely what an engine finds is relevant, by its ranks and the texts.

    An engine that is not ours keeps its own ranking, with its own scores; the estimates stand
    beside it (``Hits.relevance``). Documents of an index of ours are ranked by them.

    We encode the first ``pool`` documents that it finds, or all documents that a query is limited
    to. Documents further down, or without text, get the mean similarity; if none of the pool has a
    text, nothing is estimated. The mean and deviation of similarities come from 200 documents that
    common words find, since the engine may not list its documents. For ten minutes we do not ask
    for a text again, for the 20,000 documents used last, and we never encode a text twice; see
    :class:`KeptVectors`. Within a group, the first ``pool`` documents are the group's, so a
    document may have its own similarity there but not in a search of all documents.

    It finds only what the engine finds. An index with its own vectors finds more
    (:class:`fairqr.retrieval.engines.hybrid.embedded.HybridEngine`).
    """

    calibrations = CALIBRATED

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
        self._keeps_order = keeps_order
        self._encoder, self._mark, self.options = encoder, mark, options
        self.retriever = options.named("hybrid-pool", encoder.name)
        self.capabilities: frozenset[Capability] = lexical.capabilities - {"vectors"} | {
            "relevance"
        }
        self._texts = KeptVectors(encoder, mark)
        self._kept: OrderedDict[str, tuple[float, Float32Array]] = OrderedDict()
        self._background = Background(self._stacked([], {}))

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
        ids = list(dict.fromkeys(id_ for hits in found for id_ in hits.ids))
        vectors = await engine._vectors(ids, progress)
        engine._background = Background.of(engine._stacked(ids, vectors))
        return engine

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        """Answer all queries: one round trip for their hits, and one for new texts."""
        pool = self.options.pool
        asked = [
            replace(query, n=max(query.n, pool if query.only is None else len(query.only)))
            if query.is_ranking
            else query
            for query in queries
        ]
        # Ranks of given documents are those among the best of all.
        limited = [query for query in queries if query.is_ranking and _is_limited(query)]
        depth = max(pool, RANKED)
        best = [replace(query, n=depth, only=None, within=None) for query in limited]
        answers = await self._searched([*asked, *best])
        found, others = answers[: len(queries)], iter(answers[len(queries) :])
        pairs = [
            (query, hits, next(others) if _is_limited(query) else hits)
            for query, hits in zip(queries, found, strict=True)
            if query.is_ranking
        ]
        vectors = await self._vectors(
            [
                id_
                for query, hits, leading in pairs
                for id_ in (*leading.ids[:pool], *self._encoded(query, hits))
            ]
        )
        estimated = iter([await self._estimated(*pair, vectors) for pair in pairs])
        return [
            next(estimated) if query.is_ranking else hits
            for query, hits in zip(queries, found, strict=True)
        ]

    async def _estimated(
        self, query: Query, hits: Hits, leading: Hits, known: Mapping[str, Float32Array]
    ) -> Hits:
        asked = await encode_query(self._encoder, query.words, self._mark.dimensions)
        candidates = self._stacked(leading.ids[: self.options.pool], known)
        ranks = range(len(candidates))
        nearest = sorted(ranks, key=lambda rank: (-float(candidates[rank] @ asked), rank))
        best = candidates[fused_best([ranks, nearest], self.options)]
        moved = moved_toward(asked, best, self.options.weight)
        # Ignore vectors left over from other queries: a score must not depend on earlier
        # searches.
        vectors = self._stacked(self._encoded(query, hits), known)
        cosines = np.full(len(hits), np.nan)
        cosines[: len(vectors)] = np.where(vectors.any(axis=1), vectors @ moved, np.nan)
        if not (candidates.any() or vectors.any()):
            return first_of(hits, query.n)
        chances = self.calibrations.rank.probability(
            rank_evidence(hits.ids, leading.ids[:RANKED]),
            self._background.standardised(moved, cosines),
        )
        if self._keeps_order:
            return first_of(replace(hits, relevance=chances), query.n)
        ranked = best_first(
            hits.ids,
            chances.tolist(),
            hits.memberships,
            query.n,
            total=hits.total,
            warnings=hits.warnings,
        )
        return replace(ranked, relevance=np.array(ranked.scores))

    async def _searched(self, queries: Sequence[Query]) -> list[Hits]:
        """Return what the engine answers; given documents just as they are if it scores none."""
        if "rescore" in self.lexical.capabilities:
            return await self.lexical.search(queries)
        # Their groups are asked for without words.
        given = [query.only if query.text else None for query in queries]
        asked = [query for query, ids in zip(queries, given, strict=True) if ids is None]
        answers = iter(await self.lexical.search(asked))
        return [
            next(answers) if ids is None else Hits([*dict.fromkeys(ids)], [0.0] * len({*ids}), {})
            for ids in given
        ]

    def _encoded(self, query: Query, hits: Hits) -> Sequence[str]:
        """Return the documents of a query whose own vectors count."""
        return hits.ids[: self.options.pool] if query.only is None else hits.ids

    def _stacked(self, ids: Sequence[str], known: Mapping[str, Float32Array]) -> Float32Array:
        """Return the vectors of documents, shape (len(ids), d)."""
        rows = [known[id_] for id_ in ids]
        return np.stack(rows) if rows else np.zeros((0, self._mark.dimensions), dtype=np.float32)

    async def _vectors(
        self, ids: Sequence[str], progress: Progress | None = None
    ) -> dict[str, Float32Array]:
        """Return the vectors of documents, zeros without a text; read and encode the missing ones.

        They are the caller's own, since another search may push them out of what is kept.
        """
        now = time.monotonic()
        vectors: dict[str, Float32Array] = {}
        missing: dict[str, None] = {}
        for id_ in ids:
            read, vector = self._kept.get(id_, (-np.inf, None))
            if vector is None or read < now - SECONDS_KEPT:
                missing[id_] = None
            else:
                vectors[id_] = vector
                self._kept.move_to_end(id_)
        if missing:
            documents = await self.lexical.documents(list(missing))
            encoded = await self._texts.encode([text_of(d) for d in documents], progress)
            read_now = dict(zip((d.id for d in documents), encoded, strict=True))
            none = np.zeros(self._mark.dimensions, dtype=np.float32)
            for id_ in missing:
                vectors[id_] = read_now.get(id_, none)
                self._kept[id_] = now, vectors[id_]
                self._kept.move_to_end(id_)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return vectors


def _is_limited(query: Query) -> bool:
    """Return whether a query is limited to some documents."""
    return query.only is not None or query.within is not None
