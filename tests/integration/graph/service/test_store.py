"""The store of runs, in SQLite and in PostgreSQL."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import sqlalchemy as sa

from fairqr.base.errors import BusyError, InputError, RunNotFoundError
from fairqr.graph.service.records import Event, Scope
from fairqr.graph.service.store import Store
from fairqr.graph.service.store.database import lasting
from fairqr.graph.service.store.flavours import flavour_of
from fairqr.graph.service.store.migrations import MIGRATIONS
from tests.integration.stores import PLENTY, a_run, accepted, claimed, lost
from tests.patience import PATIENCE

HOSTILE = "'; DROP TABLE runs; -- \0 \ud800 \ufdd0 \N{SNOWMAN} %s :id \\u0000"


async def swept(store: Store) -> list[str]:
    end = time.monotonic() + PATIENCE
    while not (ids := await store.sweep()) and time.monotonic() < end:
        await asyncio.sleep(0.1)
    return ids


async def test_a_run_is_kept_from_its_acceptance_to_its_end_whatever_its_texts_are(
    store: Store,
) -> None:
    run = a_run(query=HOSTILE, request={HOSTILE: HOSTILE})
    await store.accept(run, "k", carrier={"traceparent": HOSTILE}, **PLENTY)
    assert await store.run(run.id, "k") == run
    claim = await store.claim("w", 15)
    assert claim is not None
    assert (claim.key, claim.carrier) == ("k", {"traceparent": HOSTILE})
    assert claim.run.status == "running"
    assert claim.run.attempts == 1
    events = [Event(number=n, name="step", data={"step": HOSTILE, "n": n}) for n in (1, 2, 3)]
    assert await store.add(claim, events[:2])
    assert await store.add(claim, events)  # what is known already stays as it was
    assert await store.events(run.id) == events
    assert await store.events(run.id, after=1, limit=1) == events[1:2]
    assert await store.finish(claim, "done", result={"text": HOSTILE})
    assert await store.finish(claim, "done", result={"text": HOSTILE})  # tried again
    over = await store.run(run.id, "k")
    assert over.result == {"text": HOSTILE}
    assert over.status == "done"
    assert over.started is not None
    assert over.finished is not None
    assert run.created <= over.started <= over.finished
    assert await store.claim("w", 15) is None
    await store.delete(run.id, "k")
    assert await store.events(run.id) == []
    with pytest.raises(RunNotFoundError):
        await store.run(run.id, "k")


async def test_the_oldest_is_claimed_first(store: Store) -> None:
    newer = await accepted(store, created=2.0)
    older = await accepted(store, created=1.0)
    assert [(await claimed(store, "b")).run.id for _ in range(2)] == [older, newer]
    assert await store.claim("b", 15) is None
    assert (await store.renew("b", 15)).mine == {older, newer}


async def test_more_is_refused_by_whose_limit_it_is(store: Store) -> None:
    limits: dict[str, Any] = {"carrier": {}, "queue": 3, "live": 2}
    one, two = a_run(), a_run()
    await store.accept(one, "k", **limits)
    await store.accept(two, "k", **limits)
    await store.accept(two, "k", **limits)  # the same once more, as after a lost connection
    with pytest.raises(BusyError, match="This key already has 2 live runs") as refused:
        await store.accept(a_run(), "k", **limits)
    assert refused.value.own
    await store.accept(a_run(), "other", **limits)
    with pytest.raises(BusyError, match="too many runs waiting") as refused:
        await store.accept(a_run(), "third", **limits)
    assert not refused.value.own
    assert refused.value.retry_after > 0
    assert (await claimed(store, "w")).run.id == one.id
    await store.accept(a_run(), "third", **limits)  # one that is under way does not wait
    assert await store.counts() == {"queued": 3, "running": 1}


async def test_limits_hold_among_requests_that_come_at_once(store: Store, store_url: str) -> None:
    other = await Store.open(store_url)
    try:
        asked = [
            where.accept(a_run(), "k", carrier={}, queue=50, live=7)
            for where in (store, other)
            for _ in range(10)
        ]
        told = await asyncio.gather(*asked, return_exceptions=True)
    finally:
        await other.close()
    assert sum(isinstance(answer, BusyError) for answer in told) == 13
    assert await store.counts() == {"queued": 7}


async def test_a_worker_that_went_silent_has_no_say_any_more(store: Store) -> None:
    """Its run goes on at another one, and neither its events nor its end are written."""
    run = await accepted(store)
    first = await claimed(store, "a")
    assert first.run.id == run
    assert await store.add(first, [Event(number=1, name="step", data={})])
    assert await store.claim("b", 15) is None
    await lost(store, "a")
    assert await store.claim("a", 15) is None  # it may still be at it
    second = await claimed(store, "b")
    assert second.run.attempts == 2
    assert await store.renew("a", 15) == await store.renew("nobody", 15)
    assert not await store.add(first, [Event(number=2, name="step", data={})])
    assert not await store.finish(first, "done", result={"whose": "a"})
    assert not await store.release(first)
    assert await store.finish(second, "done", result={"whose": "b"})
    assert not await store.finish(first, "failed", problem={})
    assert (await store.run(run, "k")).result == {"whose": "b"}
    assert [event.number for event in await store.events(run)] == [1]


async def test_a_lease_that_ran_out_is_renewed_where_nobody_took_the_run(store: Store) -> None:
    run = await accepted(store)
    await claimed(store, "a")
    await lost(store, "a")
    assert (await store.renew("a", 15)).mine == {run}
    assert await store.claim("b", 15) is None
    assert await store.sweep() == []


async def test_a_run_that_ends_five_workers_fails_for_good(store: Store) -> None:
    run = await accepted(store)
    for worker in "abcdef":
        assert await store.sweep() == []
        assert (await claimed(store, worker)).run.id == run
        await lost(store, worker)
    assert await store.claim("g", 15) is None
    assert await swept(store) == [run]
    [last] = await store.events(run)
    assert (last.name, last.data) == ("error", (await store.run(run, "k")).problem)


async def test_a_released_run_is_the_next_ones(store: Store) -> None:
    run = await accepted(store)
    first = await claimed(store, "a")
    assert await store.release(first)
    assert await store.release(first)  # tried again
    assert (await store.run(run, "k")).status == "queued"
    assert (await claimed(store, "b")).run.attempts == 2
    assert not await store.release(first)


async def test_what_is_left_of_an_attempt_cannot_write_into_the_next_of_the_same_worker(
    store: Store,
) -> None:
    run = await accepted(store)
    first = await claimed(store, "a")
    assert await store.add(first, [Event(number=1, name="step", data={})])
    assert await store.release(first)
    assert not await store.add(first, [Event(number=2, name="step", data={})])
    second = await claimed(store, "a")
    assert second.run.id == run
    late = Event(number=2, name="step", data={"late": True})
    assert not await store.add(first, [late], {"1": {"text": "late"}})
    assert not await store.release(first)
    assert not await store.finish(first, "failed", problem={})
    assert await store.finish(second, "done", events=[Event(number=2, name="end", data={})])
    assert not await store.finish(first, "failed", problem={})
    assert [event.name for event in await store.events(run)] == ["step", "end"]


async def test_cancelling(store: Store) -> None:
    """A waiting run is over at once; of one that is under way the worker is told."""
    waiting, begun, left = [await accepted(store, created=float(n)) for n in (9, 1, 2)]
    claims = [await claimed(store, "a") for _ in range(2)]
    assert [claim.run.id for claim in claims] == [begun, left]
    assert (await store.ask_to_cancel(waiting, "k")).status == "cancelled"
    assert [event.name for event in await store.events(waiting)] == ["error"]
    assert (await store.ask_to_cancel(begun, "k")).status == "running"
    assert (await store.renew("a", 15)).cancel == {begun}
    assert await store.finish(claims[0], "cancelled", problem={"type": "x"})
    assert (await store.ask_to_cancel(begun, "k")).problem == {"type": "x"}
    await store.ask_to_cancel(left, "k")
    assert await store.release(claims[1])  # the worker ends before it heard of it
    assert (await store.run(left, "k")).status == "cancelled"
    assert await store.claim("b", 15) is None


async def test_another_keys_run_is_not_found_and_neither_is_a_hostile_name(store: Store) -> None:
    run = await accepted(store)
    for id_, key in ((run, "other"), (run, ""), (run.upper(), "k"), (HOSTILE, "k"), ("", "k")):
        for ask in (store.run, store.ask_to_cancel, store.delete):
            with pytest.raises(RunNotFoundError):
                await ask(id_, key)
    assert await store.events(HOSTILE) == []
    assert await store.runs("other") == []
    claim = await claimed(store, "w")
    hostile = claim.model_copy(update={"run": claim.run.model_copy(update={"id": HOSTILE})})
    assert not await store.finish(hostile, "done")
    with pytest.raises(InputError, match="not over"):
        await store.delete(run, "k")


async def test_runs_are_listed_from_the_newest(store: Store) -> None:
    ids = [await accepted(store, created=float(n)) for n in range(1, 6)]
    probe = await accepted(store, created=6.0, kind="probe")
    await accepted(store, key="other")
    newest = await store.runs("k", limit=2)
    assert [run.id for run in newest] == [probe, ids[4]]
    rest = await store.runs("k", before=newest[-1].created)
    assert [run.id for run in rest] == ids[3::-1]
    assert [run.id for run in await store.runs("k", kind="probe")] == [probe]
    assert (await claimed(store, "w")).run.id == ids[0]
    assert [run.id for run in await store.runs("k", status="running")] == [ids[0]]


async def test_a_claim_whose_answer_was_lost_is_not_forgotten(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is the worker's in the database, and its next claim that succeeds returns it."""
    run = await accepted(store)

    async def cut_off(*arguments: Any, **more: Any) -> Any:
        await lasting(*arguments, **more)
        raise TimeoutError

    async def away(*_: Any, **__: Any) -> Any:
        raise TimeoutError

    with monkeypatch.context() as patch:
        patch.setattr("fairqr.graph.service.store.queue._OUTCOME", 0)
        patch.setattr("fairqr.graph.service.store.database.lasting", cut_off)
        with pytest.raises(TimeoutError):
            await store.claim("w", 15)
        patch.setattr("fairqr.graph.service.store.database.lasting", away)
        with pytest.raises(TimeoutError):
            await store.claim("w", 15)
    assert (await store.run(run, "k")).status == "running"
    assert (await claimed(store, "w")).run.id == run
    assert (await store.run(run, "k")).attempts == 1


async def test_access_keys(store: Store) -> None:
    """The secret opens until the key is revoked, and nothing like it does."""
    key, secret = await store.create_key("the newsroom \N{SNOWMAN}")
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
    assert await store.revoke_key(f"fqr_{key.id}") == revoked
    assert await store.key_for(secret) is None
    assert await store.key_for(others) == other


async def test_the_runs_of_a_key_end_with_it(store: Store) -> None:
    key, _ = await store.create_key("the newsroom")
    other, _ = await store.create_key("operations")
    begun = await accepted(store, key=key.id, created=0.0)
    waiting, others = [await accepted(store, key=it.id) for it in (key, other)]
    assert (await claimed(store, "a")).run.id == begun
    assert await store.revoked({key.id, other.id}) == set()
    await store.revoke_key(key.id)
    assert await store.revoked({key.id, other.id}) == {key.id}
    assert (await store.run(waiting, key.id)).status == "cancelled"
    assert (await store.renew("a", 15)).cancel == {begun}
    assert (await store.run(others, other.id)).status == "queued"


async def test_hostile_keys_are_refused(store: Store) -> None:
    scopes: list[Scope] = ["run"]
    for name in ("", " ", "a\nb", "\x1b[2J", "\ud800", "x" * 101):
        with pytest.raises(InputError, match="one line"):
            await store.create_key(name, scopes)
    with pytest.raises(InputError, match="no scope 'all'"):
        await store.create_key("x", ["all"])  # type: ignore[list-item]
    with pytest.raises(InputError, match="no access key"):
        await store.revoke_key(HOSTILE)


@pytest.mark.parametrize("version", [1, 2])
async def test_a_database_of_an_older_schema_is_brought_to_this_one(
    store_url: str, version: int
) -> None:
    """Keys and finished runs stay, live runs end, and runs that were not to be kept go."""
    flavour = flavour_of(store_url)

    def older(connection: sa.Connection) -> None:
        connection.execute(sa.text("CREATE TABLE migrations (version INTEGER PRIMARY KEY)"))
        for number, statements in enumerate(MIGRATIONS[:version], 1):
            for statement in statements:
                connection.execute(sa.text(statement))
            connection.execute(
                sa.text("INSERT INTO migrations VALUES (:number)"), {"number": number}
            )
        for name in ("checkpoints", "writes"):
            connection.execute(sa.text(f"CREATE TABLE {name} (thread_id TEXT)"))
        kept = [(True, "done"), (False, "done"), (False, "running"), (True, "running")]
        for number, (keep, status) in enumerate(kept):
            connection.execute(
                sa.text(
                    "INSERT INTO runs VALUES (:id, 'k', 'search', :status, '\"q\"', :keep, 1, 2, 3,"
                    " 1, '{}', :result, NULL, '{}', NULL, NULL, NULL, 0, :cancel)"
                ),
                {
                    "id": f"{number:032x}",
                    "keep": keep,
                    "status": status,
                    "cancel": False,
                    "result": '{"a": 1}',
                },
            )
        connection.execute(
            sa.text("INSERT INTO access_keys VALUES ('abc', '\"n\"', '[\"run\"]', 1, NULL, 'x')")
        )

    async with flavour.migrating():
        await flavour.write(older)
    await flavour.close()
    for _ in range(2):  # the second time there is nothing to do
        store = await Store.open(store_url)
        try:
            assert [run.id for run in await store.runs("k")] == [f"{3:032x}", f"{0:032x}"]
            assert (await store.run(f"{0:032x}", "k")).result == {"a": 1}
            ended = await store.run(f"{3:032x}", "k")
            assert ended.status == "failed"
            assert ended.problem is not None
            assert ended.problem["type"] == "urn:fairqr:error:interrupted"
            assert await store.claim("w", 15) is None
            assert [key.id for key in await store.keys()] == ["abc"]
        finally:
            await store.close()
