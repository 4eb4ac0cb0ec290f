"""Files in TREC's formats, read by columns: for the usual file, at array speed.

What is unusual in any way (other characters than ASCII, a number in another form, a line that is
wrong) is left to the readers that go line by line and can name the line.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairqr.retrieval.documents import open_text
from fairqr.retrieval.exposure import FloatArray

__all__ = ["Columns", "UnusualError", "columns_of"]

AT_ONCE = 1 << 22
WIDEST = 256
SPACES = np.array([9, 10, 13, 32])
_DECIMAL = np.zeros(256, dtype=bool)
_DECIMAL[[0, *b"0123456789+-.eE"]] = True
_WHOLE = np.zeros(256, dtype=bool)
_WHOLE[[0, *b"0123456789-"]] = True


class UnusualError(Exception):
    """The file has to be read line by line."""


class Columns:
    """The fields of some lines.

    Args:
        data: Whole lines.
        count: How many fields each line has.

    Raises:
        UnusualError: A line has more or fewer, or there are unusual characters.
    """

    def __init__(self, data: bytes, count: int) -> None:
        buffer = np.frombuffer(data, np.uint8)
        seen = np.bincount(buffer, minlength=256)
        if seen[127:].any() or seen[:33].sum() != seen[SPACES].sum() or buffer[0] <= 32:
            raise UnusualError
        space = buffer <= 32
        edges = np.flatnonzero(space[1:] != space[:-1]) + 1
        starts, ends = np.concatenate(([0], edges[1::2])), edges[::2]
        breaks = np.flatnonzero(buffer == 10)
        if len(ends) != count * len(breaks) or len(starts) != len(ends):
            raise UnusualError
        between = (breaks >= ends[count - 1 :: count]).all()
        if not between or (breaks[:-1] > starts[count::count]).any():
            raise UnusualError
        self._buffer = buffer
        self._starts, self._ends = starts.reshape(-1, count), ends.reshape(-1, count)

    def text(self, column: int) -> NDArray[np.bytes_]:
        """Return a field as ASCII text, shape (n,)."""
        starts = self._starts[:, column]
        lengths = self._ends[:, column] - starts
        width = int(lengths.max())
        if width > WIDEST:
            raise UnusualError
        places = np.arange(width)
        chosen = np.minimum(starts[:, None] + places, len(self._buffer) - 1)
        characters = np.where(places < lengths[:, None], self._buffer[chosen], np.uint8(0))
        return np.ascontiguousarray(characters).view(f"S{width}").ravel()

    def whole(self, column: int) -> NDArray[np.int64]:
        """Return a field of whole numbers, shape (n,)."""
        return self._numbers(column, _WHOLE, np.dtype(np.int64))

    def decimal(self, column: int) -> FloatArray:
        """Return a field of finite numbers, shape (n,)."""
        found: FloatArray = self._numbers(column, _DECIMAL, np.dtype(np.float64))
        if not np.isfinite(found).all():
            raise UnusualError
        return found

    def _numbers(self, column: int, allowed: NDArray[np.bool_], kind: np.dtype) -> NDArray:
        text = self.text(column)
        if not allowed[text.view(np.uint8)].all():
            raise UnusualError
        try:
            return text.astype(kind)
        except (ValueError, OverflowError):
            raise UnusualError from None


def columns_of(path: Path, count: int) -> Iterator[Columns]:
    """Yield the fields of a file, some lines at a time.

    Raises:
        CorpusError: The file cannot be opened.
        UnusualError: It has to be read line by line.
    """
    rest = b""
    with open_text(path) as stream:
        while True:
            try:
                read = stream.read(AT_ONCE)
            except (OSError, EOFError, zlib.error):
                raise UnusualError from None
            end = read.rfind(b"\n") + 1
            if not read:
                break
            if end:
                yield Columns(rest + read[:end], count)
                rest = b""
            rest += read[end:]
    if rest.strip():
        yield Columns(rest + b"\n", count)
