"""Experiments on tuning: run, measured and reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fairqr.base.errors import InputError
from fairqr.evaluation.experiments.kinds import RunOptions
from fairqr.evaluation.probes.measuring import frames_of
from fairqr.evaluation.probes.specification import LoraExperiment
from fairqr.evaluation.probes.store import LoraStore
from fairqr.evaluation.probes.tuning import make_lora_plan, tune_plan
from fairqr.evaluation.probes.tuning_measures import measure_lora

if TYPE_CHECKING:
    from pandas import DataFrame

    from fairqr.evaluation.reports.writer import Figure

__all__ = ["STORE", "figures", "measure", "report", "run"]

STORE = LoraStore

LARGE_TUNING = 6_000
"""A tuning with more passes of the model needs the user's consent."""


def measure(folder: Path) -> dict[str, DataFrame]:
    """Measure the pairs before and after, and the training."""
    return frames_of(measure_lora(LoraStore(folder)))


def figures(folder: Path) -> list[Figure]:
    """Draw the figures of the report."""
    from fairqr.evaluation.probes.report import figures_of

    return figures_of(measure_lora(LoraStore(folder)))


def report(folder: Path, note: Callable[[str], None]) -> list[Path]:
    """Write the report, and the value of each measure as a table."""
    from fairqr.evaluation.probes.report import write_probe_report

    return write_probe_report(folder, measure_lora(LoraStore(folder)))


async def run(experiment: LoraExperiment, options: RunOptions) -> None:
    """Tune a model, and say first how much work that is."""
    if options.workers.ray:
        raise InputError("A model is tuned in one process; leave the workers on Ray out.")
    plan = await make_lora_plan(experiment, options.prompts)
    store = LoraStore(options.folder)
    store.check(plan.manifest)
    for sentence in plan.sentences():
        options.watcher.note(sentence)
    if plan.passes > LARGE_TUNING and not (options.yes or store.exists()):
        raise InputError(
            f"That is more than {LARGE_TUNING:,} passes; lower pairs or steps, or add --yes to go "
            "on."
        )
    await tune_plan(plan, store, options.watcher)
