"""Search by vectors over an embedded index: alone, or together with words."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from filelock import AsyncFileLock
from numpy.typing import NDArray
from pydantic import BaseModel

from fairqr.base.errors import IndexUnavailableError, InputError
from fairqr.base.files import open_beside, write_beside
from fairqr.retrieval.encoders.encoder import (
    Encoder,
    EncoderMark,
    Float32Array,
    KeptVectors,
    key_of,
    text_of,
)
from fairqr.retrieval.engines.engine import Capability, EngineOverWords, Hits, Query, require_groups
from fairqr.retrieval.engines.tantivy.engine import (
    Eligible,
    Numbers,
    Snapshot,
    TantivyEngine,
    refuse_damaged,
)
from fairqr.retrieval.fairness.answerable import (
    FIRST,
    Background,
    background_of,
    nearest_mean,
    unrelated_queries,
    unrelated_vectors,
)
from fairqr.retrieval.fairness.claims import claims_by_vector
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.fairness.relevance import (
    CALIBRATED,
    FUSED,
    fused_best,
    moved_toward,
    standardised,
)
from fairqr.retrieval.sources.documents import ProgressFunction

DOCUMENTS_AT_ONCE = 256
"""How many documents are encoded at a time."""

CANDIDATES = 1000
"""How many documents words find for hybrid retrieval: what a TREC run has for each topic."""

PROBE_TOLERANCE = 2e-3
"""How far what one encoder makes of one text may differ, from machine to machine."""

Float16Array = NDArray[np.float16]


def read_vectors(path: Path, mark: EncoderMark) -> Float16Array:
    """Return the vectors that one encoder made for an index, in half precision, shape (N, d).

    The row of a document is its number. A row is zeros if its document has no words, or was deleted
    before it was encoded.

    Args:
        path: The file, which exists once all documents are encoded; a damaged one has no vectors.
        mark: Identifies the encoder.

    Raises:
        InputError: Another encoder of the same name made them.
    """
    try:
        with path.open("rb") as stream:
            probe = np.load(stream)
            vectors = np.load(stream)
    except (OSError, ValueError, EOFError):
        return np.zeros((0, mark.dimensions), dtype=np.float16)

    width = vectors.shape[1]
    has_width = width == mark.dimensions
    if not has_width or not np.allclose(probe, mark.probe, rtol=0, atol=PROBE_TOLERANCE):
        raise InputError(
            f"The vectors '{mark.name}' in {path.parent} were made by another model of that name, "
            f"with {width} dimensions; give your encoder another name, or delete that folder."
        )
    return np.asarray(vectors)


def write_vectors(path: Path, mark: EncoderMark, vectors: Float16Array) -> None:
    """Replace the vectors."""
    with open_beside(path) as stream:
        np.save(stream, np.array(mark.probe))
        np.save(stream, vectors)


def read_background(path: Path, rows: int) -> Background | None:
    """Return what cosines unrelated queries reach, if that was kept for this number of vectors.

    Args:
        path: The file.
        rows: How many vectors the index has.
    """
    try:
        kept = KeptBackground.model_validate_json(path.read_bytes())
    except (OSError, ValueError):
        return None
    is_current = kept.rows == rows and kept.queries == _unrelated_digest()
    return Background(kept.nearest, kept.scale) if is_current else None


def write_background(path: Path, rows: int, background: Background) -> None:
    """Keep what cosines unrelated queries reach among this number of vectors."""
    kept = KeptBackground(
        rows=rows,
        queries=_unrelated_digest(),
        nearest=background.nearest,
        scale=background.scale,
    )
    write_beside(path, kept.model_dump_json())


class KeptBackground(BaseModel, frozen=True):
    """What is kept beside the vectors of an index.

    Attributes:
        rows: How many vectors there were.
        queries: A hash of the unrelated queries.
        nearest, scale: See :class:`Background`.
    """

    rows: int
    queries: str
    nearest: float
    scale: float


def _unrelated_digest() -> str:
    return sha256("\n".join(unrelated_queries()).encode()).hexdigest()


def vectors_path(index: Path, encoder: str) -> Path:
    """Return the path of the vectors that an encoder made, or would make, for an index."""
    return index / "dense" / key_of(encoder) / "vectors"


def unit_vectors(stored: Float16Array) -> Float32Array:
    """Return vectors of length 1 or 0: rounding to half precision has changed the lengths."""
    vectors = stored.astype(np.float32)
    lengths = np.sqrt(np.vecdot(vectors, vectors))[:, None]
    np.divide(vectors, lengths, out=vectors, where=lengths > 0)
    return vectors


def cosines(vectors: Float32Array, query: Float32Array) -> Float32Array:
    """Return the cosine of every row with the query, shape (N,); nan where either is zeros."""
    # As fast as a matrix product, whose threads would compete for the cores.
    products: Float32Array = np.vecdot(vectors, query).clip(-1, 1)
    # Only rows with product 0 can be zeros.
    candidates = np.flatnonzero(products == 0)
    has_cosine = vectors[candidates].any(axis=1) & query.any()
    products[candidates[~has_cosine]] = np.nan
    return products


def highest(values: FloatArray | Float32Array, n: int, among: Eligible) -> Numbers:
    """Return the rows of the n highest values among some rows, unordered.

    Rows that tie with the last of them are included, so there may be more than n. Rows of nan
    are left out.
    """
    rows = np.flatnonzero(~np.isnan(values) & among)
    if n < len(rows):
        candidates = values[rows]
        nth_value = np.partition(candidates, -n)[-n]
        rows = rows[candidates >= nth_value]
    return rows


class VectorEngine(EngineOverWords):
    """Ranks by the cosine between the query's vector and the documents' vectors.

    The scores are (1 + cosine)/2, in [0, 1]. Unlike with BM25, every document is a hit, however
    dissimilar, except those without any word, which have no cosine; among given documents these
    have score 0. A query without any word finds nothing.

    The lexical engine answers what vectors cannot: which documents have all words, how many have
    any, texts, and groups. A search first encodes what any process has written to the index since
    the last search.
    """

    lexical: TantivyEngine
    kind = "dense"
    capabilities: frozenset[Capability] = TantivyEngine.capabilities | {"vectors"}

    def __init__(self, lexical: TantivyEngine, texts: KeptVectors) -> None:
        """Take what :meth:`open` has prepared; no vectors are loaded yet."""
        super().__init__(lexical)
        self.retriever = f"{self.kind}:{texts.mark.name}"
        self._texts = texts
        self._encoded: Snapshot | None = None
        self._path = vectors_path(lexical.folder, texts.mark.name)
        self._vectors = np.zeros((0, texts.dimensions), dtype=np.float32)

    @classmethod
    async def open(
        cls,
        lexical: TantivyEngine,
        encoder: Encoder,
        progress: ProgressFunction | None = None,
    ) -> Self:
        """Open vector search over an index, after encoding documents that have no vector yet.

        Args:
            lexical: The index.
            encoder: Makes the vectors.
            progress: Called with the number of encoded documents, if any are new.

        Raises:
            InputError: Vectors of another encoder exist under this one's name.
            ModelError: The encoder failed.
            ModelUnavailableError: The encoder cannot be started.
            IndexUnavailableError: The vectors cannot be written.
            IndexVersionError: The index was rebuilt or deleted in the meantime.
        """
        engine = cls(lexical, await KeptVectors.of(encoder))
        await engine._update(await asyncio.to_thread(lexical.snapshot), progress)
        return engine

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        """Answer all queries, each with at most ``n`` hits."""
        require_groups(self, queries)
        snapshot = await asyncio.to_thread(self.lexical.snapshot)
        if snapshot is not self._encoded:
            await self._update(snapshot)
        vectors = await asyncio.gather(*map(self._vector_of, queries))
        return await asyncio.to_thread(self._search, snapshot, queries, vectors)

    async def _vector_of(self, query: Query) -> Float32Array | None:
        """Return the vector of a query, or None if its answer needs no vectors."""
        if query.n < 1 or query.every_word:
            return None
        return await self._texts.encode_query(query.text)

    async def _update(self, snapshot: Snapshot, progress: ProgressFunction | None = None) -> None:
        """Encode the documents that have no row yet.

        Waits if another process is doing so.
        """
        try:
            stored = await asyncio.to_thread(read_vectors, self._path, self._texts.mark)
            # With nothing to encode we need neither the lock nor the right to write.
            number_of_rows = await asyncio.to_thread(lambda: len(snapshot.live))
            if len(stored) < number_of_rows:
                if not self.lexical.folder.exists():
                    refuse_damaged(self.lexical.folder, "it is gone")  # It must stay deleted.
                # Not in a thread: many may be waiting, and there are few threads.
                async with AsyncFileLock(self._path.parent / "lock", run_in_executor=False):
                    stored = await self._encode_missing(snapshot, progress)
            vectors = await asyncio.to_thread(unit_vectors, stored)
        except OSError as error:
            raise IndexUnavailableError(
                f"The vectors of the index '{self.name}' cannot be saved in "
                f"{self._path.parent} ({error.strerror or error}); fix that, or use the "
                "retriever bm25."
            ) from None
        self._encoded = snapshot
        # Another search may have loaded more of them meanwhile.
        self._vectors = max(self._vectors, vectors, key=len)

    async def _encode_missing(
        self, snapshot: Snapshot, progress: ProgressFunction | None
    ) -> Float16Array:
        """Encode the documents that have no row, and return all rows; the caller holds the lock.

        If this is interrupted, what was encoded is in the user's cache.
        """
        stored = await asyncio.to_thread(read_vectors, self._path, self._texts.mark)
        number_of_rows = max(len(snapshot.live), len(stored))
        rows = np.zeros((number_of_rows, stored.shape[1]), dtype=np.float16)
        rows[: len(stored)] = stored

        total = int(snapshot.live[len(stored) :].sum())
        done = 0
        documents = snapshot.numbered_documents(len(stored) - 1)
        # Reading blocks, so each batch is read in a thread.
        while batch := await asyncio.to_thread(lambda: [*islice(documents, DOCUMENTS_AT_ONCE)]):
            numbers = [number for number, _ in batch]
            texts = [text_of(document) for _, document in batch]
            rows[numbers] = await self._texts.encode(texts)
            done += len(batch)
            if progress:
                progress(done, total)
        await asyncio.to_thread(write_vectors, self._path, self._texts.mark, rows)
        return rows

    # The methods below block and run in threads.

    def _search(
        self, snapshot: Snapshot, queries: Sequence[Query], vectors: Sequence[Float32Array | None]
    ) -> list[Hits]:
        rows = self._vectors[: len(snapshot.live)]
        answers = []
        for query, vector in zip(queries, vectors, strict=True):
            if vector is None:
                answers.append(snapshot.answer(query))
            else:
                answers.append(self._answer(snapshot, rows, query, vector))
        return answers

    def _answer(
        self, snapshot: Snapshot, rows: Float32Array, query: Query, vector: Float32Array
    ) -> Hits:
        """Answer a query by its vector; ``rows`` has one for each number."""
        similarity = cosines(rows, vector)
        if query.only is None:
            numbers = highest(similarity, query.n, snapshot.eligible(query.within))
        else:
            numbers, _ = snapshot.ranked(replace(query, text="", n=len(query.only)))
        scores = np.nan_to_num((1 + similarity[numbers].astype(np.float64)) / 2)
        return self._hits(snapshot, rows, query, snapshot.best(numbers, scores, query.n))

    def _hits(
        self,
        snapshot: Snapshot,
        rows: Float32Array,
        query: Query,
        best: tuple[Numbers, FloatArray],
    ) -> Hits:
        """Return the best documents, numbers and scores, as hits, with their claims if asked."""
        numbers, scores = best
        hits = snapshot.hits(numbers, scores)
        if not query.with_claims:
            return hits
        return replace(hits, claims=claims_by_vector(rows[numbers], self._texts.mark.name))


class _Evidence(NamedTuple):
    """What says how likely documents are relevant to a query, by number.

    Attributes:
        words: BM25 as a share of the highest score, shape (N,); 0 without any of the words.
        cosines: With the query's moved vector, shape (N,); nan without a vector.
    """

    words: FloatArray
    cosines: Float32Array


class HybridEngine(VectorEngine):
    """Ranks by the probability that a document is relevant, from words and vectors together.

    A query is first answered twice, by BM25 and by its vector. Reciprocal rank fusion of both gives
    ten documents, and the vector moves halfway toward their mean. The scores are the probabilities
    of :mod:`fairqr.retrieval.fairness.relevance`, given that anything is relevant; how likely that
    is stands beside them (``Hits.answerable``). As in a search by vectors alone, every document
    is a hit, the unlikely ones last; a query without any word finds nothing. A document outside the
    1,000 that the words find counts as one without any of the words, and one without a vector has
    the mean similarity.
    """

    kind = "hybrid"
    capabilities = VectorEngine.capabilities | {"relevance"}
    calibrations = CALIBRATED

    def __init__(self, lexical: TantivyEngine, texts: KeptVectors) -> None:
        """Take what :meth:`open` has prepared; no vectors are loaded yet."""
        super().__init__(lexical, texts)
        self._background = Background(0.0, 1.0)
        self._compared_rows = -1

    async def _update(self, snapshot: Snapshot, progress: ProgressFunction | None = None) -> None:
        """Encode the documents that have no row yet, and compare all with unrelated queries."""
        await super()._update(snapshot, progress)
        rows = self._vectors
        if len(rows) == self._compared_rows:
            return
        path = self._path.with_name("unrelated.json")
        background = await asyncio.to_thread(read_background, path, len(rows))
        if background is None:
            background = await self._compare(rows)
            # Without the right to write, each process compares for itself.
            with contextlib.suppress(OSError):
                await asyncio.to_thread(write_background, path, len(rows), background)
        self._background = background
        self._compared_rows = len(rows)

    async def _compare(self, rows: Float32Array) -> Background:
        """Return what cosines unrelated queries reach."""
        unrelated = await unrelated_vectors(self._texts)
        return await asyncio.to_thread(background_of, rows, unrelated, self._texts.encoder)

    def _answer(
        self, snapshot: Snapshot, rows: Float32Array, query: Query, vector: Float32Array
    ) -> Hits:
        """Answer a query by its words and its vector."""
        # A document's relevance is the same within its group as among all documents.
        by_words, scores = snapshot.ranked(replace(query, n=CANDIDATES, only=None, within=None))
        if not vector.any() and not len(by_words):
            return self._answer_nothing(snapshot, query)

        similarity = cosines(rows, vector)
        nearest = highest(similarity, FUSED, snapshot.live)
        nearest = nearest[np.lexsort((nearest, -similarity[nearest]))]
        best_by_both = fused_best([by_words.tolist(), nearest.tolist()])
        moved = cosines(rows, moved_toward(vector, rows[best_by_both]))
        highest_score = scores.max(initial=0.0) or 1.0
        evidence = _Evidence(np.zeros(len(rows)), moved)
        evidence.words[by_words] = scores / highest_score

        # Whatever the query is limited to, it is answerable by all documents.
        likely = np.union1d(by_words, highest(moved, FIRST, snapshot.live))
        first = snapshot.hits(*self._best(snapshot, evidence, likely, FIRST))
        answerable = self._answerable(snapshot, query, similarity[snapshot.live], first.ids)

        if query.only is None:
            eligible = snapshot.eligible(query.within)
            nearest = highest(standardised(moved, moved), query.n, eligible)
            numbers = np.union1d(by_words[eligible[by_words]], nearest)
        else:
            # Words count for given documents, though they are not among the first 1,000.
            numbers, scores = snapshot.ranked(replace(query, n=len(query.only)))
            evidence.words[:] = 0
            evidence.words[numbers] = scores / highest_score
        hits = self._hits(snapshot, rows, query, self._best(snapshot, evidence, numbers, query.n))
        return replace(hits, relevance=np.array(hits.scores), answerable=answerable)

    def _answer_nothing(self, snapshot: Snapshot, query: Query) -> Hits:
        """Answer a query that has no word which any document has."""
        answerable = self._answerable(snapshot, query, np.zeros(0, np.float32), [])
        hits = snapshot.answer(query)
        return replace(hits, relevance=np.zeros(len(hits)), answerable=answerable)

    def _best(
        self, snapshot: Snapshot, evidence: _Evidence, numbers: Numbers, n: int
    ) -> tuple[Numbers, FloatArray]:
        """Return the best n of some documents by their probabilities, with these."""
        likeness = standardised(evidence.cosines[numbers].astype(np.float64), evidence.cosines)
        regression = self.calibrations.words
        probabilities = regression.probability(evidence.words[numbers], likeness)
        return snapshot.best(numbers, probabilities, n)

    def _answerable(
        self, snapshot: Snapshot, query: Query, similarity: Float32Array, first: Sequence[str]
    ) -> float:
        """Return the probability that the index has relevant documents for a query.

        Args:
            snapshot: The index.
            query: The query.
            similarity: The cosines of its own vector with the documents.
            first: The ids of the most likely documents.
        """
        regression = self.calibrations.words.answerable
        above_unrelated = self._background.above(nearest_mean(similarity))
        return regression.probability(above_unrelated, snapshot.words_held(query.text, first))
