"""Sends spans and events to an OpenTelemetry backend; only the command and the service use it.

OpenTelemetry's own variables say what is sent, and where. If none of them is set, nothing is
imported and nothing happens.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

Signal = Literal["TRACES", "LOGS"]
"""What is sent, as OpenTelemetry's variables name it: spans (traces), or events (log records)."""

SIGNALS: tuple[Signal, ...] = ("TRACES", "LOGS")
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"

LONGEST_SECONDS = 5.0
"""How long we try to send, unless a variable says otherwise. It can delay the end of a command."""

AWAY: dict[Signal, str] = {
    "TRACES": (
        "Spans could not be sent to the OpenTelemetry backend; check that it runs, and the "
        f"address in {ENDPOINT}."
    ),
    "LOGS": (
        "Events could not be sent to the OpenTelemetry backend; if it only accepts spans, set "
        "OTEL_LOGS_EXPORTER=none."
    ),
}

_started: dict[Signal, tuple[Any, _Delivery]] = {}
"""The provider and the delivery of each signal that is set up."""


def wanted_exporters(signal: Signal) -> tuple[list[str], str]:
    """Return the exporters that the variables ask for, and the variable that asks.

    Returns:
        Names as in ``OTEL_TRACES_EXPORTER``: ``otlp``, ``console`` or an installed exporter. The
        list is empty if no variable asks for any, or if ``OTEL_SDK_DISABLED`` is true.
    """
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return [], ""
    chosen = f"OTEL_{signal}_EXPORTER"
    if named := os.environ.get(chosen, "").strip():
        names = [name.strip() for name in named.split(",")]
        return [name for name in names if name not in ("", "none")], chosen
    for variable in (f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", ENDPOINT):
        if os.environ.get(variable, "").strip():
            return ["otlp"], variable
    return [], ""


@contextmanager
def exporting(warn: Callable[[str], None], *, at_once: bool = False) -> Iterator[None]:
    """Send the spans and events of what runs inside to the backend that the variables name.

    The resource is ``service.name=fairqr`` unless ``OTEL_SERVICE_NAME`` or
    ``OTEL_RESOURCE_ATTRIBUTES`` name another. At the end, everything left is sent. If the backend
    cannot be reached, there is a warning and the work goes on. Providers that an application has
    set are not replaced.

    Args:
        warn: Is called with one sentence if nothing can be sent, and at the end if something was
            lost.
        at_once: Warn from another thread each time sending starts to fail, instead of once at the
            end. A service has no end.
    """
    problems: dict[str, None] = {}
    ready = [it for signal in SIGNALS if (it := _ready(signal, problems)) is not None]
    for problem in problems:
        warn(problem)
    if not ready:
        yield
        return
    from fairqr.base.telemetry import content_is_wanted

    for _, delivery in ready:
        delivery.content = content_is_wanted()
        delivery.tell = warn if at_once else None
    try:
        yield
    finally:
        _send_the_rest(ready, None if at_once else warn)


def _send_the_rest(
    ready: Sequence[tuple[Any, _Delivery]], warn: Callable[[str], None] | None
) -> None:
    away: set[str] = set()
    for provider, delivery in ready:
        # If the spans' backend did not answer, do not wait for it again.
        delivery.failed |= delivery.asked_by in away
        delivery.closing = True
        provider.force_flush()
        delivery.closing = False
        if delivery.lost:
            if warn and not away:
                warn(AWAY[delivery.signal])
            away.add(delivery.asked_by)
        delivery.lost = 0


def _ready(signal: Signal, problems: dict[str, None]) -> tuple[Any, _Delivery] | None:
    """Set up the provider of a signal, once in a process.

    Returns:
        None if no exporter is wanted, if the application has a provider, or if setting up failed.
    """
    names, variable = wanted_exporters(signal)
    if not names:
        return None
    if signal in _started:
        return _started[signal]
    if not _is_free(signal):
        return None
    # OpenTelemetry warns about each attempt, and quotes headers it cannot read; they may be keys.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)
    try:
        delivery = _Delivery(signal, [_exporter(signal, name) for name in names], variable)
        _started[signal] = _provider(signal, delivery), delivery
    except ModuleNotFoundError:
        problems[
            f"{variable} is set, but nothing is traced, since the exporter is not installed; run "
            "`pip install 'fairqr[otel]'`, or install the exporter that it names."
        ] = None
        return None
    except Exception as error:  # an unreadable variable; its value may be a key, so it is not shown
        problems[
            f"{variable} is set, but nothing is traced ({type(error).__name__}); check the OTEL_… "
            "variables."
        ] = None
        return None
    return _started[signal]


def _is_free(signal: Signal) -> bool:
    """Return whether the application has not set a provider of its own."""
    if signal == "TRACES":
        from opentelemetry.trace import ProxyTracerProvider, get_tracer_provider

        return isinstance(get_tracer_provider(), ProxyTracerProvider)
    from opentelemetry._logs import get_logger_provider
    from opentelemetry._logs._internal import ProxyLoggerProvider

    return isinstance(get_logger_provider(), ProxyLoggerProvider)


def _provider(signal: Signal, delivery: Any) -> Any:
    """Make the provider of a signal and set it for the whole process."""
    if signal == "TRACES":
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace import set_tracer_provider

        tracers = TracerProvider(resource=_resource())
        tracers.add_span_processor(BatchSpanProcessor(delivery))
        set_tracer_provider(tracers)
        return tracers
    from opentelemetry._logs import set_logger_provider
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor

    loggers = LoggerProvider(resource=_resource())
    loggers.add_log_record_processor(BatchLogRecordProcessor(delivery))
    set_logger_provider(loggers)
    return loggers


def _exporter(signal: Signal, name: str) -> Any:
    """Return an exporter.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    traces = signal == "TRACES"
    if name == "console":
        from opentelemetry.sdk._logs.export import ConsoleLogRecordExporter
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        # Standard output is for results.
        return (ConsoleSpanExporter if traces else ConsoleLogRecordExporter)(out=sys.stderr)
    if name == "otlp":
        name = "otlp_proto_grpc" if _variable(signal, "PROTOCOL") == "grpc" else "otlp_proto_http"
    if name == "otlp_proto_http":
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        timeout = None if _variable(signal, "TIMEOUT") else LONGEST_SECONDS
        return (OTLPSpanExporter if traces else OTLPLogExporter)(timeout=timeout)
    from importlib.metadata import entry_points

    for found in entry_points(group=f"opentelemetry_{signal.lower()}_exporter", name=name):
        return found.load()()
    raise ModuleNotFoundError(name)


def _variable(signal: Signal, name: str) -> str:
    """Return the value of an OTLP variable: the one for this signal, or else the one for all."""
    variables = (f"OTEL_EXPORTER_OTLP_{signal}_{name}", f"OTEL_EXPORTER_OTLP_{name}")
    return next((value for it in variables if (value := os.environ.get(it, "").strip())), "")


def _resource() -> Resource:
    """Return what we send about ourselves, without the command line, which contains queries."""
    from importlib.metadata import version

    from opentelemetry.sdk.resources import Resource

    found = Resource.create()
    kept = {k: v for k, v in found.attributes.items() if not k.startswith("process.command")}
    named = not str(kept.get("service.name", "unknown_service")).startswith("unknown_service")
    ours = {"service.name": kept["service.name"] if named else "fairqr"}
    return Resource({"service.version": version("fairqr"), **kept, **ours}, found.schema_url)


class _Delivery:
    """An exporter that passes on to other exporters, and counts what did not arrive.

    Attributes:
        asked_by: The variable that asks for it.
        content: Whether texts of other libraries may be passed on.
        closing: Whether the program is ending; then nothing is sent after a first failure.
        failed: Whether the last attempt failed.
        lost: How many items at least one exporter could not send.
        tell: Optional; is called with a sentence when sending starts to fail.
    """

    def __init__(self, signal: Signal, exporters: Sequence[Any], asked_by: str = "") -> None:
        self.signal = signal
        self.asked_by = asked_by
        self.content = False
        self.closing = False
        self.failed = False
        self.lost = 0
        self.tell: Callable[[str], None] | None = None
        self._exporters = exporters

    def export(self, batch: Sequence[Any]) -> None:
        """Pass spans or log records on."""
        if not (self.closing and self.failed):
            kept = batch if self.content else self._without_content(batch)
            # The results of both signals have the value 0 for success.
            failed = any(it.value for it in [exporter.export(kept) for exporter in self._exporters])
            if failed and not self.failed and self.tell:
                self.tell(AWAY[self.signal])
            self.failed = failed
        if self.failed:
            self.lost += len(batch)

    def shutdown(self) -> None:
        """Close the exporters."""
        for exporter in self._exporters:
            exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Do nothing, since nothing is kept here."""
        return True

    def _without_content(self, batch: Sequence[Any]) -> list[Any]:
        """Return what may be sent without content: our items, and other spans without texts."""
        if self.signal == "TRACES":
            return [span if _is_ours(span) else _without_texts(span) for span in batch]
        return [record for record in batch if _is_ours(record)]


def _is_ours(item: Any) -> bool:
    scope = item.instrumentation_scope
    return scope is not None and scope.name == "fairqr"


def _without_texts(span: Any) -> Any:
    """Return a span without the texts of errors, which may quote a query or a document.

    Our spans have none, but those of other libraries do, such as Elasticsearch's client.
    """
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
