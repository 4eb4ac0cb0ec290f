"""The benchmarks run; what they measure is not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_quick_benchmarks_print_a_table_and_write_json(tmp_path: Path) -> None:
    written = tmp_path / "bench.json"
    command = [sys.executable, "-m", "benchmarks.bench", "--quick", "--json", str(written)]
    names = ["starting", "searching", "reranking", "graph", "checkpoints"]
    run = subprocess.run([*command, *names], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    rows = json.loads(written.read_text())["rows"]
    assert len(rows) == run.stdout.count("\n| ") - 1 == 9
    for what in ("fairqr search", "top 500", "fair step", "by the graph", "async"):
        assert any(what in row["what"] and row["ours"] for row in rows), what
