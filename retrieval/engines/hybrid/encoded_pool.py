"""An engine that estimates how likely what another one finds is relevant, by ranks and texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fairqr.retrieval.encoders.encoder import Encoder, Float32Array, KeptVectors, text_of
from fairqr.retrieval.encoders.kept_samples import KeptSample
from fairqr.retrieval.engines.engine import (
    Capability,
    EngineOverWords,
    Hits,
    Query,
    SampledEngine,
    SearchEngine,
    first_of,
    rows_of,
)
from fairqr.retrieval.engines.hybrid.text_reader import SAMPLED, TextReader, Texts, readable
from fairqr.retrieval.fairness.claims import claims_by_vector
from fairqr.retrieval.fairness.ranking import best_positions
from fairqr.retrieval.fairness.relevance import CALIBRATED, POOL, SAMPLE_QUERIES, rank_evidence
from fairqr.retrieval.sources.documents import ProgressFunction

RANKED = 500
"""How many ranks are evidence, as deep as the first search of a run."""


class EncodedPoolEngine(EngineOverWords):
    """Estimates how likely what an engine finds is relevant, by its ranks and the texts.

    An engine that is not ours keeps its own ranking, with its own scores; the estimates stand
    beside it (``Hits.relevance``). Documents of an index of ours are ranked by them.

    We encode the first 200 documents that it finds, or all documents that a query is limited to.
    Documents further down, or without text, get the mean similarity; if none of the pool has a
    text, nothing is estimated. The mean and deviation of similarities come from 200 random
    documents, or from those that common words find if the engine returns no random ones. For ten
    minutes we do not ask for a text again, and we never encode a text twice; see
    :class:`TextReader`. Within a group, the first 200 documents are the group's, so a document may
    have its own similarity there but not in a search of all documents.

    It finds only what the engine finds. An index with its own vectors finds more
    (:class:`fairqr.retrieval.engines.hybrid.embedded.HybridEngine`).
    """

    calibrations = CALIBRATED

    def __init__(self, texts: TextReader, *, keeps_order: bool) -> None:
        """Take what :meth:`open` has prepared."""
        super().__init__(texts.engine)
        self.retriever = f"hybrid-pool:{texts.vectors.encoder.name}"
        added: frozenset[Capability] = frozenset({"relevance"})
        self.capabilities = (texts.engine.capabilities | added) - {"vectors"}
        self._texts = texts
        self._keeps_order = keeps_order

    @classmethod
    async def open(
        cls,
        lexical: SearchEngine,
        encoder: Encoder,
        progress: ProgressFunction | None = None,
        *,
        keeps_order: bool,
    ) -> EncodedPoolEngine:
        """Wrap an engine, and encode a sample of its documents, or read what is kept of it.

        Args:
            lexical: Finds documents.
            encoder: Makes vectors of their texts.
            progress: Called with the number of encoded texts, if any are new.
            keeps_order: Whether the engine's own ranking stays.

        Raises:
            ModelError: The encoder failed.
            ModelUnavailableError: The encoder cannot be started.
            FairqrError: Any error of the engine.
        """
        texts = TextReader(lexical, await KeptVectors.of(encoder), with_terms=False)
        if isinstance(lexical, SampledEngine):
            texts.background = await _random_background(lexical, texts.vectors, progress)
        else:
            ids: list[str] = []
            for hits in await lexical.search(SAMPLE_QUERIES):
                ids += hits.ids
            sample = await texts.read(ids, progress)
            texts.background = texts.stacked(text for text in sample.values() if text.vector.any())
        await texts.compare()
        return cls(texts, keeps_order=keeps_order)

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        """Answer all queries: one round trip for their hits, and one for new texts."""
        searches = [_searches(query, self.lexical) for query in queries]
        distinct: dict[Query, None] = {}
        for pair in searches:
            distinct |= dict.fromkeys(pair)
        hits_of = dict(zip(distinct, await self.lexical.search(list(distinct)), strict=True))

        answers = []
        ids: list[str] = []
        for query, (own_search, rank_search) in zip(queries, searches, strict=True):
            answer = _Answer(query, hits_of[own_search], hits_of[rank_search])
            answers.append(answer)
            if query.is_ranking:
                ids += [*answer.pool, *answer.encoded]
        texts = await self._texts.read(ids)
        return [await self._estimated(answer, texts) for answer in answers]

    async def _estimated(self, answer: _Answer, texts: Texts) -> Hits:
        """Return hits with estimates of their relevance, in the order of these if it may change."""
        query = answer.query
        hits = answer.hits
        if not query.is_ranking:
            return hits
        query_vector = await self._texts.vectors.encode_query(query.text)
        pool_vectors = self._texts.stacked(texts[id_] for id_ in answer.pool)
        # Other texts may be known from other queries, but a score must not depend on these.
        vectors = self._texts.stacked(texts[id_] for id_ in answer.encoded)
        if not pool_vectors.any() and not vectors.any():
            return first_of(hits, query.n)

        similarity = np.zeros(len(hits))
        rankings = (range(len(answer.pool)), pool_vectors)
        similarity[: len(vectors)] = self._texts.likeness(query_vector, vectors, rankings)
        ranks = rank_evidence(hits.ids, answer.leading.ids[:RANKED])
        calibration = self.calibrations.rank
        probabilities = calibration.probability(ranks, similarity)
        # Whatever the query is limited to, it is answerable by the best of all documents.
        answerable = self._texts.answerable(query_vector, pool_vectors, calibration.answerable)
        hits = replace(hits, relevance=probabilities, answerable=answerable)
        if query.with_claims:
            claims = np.arange(len(hits)) if hits.claims is None else hits.claims
            encoder = self._texts.vectors.encoder.name
            hits = replace(hits, claims=claims_by_vector(vectors, encoder, claims))
        if self._keeps_order:
            return first_of(hits, query.n)
        best = best_positions(hits.ids, probabilities)[: query.n]
        return rows_of(replace(hits, scores=probabilities.tolist()), best.tolist())


class _Answer(NamedTuple):
    """What an engine answers to a query.

    Attributes:
        query: The query.
        hits: What answers it.
        leading: The best of all documents, whose ranks are evidence.
    """

    query: Query
    hits: Hits
    leading: Hits

    @property
    def pool(self) -> Sequence[str]:
        """The documents that may move the query's vector."""
        return self.leading.ids[:POOL]

    @property
    def encoded(self) -> Sequence[str]:
        """The hits whose own vectors count."""
        return self.hits.ids[:POOL] if self.query.only is None else self.hits.ids


def _searches(query: Query, engine: SearchEngine) -> tuple[Query, Query]:
    """Return the search of an engine for a query, and the one whose ranks are evidence."""
    if not query.is_ranking:
        return query, query
    if query.only is None:
        own_search = replace(query, n=max(query.n, POOL))
    else:
        own_search = replace(query, n=max(query.n, len(query.only)))
        if "rescore" not in engine.capabilities:
            own_search = replace(own_search, text="")  # only looks them up
    if query.only is None and query.within is None:
        return own_search, own_search
    # Ranks are those among the best of all documents.
    return own_search, replace(query, n=RANKED, only=None, within=None)


async def _random_background(
    engine: SampledEngine, vectors: KeptVectors, progress: ProgressFunction | None
) -> Float32Array:
    """Return the vectors of random documents that have texts, shape (n, d), from disk if kept."""
    kept = KeptSample(engine.sample_key, vectors.mark)
    background = await kept.read()
    if background is not None:
        return background
    documents = await engine.random_documents(SAMPLED)
    texts = [readable(text_of(document)) for document in documents]
    rows = await vectors.encode(texts, progress)
    background = rows[rows.any(axis=1)]
    await kept.write(background)
    return background
