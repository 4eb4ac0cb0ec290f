"""Stores of runs for the tests, in SQLite and in PostgreSQL, and what they are filled with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from fairqr.graph.service.configuration import Traffic
from fairqr.graph.service.records import Kind, Run
from fairqr.graph.service.runs.manager import STEPLESS, Runs
from fairqr.graph.service.store import Store
from fairqr.graph.service.store.store import Queued

PLENTY = Traffic(queue=1000, live=1000)


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
    async with Store.opened(store_url) as opened:
        yield opened


async def started(store: Store, id_: str) -> Run:
    """Begin the next attempt at a run."""
    attempt = await store.claim(id_)
    assert attempt is not None
    return attempt


async def accept(store: Store, key: str, kind: Kind, **given: Any) -> Run:
    """Accept a run that nobody does."""

    async def enqueue(connection: AsyncConnection, run: Queued) -> None: ...

    values = {"traffic": PLENTY, "query": "leader", "request": {}, "carrier": {}, **given}
    return await store.accept(enqueue, key=key, kind=kind, **values)


async def accepted(store: Store, key: str = "k", kind: Kind = "search", **traffic: int) -> str:
    """Accept a run, and return its id."""
    return (await accept(store, key, kind, traffic=PLENTY.model_copy(update=traffic))).id


def done(run: Run, result: dict[str, Any]) -> Run:
    """Return a run that has just come to its result."""
    return run.model_copy(update={"status": "done", "result": result})


async def over(runs: Runs, store: Store, run: Run, key: str = "k") -> Run:
    """Follow a run to its end, and return it; it may go on elsewhere."""
    async for _ in runs.events(run, key, STEPLESS):
        pass
    return await store.run(run.id, key)
