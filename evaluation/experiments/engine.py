"""Runs the tasks of an experiment, several at a time, and keeps a record of each.

A kind of experiment supplies its stages. What does a task is a job: a function that a
:class:`~fairqr.evaluation.workers.tools.Pool` calls in this process or on Ray.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from fairqr.agents.replies import Usage
from fairqr.evaluation.at_once import all_of
from fairqr.evaluation.experiments.care import Cautious, Patience
from fairqr.evaluation.experiments.folder import Lines
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.evaluation.workers.tools import Pool, Tools

__all__ = ["Absence", "Done", "Keep", "Stage", "by_job", "run_stages"]

N = TypeVar("N")
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
    """What became of a task, or of a part of it.

    Attributes:
        record: To be written.
        replies: In the order of the questions, None for an answer and an absence for none.
        notes: Sentences for people; each is shown once.
        usage: Of models.
        is_held: Whether the record is written only once the model has answered again, as one with
            an absence is.
    """

    record: R
    replies: tuple[Absence | None, ...] = ()
    notes: tuple[str, ...] = ()
    usage: Usage = field(default_factory=Usage)
    is_held: bool = False


Keep = Callable[[Done[R]], None]
"""Takes what is done, and keeps its record."""


@dataclass(frozen=True, slots=True)
class Stage(Generic[T, R]):
    """Tasks that need the same model.

    Attributes:
        title: For the progress display.
        model: Its name, for error messages.
        tasks: All of them.
        keys: Returns the keys of the records that a task makes.
        done: The keys of the records that are there. A task is left out if all its records are.
        start: Makes the model ready, and then begins the folder; not called if nothing is left.
        do: Does one task.
        lines: Where records go.
    """

    title: str
    model: str
    tasks: Sequence[T]
    keys: Callable[[T], Sequence[Hashable]]
    done: Set[Hashable]
    start: Callable[[], Awaitable[object]]
    do: Callable[[T, Keep[R]], Awaitable[None]]
    lines: Lines[R]

    @property
    def left(self) -> list[T]:
        """The tasks that lack a record."""
        return [task for task in self.tasks if not self.done >= set(self.keys(task))]


def by_job(
    pool: Pool, job: Callable[[Tools, N, T], Awaitable[Done[R]]], needs: N
) -> Callable[[T, Keep[R]], Awaitable[None]]:
    """Return what does a task by one job.

    Args:
        pool: Does the job.
        job: Takes the tools of its worker, the needs and a task.
        needs: What all tasks of the stage share, as plain data.
    """

    async def do(task: T, keep: Keep[R]) -> None:
        keep(await pool.do(job, needs, task))

    return do


async def run_stages(
    stages: AsyncIterator[Stage[Any, Any]], *, watcher: StageWatcher, at_once: int
) -> None:
    """Do the tasks of all stages that have no record yet, one stage after the other.

    Records with absences are written once the model has answered again.

    Args:
        stages: What to do; each is asked for when the one before is done.
        watcher: Told of each record.
        at_once: How many tasks may run at the same time.

    Raises:
        ModelError: A model is away all the time, or never answered.
        FairqrError: What stopped a task; the records until then are kept.
    """
    answered: set[str] = set()
    async for stage in stages:
        has_answered = stage.model in answered or any(
            key in stage.done for task in stage.tasks for key in stage.keys(task)
        )
        patience = Patience(stage.model, has_answered=has_answered)
        await _run_stage(stage, patience, watcher, at_once)
        if patience.has_answered:
            answered.add(stage.model)


async def _run_stage(
    stage: Stage[T, R], patience: Patience, watcher: StageWatcher, at_once: int
) -> None:
    """Do the tasks of a stage that have no record yet."""
    keys = [key for task in stage.tasks for key in stage.keys(task)]
    if not stage.left:
        return
    await stage.start()
    watcher.stage(stage.title, len(keys), sum(key in stage.done for key in keys))
    written = Cautious(stage.lines, patience)
    shown: set[str] = set()

    def keep(found: Done[R]) -> None:
        away = found.is_held
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
        await all_of(stage.left, lambda task: stage.do(task, keep), at_once)
        patience.at_the_end()
