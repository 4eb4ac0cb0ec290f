"""Parts of the store of runs that need no database."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from fairqr.base.errors import ConfigError, StoreUnavailableError
from fairqr.graph.service.store.database import heals, lasting
from fairqr.graph.service.store.flavours import flavour_of
from fairqr.graph.service.store.tables import JsonText
from tests.patience import PATIENCE


@pytest.mark.parametrize(
    "url",
    [
        "mysql://user:s3cret@host/name",
        "s3cret",
        "sqlite://",
        "sqlite:runs.sqlite",
        "postgresql://user:s3@cret@host/name",
        "postgresql://user:12/s3cret@host/name",
        "postgresql://user:s3cret@host/name?unknown=1",
    ],
)
async def test_a_url_that_cannot_be_read_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(ConfigError, match="postgresql://user:password@host:port/name") as refused:
        flavour_of(url)
    assert "cret" not in str(refused.value)


async def test_places_are_told_without_user_and_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRQR_DATA_DIR", str(tmp_path))
    for url in ("postgresql://me:s3cret@db:5433/runs", "postgres+psycopg://me:s3cret@db:5433/runs"):
        assert flavour_of(url).place == "db:5433/runs"
    assert flavour_of("").place == str(tmp_path / "service" / "runs.sqlite")
    assert flavour_of(f"sqlite:///{tmp_path}/a b").place == f"{tmp_path}/a b"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert flavour_of("sqlite:///~/runs").place == f"{tmp_path}/runs"


def test_what_can_heal_is_told_from_what_cannot() -> None:
    locked, full = sqlite3.OperationalError("locked"), sqlite3.OperationalError("full")
    locked.sqlite_errorcode = sqlite3.SQLITE_BUSY_SNAPSHOT
    full.sqlite_errorcode = sqlite3.SQLITE_FULL
    corrupt = sqlite3.DatabaseError("malformed")
    corrupt.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    for error in (
        locked,
        full,
        psycopg.errors.DiskFull(),
        sa.exc.OperationalError("SELECT 1", None, locked),
        sa.exc.TimeoutError(),
        psycopg.OperationalError("the connection is closed"),
        psycopg.errors.CannotConnectNow(),
        psycopg.errors.DeadlockDetected(),
        ConnectionResetError(),
    ):
        assert heals(error)
    for error in (
        corrupt,
        psycopg.OperationalError('FATAL:  password authentication failed for user "x"'),
        psycopg.errors.InsufficientPrivilege(),
        psycopg.errors.UniqueViolation(),
        ValueError(),
    ):
        assert not heals(error)


async def test_our_own_mistakes_are_not_taken_for_the_databases() -> None:
    async def broken() -> None:
        raise sa.exc.IntegrityError("INSERT", None, sqlite3.IntegrityError("UNIQUE"))

    async def away() -> None:
        raise psycopg.errors.InsufficientPrivilege("permission denied for schema secret")

    with pytest.raises(sa.exc.IntegrityError):
        await lasting(broken, 0)
    with pytest.raises(StoreUnavailableError) as told:
        await lasting(away, 0)
    assert "secret" not in str(told.value)


async def test_work_goes_on_when_whoever_asked_has_gone() -> None:
    done, go = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await go.wait()
        done.set()

    task = asyncio.create_task(lasting(work, 5))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go.set()
    await asyncio.wait_for(done.wait(), PATIENCE)


@given(st.text(st.characters(exclude_categories=[])))
def test_any_text_comes_back_from_what_postgresql_takes(text: str) -> None:
    column = JsonText()
    bound = column.process_bind_param(text, None)  # type: ignore[arg-type]
    assert bound is not None
    assert bound.isascii()
    assert column.process_result_value(bound, None) == text  # type: ignore[arg-type]
