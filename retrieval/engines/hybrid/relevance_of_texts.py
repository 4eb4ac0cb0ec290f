"""How likely documents are relevant to a query, estimated from texts alone.

An audit cannot take an engine's word for what is relevant: documents that the engine ranks low
would look irrelevant. So this estimate reads only the words of the query and the texts of a pool of
documents. It uses no score, rank or label from the engine.

It uses the same evidence as :mod:`fairqr.retrieval.fairness.relevance`, with two differences. BM25
takes the
frequencies of words from a fixed sample of the engine's documents, because a word that the whole
pool contains would otherwise count for almost nothing. And the similarity is standardised over that
sample. ``benchmarks/relevance_of_texts.py`` fits the estimate, and shows how it treats groups
(docs/explanation/audits.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import filterfalse, islice, repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairqr.base.errors import InputError
from fairqr.base.weights import is_pulled
from fairqr.retrieval.encoders.encoder import (
    Encoder,
    EncoderMark,
    Float32Array,
    encode_documents,
    key_of,
    text_of,
)
from fairqr.retrieval.encoders.kept_vectors import KeptVectors
from fairqr.retrieval.encoders.minilm import MiniLmEncoder
from fairqr.retrieval.encoders.opening import open_encoder
from fairqr.retrieval.engines.engine import Query, SearchEngine, lexical_of
from fairqr.retrieval.engines.hybrid.vector_array import StoredVectors, VectorFolder, digest_of
from fairqr.retrieval.engines.run import RunEngine
from fairqr.retrieval.engines.tantivy.analysis import shared_analyzer
from fairqr.retrieval.engines.tantivy.engine import TantivyEngine
from fairqr.retrieval.engines.tantivy.folder import VECTORS
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.fairness.relevance import (
    CALIBRATED,
    LIKELY,
    Background,
    moved_toward,
    shares_of,
)
from fairqr.retrieval.sources.documents import Document, Progress
from fairqr.retrieval.sources.retriever_parameters import Hybrid
from fairqr.retrieval.texts.sendable import sendable

PROBED = 10
"""So many documents of so many queries tell whether an engine gives texts."""

K1, B = 1.2, 0.75
"""Parameters of BM25, as in Lucene and tantivy."""

LONGEST = 100_000
"""How many characters of a text we read; more would only cost time."""

FEWEST_TEXTS = 0.5
"""The share of a pool that must have texts. With less, the other estimates say too little."""

FARTHEST = 10.0
"""The maximum number of standard deviations that counts."""

END = 10
"""How many of a search's last documents say how far down it reaches."""

SAMPLED_QUERIES, SAMPLED_FOR_EACH = 20, 10
FEWEST_QUERIES = 10
"""With fewer, the sample would be little more than the pools themselves."""

KEPT_BYTES = 150_000_000
"""How much evidence we keep: about 60,000 texts of 100 words with MiniLM."""

OVERHEAD = 200
"""The bytes that Python needs for the id of each text."""

SECONDS_KEPT = 600.0

READ_AHEAD = 256
"""How many of the expected queries get their vectors at a time."""

Terms = NDArray[np.uint32]
Numbers = NDArray[np.int64]


class TextEvidence(NamedTuple):
    """What we keep of n texts.

    Attributes:
        vectors: Of length 1, or zeros for a text without words, shape (n, d).
        distinct: The number of distinct stems of each text, shape (n,).
        terms: The distinct stems of all texts, one text after the other, as ascending numbers; see
            :func:`numbers_of`. Shape (m,).
        counts: How often each stem occurs in its text, shape (m,).
    """

    vectors: Float32Array
    distinct: Numbers
    terms: Terms
    counts: Numbers

    @classmethod
    def of(cls, texts: Sequence[str], vectors: Float32Array) -> TextEvidence:
        """Count the terms of texts with these vectors; this blocks."""
        numbers = [numbers_of(shared_analyzer().analyze(text)) for text in texts]
        rows = np.repeat(np.arange(len(texts)), [len(terms) for terms in numbers])
        pairs = rows << 32 | np.concatenate([numbers_of([]), *numbers])
        found, counts = np.unique(pairs, return_counts=True)
        distinct = np.bincount(found >> 32, minlength=len(texts))
        return cls(vectors, distinct, (found & 0xFFFF_FFFF).astype(np.uint32), counts)

    @property
    def mean_length(self) -> float:
        """The mean number of terms of the texts that have any."""
        return float(self.counts.sum() / max(1, np.count_nonzero(self.distinct)))


@dataclass(frozen=True, slots=True)
class Reference:
    """A fixed sample of documents that weights words and standardises similarities.

    Attributes:
        background: The vectors of the sample.
        frequencies: How many texts of the sample contain each term.
        texts: The number of texts.
        mean_length: Their mean number of terms.
    """

    background: Background
    frequencies: Mapping[int, int] = field(default_factory=dict)
    texts: int = 0
    mean_length: float = 0.0

    @classmethod
    def of(cls, sample: TextEvidence) -> Reference:
        """Count the terms of a sample; texts without terms are left out."""
        spoken = sample.distinct > 0
        return cls(
            Background.of(sample.vectors[spoken]),
            Counter(sample.terms.tolist()),
            int(spoken.sum()),
            sample.mean_length,
        )

    def weight(self, term: int) -> float:
        """Return the inverse document frequency of a term as in Lucene, above 0.

        Without a sample, all terms weigh the same.
        """
        having = self.frequencies.get(term, 0)
        return float(np.log1p((self.texts - having + 0.5) / (having + 0.5)))


def numbers_of(terms: Sequence[str]) -> Terms:
    """Return terms as numbers. Among a million distinct terms, one in 4,000 shares its number."""
    return np.array([zlib.crc32(term.encode()) for term in terms], dtype=np.uint32)


def bm25(query: Terms, texts: TextEvidence, reference: Reference) -> FloatArray:
    """Return the BM25 scores of n texts, shape (n,), with the statistics of a reference.

    A word that occurs twice in the query counts twice. Without a reference, the mean length is that
    of the texts themselves.

    We do not use an index as in :mod:`fairqr.retrieval.pools.bm25`: it has its own statistics, and
    it would have to be built for each query, which takes 25 ms for 150 texts.
    """
    mean_length = reference.mean_length or texts.mean_length
    wanted, times = np.unique(query, return_counts=True)
    if not len(wanted) or not mean_length:
        return np.zeros(len(texts.distinct))
    weights = times * [reference.weight(term) for term in wanted.tolist()]
    places = np.minimum(np.searchsorted(wanted, texts.terms), len(wanted) - 1)
    met = np.flatnonzero(wanted[places] == texts.terms)
    rows = np.repeat(np.arange(len(texts.distinct)), texts.distinct)
    lengths = np.bincount(rows, texts.counts, minlength=len(texts.distinct))
    rows, counts = rows[met], texts.counts[met]
    norms = K1 * (1 - B + B * lengths / mean_length)
    gains = weights[places[met]] * counts * (K1 + 1) / (counts + norms[rows])
    return np.bincount(rows, gains, minlength=len(lengths)).astype(np.float64)


class _KeptTexts:
    """The evidence of documents by id, since they were first read."""

    def __init__(self, dimensions: int) -> None:
        self.since = time.monotonic()
        self._rows: dict[str, int] = {}
        # Row 0 stands for documents without text.
        self._blank: Sequence[NDArray[Any]]
        self._blank = TextEvidence.of([""], np.zeros((1, dimensions), dtype=np.float32))
        self._starts = bytearray(np.zeros(1, dtype=np.int64).tobytes())
        # Buffers can grow in place, unlike arrays.
        self._parts = [bytearray(part.tobytes()) for part in self._blank]

    @property
    def is_old(self) -> bool:
        """Whether the documents may have changed since."""
        return time.monotonic() - self.since >= SECONDS_KEPT

    @property
    def size(self) -> int:
        """The number of bytes it takes."""
        return len(self._rows) * OVERHEAD + len(self._starts) + sum(map(len, self._parts))

    def missing(self, ids: Iterable[str]) -> list[str]:
        """Return those of the ids that are not kept, in their order."""
        return [*filterfalse(self._rows.__contains__, dict.fromkeys(ids))]

    def add(self, ids: Sequence[str], texts: TextEvidence) -> None:
        """Keep the evidence of documents."""
        first = 1 + len(self._rows)
        self._rows.update(zip(ids, range(first, first + len(ids)), strict=True))
        terms = len(self._parts[2]) // texts.terms.itemsize
        self._starts += (terms + np.cumsum(texts.distinct) - texts.distinct).tobytes()
        arrays: Sequence[NDArray[Any]] = texts
        for kept, new in zip(self._parts, arrays, strict=True):
            kept += new.tobytes()

    def of(self, ids: Sequence[str]) -> TextEvidence:
        """Return the evidence of documents; one that is not kept counts as one without text."""
        rows = np.array([*map(self._rows.get, ids, repeat(0))], dtype=np.int64)
        vectors, distinct, terms, counts = (
            np.frombuffer(kept, part.dtype).reshape(-1, *part.shape[1:])
            for kept, part in zip(self._parts, self._blank, strict=True)
        )
        sizes = distinct[rows]
        shifts = np.frombuffer(self._starts, np.int64)[rows] - np.cumsum(sizes) + sizes
        places = np.arange(sizes.sum()) + np.repeat(shifts, sizes)
        return TextEvidence(vectors[rows], sizes, terms[places], counts[places])


class TextRelevance:
    """Estimates how likely documents are relevant, from the query's words and their texts.

    An estimate depends only on the query, on the documents in the pool, and on the sample taken
    when this was opened. It was fitted on pools of 200 documents. Use it in one event loop.

    We keep the evidence of documents for ten minutes, up to ``KEPT_BYTES``. Vectors of texts come
    from the index if it has some of this encoder, otherwise from the user's cache; only new texts
    are encoded. So are the queries that are expected; no other query is stored.
    """

    calibrations = CALIBRATED
    options = Hybrid()
    reference: Reference

    def __init__(
        self, engine: SearchEngine, encoder: Encoder, mark: EncoderMark, expected: Sequence[str]
    ) -> None:
        """Take what :meth:`open` has prepared; there is no reference yet."""
        self._engine, self._encoder, self._mark = engine, encoder, mark
        self._stored = _stored_by(engine, mark)
        self._vectors = KeptVectors(encoder, mark)
        self._kept = _KeptTexts(mark.dimensions)
        self._reading, self._encoding = asyncio.Lock(), asyncio.Lock()
        words = dict.fromkeys(map(_readable, expected))
        self._expected = {query: place for place, query in enumerate(words)}
        self._ahead: dict[str, Float32Array] = {}

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
            expected: Words of queries that estimates will be asked for, about in this order. Their
                vectors are made some at a time and kept in the user's cache.

        Raises:
            ModelError: The encoder failed.
            ModelUnavailableError: The encoder cannot be started.
            FairqrError: Any error of the engine.
        """
        mark = await EncoderMark.of(encoder)
        estimate = await asyncio.to_thread(cls, engine, encoder, mark, expected)
        asked = sorted({*queries}, key=digest_of) if len({*queries}) >= FEWEST_QUERIES else []
        own = [Query(text, SAMPLED_FOR_EACH) for text in asked[:SAMPLED_QUERIES]]
        is_open = "new_queries" in engine.capabilities
        found = await engine.search(Background.sample()) if is_open else []
        if not any(hits.ids for hits in found) and own:
            found = await engine.search(own)
        ids = sorted({id_ for hits in found for id_ in hits.ids})
        estimate.reference = Reference.of(await estimate._evidence_of(ids, progress))
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
        # Sort by id, so that not even the last digit depends on the order of the pool.
        order = sorted(range(len(ids)), key=ids.__getitem__)
        texts = await self._evidence_of([ids[place] for place in order])
        has_vector = texts.vectors.any(axis=1)
        spoken = has_vector | (texts.distinct > 0)
        if np.count_nonzero(spoken) < max(1, FEWEST_TEXTS * len(ids)):
            return None
        words = _readable(query)
        vector = await self._vector_of(words)
        scores = bm25(numbers_of(shared_analyzer().analyze(words)), texts, self.reference)
        sharing = np.argsort(-scores, kind="stable")[: np.count_nonzero(scores) * by_words]
        nearest = np.argsort(-np.vecdot(texts.vectors, vector), kind="stable")
        # The same as fused_best, without a step in Python for each document.
        fused = np.zeros(len(ids))
        for ranking in (sharing[: self.options.depth], nearest[: self.options.depth]):
            fused[ranking] += 1 / (self.options.k + np.arange(1, len(ranking) + 1))
        best = np.argsort(-fused, kind="stable")[: self.options.feedback]
        moved = moved_toward(vector, texts.vectors[best], self.options.weight)
        cosines = np.where(has_vector, np.vecdot(texts.vectors, moved), np.nan)
        similarity = self.reference.background.standardised(moved, cosines)
        shared = shares_of(scores, float(scores.max()))
        chances = self.calibrations.texts.probability(
            shared if by_words else np.full_like(shared, shared[spoken].mean()),
            np.clip(similarity, -FARTHEST, FARTHEST),
        )
        estimates = np.empty(len(ids))
        estimates[order] = np.where(spoken, chances, chances[spoken].mean())
        return estimates

    async def _vector_of(self, words: str) -> Float32Array:
        """Return the vector of a query; of an expected one, from those that are kept."""
        place = self._expected.get(words)
        if place is None:
            made = await encode_documents(self._encoder, [words], self._mark.dimensions)
            return np.asarray(made[0])
        async with self._encoding:
            if words not in self._ahead:
                some = [*islice(self._expected, place, place + READ_AHEAD)]
                vectors = await self._vectors.encode(some)
                # Others may still need the last ones.
                last = [*self._ahead.items()][-READ_AHEAD:]
                self._ahead = dict(last) | dict(zip(some, vectors, strict=True))
            return self._ahead[words]

    async def _evidence_of(
        self, ids: Sequence[str], progress: Progress | None = None
    ) -> TextEvidence:
        """Return the evidence of documents, fetching from the engine what is not kept."""
        if not self._kept.is_old and not self._kept.missing(ids):
            return self._kept.of(ids)
        # One call at a time, so that no text is read and encoded for two queries at once.
        async with self._reading:
            if self._kept.is_old:
                self._kept = _KeptTexts(self._mark.dimensions)
            if missing := self._kept.missing(ids):
                documents = await self._engine.documents(missing)
                texts = await self._read(documents, progress)
                self._kept.add([document.id for document in documents], texts)
            evidence = self._kept.of(ids)
            if self._kept.size > KEPT_BYTES:
                self._kept = _KeptTexts(self._mark.dimensions)
        return evidence

    async def _read(self, documents: Sequence[Document], progress: Progress | None) -> TextEvidence:
        """Encode and count the texts of documents."""
        whole = [sendable(text_of(document)) for document in documents]
        texts = [text[:LONGEST] for text in whole]
        vectors = await asyncio.to_thread(self._stored.get, [digest_of(text) for text in whole])
        new = np.flatnonzero(~vectors.any(axis=1)).tolist()
        vectors[new] = await self._vectors.encode([texts[row] for row in new], progress)
        return await asyncio.to_thread(TextEvidence.of, texts, vectors)


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
    encoder = open_encoder(MiniLmEncoder.name)
    texts = await TextRelevance.open(engine, encoder, progress, searches, [*queries.values()])
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


def _stored_by(engine: SearchEngine, mark: EncoderMark) -> StoredVectors:
    """Return the vectors of this encoder in an embedded index; this blocks."""
    lexical = lexical_of(engine)
    if isinstance(lexical, TantivyEngine):
        # Vectors of another model with the same name are useless.
        with contextlib.suppress(InputError, OSError):
            return VectorFolder(lexical.folder / VECTORS / key_of(mark.name), mark).by_text()
    return StoredVectors.none(mark.dimensions)


def _readable(query: str) -> str:
    """Return the words of a query that we read."""
    return sendable(query)[:LONGEST]
