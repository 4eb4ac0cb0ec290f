"""The disk of the database fills up: `/readyz` says so, and what is under way outlives it."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.integration.model_server import Asked, ModelServer, says, write_people
from tests.integration.page_service import run_command, served, settings_for
from tests.integration.postgres_server import NOBODY
from tests.integration.service_client import PHYSICIST, events_of, until
from tests.patience import PATIENCE


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
    """The URL of an empty database on that disk."""
    if request.param == "sqlite":
        yield f"sqlite:///{small_disk}/runs.sqlite"
        return
    if "FAIRQR_TEST_POSTGRES_URL" in os.environ:
        pytest.skip("the disk of that PostgreSQL is not ours")
    server, name = request.getfixturevalue("postgres_server"), small_disk.name
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE TABLESPACE {name} LOCATION '{small_disk}'")
        connection.execute(f"CREATE DATABASE {name} TABLESPACE {name}")
        yield f"{server}/{name}"
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
        connection.execute(f"DROP TABLESPACE {name}")


def test_a_full_disk_is_told_and_a_run_under_way_ends_once_there_is_space(
    tmp_path: Path, model_server: ModelServer, database: str, small_disk: Path
) -> None:
    gate = threading.Event()

    def held(asked: Asked) -> Any:
        gate.wait(PATIENCE)
        return says({"topic": ["physicist"], "keywords": ["asia"]})

    model_server.does(held)
    variables = settings_for(model_server, tmp_path, f'database = "{database}"')
    run_command(variables, "index", "create", "people", write_people(tmp_path / "people"))
    with served(variables) as url, httpx.Client(base_url=url, trust_env=False) as client:

        def can_write() -> bool:
            found = client.get("/readyz", timeout=PATIENCE)
            reached: bool = found.json()["reached"]["store"]
            assert found.status_code == (200 if reached else 503)
            return reached

        until(can_write)
        asked = {"kind": "search", "request": PHYSICIST}
        place = client.post("/v1/runs", json=asked).headers["Location"]
        model_server.wait_for(1)
        ballast = small_disk / "ballast"
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(65536))
        until(lambda: not can_write())
        gate.set()
        assert client.get("/healthz").status_code == 200
        ballast.unlink()
        until(can_write)
        with client.stream("GET", f"{place}/events", timeout=PATIENCE) as told:
            events = [(number, name) for number, name, _ in events_of(told) if name]
        assert [number for number, _ in events] == [*range(1, len(events) + 1)]
        assert events[-1][1] == "end"
        assert client.get(place).json()["attempts"] == 1
