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


async def test_a_read_makes_no_file_and_odd_texts_survive(path: Path) -> None:
    """Half a surrogate pair, which models can send, is no reason to fail."""
    assert await ReplyCache(path).get_many(["a"]) == {}
    assert not path.exists()
    for cache in (ReplyCache(path), ReplyCache()):
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
    kept = await cache.get_many([f"k{number}" for number in range(1000)])
    assert "k0" not in kept
    assert {f"k{number}" for number in range(800, 1000)} <= set(kept)
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
async def test_no_state_of_the_file_is_an_error(path: Path, tmp_path: Path) -> None:
    """A damaged cache stops nothing.

    One that was deleted, as when somebody empties the folder under a service, is made again.
    """
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"not a database at all" * 100)
    for wrong in (garbage, tmp_path, garbage / "below"):
        await ReplyCache(wrong).put_many(K)
        assert await ReplyCache(wrong).get_many(["k"]) == {}
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
    kept, keys = ReplyCache(), [str(number) for number in range(5)]
    for key in keys:
        await kept.put_many({key: {"reply": key}})
    assert list(await kept.get_many(keys)) == keys[2:]
