"""Document ids by number, on disk, appended to and never rewritten.

The full-text engine reads whole documents slowly and small integers fast. So it keeps for each
document a number, and this store has the id that the number stands for.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

__all__ = ["IdReader", "IdWriter"]

IDS, OFFSETS = "ids.utf8", "ids.offsets"


class IdWriter:
    """Appends ids to the store of a folder.

    A crash between this store and the index leaves numbers that no document uses: harmless.
    """

    def __init__(self, folder: Path) -> None:
        self._ids = (folder / IDS).open("ab")
        self._offsets = (folder / OFFSETS).open("ab")
        # An interrupted write may have left half an entry, and ids without an entry.
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
        """Make sure that everything is on disk, the ids before the offsets that point at them."""
        for stream in (self._ids, self._offsets):
            stream.flush()
            os.fsync(stream.fileno())

    def __enter__(self) -> IdWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ids.close()
        self._offsets.close()


class IdReader:
    """Reads ids by number; maps the files into memory and maps them again when they have grown."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ends: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._bytes: mmap.mmap | bytes = b""

    def __getitem__(self, numbers: Sequence[int]) -> list[str]:
        """Return the ids of these numbers."""
        if not numbers:
            return []
        wanted = np.asarray(numbers, dtype=np.int64)
        if wanted.max() >= len(self._ends):
            self._map()
        # Position −1 is the end of the last id, so the start of the first one is put right apart.
        starts = np.where(wanted > 0, self._ends[wanted - 1], 0).tolist()
        data, ends = self._bytes, self._ends[wanted].tolist()
        return [data[start:end].decode() for start, end in zip(starts, ends, strict=True)]

    def hashes(self) -> Iterable[int]:
        """Yield a 64-bit hash of every id in the store, for finding duplicates."""
        self._map()
        start = 0
        for end in map(int, self._ends):
            yield hash(self._bytes[start:end])
            start = end

    def _map(self) -> None:
        self._ends = _ends(self._folder)
        with (self._folder / IDS).open("rb") as stream:
            self._bytes = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


def _ends(folder: Path) -> NDArray[np.int64]:
    """Return where each id ends in the file of ids."""
    return np.asarray(np.memmap(folder / OFFSETS, dtype="<i8", mode="r"))
