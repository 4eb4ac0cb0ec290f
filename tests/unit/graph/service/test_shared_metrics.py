"""The folder in which workers keep their metrics."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairqr.graph.service.http.shared_metrics import PREFIX, SHARED_FOLDER, share_metrics


def test_folders_of_processes_that_were_killed_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv(SHARED_FOLDER, "")
    ended = subprocess.Popen([sys.executable, "-c", "pass"])
    ended.wait()
    abandoned = tmp_path / f"{PREFIX}{ended.pid}-a"
    in_use = tmp_path / f"{PREFIX}{os.getppid()}-b"
    abandoned.mkdir()
    in_use.mkdir()

    share_metrics()

    shared_folder = Path(os.environ[SHARED_FOLDER])
    assert {*tmp_path.iterdir()} == {in_use, shared_folder}
