"""The command without what only POSIX has, and a search without what only evaluations need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE

SCRIPT = """
import os, sys

posix, extras = ("fcntl", "grp", "pwd", "resource", "termios"), ("matplotlib", "pandas", "scipy")
for name in (*posix, *(extras if "search" in sys.argv else ())):
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
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=os.environ
        | {"FAIRQR_CONFIG": os.devnull}
        | {f"FAIRQR_{name}_DIR": str(folder / name) for name in ("DATA", "CACHE")},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_module_needs_posix(tmp_path: Path) -> None:
    run(tmp_path, "import everything")


def test_indexes_and_searches(tmp_path: Path) -> None:
    search = ["--method", "mmr", "--retriever", "bm25", "--json", "--attribute", "gender"]
    assert '"ranking"' in run(tmp_path, "search", "astronomer", "--corpus", "notables", *search)
