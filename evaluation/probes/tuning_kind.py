"""Experiments on tuning: run, measured and reported."""

from __future__ import annotations

from fairqr.base.errors import InputError
from fairqr.evaluation.experiments.kinds import RunOptions
from fairqr.evaluation.probes.specification import LoraExperiment
from fairqr.evaluation.probes.store import LoraStore
from fairqr.evaluation.probes.tuning import make_lora_plan, tune_plan
from fairqr.evaluation.probes.tuning_measures import measure_lora

__all__ = ["STORE", "measure", "run"]

STORE = LoraStore
measure = measure_lora

LARGE_TUNING = 6_000
"""A tuning with more passes of the model needs the user's consent."""


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
