"""Parts of the store of runs that need no database."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from fairqr.base.errors import ConfigError, StoreUnavailableError
from fairqr.graph.service.store.database import Database
from fairqr.graph.service.store.tables import JsonText


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
        Database(url)
    assert "cret" not in str(refused.value)


async def test_places_are_told_without_user_and_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRQR_DATA_DIR", str(tmp_path))
    for url in ("postgresql://me:s3cret@db:5433/runs", "postgres+psycopg://me:s3cret@db:5433/runs"):
        assert Database(url).place == "db:5433/runs"
    assert Database("").place == str(tmp_path / "service" / "runs.sqlite")
    assert Database(f"sqlite:///{tmp_path}/a b").place == f"{tmp_path}/a b"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Database("sqlite:///~/runs").place == f"{tmp_path}/runs"


async def test_our_own_mistakes_are_not_taken_for_the_databases(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/runs.sqlite")
    with pytest.raises(sa.exc.IntegrityError):
        async with database.begin():
            raise sa.exc.IntegrityError("INSERT", None, sqlite3.IntegrityError("UNIQUE"))
    with pytest.raises(StoreUnavailableError) as told:
        async with database.begin():
            raise sa.exc.OperationalError("", None, sqlite3.OperationalError("no secret place"))
    assert "secret" not in str(told.value)
    await database.close()


@given(st.text(st.characters(exclude_categories=[])))
def test_any_text_comes_back_from_what_postgresql_takes(text: str) -> None:
    column = JsonText()
    bound = column.process_bind_param(text, None)  # type: ignore[arg-type]
    assert bound is not None
    assert bound.isascii()
    assert column.process_result_value(bound, None) == text  # type: ignore[arg-type]
