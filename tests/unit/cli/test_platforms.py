"""The command without what only POSIX has, and a search without what only evaluations need."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE

SCRIPT = """
import asyncio, os, sys

posix, extras = ("fcntl", "grp", "pwd", "resource", "termios"), ("matplotlib", "pandas", "scipy")
for name in (*posix, *(extras if "search" in sys.argv else ())):
    sys.modules[name] = None
del os.O_CLOEXEC, os.sched_getaffinity

def add_signal_handler(*_):
    raise NotImplementedError

asyncio.SelectorEventLoop.add_signal_handler = add_signal_handler

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


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ
        | {"FAIRQR_CONFIG": os.devnull, "PYTHONUNBUFFERED": "1"}
        | {f"FAIRQR_{name}_DIR": str(folder / name) for name in ("DATA", "CACHE")},
    )


def test_no_module_needs_posix(tmp_path: Path) -> None:
    child = start(tmp_path, "import everything")
    _, errors = child.communicate(timeout=PATIENCE)
    assert child.returncode == 0, errors


def test_indexes_and_searches(tmp_path: Path) -> None:
    search = ["--method", "mmr", "--retriever", "bm25", "--json", "--attribute", "gender"]
    child = start(tmp_path, "search", "astronomer", "--corpus", "notables", *search)
    shown, errors = child.communicate(timeout=PATIENCE)
    assert child.returncode == 0, errors
    assert '"ranking"' in shown


def test_serves_until_it_is_told_to_end(tmp_path: Path) -> None:
    options = ["--port", "0", "--corpus", "notables", "--model", "feedback"]
    child = start(tmp_path, "serve", *options)
    assert child.stdout is not None
    said = ""
    while "http://127.0.0.1:" not in said and (line := child.stdout.readline()):
        said += line
    child.send_signal(signal.SIGTERM)
    _, errors = child.communicate(timeout=PATIENCE)
    assert "http://127.0.0.1:" in said, errors
    assert child.returncode == 0, errors
