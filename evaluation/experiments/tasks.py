"""Does the tasks of a run, several at a time, and keeps a record of each.

One rule says what a failure is: where a model or an engine is away (a time-out, a rate limit, a
wrong key, a server that does not answer), the task is *not done*. It is asked again when the run
goes on, its failure is no result, and the run ends with a sentence about it. What a model does
answer is a result, also if nobody can read it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Generic, TypeVar

from fairqr.agents.models.cache import asking_with
from fairqr.base.errors import FairqrError, IndexUnavailableError, ModelError, one_line
from fairqr.base.loops import run_together
from fairqr.evaluation.experiments.folder import Lines, Record
from fairqr.evaluation.experiments.progress import StageWatcher

R = TypeVar("R", bound=Record)
T = TypeVar("T")

GIVE_UP = 20
"""What fails this often in a row is not there at all."""

_AWAY = frozenset({"rate_limited", "denied", "timeout", "unavailable"})


@dataclass(frozen=True, slots=True)
class Done(Generic[R]):
    """A task that was done.

    Attributes:
        records: What to write. One that is not final reports a failure.
        notes: Sentences for the user; each is shown once.
        away: Why a part of it is not done, after these records; only for what is away.
        refusal: Why the model refused everything that was asked. That may be so for each task, as
            with a wrong option, so it is a result only of a model that ever answered.
    """

    records: Sequence[R]
    notes: Sequence[str] = ()
    away: FairqrError | None = None
    refusal: FairqrError | None = None


def check_answered(status: str, message: str) -> ModelError | None:
    """Check that a model was there when it was asked.

    Args:
        status: How the question ended; one of :data:`fairqr.agents.models.replies.Status`.
        message: The failure in words.

    Returns:
        Why the model refused the question, if it did; for :func:`refusal_of`.

    Raises:
        ModelError: It was away.
    """
    failure = ModelError(status, message or f"the status '{status}'")
    if status in _AWAY:
        raise failure
    return failure if status == "invalid_request" else None


def refusal_of(checked: Sequence[ModelError | None]) -> ModelError | None:
    """Return why a model refused all questions of a task, for :attr:`Done.refusal`.

    Args:
        checked: What :func:`check_answered` returned for each.
    """
    return checked[0] if checked and all(checked) else None


@dataclass(frozen=True, kw_only=True)
class Tasks(Generic[T, R]):
    """The tasks of a run, how each is done, and where its records go.

    Attributes:
        tasks: All tasks, in order of their places.
        do: Does a task.
        lines: The file of records.
        title: What the tasks are called in sentences and in the progress display.
        keys: Returns the keys of the records of a task.
        start: Makes a place ready; not called if nothing is left there.
        name_at: Returns the name of what answers at a place, for sentences.
        place: Returns what a task needs, such as a model; large ones do not fit side by side.
        questions: Returns how many questions of a task to a model the progress counts. One that is
            asked here counts at once, so that the time left is known after the first.
        tolerated: What may be away for some of the tasks without an error.
    """

    tasks: Sequence[T]
    do: Callable[[T], Awaitable[Done[R]]]
    lines: Lines[R]
    title: str
    keys: Callable[[T], Collection[Hashable]]
    start: Callable[[Any], Awaitable[object]]
    name_at: Callable[[Any], str]
    place: Callable[[T], Any] = lambda _: None
    questions: Callable[[T], int] = lambda _: 1
    tolerated: type[FairqrError] | tuple[()] = ()


async def run_tasks(tasks: Tasks[T, R], *, watcher: StageWatcher, at_once: int) -> None:
    """Do the tasks that lack a record, one place after the other.

    Args:
        tasks: What to do.
        watcher: Receives the progress.
        at_once: How many tasks may run at the same time.

    Raises:
        ModelError: A model was away, for some tasks or all the time.
        IndexUnavailableError: So was an engine.
        FairqrError: An error stopped a task; the records so far are kept.
    """
    await _Runner(tasks, watcher).run(at_once)


class _Runner(Generic[T, R]):
    """Does tasks, and says what failed."""

    def __init__(self, plan: Tasks[T, R], watcher: StageWatcher) -> None:
        self._plan = plan
        self._watcher = watcher
        self._remaining: list[T] = []
        # The names of what has ever answered.
        self._heard: set[str] = set()
        # Failures since the last answer, by the name of what failed.
        self._failures = defaultdict[str, list[FairqrError]](list)
        # Why tasks are not done.
        self._undone: list[FairqrError] = []
        self._notes: set[str] = set()
        done = plan.lines.done()
        for task in plan.tasks:
            if done.issuperset(plan.keys(task)):
                self._heard.add(self._name_of(task))
            else:
                self._remaining.append(task)

    def _name_of(self, task: T) -> str:
        return self._plan.name_at(self._plan.place(task))

    async def run(self, at_once: int) -> None:
        """Do all tasks that are left, so many at a time."""
        plan = self._plan
        if self._remaining:
            self._begin_stage()
        for place, tasks in groupby(self._remaining, key=plan.place):
            await plan.start(place)
            with plan.lines.writing():
                await run_together(self._work_through(tasks) for _ in range(at_once))
        for name, failures in self._failures.items():
            if failures and name not in self._heard:
                raise _ended(f"{name} did not answer any question", failures[-1])
        if self._undone and not isinstance(self._undone[-1], plan.tolerated):
            count = f"{len(self._undone)} of {len(plan.tasks)} {plan.title}"
            raise _ended(f"{count} are not done", self._undone[-1], "run again")

    def _begin_stage(self) -> None:
        """Tell the watcher how many tasks or questions there are, and how many are left."""
        total = sum(map(self._plan.questions, self._plan.tasks))
        remaining = sum(map(self._plan.questions, self._remaining))
        title = self._plan.title
        unit = title if total == len(self._plan.tasks) else f"questions about {title}"
        self._watcher.stage(unit, total, total - remaining)

    async def _work_through(self, tasks: Iterator[T]) -> None:
        for task in tasks:
            await self._work(task)

    async def _work(self, task: T) -> None:
        """Do a task, and keep what came out."""
        questions = _Questions(self._plan.questions(task), self._watcher)
        with asking_with(answered=questions.count):
            done = await self._done(task)
        for note in done.notes:
            if note not in self._notes:
                self._notes.add(note)
                self._watcher.note(note)
        self._keep(self._name_of(task), done)
        questions.finish()

    async def _done(self, task: T) -> Done[R]:
        """Do a task; what is away is no error yet."""
        try:
            return await self._plan.do(task)
        except IndexUnavailableError as error:
            return Done((), away=error)
        except ModelError as error:
            if error.status not in _AWAY:
                raise
            return Done((), away=error)

    def _keep(self, name: str, done: Done[R]) -> None:
        """Write the records of a task, unless nobody knows whether its model answers at all.

        Raises:
            FairqrError: What answers has failed too often in a row.
        """
        has_result = any(record.is_final or not done.away for record in done.records)
        if has_result and not done.refusal:
            self._heard.add(name)
        failure = done.away or done.refusal
        failures = self._failures[name]
        if failure is None:
            failures.clear()
        else:
            failures.append(failure)
        if done.refusal and name not in self._heard:
            self._undone.append(done.refusal)
        else:
            if done.away:
                self._undone.append(done.away)
            for record in done.records:
                self._plan.lines.add(record)
        if len(failures) >= GIVE_UP:
            raise _ended(f"{name} failed {GIVE_UP} times in a row", failures[-1])


class _Questions:
    """Counts the answered questions of a task.

    Args:
        number: How many there are at most.
        watcher: Receives each.
    """

    def __init__(self, number: int, watcher: StageWatcher) -> None:
        self._unanswered = number
        self._watcher = watcher

    def count(self) -> None:
        """Count an answer; the last one counts once the task is done."""
        if self._unanswered > 1:
            self._unanswered -= 1
            self._watcher.advance()

    def finish(self) -> None:
        """Count those that were not asked."""
        self._watcher.advance(self._unanswered)


def _ended(reason: str, error: FairqrError, advice: str = "fix this and run again") -> FairqrError:
    """Return the error that ends a run, with the last failure in its sentence."""
    last = one_line(error, 200).rstrip(".")
    message = f"{reason}, the last time with: {last}; {advice}, the results so far are kept."
    if isinstance(error, ModelError):
        return ModelError(error.status, message)
    return type(error)(message)
