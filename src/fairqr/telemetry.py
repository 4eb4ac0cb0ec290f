"""One span per step, to OpenTelemetry and, when asked, to a file of JSON lines.

Library code sets no global tracer provider; without one, a span costs next to nothing. Queries,
documents and replies are content; they are recorded only when asked, and keys never.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any

from opentelemetry import trace
from opentelemetry.trace import Status, StatusCode

from fairqr.errors import InputError
from fairqr.settings import environment

__all__ = ["Recorder", "Span", "current_span", "record_to", "span"]

_recorder: ContextVar[Recorder | None] = ContextVar("fairqr_recorder", default=None)
_current: ContextVar[Span | None] = ContextVar("fairqr_span", default=None)


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


class Span:
    """A step that is being timed."""

    def __init__(self, otel: trace.Span, content: bool) -> None:
        self.id = secrets.token_hex(8)
        self._otel = otel
        self._content = content
        self.attributes: dict[str, Any] = {}
        self.events: list[dict[str, Any]] = []

    def set(self, key: str, value: Any) -> None:
        """Record a decision or a figure."""
        self.attributes[key] = value
        self._otel.set_attribute(key, _plain(value))

    def content(self, key: str, value: Any) -> None:
        """Record text of a user, a document or a model, if content is asked for."""
        if self._content:
            self.set(key, value)

    def event(self, name: str, **attributes: Any) -> None:
        """Record something that happened within the step."""
        self.events.append({"name": name, "attributes": attributes})
        self._otel.add_event(name, {key: _plain(value) for key, value in attributes.items()})


def current_span() -> Span:
    """Return the innermost step that is being timed; one that leads nowhere outside of any."""
    return _current.get() or Span(trace.INVALID_SPAN, content=False)


def _plain(value: Any) -> Any:
    """Return a value that OpenTelemetry takes as an attribute."""
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return list(value)
    return json.dumps(value, ensure_ascii=False)


@contextmanager
def span(name: str, **attributes: Any) -> Iterator[Span]:
    """Time a step; spans opened inside it, in the same task or in its children, are its children.

    Messages of exceptions are not recorded, since they may hold content; their class is.
    """
    recorder = _recorder.get()
    content = recorder.content if recorder else environment("TRACE_CONTENT") == "1"
    tracer = trace.get_tracer("fairqr")
    with tracer.start_as_current_span(
        name, record_exception=False, set_status_on_exception=False
    ) as otel:
        step = Span(otel, content)
        for key, value in attributes.items():
            step.set(key, value)
        parent = _current.get()
        token = _current.set(step)
        started, clock = time.time(), time.perf_counter()
        status = "ok"
        try:
            yield step
        except BaseException as error:
            status = type(error).__name__
            otel.set_status(Status(StatusCode.ERROR, status))
            raise
        finally:
            _current.reset(token)
            if recorder:
                recorder.write(
                    {
                        "name": name,
                        "span": step.id,
                        "parent": parent.id if parent else None,
                        "start": started,
                        "milliseconds": round((time.perf_counter() - clock) * 1000, 3),
                        "status": status,
                        "attributes": step.attributes,
                        "events": step.events,
                    }
                )


@contextmanager
def record_to(path: Path, *, content: bool = False) -> Iterator[Recorder]:
    """Write the spans of everything that runs inside to a new file of JSON lines.

    Args:
        path: Replaced if it exists, once there is something to write.
        content: Record queries, keywords and replies too.

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
    token = _recorder.set(recorder)
    try:
        yield recorder
    finally:
        _recorder.reset(token)
        with suppress(OSError):  # said by ``failure`` already
            stream.close()
        if not existed and not recorder.begun:
            path.unlink(missing_ok=True)
