"""Runs the tasks of an experiment, several at a time, and keeps a record of each.

A kind of experiment supplies its tasks and what does one of them, mostly a job that a
:class:`~fairqr.evaluation.workers.tools.Pool` does in this process or on Ray.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence, Set
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel

from fairqr.evaluation.at_once import all_of
from fairqr.evaluation.experiments.care import Cautious, Patience
from fairqr.evaluation.experiments.folder import Lines
from fairqr.evaluation.experiments.progress import StageWatcher

__all__ = ["Absence", "Done", "Stage", "run_stage"]

R = TypeVar("R", bound=BaseModel)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Absence:
    """A model that did not answer because it was away; see :func:`care.is_away`.

    Attributes:
        status: Of the failure.
        message: Of the failure, for people.
        times: How many questions in a row.
    """

    status: str
    message: str
    times: int = 1


@dataclass(frozen=True, slots=True)
class Done(Generic[R]):
    """What became of a task.

    Attributes:
        record: To be written.
        replies: In the order of the questions, None for an answer and an absence for none.
        notes: Sentences for people; each is shown once.
    """

    record: R
    replies: tuple[Absence | None, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stage(Generic[T, R]):
    """Tasks that need the same model.

    Attributes:
        title: For the progress display.
        model: Its name, for error messages.
        tasks: All of them.
        key: Returns the key of a task's record.
        do: Does one task.
        lines: Where records go.
        has_answered: Whether the model answered in an earlier stage or run.
    """

    title: str
    model: str
    tasks: Sequence[T]
    key: Callable[[T], Hashable]
    do: Callable[[T], Awaitable[Done[R]]]
    lines: Lines[R]
    has_answered: bool = False


async def run_stage(
    stage: Stage[T, R],
    done: Set[Hashable],
    *,
    start: Callable[[], Awaitable[None]],
    watcher: StageWatcher,
    at_once: int,
) -> bool:
    """Do the tasks of a stage that have no record yet.

    Records with absences are written once the model has answered again.

    Args:
        stage: What to do.
        done: The keys of the final records, whose tasks are skipped.
        start: Makes the model ready, and then begins the folder; not called if nothing is left.
        watcher: Told of each task.
        at_once: How many tasks may run at the same time.

    Returns:
        Whether the model has answered, now or before.

    Raises:
        ModelError: The model is away all the time, or never answered.
        FairqrError: What stopped a task; the records until then are kept.
    """
    todo = [task for task in stage.tasks if stage.key(task) not in done]
    if not todo:
        return stage.has_answered
    await start()
    watcher.stage(stage.title, len(stage.tasks), len(stage.tasks) - len(todo))
    patience = Patience(stage.model, has_answered=stage.has_answered)
    written = Cautious(stage.lines, patience)
    shown: set[str] = set()

    async def one(task: T) -> None:
        found = await stage.do(task)
        away = False
        for reply in found.replies:
            if reply is None:
                patience.answered()
            else:
                away = True
                patience.failed(reply.status, reply.message, reply.times)
        for sentence in found.notes:
            if sentence not in shown:
                shown.add(sentence)
                watcher.note(sentence)
        written.add(found.record, has_failures=away)
        watcher.advance()

    with written.writing():
        await all_of(todo, one, at_once)
        patience.at_the_end()
    return patience.has_answered
