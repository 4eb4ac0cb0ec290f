"""Experiments on searches: run, measured and reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fairqr.evaluation.collections.finding import find_collection
from fairqr.evaluation.experiments.kinds import RunOptions
from fairqr.evaluation.experiments.measuring import (
    Measured,
    frames_of,
    measure_experiment,
    write_results,
)
from fairqr.evaluation.experiments.plan import make_plan
from fairqr.evaluation.experiments.running import run_searches
from fairqr.evaluation.experiments.specification import Experiment
from fairqr.evaluation.experiments.store import Store

if TYPE_CHECKING:
    from pandas import DataFrame

    from fairqr.evaluation.reports.writer import Figure

__all__ = ["STORE", "figures", "measure", "report", "run"]

STORE = Store


async def run(experiment: Experiment, options: RunOptions) -> None:
    """Do all searches that are not done yet, and write the runs and their values."""
    collection = find_collection(experiment.collection, experiment.split)
    plan = make_plan(experiment, collection, options.prompts)
    store = Store(options.folder)
    for sentence in plan.left_out:
        options.watcher.note(sentence)
    async with options.pool(store.replies) as pool:
        await run_searches(plan, collection, store, pool, watcher=options.watcher)
    if not options.report:
        write_results(store, measure_experiment(store, collection))


def measure(folder: Path) -> dict[str, DataFrame]:
    """Measure all searches."""
    return frames_of(_measured(Store(folder)))


def figures(folder: Path) -> list[Figure]:
    """Draw the figures of the report."""
    from fairqr.evaluation.experiments.search_report import figures_of

    return figures_of(_measured(Store(folder)))


def report(folder: Path, note: Callable[[str], None]) -> list[Path]:
    """Write the report, the runs, and the value of each measure as a table."""
    from fairqr.evaluation.experiments.search_report import write_search_report

    store = Store(folder)
    measured = _measured(store)
    write_results(store, measured)
    return write_search_report(store, measured)


def _measured(store: Store) -> Measured:
    experiment = store.manifest().experiment
    return measure_experiment(store, find_collection(experiment.collection, experiment.split))
