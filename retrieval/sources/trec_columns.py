"""Files in TREC formats, read by columns: fast, for ordinary files.

Anything unusual (non-ASCII characters, a number in another form, a wrong line) is left to the
readers that go line by line and can name the line.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.sources.documents import open_text

AT_ONCE = 1 << 22
EXACT_DIGITS = 15
WIDEST = 256
SPACES = (b" ", b"\t", b"\n", b"\r")
_DECIMAL = np.zeros(256, dtype=bool)
_DECIMAL[[0, *b"0123456789+-.eE"]] = True
_WHOLE = np.zeros(256, dtype=bool)
_WHOLE[[0, *b"0123456789-"]] = True


class UnusualError(Exception):
    """The file must be read line by line."""


class Columns:
    """The fields of some lines.

    Args:
        data: Whole lines.
        count: How many fields each line has.

    Raises:
        UnusualError: A line has more or fewer fields, or there are unusual characters.
    """

    def __init__(self, data: bytes, count: int) -> None:
        buffer = np.frombuffer(data, np.uint8)
        space = buffer <= 32
        usual = sum(map(data.count, SPACES)) == np.count_nonzero(space)
        if not usual or not data.isascii() or space[0]:
            raise UnusualError
        edges = np.flatnonzero(space[1:] != space[:-1]) + 1
        starts, ends = np.concatenate(([0], edges[1::2])), edges[::2]
        breaks = np.flatnonzero(buffer == 10)
        if len(ends) != count * len(breaks) or len(starts) != len(ends):
            raise UnusualError
        between = (breaks >= ends[count - 1 :: count]).all()
        if not between or (breaks[:-1] > starts[count::count]).any():
            raise UnusualError
        # Padding, so that the last fields of the last line can be read at the greatest width.
        padded = np.concatenate([buffer, np.zeros(WIDEST, np.uint8)])
        self._windows = np.lib.stride_tricks.sliding_window_view(padded, WIDEST)
        self._starts, self._ends = starts.reshape(-1, count), ends.reshape(-1, count)

    def text(self, column: int) -> NDArray[np.bytes_]:
        """Return a field as ASCII text, shape (n,)."""
        starts = self._starts[:, column]
        lengths = self._ends[:, column] - starts
        width = int(lengths.max())
        if width > WIDEST:
            raise UnusualError
        characters = self._windows[starts, :width]
        characters[np.arange(width) >= lengths[:, None]] = 0
        return characters.view(f"S{width}").ravel()

    def whole(self, column: int) -> NDArray[np.int64]:
        """Return a field of whole numbers, shape (n,)."""
        text = self.text(column)
        if not _WHOLE[text.view(np.uint8)].all() or text.itemsize > EXACT_DIGITS:
            raise UnusualError
        return _as_numbers(text, np.dtype(np.int64))

    def decimal(self, column: int) -> FloatArray:
        """Return a field of finite numbers, shape (n,)."""
        text = self.text(column)
        characters = text.view(np.uint8).reshape(len(text), -1)
        if not _DECIMAL[characters].all():
            raise UnusualError
        digits = (characters >= ord("0")) & (characters <= ord("9"))
        points = characters == ord(".")
        # With this few digits and an exact power of ten, the quotient is the nearest number.
        exact = (digits.sum(axis=1) <= EXACT_DIGITS) & (points.sum(axis=1) == 1)
        exact &= (digits | points | (characters == 0)).all(axis=1) & digits[:, 0]
        mantissa = np.zeros(len(text), np.int64)
        for digit, is_digit in zip(characters.T, digits.T, strict=True):
            mantissa = np.where(is_digit & exact, mantissa * 10 + digit - ord("0"), mantissa)
        decimals = digits.sum(axis=1) - points.argmax(axis=1)
        found = mantissa / 10.0 ** np.where(exact, decimals, 0)
        found[~exact] = _as_numbers(text[~exact], np.dtype(np.float64))
        if not np.isfinite(found).all():
            raise UnusualError
        return found


def _as_numbers(text: NDArray[np.bytes_], kind: np.dtype[Any]) -> NDArray[Any]:
    try:
        return text.astype(kind)
    except (ValueError, OverflowError):
        raise UnusualError from None


def columns_of(path: Path, count: int) -> Iterator[Columns]:
    """Yield the fields of a file, a batch of lines at a time.

    Raises:
        CorpusError: The file cannot be opened.
        UnusualError: The file must be read line by line.
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
