"""The ids of an embedded index by number, in files that only grow.

tantivy reads stored texts slowly and columns of numbers fast. So it stores a number for each
document, and this store maps numbers to ids.
"""

from __future__ import annotations

import itertools
import mmap
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

IDS, OFFSETS = "ids.utf8", "ids.offsets"


class IdWriter:
    """Appends ids to the store of a folder.

    A crash between writes to this store and the index leaves unused numbers, which do no harm.
    """

    def __init__(self, folder: Path) -> None:
        self._ids = (folder / IDS).open("ab")
        self._offsets = (folder / OFFSETS).open("ab")
        # An interrupted write may have left half an entry, or ids without an entry.
        self.count = self._offsets.tell() // 8
        self._offsets.truncate(self.count * 8)
        self._ids.truncate(_ends(folder)[-1] if self.count else 0)

    def append(self, id_: str) -> int:
        """Store an id and return its number."""
        self._ids.write(id_.encode())
        self._offsets.write(self._ids.tell().to_bytes(8, "little"))
        self.count += 1
        return self.count - 1

    def flush(self) -> None:
        """Make sure that everything is on disk, the ids before the offsets that refer to them."""
        for stream in (self._ids, self._offsets):
            stream.flush()
            os.fsync(stream.fileno())

    def __enter__(self) -> IdWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._ids.close()
        self._offsets.close()


class IdReader:
    """Reads ids by number; maps the files into memory, and again when they have grown.

    The files are mapped immediately, so they can be read even after the folder is deleted. Several
    threads may read at the same time.

    Raises:
        OSError: A file is missing.
        ValueError: A file is empty.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # The start of each id, then the end of the last; and the ids themselves. Both are replaced
        # together, since another thread may be reading.
        self._mapped = self._map()

    def __getitem__(self, numbers: Sequence[int]) -> list[str]:
        """Return the ids with these numbers.

        Raises:
            ValueError: The files lack one of them.
        """
        if not numbers:
            return []
        wanted = np.asarray(numbers, dtype=np.int64)
        bounds, data = self._mapped
        # A writer may be between its two files while we map them: then the ends come first.
        if wanted.max() + 1 >= len(bounds) or bounds[wanted + 1].max() > len(data):
            bounds, data = self._mapped = self._map()
            if wanted.max() + 1 >= len(bounds) or bounds[wanted + 1].max() > len(data):
                raise ValueError("its ids break off")
        starts, ends = bounds[wanted].tolist(), bounds[wanted + 1].tolist()
        return [data[start:end].decode() for start, end in zip(starts, ends, strict=True)]

    def hashes(self) -> Iterable[int]:
        """Yield a 64-bit hash of every id in the store, for finding duplicates."""
        bounds, data = self._mapped
        for start, end in itertools.pairwise(map(int, bounds)):
            yield hash(data[start:end])

    def _map(self) -> tuple[NDArray[np.int64], mmap.mmap]:
        bounds = np.concatenate([np.zeros(1, dtype=np.int64), _ends(self._folder)])
        with (self._folder / IDS).open("rb") as stream:
            return bounds, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


def _ends(folder: Path) -> NDArray[np.int64]:
    """Return where each id ends in the file of ids, ignoring half an entry at the end."""
    path = folder / OFFSETS
    return np.asarray(np.memmap(path, "<i8", "r", shape=(path.stat().st_size // 8,)))
