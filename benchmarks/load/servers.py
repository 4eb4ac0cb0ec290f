"""The real servers that a load test starts, steers and kills, each by its own process id."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, BinaryIO

from tests.integration import elasticsearch_server as es
from tests.integration.java_server import configure, install, running, wait_for
from tests.ports import free_port

READY_SECONDS = 240
ROOT = Path(__file__).parents[2]

local = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opens addresses on loopback, past any proxy."""


class Process:
    """A process that is started, killed and started again at the same port.

    Args:
        output: The file for all that it prints; it is appended to.
    """

    def __init__(self, output: Path) -> None:
        self.port = free_port()
        self.output = output
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._child is not None
        return self._child.pid

    def run(self, command: list[str], environment: Mapping[str, str]) -> None:
        """Start it."""
        with self.output.open("ab") as output:
            self._child = _popen(command, environment, output)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._child is not None
        self._child.send_signal(number)

    def ended(self, seconds: float) -> int:
        """Wait until it has ended and return its exit code.

        Raises:
            subprocess.TimeoutExpired: It is still there after so many seconds.
        """
        assert self._child is not None
        return self._child.wait(seconds)

    def kill(self) -> None:
        """End it at once, as ``kill -9`` does."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def said(self) -> str:
        """Return all that it has printed."""
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def wait_until(self, path: str, status: int = 200) -> None:
        """Wait until the process answers a path with a status."""
        end = time.monotonic() + READY_SECONDS
        last: object = "nothing"
        while time.monotonic() < end:
            assert self._child is not None
            if self._child.poll() is not None:
                break
            try:
                with local.open(self.url + path, timeout=5) as answer:
                    if answer.status == status:
                        return
                    last = answer.status
            except urllib.error.HTTPError as error:
                if error.code == status:
                    return
                last = f"{error.code} {error.read()[:300]!r}"
            except OSError as error:
                last = error
            time.sleep(0.05)
        raise RuntimeError(f"{self.url}{path} did not answer: {last}\n{self.said()[-3000:]}")


def _popen(
    command: list[str], environment: Mapping[str, str], output: BinaryIO
) -> subprocess.Popen[bytes]:
    # It ends with this process, however that ends.
    bound = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    return subprocess.Popen(
        [*bound, *command],
        env=dict(environment),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
    )


class Model(Process):
    """The server of :mod:`benchmarks.load.model`, in a process of its own.

    Args:
        folder: For its log and its output.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "model.txt")
        self.log = folder / "asked.txt"

    def start(self, delay: float = 0.0) -> None:
        """Start it; it then answers after so many seconds."""
        command = [sys.executable, "-m", "benchmarks.load.model"]
        self.run([*command, str(self.port), str(self.log)], os.environ)
        self.wait_until("/")
        self.steer(delay=delay)

    def steer(self, **how: Any) -> None:
        """Tell it how to answer: ``delay`` in seconds, ``failures`` as shares by kind."""
        asked = urllib.request.Request(f"{self.url}/control", json.dumps(how).encode())
        with local.open(asked, timeout=10):
            pass


class Worker(Process):
    """A process of ``fairqr serve``.

    Args:
        name: Of its own cache and output.
        folder: For them.
        environment: Of the command.
        arguments: More of the command.
    """

    def __init__(
        self, name: str, folder: Path, environment: Mapping[str, str], *arguments: str
    ) -> None:
        super().__init__(folder / f"{name}.txt")
        self.name = name
        self._arguments = arguments
        # A cache of replies that workers shared would hide a question that is asked twice.
        self._environment = {**environment, "FAIRQR_CACHE_DIR": str(folder / name)}

    def start(self, ahead: int = 0) -> None:
        """Start it, and wait until it is ready.

        Args:
            ahead: Seconds that its clock is ahead of the others'.
        """
        command = [str(Path(sys.executable).with_name("fairqr")), "serve", "--port", str(self.port)]
        command += self._arguments
        environment = dict(self._environment)
        if ahead:
            environment["LD_PRELOAD"] = str(wrong_clock())
            environment["FAKETIME"] = f"+{ahead}s"
            environment["FAKETIME_DONT_FAKE_MONOTONIC"] = "1"
        self.run(command, environment)
        self.wait_until("/readyz")


def wrong_clock() -> Path | None:
    """Return the library that gives a process another time, if this machine has it."""
    return next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)


class Elasticsearch:
    """A real Elasticsearch that keeps its documents when it is killed and started again."""

    def __init__(self) -> None:
        self._home = install(es.PACKAGE, es.unpack)
        self._place = Path(tempfile.mkdtemp(prefix="fairqr-elasticsearch-"))
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        """Where it listens."""
        configure(self._home, self._place, es.settings_of(port), "elasticsearch.yml")
        self._running = ExitStack()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with suppress(FileNotFoundError):
            self._pid_file.unlink()
        program = self._home / "bin" / "elasticsearch"
        environment = es.environment_of(self._home, self._place)
        process = self._running.enter_context(running(program, self._place, environment))
        wait_for(self.url, process, self._place)

    @property
    def _pid_file(self) -> Path:
        return self._place / "data" / "server.pid"

    def kill(self) -> None:
        """End it at once, as ``kill -9`` does."""
        os.kill(int(self._pid_file.read_text()), signal.SIGKILL)
        self._running.close()

    def close(self) -> None:
        """End it, and remove what it wrote."""
        self._running.close()
        shutil.rmtree(self._place, ignore_errors=True)
