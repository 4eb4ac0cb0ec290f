"""What a long run tells a log: where it is, and about how long it will take."""

from __future__ import annotations

import pytest

from fairqr.base.errors import InputError
from fairqr.cli.common import LARGE_CALLS, LARGE_TOKENS, agree
from fairqr.cli.progress import Progress
from fairqr.evaluation.experiments.progress import time_left


def test_times_are_told_coarsely() -> None:
    times = {0: "0 s", 89: "89 s", 90: "2 min", 90000: "25.0 h"}
    assert {seconds: time_left(seconds) for seconds in times} == times


def test_a_log_tells_the_time_left_at_each_tenth(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What was done before is no step of this run."""
    with Progress() as stages:
        stages.stage("answers", 110, 10)
        for _ in range(100):
            stages.advance()
    lines = capsys.readouterr().err.splitlines()

    assert lines[0] == "answers: 10 of 110 done"

    steps = [f"  {done} of 110" for done in (15, 26, 37, 48, 59, 70, 81, 92, 103)]
    assert [line.split(",")[0] for line in lines[1:]] == steps
    assert all(line.endswith(" left") for line in lines[1:])


def test_a_log_tells_every_ten_seconds_of_what_takes_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as texts that are encoded."""
    clock = iter(range(0, 1000, 4))
    monkeypatch.setattr("fairqr.cli.progress.time.monotonic", lambda: next(clock))
    with Progress() as stages:
        advance = stages.prepare("vectors of people")
        for done in range(128, 1000, 128):
            advance(done, 1000)
    lines = capsys.readouterr().err.splitlines()

    assert lines[0].startswith("preparing vectors of people: 128 of 1000, about ")
    assert 2 <= len(lines) < 7


@pytest.mark.promise("command")
@pytest.mark.parametrize(
    ("calls", "tokens"),
    [(LARGE_CALLS + 1, 0), (0, LARGE_TOKENS + 1)],
    ids=["calls", "tokens"],
)
def test_a_run_needs_consent_over_either_limit(calls: int, tokens: int) -> None:
    """A run that may take more than 2,000 calls or 1,000,000 tokens ends with one sentence unless
    `--yes` agrees to it.
    """
    with pytest.raises(InputError, match="make it smaller, or add --yes to go on"):
        agree(calls, tokens, yes=False)

    agree(calls, tokens, yes=True)


def test_a_run_up_to_both_limits_needs_no_consent() -> None:
    assert (LARGE_CALLS, LARGE_TOKENS) == (2_000, 1_000_000)

    agree(LARGE_CALLS, LARGE_TOKENS, yes=False)
