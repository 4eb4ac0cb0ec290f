"""The benchmarks run; what they measure is not judged here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_quick_benchmarks_print_a_table() -> None:
    names = ["starting", "searching", "reranking", "graph"]
    command = [sys.executable, "-m", "benchmarks.bench", "--quick", *names]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    cells = [line.split("|")[1:3] for line in run.stdout.splitlines() if line.startswith("| ")]
    rows = {what.strip(): ours.strip() for what, ours in cells[2:]}
    assert len(rows) == 7
    for what in ("fairqr search", "top 500", "fair step", "by the graph"):
        assert any(what in name and ours for name, ours in rows.items()), what
