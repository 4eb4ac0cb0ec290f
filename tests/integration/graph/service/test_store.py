"""The store of runs, in SQLite and in PostgreSQL: what it keeps, and what it survives."""

from __future__ import annotations

import asyncio
import os
import random
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from fairqr.base import errors
from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.records import Event, Run
from fairqr.graph.service.runs.manager import Runs
from fairqr.graph.service.store import Store
from fairqr.graph.service.store.database import Database, current_key_id
from fairqr.graph.service.store.tables import LAYOUT
from tests.patience import PATIENCE
from tests.servers.stores import accept, accepted, done, started

HOSTILE = "'; DROP TABLE runs; -- \0 \ud800 \ufdd0 \N{SNOWMAN} %s :id \\u0000"


def step(number: int, text: str = "") -> Event:
    return Event(number=number, name="step", step=f"{number}", data={"step": text, "n": number})


async def test_a_run_is_kept_from_its_acceptance_to_its_end_whatever_its_texts_are(
    store: Store,
) -> None:
    carrier = {"traceparent": HOSTILE}
    request = {HOSTILE: HOSTILE}
    run = await accept(store, "k", "search", query=HOSTILE, request=request, carrier=carrier)
    assert (run.status, run.query, run.request) == ("queued", HOSTILE, request)
    assert await store.run(run.id, "k") == run
    attempt = await started(store, run.id)
    assert attempt.carrier == carrier
    assert (attempt.status, attempt.attempts, attempt.handed_over) == ("running", 1, 0)
    events = [step(number, HOSTILE) for number in (1, 2, 3)]
    assert await store.add(attempt, events[:2], {"a:1": {"text": HOSTILE}})
    # What is known already stays as it was.
    assert await store.add(attempt, events, {"a:1": {"text": "another"}})
    assert await store.events(run.id) == events
    assert await store.events(run.id, after=1, limit=1) == events[1:2]
    attempt = await started(store, run.id)
    assert attempt.step_keys == {1: "1", 2: "2", 3: "3"}
    assert attempt.replies == {"a:1": {"text": HOSTILE}}
    told = await store.finish(done(attempt, {"text": HOSTILE}))
    over = await store.run(run.id, "k")
    assert told is not None
    assert told.model_dump(include=set(Run.model_fields)) == over.model_dump()
    assert over.result == {"text": HOSTILE}
    assert over.status == "done"
    assert over.started is not None
    assert over.finished is not None
    assert run.created <= over.started <= over.finished
    assert await store.claim(run.id) is None
    await store.delete(run.id, "k")
    assert await store.events(run.id) == []
    with pytest.raises(errors.RunNotFoundError):
        await store.run(run.id, "k")


async def test_more_is_refused_by_whose_limit_it_is(store: Store) -> None:
    limits: dict[str, Any] = {"queue": 3, "live": 2}
    one = await accepted(store, **limits)
    await accepted(store, **limits)
    with pytest.raises(errors.BusyError, match="This key already has 2 live runs") as refused:
        await accepted(store, **limits)
    assert refused.value.http_status == 429
    await accepted(store, "other", **limits)
    with pytest.raises(errors.BusyError, match="too many runs waiting") as refused:
        await accepted(store, "third", **limits)
    assert refused.value.http_status == 503
    assert refused.value.retry_after > 0
    await started(store, one)
    await accepted(store, "third", **limits)  # one that is under way does not wait
    assert await store.counts() == {"queued": 3, "running": 1}


async def test_limits_hold_among_requests_that_come_at_once(store: Store, store_url: str) -> None:
    async with Store.opened(store_url) as other:
        asked = [accepted(where, queue=50, live=7) for where in (store, other) for _ in range(10)]
        told = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(answer, errors.BusyError) for answer in told) == 13
    assert await store.counts() == {"queued": 7}


async def test_what_was_handed_over_is_not_lost(store: Store) -> None:
    run = await accepted(store)
    for number in range(3):
        attempt = await started(store, run)
        assert (attempt.attempts, attempt.handed_over) == (number + 1, number)
        assert await store.release(attempt)
        assert not await store.release(attempt)
    await started(store, run)  # this one is killed
    last = await started(store, run)
    assert (last.attempts, last.handed_over) == (5, 3)


async def test_cancelling(store: Store) -> None:
    """A waiting run is over at once; of one that is under way, whoever does it is told."""
    waiting, under_way = await accepted(store), await accepted(store)
    attempt = await started(store, under_way)
    assert (await store.cancel(waiting, "k")).status == "cancelled"
    assert (await store.cancel(under_way, "k")).status == "running"
    assert await store.to_cancel() == [under_way]
    assert await store.release(attempt)  # its process ends before it has heard of it
    assert await store.to_cancel() == []
    run = await store.run(under_way, "k")
    assert run.status == "cancelled"
    assert await store.cancel(under_way, "k") == run


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
async def test_a_clock_that_is_an_hour_off_does_no_harm(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All times are those of the database, which all processes share."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600)
    run = await store.finish(done(await started(store, await accepted(store)), {}))
    assert run is not None
    for moment in (run.created, run.started, run.finished):
        assert moment is not None
        assert abs(moment - now) < PATIENCE
    assert await store.forget(PATIENCE, 100) == []


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_a_clock_that_is_set_back_makes_no_run_end_before_it_began(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    id_ = await accepted(store)
    monkeypatch.setattr(time, "time", lambda: now - 3600)
    attempt = await started(store, id_)
    assert attempt.started == attempt.created
    run = await store.finish(done(attempt, {}))
    assert run is not None
    assert run.finished == run.started
    cancelled = await accepted(store)
    monkeypatch.setattr(time, "time", lambda: now - 7200)
    await store.cancel(cancelled, "k")
    run = await store.run(cancelled, "k")
    assert run.finished == run.created


async def test_runs_are_listed_from_the_newest_and_belong_to_their_key(store: Store) -> None:
    others = await accepted(store, key="other")
    ids = [await accepted(store) for _ in range(5)]
    probe = await accepted(store, kind="probe")
    newest = await store.runs("k", limit=2)
    assert [run.id for run in newest] == [probe, ids[4]]
    rest = await store.runs("k", before=newest[-1].created)
    assert [run.id for run in rest] == ids[3::-1]
    assert [run.id for run in await store.runs("k", kind="probe")] == [probe]
    await started(store, ids[0])
    assert [run.id for run in await store.runs("k", status="running")] == [ids[0]]
    assert [run.id for run in await store.unfinished()] == [others, *ids, probe]
    for id_ in (others, probe.upper(), HOSTILE):
        with pytest.raises(errors.RunNotFoundError):
            await store.delete(id_, "k")
    with pytest.raises(errors.InputError, match="not over"):
        await store.delete(probe, "k")


async def test_access_keys(store: Store) -> None:
    """The secret opens until the key is revoked, and nothing like it does."""
    key, secret = await store.create_key("the newsroom \N{SNOWMAN}", ["run"])
    other, others = await store.create_key("operations", ["admin"])
    assert key.scopes == ("read", "run")
    assert other.scopes == ("read", "run", "admin")
    assert secret.startswith(f"fqr_{key.id}_")
    assert await store.key_for(secret) == key
    swapped = secret[:-43] + others[-43:]
    unknown = secret.replace(key.id, "0" * 12)
    for wrong in (swapped, unknown, secret[:-1], secret + "\n", secret + "\0", HOSTILE, ""):
        assert await store.key_for(wrong) is None
    assert secret[-43:] not in repr(await store.keys())
    assert [known.id for known in await store.keys()] == [key.id, other.id]
    revoked = await store.revoke_key(key.id)
    assert revoked.revoked is not None
    assert await store.revoke_key(key.id) == revoked
    assert await store.key_for(secret) is None
    assert await store.key_for(others) == other


async def test_the_runs_of_a_key_end_with_it(store: Store) -> None:
    key, _ = await store.create_key("the newsroom", ["run"])
    other, _ = await store.create_key("operations", ["run"])
    under_way, waiting, others = [await accepted(store, key=it.id) for it in (key, key, other)]
    await started(store, under_way)
    assert await store.revoked({key.id, other.id}) == set()
    await store.revoke_key(key.id)
    assert await store.revoked({key.id, other.id}) == {key.id}
    assert await store.to_cancel() == [under_way]
    assert (await store.run(waiting, key.id)).status == "cancelled"
    assert (await store.run(others, other.id)).status == "queued"
    with pytest.raises(errors.AccessError, match="revoked"):  # of a request that was on its way
        await accepted(store, key=key.id)


async def test_runs_that_are_cancelled_are_counted_once_wherever_they_are(store: Store) -> None:
    key, _ = await store.create_key("the newsroom", ["run"])
    waiting, others, under_way, released = [await accepted(store, key=key.id) for _ in range(4)]
    await store.cancel(waiting, key.id)
    await store.cancel(waiting, key.id)
    assert await store.count_ended() == {("search", "cancelled"): 1}
    await started(store, under_way)
    handed_over = await started(store, released)
    await store.revoke_key(key.id)
    assert (await store.run(others, key.id)).status == "cancelled"
    assert await store.count_ended() == {("search", "cancelled"): 2}
    await store.release(handed_over)
    assert await store.count_ended() == {("search", "cancelled"): 3}


OLD = (
    "CREATE TABLE migrations (version INTEGER PRIMARY KEY)",
    "CREATE TABLE runs (id TEXT PRIMARY KEY, key_id TEXT NOT NULL, kind TEXT NOT NULL, "
    "status TEXT NOT NULL, query TEXT NOT NULL, created DOUBLE PRECISION NOT NULL, "
    "started DOUBLE PRECISION, finished DOUBLE PRECISION, attempts INTEGER NOT NULL, "
    "request TEXT NOT NULL, result TEXT, problem TEXT, carrier TEXT NOT NULL, worker TEXT, "
    "lease DOUBLE PRECISION, ticket TEXT, losses INTEGER NOT NULL, cancel BOOLEAN NOT NULL)",
    "CREATE TABLE events (run_id TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE, "
    "number INTEGER NOT NULL, name TEXT NOT NULL, data TEXT NOT NULL, private TEXT, "
    "PRIMARY KEY (run_id, number))",
    "CREATE TABLE replies (run_id TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE, "
    "id TEXT NOT NULL, reply TEXT NOT NULL, PRIMARY KEY (run_id, id))",
    "CREATE TABLE access_keys (id TEXT PRIMARY KEY, name TEXT NOT NULL, scopes TEXT NOT NULL, "
    "created DOUBLE PRECISION NOT NULL, revoked DOUBLE PRECISION, sha256 TEXT NOT NULL)",
    "CREATE INDEX runs_by_status ON runs (status, created)",
    "INSERT INTO migrations VALUES (4)",
    *(
        f"INSERT INTO runs VALUES ('{number:032}', 'k', 'search', '{status}', '\"q\"', 1, 2, 3, 1, "
        "'{}', '{\"a\": 1}', NULL, '{}', NULL, NULL, NULL, 0, FALSE)"
        for number, status in enumerate(("done", "running"))
    ),
    *(f"INSERT INTO events VALUES ('{number:032}', 1, 'run', '{{}}', NULL)" for number in (0, 1)),
    "INSERT INTO access_keys VALUES ('abc', '\"n\"', '[\"run\"]', 1, NULL, 'x')",
)
"""A database of fairqr 1.0 with a finished run, one that is not over, and a key."""


async def test_keys_and_finished_runs_of_1_0_are_taken_over(store_url: str) -> None:
    database = Database(store_url)
    async with database.begin() as connection:
        for statement in OLD if database.file else ("CREATE SCHEMA fairqr", *OLD):
            await connection.execute(sa.text(statement))
    await database.close()
    for _ in range(2):  # the second time there is nothing to do
        async with Store.opened(store_url) as store:
            assert [run.id for run in await store.runs("k")] == [f"{0:032x}"]
            run: Run = await store.run(f"{0:032x}", "k")
            assert (run.status, run.result) == ("done", {"a": 1})
            assert [event.name for event in await store.events(run.id)] == ["run"]
            assert [key.id for key in await store.keys()] == ["abc"]
            assert await store.unfinished() == []


async def scalar(store: Store, statement: str) -> Any:
    async with store.database.begin() as connection:
        return await connection.scalar(sa.text(statement))


async def rows(store: Store) -> list[int]:
    """Return how many runs, events and replies there are."""
    names = ("runs", "events", "replies")
    return [await scalar(store, f"SELECT count(*) FROM {name}") for name in names]


async def opened(url: str, key: str = "k") -> None:
    """Open a store, and accept a run in it."""
    async with Store.opened(url) as store:
        await accepted(store, key)


async def test_a_database_of_another_version_is_refused(store: Store, store_url: str) -> None:
    async with store.database.begin() as connection:
        await connection.execute(LAYOUT.update().values(version=99))
    with pytest.raises(errors.StoreUnavailableError, match=r"version 99.*name another database"):
        await opened(store_url)


async def test_processes_that_start_at_once_make_the_tables_once(store_url: str) -> None:
    await asyncio.gather(*(opened(store_url, key=str(number)) for number in range(6)))
    async with Store.opened(store_url) as store:
        assert await store.counts() == {"queued": 6}
        assert await scalar(store, "SELECT count(*) FROM layout") == 1


async def one_run(store: Store, number: int = 1) -> None:
    run = await started(store, await accepted(store))
    event = Event(number=number, name="step", data={"step": HOSTILE})
    assert await store.add(run, [event], {f"a:{number}": {"text": HOSTILE}})
    assert await store.finish(done(run, {}))


async def test_nothing_grows(store: Store) -> None:
    """After 200 runs with events and replies, and their time of retention, nothing is left."""
    for _ in range(50):
        await asyncio.gather(*(one_run(store) for _ in range(4)))
    assert await rows(store) == [200, 200, 0]
    live = await accepted(store)
    assert await store.forget(60, 200) == []
    assert len(await store.forget(-60, 200)) == 200
    assert [run.id for run in await store.runs("k")] == [live]
    assert await rows(store) == [1, 0, 0]


async def test_of_each_key_the_last_ended_runs_are_kept(store: Store) -> None:
    """More of them than are deleted at once; what is live is none of them."""
    ids: dict[str, list[str]] = {"one": [], "other": []}
    for key, number in (("one", 60), ("other", 3)):
        for _ in range(number):
            run = await started(store, await accepted(store, key=key))
            assert await store.finish(done(run, {}))
            ids[key].append(run.id)
    live = await accepted(store, key="one")
    forgotten = await store.forget(60, 4)
    assert {*forgotten} == {*ids["one"][:-4]}
    assert len(forgotten) == 56
    assert {run.id for run in await store.runs("one")} == {live, *ids["one"][-4:]}
    assert {run.id for run in await store.runs("other")} == {*ids["other"]}
    assert await store.forget(60, 4) == []


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


async def test_a_server_that_refuses_is_named_without_the_password(postgres_url: str) -> None:
    wrong = postgres_url.replace("p%40ss", "s3cret-p%40ss")
    for url in (wrong, f"{postgres_url}_not"):
        with pytest.raises(
            errors.StoreUnavailableError, match=r"127\.0\.0\.1:\d+/fairqr_"
        ) as refused:
            await opened(url)
        assert "s3cret" not in str(refused.value)


async def test_the_file_is_nobody_elses(tmp_path: Path) -> None:
    file = tmp_path / "new folder" / "runs ?#%41.sqlite"
    async with Store.opened(f"sqlite:///{file}") as store:
        await accepted(store)
        rights = {path.name: stat.S_IMODE(os.stat(path).st_mode) for path in file.parent.iterdir()}
        assert len(rights) == 3  # the log of what was written, and its index, stand beside it
        assert set(rights.values()) == {0o600}


async def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("no database " * 100)
    with pytest.raises(
        errors.StoreUnavailableError, match=r"notes\.txt cannot be used: file is not a"
    ):
        await opened(f"sqlite:///{text}")
    assert text.read_text() == "no database " * 100
    with pytest.raises(errors.ConfigError, match="cannot be kept in"):
        await opened(f"sqlite:///{text}/runs.sqlite")


async def test_a_log_that_is_removed_is_told_and_a_stop_in_good_order_loses_nothing(
    tmp_path: Path,
) -> None:
    file = tmp_path / "runs.sqlite"
    log = tmp_path / "runs.sqlite-wal"
    words = "stop the service in good order"
    async with Store.opened(f"sqlite:///{file}") as store:
        before = await accepted(store)
        await store.database.close()  # SQLite removes the log with the last connection
        assert not log.exists()
        again = await accepted(store)
        log.unlink()
        for asking in (store.check(), store.runs("k"), accepted(store)):
            with pytest.raises(errors.StoreUnavailableError, match=words):
                await asking
        log.touch()  # another process may make one
        with pytest.raises(errors.StoreUnavailableError, match=words):
            await store.check()
        log.unlink()
    async with Store.opened(f"sqlite:///{file}") as store:
        assert {run.id for run in await store.runs("k")} == {before, again}


@pytest.mark.parametrize(
    "harm",
    [
        lambda file: file.unlink(),
        lambda file: os.truncate(file, 0),
    ],
    ids=["file", "content"],
)
async def test_a_file_that_is_removed_is_told_and_nothing_more_is_accepted(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    file = tmp_path / "runs.sqlite"
    async with Store.opened(f"sqlite:///{file}") as store:
        await accepted(store)
        harm(file)
        for asking in (store.check(), store.runs("k"), accepted(store)):
            with pytest.raises(errors.StoreUnavailableError, match="start the service again"):
                await asking


async def test_a_file_that_is_damaged_is_told_and_nothing_more_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "runs.sqlite"
    async with Store.opened(f"sqlite:///{file}") as store:
        for _ in range(100):
            await accept(store, "k", "search", request={"query": "x" * 4000})
        await store.database.close()
        # As a bad disk does: the later half, where the runs are, is something else.
        half = file.stat().st_size // 2
        with file.open("r+b") as opened:
            opened.seek(half)
            opened.write(b"\xff" * half)
        with pytest.raises(errors.StoreUnavailableError):
            await store.runs("k", limit=200)
        for asking in (store.check(), store.runs("k"), accepted(store)):
            with pytest.raises(errors.StoreUnavailableError, match="is damaged"):
                await asking


async def test_who_reads_much_keeps_no_other_waiting(store: Store) -> None:
    """Callers take turns at the database, however many transactions one of them wants at once."""
    ended: list[str] = []

    async def read(whose: str) -> None:
        current_key_id.set(whose)
        await store.runs(whose)
        ended.append(whose)

    many = [asyncio.create_task(read("many")) for _ in range(100)]
    await asyncio.sleep(0)
    few = [asyncio.create_task(read(whose)) for whose in ("one", "two")]
    await asyncio.gather(*many, *few)
    assert max(ended.index("one"), ended.index("two")) < 20, ended


async def test_followers_of_a_run_read_it_together(store: Store) -> None:
    """Hundreds that wait for one run cost no more than a few."""
    runs = Runs(store, None, ServiceSettings(), lambda _: None)
    run = await accept(store, "k", "search")
    begun: list[object] = []

    def note(connection: object) -> None:
        begun.append(connection)

    async def follow() -> list[str]:
        return [event.name async for event in runs.events(run, "k")]

    followers = [asyncio.create_task(follow()) for _ in range(300)]
    sa.event.listen(sa.Engine, "begin", note)
    try:
        await store.cancel(run.id, "k")
        told = await asyncio.gather(*followers)
    finally:
        sa.event.remove(sa.Engine, "begin", note)
    assert told == [["error"]] * 300
    assert len(begun) < 100
