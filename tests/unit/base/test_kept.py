"""What is remembered for a while, and what is forgotten."""

from __future__ import annotations

import math

from fairqr.base.kept import Kept


def test_a_value_is_kept_until_another_replaces_it() -> None:
    values = Kept[str, int](most=2, seconds=math.inf)
    values.add("one", 1)
    values.add("one", 2)
    assert (values.get("one"), values.get("other"), len(values)) == (2, None, 1)
    values.clear()
    assert values.get("one") is None


def test_the_least_recently_used_value_is_forgotten_first() -> None:
    values = Kept[str, int](most=2, seconds=math.inf)
    values.add("one", 1)
    values.add("two", 2)
    assert values.get("one") == 1
    values.add("three", 3)
    assert [values.get(key) for key in ("one", "two", "three")] == [1, None, 3]


def test_a_value_that_is_too_old_is_forgotten() -> None:
    values = Kept[str, int](most=2, seconds=-1.0)
    values.add("one", 1)

    assert values.get("one") is None
    assert len(values) == 0
