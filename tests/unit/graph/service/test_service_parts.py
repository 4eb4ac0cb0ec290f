"""Parts of the service by themselves: problems, engines, slow clients, the database."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from fairqr.base import errors
from fairqr.base.errors import (
    BusyError,
    ConfigError,
    FairqrError,
    LimitError,
    ModelError,
    StoreUnavailableError,
)
from fairqr.graph.service.execution.engines import Engines
from fairqr.graph.service.http import serving
from fairqr.graph.service.http.access import is_loopback
from fairqr.graph.service.problems import problem_of
from fairqr.graph.service.store.database import Database
from tests.patience import PATIENCE


def test_each_error_has_a_status_and_says_its_sentence() -> None:
    made: dict[str, Callable[[type[Any]], FairqrError]] = {
        "BusyError": lambda kind: kind("Wait.", retry_after=2.0, own=True),
        "BudgetError": lambda kind: kind("tokens", 9, 5, "Less."),
        "LimitError": lambda kind: kind("k", 5, "Less."),
        "ModelError": lambda kind: kind("timeout", "Late."),
    }
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, FairqrError):
            document = problem_of(made.get(name, lambda kind: kind("So."))(kind), "/v1/runs/1")
            assert 400 <= document["status"] < 600
            assert document["type"] == f"urn:fairqr:error:{kind.slug}"
            assert document["title"]
    assert problem_of(BusyError("Wait.", retry_after=2, own=True))["status"] == 429
    assert problem_of(BusyError("Wait.", retry_after=2, own=False))["status"] == 503
    assert problem_of(LimitError("k", 5, "Less."))["limit"] == "k"
    assert problem_of(ModelError("timeout", "Late."))["model_status"] == "timeout"
    # What was sent is not sent back, and nothing of another exception is told.
    error = errors.RunNotFoundError("x" * 60_000)
    assert len(json.dumps(problem_of(error, f"/v1/runs/{'x' * 60_000}"))) < 2000
    document = problem_of(ValueError("the password is swordfish"))
    assert document["status"] == 500
    assert "swordfish" not in json.dumps(document)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "LOCALHOST.", "[::1]"])
def test_what_is_loopback(host: str) -> None:
    assert is_loopback(host)
    assert not is_loopback(f"{host.strip('[]')}.example")
    assert not is_loopback("0.0.0.0")


class _Catalog:
    """Opens engines; the first one fails, 'never' never opens, and 'bad' cannot be closed."""

    def __init__(self) -> None:
        self.stamps: dict[str, str] = {}
        self.closed: list[str] = []
        self.opened = 0

    def stamp(self, name: str) -> str:
        return self.stamps.get(name, "")

    async def open(self, name: str, **_: Any) -> Any:
        self.opened += 1
        await asyncio.sleep(0)
        if self.opened == 1:
            raise OSError
        if name == "never":
            await asyncio.Event().wait()
        stamped = name + self.stamp(name)

        async def aclose() -> None:
            self.closed.append(stamped)
            if name == "bad":
                raise OSError(name)

        return SimpleNamespace(aclose=aclose)


async def test_engines_are_opened_once_replaced_when_nobody_uses_them_and_all_closed() -> None:
    """One that failed is opened again, and one that still opens at the end is given up."""
    catalog: Any = _Catalog()
    engines = Engines(catalog, {})

    async def lent() -> Any:
        async with engines.lend("a") as engine:
            return engine

    both = await asyncio.gather(lent(), lent(), return_exceptions=True)
    assert [type(it) for it in both] == [OSError, OSError]
    first, second = await asyncio.gather(lent(), lent())
    assert first is second
    assert catalog.opened == 2
    async with engines.lend("a") as old:
        assert old is first
        catalog.stamps["a"] = "2"
        assert await lent() is not old
        await asyncio.sleep(0.01)
        assert catalog.closed == []
    await asyncio.sleep(0.01)
    assert catalog.closed == ["a"]
    waiting = asyncio.create_task(engines.lend("never").__aenter__())
    async with engines.lend("bad"), asyncio.timeout(PATIENCE):
        pass
    async with asyncio.timeout(PATIENCE):
        await engines.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert sorted(catalog.closed) == ["a", "a2", "bad"]


def test_an_address_that_is_in_use_is_refused_in_one_sentence() -> None:
    with serving.bound("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="already in use"):
            serving.bound("127.0.0.1", port)
    with pytest.raises(ConfigError, match="cannot listen on nowhere"):
        serving.bound("nowhere.invalid", 0)


@pytest.mark.parametrize(
    "url",
    [
        "mysql://user:s3cret@host/name",
        "sqlite://",
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
    assert Database("postgresql://me:s3cret@db:5433/runs").place == "db:5433/runs"
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
