"""``fairqr`` in processes that begin where its modules are imported.

Python's fork server imports them once for all tests of a worker. What is forked from it has its own
environment, folder, output and end, as if a shell had started it; what a start itself needs is
proved by the tests that use ``command``, and by the image of the service.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from fairqr.cli.main import main

ROOT = str(Path(__file__).parents[2])

_FORKING: Any = multiprocessing.get_context("forkserver")
_SERVICE = "fairqr.graph.service"
_FORKING.set_forkserver_preload(
    ["pytest", "fairqr.cli.service", f"{_SERVICE}.http.app", f"{_SERVICE}.proxy.app"]
)


class ForkedCommand:
    """Runs ``fairqr`` with these arguments, in the folder of the test; used as a ``Popen`` is.

    Attributes:
        pid: Of its process.
        stdout: What it prints, errors too where they have no file of their own.
    """

    def __init__(
        self, arguments: list[str], variables: dict[str, str], errors: Path | None = None
    ) -> None:
        reading, writing = _FORKING.Pipe(duplex=False)
        with reading, writing:
            ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
            given = (arguments, variables, os.getcwd(), ignored, writing, errors)
            # A run of tests that ends before it does not wait for it.
            self._process = _FORKING.Process(target=_run, args=given, daemon=True)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(sys, "path", [*sys.path, ROOT])  # where it finds this file
                self._process.start()
            self.stdout = os.fdopen(os.dup(reading.fileno()), "rb")
        self.pid: int = self._process.pid

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        if self._process.exitcode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it in the middle of whatever it does."""
        self.send_signal(signal.SIGKILL)

    def wait(self, seconds: float | None = None) -> int:
        """Wait for its end; return its code, below 0 if a signal ended it."""
        self._process.join(seconds)
        code: int | None = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("fairqr", seconds or 0.0)
        return code


def _run(
    arguments: list[str],
    variables: dict[str, str],
    folder: str,
    ignored: bool,
    output: Connection,
    errors: Path | None,
) -> None:
    if ignored:  # a shell does this for what runs in the background
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    with output, errors.open("ab") if errors else nullcontext(output) as log:
        os.dup2(output.fileno(), 1)
        os.dup2(log.fileno(), 2)
    sys.stdout, sys.stderr = (os.fdopen(it, "w", buffering=1, closefd=False) for it in (1, 2))
    sys.path.remove(ROOT)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv[:] = ["fairqr", *arguments]
    main()
