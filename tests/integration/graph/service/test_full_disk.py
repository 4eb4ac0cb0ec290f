"""The disk of the database fills up: `/readyz` says so, and what is under way outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from tests.patience import until
from tests.servers.model_server import ModelServer, says, write_people
from tests.servers.page_service import run_command, running, settings_for
from tests.servers.postgres_server import running_postgres
from tests.servers.service_client import PHYSICIST
from tests.servers.unprivileged import NOBODY, skip_if_asked


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A disk of its own."""
    folder = Path(tempfile.mkdtemp(prefix="fairqr_disk_"))
    mounting = ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(folder)]
    mounted = os.geteuid() == 0 and not subprocess.run(mounting, check=False).returncode
    try:
        if not mounted:
            pytest.skip("mounting a disk takes root")
        os.chown(folder, NOBODY, NOBODY)  # as PostgreSQL
        yield folder
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
        folder.rmdir()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, small_disk: Path) -> Iterator[str]:
    """The URL of an empty database on that disk.

    PostgreSQL is a server of its own: while the disk is full, none of its checkpoints ends, and so
    no database that is made or dropped beside it.
    """
    if request.param == "sqlite":
        yield f"sqlite:///{small_disk}/runs.sqlite"
        return
    skip_if_asked("POSTGRES")
    name = small_disk.name
    with running_postgres() as server:
        with psycopg.connect(f"{server.url}/postgres", autocommit=True) as connection:
            connection.execute(f"CREATE TABLESPACE {name} LOCATION '{small_disk}'")
            connection.execute(f"CREATE DATABASE {name} TABLESPACE {name}")
        yield f"{server.url}/{name}"


def test_a_full_disk_is_told_and_a_run_under_way_ends_once_there_is_space(
    tmp_path: Path, model_server: ModelServer, database: str, small_disk: Path
) -> None:
    gate = threading.Event()
    model_server.does(says({"topic": ["physicist"], "keywords": ["asia"]}, gate=gate))
    variables = settings_for(model_server, tmp_path, f'database = "{database}"')
    run_command(variables, "index", "create", "people", write_people(tmp_path / "people"))
    with running(variables) as service:
        client = service.client

        def can_write() -> bool:
            found = client.get("/readyz")
            reached: bool = found.json()["reached"]["store"]
            assert found.status_code == (200 if reached else 503)
            return reached

        until(can_write)
        place = client.in_background(PHYSICIST)
        model_server.wait_for(1)
        ballast = small_disk / "ballast"
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(65536))
        until(lambda: not can_write())
        if database.startswith("sqlite"):  # PostgreSQL still has room for a row
            refused = client.post("/v1/runs", json={"kind": "search", "request": PHYSICIST})
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        gate.set()
        assert client.get("/healthz").status_code == 200
        ballast.unlink()
        until(can_write)
        assert client.events(place)[-1][0] == "end"
        assert client.get(place).json()["attempts"] == 1
        service.send(signal.SIGTERM)
        service.ends()
        assert service.said.count(b"The database of runs:") < 10
