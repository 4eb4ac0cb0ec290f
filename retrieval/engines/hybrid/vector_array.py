"""The vectors of an index in one file, searched exactly in memory, a block at a time.

The row of a document is its number. The file only grows; the manifest beside it says how many rows
are complete, so a killed write leaves nothing behind.

The file has half precision, which takes half the disk and changes a cosine by about 0.0001. In
memory the vectors have single precision: a search of 100,000 vectors of 384 dimensions then takes
9 ms, instead of 170 ms if each search has to convert them. Converting them once, when an index is
opened, also takes about 170 ms.

Each row also has a digest of its text. A rebuilt index reuses the vectors of texts that it had
before, so only new texts are encoded.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from fairqr.base.errors import InputError
from fairqr.base.files import write_beside
from fairqr.retrieval.encoders.encoder import EncoderMark, Float32Array, unit_rows
from fairqr.retrieval.fairness.exposure import FloatArray

BLOCK_BYTES = 16 << 20
SLACK = 1e-5
"""The largest error we assume for the products of a block; single precision errs far less."""

FORMAT = 2
EARLIER = "earlier"
"""The folder of an earlier build's vectors, kept until all texts of this build have one."""

DIGEST_BYTES = 16
_DIGEST = np.dtype(f"S{DIGEST_BYTES}")

Float16Array = NDArray[np.float16]
Rows = NDArray[np.int64]


class _Manifest(BaseModel):
    model_config = ConfigDict(frozen=True)

    format: Literal[2]
    encoder: str
    dimensions: int
    probe: tuple[float, ...]
    rows: int


def digest_of(text: str) -> bytes:
    """Return a digest that identifies a text."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


class VectorFolder(NamedTuple):
    """The folder of the vectors that one encoder made for an index.

    Attributes:
        folder: The folder.
        mark: Identifies the encoder.
    """

    folder: Path
    mark: EncoderMark

    def rows(self) -> int:
        """Return how many rows are complete; a missing or damaged folder has none.

        Raises:
            InputError: Another encoder of the same name made them.
        """
        try:
            manifest = _read_manifest(self.folder)
            where = f"in {self.folder}"
            self.mark.check(manifest.dimensions, manifest.probe, where, "delete that folder")
            for name, width in self._widths().items():
                if (self.folder / name).stat().st_size < manifest.rows * width:
                    return 0
        except (OSError, ValidationError):
            return 0
        return manifest.rows

    def load(self, loaded: Float32Array | None = None) -> Float32Array:
        """Return the vectors in memory, shape (N, d).

        Each row has length 1, or is zeros if its document has no words, or was deleted before it
        was encoded.

        Args:
            loaded: The first rows as loaded before; they are not read again.

        Raises:
            InputError: Another encoder of the same name made them.
        """
        rows, done = self.rows(), 0 if loaded is None else len(loaded)
        vectors = None if loaded is None else loaded.base
        if vectors is None or len(vectors) < rows:
            # Allocate room for more, which takes no memory until used; so a search after a few
            # new documents need not copy all. Rows in use never change.
            vectors = np.empty((rows + rows // 8, self.mark.dimensions), dtype=np.float32)
            if loaded is not None:
                vectors[:done] = loaded[:rows]
        stored = self._stored(rows)
        block = max(1, BLOCK_BYTES // (4 * self.mark.dimensions))
        for start in range(done, rows, block):
            some = stored[start : start + block].astype(np.float32)
            # Rounding to half precision has changed the lengths.
            lengths = np.sqrt(np.vecdot(some, some))[:, None]
            np.divide(some, lengths, out=some, where=lengths > 0)
            vectors[start : start + len(some)] = some
        return vectors[:rows]

    def append(
        self, rows: int, numbers: Sequence[int], digests: Sequence[bytes], vectors: Float32Array
    ) -> int:
        """Write vectors after the existing rows; only one process may write at a time.

        Args:
            rows: How many rows there are; see :meth:`rows`.
            numbers: The numbers of the documents, ascending; all beyond the existing rows. Skipped
                numbers get rows of zeros.
            digests: The digests of the documents' texts.
            vectors: The vectors of the documents, shape (len(numbers), d).

        Returns:
            How many rows there are now.
        """
        data = {"vectors": [row.tobytes() for row in vectors.astype("<f2")], "texts": digests}
        for name, width in self._widths().items():
            path = self.folder / name
            if not rows:
                # Another process may still be reading a damaged file.
                path.unlink(missing_ok=True)
            handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
            with os.fdopen(handle, "wb") as stream:
                # Drop what an interrupted write left behind.
                stream.truncate(rows * width)
                for number, row in zip(numbers, data[name], strict=True):
                    stream.seek(number * width)
                    stream.write(row)
                stream.flush()
                os.fsync(stream.fileno())
        manifest = _Manifest(
            format=FORMAT,
            encoder=self.mark.name,
            dimensions=self.mark.dimensions,
            probe=self.mark.probe,
            rows=numbers[-1] + 1,
        )
        write_beside(self.folder / "manifest.json", manifest.model_dump_json())
        return manifest.rows

    def by_text(self) -> StoredVectors:
        """Return these vectors by the texts that they were made from; reads only the digests.

        Raises:
            InputError: Another encoder of the same name made them.
        """
        rows = self.rows()
        if not rows:
            return StoredVectors.none(self.mark.dimensions)
        digests = np.fromfile(self.folder / "texts", dtype=_DIGEST, count=rows)
        order = np.argsort(digests)
        return StoredVectors(digests[order], order, self._stored(rows))

    def earlier(self) -> dict[bytes, Float16Array]:
        """Return the vectors of earlier builds, by the digests of their texts."""
        found: dict[bytes, Float16Array] = {}
        folder = self.folder / EARLIER
        while folder.is_dir():
            part = VectorFolder(folder, self.mark)
            # Vectors of another model are useless, and so are damaged ones.
            with contextlib.suppress(InputError, OSError):
                rows = part.rows()
                stored, texts = part._stored(rows), (folder / "texts").read_bytes()
                for row in range(rows):
                    found.setdefault(texts[row * DIGEST_BYTES :][:DIGEST_BYTES], stored[row])
            folder = folder / EARLIER
        return found

    def forget_earlier(self) -> None:
        """Remove the vectors of earlier builds."""
        shutil.rmtree(self.folder / EARLIER, ignore_errors=True)

    def _widths(self) -> Mapping[str, int]:
        """Return the bytes of a row in each file."""
        return {"vectors": 2 * self.mark.dimensions, "texts": DIGEST_BYTES}

    def _stored(self, rows: int) -> Float16Array:
        shape = (rows, self.mark.dimensions)
        if not rows:
            return np.zeros(shape, dtype=np.float16)
        # A plain array slices faster.
        return np.asarray(np.memmap(self.folder / "vectors", "<f2", "r", shape=shape))


class StoredVectors(NamedTuple):
    """The vectors of an index by the digests of texts, read from disk on demand.

    Attributes:
        digests: The digests, ascending.
        rows: The rows of the vectors, in the same order.
        vectors: The vectors of the index, on disk, shape (N, d).
    """

    digests: NDArray[np.bytes_]
    rows: Rows
    vectors: Float16Array

    @classmethod
    def none(cls, dimensions: int) -> StoredVectors:
        """Return an empty store."""
        return cls(
            np.zeros(0, _DIGEST), np.zeros(0, np.int64), np.zeros((0, dimensions), np.float16)
        )

    def get(self, digests: Sequence[bytes]) -> Float32Array:
        """Return vectors of length 1, shape (len(digests), d); zeros for a text without one."""
        found = np.zeros((len(digests), self.vectors.shape[1]), dtype=np.float32)
        if len(self.digests) and digests:
            wanted = np.array(digests, dtype=_DIGEST)
            places = np.minimum(np.searchsorted(self.digests, wanted), len(self.digests) - 1)
            known = self.digests[places] == wanted
            found[known] = unit_rows(self.vectors[self.rows[places[known]]])
        return found


def _read_manifest(folder: Path) -> _Manifest:
    return _Manifest.model_validate_json((folder / "manifest.json").read_bytes())


def encoder_names(folder: Path) -> list[str]:
    """Return the names of the encoders with vectors in the folders below this one."""
    names = []
    for path in sorted(folder.glob("*/manifest.json")):
        with contextlib.suppress(OSError, ValidationError):
            names.append(_read_manifest(path.parent).encoder)
    return names


def carry_over(old: Path, new: Path) -> None:
    """Give the vectors of one build to the next, which reuses those of unchanged texts.

    Args:
        old: The folder with one folder for each encoder; it stays unchanged.
        new: The same for the next build; created here.
    """
    for folder in _with_vectors(old):
        target = new / folder.relative_to(old).parts[0] / EARLIER
        # Files that only grow can be shared; the manifest says how much of them counts. If some
        # or all of the files are missing, the texts are encoded again.
        with contextlib.suppress(OSError):
            shutil.copytree(
                folder,
                target,
                ignore=shutil.ignore_patterns("lock", ".*"),
                copy_function=_link_or_copy,
            )


def _with_vectors(old: Path) -> Iterator[Path]:
    """Yield for each encoder the folder of its vectors, or of an earlier build's."""
    for folder in sorted(old.glob("*/")):
        path = folder
        while path.is_dir() and not (path / "manifest.json").exists():
            path = path / EARLIER
        if path.is_dir():
            yield path


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # Not every file system supports links.
        shutil.copyfile(source, target)


def cosines(vectors: Float32Array, query: Float32Array) -> Float32Array:
    """Return the cosine of every row with the query, shape (N,); nan for rows of zeros.

    The vectors are read once, block by block.
    """
    block = max(1, BLOCK_BYTES // (4 * vectors.shape[1]))
    products = np.empty(len(vectors), dtype=np.float32)
    for start in range(0, len(vectors), block):
        some = slice(start, start + block)
        # As fast as a matrix product, whose threads would compete for the cores.
        found = np.vecdot(vectors[some], query, out=products[some])
        found[_are_zero(vectors[some], found, np.arange(len(found)))] = np.nan
    return products


def highest(
    values: FloatArray | Float32Array, n: int, among: NDArray[np.bool_] | None = None
) -> Rows:
    """Return the rows of the n highest values, unordered, optionally among some rows.

    Rows that may tie with the last of them are included, so there may be more than n. Rows of nan
    are left out.
    """
    known = ~np.isnan(values)
    if among is not None:
        known &= among[: len(values)]
    rows = np.flatnonzero(known)
    if n < len(rows):
        some = values[rows]
        rows = rows[some >= np.partition(some, -n)[-n] - SLACK]
    return rows


def _are_zero(vectors: Float32Array, products: Float32Array, rows: Rows) -> NDArray[np.bool_]:
    """Return which of these rows are zeros; only rows with product 0 need a check."""
    zero = np.asarray(products[rows] == 0)
    zero[zero] = ~vectors[rows[zero]].any(axis=1)
    return zero


def scores_of(vectors: Float32Array, query: Float32Array, rows: Sequence[int] | Rows) -> FloatArray:
    """Return (1 + cosine)/2 of these rows with the query, shape (len(rows),); 0 for rows of zeros.

    A row's score depends only on the row and the query, to the last digit.
    """
    some = vectors[np.asarray(rows, dtype=np.int64)].astype(np.float64)
    # Not a matrix product, which sums in a different order for more rows.
    cosines = np.vecdot(some, query.astype(np.float64))
    scores = np.clip((1 + cosines) / 2, 0, 1)
    scores[~some.any(axis=1)] = 0
    return np.asarray(scores)
