"""Runs the tasks of an experiment, several at a time, and keeps a record of each.

A kind of experiment supplies its stages. A job does a task: it is a function that a
:class:`~fairqr.evaluation.workers.tools.Pool` calls in this process or on Ray. The engine times a
few tasks first, and estimates the rest. A model that goes away ends a run, and leaves no failures
behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Hashable,
    Iterable,
    Iterator,
    Sequence,
    Set,
)
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from fairqr.agents.models.replies import Usage
from fairqr.base.errors import FairqrError, IndexUnavailableError, ModelError, one_line
from fairqr.evaluation.experiments.folder import Lines, Record
from fairqr.evaluation.experiments.progress import StageWatcher, time_left
from fairqr.evaluation.workers.tools import Pool, Tools

N = TypeVar("N")
R = TypeVar("R", bound=Record)
T = TypeVar("T")

GIVE_UP = 20
"""A model with this many failures in a row is not there at all."""

ENGINE = "engine"
"""The status of an absence of an engine."""
_AWAY = frozenset({"invalid_request", "rate_limited", "timeout", "unavailable"})

TIMED = 3
"""At least this many records of a stage come first, to be timed."""

WORTH_TIMING = 2
"""A stage is timed if it has at least this many times more records left than come first."""


@dataclass(slots=True)
class Timing:
    """The time and tokens of a few records.

    The first record is not timed, because everything is still warming up. Records whose replies all
    came from the cache are left out.

    Attributes:
        done: The work of all of them.
        work: The work of those that count.
        usage: What models used for these.
        seconds: How long these took.
    """

    done: float = 0.0
    work: float = 0.0
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    _begun: float | None = field(default=None, init=False)

    def add(self, work: float, usage: Usage) -> None:
        """Take a record that was made just now."""
        now = time.monotonic()
        self.done += work
        if self._begun is None:
            self._begun = now
        elif usage.model_calls or not usage.cached_calls:
            self.work += work
            self.usage += usage
            self.seconds = now - self._begun


@dataclass(slots=True)
class Estimate:
    """The time and tokens that the rest of a run will take.

    Attributes:
        seconds: How long it will take.
        tokens: How many tokens models will read and write.
        is_whole: Whether everything that is left was timed.
    """

    seconds: float = 0.0
    tokens: float = 0.0
    is_whole: bool = True

    def add(self, work: float, timing: Timing) -> None:
        """Count the rest of a stage.

        Args:
            work: The work that is left.
            timing: What some records of the same pace took.
        """
        if not timing.work:
            self.is_whole = self.is_whole and not work
            return
        share = work / timing.work
        self.seconds += share * timing.seconds
        self.tokens += share * (timing.usage.prompt_tokens + timing.usage.completion_tokens)

    def sentence(self) -> str:
        """Return a sentence about the rest."""
        listed = time_left(self.seconds)
        if self.tokens >= 1:
            listed += f" and {float(f'{self.tokens:.2g}'):,.0f} tokens"
        return f"{'about' if self.is_whole else 'at least'} {listed} are left"


def is_away(status: str, usage: Usage) -> bool:
    """Return whether a failure means that a model is not there at all.

    Args:
        status: One of :data:`fairqr.agents.models.replies.Status`, or another one.
        usage: The cost of the question. If a refusal cost no tokens, the server refused, such as
            for a wrong key, and not the model.
    """
    if status == "refused":
        return not (usage.prompt_tokens or usage.completion_tokens or usage.cached_calls)
    return status in _AWAY


class Patience:
    """Counts the failures of a model in a row.

    Args:
        name: The model's name in sentences.

    Attributes:
        has_answered: Whether the model ever answered, now or in an earlier run.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._failures = 0
        self._last: tuple[str, str] | None = None
        self.has_answered = False

    def answered(self) -> None:
        """Count an answer."""
        self._failures = 0
        self.has_answered = True

    def failed(self, status: str, message: str, times: int = 1) -> None:
        """Count a failure.

        Args:
            status: The status of the last failure.
            message: The last failure in words.
            times: How often it failed in a row.

        Raises:
            ModelError: It failed so often in a row that going on is of no use.
            IndexUnavailableError: So did an engine.
        """
        self._failures += times
        self._last = (status, one_line(message, 200).rstrip("."))
        if self._failures >= GIVE_UP:
            raise _gone(
                status,
                f"{self._name} failed {self._failures} times in a row, the last time with: "
                f"{self._last[1]}; fix this and run again, the answers so far are kept.",
            )

    def at_the_end(self) -> None:
        """Check at the end that the model answered at all.

        Raises:
            ModelError: The model never answered, as with a wrong key in a short run.
            IndexUnavailableError: The engine never did.
        """
        if self._last is not None and not self.has_answered:
            status, message = self._last
            raise _gone(
                status,
                f"{self._name} answered none of {self._failures} questions, the last time with: "
                f"{message}; fix this and run again.",
            )


class Cautious(Generic[R]):
    """Writes records; those with failures only once the model has answered again.

    So a model that goes away leaves no failures behind: a resumed run repeats its last questions.

    Args:
        lines: The file to write to.
    """

    def __init__(self, lines: Lines[R]) -> None:
        self._lines = lines
        self._held: list[R] = []

    @contextlib.contextmanager
    def writing(self, *, is_last: bool = True) -> Iterator[None]:
        """Open the file; held records are written at the end, unless an error ends it.

        Args:
            is_last: Whether this was the last question; otherwise held records are dropped.
        """
        with self._lines.writing():
            yield
            if is_last:
                self._release()

    def add(self, record: R, *, has_failures: bool, is_back: bool) -> None:
        """Take a record.

        Args:
            record: The record to write.
            has_failures: Whether the model was away for one of its questions.
            is_back: Whether the model has answered a question since its last failure.
        """
        if has_failures:
            self._held.append(record)
        else:
            self._lines.add(record)
        if is_back:
            self._release()

    def _release(self) -> None:
        while self._held:
            self._lines.add(self._held.pop(0))


@dataclass(frozen=True, slots=True)
class Absence:
    """A model that did not answer because it was away; see :func:`is_away`.

    Attributes:
        times: How many questions in a row.
    """

    status: str
    message: str
    times: int = 1


@dataclass(frozen=True, slots=True)
class Done(Generic[R]):
    """The result of a task, or of a part of it.

    Attributes:
        record: The record to write.
        replies: For each question, None for an answer and an absence for none.
        notes: Sentences for the user; each is shown once.
        usage: What models used.
        work: How much work it was, as :attr:`Stage.work` counts it.
        is_held: Whether the record is written only once the model has answered again, as one with
            an absence is.
    """

    record: R
    replies: tuple[Absence | None, ...] = ()
    notes: tuple[str, ...] = ()
    usage: Usage = field(default_factory=Usage)
    work: float = 1.0
    is_held: bool = False


def _gone(status: str, message: str) -> FairqrError:
    return IndexUnavailableError(message) if status == ENGINE else ModelError(status, message)


def failure_of(error: FairqrError, record: R) -> Done[R]:
    """Return a record of a failure.

    If an engine or a model stays away, the run ends; if it refuses a question, it goes on.
    """
    status = error.status if isinstance(error, ModelError) else ENGINE
    is_away = isinstance(error, ModelError | IndexUnavailableError)
    return Done(record, (Absence(status, one_line(error)) if is_away else None,))


Keep = Callable[[Done[R]], bool]
"""Keeps the record of a finished part, and returns whether the task may go on."""


def _one(key: Hashable) -> float:
    return 1.0


@dataclass(frozen=True, slots=True)
class Stage(Generic[T, R]):
    """Tasks that need the same model.

    Attributes:
        title: For the progress display.
        model: Its name in error messages.
        tasks: All tasks.
        keys: Returns the keys of the records that a task makes.
        done: The keys of the records that are there. A task is left out if all its records are.
        start: Makes the model ready, and then begins the folder; not called if nothing is left.
        do: Does a task.
        lines: The file of records.
        pace: Stages with the same pace take equally long for each record.
        work: Returns how much work the record of a key is, compared with others of the stage.
        more: Work of tasks that are not known yet, at most.
        note: A sentence for the user; may be empty.
    """

    title: str
    model: str
    tasks: Sequence[T]
    keys: Callable[[T], Sequence[Hashable]]
    done: Set[Hashable]
    start: Callable[[], Awaitable[object]]
    do: Callable[[T, Keep[R]], Awaitable[None]]
    lines: Lines[R]
    pace: str
    work: Callable[[Hashable], float] = _one
    more: float = 0.0
    note: str = ""

    @property
    def work_left(self) -> float:
        """How much work is left."""
        keys = [key for task in self.left for key in self.keys(task) if key not in self.done]
        return sum(map(self.work, keys)) + self.more

    @property
    def left(self) -> list[T]:
        """The tasks that lack a record."""
        return [task for task in self.tasks if not self.done >= set(self.keys(task))]


def by_job(
    pool: Pool, job: Callable[[Tools, N, T], Awaitable[Done[R]]], needs: N
) -> Callable[[T, Keep[R]], Awaitable[None]]:
    """Return a function that does a task by one job.

    Args:
        pool: Does the job.
        job: Takes the tools of its worker, the needs and a task.
        needs: Data that all tasks of the stage share.
    """

    async def do(task: T, keep: Keep[R]) -> None:
        keep(await pool.do(job, needs, task))

    return do


async def run_stages(
    stages: Callable[[], AsyncIterator[Stage[Any, Any]]], *, watcher: StageWatcher, at_once: int
) -> None:
    """Do the tasks of all stages that have no record yet, one stage after the other.

    A few tasks of each pace come first. They are timed, and the watcher gets an estimate.
    Records with absences are written once the model has answered again.

    Args:
        stages: Yields what to do; each stage is asked for when the one before is done.
        watcher: Receives each record.
        at_once: How many tasks may run at the same time.

    Raises:
        ModelError: A model is away all the time, or never answered.
        FairqrError: An error stopped a task; the records so far are kept.
    """
    run = _Run(watcher, at_once)
    estimate = await run.estimate(stages())
    if estimate.seconds:
        watcher.note(estimate.sentence())
    async for stage in stages():
        if stage.note:
            watcher.note(stage.note)
        await run.do(stage)


async def run_tasks(
    tasks: Sequence[T],
    do: Callable[[T], Awaitable[Done[R]]],
    lines: Lines[R],
    *,
    title: str,
    model: str,
    key: Callable[[T], Hashable],
    start: Callable[[], Awaitable[object]],
    cost: str,
    watcher: StageWatcher,
    at_once: int,
) -> None:
    """Do the rest of tasks that make one record each, after a sentence on the cost.

    Args:
        tasks: All tasks.
        do: Does a task.
        lines: The file of records.
        title: For the progress display.
        model: Its name in error messages.
        key: Returns the value that identifies the record of a task.
        start: Makes the model ready; not called if nothing is left.
        cost: What the rest costs.
        watcher: Receives each record.
        at_once: How many tasks may run at the same time.

    Raises:
        ModelError: The model is away.
        FairqrError: An error stopped a task; the records so far are kept.
    """

    async def keep_it(task: T, keep: Keep[R]) -> None:
        keep(await do(task))

    async def stages() -> AsyncIterator[Stage[T, R]]:
        yield Stage(
            title=title,
            model=model,
            tasks=tasks,
            keys=lambda task: [(key(task),)],
            done=lines.done(),
            start=start,
            do=keep_it,
            lines=lines,
            pace=title,
        )

    if len(lines.done()) < len(tasks):
        watcher.note(cost)
    await run_stages(stages, watcher=watcher, at_once=at_once)


@dataclass(slots=True)
class _Run:
    """Runs stages.

    Attributes:
        watcher: Receives each record.
        at_once: How many tasks may run at the same time.
    """

    watcher: StageWatcher
    at_once: int
    _patience: dict[str, Patience] = field(default_factory=dict, init=False)
    _shown: set[str] = field(default_factory=set, init=False)

    async def estimate(self, stages: AsyncIterator[Stage[Any, Any]]) -> Estimate:
        """Do a few tasks of each pace, and estimate the rest."""
        most = max(TIMED, self.at_once + 1)
        timed: dict[str, Timing] = {}
        estimate = Estimate()
        async for stage in stages:
            work = stage.work_left
            if stage.pace not in timed:
                records = sum(key not in stage.done for it in stage.left for key in stage.keys(it))
                if records < WORTH_TIMING * most:
                    continue
                timed[stage.pace] = await self.do(stage, most)
                work -= timed[stage.pace].done
            estimate.add(work, timed[stage.pace])
        return estimate

    async def do(self, stage: Stage[T, R], most: int | None = None) -> Timing:
        """Do the tasks of a stage that have no record yet.

        Args:
            stage: The stage that the tasks belong to.
            most: About how many records to make; by default all.

        Returns:
            What the records took.
        """
        keys = [key for task in stage.tasks for key in stage.keys(task)]
        patience = self._patience.setdefault(stage.model, Patience(stage.model))
        patience.has_answered |= any(key in stage.done for key in keys)
        timing, kept = Timing(), 0
        if not stage.left:
            return timing
        await stage.start()
        done = sum(key in stage.done for key in keys)
        if most is None:
            self.watcher.stage(stage.title, len(keys), done)
        else:
            self.watcher.stage(f"{stage.title}, timed", most, 0)
        written = Cautious(stage.lines)
        failures = 0

        async def one(task: T) -> None:
            before = failures

            def keep(found: Done[R]) -> bool:
                nonlocal before, failures, kept
                # An answer to a question before the last failure does not say that the model
                # is back.
                is_back = before == failures and None in found.replies
                for reply in found.replies:
                    if reply is None:
                        patience.answered()
                    else:
                        failures, is_back = failures + 1, False
                        patience.failed(reply.status, reply.message, reply.times)
                before = failures
                for sentence in found.notes:
                    if sentence not in self._shown:
                        self._shown.add(sentence)
                        self.watcher.note(sentence)
                away = any(reply is not None for reply in found.replies)
                written.add(found.record, has_failures=found.is_held or away, is_back=is_back)
                timing.add(found.work, found.usage)
                self.watcher.advance()
                kept += 1
                return most is None or kept < most

            await stage.do(task, keep)

        with written.writing(is_last=most is None):
            await _all_of(stage.left[:most], one, self.at_once)
            if most is None:
                patience.at_the_end()
        return timing


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
