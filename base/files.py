"""Writes files so that a reader sees either the old content or the new, never half of it."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import IO


def write_beside(path: Path, content: str | bytes) -> None:
    """Write a temporary file in the same folder, and rename it to ``path`` once it is on disk."""
    with open_beside(path) as stream:
        stream.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def open_beside(path: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Open a temporary file in the same folder for writing, and rename it to ``path`` at the end.

    Args:
        path: Where the file goes; its folder is created.
        mode: The permissions of the file, before the user's umask.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    # Files of tempfile ignore the user's umask; this one follows it.
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def open_file(path: Path) -> BufferedReader:
    """Open a file for reading.

    Reading a pipe would wait for ever, and reading a device would not end.

    Raises:
        OSError: There is no such file, it is a pipe or a device, or it cannot be read.
    """
    if not stat.S_ISREG(path.stat().st_mode) and not path.is_dir():
        raise OSError(errno.EINVAL, "it is a pipe or a device, and no file")
    return path.open("rb")


def is_small_file(path: Path, most: int) -> bool:
    """Return whether a path is a regular file of at most some bytes, which can be read at once.

    Raises:
        OSError: There is nothing of that name.
    """
    status = path.stat()
    return stat.S_ISREG(status.st_mode) and status.st_size <= most


def without_home(text: str) -> str:
    """Return a path or an option with ``~`` in place of the user's home folder.

    What is given to others should not say who made it.
    """
    home = str(Path.home())
    if home == Path.home().anchor:
        return text
    pattern = rf"(?<![\w./-]){re.escape(home)}(?=[/\\]|$)"
    return re.sub(pattern, "~", text)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
