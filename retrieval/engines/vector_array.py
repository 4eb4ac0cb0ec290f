"""The vectors of an index in one file, searched exactly, a block at a time.

The row of a document is its number. The file is appended to and never rewritten; the manifest
beside it says how many rows are whole, so a write that is killed leaves nothing behind.

Single precision, because it is searched as it lies: reading through 100,000 vectors of 256
dimensions takes 3 ms, and 40 ms if they are stored in half precision and have to be converted.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from fairqr.base.files import write_beside
from fairqr.retrieval.encoders.encoder import EncoderMark, Float32Array
from fairqr.retrieval.exposure import FloatArray

__all__ = ["Rows", "VectorArray", "cosines", "nearest", "scores_of"]

BLOCK_BYTES = 16 << 20
SLACK = 1e-5
"""By how much the products of a block may be off; single precision errs by far less."""

Rows = NDArray[np.int64]


class _Manifest(BaseModel):
    model_config = ConfigDict(frozen=True)

    dimensions: int
    probe: tuple[float, ...]
    rows: int


class VectorArray(NamedTuple):
    """The vectors in a folder.

    Attributes:
        folder: Where they are.
        mark: Identifies their encoder.
        vectors: Shape (N, d); each row has length 1, or is zeros if its document has no words, or
            was gone before it was encoded.
    """

    folder: Path
    mark: EncoderMark
    vectors: Float32Array

    @classmethod
    def open(cls, folder: Path, mark: EncoderMark) -> VectorArray:
        """Map the vectors of a folder into memory; a missing or damaged folder has none.

        Raises:
            InputError: Another encoder of that name made them.
        """
        width, rows = 4 * mark.dimensions, 0
        try:
            manifest = _Manifest.model_validate_json((folder / "manifest.json").read_bytes())
            mark.check(manifest.dimensions, manifest.probe, f"in {folder}", "delete that folder")
            if (folder / "vectors").stat().st_size >= manifest.rows * width:
                rows = manifest.rows
        except (OSError, ValidationError):
            pass
        shape = (rows, mark.dimensions)
        if not rows:
            return cls(folder, mark, np.zeros(shape, dtype=np.float32))
        # As a plain array, which slices faster.
        return cls(folder, mark, np.asarray(np.memmap(folder / "vectors", "<f4", "r", shape=shape)))

    def with_rows(self, numbers: Sequence[int], vectors: Float32Array) -> VectorArray:
        """Write vectors after these, and return all; only one process may write at a time.

        Args:
            numbers: Of the documents, rising; all beyond the rows that there are.
            vectors: As many.
        """
        width, path = 4 * self.mark.dimensions, self.folder / "vectors"
        if not len(self.vectors):
            # Who has a damaged file open reads on in it.
            path.unlink(missing_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        with os.fdopen(handle, "wb") as stream:
            # Drops what an interrupted write left behind. Numbers that are left out are zeros.
            stream.truncate(len(self.vectors) * width)
            for number, vector in zip(numbers, vectors.astype("<f4"), strict=True):
                stream.seek(number * width)
                stream.write(vector.tobytes())
            stream.flush()
            os.fsync(stream.fileno())
        manifest = _Manifest(
            dimensions=self.mark.dimensions, probe=self.mark.probe, rows=numbers[-1] + 1
        )
        write_beside(self.folder / "manifest.json", manifest.model_dump_json())
        return VectorArray.open(self.folder, self.mark)


def cosines(vectors: Float32Array, query: Float32Array) -> Float32Array:
    """Return the cosine of every row with the query, shape (N,); 0 for rows of zeros.

    The vectors are read block by block, as in :func:`nearest`.
    """
    block = max(1, BLOCK_BYTES // (4 * vectors.shape[1]))
    products = np.empty(len(vectors), dtype=np.float32)
    for start in range(0, len(vectors), block):
        some = slice(start, start + block)
        np.vecdot(vectors[some], query, out=products[some])
    return products


def nearest(vectors: Float32Array, query: Float32Array, n: int) -> Rows:
    """Return the rows whose cosine with the query is among the n highest, in no order.

    All that may tie with the last of them are among them, so there may be more than n. Rows of
    zeros have no cosine and are left out.

    The vectors are read once, block by block; beside a block's products, what is kept grows with n
    and not with the number of vectors. They may be a file that is mapped into memory.

    Args:
        vectors: Shape (N, d), of length 1 or 0.
        query: Shape (d,), of length 1.
        n: At least 1.
    """
    block = max(1, BLOCK_BYTES // (4 * vectors.shape[1]))
    rows = np.zeros(0, dtype=np.int64)
    cosines = np.zeros(0, dtype=np.float32)
    least = -np.inf
    for start in range(0, len(vectors), block):
        some = vectors[start : start + block]
        # As fast as a matrix product, which would let threads contend for the cores.
        products = np.vecdot(some, query)
        found = np.flatnonzero(products >= least)
        found = found[~_are_zero(some, products, found)]
        rows = np.concatenate([rows, found + start])
        cosines = np.concatenate([cosines, products[found]])
        if len(rows) > n:
            least = float(np.partition(cosines, -n)[-n]) - SLACK
            kept = cosines >= least
            rows, cosines = rows[kept], cosines[kept]
    return rows


def _are_zero(vectors: Float32Array, products: Float32Array, rows: Rows) -> NDArray[np.bool_]:
    """Return which of these rows are zeros; only those whose product is 0 need be looked at."""
    zero = np.asarray(products[rows] == 0)
    zero[zero] = ~vectors[rows[zero]].any(axis=1)
    return zero


def scores_of(vectors: Float32Array, query: Float32Array, rows: Sequence[int] | Rows) -> FloatArray:
    """Return (1 + cosine)/2 of these rows with the query, shape (len(rows),); 0 for rows of zeros.

    A row's score depends on nothing but the row and the query, to the last digit.
    """
    some = vectors[np.asarray(rows, dtype=np.int64)].astype(np.float64)
    # Not a matrix product: that sums in another order when there are more rows.
    cosines = (some * query.astype(np.float64)).sum(axis=1)
    scores = np.clip((1 + cosines) / 2, 0, 1)
    scores[~some.any(axis=1)] = 0
    return np.asarray(scores)
