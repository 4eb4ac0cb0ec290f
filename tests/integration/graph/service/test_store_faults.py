"""What the store of runs survives: crowds, crashes, servers that go away, and older versions."""

from __future__ import annotations

import asyncio
import os
import random
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from fairqr.base.errors import ConfigError, StoreUnavailableError
from fairqr.graph.service.records import Event
from fairqr.graph.service.runs.doing import done
from fairqr.graph.service.store import Store
from fairqr.graph.service.store.tables import LAYOUT
from tests.integration.graph.service.test_store import make_old
from tests.integration.postgres_server import PASSWORD, PostgresServer, running_postgres
from tests.integration.stores import accepted, begun
from tests.patience import PATIENCE

HOSTILE = "\0 \ud800 \ufdd0 \N{SNOWMAN}"

CRASHING = """
import asyncio, sys, time
import sqlalchemy as sa
from fairqr.graph.service.store import Store

async def work(url):
    store = await Store.open(url)
    async with store.database.begin() as connection:
        await connection.execute(sa.text("UPDATE runs SET status = 'done', query = '\\"gone\\"'"))
        print("halfway", flush=True)
        time.sleep(600)

asyncio.run(work(sys.argv[1]))
"""


def process(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


async def scalar(store: Store, statement: str) -> Any:
    async with store.database.begin() as connection:
        return await connection.scalar(sa.text(statement))


async def rows(store: Store) -> dict[str, int]:
    """Return how many rows each table has."""
    names = ("runs", "events", "replies")
    return {name: await scalar(store, f"SELECT count(*) FROM {name}") for name in names}


async def test_a_process_that_is_killed_in_a_transaction_leaves_what_was_before(
    store_url: str,
) -> None:
    store = await Store.open(store_url)
    run = await accepted(store)
    await store.close()
    crashing = process(CRASHING, store_url)
    assert crashing.stdout is not None
    assert await asyncio.to_thread(crashing.stdout.readline) == "halfway\n"
    crashing.kill()
    crashing.wait()
    store = await Store.open(store_url)
    kept = await store.run(run, "k")
    assert (kept.status, kept.query) == ("queued", "leader")
    await begun(store, run)  # nothing stays locked
    if store_url.startswith("sqlite"):
        assert await scalar(store, "PRAGMA integrity_check") == "ok"
    await store.close()


# --- versions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [3, 99])
async def test_a_database_of_another_version_is_refused(store_url: str, version: int) -> None:
    if version == 3:  # before 1.0
        await make_old(store_url, version)
    else:
        store = await Store.open(store_url)
        async with store.database.begin() as connection:
            await connection.execute(LAYOUT.update().values(version=version))
        await store.close()
    with pytest.raises(StoreUnavailableError, match=rf"version {version}.*name another database"):
        await Store.open(store_url)


async def test_processes_that_start_at_once_make_the_tables_once(store_url: str) -> None:
    stores = await asyncio.gather(*(Store.open(store_url) for _ in range(6)))
    for number, store in enumerate(stores):
        await accepted(store, key=str(number))
    assert await stores[0].counts() == {"queued": 6}
    assert await scalar(stores[0], "SELECT count(*) FROM layout") == 1
    for store in stores:
        await store.close()


async def one_run(store: Store, number: int = 1) -> None:
    run = await begun(store, await accepted(store))
    event = Event(number=number, name="step", data={"step": HOSTILE})
    assert await store.add(run, [event], {f"a:{number}": {"text": HOSTILE}})
    assert await store.finish(done(run, {}))


async def test_nothing_grows(store: Store) -> None:
    """After 200 runs with events and replies, and their time of retention, nothing is left."""
    for _ in range(50):
        await asyncio.gather(*(one_run(store) for _ in range(4)))
    assert await rows(store) == {"runs": 200, "events": 200, "replies": 0}
    live = await accepted(store)
    assert await store.forget(60) == 0
    assert await store.forget(-60) == 200
    assert [run.id for run in await store.runs("k")] == [live]
    assert await rows(store) == {"runs": 1, "events": 0, "replies": 0}


async def test_work_that_is_cancelled_leaves_nothing_locked(store: Store) -> None:
    """Each is cancelled at another moment, also between a statement and its commit."""
    draw = random.Random(1)
    tasks = [asyncio.create_task(one_run(store, number)) for number in range(60)]
    for task in tasks:
        await asyncio.sleep(draw.random() * 0.01)
        task.cancel()
    await asyncio.wait(tasks)
    for number in range(100, 110):
        async with asyncio.timeout(PATIENCE):
            await one_run(store, number)


# --- servers and files ------------------------------------------------------------------------


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    with running_postgres() as server:
        yield server


async def test_who_asks_while_the_server_is_away_is_told_so_at_once(
    own_server: PostgresServer,
) -> None:
    store = await Store.open(f"{own_server.url}/postgres")
    run = await begun(store, await accepted(store))
    own_server.kill()
    for asked in (store.check(), accepted(store), store.runs("k"), store.finish(done(run, {}))):
        with pytest.raises(StoreUnavailableError) as refused:
            await asyncio.wait_for(asked, PATIENCE)
        assert PASSWORD not in str(refused.value)
        assert str(own_server.port) not in str(refused.value)
    await asyncio.to_thread(own_server.start)
    await store.check()
    assert await store.finish(done(run, {}))
    await store.close()


async def test_a_server_that_refuses_is_named_without_the_password(postgres_url: str) -> None:
    wrong = postgres_url.replace("p%40ss", "s3cret-p%40ss")
    for url in (wrong, f"{postgres_url}_not"):
        with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1:\d+/fairqr_") as refused:
            await Store.open(url)
        assert "s3cret" not in str(refused.value)


async def test_who_may_not_make_schemas_uses_the_one_that_is_there(postgres_url: str) -> None:
    role = "fairqr_" + postgres_url.rpartition("_")[2]
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
        connection.execute(f"CREATE SCHEMA fairqr AUTHORIZATION {role}")
        store = await Store.open(f"postgresql://{role}:x@{postgres_url.rpartition('@')[2]}")
        await accepted(store)
        assert await scalar(store, "SELECT current_user") == role
        await store.close()
        connection.execute(f"DROP OWNED BY {role}")
        connection.execute(f"DROP ROLE {role}")


async def test_the_file_is_nobody_elses(tmp_path: Path) -> None:
    file = tmp_path / "new folder" / "runs ?#%41.sqlite"
    store = await Store.open(f"sqlite:///{file}")
    await accepted(store)
    rights = {path.name: stat.S_IMODE(os.stat(path).st_mode) for path in file.parent.iterdir()}
    assert len(rights) == 3  # the log of what was written, and its index, stand beside it
    assert set(rights.values()) == {0o600}
    await store.close()


async def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("no database " * 100)
    with pytest.raises(StoreUnavailableError, match=r"notes\.txt cannot be used: file is not a"):
        await Store.open(f"sqlite:///{text}")
    assert text.read_text() == "no database " * 100
    with pytest.raises(ConfigError, match="cannot be kept in"):
        await Store.open(f"sqlite:///{text}/runs.sqlite")
