"""The load test runs, and its promises hold with few requests; ``make load`` makes many."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_whatever_fails_each_run_ends_once_and_as_if_nothing_had_failed(tmp_path: Path) -> None:
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
