"""The real servers that a load test starts, steers and kills, each by its own process id."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from tests.ports import free_port

READY_SECONDS = 240
ROOT = Path(__file__).parents[2]


class Process:
    """A process that is started, killed and started again at the same port.

    Args:
        output: The file for all that it prints; it is appended to.
        environment: The environment variables of each start.
    """

    child: subprocess.Popen[bytes]

    def __init__(self, output: Path, environment: Mapping[str, str]) -> None:
        self.port = free_port()
        self.output = output
        self.environment = environment

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def run(self, *command: str, ready: str, **environment: str) -> None:
        """Start it, and wait until it answers a path."""
        prefix = []
        if shutil.which("setpriv"):
            # It ends with this process, however that ends.
            prefix = ["setpriv", "--pdeathsig", "KILL"]
        with self.output.open("ab") as output:
            self.child = subprocess.Popen(
                [*prefix, *command],
                env={**self.environment, **environment},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.wait_until(ready)

    def kill(self) -> None:
        """End it at once, as ``kill -9`` does."""
        if hasattr(self, "child"):
            self.child.kill()
            self.child.wait()

    def printed(self) -> str:
        """Return all that it has printed."""
        if not self.output.exists():
            return ""
        return self.output.read_text(errors="replace")

    def wait_until(self, path: str, status: int = 200) -> None:
        """Wait until the process answers a path with a status.

        Raises:
            RuntimeError: It ends, or does not answer within four minutes.
        """
        end = time.monotonic() + READY_SECONDS
        last = "nothing"
        while time.monotonic() < end and self.child.poll() is None:
            with suppress(httpx.TransportError):
                answer = httpx.get(self.url + path, timeout=5, trust_env=False)
                if answer.status_code == status:
                    return
                last = f"{answer.status_code} {answer.text[:300]}"
            time.sleep(0.05)
        raise RuntimeError(f"{self.url}{path} did not answer: {last}\n{self.printed()[-3000:]}")


class Model(Process):
    """The server of :mod:`benchmarks.load.model`, in a process of its own.

    Args:
        folder: The folder for its log and its output.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "model.txt", os.environ)
        self.log = folder / "asked.txt"

    def start(self, delay: float = 0.0) -> None:
        """Start it, to answer each request after a delay in seconds."""
        command = (sys.executable, "-m", "benchmarks.load.model", str(self.port), str(self.log))
        self.run(*command, ready="/")
        self.steer(delay=delay)

    def steer(self, **changes: Any) -> None:
        """Tell it how to answer: ``delay`` in seconds, ``failures`` as shares by kind."""
        answer = httpx.post(f"{self.url}/control", json=changes, trust_env=False)
        answer.raise_for_status()


class Worker(Process):
    """A process of ``fairqr serve``.

    Args:
        name: The name of its own cache and output.
        folder: The folder for them.
        environment: The environment variables of the command.
        arguments: Further arguments of the command.
    """

    def __init__(
        self, name: str, folder: Path, environment: Mapping[str, str], *arguments: str
    ) -> None:
        # A cache of replies that workers shared would hide a question that is asked twice.
        variables = {**environment, "FAIRQR_CACHE_DIR": str(folder / name)}
        super().__init__(folder / f"{name}.txt", variables)
        self.name = name
        self._arguments = arguments

    def start(self, ahead: int = 0) -> None:
        """Start it, and wait until it is ready.

        Args:
            ahead: By how many seconds its clock is ahead of the others.
        """
        clock = {}
        if ahead:
            clock = {
                "LD_PRELOAD": str(wrong_clock()),
                "FAKETIME": f"+{ahead}s",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
        program = str(Path(sys.executable).with_name("fairqr"))
        command = (program, "serve", "--port", str(self.port), *self._arguments)
        self.run(*command, ready="/readyz", **clock)


def wrong_clock() -> Path | None:
    """Return the library that gives a process another time, if this machine has it."""
    return next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
