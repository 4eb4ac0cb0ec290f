"""How likely documents are relevant to a query, estimated from texts alone.

An audit cannot take an engine's word for what is relevant: documents that the engine ranks low
would look irrelevant. So this estimate reads only the words of the query and the texts of a pool of
documents. It uses no score, rank or label from the engine.

It uses the same evidence as :mod:`fairqr.retrieval.relevance`, with two differences. BM25 takes the
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
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairqr.base.errors import InputError
from fairqr.base.loops import PerLoop
from fairqr.retrieval.analysis import english_analyzer
from fairqr.retrieval.documents import Document, Progress
from fairqr.retrieval.encoders.encoder import (
    Encoder,
    EncoderMark,
    Float32Array,
    encode_query,
    key_of,
    text_of,
)
from fairqr.retrieval.encoders.kept_vectors import KeptVectors
from fairqr.retrieval.engines.engine import Query, SearchEngine, lexical_of
from fairqr.retrieval.engines.tantivy import TantivyEngine
from fairqr.retrieval.engines.tantivy_folder import VECTORS
from fairqr.retrieval.engines.vector_array import StoredVectors, VectorFolder, digest_of
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.relevance import (
    CALIBRATED,
    Background,
    fused_best,
    moved_toward,
    shares_of,
)
from fairqr.retrieval.retriever_parameters import Hybrid
from fairqr.retrieval.sendable import sendable

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
"""How much evidence we keep: about 50,000 texts of 100 words with MiniLM."""

OVERHEAD = 600
"""The bytes that Python needs for each text."""

SECONDS_KEPT = 600.0

Terms = NDArray[np.uint32]
Counts = NDArray[np.int64]


class TextEvidence(NamedTuple):
    """What we keep of a text.

    Attributes:
        vector: Of length 1, or zeros for a text without words.
        terms: Its distinct stems as numbers, ascending; see :func:`numbers_of`.
        counts: How often each stem occurs.
        length: The number of terms.
    """

    vector: Float32Array
    terms: Terms
    counts: Counts
    length: int

    @property
    def size(self) -> int:
        """The number of bytes it takes."""
        return self.vector.nbytes + self.terms.nbytes + self.counts.nbytes + OVERHEAD


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
    def of(cls, sample: Sequence[TextEvidence], dimensions: int) -> Reference:
        """Count the terms of a sample; blank texts are left out."""
        spoken = [text for text in sample if len(text.terms)]
        return cls(
            Background.of(_stacked(spoken, dimensions)),
            Counter(term for text in spoken for term in text.terms.tolist()),
            len(spoken),
            _mean_length(spoken),
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


def bm25(query: Terms, texts: Sequence[TextEvidence], reference: Reference) -> FloatArray:
    """Return the BM25 scores of texts, shape (n,), with the statistics of a reference.

    A word that occurs twice in the query counts twice. Without a reference, the mean length is that
    of the texts themselves.

    We do not use an index as in :mod:`fairqr.retrieval.pools.bm25`: it has its own statistics, and
    it would have to be built for each query, which takes 25 ms for 150 texts.
    """
    scores = np.zeros(len(texts))
    mean_length = reference.mean_length or _mean_length(texts)
    wanted, times = np.unique(query, return_counts=True)
    if not len(wanted) or not mean_length:
        return scores
    weights = times * [reference.weight(term) for term in wanted.tolist()]
    for row, text in enumerate(texts):
        if not len(text.terms):
            continue
        places = np.minimum(np.searchsorted(text.terms, wanted), len(text.terms) - 1)
        counts = np.where(text.terms[places] == wanted, text.counts[places], 0)
        norm = K1 * (1 - B + B * text.length / mean_length)
        scores[row] = (weights * counts * (K1 + 1) / (counts + norm)).sum()
    return scores


class TextRelevance:
    """Estimates how likely documents are relevant, from the query's words and their texts.

    An estimate depends only on the query, on the documents in the pool, and on the sample taken
    when this was opened. It was fitted on pools of 200 documents.

    We keep the evidence of recently used documents for ten minutes, up to ``KEPT_BYTES``. Vectors
    come from the index if it has some of this encoder, otherwise from the user's cache; only new
    texts are encoded.
    """

    calibrations = CALIBRATED
    options = Hybrid()

    def __init__(self, engine: SearchEngine, encoder: Encoder, mark: EncoderMark) -> None:
        """Take what :meth:`open` has prepared; there is no reference yet."""
        self._engine, self._encoder, self._mark = engine, encoder, mark
        self._stored = _stored_by(engine, mark)
        self._vectors = KeptVectors(encoder, mark)
        self._kept: OrderedDict[str, tuple[float, bytes, TextEvidence]] = OrderedDict()
        self._bytes = 0
        self._alone: PerLoop[asyncio.Lock] = PerLoop()
        self.reference = Reference.of([], mark.dimensions)

    @classmethod
    async def open(
        cls,
        engine: SearchEngine,
        encoder: Encoder,
        progress: Progress | None = None,
        queries: Sequence[str] = (),
        searched: SearchEngine | None = None,
    ) -> TextRelevance:
        """Take a sample of an engine's documents: those that 20 common words find.

        Args:
            engine: Supplies the texts.
            encoder: Makes vectors of them.
            progress: Called with the number of encoded texts of the sample, if any are new.
            queries: Queries for an engine that answers no others, such as a run, or in which the
                common words find nothing, for example in another language. The sample is then what
                20 of them find, in whatever order they are. With fewer than ten there is no
                sample: all words weigh the same, and similarities are compared with typical ones
                of MiniLM.
            searched: Search this for the sample, for example the same engine at a slower pace.

        Raises:
            ModelError: The encoder failed.
            ModelUnavailableError: The encoder cannot be started.
            FairqrError: Any error of the engine.
        """
        mark = await EncoderMark.of(encoder)
        estimate = await asyncio.to_thread(cls, engine, encoder, mark)
        asked = sorted({*queries}, key=digest_of) if len({*queries}) >= FEWEST_QUERIES else []
        own = [Query(text, SAMPLED_FOR_EACH) for text in asked[:SAMPLED_QUERIES]]
        is_open = "new_queries" in engine.capabilities
        searched = searched or engine
        found = await searched.search(Background.sample()) if is_open else []
        if not any(hits.ids for hits in found) and own:
            found = await searched.search(own)
        ids = sorted({id_ for hits in found for id_ in hits.ids})
        sample = await estimate._read(ids, progress)
        estimate.reference = Reference.of([*sample.values()], mark.dimensions)
        return estimate

    async def estimate(self, query: str, documents: Sequence[Document]) -> FloatArray | None:
        """Return how likely each document is relevant to a query, shape (n,), in (0, 1).

        A document without text, about which we know nothing, gets the mean of the others.

        Args:
            query: The words of the query.
            documents: The distinct documents of the pool, in any order.

        Returns:
            The estimates in the order of the documents, or None if fewer than half of them have a
            text.

        Raises:
            ModelError: The encoder failed.
        """
        known = {document.id: self._kept.get(document.id) for document in documents}
        new = [d for d in documents if (kept := known[d.id]) is None or kept[1] != _digest(d)]
        evidence = {id_: kept[2] for id_, kept in known.items() if kept is not None}
        if new:
            async with self._alone.setdefault(asyncio.Lock()):
                evidence |= await self._take(new)
        return await self._estimated(query, [(d.id, evidence[d.id]) for d in documents])

    async def estimate_ids(self, query: str, ids: Sequence[str]) -> FloatArray | None:
        """Return the same as :meth:`estimate`, fetching the documents from the engine.

        A document that the engine does not return counts as one without text.

        Raises:
            FairqrError: Any error of the engine.
        """
        evidence = await self._read(ids)
        blank = _blank(self._mark.dimensions)
        return await self._estimated(query, [(id_, evidence.get(id_, blank)) for id_ in ids])

    async def _estimated(
        self, query: str, pool: Sequence[tuple[str, TextEvidence]]
    ) -> FloatArray | None:
        # Sort by id, so that not even the last digit depends on the order of the pool.
        order = sorted(range(len(pool)), key=lambda place: pool[place][0])
        texts = [pool[place][1] for place in order]
        spoken = np.array([bool(text.vector.any() or len(text.terms)) for text in texts])
        if not spoken.any() or spoken.mean() < FEWEST_TEXTS:
            return None
        words = sendable(query)[:LONGEST]
        vector = await encode_query(self._encoder, words, self._mark.dimensions)
        terms = numbers_of(english_analyzer().analyze(words))
        chances = self._probabilities(terms, vector, texts, spoken)
        estimates = np.empty(len(pool))
        estimates[order] = chances
        return estimates

    def _probabilities(
        self,
        terms: Terms,
        vector: Float32Array,
        texts: Sequence[TextEvidence],
        spoken: NDArray[np.bool_],
    ) -> FloatArray:
        scores = bm25(terms, texts, self.reference)
        vectors = _stacked(texts, self._mark.dimensions)
        rows = range(len(texts))
        similar = np.vecdot(vectors, vector).tolist()
        by_words = sorted((row for row in rows if scores[row] > 0), key=lambda row: -scores[row])
        nearest = sorted(rows, key=lambda row: -similar[row])
        best = vectors[fused_best([by_words, nearest], self.options)]
        moved = moved_toward(vector, best, self.options.weight)
        cosines = np.where(vectors.any(axis=1), np.vecdot(vectors, moved), np.nan)
        similarity = self.reference.background.standardised(moved, cosines)
        chances = self.calibrations.texts.probability(
            shares_of(scores, float(scores.max())), np.clip(similarity, -FARTHEST, FARTHEST)
        )
        return np.where(spoken, chances, chances[spoken].mean())

    async def _read(
        self, ids: Sequence[str], progress: Progress | None = None
    ) -> dict[str, TextEvidence]:
        """Return the evidence of documents by id, fetching from the engine what is not kept."""
        # One call at a time, so that no text is read and encoded for two queries at once.
        async with self._alone.setdefault(asyncio.Lock()):
            oldest = time.monotonic() - SECONDS_KEPT
            evidence = {}
            for id_ in ids:
                kept = self._kept.get(id_)
                if kept is not None and kept[0] >= oldest:
                    self._kept.move_to_end(id_)
                    evidence[id_] = kept[2]
            missing = [id_ for id_ in dict.fromkeys(ids) if id_ not in evidence]
            if missing:
                evidence |= await self._take(await self._engine.documents(missing), progress)
        return evidence

    async def _take(
        self, documents: Sequence[Document], progress: Progress | None = None
    ) -> dict[str, TextEvidence]:
        """Encode and count the texts of documents, and keep the results."""
        whole = [sendable(text_of(document)) for document in documents]
        digests = [digest_of(text) for text in whole]
        texts = [text[:LONGEST] for text in whole]
        vectors = await asyncio.to_thread(self._stored.get, digests)
        new = [row for row in range(len(texts)) if not vectors[row].any()]
        vectors[new] = await self._vectors.encode([texts[row] for row in new], progress)
        counted = await asyncio.to_thread(_counted, texts)
        now = time.monotonic()
        taken = {}
        for document, digest, vector, (terms, counts) in zip(
            documents, digests, vectors, counted, strict=True
        ):
            length = int(counts.sum())
            evidence = taken[document.id] = TextEvidence(vector.copy(), terms, counts, length)
            self._forget(document.id)
            self._kept[document.id] = now, digest, evidence
            self._bytes += evidence.size
        while self._bytes > KEPT_BYTES:
            self._forget(next(iter(self._kept)))
        return taken

    def _forget(self, id_: str) -> None:
        if (kept := self._kept.pop(id_, None)) is not None:
            self._bytes -= kept[2].size


def end_of(estimates: FloatArray, places: Sequence[int]) -> float:
    """Return how likely relevant the last documents are that a search found, in [0, 1].

    A pool widened by one search for each group reaches down to unlikely documents of a small
    group, but contains only the likely ones of a large group. So the shares in the whole pool say
    little. Above the level at which every group's search was cut off, they can be compared. Where
    that is :data:`fairqr.retrieval.relevance.LIKELY` or more, relevant documents were not found.

    Args:
        estimates: The estimate for each document of the pool, shape (n,).
        places: The positions of the search's documents in the pool, in the engine's order.

    Returns:
        The median estimate of its last ten documents; 0 if it found none.
    """
    return float(np.median(estimates[[*places][-END:]])) if len(places) else 0.0


def _stored_by(engine: SearchEngine, mark: EncoderMark) -> StoredVectors:
    """Return the vectors of this encoder in an embedded index; this blocks."""
    lexical = lexical_of(engine)
    if isinstance(lexical, TantivyEngine):
        # Vectors of another model with the same name are useless.
        with contextlib.suppress(InputError, OSError):
            return VectorFolder(lexical.folder / VECTORS / key_of(mark.name), mark).by_text()
    return StoredVectors.none(mark.dimensions)


def _digest(document: Document) -> bytes:
    return digest_of(sendable(text_of(document)))


def _counted(texts: Sequence[str]) -> list[tuple[Terms, Counts]]:
    """Return the distinct terms of each text and their counts; this blocks."""
    analyzer = english_analyzer()
    return [np.unique(numbers_of(analyzer.analyze(text)), return_counts=True) for text in texts]


def _blank(dimensions: int) -> TextEvidence:
    none = np.zeros(0, dtype=np.uint32)
    return TextEvidence(np.zeros(dimensions, dtype=np.float32), none, none.astype(np.int64), 0)


def _stacked(texts: Sequence[TextEvidence], dimensions: int) -> Float32Array:
    if not texts:
        return np.zeros((0, dimensions), dtype=np.float32)
    return np.stack([text.vector for text in texts])


def _mean_length(texts: Sequence[TextEvidence]) -> float:
    lengths = [text.length for text in texts if text.length]
    return sum(lengths) / len(lengths) if lengths else 0.0
