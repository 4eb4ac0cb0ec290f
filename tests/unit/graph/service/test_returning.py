"""When clients that are refused may come again."""

from __future__ import annotations

import pytest

from fairqr.graph.service.http import returning
from fairqr.graph.service.http.returning import APART, LATEST, ReturnTimes


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_clients_of_a_key_return_one_after_the_other() -> None:
    times = ReturnTimes(Clock())
    waits = [times.wait("key a", 2.0) for _ in range(100)]
    assert waits == pytest.approx([2.0 + APART * number for number in range(100)])


def test_clients_of_another_key_wait_no_longer_for_it() -> None:
    times = ReturnTimes(Clock())
    for _ in range(100):
        times.wait("key a", 2.0)
    assert times.wait("key b", 2.0) == 2.0


def test_waits_are_short_again_once_the_others_have_returned() -> None:
    clock = Clock()
    times = ReturnTimes(clock)
    for _ in range(100):
        times.wait("key a", 2.0)
    clock.now += 2.0 + 100 * APART
    assert times.wait("key a", 2.0) == 2.0


def test_no_wait_exceeds_the_longest_or_the_time_of_the_limit() -> None:
    times = ReturnTimes(Clock())
    waits = [times.wait("key a", 2.0) for _ in range(5_000)]
    assert max(waits) == LATEST
    assert times.wait("key a", 2 * LATEST) == 2 * LATEST


def test_keys_whose_times_have_passed_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(returning, "MOST_KEPT", 10)
    clock = Clock()
    times = ReturnTimes(clock)
    for number in range(1_000):
        clock.now += 3.0
        times.wait(f"address {number}", 2.0)
    assert len(times._last_times) <= 10
