"""The figures of keyword evidence can be printed; what they are is not judged here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def test_both_rules_are_measured_on_the_same_topics(
    shared_model_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRQR_DATA_DIR", str(tmp_path))
    command = [sys.executable, "benchmarks/evidence.py", "--queries", "2"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    headings, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in run.stdout.splitlines()
    )
    assert headings[3:6] == ["counts", "texts", "change"]
    assert [row[1] for row in rows] == ["gender", "continent", ""]
    assert [row[-2:] for row in rows] == [["2", "2"], ["2", "2"], ["2", "4"]]
    counts, texts = ([row[column] for row in rows] for column in (3, 4))
    assert counts != texts, "the engine was asked to count both times"
