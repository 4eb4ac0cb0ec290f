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
from importlib.metadata import entry_points, version
from typing import Any, Literal

Signal = Literal["TRACES", "LOGS"]
"""What is sent, as OpenTelemetry's variables name it: spans (traces), or events (log records)."""

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
AWAY: dict[Signal, str] = {
    "TRACES": f"Spans could not be sent to the OpenTelemetry backend; check that it runs, and the "
    f"address in {ENDPOINT}.",
    "LOGS": "Events could not be sent to the OpenTelemetry backend; if it only accepts spans, set "
    "OTEL_LOGS_EXPORTER=none.",
}

_started: dict[Signal, _Delivery] = {}
"""What is set up; a process has one provider of a signal."""


@contextmanager
def exporting(warn: Callable[[str], None]) -> Iterator[None]:
    """Send the spans and events of what runs inside to the backend that the variables name.

    The resource is ``service.name=fairqr`` unless ``OTEL_SERVICE_NAME`` or
    ``OTEL_RESOURCE_ATTRIBUTES`` name another. At the end, everything left is sent. If the backend
    cannot be reached, there is a warning and the work goes on. Providers that an application has
    set are not replaced.

    Args:
        warn: Is called with one sentence if nothing can be sent, and from another thread each time
            sending starts to fail.
    """
    problems = {}
    for signal in AWAY:
        names, variable = wanted_exporters(signal)
        try:
            if names and signal not in _started:
                _start(signal, names, variable)
        except Exception as error:  # its text may quote a variable, which may be a key
            problems[variable] = type(error).__name__
    for variable, kind in problems.items():
        warn(
            f"{variable} is set, but nothing is traced ({kind}); run `pip install 'fairqr[otel]'`, "
            "or install the exporter that it names, and check the OTEL_… variables."
        )
    for delivery in _started.values():
        delivery.begin(warn)
    try:
        yield
    finally:
        for delivery in _started.values():
            delivery.end()


def wanted_exporters(signal: Signal) -> tuple[list[str], str]:
    """Return the exporters that the variables ask for, and the variable that asks.

    Returns:
        Names as in ``OTEL_TRACES_EXPORTER``: ``otlp``, ``console`` or an installed exporter. The
        list is empty if no variable asks for any, or if ``OTEL_SDK_DISABLED`` is true.
    """
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return [], ""
    chosen = f"OTEL_{signal}_EXPORTER"
    for variable in (chosen, f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", ENDPOINT):
        if value := os.environ.get(variable, "").strip():
            names = [name.strip() for name in value.split(",")] if variable == chosen else ["otlp"]
            return [name for name in names if name not in ("", "none")], variable
    return [], ""


def _start(signal: Signal, names: Sequence[str], variable: str) -> None:
    """Set up a signal for the whole process, unless the application has a provider of its own."""
    from opentelemetry import _logs, trace

    is_traces = signal == "TRACES"
    current = trace.get_tracer_provider() if is_traces else _logs.get_logger_provider()
    if not type(current).__name__.startswith("Proxy"):
        return
    # OpenTelemetry warns about each attempt, and quotes headers it cannot read; they may be keys.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider: Any = (TracerProvider if is_traces else LoggerProvider)(resource=_resource())
    add = provider.add_span_processor if is_traces else provider.add_log_record_processor
    batches: Any = BatchSpanProcessor if is_traces else BatchLogRecordProcessor
    delivery = _Delivery(signal, [_exporter(signal, name) for name in names], variable, provider)
    add(batches(delivery))
    (trace.set_tracer_provider if is_traces else _logs.set_logger_provider)(provider)
    _started[signal] = delivery


def _exporter(signal: Signal, name: str) -> Any:
    """Return an exporter.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    if name == "otlp":
        protocols = (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
        grpc = "grpc" in [os.environ.get(it) for it in protocols if it in os.environ][:1]
        name = "otlp_proto_grpc" if grpc else "otlp_proto_http"
        # How long we try to send. It can delay the end of a command.
        os.environ.setdefault("OTEL_EXPORTER_OTLP_TIMEOUT", "5")
    for found in entry_points(group=f"opentelemetry_{signal.lower()}_exporter", name=name):
        # Standard output is for results.
        return found.load()(**{"out": sys.stderr} if name == "console" else {})
    raise ModuleNotFoundError(name)


def _resource() -> Any:
    """Return what we send about ourselves, without the command line, which contains queries."""
    from opentelemetry.sdk.resources import Resource

    found = Resource.create().attributes
    kept = {key: it for key, it in found.items() if not key.startswith("process.command")}
    if str(kept["service.name"]).startswith("unknown_service"):
        kept["service.name"] = "fairqr"
    return Resource({"service.version": version("fairqr"), **kept})


class _Delivery:
    """An exporter that passes on to other exporters, and warns when that starts to fail.

    Without content, spans of other libraries lose the texts of their errors, which may quote
    queries, as those of Elasticsearch's client do; their log records are not passed on.
    """

    def __init__(
        self, signal: Signal, exporters: Sequence[Any], asked_by: str, provider: Any = None
    ) -> None:
        self.content = False
        self._signal, self._exporters, self._asked_by = signal, exporters, asked_by
        self._provider = provider
        self._failed = self._ending = False
        self._warn: Callable[[str], None] = print

    def begin(self, warn: Callable[[str], None]) -> None:
        """Prepare for a run."""
        from fairqr.base.telemetry import content_is_wanted

        self.content, self._warn = content_is_wanted(), warn

    def end(self) -> None:
        """Send everything left."""
        self._ending = True
        self._provider.force_flush()
        self._ending = False

    def export(self, batch: Sequence[Any]) -> None:
        """Pass spans or log records on."""
        # Two signals that one variable asks for go to one backend: one sentence is enough, and a
        # program that ends does not wait for it twice.
        same = [it for it in _started.values() if it._asked_by == self._asked_by]
        if not (self._ending and any(it._failed for it in same)):
            kept = batch if self.content else [*self._without_texts(batch)]
            # The results of both signals have the value 0 for success.
            failed = sum(exporter.export(kept).value for exporter in self._exporters) > 0
            if failed and not any(it._failed for it in same):
                self._warn(AWAY[self._signal])
            self._failed = failed

    def _without_texts(self, batch: Sequence[Any]) -> Iterator[Any]:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import Status

        same = ["name", "context", "parent", "resource", "attributes", "links", "kind"]
        same += ["start_time", "end_time", "instrumentation_scope"]
        for item in batch:
            if item.instrumentation_scope and item.instrumentation_scope.name == "fairqr":
                yield item
            elif self._signal == "TRACES":
                status = Status(item.status.status_code)
                yield ReadableSpan(**{name: getattr(item, name) for name in same}, status=status)

    def shutdown(self) -> None:
        """Close the exporters."""
        for exporter in self._exporters:
            exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Do nothing, since nothing is kept here."""
        return True
