"""The command without what only POSIX has, and a search without what only evaluations need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE

SCRIPT = """
import os, sys

absent = ["fcntl", "grp", "pwd", "resource", "termios"]
if "search" in sys.argv:
    absent += ["matplotlib", "pandas", "scipy"]
for name in absent:
    sys.modules[name] = None
del os.O_CLOEXEC, os.sched_getaffinity
os.process_cpu_count = os.cpu_count

import importlib, pkgutil
import fairqr

if sys.argv[1:] == ["import everything"]:
    for module in pkgutil.walk_packages(fairqr.__path__, "fairqr."):
        if module.name not in ("fairqr.__main__", "fairqr.graph.studio"):
            importlib.import_module(module.name)
else:
    from fairqr.cli.main import main
    main()
"""


def run(folder: Path, *arguments: str) -> str:
    environment = {
        **os.environ,
        "FAIRQR_CONFIG": os.devnull,
        "FAIRQR_DATA_DIR": str(folder / "DATA"),
        "FAIRQR_CACHE_DIR": str(folder / "CACHE"),
    }
    command = [sys.executable, "-c", SCRIPT, *arguments]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, env=environment
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.promise("command")
def test_no_module_needs_posix(tmp_path: Path) -> None:
    """Nothing that is imported needs what only POSIX has, so the command and the library also run
    on Windows.
    """
    run(tmp_path, "import everything")


def test_a_search_needs_nothing_that_only_evaluations_need(tmp_path: Path) -> None:
    search = ["--method", "mmr", "--retriever", "bm25", "--json", "--attribute", "gender"]
    assert '"ranking"' in run(tmp_path, "search", "astronomer", "--corpus", "notables", *search)
