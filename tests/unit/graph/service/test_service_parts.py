"""Parts of the service by themselves: problems, engines, slow clients, the database."""

from __future__ import annotations

import asyncio
import json
import sqlite3
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

ERRORS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, FairqrError)
]
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "BudgetError": ("tokens", 9, 5, "Less."),
    "LimitError": ("k", 5, "Less."),
    "ModelError": ("timeout", "Late."),
}


def error_of(kind: type[Any]) -> FairqrError:
    """Make an error of a class."""
    if issubclass(kind, BusyError):
        return kind("Wait.", retry_after=2.0, own=True)
    error: FairqrError = kind(*ARGUMENTS.get(kind.__name__, ("So.",)))
    return error


@pytest.mark.promise("service")
@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_each_error_has_a_status_and_says_its_sentence(kind: type[FairqrError]) -> None:
    """Each error is a problem document whose `type` names it, with an HTTP status and its one
    sentence.
    """
    document = problem_of(error_of(kind), "/v1/runs/1")
    assert 400 <= document["status"] < 600
    assert document["type"] == f"urn:fairqr:error:{kind.slug}"
    assert document["title"]
    assert document["detail"]


def test_whoever_is_too_busy_has_a_status_of_its_own() -> None:
    assert problem_of(BusyError("Wait.", retry_after=2, own=True))["status"] == 429
    assert problem_of(BusyError("Wait.", retry_after=2, own=False))["status"] == 503


def test_a_problem_has_the_fields_of_its_error() -> None:
    assert problem_of(LimitError("k", 5, "Less."))["limit"] == "k"
    assert problem_of(ModelError("timeout", "Late."))["model_status"] == "timeout"


def test_what_was_sent_is_not_sent_back() -> None:
    error = errors.RunNotFoundError("x" * 60_000)
    assert len(json.dumps(problem_of(error, f"/v1/runs/{'x' * 60_000}"))) < 2000


def test_nothing_of_an_exception_that_is_not_ours_is_told() -> None:
    document = problem_of(ValueError("the password is swordfish"))
    assert document["status"] == 500
    assert "swordfish" not in json.dumps(document)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "LOCALHOST.", "[::1]"])
def test_a_host_is_loopback_and_names_that_begin_so_are_not(host: str) -> None:
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
            raise OSError("the first")
        if name == "never":
            await asyncio.Event().wait()
        stamped = name + self.stamp(name)

        async def aclose() -> None:
            self.closed.append(stamped)
            if name == "bad":
                raise OSError(name)

        return SimpleNamespace(aclose=aclose)


@pytest.fixture
def catalog() -> _Catalog:
    return _Catalog()


@pytest.fixture
def engines(catalog: Any) -> Engines:
    return Engines(catalog, {})


async def lent(engines: Engines, name: str) -> Any:
    """Borrow an engine and give it back at once."""
    async with engines.lend(name) as engine:
        return engine


async def fail_first(engines: Engines) -> None:
    """Open an engine, which fails."""
    with pytest.raises(OSError, match="the first"):
        await lent(engines, "a")


async def test_an_engine_is_opened_once(catalog: _Catalog, engines: Engines) -> None:
    await fail_first(engines)
    first, second = await asyncio.gather(lent(engines, "a"), lent(engines, "a"))
    assert first is second
    assert catalog.opened == 2, "that which failed, and this one"


async def test_all_who_wait_for_an_engine_hear_that_it_fails(
    catalog: _Catalog, engines: Engines
) -> None:
    failures = await asyncio.gather(lent(engines, "a"), lent(engines, "a"), return_exceptions=True)
    assert [type(failure) for failure in failures] == [OSError, OSError]
    assert catalog.opened == 1


async def test_an_engine_is_replaced_when_nobody_uses_it(
    catalog: _Catalog, engines: Engines
) -> None:
    await fail_first(engines)
    async with engines.lend("a") as old:
        catalog.stamps["a"] = "2"
        assert await lent(engines, "a") is not old

        await asyncio.sleep(0.01)
        assert catalog.closed == []

    await asyncio.sleep(0.01)
    assert catalog.closed == ["a"]


async def test_at_the_end_all_engines_are_closed_or_given_up(
    catalog: _Catalog, engines: Engines
) -> None:
    await fail_first(engines)
    await lent(engines, "a")
    opening = asyncio.create_task(engines.lend("never").__aenter__())
    async with asyncio.timeout(PATIENCE):
        await lent(engines, "bad")
        await engines.close()
        with pytest.raises(asyncio.CancelledError):
            await opening

    assert sorted(catalog.closed) == ["a", "bad"]


def test_an_address_that_is_in_use_is_refused_in_one_sentence() -> None:
    with serving.bound("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="already in use"):
            serving.bound("127.0.0.1", port)


def test_a_host_that_does_not_exist_is_refused_in_one_sentence() -> None:
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


async def test_a_database_is_named_without_user_and_password(
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

    await database.close()


async def test_a_failure_of_the_database_is_told_without_its_words(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/runs.sqlite")
    with pytest.raises(StoreUnavailableError) as failure:
        async with database.begin():
            raise sa.exc.OperationalError("", None, sqlite3.OperationalError("no secret place"))

    await database.close()
    assert "secret" not in str(failure.value)
