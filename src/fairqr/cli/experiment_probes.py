"""Running probes of rankers, and writing their reports, for ``fairqr experiment`` and ``probe``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from fairqr.cli.common import agree, run
from fairqr.cli.progress import Progress

if TYPE_CHECKING:
    from fairqr.agents.cache import ReplyCache
    from fairqr.evaluation.probes.plan import ProbePlan
    from fairqr.evaluation.probes.specification import (
        ListwiseExperiment,
        LoraExperiment,
        PairwiseExperiment,
    )
    from fairqr.evaluation.probes.store import ProbeStore
    from fairqr.evaluation.workers.choice import Workers

    E = TypeVar("E", ListwiseExperiment, PairwiseExperiment, LoraExperiment)

__all__ = ["report_probe", "run_plan", "run_probe_file"]


def run_probe_file(
    path: Path,
    kind: str,
    changes: Mapping[str, Any],
    folder: Path,
    *,
    models: Sequence[str],
    versions: Mapping[str, str],
    prompts: Path | None,
    workers: Workers,
    yes: bool,
    report: bool,
) -> None:
    """Run an experiment on rankers into a folder, and say before what it will cost at most.

    Args:
        path: Its file.
        kind: ``llm_listwise``, ``llm_pairwise`` or ``lora``.
        changes: Values instead of the file's; those that are None are left.
        folder: Where everything goes.
        models: Instead of the file's models or rankers.
        versions: Of prompts, by id, before the file's.
        prompts: The user's own.
        workers: Who asks, and how many lists or pairs may be under way at the same time; tuning is
            done here, and has its own number.
        yes: Go on though it is a large run.
        report: Write the report too.

    Raises:
        FairqrError: What it names is not there, the folder is of something else, the run is large
            and was not agreed to, or others are to tune.
    """
    from fairqr.base.errors import InputError
    from fairqr.cli.tune import tune_here
    from fairqr.evaluation.probes.plan import make_probe_plan
    from fairqr.evaluation.probes.specification import (
        ListwiseExperiment,
        LoraExperiment,
        PairwiseExperiment,
    )
    from fairqr.evaluation.probes.store import ProbeStore
    from fairqr.prompts.library import PromptLibrary

    if kind == "lora":
        if workers.ray:
            raise InputError("A model is tuned in one process; leave the workers on Ray out.")
        lora = _load(path, LoraExperiment, models, versions, changes)
        tune_here(lora, folder, prompts=prompts, yes=yes)
    else:
        asked: ListwiseExperiment | PairwiseExperiment
        if kind == "llm_listwise":
            asked = _load(path, ListwiseExperiment, models, versions, changes)
        else:
            asked = _load(path, PairwiseExperiment, models, versions, changes)
        with Progress() as progress:
            plan = run(make_probe_plan(asked, PromptLibrary(prompts), preparing=progress.count))
        run_plan(plan, ProbeStore(folder), workers=workers, yes=yes)
    if report:
        report_probe(folder)
    else:
        typer.echo(f"done: {folder}; 'fairqr experiment report {folder}' writes the report")


def run_plan(
    plan: ProbePlan,
    store: ProbeStore,
    *,
    workers: Workers,
    yes: bool,
    replies: ReplyCache | None = None,
) -> None:
    """Do what is left of a plan, and say before what it will cost at most.

    Args:
        plan: What is to be done.
        store: Where results go.
        workers: Who asks, and how many lists or pairs may be under way at the same time.
        yes: Go on though it is a large run.
        replies: Where replies are kept; in the folder where None.

    Raises:
        FairqrError: As :func:`run_probe_file` raises it.
    """
    from fairqr.evaluation.probes.listwise_running import run_listwise
    from fairqr.evaluation.probes.pairwise_running import run_pairwise
    from fairqr.evaluation.probes.plan import cost_in_words, remaining_cost
    from fairqr.evaluation.probes.specification import PairwiseExperiment
    from fairqr.evaluation.workers.ray_pool import at_once, opened_pool

    cost = remaining_cost(plan, store)
    agree(cost.calls, cost.tokens, yes=yes)
    typer.echo(cost_in_words(cost), err=True)
    is_pairwise = isinstance(plan.manifest.experiment, PairwiseExperiment)
    do = run_pairwise if is_pairwise else run_listwise

    async def work(watcher: Progress) -> None:
        kept = replies.path if replies else store.replies
        async with opened_pool(workers, plan.prompts, kept) as pool:
            most = at_once(workers, pool)
            await do(plan, store, watcher=watcher, at_once=most, replies=replies, pool=pool)

    with Progress() as watcher:
        run(work(watcher))


def report_probe(folder: Path) -> None:
    """Write the report of a probe or a tuning.

    Raises:
        InputError: There is no run, or a file of it is damaged.
    """
    from fairqr.evaluation.probes.report.writing import write_probe_report

    for path in write_probe_report(folder):
        typer.echo(f"written: {path}")


def _load(
    path: Path,
    kind: type[E],
    models: Sequence[str],
    versions: Mapping[str, str],
    changes: Mapping[str, Any],
) -> E:
    """Read an experiment on rankers, with what a command changes.

    Args:
        path: Its file.
        kind: Of the experiment.
        models: Instead of the file's models or rankers.
        versions: Of prompts, by id, before the file's.
        changes: Other values instead of the file's; those that are None are left.

    Raises:
        InputError: The file is no experiment of this kind, or tuning is given several models.
    """
    from fairqr.base.errors import InputError
    from fairqr.evaluation.experiments.catalogue import load_experiment
    from fairqr.evaluation.probes.specification import ListwiseExperiment, LoraExperiment

    if kind is LoraExperiment and models and len(models) > 1:
        raise InputError("Tuning takes one --model; give it once.")
    named: dict[str, Any] = {}
    if models:
        if kind is LoraExperiment:
            named = {"model": models[0]}
        else:
            named = {"rankers" if kind is ListwiseExperiment else "models": tuple(models)}
    experiment = load_experiment(path, kind, {**changes, **named})
    return experiment.model_copy(update={"prompts": {**experiment.prompts, **versions}})
