"""Records runs: each finished step becomes one line of JSON in a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any

from fairqr.base.errors import InputError

_recorder: ContextVar[Recorder | None] = ContextVar("fairqr_recorder", default=None)


class Recorder:
    """Writes each finished span as one line, so that the file of a killed run is still readable."""

    def __init__(self, stream: IO[str], content: bool) -> None:
        self._stream = stream
        self.content = content
        self.begun = False
        self.failure: str | None = None

    def write(self, line: dict[str, Any]) -> None:
        """Write one line. If that fails, the run goes on and ``failure`` says why.

        A step that ends after the recording is left out; this happens if a stream is not closed.
        """
        if self._stream.closed:
            return
        try:
            if not self.begun:
                with suppress(OSError):  # a pipe or a device cannot be truncated
                    self._stream.truncate(0)
            self.begun = True
            self._stream.write(json.dumps(line, ensure_ascii=False) + "\n")
            self._stream.flush()
        except OSError as error:
            self.failure = error.strerror


def recording_to() -> Recorder | None:
    """Return the recorder that is active here, if any."""
    return _recorder.get()


@contextmanager
def record_to(path: Path, *, content: bool = False, more: bool = False) -> Iterator[Recorder]:
    """Write the spans of everything that runs inside to a file of JSON lines.

    Args:
        path: The file. An existing file is replaced by the first line that is written.
        content: Record queries, keywords and replies too.
        more: Append to the file if it exists. An incomplete last line is removed.

    Yields:
        The recorder. If the file is incomplete at the end, its ``failure`` says why.

    Raises:
        InputError: The file cannot be written.
    """
    existed = path.exists()
    try:
        # Open for appending: an input error must not destroy the record of an earlier run. A model
        # may send half a surrogate pair; backslashreplace writes it as JSON escapes it.
        stream = path.open("a", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise InputError(
            f"The trace {path} cannot be written: {error.strerror}. Name another file."
        ) from None
    recorder = Recorder(stream, content)
    if more and existed:
        recorder.begun = True
        _cut_off_the_rest(path)
    token = _recorder.set(recorder)
    try:
        yield recorder
    finally:
        _recorder.reset(token)
        with suppress(OSError):  # ``failure`` already reports it
            stream.close()
        if not existed and not recorder.begun:
            path.unlink(missing_ok=True)


def _cut_off_the_rest(path: Path) -> None:
    """Remove an incomplete last line, which a killed process may have left."""
    with suppress(OSError), path.open("r+b") as file:  # a pipe or a device cannot be truncated
        lines = file.read()
        if not lines.endswith(b"\n"):
            file.truncate(lines.rfind(b"\n") + 1)
