"""Spans: what OpenTelemetry gets of them, and how a trace goes on elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fairqr.base.telemetry import continued, span
from tests.patience import PATIENCE

PARENT = f"00-{'0a' * 16}-{'0b' * 8}-01"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    monkeypatch.delenv("FAIRQR_TRACE_CONTENT", raising=False)
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    monkeypatch.setattr("fairqr.base.telemetry._tracer", provider.get_tracer("fairqr"))
    yield exporter
    provider.shutdown()


@pytest.mark.parametrize(
    "headers",
    [
        {"traceparent": PARENT * 10_000},
        {"traceparent": "٠" * 2 + PARENT[2:]},
        {3: 4},
        {"tracestate": "a=1"},
    ],
)
def test_what_is_no_header_of_a_trace_is_ignored(
    exporter: InMemorySpanExporter, headers: Any
) -> None:
    """A span inside begins a trace of its own, or belongs to that around it."""
    with continued(headers), span("root"), continued(headers), span("child"):
        pass
    child, root = exporter.get_finished_spans()
    assert root.parent is None
    assert child.parent == root.context


def printed(script: str, **variables: str) -> str:
    """Return what a Python program prints where only these variables of OpenTelemetry are set."""
    environment = {key: it for key, it in os.environ.items() if not key.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-c", f"from fairqr.base.exporting import exporting\n{script}"],
        env={**environment, **variables},
        check=True,
        timeout=PATIENCE,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    return done.stdout


AWAY = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}


@pytest.mark.parametrize("variables", [{}, {**AWAY, "OTEL_TRACES_EXPORTER": "none"}])
def test_opentelemetry_is_loaded_only_where_it_is_wanted(
    variables: dict[str, str],
) -> None:
    script = "import sys\nwith exporting(print): print('opentelemetry' in sys.modules)"
    assert printed(script, **variables) == "False\n"


@pytest.mark.promise("base")
def test_another_provider_is_left_to_do_its_work() -> None:
    """An application's own provider of traces is used.

    An application that has set up OpenTelemetry itself gets no second one.
    """
    script = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
ours = TracerProvider()
trace.set_tracer_provider(ours)
with exporting(print):
    assert trace.get_tracer_provider() is ours
"""
    assert printed(script, **AWAY) == ""


def test_what_cannot_be_set_up_is_one_sentence() -> None:
    """It does not quote the variable, which may be a key; the work is done."""
    script = """
from fairqr.base.telemetry import span
with exporting(print), span("run"):
    print("done")
"""
    sentence, work = printed(script, **AWAY, OTEL_TRACES_EXPORTER="secret-key").splitlines()
    assert "or install the exporter that you named" in sentence
    assert "secret-key" not in sentence
    assert work == "done"
