"""Does the tasks of a run, several at a time, and keeps a record of each.

One rule says what a failure is: where a model or an engine is away (a time-out, a rate limit, a
wrong key, a server that does not answer), the task is *not done*. It is asked again when the run
goes on, its failure is no result, and the run ends with a sentence about it. What a model does
answer is a result, also if nobody can read it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
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

_AWAY = frozenset({"invalid_request", "rate_limited", "refused", "timeout", "unavailable"})


@dataclass(frozen=True, slots=True)
class Done(Generic[R]):
    """A task that was done.

    Attributes:
        records: What to write.
        notes: Sentences for the user; each is shown once.
        away: Why a part of it is not done, after these records; only for what is away.
    """

    records: Sequence[R]
    notes: Sequence[str] = ()
    away: FairqrError | None = None


def check_answered(status: str, message: str, usage: Usage) -> None:
    """Check that a model was there when it was asked.

    Args:
        status: How the question ended; one of :data:`fairqr.agents.models.replies.Status`.
        message: The failure in words.
        usage: What the question cost. If a refusal cost no tokens, the server refused, such as for
            a wrong key, and not the model.

    Raises:
        ModelError: It was away.
    """
    cost = usage.prompt_tokens or usage.completion_tokens or usage.cached_calls
    if status in _AWAY and not (status == "refused" and cost):
        raise ModelError(status, message or f"the status '{status}'")


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
    left = [task for task in tasks if not there >= {*keys(task)}]
    has_answered = len(left) < len(tasks)
    in_a_row, undone, shown = 0, list[tuple[T, str, FairqrError]](), set[str]()

    async def one(at: P, task: T) -> None:
        nonlocal in_a_row, has_answered
        try:
            found = await do(task)
        except (IndexUnavailableError, ModelError) as error:
            if isinstance(error, ModelError) and error.status not in _AWAY:
                raise
            found = Done((), away=error)
        for record in found.records:
            lines.add(record)
        for sentence in [it for it in found.notes if it not in shown]:
            shown.add(sentence)
            watcher.note(sentence)
        has_answered = has_answered or bool(found.records) or found.away is None
        if found.away is None:
            in_a_row = 0
        else:
            undone.append((task, model(at), found.away))
            in_a_row += 1
            if in_a_row >= GIVE_UP:
                times = f"failed {in_a_row} times in a row, the last time"
                told = f"{times} with: {{}}; fix this and run again"
                raise _away(model(at), found.away, told) from None
        watcher.advance()

    for at, group in groupby(left, key=place):
        waiting = [*group]
        await start(at)
        if waiting[0] is left[0]:
            watcher.stage(title, len(tasks), len(tasks) - len(left))
        in_a_row = 0
        with lines.writing():
            await _all_of(waiting, partial(one, at), at_once)
    if undone and not has_answered:
        _, who, why = undone[-1]
        raise _away(who, why, "did not answer any question, the last time with: {}; run again")
    if failed is not None:
        with lines.writing():
            for task, _, why in undone:
                lines.add(failed(task, why))
    if failed is not None or not undone:
        return None
    _, who, why = undone[-1]
    which = f"{len(undone)} of {len(tasks)} tasks"
    told = f"did not answer {which}, the last time with: {{}}; run again"
    return _away(who, why, told)


def _away(model: str, error: FairqrError, sentence: str) -> FairqrError:
    """Return the error that ends a run, with the last failure in its sentence."""
    reason = one_line(error, 200).rstrip(".")
    told = f"{model} {sentence.format(reason)}, the results so far are kept."
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
