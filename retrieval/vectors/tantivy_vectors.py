"""Vectors beside the embedded index: in files, searched exactly, kept up to date by any process.

They lie in ``dense/<encoder>/<build>.<generation>`` beside the folder of the index. A generation
belongs to one build of the index, and its rows are found by the numbers that the index gives its
documents. Documents that come later have larger numbers, so what is new is what comes after the
last row; that holds after a kill too, and then only the rest is encoded. Rows of documents that are
gone are passed over, and when they are most, or when the index was built anew, a new generation
begins, which takes over the vectors of all texts that were encoded before.
"""

from __future__ import annotations

import asyncio
import fcntl
import re
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from fairqr.errors import IndexUnavailableError
from fairqr.retrieval.documents import Document
from fairqr.retrieval.encoders.encoder import (
    Encoder,
    EncoderMark,
    Float32Array,
    encode_documents,
    hash_of,
    key_of,
    text_of,
)
from fairqr.retrieval.index import Progress
from fairqr.retrieval.ranking import Ranking
from fairqr.retrieval.tantivy_index import TantivyIndex
from fairqr.retrieval.vectors.nearest import nearest, scores_of
from fairqr.retrieval.vectors.vector_files import KnownTexts, VectorFiles

__all__ = ["TantivyVectors"]

FOLDER = "dense"
DOCUMENTS_AT_ONCE = 500
CHARACTERS_AT_ONCE = 4_000_000
GONE_AT_LEAST = 10_000
WAIT_SECONDS = 0.1

Texts = list[tuple[int, str]]


class _Order(NamedTuple):
    """Which of several generations is the one to use: the highest."""

    of_this_build: bool
    number: int


class TantivyVectors:
    """The vectors of an embedded index; see :class:`fairqr.retrieval.vectors.vector_index.Vectors`.

    Call :meth:`update` before anything else. Several processes and threads may use the same files.
    """

    def __init__(self, index: TantivyIndex, encoder: Encoder, mark: EncoderMark) -> None:
        self._index = index
        self._encoder = encoder
        self._mark = mark
        self._folder = index.folder.parent / FOLDER / key_of(mark.name)
        self._stamp: tuple[int, int] | None = None
        self._files: VectorFiles

    async def search(self, query: Float32Array, n: int) -> Ranking:
        """Return the n documents most like the query."""
        await self._follow()
        return await asyncio.to_thread(self._search, query, n)

    async def rescore(self, query: Float32Array, ids: Sequence[str]) -> Ranking:
        """Rank just these documents."""
        await self._follow()
        return await asyncio.to_thread(self._rescore, query, ids)

    async def lowest(self, ids: Sequence[str]) -> Ranking:
        """Give each of these documents score 0."""
        numbers = await asyncio.to_thread(self._index.numbers_of, ids)
        return Ranking.of(dict.fromkeys(numbers, 0.0))

    async def update(self, progress: Progress | None = None) -> None:
        """Encode the documents that have no vector yet.

        Waits where another process does so just now.

        Raises:
            IndexVersionError: The index was built anew or deleted meanwhile.
            IndexUnavailableError: The files cannot be written.
        """
        # Taken first: what is written from now on makes the next search look again.
        stamp = self._index.stamp()
        build = await asyncio.to_thread(self._index.build_stamp)
        await asyncio.to_thread(self._index.reload)
        try:
            files = await asyncio.to_thread(self._up_to_date, build)
            if files is None:
                async with self._writing():
                    files = await self._brought_up_to_date(build, progress)
            self._files, self._stamp = files, stamp
        except OSError as error:
            raise IndexUnavailableError(
                f"The vectors of the index '{self._index.name}' cannot be kept in {self._folder} "
                f"({error.strerror or error}); mend that, or take the retriever bm25."
            ) from None

    async def _follow(self) -> None:
        """Encode what was written to the index since the last search, by whatever process."""
        # Where the index was built anew, this goes on with what it has open, as the index does.
        if self._index.stamp() not in (self._stamp, None):
            await self.update()

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[None]:
        """Hold the lock on the files; the system lets go of it when the process dies."""
        await asyncio.to_thread(self._folder.mkdir, parents=True, exist_ok=True)
        with (self._folder / "lock").open("w") as lock:
            while True:
                if _locked(lock):
                    break
                # Not in a thread: many may wait, and the threads are few.
                await asyncio.sleep(WAIT_SECONDS)
            yield

    async def _brought_up_to_date(self, build: str, progress: Progress | None) -> VectorFiles:
        """Return the newest generation, after writing what it lacked."""
        files, others = await asyncio.to_thread(self._to_go_on_with, build)
        known = KnownTexts([files, *others])
        chunks = _chunks(self._index.numbered_documents(files.last_number))
        done = 0
        while chunk := await asyncio.to_thread(next, chunks, None):
            hashes = [hash_of(text) for _, text in chunk]
            vectors = await self._vectors([text for _, text in chunk], hashes, known)
            numbers = [number for number, _ in chunk]
            files = await asyncio.to_thread(files.append, numbers, hashes, vectors)
            done += len(chunk)
            if progress:
                progress(done)
        await asyncio.to_thread(self._remove_all_but, files.folder)
        return files

    async def _vectors(
        self, texts: Sequence[str], hashes: Sequence[bytes], known: KnownTexts
    ) -> Float32Array:
        """Return the vectors of texts, encoding those alone that are not known."""
        rows = np.zeros((len(texts), self._mark.dimensions), dtype=np.float32)
        new = []
        for row, vector in enumerate(await asyncio.to_thread(known.find, hashes)):
            if vector is None:
                new.append(row)
            else:
                rows[row] = vector
        if new:
            rows[new] = await encode_documents(
                self._encoder, [texts[row] for row in new], self._mark.dimensions
            )
        return rows

    # The methods below block, and run in threads.

    def _up_to_date(self, build: str) -> VectorFiles | None:
        """Return the newest generation if nothing is left to do for it.

        That needs neither the lock nor the right to write.
        """
        newest = max(self._generations(build), default=None, key=lambda found: found[0])
        if newest is None or not self._fits(*newest):
            return None
        files = newest[1]
        return files if files.last_number >= self._index.last_number() else None

    def _to_go_on_with(self, build: str) -> tuple[VectorFiles, list[VectorFiles]]:
        """Return the generation to write to, and others, whose vectors can be taken over."""
        found = sorted(self._generations(build), key=lambda found: found[0])
        others = [files for _, files in found]
        if found and self._fits(*found[-1]):
            return others.pop(), others
        last = max((order.number for order, _ in found), default=0)
        folder = self._folder / f"{build}.{last + 1}"
        # What is there under that name is damaged.
        _remove(folder)
        return VectorFiles.create(folder, self._mark), others

    def _generations(self, build: str) -> Iterator[tuple[_Order, VectorFiles]]:
        """Yield the generations that can be read, those of this build being the highest."""
        for path in self._folder.glob("*.*"):
            named = re.fullmatch(r"([0-9a-f-]+)\.(\d+)", path.name)
            files = VectorFiles.open(path, self._mark) if named else None
            if named and files is not None:
                yield _Order(named[1] == build, int(named[2])), files

    def _fits(self, order: _Order, files: VectorFiles) -> bool:
        """Tell whether a generation is of this build, and not mostly of documents that are gone."""
        count = self._index.count()
        return order.of_this_build and len(files) - count <= max(GONE_AT_LEAST, count)

    def _remove_all_but(self, kept: Path) -> None:
        for path in self._folder.glob("*.*"):
            if path != kept:
                # Who searches in it has it open.
                _remove(path)

    def _search(self, query: Float32Array, n: int) -> Ranking:
        files, count = self._files, self._index.count()
        wanted = n
        while True:
            rows = nearest(files.vectors, query, wanted)
            scores = scores_of(files.vectors, query, rows)
            numbers = files.numbers[rows].tolist()
            ids = self._index.ids_of(numbers)
            found = zip(ids, numbers, scores.tolist(), strict=True)
            if len(files) == count:
                return Ranking.of((id_, score) for id_, _, score in found).top(n)
            # Some rows are of documents that are gone, or are others now.
            live = self._index.numbers_of(ids)
            pairs = [(id_, score) for id_, number, score in found if live.get(id_) == number]
            if len(pairs) >= n or wanted >= len(files):
                return Ranking.of(pairs).top(n)
            wanted = min(2 * wanted, len(files))

    def _rescore(self, query: Float32Array, ids: Sequence[str]) -> Ranking:
        files = self._files
        live = self._index.numbers_of(ids)
        numbers = np.fromiter(live.values(), dtype=np.int64, count=len(live))
        rows = np.searchsorted(files.numbers, numbers)
        has_row = rows < len(files)
        has_row[has_row] = files.numbers[rows[has_row]] == numbers[has_row]
        scores = np.zeros(len(numbers))
        scores[has_row] = scores_of(files.vectors, query, rows[has_row])
        return Ranking.of(zip(live, scores.tolist(), strict=True))


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _locked(lock: IO[str]) -> bool:
    """Take a lock, and tell whether that went without waiting."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _chunks(documents: Iterator[tuple[int, Document]]) -> Iterator[Texts]:
    """Group the texts of documents, each with its number, into chunks of bounded size."""
    chunk: Texts = []
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
