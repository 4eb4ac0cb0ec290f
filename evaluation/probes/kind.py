"""Experiments on rankers, listwise and pairwise: run, measured and reported."""

from __future__ import annotations

from pathlib import Path

from fairqr.evaluation.experiments.kinds import RunOptions
from fairqr.evaluation.probes.listwise_measures import MeasuredListwise, measure_listwise
from fairqr.evaluation.probes.pairwise_measures import MeasuredPairwise, measure_pairwise
from fairqr.evaluation.probes.running import (
    ProbePlan,
    cost_in_words,
    make_probe_plan,
    remaining_cost,
    run_probe,
)
from fairqr.evaluation.probes.specification import ListwiseExperiment, PairwiseExperiment
from fairqr.evaluation.probes.store import ProbeStore

__all__ = ["STORE", "measure", "run", "run_plan"]

STORE = ProbeStore


async def run(experiment: ListwiseExperiment | PairwiseExperiment, options: RunOptions) -> None:
    """Do all that is not done yet, and say first what it will cost at most."""
    plan = await make_probe_plan(experiment, options.prompts, preparing=options.watcher.count)
    await run_plan(plan, ProbeStore(options.folder), options)


async def run_plan(
    plan: ProbePlan, store: ProbeStore, options: RunOptions, replies: Path | None = None
) -> None:
    """Do the rest of a plan, and say first what it will cost at most.

    Args:
        plan: What to do.
        store: Where results go.
        options: How to do it.
        replies: The file that keeps replies; by default one in the folder.

    Raises:
        FairqrError: The folder holds something else, a model fails, or the run is costly and
            the user did not agree.
    """
    cost = remaining_cost(plan, store)
    options.agree(cost.calls, cost.tokens)
    options.watcher.note(cost_in_words(cost))
    async with options.pool(replies or store.replies) as pool:
        await run_probe(plan, store, pool, watcher=options.watcher)


def measure(store: ProbeStore) -> MeasuredListwise | MeasuredPairwise:
    """Measure all lists or pairs; what was not done yet is counted.

    Raises:
        InputError: The folder holds no run, or a file of it is damaged.
    """
    manifest, collections = store.manifest(), store.collections()
    if isinstance(manifest.experiment, ListwiseExperiment):
        return measure_listwise(manifest, collections, store.rankings.read())
    return measure_pairwise(manifest, collections, store.pairs.read())
