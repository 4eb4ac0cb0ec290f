"""What the store of runs survives: crowds, crashes, servers that go away, and older versions."""

from __future__ import annotations

import asyncio
import os
import random
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from fairqr.base.errors import ConfigError, StoreUnavailableError
from fairqr.graph.service.records import Claim, Event
from fairqr.graph.service.store import Store
from fairqr.graph.service.store.migrations import MIGRATIONS
from tests.integration.postgres_server import PASSWORD, PostgresServer, running_postgres
from tests.integration.stores import accepted, claimed
from tests.patience import PATIENCE

HOSTILE = "\0 \ud800 \ufdd0 \N{SNOWMAN}"

WORKER = """
import asyncio, sys
from fairqr.graph.service.records import Event
from fairqr.graph.service.store import Store

async def work(url, worker):
    store = await Store.open(url)
    claimed = [await store.claim(worker, 60)]  # so that each does some
    print("ready", flush=True)
    sys.stdin.readline()
    async def one():
        while claim := claimed.pop() if claimed else await store.claim(worker, 60):
            event = Event(number=1, name="step", data={"worker": worker})
            assert await store.add(claim, [event])
            assert await store.finish(claim, "done", result={"worker": worker})
            print(claim.run.id, flush=True)
    await asyncio.gather(one(), one(), one())
    await store.close()

asyncio.run(work(*sys.argv[1:]))
"""

CRASHING = """
import asyncio, sys, time
import sqlalchemy as sa
from fairqr.graph.service.store import Store

async def work(url):
    store = await Store.open(url)
    def halfway(connection):
        connection.execute(sa.text("UPDATE runs SET status = 'done', query = '\\"gone\\"'"))
        print("halfway", flush=True)
        time.sleep(600)
    await store._database.write(halfway)

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
    def work(connection: sa.Connection) -> Any:
        return connection.execute(sa.text(statement)).scalar()

    return await store._database.read(work)


async def rows(store: Store) -> dict[str, int]:
    """Return how many rows each table has."""
    names = ("runs", "events", "replies")
    return {name: await scalar(store, f"SELECT count(*) FROM {name}") for name in names}


def test_two_processes_share_a_queue_and_each_run_is_done_once(store_url: str) -> None:
    async def fill() -> list[str]:
        store = await Store.open(store_url)
        ids = [await accepted(store) for _ in range(200)]
        await store.close()
        return ids

    async def look() -> list[Any]:
        store = await Store.open(store_url)
        found = [(await store.run(id_, "k"), await store.events(id_)) for id_ in ids]
        await store.close()
        return found

    ids = asyncio.run(fill())
    workers = {name: process(WORKER, store_url, name) for name in ("a", "b")}
    try:
        for worker in workers.values():
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        done: dict[str, list[str]] = {}
        for worker in workers.values():  # both begin before one is waited for
            assert worker.stdin is not None
            worker.stdin.write("\n")
            worker.stdin.flush()
        for name, worker in workers.items():
            done[name] = worker.communicate(timeout=PATIENCE)[0].split()
            assert worker.returncode == 0
    finally:
        for worker in workers.values():
            worker.kill()
    assert sorted(done["a"] + done["b"]) == sorted(ids)
    assert all(done.values())  # each did some
    for run, events in asyncio.run(look()):
        assert (run.status, run.attempts) == ("done", 1)
        assert run.result is not None
        assert run.id in done[run.result["worker"]]
        assert [event.data for event in events] == [run.result]


async def test_a_process_that_is_killed_in_a_transaction_leaves_what_was_before(
    store_url: str,
) -> None:
    store = await Store.open(store_url)
    run = await accepted(store, query="before")
    await store.close()
    crashing = process(CRASHING, store_url)
    assert crashing.stdout is not None
    assert await asyncio.to_thread(crashing.stdout.readline) == "halfway\n"
    crashing.kill()
    crashing.wait()
    store = await Store.open(store_url)
    kept = await store.run(run, "k")
    assert (kept.status, kept.query) == ("queued", "before")
    await claimed(store, "w")  # nothing stays locked
    if store_url.startswith("sqlite"):
        assert await scalar(store, "PRAGMA integrity_check") == "ok"
    await store.close()


# --- versions ---------------------------------------------------------------------------------


async def test_a_database_of_a_newer_version_is_refused(store_url: str) -> None:
    store = await Store.open(store_url)
    await store._database.write(
        lambda connection: connection.execute(sa.text("INSERT INTO migrations VALUES (99)"))
    )
    await store.close()
    with pytest.raises(StoreUnavailableError, match=r"version 99.*upgrade fairqr"):
        await Store.open(store_url)


async def test_workers_that_start_at_once_migrate_once(store_url: str) -> None:
    stores = await asyncio.gather(*(Store.open(store_url) for _ in range(6)))
    for number, store in enumerate(stores):
        await accepted(store, key=str(number))
    assert await stores[0].counts() == {"queued": 6}
    assert await scalar(stores[0], "SELECT count(*) FROM migrations") == len(MIGRATIONS)
    for store in stores:
        await store.close()


# --- what a run has done ----------------------------------------------------------------------


async def step(store: Store, claim: Claim, number: int = 1, text: str = "") -> bool:
    """Write a step and a reply of a run."""
    event = Event(number=number, name="step", data={"step": text}, private={"update": {text: text}})
    return await store.add(claim, [event], {f"a:{number}": {"text": text}})


async def test_a_run_goes_on_where_it_stopped_whatever_its_texts_are(store_url: str) -> None:
    store = await Store.open(store_url)
    run = await accepted(store)
    claim = await claimed(store, "w")
    assert await step(store, claim, text=HOSTILE)
    assert await store.add(claim, replies={"a:1": {"text": "another"}})  # left as it was
    another = claim.model_copy(update={"ticket": "another"})
    assert not await store.add(another, replies={"1": {"text": "not its own"}})
    await store.close()
    store = await Store.open(store_url)
    [event] = await store.events(run, private=True)
    assert event.private == {"update": {HOSTILE: HOSTILE}}
    assert await store.replies(run) == {"a:1": {"text": HOSTILE}}
    # What only resuming needs goes when the run is over.
    assert await store.finish(claim, "done", result={})
    assert await store.replies(run) == {}
    assert [event.private for event in await store.events(run, private=True)] == [None]
    assert not await store.add(claim, replies={"2": {"text": "too late"}})
    await store.close()


async def test_nothing_grows(store: Store) -> None:
    """After 200 runs with events and replies, and their time of retention, nothing is left."""

    async def one() -> None:
        await accepted(store)
        claim = await claimed(store, "w")
        assert await step(store, claim)
        assert await store.finish(claim, "done", result={})

    for _ in range(50):
        await asyncio.gather(*(one() for _ in range(4)))
    assert await rows(store) == {"runs": 200, "events": 200, "replies": 0}
    live = await accepted(store)
    assert await store.forget(60) == 0
    assert await store.forget(-60) == 200
    assert [run.id for run in await store.runs("k")] == [live]
    assert await rows(store) == {"runs": 1, "events": 0, "replies": 0}


async def test_work_that_is_cancelled_leaves_nothing_locked(store: Store) -> None:
    """Each is cancelled at another moment, also between a statement and its commit."""
    draw = random.Random(1)

    async def write(number: int) -> None:
        await accepted(store)
        if claim := await store.claim("w", 15):  # another task may have got the run
            await step(store, claim, number)

    tasks = [asyncio.create_task(write(number)) for number in range(60)]
    for task in tasks:
        await asyncio.sleep(draw.random() * 0.01)
        task.cancel()
    await asyncio.wait(tasks)
    for number in range(100, 110):
        begun = time.monotonic()
        await write(number)
        assert time.monotonic() - begun < 5  # SQLite would wait as long for a lock


# --- servers and files ------------------------------------------------------------------------


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    with running_postgres() as server:
        yield server


async def test_what_happened_in_a_run_outlives_a_server_that_is_away(
    own_server: PostgresServer,
) -> None:
    store = await Store.open(f"{own_server.url}/postgres")
    for _ in range(3):
        await accepted(store)
    ended, begun, answered = [await claimed(store, "w") for _ in range(3)]
    own_server.kill()
    started = time.monotonic()
    working = [
        asyncio.create_task(work)
        for work in (
            store.finish(ended, "done", result={"x": 1}),
            store.add(begun, [Event(number=1, name="step", data={})]),
            store.add(answered, replies={"1": {"text": "a reply"}}),
        )
    ]
    with pytest.raises(StoreUnavailableError) as refused:
        await store.check()
    assert time.monotonic() - started < 5
    with pytest.raises(StoreUnavailableError):
        await accepted(store)  # whoever asks is not kept waiting so long
    assert 4 < time.monotonic() - started < 30
    assert not [task for task in working if task.done()]
    assert PASSWORD not in str(refused.value)
    assert str(own_server.port) not in str(refused.value)
    await asyncio.to_thread(own_server.start)
    back = time.monotonic()
    finished, told, replied = await asyncio.gather(*working)
    assert time.monotonic() - back < 25  # as patient as LASTING
    assert finished
    assert told
    assert replied
    assert (await store.run(ended.run.id, "k")).result == {"x": 1}
    assert (await store.renew("w", 60)).mine == {begun.run.id, answered.run.id}
    await store.check()
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
