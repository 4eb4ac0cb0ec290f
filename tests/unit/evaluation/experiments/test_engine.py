"""The engine: each task once, and what is away is not done, and is asked again."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from fairqr.agents.models.cache import surroundings
from fairqr.base.errors import FairqrError, IndexUnavailableError, InputError, ModelError
from fairqr.evaluation.experiments.engine import GIVE_UP, Done, check_answered, run_tasks
from fairqr.evaluation.experiments.folder import Lines, Record
from tests.unit.evaluation.watching import Watcher

SLOW, MANY = ModelError("timeout", "Slow."), ModelError("rate_limited", "Too many.")


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
    """Answers tasks, but for those that it is told to fail at; the first letter is their place."""

    def __init__(self, **failures: FairqrError | Done[Note]) -> None:
        self.failures = failures
        self.asked: list[str] = []
        self.started: list[str] = []
        self.watcher = Watcher()

    async def run(self, tasks: str, lines: Lines[Note], **options: Any) -> None:
        await run_tasks(
            tasks.split(),
            self.answer,
            lines,
            title="tasks",
            keys=lambda task: [(task,)],
            place=lambda task: task[0],
            start=self.start,
            model=lambda place: f"model {place}",
            watcher=self.watcher,
            **{"at_once": 1, **options},
        )

    async def start(self, place: str) -> None:
        self.started.append(place)

    async def answer(self, task: str) -> Done[Note]:
        self.asked.append(task)
        failure = self.failures.get(task, Done((Note(name=task),), ("Said once.",)))
        if isinstance(failure, FairqrError):
            raise failure
        return failure


async def test_each_task_is_done_once_and_one_place_after_the_other(lines: Lines[Note]) -> None:
    tasks, model = "a0 a1 a2 b0 b1 c0", Model()
    await model.run("a1 a2", lines)
    await model.run(tasks, lines, at_once=3)
    await model.run(tasks, lines)
    assert model.watcher.stages == [("tasks", 2, 0), ("tasks", 6, 2)]
    assert (model.watcher.steps, model.watcher.notes) == (6, ["Said once."] * 2)
    assert sorted(model.asked) == tasks.split()
    assert model.started == ["a", "a", "b", "c"]


@pytest.mark.parametrize("error", [SLOW, IndexUnavailableError("Slow.")])
async def test_what_is_away_is_not_done_and_is_asked_again(
    error: FairqrError, lines: Lines[Note]
) -> None:
    """A failure is never a result; an audit's report may tell of it by a record."""
    model = Model(a1=error, a3=Done((Note(name="a3", failed=True),), away=error))
    with pytest.raises(type(error), match=r"^2 of 4 tasks are not done, .*: Slow; run again"):
        await model.run("a0 a1 a2 a3", lines)
    assert [it.name for it in lines.read() if not it.failed] == ["a0", "a2"]
    await model.run("a0 a1 a2 a3", lines, tolerated=type(error))
    model.failures = {}
    await model.run("a0 a1 a2 a3", lines)
    assert model.asked == ["a0", "a1", "a2", "a3", *["a1", "a3"] * 2]
    assert not any(note.failed for note in lines.read())


def refused(name: str) -> Done[Note]:
    return Done((Note(name=name),), refusal=ModelError("invalid_request", "Odd."))


FEW = [f"a{n}" for n in range(GIVE_UP - 1)]
MORE = [f"b{n}" for n in range(GIVE_UP + 5)]


@pytest.mark.parametrize(
    ("tasks", "failures", "told", "kept"),
    [
        ("a0 a1 b0 c0", {"a1": SLOW, "b0": SLOW}, "model b did not answer any question", "a0 c0"),
        # All may be refused for the same reason, as with a wrong option: nothing is left of that.
        ("a0 b0 b1", {it: refused(it) for it in ("b0", "b1")}, "model b did not.*Odd; fix", "a0"),
        ("a0 a1", {"a1": refused("a1")}, "", "a0 a1"),
        ("a0 a1", {"a0": refused("a0")}, "1 of 2 tasks are not done.*Odd; run again", "a1"),
        (" ".join(MORE), dict.fromkeys(MORE, MANY), f"model b failed {GIVE_UP} times in a row", ""),
        # An answer in between says that it is there.
        (" ".join([*FEW, "a", *FEW]), dict.fromkeys(FEW, MANY), "are not done.*Too many", "a"),
        ("a0 a1 a2", {"a1": InputError("Bad.")}, "^Bad", "a0"),
        ("a0 a1 a2", {"a1": ModelError("parse_error", "Odd.")}, "^Odd", "a0"),
    ],
)
async def test_how_a_run_ends(
    lines: Lines[Note], tasks: str, failures: dict[str, Any], told: str, kept: str
) -> None:
    """With the kind of the error that ended it."""
    with pytest.raises(FairqrError, match=told) if told else nullcontext() as ended:
        await Model(**failures).run(tasks, lines)
    if ended is not None:
        last = [it.refusal if isinstance(it, Done) else it for it in failures.values()][-1]
        assert type(ended.value) is type(last)
        assert getattr(ended.value, "status", "") == getattr(last, "status", "")
    assert [note.name for note in lines.read()] == kept.split()


def test_who_is_away_did_not_answer() -> None:
    """A model that declines, or that nobody can read, has answered; a wrong key is no answer."""
    answers = ("ok", "tie", "essay", "parse_error", "unsupported", "refused")
    assert not any(check_answered(status, "") for status in answers)
    assert check_answered("invalid_request", "No.") is not None
    for status in ("denied", "timeout", "unavailable", "rate_limited"):
        with pytest.raises(ModelError, match=f"the status '{status}'"):
            check_answered(status, "")


async def test_a_question_counts_once_it_is_answered(lines: Lines[Note]) -> None:
    """So that a user is told the time left while the first task is under way."""

    class Questioned(Model):
        async def answer(self, task: str) -> Done[Note]:
            for _ in range(9 if task == "a2" else 2):  # one asks more than was thought
                surroundings().answered()
                counted.append(self.watcher.steps)
            return await super().answer(task)

    model, counted = Questioned(), list[int]()
    await model.run("a1", lines, questions=lambda _: 4)
    await model.run("a1 a2 a3", lines, questions=lambda _: 4)
    assert model.watcher.stages == [
        ("questions about tasks", 4, 0),
        ("questions about tasks", 12, 4),
    ]
    assert counted == [1, 2, 5, 6, 7, 7, 7, 7, 7, 7, 7, 9, 10]
    assert model.watcher.steps == 12
