"""When the proxy stops trying to re-rank an index, and when it tries again."""

from __future__ import annotations

import pytest

from fairqr.graph.service.proxy import breaker
from fairqr.graph.service.proxy.breaker import FAILURES, LASTING, PAUSES, SPAN, Breaker


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(breaker, "time", clock)
    return clock


def fail(one: Breaker, clock: Clock, times: int = FAILURES) -> None:
    """Fail so often, for as long as failures must last to count."""
    for number in range(times):
        if number:
            clock.now += LASTING / (FAILURES - 2)
        one.add(failed=True)


def test_it_opens_for_a_minute_then_for_five_and_closes_by_itself(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    one = Breaker("people")
    fail(one, clock, FAILURES - 1)
    assert not one.is_open
    clock.now += LASTING
    fail(one, clock, 1)
    for pause in (PAUSES[0], PAUSES[1], PAUSES[1]):
        assert one.is_open
        for _ in range(100):  # of what was asked before
            one.add(failed=True)
        clock.now += pause - 1
        assert one.is_open
        clock.now += 2
        assert not one.is_open
        fail(one, clock)
    said = [record.getMessage() for record in caplog.records]
    assert said[:3] == [
        "Searches of 'people' are not re-ranked for 60 s: 10 of the last 10 failed or were late.",
        "Searches of 'people' are re-ranked again.",
        "Searches of 'people' are not re-ranked for 300 s: 10 of the last 10 failed or were late.",
    ]


def test_a_few_late_lists_among_many_do_not_open_it(clock: Clock) -> None:
    one = Breaker("people")
    for number in range(1_000):
        one.add(failed=number % 3 == 0)
        clock.now += 0.01
    assert not one.is_open


def test_a_stall_is_no_reason_however_many_lists_it_makes_late(clock: Clock) -> None:
    one = Breaker("people")
    for _ in range(1_000):
        one.add(failed=True)
        clock.now += LASTING / 1_100
    assert not one.is_open


def test_failures_that_are_long_ago_do_not_count(clock: Clock) -> None:
    one = Breaker("people")
    for _ in range(100):
        one.add(failed=True)
        clock.now += SPAN / (FAILURES - 2)
    assert not one.is_open


def test_it_recovers(clock: Clock) -> None:
    one = Breaker("people")
    fail(one, clock)
    clock.now += PAUSES[0]
    assert not one.is_open
    for _ in range(FAILURES):
        one.add(failed=False)
    fail(one, clock)
    clock.now += PAUSES[0] + 1
    assert not one.is_open  # a minute, as the first time
