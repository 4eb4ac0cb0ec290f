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


async def run_tasks(
    tasks: Sequence[T],
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
    questions: Callable[[T], int] = lambda _: 1,
    tolerated: type[FairqrError] | tuple[()] = (),
) -> None:
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
        questions: Returns how many questions of a task to a model the progress counts. One that is
            asked here counts at once, so that the time left is known after the first.
        tolerated: What may be away for some of the tasks without an error.

    Raises:
        ModelError: A model was away, for some tasks or all the time.
        IndexUnavailableError: So was an engine.
        FairqrError: An error stopped a task; the records so far are kept.
    """
    there = lines.done()
    left = [task for task in tasks if not there >= {*keys(task)}]
    heard = {model(place(task)) for task in tasks if there >= {*keys(task)}}
    failed = defaultdict[str, list[FairqrError]](list)  # since the last answer of each model
    undone, shown = list[FairqrError](), set[str]()

    async def work(task: T) -> None:
        who, unanswered = model(place(task)), questions(task)

        def answered() -> None:
            nonlocal unanswered
            if unanswered > 1:  # the last one counts once the task is done
                unanswered -= 1
                watcher.advance()

        try:
            with asking_with(answered=answered):
                found = await do(task)
        except (IndexUnavailableError, ModelError) as error:
            if isinstance(error, ModelError) and error.status not in _AWAY:
                raise
            found = Done((), away=error)
        for sentence in [it for it in found.notes if it not in shown]:
            shown.add(sentence)
            watcher.note(sentence)
        if not found.refusal and any(it.is_final or not found.away for it in found.records):
            heard.add(who)
        failure = found.away or found.refusal
        failed[who] = [*failed[who], failure] if failure else []
        if found.refusal and who not in heard:
            undone.append(found.refusal)
        else:
            undone.extend([found.away] if found.away else [])
            for record in found.records:
                lines.add(record)
        if len(failed[who]) >= GIVE_UP:
            raise _ended(f"{who} failed {GIVE_UP} times in a row", failed[who][-1])
        watcher.advance(unanswered)

    async def work_through(queue: Iterator[T]) -> None:
        for task in queue:
            await work(task)

    if left:
        total, ahead = (sum(map(questions, them)) for them in (tasks, left))
        unit = title if total == len(tasks) else f"questions about {title}"
        watcher.stage(unit, total, total - ahead)
    for at, group in groupby(left, key=place):
        await start(at)
        with lines.writing():
            await run_together(work_through(group) for _ in range(at_once))
    for who, failures in failed.items():
        if failures and who not in heard:
            raise _ended(f"{who} did not answer any question", failures[-1])
    if undone and not isinstance(undone[-1], tolerated):
        raise _ended(f"{len(undone)} of {len(tasks)} {title} are not done", undone[-1], "run again")


def _ended(what: str, error: FairqrError, then: str = "fix this and run again") -> FairqrError:
    """Return the error that ends a run, with the last failure in its sentence."""
    reason = one_line(error, 200).rstrip(".")
    told = f"{what}, the last time with: {reason}; {then}, the results so far are kept."
    return ModelError(error.status, told) if isinstance(error, ModelError) else type(error)(told)
