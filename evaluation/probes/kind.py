"""Experiments on rankers, listwise and pairwise: run, measured and reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fairqr.evaluation.experiments.kinds import RunOptions
from fairqr.evaluation.probes.measuring import frames_of, measure_run
from fairqr.evaluation.probes.running import (
    ProbePlan,
    cost_in_words,
    make_probe_plan,
    remaining_cost,
    run_probe,
)
from fairqr.evaluation.probes.specification import ListwiseExperiment, PairwiseExperiment
from fairqr.evaluation.probes.store import ProbeStore

if TYPE_CHECKING:
    from pandas import DataFrame

    from fairqr.evaluation.reports.writer import Figure

__all__ = ["STORE", "figures", "measure", "report", "run", "run_plan"]

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


def measure(folder: Path) -> dict[str, DataFrame]:
    """Measure all lists or pairs."""
    return frames_of(measure_run(ProbeStore(folder)))


def figures(folder: Path) -> list[Figure]:
    """Draw the figures of the report."""
    from fairqr.evaluation.probes.report import figures_of

    return figures_of(measure_run(ProbeStore(folder)))


def report(folder: Path, note: Callable[[str], None]) -> list[Path]:
    """Write the report, and the value of each measure as a table."""
    from fairqr.evaluation.probes.report import write_probe_report

    return write_probe_report(folder, measure_run(ProbeStore(folder)))
