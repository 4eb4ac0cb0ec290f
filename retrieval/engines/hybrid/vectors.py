"""Vector search over an embedded index."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

import numpy as np
from filelock import AsyncFileLock
from numpy.typing import NDArray

from fairqr.base.errors import IndexUnavailableError
from fairqr.retrieval.encoders.encoder import (
    Encoder,
    EncoderMark,
    Float32Array,
    encode_documents,
    encode_query,
    key_of,
    text_of,
)
from fairqr.retrieval.engines.engine import Capability, EngineOverWords, Hits, Query, require_groups
from fairqr.retrieval.engines.hybrid.vector_array import (
    VectorFolder,
    cosines,
    digest_of,
    highest,
    scores_of,
)
from fairqr.retrieval.engines.tantivy.engine import Numbers, Snapshot, TantivyEngine
from fairqr.retrieval.engines.tantivy.folder import VECTORS, refuse_damaged
from fairqr.retrieval.sources.documents import Document, Progress

DOCUMENTS_AT_ONCE = 256
"""How many documents are lost at most if the process is killed; MiniLM needs four seconds."""

CHARACTERS_AT_ONCE = 4_000_000


class VectorEngine(EngineOverWords):
    """Ranks by the cosine between the query's vector and the documents' vectors.

    The scores are (1 + cosine)/2, in [0, 1]. Unlike with BM25, every document is a hit, however
    dissimilar, except those without any word, which have no cosine; among given documents these
    have score 0. A query without any word finds nothing. Words of ``boost`` are encoded together
    with the query, after it.

    The lexical engine answers what vectors cannot: which documents have all words, how many have
    any, texts, and groups. A search first encodes what any process has written to the index since
    the last search.
    """

    lexical: TantivyEngine
    kind = "dense"
    capabilities: frozenset[Capability] = TantivyEngine.capabilities | {"vectors"}

    def __init__(self, lexical: TantivyEngine, encoder: Encoder, mark: EncoderMark) -> None:
        """Take what :meth:`open` has prepared."""
        super().__init__(lexical)
        self.retriever = f"{self.kind}:{encoder.name}"
        self._encoder = encoder
        self._stamp: tuple[int, int] | None = None
        self._folder = VectorFolder(lexical.folder / VECTORS / key_of(mark.name), mark)
        self._vectors = self._folder.load()

    @classmethod
    async def open(
        cls, lexical: TantivyEngine, encoder: Encoder, progress: Progress | None = None
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
        mark = await EncoderMark.of(encoder)
        engine = await asyncio.to_thread(cls, lexical, encoder, mark)
        await engine._update(progress)
        return engine

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        """Answer all queries, each with at most ``n`` hits."""
        require_groups(self, queries)
        if await asyncio.to_thread(self.lexical.stamp) not in (self._stamp, None):
            await self._update()
        encoded = await asyncio.gather(*(self._encoded(query) for query in queries))
        return await asyncio.to_thread(self._search, queries, encoded)

    async def _encoded(self, query: Query) -> Float32Array | None:
        """Return the vector of a query, or None if its answer needs no vectors."""
        if query.n < 1 or query.every_word:
            return None
        return await encode_query(self._encoder, query.words, self._folder.mark.dimensions)

    async def _update(self, progress: Progress | None = None) -> None:
        """Encode the documents that have no vector yet.

        Waits if another process is doing so.
        """
        # Read this first: later writes then make the next search look again.
        stamp = await asyncio.to_thread(self.lexical.stamp)
        now = await asyncio.to_thread(self.lexical.snapshot)
        last = await asyncio.to_thread(now.last_number)
        folder = self._folder
        try:
            # With nothing to encode we need neither the lock nor the right to write.
            if await asyncio.to_thread(folder.rows) <= last:
                async with _writing(folder.folder, self.lexical.folder):
                    await self._encode_missing(now, last, progress)
            self._vectors = await asyncio.to_thread(folder.load, self._vectors)
        except OSError as error:
            raise IndexUnavailableError(
                f"The vectors of the index '{self.name}' cannot be saved in {folder.folder} "
                f"({error.strerror or error}); fix that, or use the retriever bm25."
            ) from None
        self._stamp = stamp

    async def _encode_missing(self, now: Snapshot, last: int, progress: Progress | None) -> None:
        """Encode the documents up to this number that have no row; the caller holds the lock."""
        folder = self._folder
        rows = await asyncio.to_thread(folder.rows)
        total = int(now.are_live(np.arange(rows, last + 1)).sum())
        earlier = await asyncio.to_thread(folder.earlier)
        chunks = _chunks(now.numbered_documents(rows - 1))
        done = 0
        while chunk := await asyncio.to_thread(next, chunks, None):
            numbers, texts = [number for number, _ in chunk], [text for _, text in chunk]
            digests = [digest_of(text) for text in texts]
            new = [place for place, digest in enumerate(digests) if digest not in earlier]
            vectors = np.zeros((len(chunk), folder.mark.dimensions), dtype=np.float32)
            vectors[new] = await encode_documents(
                self._encoder, [texts[place] for place in new], folder.mark.dimensions
            )
            for place in set(range(len(chunk))).difference(new):
                vectors[place] = earlier[digests[place]]
            rows = await asyncio.to_thread(folder.append, rows, numbers, digests, vectors)
            done += len(chunk)
            if progress:
                progress(done, total)
        await asyncio.to_thread(folder.forget_earlier)

    # The methods below block and run in threads.

    def _search(
        self, queries: Sequence[Query], encoded: Sequence[Float32Array | None]
    ) -> list[Hits]:
        now = self.lexical.snapshot()
        return [
            self.lexical.answer(now, query)
            if vector is None
            else self._answer(now, self._vectors, query, vector)
            for query, vector in zip(queries, encoded, strict=True)
        ]

    def _answer(
        self, now: Snapshot, vectors: Float32Array, query: Query, vector: Float32Array
    ) -> Hits:
        """Answer a query by its vector."""
        if query.only is not None:
            return _rescored(now, vectors, vector, self._given(now, query), query.n)
        return _found(now, vectors, vector, query.n, self._members(now, query, len(vectors)))

    def _given(self, now: Snapshot, query: Query) -> Numbers:
        """Return the numbers of a query's given documents that have a share of its group."""
        given = now.addresses(query.only or ())
        numbers = np.array(now.numbers(list(given.values())), dtype=np.int64)
        members = self._members(now, query, 0)
        return numbers if members is None else numbers[members[numbers]]

    def _members(self, now: Snapshot, query: Query, numbers: int) -> NDArray[np.bool_] | None:
        """Return which documents have a share of a query's group, by number; None without one."""
        if query.within is None:
            return None
        return now.are_matching(self.lexical.in_group(query.within), numbers)


def _found(
    now: Snapshot,
    vectors: Float32Array,
    query: Float32Array,
    n: int,
    among: NDArray[np.bool_] | None,
) -> Hits:
    """Return the n documents most similar to the query; optionally only among some rows."""
    if not query.any():
        return Hits([], [], now.memberships([]))
    similar = cosines(vectors, query)
    similar[~now.are_live(np.arange(len(vectors)))] = np.nan
    rows = highest(similar, n, among)
    return now.hits(rows, scores_of(vectors, query, rows), n)


def _rescored(
    now: Snapshot, vectors: Float32Array, query: Float32Array, numbers: Numbers, n: int
) -> Hits:
    """Return the best n of these documents; all have score 0 for a query without words."""
    scores = np.zeros(len(numbers))
    if query.any():
        encoded = numbers < len(vectors)
        scores[encoded] = scores_of(vectors, query, numbers[encoded])
    return now.hits(numbers, scores, n)


@asynccontextmanager
async def _writing(folder: Path, index: Path) -> AsyncIterator[None]:
    """Hold the lock on the vectors in a folder; the system releases it when the process dies."""
    try:
        # Do not create parents: a deleted index must stay deleted.
        await asyncio.to_thread(folder.parent.mkdir, exist_ok=True)
        await asyncio.to_thread(folder.mkdir, exist_ok=True)
    except FileNotFoundError as error:
        refuse_damaged(index, error)
    # Not in a thread: many may be waiting, and there are few threads.
    async with AsyncFileLock(folder / "lock", run_in_executor=False):
        yield


def _chunks(documents: Iterator[tuple[int, Document]]) -> Iterator[list[tuple[int, str]]]:
    """Group the texts of documents, each with its number, into chunks of bounded size."""
    chunk: list[tuple[int, str]] = []
    size = 0
    for number, document in documents:
        text = text_of(document)
        if chunk and (len(chunk) == DOCUMENTS_AT_ONCE or size + len(text) > CHARACTERS_AT_ONCE):
            yield chunk
            chunk, size = [], 0
        chunk.append((number, text))
        size += len(text)
    if chunk:
        yield chunk
