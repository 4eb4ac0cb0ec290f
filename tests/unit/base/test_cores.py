"""How many cores there are for us."""

from __future__ import annotations

import os

import pytest

from fairqr.base.cores import usable_cores


@pytest.mark.parametrize(("named", "expected"), [("3", 3), (" 2,4", 2)])
def test_the_environment_says_how_many(
    monkeypatch: pytest.MonkeyPatch, named: str, expected: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", named)
    assert usable_cores() == expected


@pytest.mark.parametrize("named", [None, "", "0", "-1", "many", "²"])
def test_otherwise_it_is_what_the_process_may_use(
    monkeypatch: pytest.MonkeyPatch, named: str | None
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if named is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", named)
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)
