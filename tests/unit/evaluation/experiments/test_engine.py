"""The engine: each task once, a few of them first, and what is left is said beforehand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from fairqr.agents.models.replies import Usage
from fairqr.base.errors import ModelError
from fairqr.evaluation.experiments import engine
from fairqr.evaluation.experiments.engine import (
    Absence,
    Done,
    Estimate,
    Keep,
    Stage,
    Timing,
    run_stages,
)
from fairqr.evaluation.experiments.folder import Lines, Record
from tests.unit.evaluation.watching import Watcher


class Note(Record):
    """A record of a test."""

    keys = ("name",)

    name: str


class Clock:
    """A second passes at each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def lines(tmp_path: Path) -> Lines[Note]:
    return Lines(tmp_path / "notes.jsonl", Note, "the note")


def _stages(
    lines: Lines[Note],
    stages: dict[str, Sequence[str]],
    answer: Callable[[str], Done[Note]],
    started: list[str] | None = None,
) -> Callable[[], AsyncIterator[Stage[str, Note]]]:
    async def do(task: str, keep: Keep[Note]) -> None:
        keep(answer(task))

    async def made() -> AsyncIterator[Stage[str, Note]]:
        for title, tasks in stages.items():

            async def start(title: str = title) -> None:
                if started is not None:
                    started.append(title)

            yield Stage(
                title=title,
                model="model",
                tasks=tasks,
                keys=lambda task: [task],
                done={note.name for note in lines.read()},
                start=start,
                do=do,
                lines=lines,
                pace=title[:1],
            )

    return made


def _answered(task: str) -> Done[Note]:
    return Done(Note(name=task), (None,), usage=Usage(model_calls=1, prompt_tokens=90))


async def test_a_few_of_each_pace_are_timed_and_nothing_is_done_twice(
    lines: Lines[Note], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "time", Clock())
    tasks = {f"{pace}{n}": [f"{pace}{n} {k}" for k in range(8)] for pace in "ab" for n in range(2)}
    watcher, asked, started = Watcher(), list[str](), list[str]()

    def answer(task: str) -> Done[Note]:
        asked.append(task)
        return _answered(task)

    stages = _stages(lines, tasks, answer, started)
    await run_stages(stages, watcher=watcher, at_once=1)
    assert watcher.stages[:2] == [("a0, timed", 3, 0), ("b0, timed", 3, 0)]
    assert watcher.stages[2:] == [("a0", 8, 3), ("a1", 8, 0), ("b0", 8, 3), ("b1", 8, 0)]
    assert sorted(asked) == sorted(task for each in tasks.values() for task in each)
    # 26 records at a second and 90 tokens each; the first of each pace was not timed.
    assert watcher.notes == ["about 26 s and 2,300 tokens are left"]
    started.clear()
    await run_stages(stages, watcher=watcher, at_once=1)
    assert not started
    assert len(watcher.notes) == 1


async def test_a_model_that_is_away_from_the_start_leaves_nothing(lines: Lines[Note]) -> None:
    def answer(task: str) -> Done[Note]:
        return Done(Note(name=task), (Absence("timeout", "It was slow."),))

    stages = _stages(lines, {"a": [str(number) for number in range(10)]}, answer)
    with pytest.raises(
        ModelError, match="model answered none of 13 questions, the last time with: It"
    ):
        await run_stages(stages, watcher=Watcher(), at_once=1)
    assert lines.read() == []


async def test_half_answered_tasks_are_held_until_the_model_is_back(lines: Lines[Note]) -> None:
    """Two questions of a task may be answered in any order while the model goes away."""
    away = Absence("timeout", "It was slow.")
    replies = {"0": (None, away), "1": (away, None), "2": (away, away), "3": (None, None)}
    written: list[int] = []

    def answer(task: str) -> Done[Note]:
        written.append(len(lines.read()))
        return Done(Note(name=task), replies[task])

    await run_stages(_stages(lines, {"a": list(replies)}, answer), watcher=Watcher(), at_once=1)
    assert written == [0, 0, 0, 0]
    assert {note.name for note in lines.read()} == set(replies)


def test_what_the_cache_holds_is_no_work() -> None:
    timing = Timing()
    for usage in (Usage(model_calls=1), Usage(cached_calls=1, cached_tokens=9), Usage()):
        timing.add(2.0, usage)
    assert (timing.done, timing.work) == (6.0, 2.0)


@pytest.mark.parametrize(
    ("stages", "sentence"),
    [
        ([(100, 1, 0)], "about 2 min are left"),
        ([(100, 1, 0), (1, 0, 0)], "at least 2 min are left"),
        ([(10, 1, 9), (10, 1, 9)], "about 20 s and 180 tokens are left"),
    ],
)
def test_what_is_left_in_words(stages: list[tuple[int, int, int]], sentence: str) -> None:
    estimate = Estimate()
    for work, timed, tokens in stages:
        usage = Usage(model_calls=1, prompt_tokens=tokens)
        estimate.add(work, Timing(work=timed, usage=usage, seconds=timed))
    assert estimate.sentence() == sentence
