"""Reading a JSON file that is a single, very large value, piece by piece.

LaMP's files are lists of hundreds of megabytes; what is held in memory is one entry.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from fairqr.base.errors import CorpusError, InputError, one_line
from fairqr.retrieval.documents import open_text

__all__ = ["read_json", "refuse"]

DEEPEST = 100
MARK = b"\xef\xbb\xbf"
"""Some editors put it before the first character of a file."""

Event = tuple[str, Any]


def read_json(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield what a JSON file holds.

    Args:
        path: The file; unpacked while it is read if its name ends in ``.gz``.

    Yields:
        Of an object each key with its value, and if that is a list, with each of its entries; of a
        list each entry, with the key "".

    Raises:
        CorpusError: The file cannot be read on, or is not valid JSON.
        InputError: ijson is not installed.
    """
    try:
        import ijson
    except ImportError:
        raise InputError(
            "LaMP's files are read with ijson; install it with: pip install 'fairqr[lamp]'"
        ) from None
    with open_text(path) as file:
        try:
            if file.read(len(MARK)) != MARK:
                file.seek(0)
            yield from _pieces(ijson.basic_parse(file, use_float=True))
        except ijson.JSONError as error:
            what = str(error).partition("\n")[0]
            refuse(path, "it breaks off" if "premature EOF" in what else one_line(what))
        except RecursionError:
            refuse(path, "it is nested too deeply")
        except (OSError, EOFError, zlib.error) as error:
            refuse(path, f"it breaks off ({one_line(error)})")


def refuse(path: Path, why: str) -> NoReturn:
    """Raise for what is wrong with the file."""
    raise CorpusError(f"{path} cannot be read as LaMP's JSON: {why}; mend it.") from None


def _pieces(events: Iterable[Event]) -> Iterator[tuple[str, Any]]:
    from ijson.common import ObjectBuilder

    key, depth = "", 0
    around: list[str] = []
    piece = ObjectBuilder()
    for event, value in events:
        opens, closes = event.startswith("start_"), event.startswith("end_")
        if not depth:
            if event == "map_key":
                key = value
                continue
            if closes:
                around.pop()
                continue
            if opens and (not around or (event == "start_array" and around == ["start_map"])):
                around.append(event)
                continue
        piece.event(event, value)
        depth += opens - closes
        if depth > DEEPEST:
            raise RecursionError
        if not depth:
            yield key, piece.value
            piece = ObjectBuilder()
