"""Servers that refuse to run as root, who starts them as ``nobody``, and how tests reach them.

Environment:
    FAIRQR_SKIP_ELASTICSEARCH, FAIRQR_SKIP_OPENSEARCH: ``1`` skips, visibly, every test that needs
        the server.
    FAIRQR_TEST_ELASTICSEARCH_URL, FAIRQR_TEST_OPENSEARCH_URL, FAIRQR_TEST_POSTGRES_URL: a running
        server, used instead of starting one; the search servers are without security, and
        PostgreSQL's URL has a user who may create databases.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import psycopg
import pytest

from tests.patience import until
from tests.shared_servers import shared

NOBODY = 65534
STOP_SECONDS = 60


@contextmanager
def new_folder(name: str) -> Iterator[Path]:
    """Make a folder for a server; pytest's own temporary folders are closed to nobody."""
    with TemporaryDirectory(prefix=f"fairqr-{name}-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def as_nobody() -> list[str]:
    """Return the start of a command that runs its rest without root's rights."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]


def run_program(*command: str, stdin: str | None = None, **how: Any) -> None:
    """Run a program to its end; fail with what it said."""
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=280, check=False, **how
    )
    if done.returncode:
        pytest.fail(f"{command[0]} failed with {done.returncode}: {done.stderr[-2000:]}")


def start(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    signal_name: str,
    answers: Callable[[], object],
) -> subprocess.Popen[bytes]:
    """Start a server, and return it once it answers; fail with the end of its log.

    Args:
        command: What runs it.
        folder: Its own.
        environment: Its variables.
        signal_name: What ends it, also when pytest ends, even by SIGKILL.
        answers: Raises an error of a client until the server is there.
    """
    to_the_end = ["setpriv", "--pdeathsig", signal_name] if shutil.which("setpriv") else []
    log = folder / "output.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*as_nobody(), *to_the_end, *command],
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C reaches pytest alone, which then ends the server itself.
            start_new_session=True,
        )

    def ready() -> bool:
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        with suppress(httpx.HTTPError, psycopg.OperationalError):
            answers()
            return True
        return False

    try:
        until(ready)
    except BaseException:
        end(process)
        raise
    return process


def end(process: subprocess.Popen[bytes], how: signal.Signals = signal.SIGTERM) -> None:
    """End a server, with all its children; nothing happens where it has ended."""
    if process.poll() is not None:
        return
    process.send_signal(how)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(STOP_SECONDS)


def skip_if_asked(kind: str) -> None:
    """Skip tests of a server that nobody wants to start."""
    if os.environ.get(f"FAIRQR_SKIP_{kind}") == "1":
        pytest.skip(f"FAIRQR_SKIP_{kind}=1: tests against a real one are skipped")
    needed = () if kind == "POSTGRES" else ("npm", "openssl")
    missing = [name for name in needed if shutil.which(name) is None]
    if missing and not os.environ.get(f"FAIRQR_TEST_{kind}_URL"):
        pytest.skip(f"install {' and '.join(missing)}, or name a server by FAIRQR_TEST_{kind}_URL")


@contextmanager
def reached(kind: str, run: Callable[[], AbstractContextManager[Any]]) -> Iterator[dict[str, str]]:
    """Reach the server that is named, or run one."""
    skip_if_asked(kind)
    if named := os.environ.get(f"FAIRQR_TEST_{kind}_URL"):
        yield {"url": named.rstrip("/")}
    else:
        with run() as server:
            yield {"url": server.url}


def url_of_shared(
    kind: str, name: str, run: Callable[[], AbstractContextManager[dict[str, str]]]
) -> Any:
    """Return a fixture: the URL of a server that all workers share."""

    @pytest.fixture(scope="session")
    def url(pytestconfig: pytest.Config) -> Iterator[str]:
        skip_if_asked(kind)
        with shared(pytestconfig, name, run) as found:
            yield found["url"]

    return url
