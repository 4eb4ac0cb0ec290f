"""One span per step and one event per score, to OpenTelemetry and, when asked, to a file.

Library code sets no global providers; without them, spans cost next to nothing and events nothing.
Queries, documents and replies are content; they are recorded only when asked, and keys never.
Events are log records that belong to a span: OpenTelemetry has deprecated events inside spans.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import version
from typing import Any, Literal

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry._logs import SeverityNumber, get_logger
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from fairqr.base.recording import Recorder, record_to, recording_to
from fairqr.base.settings import is_on

__all__ = [
    "EVALUATION",
    "Kind",
    "Recorder",
    "Span",
    "carrier",
    "content_is_wanted",
    "continued",
    "current_span",
    "record_to",
    "span",
]

Kind = Literal["internal", "client", "server"]
"""What a step is to others: ``client`` where it asks another system, outside this process."""

EVALUATION = "gen_ai.evaluation.result"
"""The event of a score, by the conventions."""

_KINDS: dict[Kind, SpanKind] = {
    "internal": SpanKind.INTERNAL,
    "client": SpanKind.CLIENT,
    "server": SpanKind.SERVER,
}
SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
"""The version of the conventions that the names in spans follow."""

# They lead to whatever providers the application has set when a span is opened.
_tracer = trace.get_tracer("fairqr", version("fairqr"), schema_url=SCHEMA_URL)
_logger = get_logger("fairqr", version("fairqr"), schema_url=SCHEMA_URL)
# Baggage is not taken over: it would put texts of strangers into our spans.
_propagator = TraceContextTextMapPropagator()
_MEMBER = r"[a-z0-9][a-z0-9_*/@-]{0,255}=[ -+\--<>-~]{0,255}[!-+\--<>-~]"
_HEADERS = {
    "traceparent": re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}"),
    "tracestate": re.compile(rf"(?!.{{513}}){_MEMBER}(?:[ \t]*,[ \t]*{_MEMBER}){{0,31}}"),
}

# Seeded by the system once; asking it for each span would let other threads in.
_ids = random.Random()  # noqa: S311 - names are no secrets

_current: ContextVar[Span | None] = ContextVar("fairqr_span", default=None)


class Span:
    """A step that is being timed."""

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
        """Record text of a user, a document or a model, if content is asked for."""
        if self.has_content:
            self.set(key, value)

    @property
    def wants_events(self) -> bool:
        """Whether anything takes events."""
        return self.recorder is not None or self._is_logged

    def event(self, name: str, **attributes: Any) -> None:
        """Record something that happened within the step, as an event that belongs to its span.

        Args:
            name: By the conventions, or ``fairqr.…``.
            attributes: By their full names; those that are None are left out.
        """
        given = {key: value for key, value in attributes.items() if value is not None}
        if self.recorder is not None:
            self.events.append({"name": name, "attributes": given})
        if self._is_logged:
            _logger.emit(
                event_name=name,
                timestamp=time.time_ns(),
                context=trace.set_span_in_context(self._otel),
                severity_number=SeverityNumber.INFO,
                attributes={key: _plain(value) for key, value in given.items()},
            )

    def evaluation(
        self,
        name: str,
        score: float | None,
        *,
        label: str | None = None,
        explanation: str | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        """Record how good something that the step made is.

        Args:
            name: The measure, such as ``divergence``.
            score: Its value; None if there is none.
            label: What the score means, one of few words.
            explanation: A sentence without content of users, documents or models.
            more: Further attributes; ``error.type`` where the evaluation failed.
        """
        self.event(
            EVALUATION,
            **{
                "gen_ai.evaluation.name": name,
                "gen_ai.evaluation.score.value": score,
                "gen_ai.evaluation.score.label": label,
                "gen_ai.evaluation.explanation": explanation,
            },
            **(more or {}),
        )

    @property
    def _is_logged(self) -> bool:
        context = self._otel.get_span_context()
        is_left_out = context.is_valid and not context.trace_flags.sampled
        return not is_left_out and _logger.enabled()

    def fail(self, kind: str) -> None:
        """Record that the step came to nothing.

        Args:
            kind: The class of an exception, or the status of a reply such as ``timeout``; never
                the text of an error, which may hold content.
        """
        self.status = kind
        self.set("error.type", kind)
        self._otel.set_status(Status(StatusCode.ERROR, kind))


def current_span() -> Span:
    """Return the innermost step that is being timed; one that leads nowhere outside of any."""
    return _current.get() or Span(trace.INVALID_SPAN, content=False)


def content_is_wanted() -> bool:
    """Tell whether queries, documents and replies are to be recorded here.

    Raises:
        ConfigError: The setting ``trace_content`` is wrong.
    """
    recorder = recording_to()
    return (recorder is not None and recorder.content) or is_on("trace_content")


def _plain(value: Any) -> Any:
    """Return a value that OpenTelemetry takes as an attribute."""
    if isinstance(value, str):
        # Half a surrogate pair would cost the spans that are sent together with this one.
        return value.encode(errors="replace").decode()
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        if all(isinstance(item, str) for item in value):
            return [_plain(item) for item in value]
        if any(all(type(item) is kind for item in value) for kind in (float, int)):
            return list(value)
    return _plain(json.dumps(value, ensure_ascii=False))


@contextmanager
def span(name: str, /, *, kind: Kind = "internal", **attributes: Any) -> Iterator[Span]:
    """Time a step; spans opened inside it, in the same task or in its children, are its children.

    Messages of exceptions are not recorded, since they may hold content; their class is.

    Args:
        name: Of few different ones, by the GenAI conventions of OpenTelemetry or ``fairqr.…``.
        kind: What the step is to others.
        attributes: What is known from the start; a sampler may decide by it.
    """
    parent, recorder = _current.get(), recording_to()
    # Looked up once for all spans of a run.
    inherits = parent is not None and parent.recorder is recorder
    content = parent.has_content if parent and inherits else content_is_wanted()
    with _tracer.start_as_current_span(
        _plain(name),
        kind=_KINDS[kind],
        attributes={key: _plain(value) for key, value in attributes.items()},
        record_exception=False,
        set_status_on_exception=False,
    ) as otel:
        step = Span(otel, content, recorder)
        step.attributes.update(attributes)
        token = _current.set(step)
        started, clock = time.time(), time.perf_counter()
        try:
            yield step
        except BaseException as error:
            step.fail(type(error).__name__)
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
                        "status": step.status,
                        "attributes": step.attributes,
                        "events": step.events,
                    }
                )


def carrier() -> dict[str, str]:
    """Return what continues the trace of the current step elsewhere, or later.

    Returns:
        The headers ``traceparent`` and, where there is one, ``tracestate`` of the W3C; nothing
        outside of a trace.
    """
    headers: dict[str, str] = {}
    _propagator.inject(headers)
    return headers


@contextmanager
def continued(headers: Mapping[str, str]) -> Iterator[None]:
    """Let the spans that are opened inside continue a caller's trace.

    Args:
        headers: What :func:`carrier` returned, or the headers of a request, in any case of their
            names. Only ``traceparent`` and ``tracestate`` are looked at; what is no such header
            by the W3C is ignored, and without a ``traceparent`` nothing changes.
    """
    found: dict[str, str] = {}
    for name, value in headers.items():
        known = _HEADERS.get(str(name).lower())
        if known and isinstance(value, str) and known.fullmatch(value.strip(" \t")):
            found[str(name).lower()] = value.strip(" \t")
    caller = trace.get_current_span(_propagator.extract(found, otel_context.Context()))
    if not caller.get_span_context().is_valid:
        yield
        return
    token = otel_context.attach(trace.set_span_in_context(caller))
    try:
        yield
    finally:
        otel_context.detach(token)
