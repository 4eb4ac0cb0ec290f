"""Ctrl-C while the command is being loaded, in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from fairqr.cli.interrupts import INTERRUPTED
from tests.patience import PATIENCE

LOADING = """
import threading
from fairqr.cli.interrupts import ends_at_once

with ends_at_once():
    print("loading", flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        raise ImportError("half a module")  # as an extension may do
"""
IGNORED = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)"


def interrupted(program: str) -> subprocess.Popen[str]:
    """Start a program, and send it Ctrl-C once it says that it is loading."""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "loading\n"
    process.send_signal(signal.SIGINT)
    return process


@pytest.mark.promise("command")
def test_ctrl_c_while_loading_is_a_word() -> None:
    """Ctrl-C ends a command with a word and code 130, also while it is still being loaded."""
    process = interrupted(LOADING)
    _, stderr = process.communicate(timeout=PATIENCE)

    assert stderr == "fairqr: interrupted\n"
    assert process.returncode == INTERRUPTED


def test_ctrl_c_that_is_ignored_stays_so() -> None:
    process = interrupted(f"{IGNORED}\n{LOADING}")
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=PATIENCE)

    assert stderr == ""
    assert process.returncode == -signal.SIGTERM
