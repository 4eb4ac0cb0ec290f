"""Reading one entry after the other from a JSON file that is a single, very large value.

LaMP's files are lists of hundreds of megabytes; what is held in memory is one entry.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from fairqr.base.errors import CorpusError, one_line
from fairqr.retrieval.documents import open_text

__all__ = ["JsonStream"]

CHARACTERS_AT_ONCE = 1 << 16
LONGEST_ENTRY = 1 << 28
NEAR_THE_END = 16
_SPACE = " \t\r\n"


class JsonStream:
    """Takes values and punctuation off the front of a file; use it in a ``with`` statement.

    All methods raise :class:`fairqr.base.errors.CorpusError` where the file cannot be read on, or
    is no valid JSON.

    Args:
        path: The file; unpacked while it is read where its name ends in ``.gz``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._bytes = open_text(path)
        # Some editors put a mark before the first character of a file.
        self._file = io.TextIOWrapper(self._bytes, encoding="utf-8-sig")
        self._decoder = json.JSONDecoder()
        self._buffer = ""
        self._place = 0
        self._ended = False

    def __enter__(self) -> JsonStream:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def next_character(self) -> str:
        """Return the next character that is no white space, without taking it; empty at the end."""
        while True:
            while self._place < len(self._buffer):
                if self._buffer[self._place] not in _SPACE:
                    return self._buffer[self._place]
                self._place += 1
            if self._ended:
                return ""
            self._read(CHARACTERS_AT_ONCE)

    def take(self, character: str) -> bool:
        """Take the next character if it is this one, and return whether it was."""
        if self.next_character() != character:
            return False
        self._place += 1
        return True

    def expect(self, character: str) -> None:
        """Take this character."""
        if not self.take(character):
            found = self.next_character()
            self.refuse(
                f"it has '{found}' where '{character}' belongs" if found else "it breaks off"
            )

    def value(self) -> Any:
        """Take a whole value."""
        if not self.next_character():
            self.refuse("it breaks off")
        more = CHARACTERS_AT_ONCE
        while True:
            try:
                value, end = self._decoder.raw_decode(self._buffer, self._place)
                # A number at the end of the buffer may go on: 1, 1. and 1.5e begin the same one.
                number = isinstance(value, int | float)
                if self._ended or not number or end + NEAR_THE_END < len(self._buffer):
                    self._place = end
                    return value
            except json.JSONDecodeError as error:
                # What is unfinished fails at its end, or as a string that has none.
                unfinished = error.msg.startswith("Unterminated string")
                last = len(self._buffer) - (1 if self._ended else NEAR_THE_END)
                if self._ended or not (unfinished or error.pos >= last):
                    torn = unfinished or error.pos > last
                    self.refuse("it breaks off" if torn else one_line(error.msg))
            except RecursionError:
                self.refuse("it is nested too deeply")
            except ValueError:  # an integer of thousands of digits
                self.refuse("a number in it is too long")
            if len(self._buffer) - self._place > LONGEST_ENTRY:
                self.refuse("an entry is too long")
            # Twice as much each time, so that a long entry is not read again and again.
            self._read(more)
            more *= 2

    def entries(self) -> Iterator[Any]:
        """Yield the entries of a list, each when it is asked for."""
        self.expect("[")
        if self.take("]"):
            return
        while True:
            yield self.value()
            if self.take("]"):
                return
            self.expect(",")

    def keys(self) -> Iterator[str]:
        """Yield the keys of an object; the value of each has to be taken before the next key."""
        self.expect("{")
        if self.take("}"):
            return
        while True:
            if self.next_character() != '"':
                self.refuse("a key is no text")
            key = self.value()
            self.expect(":")
            yield key
            if self.take("}"):
                return
            self.expect(",")

    def refuse(self, why: str) -> NoReturn:
        """Raise for what is wrong with the file."""
        raise CorpusError(f"{self.path} cannot be read as LaMP's JSON: {why}; mend it.") from None

    def _read(self, characters: int) -> None:
        try:
            more = self._file.read(characters)
        except UnicodeDecodeError:
            self.refuse("it is not UTF-8 text")
        except (OSError, EOFError, zlib.error) as error:
            self.refuse(f"it breaks off ({one_line(error)})")
        self._ended = not more
        self._buffer = self._buffer[self._place :] + more
        self._place = 0
