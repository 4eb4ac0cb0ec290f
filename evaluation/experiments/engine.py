"""Does the tasks of a run, several at a time, and keeps a record of each.

One rule says what a failure is: where a model or an engine is away (a time-out, a rate limit, a
wrong key, a server that does not answer), the task is *not done*. It is asked again when the run
goes on, its failure is no result, and the run ends with a sentence about it. What a model does
answer is a result, also if nobody can read it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Generic, TypeVar

from fairqr.agents.models.replies import Usage
from fairqr.base.errors import FairqrError, IndexUnavailableError, ModelError, one_line
from fairqr.evaluation.experiments.folder import Lines, Record
from fairqr.evaluation.experiments.progress import StageWatcher

P = TypeVar("P", bound=Hashable)
R = TypeVar("R", bound=Record)
T = TypeVar("T")

GIVE_UP = 20
"""What fails this often in a row is not there at all."""

_AWAY = frozenset({"rate_limited", "refused", "timeout", "unavailable"})


@dataclass(frozen=True, slots=True)
class Done(Generic[R]):
    """A task that was done.

    Attributes:
        records: What to write.
        notes: Sentences for the user; each is shown once.
        away: Why a part of it is not done, after these records; only for what is away.
        refusal: Why the model refused everything that was asked. That may be so for each task, as
            with a wrong option, so the records are kept once anything is answered.
    """

    records: Sequence[R]
    notes: Sequence[str] = ()
    away: FairqrError | None = None
    refusal: FairqrError | None = None


def check_answered(status: str, message: str, usage: Usage) -> ModelError | None:
    """Check that a model was there when it was asked.

    Args:
        status: How the question ended; one of :data:`fairqr.agents.models.replies.Status`.
        message: The failure in words.
        usage: What the question cost. If a refusal cost no tokens, the server refused, such as for
            a wrong key, and not the model.

    Returns:
        For :attr:`Done.refusal`, if it refused the question.

    Raises:
        ModelError: It was away.
    """
    cost = usage.prompt_tokens or usage.completion_tokens or usage.cached_calls
    if status in _AWAY and not (status == "refused" and cost):
        raise _failure(status, message)
    return refusal_of([(status, message)])


def refusal_of(replies: Iterable[tuple[str, str]]) -> ModelError | None:
    """Return why a model refused everything that it was asked; None if it did not.

    Args:
        replies: Of each question how it ended, and the failure in words.
    """
    listed = [*replies]
    refuses = listed and all(status == "invalid_request" for status, _ in listed)
    return _failure(*listed[0]) if refuses else None


def _failure(status: str, message: str) -> ModelError:
    return ModelError(status, message or f"the status '{status}'")


async def run_tasks(
    tasks: Iterable[T],
    do: Callable[[T], Awaitable[Done[R]]],
    lines: Lines[R],
    *,
    title: str,
    keys: Callable[[T], Collection[Hashable]],
    place: Callable[[T], P],
    start: Callable[[P], Awaitable[object]],
    model: Callable[[P], str],
    watcher: StageWatcher,
    at_once: int,
    failed: Callable[[T, FairqrError], R] | None = None,
) -> FairqrError | None:
    """Do the tasks that lack a record, one place after the other.

    Args:
        tasks: All tasks, in order of their places.
        do: Does a task.
        lines: The file of records.
        title: For the progress display.
        keys: Returns the keys of the records of a task.
        place: Returns what a task needs, such as a model; large ones do not fit side by side.
        start: Makes a place ready; not called if nothing is left there.
        model: Returns the name of what answers at a place, for sentences.
        watcher: Receives the progress.
        at_once: How many tasks may run at the same time.
        failed: Makes the record of a task that is not done, one that is not final, where a report
            should tell of it; then the run does not end with an error if anything was answered.

    Returns:
        The error that tells what is not done, with which a run should end; None if all is done.

    Raises:
        ModelError: A model is away all the time.
        IndexUnavailableError: So is an engine.
        FairqrError: An error stopped a task; the records so far are kept.
    """
    tasks, there = [*tasks], lines.done()
    done = [there >= {*keys(task)} for task in tasks]
    who = {at: model(at) for at in map(place, tasks)}
    answered = {who[place(task)] for task, is_done in zip(tasks, done, strict=True) if is_done}
    answers = {name: _Answers(name, lines, name in answered) for name in who.values()}
    undone, shown = list[tuple[T, FairqrError]](), set[str]()

    async def one(task: T) -> None:
        try:
            found = await do(task)
        except (IndexUnavailableError, ModelError) as error:
            is_away = isinstance(error, IndexUnavailableError) or error.status in _AWAY
            # Where a report tells of failures, they are the engine's and not those of a model.
            if not is_away or (failed is not None and isinstance(error, ModelError)):
                raise
            found = Done((), away=error)
        if found.away is not None:
            undone.append((task, found.away))
        for sentence in [it for it in found.notes if it not in shown]:
            shown.add(sentence)
            watcher.note(sentence)
        answers[who[place(task)]].take(found)
        watcher.advance()

    begun = False
    for at, group in groupby(zip(tasks, done, strict=True), key=lambda it: place(it[0])):
        if left := [task for task, is_done in group if not is_done]:
            await start(at)
            if not begun:
                watcher.stage(title, len(tasks), sum(done))
            begun = True
            with lines.writing():
                await _all_of(left, one, at_once)
    for each in answers.values():
        each.end()
    if failed is not None:
        with lines.writing():
            for task, why in undone:
                lines.add(failed(task, why))
    if failed is not None or not undone:
        return None
    of = Counter(who[place(task)] for task in tasks)
    missing = Counter(who[place(task)] for task, _ in undone)
    named = [f"{name} did not answer {missing[name]} of {of[name]} tasks" for name in missing]
    return _away("; ".join(named), undone[-1][1], "run again")


@dataclass(slots=True)
class _Answers(Generic[R]):
    """What came of all tasks that one model answers.

    Attributes:
        model: The name of what answers.
        lines: The file of records, open for writing.
        has_answered: Whether it ever answered, now or in an earlier run.
    """

    model: str
    lines: Lines[R]
    has_answered: bool
    _held: list[R] = field(default_factory=list, init=False)
    _in_a_row: int = field(default=0, init=False)
    _last: FairqrError | None = field(default=None, init=False)

    def take(self, found: Done[R]) -> None:
        """Keep the records of a task, once it is known that the model is there.

        Raises:
            FairqrError: It failed so often in a row that going on is of no use.
        """
        self._last = found.away or found.refusal
        self._held.extend(found.records)
        self.has_answered |= found.refusal is None and bool(found.records)
        while self.has_answered and self._held:
            self.lines.add(self._held.pop(0))
        self._in_a_row = 0 if self._last is None else self._in_a_row + 1
        if self._last is not None and self._in_a_row >= GIVE_UP:
            what = f"{self.model} failed {GIVE_UP} times in a row"
            raise _away(what, self._last, "fix this and run again")

    def end(self) -> None:
        """Check at the end of a run that anything was answered.

        Raises:
            FairqrError: Nothing was, as with a wrong key in a short run.
        """
        if self._last is not None and not self.has_answered:
            what = f"{self.model} did not answer any question"
            raise _away(what, self._last, "fix this and run again")


def _away(what: str, error: FairqrError, then: str) -> FairqrError:
    """Return the error that ends a run, with the last failure in its sentence."""
    reason = one_line(error, 200).rstrip(".")
    told = f"{what}, the last time with: {reason}; {then}, the results so far are kept."
    return ModelError(error.status, told) if isinstance(error, ModelError) else type(error)(told)


async def _all_of(things: Iterable[T], work: Callable[[T], Awaitable[None]], at_once: int) -> None:
    """Do something with each thing, several at a time.

    Raises:
        FairqrError: What stopped one; the others are stopped too.
    """
    left = iter(things)

    async def worker() -> None:
        for thing in left:
            await work(thing)

    stopped: list[BaseException] = []
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(worker())
    except* (FairqrError, OSError) as errors:
        stopped += errors.exceptions
    if stopped:
        # What stops one stops them all; the first sentence says it.
        raise stopped[0]
