"""Records one span per step and one event per score, with OpenTelemetry and optionally in a file.

The names are those of OpenTelemetry's conventions for generative AI, version 0.1.0, which stand in
a repository of their own. How long their operations take goes into its histograms too.

Library code sets no global provider. Without one, spans and events cost almost nothing. Queries,
documents and replies are content: they are only recorded on request. Keys are never recorded.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, Literal

from opentelemetry import context as otel_context
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from fairqr.base.errors import InputError
from fairqr.base.settings import is_on

Kind = Literal["internal", "client", "server"]
"""The kind of a span; ``client`` if the step asks a system outside this process."""

EVALUATION = "gen_ai.evaluation.result"
"""The name of the event for a score, by OpenTelemetry's conventions."""

CONVENTIONS = "0.1.0"
"""The version of the conventions for generative AI that names follow."""

SCHEMA_URL = "https://opentelemetry.io/schemas/1.45.0"
"""The general conventions that these build on; those for generative AI have no address yet."""

DURATIONS = {
    "chat": "gen_ai.client.inference.duration",
    "text_completion": "gen_ai.client.inference.duration",
    "retrieval": "gen_ai.retrieval.duration",
    "invoke_workflow": "gen_ai.invoke_agent.duration",
}
"""The histogram of seconds for each ``gen_ai.operation.name``."""

BUCKETS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""The upper bounds of their buckets, in seconds, as the conventions want them."""

MEASURED = {
    "gen_ai.client.inference.duration": (
        *("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model"),
        *("gen_ai.response.model", "server.address", "server.port", "error.type"),
    ),
    "gen_ai.retrieval.duration": ("gen_ai.operation.name", "error.type"),
    "gen_ai.invoke_agent.duration": ("gen_ai.operation.name", "gen_ai.agent.name", "error.type"),
}
"""The attributes of each histogram."""

# It uses the provider that the application has set by the time a span is opened.
_tracer = trace.get_tracer("fairqr", version("fairqr"), schema_url=SCHEMA_URL)
# It uses the provider that the application has set by the time something is recorded.
_meter = metrics.get_meter("fairqr", version("fairqr"), schema_url=SCHEMA_URL)
_histograms = {
    name: _meter.create_histogram(
        name, "s", f"How long it took: {name}.", explicit_bucket_boundaries_advisory=BUCKETS
    )
    for name in MEASURED
}
# We do not read baggage: it would put texts of strangers into our spans.
_propagator = TraceContextTextMapPropagator()
# Seeded once by the system; a system call for each span would let other threads run.
_ids = random.Random()  # noqa: S311 - ids are not secret

_current: ContextVar[Span | None] = ContextVar("fairqr_span", default=None)
_recorder: ContextVar[Recorder | None] = ContextVar("fairqr_recorder", default=None)


class Recorder:
    """Writes each finished span as one line, so that the file of a killed run is still readable.

    Attributes:
        content: Whether queries, documents and replies are recorded.
        failure: Why the file is incomplete; None if it is not.
    """

    def __init__(self, stream: IO[str], content: bool, replaces: bool) -> None:
        self.content = content
        self.failure: str | None = None
        self._stream = stream
        self._replaces = replaces

    def write(self, line: dict[str, Any]) -> None:
        """Write one line. If that fails, the run goes on and ``failure`` says why.

        A step that ends after the recording is left out; this happens if a stream is not closed.
        """
        if self._stream.closed:
            return
        try:
            if self._replaces:
                with suppress(OSError):  # a pipe or a device cannot be truncated
                    self._stream.truncate(0)
            self._replaces = False
            self._stream.write(json.dumps(line, ensure_ascii=False) + "\n")
            self._stream.flush()
        except OSError as error:
            self.failure = error.strerror


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
        if more and existed:
            with path.open("r+b") as file:
                file.truncate(file.read().rfind(b"\n") + 1)
        # Open for appending: an input error must not destroy the record of an earlier run. A model
        # may send half a surrogate pair; backslashreplace writes it as JSON escapes it.
        stream = path.open("a", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise InputError(
            f"The trace {path} cannot be written: {error.strerror}. Name another file."
        ) from None
    recorder = Recorder(stream, content, replaces=not more)
    token = _recorder.set(recorder)
    try:
        yield recorder
    finally:
        _recorder.reset(token)
        with suppress(OSError):  # ``failure`` already reports it
            stream.close()
        if not existed and path.is_file() and not path.stat().st_size:
            path.unlink()


class Span:
    """A step of a run: its status, its attributes and its events."""

    def __init__(self, otel: trace.Span, content: bool, recorder: Recorder | None = None) -> None:
        self.id = f"{_ids.getrandbits(64):016x}"
        self.status = "ok"
        self.recorder = recorder
        self.has_content = content
        self._otel = otel
        self.attributes: dict[str, Any] = {}
        self.events: list[dict[str, Any]] = []

    def set(self, key: str, value: Any) -> None:
        """Record a decision or a figure."""
        self.attributes[key] = value
        if self._otel.is_recording():
            self._otel.set_attribute(key, _plain(value))

    def content(self, key: str, value: Any) -> None:
        """Record text of a user, a document or a model, if content is wanted."""
        if self.has_content:
            self.set(key, value)

    def event(self, name: str, **attributes: Any) -> None:
        """Record something that happened within the step.

        Args:
            name: A name from the conventions, or ``fairqr.…``.
            attributes: Values by their full names; None is left out.
        """
        stated = {key: value for key, value in attributes.items() if value is not None}
        if self.recorder is not None:
            self.events.append({"name": name, "attributes": stated})
        if self._otel.is_recording():
            self._otel.add_event(name, {key: _plain(value) for key, value in stated.items()})

    def evaluation(self, name: str, score: float | None, **attributes: Any) -> None:
        """Record a score of something that the step made.

        Args:
            name: The measure, such as ``divergence``.
            score: Its value, or None if it has none.
            attributes: ``label``, a word that says what the score means, from a small set; and
                others by their full names: ``error.type`` if the evaluation failed.
        """
        label = attributes.pop("label", None)
        evaluation = {
            "gen_ai.evaluation.name": name,
            "gen_ai.evaluation.score.value": score,
            "gen_ai.evaluation.score.label": label,
        }
        self.event(EVALUATION, **evaluation, **attributes)

    def fail(self, kind: str) -> None:
        """Record that the step failed.

        Args:
            kind: The class of an exception, or the status of a reply such as ``timeout``; never the
                text of an error, which may contain content.
        """
        self.status = kind
        self.set("error.type", kind)
        self._otel.set_status(Status(StatusCode.ERROR, kind))


def current_span() -> Span:
    """Return the innermost open span, or one that nobody listens to."""
    return _current.get() or Span(trace.INVALID_SPAN, content=False)


def content_is_wanted() -> bool:
    """Return whether to record queries, documents and replies here.

    Raises:
        ConfigError: The setting ``trace_content`` is wrong.
    """
    recorder = _recorder.get()
    return (recorder is not None and recorder.content) or is_on("trace_content")


def _plain(value: Any) -> Any:
    """Return a value in a form that OpenTelemetry accepts as an attribute."""
    if isinstance(value, str):
        # Half a surrogate pair would make sending fail, for all spans of the same batch.
        return value.encode(errors="replace").decode()
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        # Lists of one type are accepted.
        types = {type(item) for item in value}
        if all(issubclass(kind, str) for kind in types):
            return [_plain(item) for item in value]
        if types in ({float}, {int}):
            return list(value)
    return _plain(json.dumps(value, ensure_ascii=False))


@contextmanager
def span(name: str, /, *, kind: Kind = "internal", **attributes: Any) -> Iterator[Span]:
    """Open a span and time it. Spans opened inside, in this task or its child tasks, are children.

    For an exception, only the class is recorded, since its message may contain content.

    Args:
        name: A name from OpenTelemetry's GenAI conventions, or ``fairqr.…``, from a small set.
        kind: The kind of the span.
        attributes: What is known at the start; a sampler may use it.
    """
    parent = _current.get()
    recorder = _recorder.get()
    has_provider = not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    if recorder is None and not has_provider:
        with _measured(Span(trace.INVALID_SPAN, content=False), attributes) as step:
            yield step
        return
    # The setting is looked up once for all spans of a run.
    inherits = parent is not None and parent.recorder is recorder
    content = parent.has_content if parent and inherits else content_is_wanted()
    with _tracer.start_as_current_span(
        _plain(name),
        kind=SpanKind[kind.upper()],
        attributes={key: _plain(value) for key, value in attributes.items()},
        record_exception=False,
        set_status_on_exception=False,
    ) as otel:
        step = Span(otel, content, recorder)
        step.attributes.update(attributes)
        token = _current.set(step)
        start = time.time()
        start_of_clock = time.perf_counter()
        try:
            with _measured(step, attributes):
                yield step
        finally:
            _current.reset(token)
            if recorder:
                milliseconds = (time.perf_counter() - start_of_clock) * 1000
                line = {
                    "name": name,
                    "span": step.id,
                    "start": start,
                    "parent": parent and parent.id,
                    "status": step.status,
                    "milliseconds": round(milliseconds, 3),
                    "attributes": step.attributes,
                    "events": step.events,
                }
                recorder.write(line)


@contextmanager
def _measured(step: Span, attributes: Mapping[str, Any]) -> Iterator[Span]:
    """Note how a step failed, and how long it took if the conventions have a histogram for it."""
    start = time.perf_counter()
    try:
        yield step
    except BaseException as error:
        step.fail(type(error).__name__)
        raise
    finally:
        name = DURATIONS.get(attributes.get("gen_ai.operation.name", ""))
        if name is not None:
            seconds = time.perf_counter() - start
            all_attributes = {**attributes, **step.attributes}
            measured = {
                key: _plain(all_attributes[key]) for key in MEASURED[name] if key in all_attributes
            }
            _histograms[name].record(seconds, measured)


def carrier() -> dict[str, str]:
    """Return the header that continues the current trace elsewhere, or later.

    Returns:
        W3C's ``traceparent``; empty outside of a trace.
    """
    headers: dict[str, str] = {}
    _propagator.inject(headers)
    return headers


@contextmanager
def continued(headers: Mapping[str, str]) -> Iterator[None]:
    """Let the spans that are opened inside continue a caller's trace.

    Args:
        headers: What :func:`carrier` returned, or the headers of a request, with names in any case.
            Only a valid ``traceparent`` is read; without one, nothing changes.
    """
    header_of = {str(name).lower(): str(value) for name, value in headers.items()}
    # OpenTelemetry would log a wrong tracestate, and so the texts of strangers.
    traceparent = header_of.get("traceparent", "")
    context = _propagator.extract({"traceparent": traceparent}, Context())
    caller = trace.get_current_span(context)
    if not caller.get_span_context().is_valid:
        yield
        return
    token = otel_context.attach(trace.set_span_in_context(caller))
    try:
        yield
    finally:
        otel_context.detach(token)
