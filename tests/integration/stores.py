"""Stores of runs for the tests, in SQLite and in PostgreSQL, and what they are filled with."""

from __future__ import annotations

import asyncio
import signal
import time
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from fairqr.base.errors import StoreUnavailableError
from fairqr.graph.service.records import Claim, Run
from fairqr.graph.service.store import Store
from fairqr.graph.service.store.tables import RUNS
from tests.patience import PATIENCE

PLENTY = {"queue": 1000, "live": 1000}


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/runs.sqlite"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    """A store with nothing in it."""
    opened = await Store.open(store_url)
    yield opened
    await opened.close()


def a_run(**given: Any) -> Run:
    values: dict[str, Any] = {
        "id": uuid.uuid4().hex,
        "kind": "search",
        "status": "queued",
        "query": "religious leader",
        "created": time.time(),
        "request": {"query": "religious leader"},
    }
    return Run(**{**values, **given})


async def accepted(store: Store, key: str = "k", **given: Any) -> str:
    """Put a run into the queue, and return its id."""
    run = a_run(**given)
    await store.accept(run, key, carrier={}, **PLENTY)
    return run.id


async def lost(store: Store, worker: str) -> None:
    """Let a worker be silent until all of its leases have run out.

    One that is frozen within a transaction holds its run until PostgreSQL ends that, after 20 s.
    """
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await store.renew(worker, -60)
            except StoreUnavailableError:
                continue
            return


async def claimed(store: Store, worker: str) -> Claim:
    """Claim the next run; wait where a server has just started, or still holds a dead claim."""
    async with asyncio.timeout(PATIENCE):
        while (claim := await store.claim(worker, 60)) is None:
            await asyncio.sleep(0.1)
    return claim


def freeze(send: Callable[[signal.Signals], None], url: str) -> None:
    """Freeze a worker on PostgreSQL outside of any transaction, whose locks would stay."""
    busy = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND backend_type = 'client backend' AND pid <> pg_backend_pid() AND state <> 'idle'"
    )
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(100):
            send(signal.SIGSTOP)
            time.sleep(0.2)  # what it sent before is being done
            if connection.execute(busy).fetchone() == (0,):
                return
            send(signal.SIGCONT)
            time.sleep(0.1)
    raise AssertionError("it was in a transaction each time")


def lose(url: str, run: str) -> None:
    """Let the worker of a run, which is dead or frozen, be silent until its leases have run out."""

    async def work() -> None:
        store = await Store.open(url)
        try:
            of_run = sa.select(RUNS.c.worker).where(RUNS.c.id == run)
            worker = await store._database.read(lambda it: it.scalar(of_run))
            assert worker, "nobody does the run"
            await lost(store, worker)
        finally:
            await store.close()

    asyncio.run(work())
