"""Spans: what OpenTelemetry gets of them, and how a trace goes on elsewhere."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from fairqr.base.telemetry import continued, record_to, span
from tests.patience import PATIENCE

PARENT = f"00-{'0a' * 16}-{'0b' * 8}-01"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    monkeypatch.delenv("FAIRQR_TRACE_CONTENT", raising=False)
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("fairqr.base.telemetry._tracer", provider.get_tracer("fairqr"))
    yield exporter
    provider.shutdown()


class TestSpans:
    def test_values_are_such_as_opentelemetry_takes(self, exporter: InMemorySpanExporter) -> None:
        """Lists of one kind stay lists; anything else is JSON; half a pair costs no other span."""
        values: dict[str, tuple[Any, Any]] = {
            "text": ("a\ud800b", "a?b"),
            "number": (3, 3),
            "texts": (["a", "\udfff"], ("a", "?")),
            "shares": ([0.5, 1.0], (0.5, 1.0)),
            "mixed": ([0.5, None], "[0.5, null]"),
            "mapping": ({"ä": "\ud800"}, '{"ä": "?"}'),
        }
        with span("run \ud800", kind="client", **{"fairqr.first": "x"}) as step:
            for key, (value, _) in values.items():
                step.set(f"fairqr.{key}", value)
        (sent,) = exporter.get_finished_spans()
        assert (sent.name, sent.kind) == ("run ?", SpanKind.CLIENT)
        expected = {f"fairqr.{key}": plain for key, (_, plain) in values.items()}
        assert dict(sent.attributes or {}) == {"fairqr.first": "x", **expected}
        assert encode_spans([sent]).SerializeToString()

    async def test_an_error_is_named_and_not_quoted(self, exporter: InMemorySpanExporter) -> None:
        """So is a run that was cancelled; what failed without an exception is an error too."""
        with pytest.raises(ValueError, match="private"), span("outer"), span("inner"):
            raise ValueError("private")

        async def waiting() -> None:
            with span("waiting"):
                await asyncio.Event().wait()

        with pytest.raises(TimeoutError), span("late"):
            await asyncio.wait_for(waiting(), 0.01)
        with span("asked") as step:
            step.fail("timeout")
        sent = {it.name: it for it in exporter.get_finished_spans()}
        kinds = {name: (it.attributes or {})["error.type"] for name, it in sent.items()}
        assert kinds == {
            **dict.fromkeys(("inner", "outer"), "ValueError"),
            **{"waiting": "CancelledError", "late": "TimeoutError", "asked": "timeout"},
        }
        assert all(it.status.description == kinds[name] for name, it in sent.items())
        assert "private" not in "".join(it.to_json() for it in sent.values())


class TestEvents:
    def test_a_caller_that_does_not_sample_gets_none(
        self, exporter: InMemorySpanExporter, tmp_path: Path
    ) -> None:
        """A file takes them all the same, and says how a run ended that failed."""

        def run() -> None:
            with span("run") as step:
                step.event("fairqr.retry", attempt=2)
                raise KeyError("private")

        unsampled = {"traceparent": f"{PARENT[:-2]}00"}
        with continued(unsampled), record_to(tmp_path / "file"), pytest.raises(KeyError):
            run()
        (line,) = map(json.loads, (tmp_path / "file").read_text().splitlines())
        assert (line["name"], line["status"]) == ("run", "KeyError")
        assert line["attributes"] == {"error.type": "KeyError"}
        assert line["events"] == [{"name": "fairqr.retry", "attributes": {"attempt": 2}}]
        assert exporter.get_finished_spans() == ()


class TestContinuing:
    @pytest.mark.parametrize(
        "headers",
        [
            {"traceparent": "nonsense"},
            {"traceparent": PARENT.upper()},
            {"traceparent": PARENT * 10_000},
            {"traceparent": "٠" * 2 + PARENT[2:]},
            {3: 4},
            {"tracestate": "a=1"},
        ],
    )
    def test_what_is_no_header_of_a_trace_is_ignored(
        self, exporter: InMemorySpanExporter, headers: Any
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
def test_where_nothing_is_wanted_nothing_of_opentelemetry_is_loaded(
    variables: dict[str, str],
) -> None:
    script = "import sys\nwith exporting(print): print('opentelemetry' in sys.modules)"
    assert printed(script, **variables) == "False\n"


def test_another_provider_is_left_to_do_its_work() -> None:
    """An application that has set up OpenTelemetry itself gets no second one."""
    script = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
ours = TracerProvider()
trace.set_tracer_provider(ours)
with exporting(print):
    assert trace.get_tracer_provider() is ours
"""
    assert printed(script, **AWAY) == ""


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("OTEL_TRACES_EXPORTER", "nothing-so-named", "or install the exporter that you named"),
        ("OTEL_SPAN_EVENT_COUNT_LIMIT", "secret-key", "(ValueError)"),
    ],
)
def test_what_cannot_be_set_up_is_one_sentence(name: str, value: str, words: str) -> None:
    """It does not quote the variable, which may be a key; the work is done."""
    script = """
from fairqr.base.telemetry import span
with exporting(print), span("run"):
    print("done")
"""
    sentence, work = printed(script, **AWAY, **{name: value}).splitlines()
    assert words in sentence
    assert value not in sentence
    assert work == "done"
