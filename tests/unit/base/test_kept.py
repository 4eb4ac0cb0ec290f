"""What is remembered for a while, and what is forgotten."""

from __future__ import annotations

import math

from fairqr.base.kept import Kept


def test_a_value_is_kept_until_another_replaces_it() -> None:
    kept = Kept[str, int](most=2, seconds=math.inf)
    kept.add("one", 1)
    kept.add("one", 2)
    assert (kept.get("one"), kept.get("other"), len(kept)) == (2, None, 1)
    kept.clear()
    assert kept.get("one") is None


def test_the_least_recently_used_value_is_forgotten_first() -> None:
    kept = Kept[str, int](most=2, seconds=math.inf)
    kept.add("one", 1)
    kept.add("two", 2)
    assert kept.get("one") == 1
    kept.add("three", 3)
    assert [kept.get(key) for key in ("one", "two", "three")] == [1, None, 3]


def test_a_value_that_is_too_old_is_forgotten() -> None:
    kept = Kept[str, int](most=2, seconds=-1.0)
    kept.add("one", 1)
    assert kept.get("one") is None
    assert len(kept) == 0
