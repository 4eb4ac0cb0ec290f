"""Experiments on searches: run, measured and reported."""

from __future__ import annotations

from fairqr.evaluation.collections.finding import find_collection
from fairqr.evaluation.experiments.kinds import RunOptions
from fairqr.evaluation.experiments.measuring import MeasuredSearches, measure_experiment
from fairqr.evaluation.experiments.running import make_plan, run_searches
from fairqr.evaluation.experiments.specification import Experiment
from fairqr.evaluation.experiments.store import Store

__all__ = ["STORE", "measure", "run"]

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
        measure_experiment(store, collection).write(store.folder)


def measure(store: Store) -> MeasuredSearches:
    """Measure all searches."""
    experiment = store.manifest().experiment
    return measure_experiment(store, find_collection(experiment.collection, experiment.split))
