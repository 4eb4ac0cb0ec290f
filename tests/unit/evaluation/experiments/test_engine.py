"""The engine: each task once, and what is away is not done, and is asked again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from fairqr.agents.models.replies import Usage
from fairqr.base.errors import FairqrError, IndexUnavailableError, InputError, ModelError
from fairqr.evaluation.experiments.engine import GIVE_UP, Done, check_answered, run_tasks
from fairqr.evaluation.experiments.folder import Lines, Record
from tests.unit.evaluation.watching import Watcher

SLOW = ModelError("timeout", "Slow.")


class Note(Record):
    """A record of a test."""

    keys = ("name",)

    name: str
    failed: bool = False

    @property
    def is_final(self) -> bool:
        return not self.failed


@pytest.fixture
def lines(tmp_path: Path) -> Lines[Note]:
    return Lines(tmp_path / "notes.jsonl", Note)


class Model:
    """Answers tasks, but for those that it is told to fail at."""

    def __init__(self, **failures: FairqrError | Done[Note]) -> None:
        self.failures = failures
        self.asked: list[str] = []
        self.started: list[str] = []

    async def run(
        self, tasks: Sequence[str], lines: Lines[Note], *, at_once: int = 1, name: str = ""
    ) -> Watcher:
        """Do tasks, each at the place that its first letter names."""

        async def start(place: str) -> None:
            self.started.append(place)

        watcher = Watcher()
        undone = await run_tasks(
            tasks,
            self.answer,
            lines,
            title="tasks",
            keys=lambda task: [(task,)],
            place=lambda task: task[0],
            start=start,
            model=lambda place: name or f"model {place}",
            watcher=watcher,
            at_once=at_once,
        )
        if undone is not None:
            raise undone
        return watcher

    async def answer(self, task: str) -> Done[Note]:
        self.asked.append(task)
        failure = self.failures.get(task, Done((Note(name=task),), ("Said once.",)))
        if isinstance(failure, FairqrError):
            raise failure
        return failure


async def test_each_task_is_done_once_and_one_place_after_the_other(lines: Lines[Note]) -> None:
    tasks, model = [f"{place}{n}" for place in "abc" for n in range(4)], Model()
    await model.run(tasks[2:4], lines)
    watcher = await model.run(tasks, lines, at_once=3)
    assert watcher.stages == [("tasks", 12, 2)]
    assert (watcher.steps, watcher.notes) == (10, ["Said once."])
    assert sorted(model.asked) == tasks
    assert model.started == ["a", "a", "b", "c"]
    await model.run(tasks, lines)
    assert (len(model.asked), len(model.started)) == (12, 4)


@pytest.mark.parametrize("error", [SLOW, IndexUnavailableError("Slow.")])
async def test_what_is_away_is_not_done_and_is_asked_again(
    error: FairqrError, lines: Lines[Note]
) -> None:
    """The run says so at its end, and goes on where it was left.

    A failure is never a result; an audit's report may tell of it by a record.
    """
    told = Done((Note(name="a3", failed=True),), away=error)
    model = Model(a1=error, a3=told)
    with pytest.raises(type(error), match=r"^2 of 4 tasks are not done, .*: Slow; run again"):
        await model.run(["a0", "a1", "a2", "a3"], lines)
    assert [(note.name, note.failed) for note in lines.read()] == [
        ("a0", False),
        ("a2", False),
        ("a3", True),
    ]
    model.failures = {}
    await model.run(["a0", "a1", "a2", "a3"], lines)
    assert model.asked == ["a0", "a1", "a2", "a3", "a1", "a3"]
    assert not any(note.failed for note in lines.read())


async def test_what_is_never_there_is_given_up(lines: Lines[Note]) -> None:
    tasks = [f"a{n}" for n in range(2 * GIVE_UP)]
    away = ModelError("rate_limited", "Too many.")
    model = Model(**dict.fromkeys(tasks, away))
    with pytest.raises(ModelError, match=f"model a failed {GIVE_UP} times in a row") as given_up:
        await model.run(tasks, lines)
    assert given_up.value.status == "rate_limited"
    assert len(model.asked) == GIVE_UP
    few = Model(a1=away, a2=Done((Note(name="a2", failed=True),), away=away))
    with pytest.raises(ModelError, match="did not answer any question"):
        await few.run(tasks[1:3], lines)
    assert lines.read() == []
    # An answer in between says that it is there.
    model = Model(**dict.fromkeys(tasks[: GIVE_UP - 1] + tasks[GIVE_UP:-1], away))
    with pytest.raises(ModelError, match=f"^{2 * GIVE_UP - 2} of {len(tasks)} tasks are not done"):
        await model.run(tasks, lines)


async def test_refusals_are_results_once_the_model_answers_anywhere(lines: Lines[Note]) -> None:
    """All may be refused for the same reason, as with a wrong option; nothing is left of that."""
    refused = {
        it: Done((Note(name=it),), refusal=ModelError("invalid_request", "Odd.")) for it in "bc"
    }
    with pytest.raises(ModelError, match=r"did not answer any question, .*: Odd; fix this"):
        await Model(**refused).run(["a", "b"], lines)
    assert [note.name for note in lines.read()] == ["a"]
    await Model(**refused).run(["a", "b", "c", "d"], lines, name="one")
    assert {note.name for note in lines.read()} == {*"abcd"}


async def test_others_go_on_after_a_model_that_is_away(lines: Lines[Note]) -> None:
    away = dict.fromkeys(("b0", "a1", "c0"), SLOW)
    with pytest.raises(ModelError, match="model c did not answer any question"):
        await Model(**away).run(["a0", "a1", "b0", "b1", "c0", "d0"], lines)
    assert {note.name for note in lines.read()} == {"a0", "b1", "d0"}


@pytest.mark.parametrize("error", [InputError("Bad."), ModelError("parse_error", "Odd.")])
async def test_other_errors_stop_the_run(error: FairqrError, lines: Lines[Note]) -> None:
    with pytest.raises(type(error), match=str(error)):
        await Model(a1=error).run(["a0", "a1", "a2"], lines)
    assert [note.name for note in lines.read()] == ["a0"]


def test_a_refusal_without_tokens_is_the_server_s() -> None:
    """Its key may be wrong; a model that declines has read the question."""
    for status in ("ok", "tie", "essay", "parse_error", "unsupported"):
        assert check_answered(status, "", Usage()) is None
    assert check_answered("invalid_request", "No.", Usage()) is not None
    for usage in (Usage(model_calls=1, prompt_tokens=20), Usage(cached_calls=1)):
        assert check_answered("refused", "", usage) is None
    for status, usage in (("refused", Usage(model_calls=1)), ("timeout", Usage(prompt_tokens=9))):
        with pytest.raises(ModelError, match=f"the status '{status}'"):
            check_answered(status, "", usage)
