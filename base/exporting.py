"""Sending spans to a backend of OpenTelemetry: for the command and the service, not the library.

What is sent, and where to, is said by OpenTelemetry's own variables. Where none of them asks for
it, nothing is imported and nothing is done.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

__all__ = ["exporting", "wanted_exporters"]

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
TIMEOUTS = ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")

LONGEST_SECONDS = 5.0
"""How long sending is tried where no variable says it; a command ends so much later at the most."""

AWAY = (
    "Spans could not be sent to OpenTelemetry's backend; check that it runs, and what "
    f"{ENDPOINTS[1]} says."
)

_setup: tuple[TracerProvider, _Delivery] | None = None


def wanted_exporters() -> tuple[list[str], str]:
    """Return which exporters the variables ask for, and the variable that does.

    Returns:
        Names as in ``OTEL_TRACES_EXPORTER``: ``otlp``, ``console`` or that of an installed
        exporter. None where nothing asks for any, or where ``OTEL_SDK_DISABLED`` is true.
    """
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return [], ""
    if named := os.environ.get("OTEL_TRACES_EXPORTER", "").strip():
        names = [name.strip() for name in named.split(",")]
        return [name for name in names if name not in ("", "none")], "OTEL_TRACES_EXPORTER"
    for variable in ENDPOINTS:
        if os.environ.get(variable, "").strip():
            return ["otlp"], variable
    return [], ""


@contextmanager
def exporting(warn: Callable[[str], None], *, at_once: bool = False) -> Iterator[None]:
    """Send the spans that end inside to where OpenTelemetry's variables say, if they do.

    The resource is ``service.name=fairqr`` unless ``OTEL_SERVICE_NAME`` or
    ``OTEL_RESOURCE_ATTRIBUTES`` name another. What is left is sent at the end. A backend that
    cannot be reached costs spans and a warning, never the work. Where the application has a
    provider of its own already, that one is left to do its work.

    Args:
        warn: Told, in one sentence, why nothing can be sent, and in the end what was lost.
        at_once: Tell of spans that cannot be sent when it begins, each time anew, as a service
            wants it that has no end; from another thread.
    """
    names, variable = wanted_exporters()
    setup = _ready(names, variable, warn) if names else None
    if setup is None:
        yield
        return
    from fairqr.base.telemetry import content_is_wanted

    provider, delivery = setup
    delivery.content = content_is_wanted()
    delivery.tell = warn if at_once else None
    try:
        yield
    finally:
        delivery.closing = True
        provider.force_flush()
        delivery.closing = False
        if delivery.lost and not at_once:
            warn(AWAY)
        delivery.lost = 0


def _ready(
    names: list[str], variable: str, warn: Callable[[str], None]
) -> tuple[TracerProvider, _Delivery] | None:
    """Set the provider up, once in a process; None where it is not ours, or cannot be."""
    global _setup
    from opentelemetry import trace

    if _setup is not None:
        return _setup
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    # It warns of each attempt, and quotes headers that it cannot read, which may be keys.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)
    try:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        delivery = _Delivery([_exporter(name) for name in names])
        provider = TracerProvider(resource=_resource())
        provider.add_span_processor(BatchSpanProcessor(delivery))  # type: ignore[arg-type]
    except ModuleNotFoundError:
        warn(
            f"{variable} is set, but nothing is traced: what sends spans is not installed; run "
            "`pip install 'fairqr[otel]'`, or install the exporter that is named."
        )
        return None
    except Exception as error:  # a variable that cannot be read; its value may be a key
        warn(
            f"{variable} is set, but nothing is traced ({type(error).__name__}); check the "
            "variables OTEL_…."
        )
        return None
    trace.set_tracer_provider(provider)
    _setup = provider, delivery
    return _setup


def _exporter(name: str) -> SpanExporter:
    """Return an exporter; ModuleNotFoundError says that it is not installed."""
    if name == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter(out=sys.stderr)  # results are on standard output
    if name == "otlp":
        name = "otlp_proto_grpc" if _first(PROTOCOLS) == "grpc" else "otlp_proto_http"
    if name == "otlp_proto_http":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter(timeout=None if _first(TIMEOUTS) else LONGEST_SECONDS)
    from importlib.metadata import entry_points

    for found in entry_points(group="opentelemetry_traces_exporter", name=name):
        made: SpanExporter = found.load()()
        return made
    raise ModuleNotFoundError(name)


def _first(variables: Sequence[str]) -> str:
    return next((value for name in variables if (value := os.environ.get(name, "").strip())), "")


def _resource() -> Resource:
    """Return what the spans are of, without the command's arguments, which hold the query."""
    from importlib.metadata import version

    from opentelemetry.sdk.resources import Resource

    found = Resource.create()
    kept = {k: v for k, v in found.attributes.items() if not k.startswith("process.command")}
    named = not str(kept.get("service.name", "unknown_service")).startswith("unknown_service")
    ours = {"service.name": kept["service.name"] if named else "fairqr"}
    return Resource({"service.version": version("fairqr"), **kept, **ours}, found.schema_url)


class _Delivery:
    """A span exporter that passes on to others, and counts what did not arrive.

    Attributes:
        content: Whether texts of other libraries' errors may be passed on.
        closing: Whether somebody waits; then nothing is tried after a first failure.
        lost: Spans that at least one exporter could not send.
        tell: Told where sending fails that did not fail before.
    """

    def __init__(self, exporters: Sequence[SpanExporter]) -> None:
        self._exporters = exporters
        self._failed = False
        self.content = False
        self.closing = False
        self.lost = 0
        self.tell: Callable[[str], None] | None = None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Pass spans on."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        if not (self.closing and self._failed):
            kept = spans if self.content else [_without_content(span) for span in spans]
            results = [exporter.export(kept) for exporter in self._exporters]
            before = self._failed
            self._failed = any(result is not SpanExportResult.SUCCESS for result in results)
            if self._failed and not before and self.tell:
                self.tell(AWAY)
        if self._failed:
            self.lost += len(spans)
            return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Close the exporters."""
        for exporter in self._exporters:
            exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing is kept here."""
        return True


def _without_content(span: ReadableSpan) -> Any:
    """Return a span without the texts of errors, which may quote a query or a document.

    Ours never have any; those of other libraries do, such as Elasticsearch's client.
    """
    scope = span.instrumentation_scope
    if scope is not None and scope.name == "fairqr":
        return span
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.trace import Status

    told = ("exception.type", "exception.escaped")
    events = [
        Event(
            event.name,
            {key: it for key, it in (event.attributes or {}).items() if key in told}
            if event.name == "exception"
            else event.attributes,
            event.timestamp,
        )
        for event in span.events
    ]
    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=span.attributes,
        events=events,
        links=span.links,
        kind=span.kind,
        status=Status(span.status.status_code),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )
