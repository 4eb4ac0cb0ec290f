"""Recorded runs: each finished step as a line of JSON in a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any

from fairqr.base.errors import InputError

__all__ = ["Recorder", "record_to", "recording_to"]

_recorder: ContextVar[Recorder | None] = ContextVar("fairqr_recorder", default=None)


class Recorder:
    """Writes each finished span as one line, so that the file of a killed run is still good."""

    def __init__(self, stream: IO[str], content: bool) -> None:
        self._stream = stream
        self.content = content
        self.begun = False
        self.failure: str | None = None

    def write(self, line: dict[str, Any]) -> None:
        """Write one line; where that fails, the run goes on and ``failure`` says why.

        A step may end after the record, where a stream was left and not closed; it is left out.
        """
        if self._stream.closed:
            return
        try:
            if not self.begun:
                with suppress(OSError):  # a pipe or a device has nothing to cut off
                    self._stream.truncate(0)
            self.begun = True
            self._stream.write(json.dumps(line, ensure_ascii=False) + "\n")
            self._stream.flush()
        except OSError as error:
            self.failure = error.strerror


def recording_to() -> Recorder | None:
    """Return what records the steps that happen here, if anything does."""
    return _recorder.get()


@contextmanager
def record_to(path: Path, *, content: bool = False, more: bool = False) -> Iterator[Recorder]:
    """Write the spans of everything that runs inside to a file of JSON lines.

    Args:
        path: Replaced if it exists, once there is something to write.
        content: Record queries, keywords and replies too.
        more: Go on with the file where it exists; a last line that was cut off goes.

    Yields:
        The recorder, whose ``failure`` says at the end why the file is not whole, if it is not.

    Raises:
        InputError: The file cannot be written.
    """
    existed = path.exists()
    try:
        # Appended to at first: an input error must not cost the record of an earlier run. A model
        # may send half a surrogate pair; its escape is what JSON writes, too.
        stream = path.open("a", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise InputError(f"The trace {path} cannot be written: {error.strerror}.") from None
    recorder = Recorder(stream, content)
    if more and existed:
        recorder.begun = True
        _cut_off_the_rest(path)
    token = _recorder.set(recorder)
    try:
        yield recorder
    finally:
        _recorder.reset(token)
        with suppress(OSError):  # said by ``failure`` already
            stream.close()
        if not existed and not recorder.begun:
            path.unlink(missing_ok=True)


def _cut_off_the_rest(path: Path) -> None:
    """Take away what follows the last whole line of a file; a killed process may have left it."""
    with suppress(OSError), path.open("r+b") as file:  # what is no file has nothing to cut off
        lines = file.read()
        if not lines.endswith(b"\n"):
            file.truncate(lines.rfind(b"\n") + 1)
