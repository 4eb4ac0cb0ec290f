"""What all parts of an audit share: how each is run, and goes on where it was.

The queries of an audit are its first part. Pairs may follow.
A part has tasks, one for each record that it keeps in ``raw/``, and does those whose record is
missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from fairqr.base.errors import (
    FairqrError,
    IndexUnavailableError,
    ModelError,
    ModelUnavailableError,
    one_line,
)
from fairqr.evaluation.audit.bundle import AuditFolder, Store
from fairqr.evaluation.audit.records import AuditRecord
from fairqr.evaluation.experiments.engine import Done, Keep, failure_of, run_tasks
from fairqr.evaluation.experiments.progress import StageWatcher


class Task(Protocol):
    """What makes one record."""

    @property
    def id(self) -> str | int:
        """The ``query`` of the record."""
        ...


T = TypeVar("T", bound=Task)
R = TypeVar("R", bound=AuditRecord)


class Part(Generic[T, R]):
    """A part of an audit.

    Attributes:
        name: Of its store in the folder.
        title: Of its tasks in the progress display.
        record: The class of its records.
        ends: The errors that end the audit; after any other one, a record says why it failed.
        tasks: One for each record.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    record: ClassVar[type[Any]]
    ends: ClassVar[tuple[type[FairqrError], ...]] = (
        IndexUnavailableError,
        ModelError,
        ModelUnavailableError,
    )
    tasks: Sequence[T]

    @property
    def is_by_engine(self) -> bool:
        """Whether the audited engine is asked, and no model."""
        return False

    @property
    def asked(self) -> str:
        """What is asked, for messages."""
        raise NotImplementedError

    def cost(self, done: int = 0) -> str:
        """Say what is left to ask, at most, after some tasks are done."""
        raise NotImplementedError

    def store(self, folder: AuditFolder) -> Store[R]:
        """Return where the records go."""
        found: Store[R] = getattr(folder, self.name)
        return found

    async def start(self, folder: AuditFolder) -> None:
        """Make ready what is asked; only called if something is left to do."""

    async def do(self, task: T, folder: AuditFolder) -> Done[R]:
        """Do one task.

        Raises:
            FairqrError: It failed.
        """
        raise NotImplementedError

    async def run(self, folder: AuditFolder, *, concurrency: int, watcher: StageWatcher) -> None:
        """Do all tasks that have no record yet.

        Args:
            folder: Of the audit; locked.
            concurrency: How many tasks may be under way.
            watcher: Told how far it is.

        Raises:
            IndexUnavailableError: The engine is away; the records until then are kept.
            ModelError: A model is away; the same.
        """

        async def do(task: T, keep: Keep[R]) -> None:
            try:
                done = await self.do(task, folder)
            except self.ends:
                raise
            except FairqrError as error:
                message = one_line(error)
                failed = self.record(query=task.id, status="failed", message=message)
                done = failure_of(error, failed)
            keep(done)

        try:
            await run_tasks(
                self.tasks,
                do,
                self.store(folder).lines,
                title=self.title,
                model=self.asked,
                key=lambda task: task.id,
                start=lambda: self.start(folder),
                cost=self.cost,
                watcher=watcher,
                at_once=concurrency,
            )
        except ModelError as error:
            if self.is_by_engine and error.status == "unavailable":
                raise IndexUnavailableError(str(error)) from None
            raise
