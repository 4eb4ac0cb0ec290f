"""The benchmarks run; what they measure is not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_quick_benchmarks_print_a_table_and_write_json(tmp_path: Path) -> None:
    written = tmp_path / "bench.json"
    command = [sys.executable, "benchmarks/bench.py", "--quick", "--json", str(written)]
    names = ["opening", "search", "rerank", "metrics", "sampling", "baselines"]
    names += ["graph", "tracing", "checkpoints"]
    run = subprocess.run([*command, *names], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    for what in (
        "opening an index",
        "top 500, p50",
        "added by the graph",
        "durability exit",
        "fair step",
    ):
        assert what in run.stdout
    for what in ("AWRF", "Plackett–Luce", "JSON files", "FA*IR", "DELTR", "xQuAD", "PM-2"):
        assert what in run.stdout
    assert json.loads(written.read_text())
