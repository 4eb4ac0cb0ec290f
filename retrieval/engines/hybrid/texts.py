"""Relevance estimated from the texts of documents alone, for audits.

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
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from fairqr.base.weights import is_pulled
from fairqr.retrieval.encoders.encoder import (
    Encoder,
    KeptVectors,
    encode_documents,
    text_of,
)
from fairqr.retrieval.encoders.minilm import MiniLmEncoder
from fairqr.retrieval.engines.engine import (
    Query,
    SearchEngine,
    lexical_of,
)
from fairqr.retrieval.engines.hybrid.text_reader import (
    SAMPLED,
    Terms,
    TextReader,
    as_numbers,
    readable,
)
from fairqr.retrieval.engines.run import RunEngine
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.fairness.relevance import (
    CALIBRATED,
    LIKELY,
    SAMPLE_QUERIES,
)
from fairqr.retrieval.sources.documents import ProgressFunction
from fairqr.retrieval.texts.words import query_terms

PROBED = 10
"""How many documents, of as many queries, show whether an engine gives texts."""

K1 = 1.2
"""A parameter of BM25: how soon more of one word says no more. As in Lucene and tantivy."""

B = 0.75
"""A parameter of BM25: how much the length of a text counts. As in Lucene and tantivy."""

FEWEST_TEXTS = 0.5
"""The share of a pool that must have texts. With less, the other estimates say too little."""

FARTHEST = 10.0
"""The maximum number of standard deviations that counts."""

END = 10
"""How many of a search's last documents say how far down it reaches."""

SAMPLED_QUERIES = 20
"""How many queries a sample of an engine's documents is taken from."""

SAMPLED_FROM_EACH = 100
"""How many documents of each of these queries may be in the sample."""

WHOLE_RUN = 10_000
"""More documents than a run has for a query."""

FEWEST_QUERIES = 10
"""With fewer, the sample would be little more than the pools themselves."""


class Estimates(NamedTuple):
    """How likely documents are relevant, three arrays of shape (n,), in (0, 1).

    Attributes:
        relevance: By all evidence.
        by_words: By the words alone that query and text share; all are taken to be as similar.
        by_similarity: By the similarity alone, as if all texts shared as many words.
        answerable: The probability that any document is relevant, a factor of all of these.
    """

    relevance: FloatArray
    by_words: FloatArray
    by_similarity: FloatArray
    answerable: float


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
        self.frequencies: Counter[int] = Counter()
        for terms in sample:
            self.frequencies.update(set(terms.tolist()))
        self.texts = len(sample)
        self.mean_length = sum(map(len, sample)) / max(1, len(sample))

    def weight(self, term: int) -> float:
        """Return the inverse document frequency of a term as in Lucene, above 0.

        Without a sample, all terms weigh the same.
        """
        frequency = self.frequencies.get(term, 0)
        return float(np.log1p((self.texts - frequency + 0.5) / (frequency + 0.5)))


def bm25(query: Terms, texts: Sequence[Terms], reference: Reference) -> FloatArray:
    """Return the BM25 scores of n texts, shape (n,), with the statistics of a reference.

    A word that occurs twice in the query counts twice. Without a reference, the mean length is that
    of the texts themselves.

    We do not use :class:`fairqr.retrieval.pools.retrievers.MemoryIndex`: it has its own statistics,
    and it would have to be built for each query, which takes 25 ms for 150 texts.
    """
    lengths = np.array([len(terms) for terms in texts])
    mean_of_texts = lengths.sum() / max(1, np.count_nonzero(lengths))
    mean_length = reference.mean_length or mean_of_texts or 1.0
    norms = K1 * (1 - B + B * lengths / mean_length)

    terms_of_all = np.concatenate([query[:0], *texts])
    rows = np.repeat(np.arange(len(texts)), lengths)
    scores = np.zeros(len(texts))
    for term, times in Counter(query.tolist()).items():
        counts = np.bincount(rows[terms_of_all == term], minlength=len(texts))
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
        self._texts = texts
        self.reference = reference
        self._reading = asyncio.Lock()

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
        reader = TextReader(engine, await KeptVectors.of(encoder), with_terms=True)
        ids: set[str] = set()
        if "new_queries" in engine.capabilities:
            ids = await _ids_of(engine, SAMPLE_QUERIES)
        if not ids and len(set(queries)) >= FEWEST_QUERIES:
            ids = await _sampled_ids(engine, set(queries))

        sorted_ids = sorted(ids)
        text_of_id = await reader.read(sorted_ids, progress)
        texts = [text_of_id[id_] for id_ in sorted_ids]
        sample = [text for text in texts if len(text.terms)]
        reader.background = reader.stacked(text for text in sample if text.vector.any())
        await reader.compare()
        return cls(reader, Reference([text.terms for text in sample]))

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
            text_of_id = await self._texts.read(ids)
        # Sorted by id, so that not even the last digit depends on the order of the pool.
        order = sorted(range(len(ids)), key=ids.__getitem__)
        texts = [text_of_id[ids[position]] for position in order]
        terms = [text.terms for text in texts]
        vectors = self._texts.stacked(texts)
        has_text = vectors.any(axis=1) | (np.array([*map(len, terms)]) > 0)
        if np.count_nonzero(has_text) < max(1, FEWEST_TEXTS * len(ids)):
            return None

        words = readable(query)
        scores = bm25(as_numbers(query_terms(words)), terms, self.reference)
        lexical = scores / (scores.max() or 1.0)
        by_words = np.argsort(-scores, kind="stable")[: np.count_nonzero(scores)]

        encoder = self._texts.vectors.encoder
        dimensions = self._texts.vectors.dimensions
        (query_vector,) = await encode_documents(encoder, [words], dimensions)
        likeness = self._texts.likeness(query_vector, vectors, (by_words.tolist(), vectors))
        # As it is if the words move nothing.
        likeness_alone = self._texts.likeness(query_vector, vectors, ([], vectors))
        calibration = self.calibrations.texts
        answerable = self._texts.answerable(query_vector, vectors, calibration.answerable)

        def estimate(lexical: FloatArray, similarity: FloatArray) -> FloatArray:
            similarity = similarity.clip(-FARTHEST, FARTHEST)
            probabilities = answerable * calibration.probability(lexical, similarity)
            estimates = np.empty(len(ids))
            estimates[order] = np.where(has_text, probabilities, probabilities[has_text].mean())
            return estimates

        mean_likeness = np.full(len(ids), likeness[has_text].mean())
        mean_lexical = np.full(len(ids), lexical[has_text].mean())
        return Estimates(
            relevance=estimate(lexical, likeness),
            by_words=estimate(lexical, mean_likeness),
            by_similarity=estimate(mean_lexical, likeness_alone),
            answerable=answerable,
        )


async def _sampled_ids(engine: SearchEngine, queries: Collection[str]) -> set[str]:
    """Return a sample of the documents that queries find.

    We choose by hashes, so that neither the order of the queries nor a rank chooses.
    """
    if "new_queries" in engine.capabilities:
        number_of_queries = SAMPLED_QUERIES
        depth = SAMPLED_FROM_EACH
    else:
        number_of_queries = SAMPLED
        depth = WHOLE_RUN
    texts = sorted(queries, key=_digest_of)[:number_of_queries]
    ids = await _ids_of(engine, [Query(text, depth) for text in texts])
    return {*sorted(ids, key=_digest_of)[:SAMPLED]}


async def _ids_of(engine: SearchEngine, queries: Sequence[Query]) -> set[str]:
    """Return the documents that an engine finds for any of some queries."""
    ids: set[str] = set()
    for hits in await engine.search(queries):
        ids.update(hits.ids)
    return ids


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
    run = lexical_of(engine)
    searches = list(queries.values())
    if isinstance(run, RunEngine):
        has_texts = any(id_ != text for id_, text in queries.items())
        if not has_texts:
            return None, (
                f"Relevance cannot be estimated without the texts of the queries of "
                f"'{engine.name}'; give the file of its queries, or judgements."
            )
        # Words that the run does not know would find nothing.
        searches = [id_ for id_ in queries if id_ in run.rankings]
    relevance = await TextRelevance.open(engine, MiniLmEncoder(), progress, searches)
    if not relevance.reference.texts and not await _gives_texts(engine, searches):
        return None, (
            f"Relevance cannot be estimated, since '{engine.name}' gives no texts; give "
            "judgements, or name the fields of its texts."
        )
    return relevance, ""


async def _gives_texts(engine: SearchEngine, searches: Sequence[str]) -> bool:
    """Return whether any of the first documents of some searches has a text."""
    ids: dict[str, None] = {}
    for hits in await engine.search([Query(text, PROBED) for text in searches[:PROBED]]):
        ids |= dict.fromkeys(hits.ids)
    documents = await engine.documents(list(ids))
    return any(text_of(document).strip() for document in documents)


def end_of(estimates: FloatArray, positions: Sequence[int], answerable: float = 1.0) -> float:
    """Return how likely relevant the last documents are that a search found, in [0, 1].

    A pool widened by one search for each group reaches down to unlikely documents of a small
    group, but contains only the likely ones of a large group. So the shares in the whole pool say
    little. Above the level at which every group's search was cut off, they can be compared. Where
    that is :data:`fairqr.retrieval.fairness.relevance.LIKELY` or more, relevant documents were not
    found.

    Args:
        estimates: The estimate for each document of the pool, shape (n,).
        positions: Of the search's documents in the pool, in the engine's order.
        answerable: The factor of all estimates.

    Returns:
        The median estimate of its last ten documents; 0 if it found none. Where the last half of
        what it found is likely, if anything is, a few others below it do not show an end: then the
        median of that.
    """
    if not len(positions):
        return 0.0
    estimates_of_search = estimates[[*positions]]
    middle = len(positions) // 2
    median_of_last_ten = float(np.median(estimates_of_search[-END:]))
    median_of_last_half = float(np.median(estimates_of_search[middle:]))
    if median_of_last_half < LIKELY * answerable:
        return median_of_last_ten
    return max(median_of_last_ten, median_of_last_half)


def _digest_of(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
