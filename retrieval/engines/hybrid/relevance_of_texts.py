"""How likely documents are relevant to a query, estimated from texts alone.

An audit cannot take an engine's word for what is relevant: documents that the engine ranks low
would look irrelevant. So this estimate reads only the words of the query and the texts of a pool of
documents. It uses no score, rank or label from the engine.

It uses the same evidence as :mod:`fairqr.retrieval.fairness.relevance`, with two differences. BM25
takes the frequencies of words from a fixed sample of the engine's documents, because a word that
the whole pool contains would otherwise count for almost nothing. And the similarity is standardised
over that sample. ``benchmarks/relevance_of_texts.py`` fits the estimate, and shows how it treats
groups (docs/explanation/audits.md).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import blake2b

import numpy as np

from fairqr.base.weights import is_pulled
from fairqr.retrieval.encoders.encoder import (
    Encoder,
    EncoderMark,
    Float32Array,
    KeptVectors,
    encode_documents,
    text_of,
)
from fairqr.retrieval.encoders.minilm import MiniLmEncoder
from fairqr.retrieval.engines.engine import Query, SearchEngine, lexical_of
from fairqr.retrieval.engines.hybrid.encoded_pool import LONGEST, Terms, Text, TextReader, terms_of
from fairqr.retrieval.engines.run import RunEngine
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.fairness.relevance import (
    CALIBRATED,
    LIKELY,
    Background,
    fused_best,
    moved_toward,
)
from fairqr.retrieval.sources.documents import Progress
from fairqr.retrieval.sources.retriever_parameters import Hybrid
from fairqr.retrieval.texts.sendable import sendable

PROBED = 10
"""So many documents of so many queries tell whether an engine gives texts."""

K1, B = 1.2, 0.75
"""Parameters of BM25, as in Lucene and tantivy."""

FEWEST_TEXTS = 0.5
"""The share of a pool that must have texts. With less, the other estimates say too little."""

FARTHEST = 10.0
"""The maximum number of standard deviations that counts."""

END = 10
"""How many of a search's last documents say how far down it reaches."""

SAMPLED_QUERIES, SAMPLED_FOR_EACH = 20, 10
FEWEST_QUERIES = 10
"""With fewer, the sample would be little more than the pools themselves."""


class Reference:
    """A fixed sample of documents that weights words and standardises similarities.

    Args:
        sample: Their texts; those without terms are left out.
        dimensions: The dimensions of their vectors.

    Attributes:
        background: The vectors of the sample.
        frequencies: How many texts of the sample contain each term.
        texts: The number of texts that have terms.
        mean_length: Their mean number of terms.
    """

    def __init__(self, sample: Sequence[Text], dimensions: int) -> None:
        spoken = [text for text in sample if len(text.terms)]
        vectors = np.array([text.vector for text in spoken], dtype=np.float32)
        self.background = Background.of(vectors.reshape(-1, dimensions))
        self.frequencies = Counter(term for text in spoken for term in {*text.terms.tolist()})
        self.texts = len(spoken)
        self.mean_length = sum(len(text.terms) for text in spoken) / max(1, self.texts)

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

    What texts say is kept for ten minutes, see :class:`TextReader`. Vectors of texts and of the
    expected queries are kept in the user's cache; no other query is stored.
    """

    calibrations = CALIBRATED
    options = Hybrid()
    reference: Reference

    def __init__(self, engine: SearchEngine, encoder: Encoder, mark: EncoderMark) -> None:
        """Take what :meth:`open` has prepared; there is no reference yet."""
        self._encoder, self._mark = encoder, mark
        self._texts = TextReader(engine, encoder, mark, with_terms=True)
        self._reading = asyncio.Lock()
        self._expected: dict[str, Float32Array] = {}

    @classmethod
    async def open(
        cls,
        engine: SearchEngine,
        encoder: Encoder,
        progress: Progress | None = None,
        queries: Sequence[str] = (),
        expected: Sequence[str] = (),
    ) -> TextRelevance:
        """Take a sample of an engine's documents: those that 20 common words find.

        Args:
            engine: Supplies the texts.
            encoder: Makes vectors of them, and of queries in the same way, as MiniLM does.
            progress: Called with the number of encoded texts of the sample, if any are new.
            queries: Queries for an engine that answers no others, such as a run, or in which the
                common words find nothing, for example in another language. The sample is then what
                20 of them find, in whatever order they are. With fewer than ten there is no
                sample: all words weigh the same, and similarities are compared with typical ones
                of MiniLM.
            expected: Words of queries that estimates will be asked for. Their vectors are made at
                once and kept in the user's cache.

        Raises:
            ModelError: The encoder failed.
            ModelUnavailableError: The encoder cannot be started.
            FairqrError: Any error of the engine.
        """
        mark = await EncoderMark.of(encoder)
        estimate = cls(engine, encoder, mark)
        samples = [Background.sample()] if "new_queries" in engine.capabilities else []
        if len({*queries}) >= FEWEST_QUERIES:
            # By their hashes, so that the order of the queries does not choose.
            chosen = sorted({*queries}, key=_digest_of)[:SAMPLED_QUERIES]
            samples.append([Query(text, SAMPLED_FOR_EACH) for text in chosen])
        ids: list[str] = []
        while samples and not ids:
            ids = sorted({id_ for hits in await engine.search(samples.pop(0)) for id_ in hits.ids})
        sample = await estimate._texts.read(ids, progress)
        estimate.reference = Reference([sample[id_] for id_ in ids], mark.dimensions)
        words = [*dict.fromkeys(map(_readable, expected))]
        vectors = await KeptVectors(encoder, mark).encode(words)
        estimate._expected = dict(zip(words, vectors, strict=True))
        return estimate

    async def estimate_ids(
        self, query: str, ids: Sequence[str], *, by_words: bool = True
    ) -> FloatArray | None:
        """Return how likely each document is relevant to a query, shape (n,), in (0, 1).

        A document that has no text or that the engine does not return, about which we know nothing,
        gets the mean of the others.

        Args:
            query: The words of the query.
            ids: The distinct documents of the pool, in any order.
            by_words: Whether the words that a text shares with the query count; else all texts
                count as if they shared as many, and the similarity alone tells them apart.

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
        vectors = np.array([text.vector for text in texts]).reshape(-1, self._mark.dimensions)
        has_vector = vectors.any(axis=1)
        spoken = has_vector | (np.array([*map(len, terms)]) > 0)
        if np.count_nonzero(spoken) < max(1, FEWEST_TEXTS * len(ids)):
            return None
        words = _readable(query)
        if (vector := self._expected.get(words)) is None:
            (vector,) = await encode_documents(self._encoder, [words], self._mark.dimensions)
        scores = bm25(terms_of(words), terms, self.reference)
        sharing = np.argsort(-scores, kind="stable")[: np.count_nonzero(scores) * by_words]
        nearest = np.argsort(-np.vecdot(vectors, vector), kind="stable")
        best = fused_best([sharing.tolist(), nearest.tolist()], self.options)
        moved = moved_toward(vector, vectors[best], self.options.weight)
        cosines = np.where(has_vector, np.vecdot(vectors, moved), np.nan)
        similarity = self.reference.background.standardised(moved, cosines)
        shared = scores / (scores.max() or 1.0)
        chances = self.calibrations.texts.probability(
            shared if by_words else np.full_like(shared, shared[spoken].mean()),
            np.clip(similarity, -FARTHEST, FARTHEST),
        )
        estimates = np.empty(len(ids))
        estimates[order] = np.where(spoken, chances, chances[spoken].mean())
        return estimates


async def open_texts(
    engine: SearchEngine, queries: Mapping[str, str], progress: Progress | None = None
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
    expected = [*queries.values()]
    texts = await TextRelevance.open(engine, MiniLmEncoder(), progress, searches, expected)
    if not texts.reference.texts:
        found = await engine.search([Query(text, PROBED) for text in searches[:PROBED]])
        ids = list(dict.fromkeys(id_ for hits in found for id_ in hits.ids))
        if not any(text_of(document).strip() for document in await engine.documents(ids)):
            return None, (
                f"Relevance cannot be estimated, since '{engine.name}' gives no texts; give "
                "judgements, or name the fields of its texts."
            )
    return texts, ""


def end_of(estimates: FloatArray, places: Sequence[int]) -> float:
    """Return how likely relevant the last documents are that a search found, in [0, 1].

    A pool widened by one search for each group reaches down to unlikely documents of a small
    group, but contains only the likely ones of a large group. So the shares in the whole pool say
    little. Above the level at which every group's search was cut off, they can be compared. Where
    that is :data:`fairqr.retrieval.fairness.relevance.LIKELY` or more, relevant documents were not
    found.

    Args:
        estimates: The estimate for each document of the pool, shape (n,).
        places: The positions of the search's documents in the pool, in the engine's order.

    Returns:
        The median estimate of its last ten documents; 0 if it found none. Where the last half of
        what it found is likely, a few others below it do not show an end: then the median of that.
    """
    if not len(places):
        return 0.0
    found = estimates[[*places]]
    last, half = float(np.median(found[-END:])), float(np.median(found[len(found) // 2 :]))
    return max(last, half) if half >= LIKELY else last


def _readable(query: str) -> str:
    """Return the words of a query that we read."""
    return sendable(query)[:LONGEST]


def _digest_of(query: str) -> bytes:
    return blake2b(query.encode("utf-8", "surrogatepass"), digest_size=16).digest()
