"""Does the tasks of a run, several at a time, and keeps a record of each.

One rule says what a failure is: where a model or an engine is away (a time-out, a rate limit, a
wrong key, a server that does not answer), the task is *not done*. It is asked again when the run
goes on, its failure is no result, and the run ends with a sentence about it. What a model does
answer is a result, also if nobody can read it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Generic, TypeVar

from fairqr.agents.models.replies import Usage
from fairqr.base.errors import FairqrError, IndexUnavailableError, ModelError, one_line
from fairqr.evaluation.experiments.folder import Lines, Record
from fairqr.evaluation.experiments.progress import StageWatcher

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


@dataclass(slots=True)
class _Answers:
    """What came of all tasks that one model answers.

    Attributes:
        tasks: How many there are.
        has_answered: Whether it ever answered, now or in an earlier run.
        held: Records to write once it is known that the model is there.
        in_a_row: How many tasks failed since the last answer.
        last: Why the last task failed, if it did.
        undone: Why tasks are not done.
    """

    tasks: int = 0
    has_answered: bool = False
    held: list[Any] = field(default_factory=list)
    in_a_row: int = 0
    last: FairqrError | None = None
    undone: list[FairqrError] = field(default_factory=list)


async def run_tasks(
    tasks: Iterable[T],
    do: Callable[[T], Awaitable[Done[R]]],
    lines: Lines[R],
    *,
    title: str,
    keys: Callable[[T], Collection[Hashable]],
    start: Callable[[Any], Awaitable[object]],
    model: Callable[[Any], str],
    watcher: StageWatcher,
    at_once: int,
    place: Callable[[T], Any] = lambda _: None,
    failed: Callable[[T, FairqrError], R] | None = None,
) -> FairqrError | None:
    """Do the tasks that lack a record, one place after the other.

    Args:
        tasks: All tasks, in order of their places.
        do: Does a task.
        lines: The file of records.
        title: For the progress display.
        keys: Returns the keys of the records of a task.
        start: Makes a place ready; not called if nothing is left there.
        model: Returns the name of what answers at a place, for sentences.
        watcher: Receives the progress.
        at_once: How many tasks may run at the same time.
        place: Returns what a task needs, such as a model; large ones do not fit side by side.
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
    left = [task for task in tasks if not there >= {*keys(task)}]
    answers: dict[str, _Answers] = {}
    for task in tasks:
        own = answers.setdefault(model(place(task)), _Answers())
        own.tasks += 1
        own.has_answered |= there >= {*keys(task)}
    untold, shown = list[R](), set[str]()

    async def one(task: T) -> None:
        who = model(place(task))
        own = answers[who]
        try:
            found = await do(task)
        except (IndexUnavailableError, ModelError) as error:
            is_away = isinstance(error, IndexUnavailableError) or error.status in _AWAY
            # Where a report tells of failures, they are the engine's and not those of a model.
            if not is_away or (failed is not None and isinstance(error, ModelError)):
                raise
            found = Done((), away=error)
        if found.away is not None:
            own.undone.append(found.away)
            untold.extend([failed(task, found.away)] if failed else [])
        for sentence in [it for it in found.notes if it not in shown]:
            shown.add(sentence)
            watcher.note(sentence)
        own.last = found.away or found.refusal
        own.held.extend(found.records)
        own.has_answered |= found.refusal is None and bool(found.records)
        while own.has_answered and own.held:
            lines.add(own.held.pop(0))
        own.in_a_row = 0 if own.last is None else own.in_a_row + 1
        if own.last is not None and own.in_a_row >= GIVE_UP:
            raise _ended(f"{who} failed {GIVE_UP} times in a row", own.last)
        watcher.advance()

    if left:
        watcher.stage(title, len(tasks), len(tasks) - len(left))
    for at, group in groupby(left, key=place):
        await start(at)
        with lines.writing():
            await _all_of(group, one, at_once)
    for who, own in answers.items():
        if own.last is not None and not own.has_answered:
            raise _ended(f"{who} did not answer any question", own.last)
    if untold:
        with lines.writing():
            for record in untold:
                lines.add(record)
    missing = {who: own for who, own in answers.items() if own.undone}
    if failed is not None or not missing:
        return None
    named = [
        f"{it} did not answer {len(own.undone)} of {own.tasks} tasks" for it, own in missing.items()
    ]
    return _ended("; ".join(named), [*missing.values()][-1].undone[-1], "run again")


def _ended(what: str, error: FairqrError, then: str = "fix this and run again") -> FairqrError:
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

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(worker())
    except* (FairqrError, OSError) as errors:
        stopped = errors.exceptions[0]
    else:
        return
    # What stops one stops them all; the first sentence says it.
    raise stopped
