"""Running experiments with searches, and writing their reports, for ``fairqr experiment``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fairqr.cli.common import run, warn
from fairqr.cli.progress import Progress

if TYPE_CHECKING:
    from fairqr.evaluation.experiments.plan import Cell
    from fairqr.evaluation.experiments.running import Watcher
    from fairqr.evaluation.experiments.store import Record
    from fairqr.evaluation.workers.choice import Workers

__all__ = ["report_searches", "run_searches"]


def run_searches(
    path: Path,
    changes: Mapping[str, Any],
    folder: Path,
    *,
    prompts: Path | None,
    workers: Workers,
    report: bool,
) -> None:
    """Run an experiment into a folder.

    Args:
        path: Its file.
        changes: Values instead of the file's; those that are None are left.
        folder: Where everything goes.
        prompts: The user's own.
        workers: Who searches, and how many searches may be under way at the same time.
        report: Write the report too.

    Raises:
        FairqrError: What it names is not there, or the folder is of something else.
    """
    from fairqr.evaluation.collections.finding import find_collection
    from fairqr.evaluation.experiments.catalogue import load_experiment
    from fairqr.evaluation.experiments.measuring import measure_experiment, write_results
    from fairqr.evaluation.experiments.plan import make_plan
    from fairqr.evaluation.experiments.running import run_plan
    from fairqr.evaluation.experiments.specification import Experiment
    from fairqr.evaluation.experiments.store import Store
    from fairqr.evaluation.workers.ray_pool import at_once, opened_pool
    from fairqr.prompts.library import PromptLibrary

    asked = load_experiment(path, Experiment, changes)
    found = find_collection(asked.collection, asked.split)
    library = PromptLibrary(prompts)
    plan = make_plan(asked, found, library)
    store = Store(folder)
    for sentence in plan.left_out:
        warn(sentence)

    async def work(watcher: Watcher) -> list[str]:
        async with opened_pool(workers, library, store.replies) as pool:
            return await run_plan(
                plan,
                found,
                store,
                prompts=library,
                watcher=watcher,
                at_once=at_once(workers, pool),
                pool=pool,
            )

    with _Watching() as watcher:
        left_out = run(work(watcher))
    for sentence in left_out:
        warn(sentence)
    if report:
        report_searches(folder)
    else:
        write_results(store, measure_experiment(store, found, with_tests=False))
        typer.echo(f"done: {folder}; 'fairqr experiment report {folder}' writes the report")


def report_searches(folder: Path) -> None:
    """Write the report of an experiment, its runs, and the value of each measure as a table.

    Raises:
        InputError: There is no experiment, it has no results yet, or its collection has changed.
    """
    from fairqr.evaluation.collections.finding import find_collection
    from fairqr.evaluation.experiments.measuring import measure_experiment, write_results
    from fairqr.evaluation.experiments.report import write_report
    from fairqr.evaluation.experiments.store import Store

    store = Store(folder)
    asked = store.manifest().experiment
    measured = measure_experiment(store, find_collection(asked.collection, asked.split))
    write_results(store, measured)
    for path in write_report(store, measured):
        typer.echo(f"written: {path}")


class _Watching(Progress):
    """Shows the searches of an experiment, and which system they are of."""

    def total(self, searches: int, done: int) -> None:
        """Take how many searches there are, and how many an earlier run did."""
        self.stage("searches", searches, done)

    def started(self, cell: Cell) -> None:
        """Take the cell that begins."""
        self.describe(f"{cell.attribute}, {cell.form}: {cell.system.name}")

    def finished(self, record: Record) -> None:
        """Count a search as done."""
        self.advance()

    def preparing(self, what: str) -> Callable[[int], None]:
        """Take what is indexed or encoded; return a function that takes how many documents."""
        return self.count(what)
