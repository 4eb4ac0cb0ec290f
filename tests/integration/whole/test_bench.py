"""The benchmarks run; what they measure is not judged here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).parents[3]


def test_the_quick_benchmarks_keep_their_figures(tmp_path: Path) -> None:
    names = ["searching", "reranking", "graph"]
    command = [sys.executable, "-m", "benchmarks.bench", "--quick", *names, "-o", tmp_path]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    ours = pd.read_csv(tmp_path / "measures.csv").query("measure == 'ours'")
    # A difference may be below 0 on a busy machine.
    times = ours[ours["what"] != "added by the graph to a round"]
    assert (len(ours), len(times)) == (8, 7)
    assert (times["value"] > 0).all()
