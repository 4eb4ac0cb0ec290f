"""The variables of OpenTelemetry are checked before its library fails at them."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fairqr.base.errors import ConfigError
from fairqr.base.exporting import require_readable

RATIO = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio"}


@pytest.mark.parametrize(
    "variables",
    [
        {"OTEL_ATTRIBUTE_COUNT_LIMIT": "many"},
        {"OTEL_BSP_SCHEDULE_DELAY": "-1"},
        {"OTEL_BSP_MAX_QUEUE_SIZE": "0"},
        {"OTEL_BSP_MAX_QUEUE_SIZE": "1e3"},
        {"OTEL_BSP_MAX_QUEUE_SIZE": "100"},  # a batch has 512 by default
        {"OTEL_BSP_EXPORT_TIMEOUT": "soon"},
        {"OTEL_EXPORTER_OTLP_TIMEOUT": "nan"},
        {"OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "0"},
        {"OTEL_EXPORTER_OTLP_COMPRESSION": "zip"},
        {"OTEL_TRACES_SAMPLER": "sometimes"},
        {**RATIO, "OTEL_TRACES_SAMPLER_ARG": "half"},
        {**RATIO, "OTEL_TRACES_SAMPLER_ARG": "1.5"},
        {"OTEL_PROPAGATORS": "tracecontext,pigeon"},
        {"OTEL_PYTHON_CONTEXT": "none_of_these"},
        {"OTEL_PYTHON_TRACER_PROVIDER": "none_of_these"},
    ],
)
def test_what_the_library_cannot_read_is_one_sentence(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as refused:
        require_readable()
    sentence = str(refused.value)
    assert sentence.startswith(list(variables)[-1]) or "OTEL_BSP_MAX" in sentence
    assert sentence.count("\n") == 0


def test_what_it_reads_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        **RATIO,
        "OTEL_TRACES_SAMPLER_ARG": "0.25",
        "OTEL_SPAN_EVENT_COUNT_LIMIT": " 0 ",
        "OTEL_BSP_MAX_QUEUE_SIZE": "64",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "64",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "2.5",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "GZIP",
        "OTEL_PROPAGATORS": "tracecontext, baggage",
        "OTEL_RESOURCE_ATTRIBUTES": "anything",
        "OTEL_BSP_SCHEDULE_DELAY": "",
    }.items():
        monkeypatch.setenv(name, value)
    require_readable()
    BatchSpanProcessor(InMemorySpanExporter()).shutdown()
