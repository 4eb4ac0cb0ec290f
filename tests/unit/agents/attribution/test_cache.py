"""Verdicts that are kept on disk."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from fairqr.agents.attribution.attributor import AttributorName, CachedAttributor, Pair, Verdict
from fairqr.agents.attribution.overlap import OverlapAttributor
from fairqr.agents.models.cache import ReplyCache
from fairqr.agents.models.replies import Usage


class Counting(CachedAttributor):
    """Overlap, which remembers what it was asked and fails on some pairs."""

    def __init__(self, cache: ReplyCache | None, threshold: float | None = None) -> None:
        name = AttributorName(kind="overlap", threshold=threshold)
        super().__init__(name, cache)
        self.asked: list[Pair] = []
        self._overlap = OverlapAttributor(name)
        self.identity = self._overlap.identity

    async def start(self) -> None:
        """Nothing is needed."""

    async def judge_new(self, pairs: Sequence[Pair]) -> list[Verdict]:
        self.asked += pairs
        return [
            Verdict("timeout", message="Too late.", usage=Usage(model_calls=1))
            if "slow" in pair.premise
            else Verdict(v.status, v.attributed, v.score, v.message, Usage(1, 0, 20, 1))
            for pair, v in zip(pairs, await self._overlap.judge(pairs), strict=True)
        ]


A, B, SLOW, EMPTY = Pair("red", "red"), Pair("red", "blue"), Pair("slow", "red"), Pair("red", " ")


@pytest.fixture
def cache(tmp_path: Path) -> ReplyCache:
    return ReplyCache(tmp_path / "verdicts.sqlite")


class TestCachedAttributor:
    async def test_equal_pairs_of_a_call_are_judged_once(self) -> None:
        """Also without a cache; the cost stands with the first of them."""
        inner = Counting(None)
        verdicts = await inner.judge([A, B, A, B, A])
        assert inner.asked == [A, B]
        assert [verdict.attributed for verdict in verdicts] == [True, False, True, False, True]
        assert [verdict.usage.model_calls for verdict in verdicts] == [1, 1, 0, 0, 0]

    async def test_what_was_judged_is_not_asked_again(self, cache: ReplyCache) -> None:
        """The verdict is the same, and says what it cost when it was reached."""
        first = await Counting(cache).judge([A, B])
        inner = Counting(cache)
        again = await inner.judge([B, A, Pair("new", "new")])
        assert inner.asked == [Pair("new", "new")]
        assert [(v.attributed, v.score) for v in again[:2]] == [
            (v.attributed, v.score) for v in first[::-1]
        ]
        assert again[0].usage == Usage(cached_calls=1, cached_tokens=21)

    async def test_failures_are_not_kept(self, cache: ReplyCache) -> None:
        """What failed may heal, and what is empty costs nothing."""
        for _ in range(2):
            inner = Counting(cache)
            verdicts = await inner.judge([SLOW, EMPTY, A])
            assert [verdict.status for verdict in verdicts] == ["timeout", "empty_answer", "ok"]
        assert inner.asked == [SLOW, EMPTY]

    async def test_a_damaged_cache_forgets_and_judging_goes_on(self, cache: ReplyCache) -> None:
        """A file that is no database, and rows that nobody here wrote."""
        await Counting(cache).judge([A, B])
        with sqlite3.connect(cache.path) as connection:
            connection.execute('UPDATE kept SET value = \'{"attributed": "yes"}\'')
        inner = Counting(cache)
        assert [v.attributed for v in await inner.judge([A, B])] == [True, False]
        assert inner.asked == [A, B]
        cache.close()
        for path in cache.path.parent.glob("verdicts.sqlite*"):
            path.write_bytes(b"no database at all" * 100)
        inner = Counting(cache)
        assert (await inner.judge([A]))[0].attributed is True
        assert inner.asked == [A]

    async def test_verdicts_live_in_the_file_of_the_replies(self, cache: ReplyCache) -> None:
        """One file, one table; nothing of a document stands in it."""
        await Counting(cache).judge([Pair("SECRETWORD", "SECRETWORD")])
        assert await cache.get_many(["none"]) == {}
        with sqlite3.connect(cache.path) as connection:
            rows = connection.execute("SELECT key, value FROM kept").fetchall()
        assert len(rows) == 1
        assert "SECRET" not in str(rows)
