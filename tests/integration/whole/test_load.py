"""The load test runs, and its promises hold with few requests; ``make load`` makes many."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.promise("service")
def test_each_run_ends_once_whatever_fails(tmp_path: Path) -> None:
    """Under load no run is lost and nothing is asked twice, though workers are killed and the
    database restarts; each run comes to the same as if nothing had failed.
    """
    written = tmp_path / "load.json"
    command = [sys.executable, "-m", "benchmarks.load", "--quick", "--json", str(written), "chaos"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    found = json.loads(written.read_text())
    assert found["violations"] == []
    chaos = found["parts"]["chaos"]
    assert chaos["recovered"] is not None
    assert chaos["verdict"]["resumed"] > 0
    assert chaos["verdict"]["equal"] > 30
