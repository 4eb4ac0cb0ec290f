"""Sends spans to an OpenTelemetry backend; only the command and the service use it.

OpenTelemetry's own variables say what is sent, and where. If none of them is set, nothing is
imported and nothing happens.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fairqr.base.errors import ConfigError
from fairqr.base.settings import is_web_address

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


@contextmanager
def exporting(warn: Callable[[str], None]) -> Iterator[None]:
    """Send the spans of what runs inside to the backend that the variables name.

    The resource is ``service.name=fairqr`` unless ``OTEL_SERVICE_NAME`` or
    ``OTEL_RESOURCE_ATTRIBUTES`` name another. At the end, everything left is sent. If the backend
    cannot be reached, there is a warning and the work goes on. A provider that an application has
    set is not replaced.

    Args:
        warn: Is called with one sentence if nothing can be sent, and from another thread each time
            sending starts to fail.
    """
    delivery = None
    measuring = None
    try:
        delivery = _start() if wanted_exporters() else None
        if os.environ.get("OTEL_METRICS_EXPORTER", "").strip() == "otlp":
            measuring = _start_metrics()
    except Exception as error:  # its text may quote a variable, which may be a key
        warn(
            f"Nothing is traced ({type(error).__name__}); run `pip install 'fairqr[otel]'` or "
            "install the exporter that you named, and check the OTEL_… variables."
        )
    if delivery:
        from fairqr.base.telemetry import content_is_wanted

        delivery.content = content_is_wanted()
        delivery.warn = warn
    try:
        yield
    finally:
        if delivery:
            delivery.provider.force_flush()
        if measuring:
            measuring.force_flush()


def wanted_exporters() -> list[str]:
    """Return the exporters that the variables ask for.

    Returns:
        Names as in ``OTEL_TRACES_EXPORTER``: ``otlp``, ``console`` or an installed exporter. The
        list is empty if no variable asks for any.
    """
    has_endpoint = any(os.environ.get(name, "").strip() for name in ENDPOINTS)
    default = "otlp" if has_endpoint else "none"
    stated = os.environ.get("OTEL_TRACES_EXPORTER", "").strip()
    names = [name.strip() for name in (stated or default).split(",")]
    return [name for name in names if name not in ("", "none")]


def require_endpoint() -> None:
    """Check the address of the backend, as a service does before it listens.

    Raises:
        ConfigError: A variable has something else than an address.
    """
    if "grpc" in {os.environ.get(name, "") for name in PROTOCOLS}:
        return  # its addresses may have no scheme
    for name in ENDPOINTS:
        address = os.environ.get(name, "").strip()
        if address and not is_web_address(address):
            raise ConfigError(f"{name} is no address; write it like http://127.0.0.1:4318.")


_TIMEOUT = r"(?=.*[1-9])[0-9]*\.?[0-9]+"
_SAMPLERS = r"(parentbased_)?(always_on|always_off|traceidratio)"
_READ: tuple[tuple[str, str, str], ...] = (
    (r"OTEL_.+_LIMIT", r"[0-9]{1,9}", "a whole number"),
    (r"OTEL_BSP_.+", r"(?=.*[1-9])[0-9]{1,9}", "a whole number above 0"),
    (r"OTEL_EXPORTER_OTLP_(TRACES_)?TIMEOUT", _TIMEOUT, "a number of seconds above 0"),
    (r"OTEL_EXPORTER_OTLP_(TRACES_)?COMPRESSION", r"gzip|deflate|none", "gzip, deflate or none"),
    (r"OTEL_TRACES_SAMPLER", _SAMPLERS, "a sampler of OpenTelemetry's"),
)
"""What OpenTelemetry's library reads: a pattern of names, one of their values, and its words."""

_NAMES_A_PART = {
    "OTEL_PROPAGATORS": "opentelemetry_propagator",
    "OTEL_PYTHON_CONTEXT": "opentelemetry_context",
    "OTEL_PYTHON_METER_PROVIDER": "opentelemetry_meter_provider",
    "OTEL_PYTHON_TRACER_PROVIDER": "opentelemetry_tracer_provider",
}
"""Variables that name what packages register, with the group of their entry points."""

_QUEUE = ("OTEL_BSP_MAX_QUEUE_SIZE", 2048)
_BATCH = ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512)
"""Variables with their defaults. A batch may be no larger than the queue."""


def require_readable() -> None:
    """Check the variables of OpenTelemetry, whose library fails at some and ignores others.

    Raises:
        ConfigError: One cannot be read, or names what is not installed.
    """
    values = {}
    for name, text in os.environ.items():
        if text.strip():
            values[name] = text.strip()
    for name, value in values.items():
        for pattern, form, words in _READ:
            has_form = re.fullmatch(form, value, re.IGNORECASE)
            if re.fullmatch(pattern, name) and not has_form:
                raise ConfigError(f"{name} is not {words}; correct it, or remove it.")
    _require_ratio(values)
    queue_variable, default_queue = _QUEUE
    batch_variable, default_batch = _BATCH
    queue = int(values.get(queue_variable, default_queue))
    batch = int(values.get(batch_variable, default_batch))
    if batch > queue:
        raise ConfigError(
            f"{batch_variable} is {batch}, and {queue_variable} only {queue}; make the batch "
            "smaller."
        )
    for name in _NAMES_A_PART.keys() & values.keys():
        _require_installed(name, values[name])


def _require_ratio(values: Mapping[str, str]) -> None:
    """Check the argument of a sampler that takes a part of the traces; other samplers read none."""
    if not values.get("OTEL_TRACES_SAMPLER", "").lower().endswith("traceidratio"):
        return
    try:
        is_ratio = 0 <= float(values.get("OTEL_TRACES_SAMPLER_ARG", "1")) <= 1
    except ValueError:
        is_ratio = False
    if not is_ratio:
        raise ConfigError(
            "OTEL_TRACES_SAMPLER_ARG is not a number from 0 to 1; correct it, or remove it."
        )


def _require_installed(variable: str, value: str) -> None:
    from importlib.metadata import entry_points  # which each command would wait for

    for name in (part.strip() for part in value.split(",")):
        if name != "none" and not entry_points(group=_NAMES_A_PART[variable], name=name):
            raise ConfigError(f"{variable} names what is not installed; correct it, or remove it.")


@functools.cache
def _start() -> _Delivery | None:
    """Set up tracing for the whole process, unless the application has a provider of its own."""
    from importlib.metadata import version

    from opentelemetry import trace

    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    # OpenTelemetry warns about each attempt, and quotes headers it cannot read; they may be keys.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    attributes = {"service.version": version("fairqr"), **Resource.create().attributes}
    for name in list(attributes):
        if name.startswith("process.command"):  # it contains queries
            del attributes[name]
    if str(attributes["service.name"]).startswith("unknown_service"):
        attributes["service.name"] = "fairqr"
    provider = TracerProvider(resource=Resource(attributes))
    delivery = _Delivery([*map(_exporter, wanted_exporters())], provider)
    provider.add_span_processor(BatchSpanProcessor(delivery))  # type: ignore[arg-type]
    trace.set_tracer_provider(provider)
    return delivery


@functools.cache
def _start_metrics() -> Any:
    """Set up metrics for the whole process, and return their provider.

    Many backends of traces take no metrics, so OTEL_METRICS_EXPORTER has to ask for them.
    """
    from opentelemetry import metrics
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource

    os.environ.setdefault("OTEL_EXPORTER_OTLP_TIMEOUT", "5")
    reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    name = os.environ.get("OTEL_SERVICE_NAME") or "fairqr"
    provider = MeterProvider([reader], Resource({"service.name": name}))
    metrics.set_meter_provider(provider)
    return provider


def _exporter(name: str) -> Any:
    """Return an exporter.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    from importlib.metadata import entry_points  # which each command would wait for

    if name == "otlp":
        # The variable of traces wins over the general one.
        protocols = [os.environ[variable] for variable in PROTOCOLS if variable in os.environ]
        name = "otlp_proto_grpc" if "grpc" in protocols[:1] else "otlp_proto_http"
        # How long we try to send. It can delay the end of a command.
        os.environ.setdefault("OTEL_EXPORTER_OTLP_TIMEOUT", "5")
    for entry_point in entry_points(group="opentelemetry_traces_exporter", name=name):
        exporter = entry_point.load()
        if name == "console":
            return exporter(out=sys.stderr)  # standard output is for results
        return exporter()
    raise ModuleNotFoundError(name)


class _Delivery:
    """An exporter that passes on to other exporters, and warns when that starts to fail.

    Without content, spans of other libraries lose the texts of their errors, which may quote
    queries, as those of Elasticsearch's client do.
    """

    def __init__(self, exporters: Sequence[Any], provider: Any) -> None:
        self.provider = provider
        self.content = False
        self._failed = False
        self._exporters = exporters
        self.warn: Callable[[str], None] = print

    def export(self, batch: Sequence[Any]) -> None:
        """Pass spans on."""
        spans = batch if self.content else [*map(_without_texts, batch)]
        # A success is 0; all exporters get the spans, whatever became of the others.
        failed = sum(exporter.export(spans).value for exporter in self._exporters) > 0
        if failed and not self._failed:
            self.warn(
                "Spans could not be sent to the OpenTelemetry backend; check that it runs, and the "
                f"address in {ENDPOINTS[1]}."
            )
        self._failed = failed

    def shutdown(self) -> None:
        """Close the exporters."""
        for exporter in self._exporters:
            exporter.shutdown()


def _without_texts(span: Any) -> Any:
    """Return a span of ours as it is, and one of another library without events and texts."""
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Status

    if span.instrumentation_scope.name == "fairqr":
        return span
    names = ["name", "context", "parent", "resource", "attributes", "links", "kind"]
    names += ["start_time", "end_time", "instrumentation_scope"]
    parts = {name: getattr(span, name) for name in names}
    return ReadableSpan(**parts, status=Status(span.status.status_code))
