"""Who exports spans to OpenTelemetry: nobody where nothing is wanted, and no second provider."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.patience import PATIENCE


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
