"""The vectors of documents in a folder, appended to and never rewritten.

There are three files: ``numbers`` (64-bit, rising), the numbers that the index gave the documents;
``hashes`` (16 bytes each) of the texts that were encoded; and ``vectors`` (d values of single
precision each). The numbers are written last, so that rows count only when they are whole.

Single precision, because it is searched as it lies: reading through 100,000 vectors of 256
dimensions takes 3 ms, and 40 ms where they are stored in half precision and have to be converted.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from fairqr.retrieval.encoders.encoder import HASH_BYTES, EncoderMark, Float32Array
from fairqr.retrieval.files import write_beside

__all__ = ["KnownTexts", "VectorFiles"]

FORMAT = 1
NUMBERS, HASHES, VECTORS = "numbers", "hashes", "vectors"

Hashes = NDArray[np.uint64]


class _Manifest(BaseModel):
    """What a folder says of the vectors in it."""

    model_config = ConfigDict(frozen=True)

    format: int
    encoder: str
    dimensions: int
    probe: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class VectorFiles:
    """The rows of a folder as they were when it was read, mapped into memory.

    Attributes:
        folder: Where they are.
        dimensions: Of the vectors.
        numbers: Of the documents, rising, shape (N,).
        hashes: Of the texts, shape (N, 2).
        vectors: Of length 1, or of zeros, shape (N, d).
    """

    folder: Path
    dimensions: int
    numbers: NDArray[np.int64]
    hashes: Hashes
    vectors: Float32Array

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def last_number(self) -> int:
        """The last document's number, -1 where there is none."""
        return int(self.numbers[-1]) if len(self) else -1

    @classmethod
    def create(cls, folder: Path, mark: EncoderMark) -> VectorFiles:
        """Make a folder without any rows."""
        manifest = _Manifest(
            format=FORMAT, encoder=mark.name, dimensions=mark.dimensions, probe=mark.probe
        )
        write_beside(folder / "manifest.json", manifest.model_dump_json())
        return cls.read(folder, mark.dimensions)

    @classmethod
    def open(cls, folder: Path, mark: EncoderMark) -> VectorFiles | None:
        """Return what is in a folder, or None where it is damaged or of another version.

        Raises:
            InputError: The vectors are those of another model.
        """
        try:
            manifest = _Manifest.model_validate_json((folder / "manifest.json").read_bytes())
        except (OSError, ValidationError):
            return None
        if manifest.format != FORMAT:
            return None
        mark.check(manifest.dimensions, manifest.probe, f"in {folder}", "delete that folder")
        try:
            files = cls.read(folder, mark.dimensions)
        except OSError:  # it may be removed just now, another generation being whole
            return None
        return files if bool(np.all(np.diff(files.numbers) > 0)) else None

    @classmethod
    def read(cls, folder: Path, dimensions: int) -> VectorFiles:
        """Map the rows of a folder."""
        widths = {NUMBERS: 8, HASHES: HASH_BYTES, VECTORS: 4 * dimensions}
        count = min(_size(folder / name) // width for name, width in widths.items())
        return cls(
            folder,
            dimensions,
            _mapped(folder / NUMBERS, "<i8", (count,)),
            _mapped(folder / HASHES, "<u8", (count, 2)),
            _mapped(folder / VECTORS, "<f4", (count, dimensions)),
        )

    def append(
        self, numbers: Sequence[int], hashes: Sequence[bytes], vectors: Float32Array
    ) -> VectorFiles:
        """Write rows after these, and return all; only one process may write at a time."""
        for name, data, width in (
            (VECTORS, vectors.astype("<f4").tobytes(), 4 * self.dimensions),
            (HASHES, b"".join(hashes), HASH_BYTES),
            (NUMBERS, np.asarray(numbers, dtype="<i8").tobytes(), 8),
        ):
            with (self.folder / name).open("ab") as stream:
                # An interrupted write may have left something behind the last whole row.
                stream.truncate(len(self) * width)
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
        return self.read(self.folder, self.dimensions)


class KnownTexts:
    """Finds the vectors of texts that were encoded before, by their hashes.

    From the first question on it keeps 16 bytes in memory for each row.
    """

    def __init__(self, files: Sequence[VectorFiles]) -> None:
        self._files = files

    def find(self, hashes: Sequence[bytes]) -> list[Float32Array | None]:
        """Return the vector of each text, shape (d,), or None where it is not known."""
        return [self._find(np.frombuffer(hash_, dtype="<u8")) for hash_ in hashes]

    def _find(self, wanted: Hashes) -> Float32Array | None:
        for files, (keys, order) in zip(self._files, self._sorted, strict=True):
            place = int(np.searchsorted(keys, wanted[0]))
            # Two texts may share the first half of their hashes.
            while place < len(keys) and keys[place] == wanted[0]:
                if files.hashes[order[place], 1] == wanted[1]:
                    vector: Float32Array = files.vectors[order[place]]
                    return vector
                place += 1
        return None

    @functools.cached_property
    def _sorted(self) -> list[tuple[Hashes, NDArray[np.intp]]]:
        """For each of the files the first halves of the hashes in order, and where they stand."""
        tables = []
        for files in self._files:
            order = np.argsort(files.hashes[:, 0], kind="stable")
            tables.append((files.hashes[order, 0], order))
        return tables


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _mapped(path: Path, kind: str, shape: tuple[int, ...]) -> NDArray[Any]:
    if not shape[0]:
        return np.zeros(shape, dtype=kind)
    # As a plain array, which slices faster.
    return np.asarray(np.memmap(path, kind, "r", shape=shape))
