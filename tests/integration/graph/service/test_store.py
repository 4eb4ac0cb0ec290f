"""The store of runs, in SQLite and in PostgreSQL: what it keeps, and what it survives."""

from __future__ import annotations

import asyncio
import os
import random
import stat
import time
from collections.abc import Callable, Sequence
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


async def hostile_run(store: Store) -> Run:
    """Accept a run whose texts are hostile."""
    texts = {"query": HOSTILE, "request": {HOSTILE: HOSTILE}, "carrier": {"traceparent": HOSTILE}}
    return await accept(store, "k", "search", **texts)


async def test_a_run_is_kept_whatever_its_texts_are(store: Store) -> None:
    run = await hostile_run(store)
    assert (run.status, run.query, run.request) == ("queued", HOSTILE, {HOSTILE: HOSTILE})
    assert await store.run(run.id, "k") == run

    attempt = await started(store, run.id)
    assert attempt.carrier == {"traceparent": HOSTILE}
    assert (attempt.status, attempt.attempts, attempt.handed_over) == ("running", 1, 0)


async def test_events_and_replies_of_a_run_are_kept_as_they_were(store: Store) -> None:
    run = await hostile_run(store)
    attempt = await started(store, run.id)
    events = [step(number, HOSTILE) for number in (1, 2, 3)]

    assert await store.add(attempt, events[:2], {"a:1": {"text": HOSTILE}})
    # What is known already stays as it was.
    assert await store.add(attempt, events, {"a:1": {"text": "another"}})
    assert await store.events(run.id) == events
    assert await store.events(run.id, after=1, limit=1) == events[1:2]

    attempt = await started(store, run.id)
    assert attempt.step_keys == {1: "1", 2: "2", 3: "3"}
    assert attempt.replies == {"a:1": {"text": HOSTILE}}


async def test_a_run_ends_once_with_its_result(store: Store) -> None:
    run = await hostile_run(store)
    attempt = await started(store, run.id)
    finished = await store.finish(done(attempt, {"text": HOSTILE}))
    final = await store.run(run.id, "k")

    assert finished is not None
    assert finished.model_dump(include=set(Run.model_fields)) == final.model_dump()
    assert final.result == {"text": HOSTILE}
    assert final.status == "done"
    assert final.started is not None
    assert final.finished is not None
    assert run.created <= final.started <= final.finished
    assert await store.claim(run.id) is None


async def test_a_deleted_run_leaves_nothing(store: Store) -> None:
    run = await hostile_run(store)
    attempt = await started(store, run.id)
    assert await store.add(attempt, [step(1)], {})

    await store.finish(done(attempt, {}))

    await store.delete(run.id, "k")
    assert await store.events(run.id) == []
    with pytest.raises(errors.RunNotFoundError):
        await store.run(run.id, "k")


LIMITS: dict[str, Any] = {"queue": 3, "live": 2}


@pytest.mark.promise("service")
async def test_a_key_with_too_many_live_runs_is_refused(store: Store) -> None:
    """A key that has too many live runs is refused at once, with 429."""
    await accepted(store, **LIMITS)
    await accepted(store, **LIMITS)
    with pytest.raises(errors.BusyError, match="This key already has 2 live runs") as refused:
        await accepted(store, **LIMITS)
    assert refused.value.http_status == 429


@pytest.mark.promise("service")
async def test_a_service_with_too_many_waiting_runs_refuses_all(store: Store) -> None:
    """When too many runs wait, the service refuses more at once, with 503 and `Retry-After`."""
    first = await accepted(store, **LIMITS)
    await accepted(store, **LIMITS)
    await accepted(store, "other", **LIMITS)

    with pytest.raises(errors.BusyError, match="too many runs waiting") as refused:
        await accepted(store, "third", **LIMITS)
    assert refused.value.http_status == 503
    assert refused.value.retry_after > 0

    await started(store, first)
    await accepted(store, "third", **LIMITS)  # one that is under way does not wait
    assert await store.counts() == {"queued": 3, "running": 1}


async def test_limits_hold_among_requests_that_come_at_once(store: Store, store_url: str) -> None:
    async with Store.opened(store_url) as other:
        requests = [accepted(store, queue=50, live=7) for _ in range(10)]
        requests += [accepted(other, queue=50, live=7) for _ in range(10)]
        answers = await asyncio.gather(*requests, return_exceptions=True)
    assert sum(isinstance(answer, errors.BusyError) for answer in answers) == 13
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


async def test_a_waiting_run_is_cancelled_at_once(store: Store) -> None:
    waiting = await accepted(store)
    assert (await store.cancel(waiting, "k")).status == "cancelled"


async def test_whoever_does_a_run_hears_that_it_is_cancelled(store: Store) -> None:
    under_way = await accepted(store)
    attempt = await started(store, under_way)
    assert (await store.cancel(under_way, "k")).status == "running"
    assert await store.to_cancel() == [under_way]

    assert await store.release(attempt)  # its process ends before it has heard of it
    assert await store.to_cancel() == []

    run = await store.run(under_way, "k")
    assert run.status == "cancelled"
    assert await store.cancel(under_way, "k") == run


@pytest.mark.promise("service")
@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
async def test_a_clock_that_is_an_hour_off_does_no_harm(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process whose clock is an hour off does no harm to the runs that it shares with others.

    All times are those of the database, which all processes share.
    """
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600)
    run = await store.finish(done(await started(store, await accepted(store)), {}))

    assert run is not None
    for moment in (run.created, run.started, run.finished):
        assert moment is not None
        assert abs(moment - now) < PATIENCE
    assert await store.forget(PATIENCE, 100) == []


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_with_a_clock_set_back_no_run_ends_before_it_began(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    id_ = await accepted(store)
    cancelled = await accepted(store)
    monkeypatch.setattr(time, "time", lambda: now - 3600)
    attempt = await started(store, id_)

    assert attempt.started == attempt.created

    run = await store.finish(done(attempt, {}))
    assert run is not None
    assert run.finished == run.started

    await store.cancel(cancelled, "k")
    run = await store.run(cancelled, "k")
    assert run.finished == run.created


def ids_of(runs: Sequence[Any]) -> list[str]:
    return [run.id for run in runs]


async def test_runs_are_listed_from_the_newest(store: Store) -> None:
    ids = [await accepted(store) for _ in range(5)]
    probe = await accepted(store, kind="probe")
    newest = await store.runs("k", limit=2)

    assert ids_of(newest) == [probe, ids[4]]
    assert ids_of(await store.runs("k", before=newest[-1].created)) == ids[3::-1]
    assert ids_of(await store.runs("k", kind="probe")) == [probe]

    await started(store, ids[0])
    assert ids_of(await store.runs("k", status="running")) == [ids[0]]


async def test_runs_belong_to_their_key(store: Store) -> None:
    others = await accepted(store, key="other")
    own = await accepted(store)
    assert ids_of(await store.runs("k")) == [own]
    assert ids_of(await store.unfinished()) == [others, own]
    with pytest.raises(errors.RunNotFoundError):
        await store.delete(others, "k")


async def test_only_a_run_that_is_over_is_deleted(store: Store) -> None:
    id_ = await accepted(store)
    with pytest.raises(errors.InputError, match="not over"):
        await store.delete(id_, "k")
    for unknown in (id_.upper(), HOSTILE):
        with pytest.raises(errors.RunNotFoundError):
            await store.delete(unknown, "k")


@pytest.mark.promise("service")
async def test_a_secret_opens_and_nothing_like_it_does(store: Store) -> None:
    """Only the whole secret of an access key opens the service; nothing like it does."""
    key, secret = await store.create_key("the newsroom \N{SNOWMAN}", ["run"])
    _, others = await store.create_key("operations", ["admin"])
    assert await store.key_for(secret) == key

    swapped = secret[:-43] + others[-43:]
    unknown = secret.replace(key.id, "0" * 12)
    for wrong in (swapped, unknown, secret[:-1], secret + "\n", secret + "\0", HOSTILE, ""):
        assert await store.key_for(wrong) is None


async def test_a_key_has_the_scopes_below_its_own(store: Store) -> None:
    runner, _ = await store.create_key("the newsroom", ["run"])
    admin, _ = await store.create_key("operations", ["admin"])
    assert runner.scopes == ("read", "run")
    assert admin.scopes == ("read", "run", "admin")


@pytest.mark.promise("service")
async def test_keys_are_listed_without_their_secrets(store: Store) -> None:
    """The store has no secret of an access key that it could list."""
    key, secret = await store.create_key("the newsroom", ["run"])
    other, _ = await store.create_key("operations", ["admin"])
    assert secret.startswith(f"fqr_{key.id}_")

    keys = await store.keys()
    assert [known.id for known in keys] == [key.id, other.id]
    assert secret[-43:] not in repr(keys)


@pytest.mark.promise("service")
async def test_a_revoked_key_opens_nothing(store: Store) -> None:
    """A revoked key opens nothing from that moment on, and other keys stay as they are."""
    key, secret = await store.create_key("the newsroom", ["run"])
    other, others = await store.create_key("operations", ["admin"])
    revoked = await store.revoke_key(key.id)

    assert revoked.revoked is not None
    assert await store.revoke_key(key.id) == revoked
    assert await store.key_for(secret) is None
    assert await store.key_for(others) == other


@pytest.mark.promise("service")
async def test_the_runs_of_a_key_end_with_it(store: Store) -> None:
    """When a key is revoked, its runs end: what waits is cancelled, what is under way is told to
    stop, and nothing more is accepted.
    """
    key, _ = await store.create_key("the newsroom", ["run"])
    other, _ = await store.create_key("operations", ["run"])
    under_way = await accepted(store, key=key.id)
    waiting = await accepted(store, key=key.id)
    others = await accepted(store, key=other.id)
    await started(store, under_way)

    assert await store.revoked({key.id, other.id}) == set()

    await store.revoke_key(key.id)
    assert await store.revoked({key.id, other.id}) == {key.id}
    assert await store.to_cancel() == [under_way]
    assert (await store.run(waiting, key.id)).status == "cancelled"
    assert (await store.run(others, other.id)).status == "queued"
    with pytest.raises(errors.AccessError, match="revoked"):  # of a request that was on its way
        await accepted(store, key=key.id)


async def test_cancelled_runs_are_counted_once_wherever_they_are(store: Store) -> None:
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
    tables = ("runs", "events", "replies")
    return [await scalar(store, f"SELECT count(*) FROM {table}") for table in tables]


async def accept_run_in(url: str, key: str = "k") -> None:
    """Open a store, and accept a run in it."""
    async with Store.opened(url) as store:
        await accepted(store, key)


async def test_a_database_of_another_version_is_refused(store: Store, store_url: str) -> None:
    async with store.database.begin() as connection:
        await connection.execute(LAYOUT.update().values(version=99))
    with pytest.raises(errors.StoreUnavailableError, match=r"version 99.*name another database"):
        await accept_run_in(store_url)


async def test_processes_that_start_at_once_make_the_tables_once(store_url: str) -> None:
    await asyncio.gather(*(accept_run_in(store_url, key=str(number)) for number in range(6)))
    async with Store.opened(store_url) as store:
        assert await store.counts() == {"queued": 6}
        assert await scalar(store, "SELECT count(*) FROM layout") == 1


async def do_run(store: Store, number: int = 1) -> None:
    """Do a run with an event and a reply."""
    run = await started(store, await accepted(store))
    event = Event(number=number, name="step", data={"step": HOSTILE})
    assert await store.add(run, [event], {f"a:{number}": {"text": HOSTILE}})
    assert await store.finish(done(run, {}))


@pytest.mark.promise("service")
async def test_after_their_retention_runs_leave_nothing(store: Store) -> None:
    """After their retention, runs leave nothing behind in the database."""
    for _ in range(50):
        await asyncio.gather(*(do_run(store) for _ in range(4)))
    assert await rows(store) == [200, 200, 0]

    live = await accepted(store)
    assert await store.forget(60, 200) == []
    assert len(await store.forget(-60, 200)) == 200
    assert [run.id for run in await store.runs("k")] == [live]
    assert await rows(store) == [1, 0, 0]


async def ended_run(store: Store, key: str) -> str:
    """Do a run of a key, and return its id."""
    run = await started(store, await accepted(store, key=key))
    assert await store.finish(done(run, {}))
    return run.id


@pytest.mark.promise("service")
async def test_of_each_key_the_last_ended_runs_are_kept(store: Store) -> None:
    """Each key keeps its last ended runs, up to the number that is set; live runs do not
    count.

    More of them than are deleted at once; what is live is none of them.
    """
    many = [await ended_run(store, "one") for _ in range(60)]
    few = [await ended_run(store, "other") for _ in range(3)]
    live = await accepted(store, key="one")

    forgotten = await store.forget(60, 4)
    assert {*forgotten} == {*many[:-4]}
    assert len(forgotten) == 56
    assert {*ids_of(await store.runs("one"))} == {live, *many[-4:]}
    assert {*ids_of(await store.runs("other"))} == {*few}
    assert await store.forget(60, 4) == []


async def test_work_that_is_cancelled_leaves_nothing_locked(store: Store) -> None:
    """Each is cancelled at another moment, also between a statement and its commit."""
    draw = random.Random(1)
    tasks = [asyncio.create_task(do_run(store, number)) for number in range(60)]
    for task in tasks:
        await asyncio.sleep(draw.random() * 0.01)
        task.cancel()
    await asyncio.wait(tasks)
    for number in range(100, 110):
        async with asyncio.timeout(PATIENCE):
            await do_run(store, number)


async def check_server_is_named(url: str) -> None:
    """Check that a server that refuses is named, and its password is not."""
    sentence = r"127\.0\.0\.1:\d+/fairqr_"
    with pytest.raises(errors.StoreUnavailableError, match=sentence) as refused:
        await accept_run_in(url)
    assert "s3cret" not in str(refused.value)


async def test_a_server_that_refuses_a_password_is_named(postgres_url: str) -> None:
    await check_server_is_named(postgres_url.replace("p%40ss", "s3cret-p%40ss"))


async def test_a_server_without_the_database_is_named(postgres_url: str) -> None:
    await check_server_is_named(f"{postgres_url}_not")


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
    sentence = r"notes\.txt cannot be used: file is not a"

    with pytest.raises(errors.StoreUnavailableError, match=sentence):
        await accept_run_in(f"sqlite:///{text}")
    assert text.read_text() == "no database " * 100


async def test_a_database_below_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.touch()
    with pytest.raises(errors.ConfigError, match="cannot be kept in"):
        await accept_run_in(f"sqlite:///{file}/runs.sqlite")


async def check_refusals(store: Store, sentence: str) -> None:
    """Check that a store says so whether it is checked, read or written."""
    for refused in (store.check(), store.runs("k"), accepted(store)):
        with pytest.raises(errors.StoreUnavailableError, match=sentence):
            await refused


async def test_a_log_that_is_removed_is_told(tmp_path: Path) -> None:
    """A stop in good order loses nothing."""
    file = tmp_path / "runs.sqlite"
    log = tmp_path / "runs.sqlite-wal"
    sentence = "stop the service in good order"
    async with Store.opened(f"sqlite:///{file}") as store:
        before = await accepted(store)
        await store.database.close()  # SQLite removes the log with the last connection
        assert not log.exists()

        again = await accepted(store)
        log.unlink()
        await check_refusals(store, sentence)
        log.touch()  # another process may make one

        with pytest.raises(errors.StoreUnavailableError, match=sentence):
            await store.check()

        log.unlink()
    async with Store.opened(f"sqlite:///{file}") as store:
        assert {*ids_of(await store.runs("k"))} == {before, again}


@pytest.mark.parametrize(
    "harm",
    [
        lambda file: file.unlink(),
        lambda file: os.truncate(file, 0),
    ],
    ids=["file", "content"],
)
async def test_a_file_that_is_removed_is_told(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    file = tmp_path / "runs.sqlite"
    async with Store.opened(f"sqlite:///{file}") as store:
        await accepted(store)
        harm(file)
        await check_refusals(store, "start the service again")


async def test_a_file_that_is_damaged_is_told(tmp_path: Path) -> None:
    file = tmp_path / "runs.sqlite"
    async with Store.opened(f"sqlite:///{file}") as store:
        for _ in range(100):
            await accept(store, "k", "search", request={"query": "x" * 4000})
        await store.database.close()
        # As a bad disk does: the later half, where the runs are, is something else.
        half = file.stat().st_size // 2
        with file.open("r+b") as database:
            database.seek(half)
            database.write(b"\xff" * half)

        with pytest.raises(errors.StoreUnavailableError):
            await store.runs("k", limit=200)

        await check_refusals(store, "is damaged")


async def test_who_reads_much_keeps_no_other_waiting(store: Store) -> None:
    """Callers take turns at the database, however many transactions one of them wants at once."""
    ended: list[str] = []

    async def read(key: str) -> None:
        current_key_id.set(key)
        await store.runs(key)
        ended.append(key)

    many = [asyncio.create_task(read("many")) for _ in range(100)]
    await asyncio.sleep(0)
    few = [asyncio.create_task(read(key)) for key in ("one", "two")]
    await asyncio.gather(*many, *few)

    assert max(ended.index("one"), ended.index("two")) < 20, ended


async def test_followers_of_a_run_read_it_together(store: Store) -> None:
    """Hundreds that wait for one run cost no more than a few."""
    runs = Runs(store, None, ServiceSettings(), lambda _: None)
    run = await accept(store, "k", "search")
    transactions: list[object] = []

    def note(connection: object) -> None:
        transactions.append(connection)

    async def follow() -> list[str]:
        return [event.name async for event in runs.events(run, "k")]

    followers = [asyncio.create_task(follow()) for _ in range(300)]
    sa.event.listen(sa.Engine, "begin", note)
    try:
        await store.cancel(run.id, "k")
        names = await asyncio.gather(*followers)
    finally:
        sa.event.remove(sa.Engine, "begin", note)

    assert names == [["error"]] * 300
    assert len(transactions) < 100
