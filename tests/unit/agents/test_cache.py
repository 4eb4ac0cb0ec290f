"""The file that keeps replies: its bound, its one connection, and what may happen to it."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fairqr.agents.models.cache import MAX_BYTES, ReplyFile, ReplyMemory
from tests.patience import PATIENCE

LIMIT = 400_000
TEXT = {"text": "x" * 1000}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "replies.sqlite"


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arguments of each connection that is opened."""
    opened: list[Any] = []
    connect = sqlite3.connect

    def counted(*arguments: Any, **options: Any) -> sqlite3.Connection:
        opened.append(arguments)
        return connect(*arguments, **options)

    monkeypatch.setattr(sqlite3, "connect", counted)
    return opened


def write(path: Path, statement: str, *values: Any) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement, values)
    connection.close()


class TestBound:
    async def test_the_file_stays_below_its_limit(self, path: Path) -> None:
        """The first replies give way to the last ones."""
        cache = ReplyFile(path, max_bytes=LIMIT)
        for number in range(1000):
            await cache.put(f"k{number}", TEXT)
        assert await cache.get("k0") is None
        kept = await cache.get_many([f"k{number}" for number in range(1000)])
        assert {f"k{number}" for number in range(800, 1000)} <= set(kept)
        cache.close()
        assert path.stat().st_size < LIMIT * 1.1

    async def test_many_at_once_are_bounded_too(self, path: Path) -> None:
        cache = ReplyFile(path, max_bytes=LIMIT)
        for start in range(0, 1000, 100):
            await cache.put_many({f"k{start + number}": TEXT for number in range(100)})
        assert await cache.get("k0") is None
        assert await cache.get("k999") == TEXT

    async def test_what_was_used_stays(self, path: Path) -> None:
        """Whoever reads a reply keeps it from being dropped; what nobody reads goes first."""
        cache = ReplyFile(path, max_bytes=LIMIT)
        await cache.put_many({"read": TEXT, "unread": TEXT})
        write(path, "UPDATE kept SET at = datetime('now', '-9 days')")
        await cache.put_many({f"day{number}": TEXT for number in range(200)})
        write(path, "UPDATE kept SET at = datetime('now', '-1 day') WHERE key LIKE 'day%'")
        assert await cache.get("read") == TEXT
        await cache.put_many({f"new{number}": TEXT for number in range(200)})
        assert await cache.get("read") == TEXT
        assert await cache.get("unread") is None
        assert await cache.get("day0") is None

    async def test_an_object_that_is_too_large_is_dropped(self, path: Path) -> None:
        cache = ReplyFile(path, max_bytes=LIMIT)
        await cache.put("huge", {"text": "x" * 2 * LIMIT})
        assert await cache.get("huge") is None
        await cache.put("small", TEXT)
        assert await cache.get("small") == TEXT

    def test_processes_may_drop_at_once(self, path: Path) -> None:
        """Two that fill the same file keep it whole and below the limit."""
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

    def test_the_default_limit_holds_many_replies(self) -> None:
        assert MAX_BYTES >= 100_000 * 1000


FILL = """
import asyncio, pathlib, sys
from fairqr.agents.models.cache import ReplyFile

async def fill() -> None:
    cache = ReplyFile(pathlib.Path(sys.argv[1]), max_bytes=int(sys.argv[2]))
    for number in range(500):
        await cache.put(f"{sys.argv[3]}{number}", {"text": "x" * 1000})
        await cache.get(f"{sys.argv[3]}{number}")

asyncio.run(fill())
"""


class TestConnection:
    async def test_a_process_opens_a_file_once(self, path: Path, connections: list[Any]) -> None:
        """However many look something up, and through however many caches."""
        caches = [ReplyFile(path), ReplyFile(path)]
        await asyncio.gather(*(cache.put(f"k{n}", {"n": n}) for cache in caches for n in range(20)))
        found = await asyncio.gather(*(cache.get(f"k{n}") for cache in caches for n in range(20)))
        assert found == [{"n": n} for _ in caches for n in range(20)]
        assert len(connections) == 1

    def test_threads_with_loops_of_their_own_share_it(
        self, path: Path, connections: list[Any]
    ) -> None:
        cache = ReplyFile(path)
        found: list[Any] = []

        def use(name: str) -> None:
            for number in range(20):
                asyncio.run(cache.put(f"{name}{number}", {"n": number}))
                found.append(asyncio.run(cache.get(f"{name}{number}")) == {"n": number})

        threads = [threading.Thread(target=use, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert found == [True] * 80
        assert len(connections) == 1

    async def test_nothing_is_opened_before_it_is_used(
        self, path: Path, connections: list[Any]
    ) -> None:
        ReplyFile(path)
        assert connections == []
        assert not path.exists()

    async def test_it_closes_with_the_last_cache_of_the_file(self, path: Path) -> None:
        """SQLite then takes away the files beside it."""
        one, two = ReplyFile(path), ReplyFile(path)
        await one.put("k", {"a": 1})
        del one
        gc.collect()
        assert len(list(path.parent.iterdir())) > 1, "the other cache holds it"
        assert await two.get("k") == {"a": 1}
        del two
        gc.collect()
        # The thread that looked it up may hold the cache for a moment longer.
        until = time.monotonic() + PATIENCE
        while list(path.parent.iterdir()) != [path] and time.monotonic() < until:
            time.sleep(0.01)
        assert list(path.parent.iterdir()) == [path]

    async def test_a_closed_cache_opens_again(self, path: Path) -> None:
        cache = ReplyFile(path)
        cache.close()
        await cache.put("k", {"a": 1})
        cache.close()
        cache.close()
        assert list(path.parent.iterdir()) == [path]
        assert await cache.get("k") == {"a": 1}

    def test_the_end_of_the_process_closes_it(self, path: Path) -> None:
        script = (
            "import asyncio, pathlib, sys\n"
            "from fairqr.agents.models.cache import ReplyFile\n"
            "cache = ReplyFile(pathlib.Path(sys.argv[1]))\n"
            "asyncio.run(cache.put('k', {'a': 1}))\n"
        )
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", script, path], capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert list(path.parent.iterdir()) == [path]


class TestDamage:
    async def test_a_file_that_was_deleted_is_made_again(self, path: Path) -> None:
        """As when somebody empties the cache folder while a service runs."""
        cache = ReplyFile(path)
        await cache.put("k", {"a": 1})
        for file in path.parent.iterdir():
            file.unlink()
        assert await cache.get("k") is None
        await cache.put("k", {"a": 2})
        assert await cache.get("k") == {"a": 2}
        assert path.exists()

    async def test_a_file_that_was_replaced_is_read(self, path: Path, tmp_path: Path) -> None:
        other = ReplyFile(tmp_path / "other" / "replies.sqlite")
        await other.put("k", {"a": 2})
        other.close()
        cache = ReplyFile(path)
        await cache.put("k", {"a": 1})
        other.path.replace(path)
        for file in path.parent.glob("replies.sqlite-*"):
            file.unlink()
        assert await cache.get("k") == {"a": 2}

    async def test_garbage_in_an_open_file_does_no_harm(self, path: Path) -> None:
        """Asking goes on, and a file that is whole again is used again."""
        cache = ReplyFile(path)
        for number in range(100):
            await cache.put(f"k{number}", TEXT)
        cache.close()
        assert await cache.get("k1") == TEXT
        with path.open("r+b") as file:
            file.write(b"no database at all" * 1000)
        for number in range(100):
            await cache.get(f"k{number}")
            await cache.put(f"n{number}", TEXT)
        cache.close()
        assert await cache.get("k1") is None
        path.unlink()
        await cache.put("k", {"a": 1})
        assert await cache.get("k") == {"a": 1}

    async def test_a_failed_write_leaves_no_transaction_open(self, path: Path) -> None:
        """Other processes can write after it."""
        cache = ReplyFile(path)
        await cache.put("k", {"a": 1})
        write(
            path,
            "CREATE TRIGGER refuse BEFORE INSERT ON kept BEGIN SELECT RAISE(ABORT, 'no'); END",
        )
        await cache.put("new", {"a": 2})
        write(path, "DROP TRIGGER refuse")
        assert await cache.get("new") is None
        await cache.put("new", {"a": 3})
        assert await cache.get_many(["k", "new"]) == {"k": {"a": 1}, "new": {"a": 3}}

    async def test_a_row_that_is_damaged_hides_no_other(self, path: Path) -> None:
        cache = ReplyFile(path)
        await cache.put_many({"good": {"a": 1}, "bad": {"a": 1}})
        write(path, "UPDATE kept SET value = '{' WHERE key = 'bad'")
        assert await cache.get_many(["good", "bad", "none"]) == {"good": {"a": 1}}


async def test_a_memory_is_bounded_too() -> None:
    """What was used last stays."""
    memory = ReplyMemory(max_replies=2)
    await memory.put_many({"a": {"n": 1}, "b": {"n": 2}})
    assert await memory.get("a") == {"n": 1}
    await memory.put("c", {"n": 3})
    assert await memory.get_many(["a", "b", "c"]) == {"a": {"n": 1}, "c": {"n": 3}}
