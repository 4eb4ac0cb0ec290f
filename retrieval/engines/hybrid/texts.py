"""Relevance estimated from the texts of documents, which we read from an engine and encode.

A search estimates how likely what an engine finds is relevant, by its ranks and the texts
(:class:`EncodedPoolEngine`).

An audit cannot take an engine's word for what is relevant: documents that the engine ranks low
would look irrelevant. So its estimate (:class:`TextRelevance`) reads only the words of the query
and the texts of a pool of documents. It uses no score, rank or label from the engine. Its evidence
is as in :mod:`fairqr.retrieval.fairness.relevance`, with two differences. BM25 takes the
frequencies of words from a fixed sample of the engine's documents, because a word that the whole
pool contains would otherwise count for almost nothing. And the similarity is standardised over that
sample. ``benchmarks/relevance.py`` fits the estimate, and shows how it treats groups
(docs/explanation/audits.md).
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairqr.base.weights import is_pulled
from fairqr.retrieval.encoders.encoder import (
    Encoder,
    Float32Array,
    KeptVectors,
    encode_documents,
    text_of,
)
from fairqr.retrieval.encoders.kept_samples import KeptSample
from fairqr.retrieval.encoders.minilm import MiniLmEncoder
from fairqr.retrieval.engines.engine import (
    Capability,
    EngineOverWords,
    Hits,
    Query,
    SampledEngine,
    SearchEngine,
    first_of,
    lexical_of,
    rows_of,
)
from fairqr.retrieval.engines.run import RunEngine
from fairqr.retrieval.fairness.answerable import (
    FITTED_WITH,
    USUAL,
    Answerability,
    Background,
    background_of,
    nearest_mean,
    unrelated_vectors,
)
from fairqr.retrieval.fairness.claims import COMPARED, Claims, claims_by_vector
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.fairness.ranking import best_positions
from fairqr.retrieval.fairness.relevance import (
    CALIBRATED,
    LIKELY,
    POOL,
    SAMPLE_QUERIES,
    fused_best,
    moved_toward,
    rank_evidence,
    standardised,
)
from fairqr.retrieval.sources.documents import ProgressFunction
from fairqr.retrieval.texts.words import document_terms, query_terms, sendable

RANKED = 500
"""How many ranks are evidence, as deep as the first search of a run."""

LONGEST = 100_000
"""How many characters of a text we read; more would only cost time."""

SECONDS_KEPT = 600.0
KEPT_BYTES = 150_000_000
"""How much we keep: about 60,000 texts of 100 words with MiniLM."""

OVERHEAD = 500
"""The bytes that Python needs for each text."""

PROBED = 10
"""How many documents, of as many queries, show whether an engine gives texts."""

K1, B = 1.2, 0.75
"""Parameters of BM25, as in Lucene and tantivy."""

FEWEST_TEXTS = 0.5
"""The share of a pool that must have texts. With less, the other estimates say too little."""

FARTHEST = 10.0
"""The maximum number of standard deviations that counts."""

END = 10
"""How many of a search's last documents say how far down it reaches."""

SAMPLED_QUERIES, SAMPLED = 20, 200
SAMPLED_FROM_EACH, WHOLE_RUN = 100, 10_000
FEWEST_QUERIES = 10
"""With fewer, the sample would be little more than the pools themselves."""

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


class Estimates(NamedTuple):
    """How likely documents are relevant, three arrays of shape (n,), in (0, 1), and claims.

    Attributes:
        relevance: By all evidence.
        by_words: By the words alone that query and text share; all are taken to be as similar.
        by_similarity: By the similarity alone, as if all texts shared as many words.
        answerable: The probability that any document is relevant, a factor of all of these.
        claims: Which documents say the same; see :mod:`fairqr.retrieval.fairness.claims`.
    """

    relevance: FloatArray
    by_words: FloatArray
    by_similarity: FloatArray
    answerable: float
    claims: Claims


def hashed_terms(text: str) -> Terms:
    """Return the stems of a document's text as numbers.

    Among a million distinct ones, one in 4,000 shares its number.
    """
    return _hashed(document_terms(text))


def _hashed(stems: Sequence[str]) -> Terms:
    return np.array([zlib.crc32(stem.encode()) for stem in stems], dtype=np.uint32)


class TextReader:
    """Reads the texts of an engine's documents, and keeps what it knows of them for ten minutes.

    Args:
        engine: Has the documents.
        vectors: Makes vectors of texts, none twice.
        with_terms: Whether terms are needed; without, there are none.

    Attributes:
        background: The vectors of a sample of documents, none of zeros, which the owner sets.
        unrelated: What cosines unrelated queries reach; what is usual until :meth:`compare`.
    """

    background: Float32Array
    unrelated: Background = USUAL

    def __init__(self, engine: SearchEngine, vectors: KeptVectors, *, with_terms: bool) -> None:
        self.engine, self.vectors, self._with_terms = engine, vectors, with_terms
        self._blank = Text(np.zeros(vectors.dimensions, dtype=np.float32), hashed_terms(""))
        self._kept: dict[str, Text] = {}
        self._since, self._size = time.monotonic(), 0

    async def read(self, ids: Iterable[str], progress: ProgressFunction | None = None) -> Texts:
        """Return texts by id, at least these; one that the engine does not return is blank."""
        if time.monotonic() - self._since >= SECONDS_KEPT or self._size > KEPT_BYTES:
            # A new dictionary, since others may still use the old one.
            self._kept, self._since, self._size = {}, time.monotonic(), 0
        kept = self._kept
        if missing := [id_ for id_ in dict.fromkeys(ids) if id_ not in kept]:
            documents = await self.engine.documents(missing)
            texts = [_readable(text_of(document)) for document in documents]
            vectors = await self.vectors.encode(texts, progress)
            terms = [self._blank.terms] * len(texts)
            if self._with_terms:
                terms = await asyncio.to_thread(lambda: [*map(hashed_terms, texts)])
            kept |= dict.fromkeys(missing, self._blank)
            kept |= zip([d.id for d in documents], map(Text, vectors, terms), strict=True)
            self._size += len(missing) * OVERHEAD + vectors.nbytes + sum(it.nbytes for it in terms)
        return kept

    def stacked(self, texts: Iterable[Text]) -> Float32Array:
        """Return the vectors of texts, shape (n, d)."""
        rows = [text.vector for text in texts]
        return np.array(rows, dtype=np.float32).reshape(-1, self.vectors.dimensions)

    async def compare(self) -> None:
        """Compare the sample with unrelated queries, if it is not known what cosines they reach.

        Raises:
            ModelError: The encoder failed.
        """
        if self.vectors.encoder.name == FITTED_WITH or not len(self.background):
            return
        unrelated = await unrelated_vectors(self.vectors)
        self.unrelated = background_of(self.background, unrelated, self.vectors.encoder)

    def answerable(
        self, query: Float32Array, vectors: Float32Array, regression: Answerability
    ) -> float:
        """Return the probability that there are relevant documents for a query.

        Args:
            query: The vector of the query, shape (d,).
            vectors: The vectors of the pool, shape (n, d); zeros do not count.
            regression: Fitted on pools.
        """
        known = vectors[vectors.any(axis=1)]
        nearest = nearest_mean(np.vecdot(known, query))
        return regression.probability(self.unrelated.above(nearest), words=0.0)

    def likeness(
        self,
        query: Float32Array,
        vectors: Float32Array,
        rankings: tuple[Sequence[int], Float32Array],
    ) -> FloatArray:
        """Return the similarity of documents in standard deviations; see :func:`standardised`.

        Args:
            query: The vector of the query, shape (d,).
            vectors: The vectors of the documents, shape (n, d); zeros have the mean similarity.
            rankings: The documents that may move the query: their rows, best first by words, and
                their vectors.
        """
        by_words, candidates = rankings
        nearest = np.argsort(-np.vecdot(candidates, query), kind="stable").tolist()
        moved = moved_toward(query, candidates[fused_best([by_words, nearest])])
        cosines = np.where(vectors.any(axis=1), np.vecdot(vectors, moved), np.nan)
        return standardised(cosines, self.background @ moved)


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
        can: frozenset[Capability] = texts.engine.capabilities | {"relevance"}
        self.capabilities = can - {"vectors"}
        self._texts, self._keeps_order = texts, keeps_order

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
            found = await lexical.search(SAMPLE_QUERIES)
            sample = await texts.read([id_ for hits in found for id_ in hits.ids], progress)
            texts.background = texts.stacked(it for it in sample.values() if it.vector.any())
        await texts.compare()
        return cls(texts, keeps_order=keeps_order)

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        """Answer all queries: one round trip for their hits, and one for new texts."""
        plan = [self._searches(query) for query in queries]
        asked = list(dict.fromkeys(search for pair in plan for search in pair))
        found = dict(zip(asked, await self.lexical.search(asked), strict=True))
        answers = [
            (query, found[own], found[ranks])
            for query, (own, ranks) in zip(queries, plan, strict=True)
        ]
        ranking = [answer for answer in answers if answer[0].is_ranking]
        texts = await self._texts.read(
            id_
            for query, own, leading in ranking
            for id_ in (*leading.ids[:POOL], *self._encoded(query, own))
        )
        return [await self._estimated(*answer, texts) for answer in answers]

    def _searches(self, query: Query) -> tuple[Query, Query]:
        """Return the search for a query, and the one whose ranks are evidence."""
        if not query.is_ranking:
            return query, query
        own = replace(query, n=max(query.n, POOL if query.only is None else len(query.only)))
        if query.only is not None and "rescore" not in self.lexical.capabilities:
            own = replace(own, text="")  # only looks them up
        if query.only is None and query.within is None:
            return own, own
        # Ranks are those among the best of all documents.
        return own, replace(query, n=RANKED, only=None, within=None)

    async def _estimated(self, query: Query, hits: Hits, leading: Hits, texts: Texts) -> Hits:
        if not query.is_ranking:
            return hits
        asked = await self._texts.vectors.encode_query(query.text)
        pool = leading.ids[:POOL]
        candidates = self._texts.stacked(texts[id_] for id_ in pool)
        # Other texts may be known from other queries, but a score must not depend on these.
        vectors = self._texts.stacked(texts[id_] for id_ in self._encoded(query, hits))
        if not (candidates.any() or vectors.any()):
            return first_of(hits, query.n)
        similar, movers = np.zeros(len(hits)), (range(len(pool)), candidates)
        similar[: len(vectors)] = self._texts.likeness(asked, vectors, movers)
        ranks = rank_evidence(hits.ids, leading.ids[:RANKED])
        calibration = self.calibrations.rank
        probabilities = calibration.probability(ranks, similar)
        # Whatever the query is limited to, it is answerable by the best of all documents.
        answerable = self._texts.answerable(asked, candidates, calibration.answerable)
        hits = replace(hits, relevance=probabilities, answerable=answerable)
        if query.with_claims:
            known = np.arange(len(hits)) if hits.claims is None else hits.claims
            name = self._texts.vectors.encoder.name
            hits = replace(hits, claims=claims_by_vector(vectors, name, known))
        if self._keeps_order:
            return first_of(hits, query.n)
        best = best_positions(hits.ids, probabilities)[: query.n]
        return rows_of(replace(hits, scores=probabilities.tolist()), best.tolist())

    def _encoded(self, query: Query, hits: Hits) -> Sequence[str]:
        """Return the documents of a query whose own vectors count."""
        return hits.ids[:POOL] if query.only is None else hits.ids


async def _random_background(
    engine: SampledEngine, vectors: KeptVectors, progress: ProgressFunction | None
) -> Float32Array:
    """Return the vectors of random documents that have texts, shape (n, d), from disk if kept."""
    kept = KeptSample(engine.sample_key, vectors.mark)
    background = await kept.read()
    if background is not None:
        return background
    documents = await engine.random_documents(SAMPLED)
    texts = [_readable(text_of(document)) for document in documents]
    rows = await vectors.encode(texts, progress)
    background = rows[rows.any(axis=1)]
    await kept.write(background)
    return background


class Reference:
    """How frequent words are in the texts of a sample.

    Args:
        sample: The terms of each text, at least one.

    Attributes:
        frequencies: How many texts of the sample contain each term.
        texts: The number of texts.
        mean_length: Their mean number of terms.
    """

    def __init__(self, sample: Sequence[Terms]) -> None:
        self.frequencies = Counter(term for terms in sample for term in {*terms.tolist()})
        self.texts, self.mean_length = len(sample), sum(map(len, sample)) / max(1, len(sample))

    def weight(self, term: int) -> float:
        """Return the inverse document frequency of a term as in Lucene, above 0.

        Without a sample, all terms weigh the same.
        """
        having = self.frequencies.get(term, 0)
        return float(np.log1p((self.texts - having + 0.5) / (having + 0.5)))


def bm25(query: Terms, texts: Sequence[Terms], reference: Reference) -> FloatArray:
    """Return the BM25 scores of n texts, shape (n,), with the statistics of a reference.

    A word that occurs twice in the query counts twice. Without a reference, the mean length is that
    of the texts themselves.

    We do not use :class:`fairqr.retrieval.pools.retrievers.MemoryIndex`: it has its own statistics,
    and it would have to be built for each query, which takes 25 ms for 150 texts.
    """
    lengths = np.array([len(terms) for terms in texts])
    mean_length = reference.mean_length or lengths.sum() / max(1, np.count_nonzero(lengths)) or 1.0
    norms = K1 * (1 - B + B * lengths / mean_length)
    every, rows = np.concatenate([query[:0], *texts]), np.repeat(np.arange(len(texts)), lengths)
    scores = np.zeros(len(texts))
    for term, times in Counter(query.tolist()).items():
        counts = np.bincount(rows[every == term], minlength=len(texts))
        scores += times * reference.weight(term) * counts * (K1 + 1) / (counts + norms)
    return scores


class TextRelevance:
    """Estimates how likely documents are relevant, from the query's words and their texts.

    An estimate depends only on the query, on the documents in the pool, and on the sample taken
    when this was opened. It was fitted on pools of 200 documents. Use it in one event loop.

    What texts say is kept for ten minutes, see :class:`TextReader`, and their vectors are in the
    user's cache. No query is stored.
    """

    calibrations = CALIBRATED

    def __init__(self, texts: TextReader, reference: Reference) -> None:
        """Take what :meth:`open` has prepared."""
        self._texts, self.reference, self._reading = texts, reference, asyncio.Lock()

    @classmethod
    async def open(
        cls,
        engine: SearchEngine,
        encoder: Encoder,
        progress: ProgressFunction | None = None,
        queries: Sequence[str] = (),
    ) -> TextRelevance:
        """Take a sample of an engine's documents: those that 20 common words find.

        Args:
            engine: Supplies the texts.
            encoder: Makes vectors of them, and of queries in the same way, as MiniLM does.
            progress: Called with the number of encoded texts of the sample, if any are new.
            queries: Queries for an engine that answers no others, such as a run, or in which the
                common words find nothing, for example in another language. The sample is then 200
                documents, drawn by the hashes of their ids from all that 20 of them find (of a run,
                that 200 find), so that no rank chooses. With fewer than ten there is no sample: all
                words weigh the same, and similarities are compared with typical ones of MiniLM.

        Raises:
            ModelError: The encoder failed.
            ModelUnavailableError: The encoder cannot be started.
            FairqrError: Any error of the engine.
        """
        texts = TextReader(engine, await KeptVectors.of(encoder), with_terms=True)
        ids, is_run = set[str](), "new_queries" not in engine.capabilities
        if not is_run:
            ids = {id_ for hits in await engine.search(SAMPLE_QUERIES) for id_ in hits.ids}
        if not ids and len({*queries}) >= FEWEST_QUERIES:
            # By hashes, so that neither the order of the queries nor a rank chooses.
            most, depth = (SAMPLED, WHOLE_RUN) if is_run else (SAMPLED_QUERIES, SAMPLED_FROM_EACH)
            chosen = sorted({*queries}, key=_digest_of)[:most]
            answers = await engine.search([Query(text, depth) for text in chosen])
            every = {id_ for hits in answers for id_ in hits.ids}
            ids = {*sorted(every, key=_digest_of)[:SAMPLED]}
        ordered = sorted(ids)
        sample = await texts.read(ordered, progress)
        spoken = [sample[id_] for id_ in ordered if len(sample[id_].terms)]
        texts.background = texts.stacked(text for text in spoken if text.vector.any())
        await texts.compare()
        return cls(texts, Reference([text.terms for text in spoken]))

    async def estimate_ids(self, query: str, ids: Sequence[str]) -> Estimates | None:
        """Return how likely each document is relevant to a query, and what each half of it says.

        A document that has no text or that the engine does not return, about which we know nothing,
        gets the mean of the others.

        Args:
            query: The words of the query.
            ids: The distinct documents of the pool, in any order.

        Returns:
            The estimates in the order of the documents, or None if fewer than half of them have a
            text.

        Raises:
            ModelError: The encoder failed.
            FairqrError: Any error of the engine.
        """
        # One call at a time, so that no text is read and encoded for two queries at once.
        async with self._reading:
            known = await self._texts.read(ids)
        # Sorted by id, so that not even the last digit depends on the order of the pool.
        order = sorted(range(len(ids)), key=ids.__getitem__)
        texts = [known[ids[place]] for place in order]
        terms = [text.terms for text in texts]
        vectors = self._texts.stacked(texts)
        spoken = vectors.any(axis=1) | (np.array([*map(len, terms)]) > 0)
        if np.count_nonzero(spoken) < max(1, FEWEST_TEXTS * len(ids)):
            return None
        words, made_by = _readable(query), self._texts.vectors
        (vector,) = await encode_documents(made_by.encoder, [words], made_by.dimensions)
        scores = bm25(_hashed(query_terms(words)), terms, self.reference)
        sharing = np.argsort(-scores, kind="stable")[: np.count_nonzero(scores)]
        both, alone = (
            self._texts.likeness(vector, vectors, (rows.tolist(), vectors))
            for rows in (sharing, sharing[:0])
        )
        shared = scores / (scores.max() or 1.0)
        calibration = self.calibrations.texts
        answerable = self._texts.answerable(vector, vectors, calibration.answerable)

        def estimate(lexical: FloatArray, similarity: FloatArray) -> FloatArray:
            likeness = similarity.clip(-FARTHEST, FARTHEST)
            probabilities = answerable * calibration.probability(lexical, likeness)
            estimates = np.empty(len(ids))
            estimates[order] = np.where(spoken, probabilities, probabilities[spoken].mean())
            return estimates

        return Estimates(
            estimate(shared, both),
            estimate(shared, np.full(len(ids), both[spoken].mean())),
            estimate(np.full(len(ids), shared[spoken].mean()), alone),
            answerable,
            self._claims([known[id_] for id_ in ids]),
        )

    def _claims(self, texts: Sequence[Text]) -> Claims:
        """Return which documents have nearly the same vectors, of the first that are compared."""
        compared = self._texts.stacked(texts[:COMPARED])
        alone = np.arange(len(texts))
        return claims_by_vector(compared, self._texts.vectors.encoder.name, alone)


async def open_texts(
    engine: SearchEngine, queries: Mapping[str, str], progress: ProgressFunction | None = None
) -> tuple[TextRelevance | None, str]:
    """Return what estimates relevance from texts, or None and a sentence that says why not.

    Args:
        engine: Whose texts are read, at its pace.
        queries: What will be asked, by id. A run is asked by the ids.
        progress: Called with the number of texts encoded.

    Raises:
        FairqrError: The engine fails.
        ModelError: The encoder fails.
    """
    if not is_pulled(MiniLmEncoder.name):
        return None, (
            "Relevance cannot be estimated without MiniLM; run 'fairqr models pull minilm', or "
            "give judgements."
        )
    run, searches = lexical_of(engine), [*queries.values()]
    if isinstance(run, RunEngine):
        if all(id_ == text for id_, text in queries.items()):
            return None, (
                f"Relevance cannot be estimated without the texts of the queries of "
                f"'{engine.name}'; give the file of its queries, or judgements."
            )
        # Words that the run does not know would find nothing.
        searches = [id_ for id_ in queries if id_ in run.rankings]
    texts = await TextRelevance.open(engine, MiniLmEncoder(), progress, searches)
    if not texts.reference.texts:
        found = await engine.search([Query(text, PROBED) for text in searches[:PROBED]])
        ids = list(dict.fromkeys(id_ for hits in found for id_ in hits.ids))
        if not any(text_of(document).strip() for document in await engine.documents(ids)):
            return None, (
                f"Relevance cannot be estimated, since '{engine.name}' gives no texts; give "
                "judgements, or name the fields of its texts."
            )
    return texts, ""


def end_of(estimates: FloatArray, places: Sequence[int], answerable: float = 1.0) -> float:
    """Return how likely relevant the last documents are that a search found, in [0, 1].

    A pool widened by one search for each group reaches down to unlikely documents of a small
    group, but contains only the likely ones of a large group. So the shares in the whole pool say
    little. Above the level at which every group's search was cut off, they can be compared. Where
    that is :data:`fairqr.retrieval.fairness.relevance.LIKELY` or more, relevant documents were not
    found.

    Args:
        estimates: The estimate for each document of the pool, shape (n,).
        places: The positions of the search's documents in the pool, in the engine's order.
        answerable: The factor of all estimates.

    Returns:
        The median estimate of its last ten documents; 0 if it found none. Where the last half of
        what it found is likely, if anything is, a few others below it do not show an end: then the
        median of that.
    """
    if not len(places):
        return 0.0
    found = estimates[[*places]]
    last = float(np.median(found[-END:]))
    half = float(np.median(found[len(found) // 2 :]))
    return max(last, half) if half >= LIKELY * answerable else last


def _readable(text: str) -> str:
    """Return as much of a text as we read."""
    return sendable(text)[:LONGEST]


def _digest_of(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
