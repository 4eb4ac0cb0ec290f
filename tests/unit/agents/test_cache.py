"""Kept replies: their bound, and what may happen to their file."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from fairqr.agents.models.cache import ReplyCache
from tests.patience import PATIENCE

LIMIT = 400_000
TEXT = {"text": "x" * 1000}
K = {"k": {"a": 1}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "replies.sqlite"


async def test_a_read_makes_no_file(path: Path) -> None:
    assert await ReplyCache(path).get_many(["a"]) == {}
    assert not path.exists()


@pytest.mark.parametrize("is_file", [True, False], ids=["file", "memory"])
async def test_odd_texts_survive(path: Path, is_file: bool) -> None:
    """Half a surrogate pair, which models can send, is no reason to fail."""
    cache = ReplyCache(path) if is_file else ReplyCache()
    await cache.put_many({"k": {"a": "\ud800\u2028é"}})

    assert await cache.get_many(["k", "none"]) == {"k": {"a": "\ud800\u2028é"}}


@pytest.mark.promise("agents")
async def test_the_file_stays_below_its_limit(path: Path) -> None:
    """Replies are kept within a bound.

    The first replies give way to the last ones, written alone or many at once.
    """
    cache = ReplyCache(path, max_bytes=LIMIT)
    for number in range(500):
        await cache.put_many({f"k{number}": TEXT})
    for start in range(500, 1000, 20):
        await cache.put_many({f"k{start + number}": TEXT for number in range(20)})

    entries = await cache.get_many([f"k{number}" for number in range(1000)])

    assert "k0" not in entries
    assert {f"k{number}" for number in range(800, 1000)} <= set(entries)
    assert path.stat().st_size < LIMIT * 1.1
    assert list(path.parent.iterdir()) == [path]


def test_processes_may_write_and_drop_at_once(path: Path) -> None:
    """Two that fill the same new file keep it whole and below the limit."""
    workers = [
        subprocess.Popen([sys.executable, "-c", FILL, str(path), str(LIMIT), name])
        for name in ("a", "b")
    ]
    assert [worker.wait(PATIENCE) for worker in workers] == [0, 0]
    assert path.stat().st_size < LIMIT * 1.2
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    rows = connection.execute("SELECT count(*) FROM kept").fetchone()[0]
    connection.close()
    assert rows > 100, "each drops what is too much, and no more"


FILL = """
import asyncio, pathlib, sys
from fairqr.agents.models.cache import ReplyCache

async def fill() -> None:
    cache = ReplyCache(pathlib.Path(sys.argv[1]), max_bytes=int(sys.argv[2]))
    for number in range(500):
        key = f"{sys.argv[3]}{number}"
        await cache.put_many({key: {"text": "x" * 1000}})
        await cache.get_many([key])

asyncio.run(fill())
"""


@pytest.mark.promise("agents")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("garbage", id="no database"),
        pytest.param("", id="a folder"),
        pytest.param("garbage/below", id="below a file"),
    ],
)
async def test_no_state_of_the_file_is_an_error(tmp_path: Path, name: str) -> None:
    """A damaged cache stops nothing."""
    path = tmp_path / name
    (tmp_path / "garbage").write_bytes(b"not a database at all" * 100)

    await ReplyCache(path).put_many(K)

    assert await ReplyCache(path).get_many(["k"]) == {}


async def test_a_cache_that_was_deleted_is_made_again(path: Path) -> None:
    """As when somebody empties the folder under a service."""
    cache = ReplyCache(path)
    await cache.put_many(K)
    for file in path.parent.glob("replies*"):
        file.unlink()
    assert await cache.get_many(["k"]) == {}
    await cache.put_many(K)
    assert await cache.get_many(["k"]) == K
    assert path.exists()


async def test_memory_holds_the_last_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairqr.agents.models.cache.MAX_REPLIES", 3)
    cache = ReplyCache()
    keys = [str(number) for number in range(5)]
    for key in keys:
        await cache.put_many({key: {"reply": key}})

    assert list(await cache.get_many(keys)) == keys[2:]
