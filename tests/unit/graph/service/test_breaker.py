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


@pytest.fixture
def switch() -> Breaker:
    return Breaker("people")


def fail(switch: Breaker, clock: Clock, times: int = FAILURES) -> None:
    """Fail so often, for as long as failures must last to count."""
    for number in range(times):
        if number:
            clock.now += LASTING / (FAILURES - 2)
        switch.add(failed=True)


def test_it_opens_once_enough_searches_failed(switch: Breaker, clock: Clock) -> None:
    fail(switch, clock, FAILURES - 1)
    assert not switch.is_open

    clock.now += LASTING
    fail(switch, clock, 1)
    assert switch.is_open


def test_it_opens_for_a_minute_and_then_for_five(
    switch: Breaker, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    fail(switch, clock)
    for pause in (PAUSES[0], PAUSES[1], PAUSES[1]):
        assert switch.is_open

        for _ in range(100):  # searches that were under way
            switch.add(failed=True)
        clock.now += pause - 1
        assert switch.is_open

        clock.now += 2
        assert not switch.is_open

        fail(switch, clock)

    sentences = [record.getMessage() for record in caplog.records]
    assert sentences[:3] == [
        "Searches of 'people' are not re-ranked for 60 s: 10 of the last 10 failed or were late.",
        "Searches of 'people' are re-ranked again.",
        "Searches of 'people' are not re-ranked for 300 s: 10 of the last 10 failed or were late.",
    ]


def test_a_few_late_lists_among_many_do_not_open_it(switch: Breaker, clock: Clock) -> None:
    for number in range(1_000):
        switch.add(failed=number % 3 == 0)
        clock.now += 0.01
    assert not switch.is_open


def test_a_stall_is_no_reason_however_many_lists_it_makes_late(
    switch: Breaker, clock: Clock
) -> None:
    for _ in range(1_000):
        switch.add(failed=True)
        clock.now += LASTING / 1_100
    assert not switch.is_open


def test_failures_that_are_long_ago_do_not_count(switch: Breaker, clock: Clock) -> None:
    for _ in range(100):
        switch.add(failed=True)
        clock.now += SPAN / (FAILURES - 2)
    assert not switch.is_open


def test_after_successes_it_opens_for_a_minute_again(switch: Breaker, clock: Clock) -> None:
    fail(switch, clock)
    clock.now += PAUSES[0]
    assert not switch.is_open

    for _ in range(FAILURES):
        switch.add(failed=False)
    fail(switch, clock)
    clock.now += PAUSES[0] + 1

    assert not switch.is_open
