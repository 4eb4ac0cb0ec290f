"""How each kind of experiment runs, and how its report is written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from fairqr.base.errors import InputError, one_line
from fairqr.cli.common import agree, run, warn
from fairqr.cli.progress import Progress

if TYPE_CHECKING:
    from fairqr.agents.attribution.verdicts import Attributor
    from fairqr.agents.cache import ReplyFile
    from fairqr.evaluation.experiments.specification import Experiment
    from fairqr.evaluation.probes.plan import ProbePlan
    from fairqr.evaluation.probes.specification import (
        ListwiseExperiment,
        LoraExperiment,
        PairwiseExperiment,
    )
    from fairqr.evaluation.probes.store import ProbeStore
    from fairqr.evaluation.probes.tuning_records import MeasuredLora
    from fairqr.evaluation.rag.specification import FairRagExperiment
    from fairqr.evaluation.workers.choice import Workers
    from fairqr.prompts.library import PromptLibrary

__all__ = ["REPORT", "RUN", "Manner", "run_probe_plan", "run_tuning"]

LARGE_TUNING = 6_000
"""A tuning with more passes of the model needs the user's consent."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Manner:
    """How an experiment runs; none of it changes the results.

    Attributes:
        folder: Where everything goes.
        prompts: Where prompts come from.
        workers: Who does the work, and how much at a time.
        labels: Folders with labels for Fair RAG.
        prompts_set: The ids of the prompts whose version the command sets.
        yes: Whether the user agreed to a costly run.
        report: Whether the report is written next, which measures everything.
    """

    folder: Path
    prompts: PromptLibrary
    workers: Workers
    labels: Sequence[Path] = ()
    prompts_set: frozenset[str] = frozenset()
    yes: bool = False
    report: bool = False


def run_searches(asked: Experiment, manner: Manner) -> None:
    """Run an experiment on searches.

    Raises:
        FairqrError: Something it names does not exist, or the folder holds something else.
    """
    from fairqr.evaluation.collections.finding import find_collection
    from fairqr.evaluation.experiments import running
    from fairqr.evaluation.experiments.measuring import measure_experiment, write_results
    from fairqr.evaluation.experiments.plan import make_plan
    from fairqr.evaluation.experiments.store import Store

    found = find_collection(asked.collection, asked.split)
    plan = make_plan(asked, found, manner.prompts)
    store = Store(manner.folder)
    for sentence in plan.left_out:
        warn(sentence)
    do = partial(running.run_searches, plan, found, store, prompts=manner.prompts)
    _in_pool(do, manner, store.replies, Progress())
    if not manner.report:
        write_results(store, measure_experiment(store, found))


def report_searches(folder: Path) -> None:
    """Write the report of an experiment, its runs, and the value of each measure as a table.

    Raises:
        InputError: There is no experiment, it has no results yet, or its collection has changed.
    """
    from fairqr.evaluation.collections.finding import find_collection
    from fairqr.evaluation.experiments.measuring import measure_experiment, write_results
    from fairqr.evaluation.experiments.search_report import write_search_report
    from fairqr.evaluation.experiments.store import Store

    store = Store(folder)
    asked = store.manifest().experiment
    measured = measure_experiment(store, find_collection(asked.collection, asked.split))
    write_results(store, measured)
    _list(write_search_report(store, measured))


def run_fair_rag(experiment: FairRagExperiment, manner: Manner) -> None:
    """Run an experiment on Fair RAG, and say first what it will cost at most.

    Raises:
        FairqrError: Something it names does not exist, or the folder or the labels belong to
            another experiment.
    """
    from fairqr.agents.attribution.checking import unchecked_warning
    from fairqr.evaluation.rag import running
    from fairqr.evaluation.rag.plan import cost_in_words, make_rag_plan, open_collections
    from fairqr.evaluation.rag.store import RagStore

    collections = open_collections(experiment)
    asked_with = {one.task.prompt for one in collections}
    if unused := sorted(manner.prompts_set - asked_with):
        raise InputError(
            f"The collections do not ask with the prompt '{one_line(unused[0])}' but with "
            f"{', '.join(sorted(asked_with))}; set the version of one of these."
        )
    store = RagStore(manner.folder)
    attributor = _attributor(experiment.attributor, store.replies, manner.prompts)
    unchecked = unchecked_warning(attributor) if attributor else None
    name, warnings = attributor.name if attributor else "", [unchecked] if unchecked else []
    plan = make_rag_plan(experiment, collections, manner.prompts, name, warnings)
    cost = running.remaining_cost(plan, store, manner.labels)
    for sentence in plan.manifest.notes:
        warn(sentence)
    typer.echo(cost_in_words(cost), err=True)
    do = partial(running.run_fair_rag, plan, store, prompts=manner.prompts, folders=manner.labels)
    _in_pool(do, manner, store.replies, Progress())


def report_fair_rag(folder: Path) -> None:
    """Write the report of an experiment on Fair RAG.

    Raises:
        InputError: There is no experiment, it has no results yet, or its collections have changed.
    """
    from fairqr.evaluation.rag.analysis.frames import measure_fair_rag
    from fairqr.evaluation.rag.plan import unchanged_collections
    from fairqr.evaluation.rag.report import write_rag_report
    from fairqr.evaluation.rag.store import RagStore

    store = RagStore(folder)
    manifest = store.manifest()
    collections = unchanged_collections(manifest)
    measured = measure_fair_rag(manifest, store.records(), store.all_labels(), collections)
    for sentence in measured.warnings:
        warn(sentence)
    _list(write_rag_report(store, measured))


def run_rankers(experiment: ListwiseExperiment | PairwiseExperiment, manner: Manner) -> None:
    """Run an experiment on rankers.

    Raises:
        FairqrError: As :func:`run_probe_plan` raises it, or something it names does not exist.
    """
    from fairqr.evaluation.probes.plan import make_probe_plan
    from fairqr.evaluation.probes.store import ProbeStore

    with Progress() as progress:
        plan = run(make_probe_plan(experiment, manner.prompts, preparing=progress.count))
    run_probe_plan(plan, ProbeStore(manner.folder), manner)


def run_probe_plan(
    plan: ProbePlan, store: ProbeStore, manner: Manner, replies: ReplyFile | None = None
) -> None:
    """Do the rest of a plan, and say first what it will cost at most.

    Args:
        plan: What to do.
        store: Where results go.
        manner: How.
        replies: Where replies are kept; by default in the folder.

    Raises:
        FairqrError: The folder holds something else, a model fails, or the run is costly and
            nobody agreed.
    """
    from fairqr.evaluation.probes.plan import cost_in_words, remaining_cost
    from fairqr.evaluation.probes.running import run_probe

    cost = remaining_cost(plan, store)
    agree(cost.calls, cost.tokens, yes=manner.yes)
    typer.echo(cost_in_words(cost), err=True)
    do = partial(run_probe, plan, store, replies=replies)
    _in_pool(do, manner, replies.path if replies else store.replies, Progress())


def run_tuning(experiment: LoraExperiment, manner: Manner) -> MeasuredLora:
    """Tune a model, and say first how much work that is.

    Raises:
        FairqrError: As :func:`fairqr.evaluation.probes.tuning_run.run_lora` raises it; or the
            tuning is large and nobody agreed, or others are to do it.
    """
    from fairqr.evaluation.probes.tuning_plan import make_lora_plan
    from fairqr.evaluation.probes.tuning_records import LoraStore
    from fairqr.evaluation.probes.tuning_run import tune_plan

    if manner.workers.ray:
        raise InputError("A model is tuned in one process; leave the workers on Ray out.")
    plan = run(make_lora_plan(experiment, manner.prompts))
    store = LoraStore(manner.folder)
    store.check(plan.manifest)
    for sentence in plan.sentences():
        warn(sentence)
    if plan.passes > LARGE_TUNING and not (manner.yes or store.exists()):
        raise InputError(
            f"That is more than {LARGE_TUNING:,} passes; lower pairs or steps, or add --yes to go "
            "on."
        )
    with Progress() as watcher:
        return run(tune_plan(plan, store, watcher))


def report_probe(folder: Path) -> None:
    """Write the report of a probe or a tuning.

    Raises:
        InputError: There is no run, or a file of it is damaged.
    """
    from fairqr.evaluation.probes.report.writing import write_probe_report

    _list(write_probe_report(folder))


RUN: Mapping[str, Callable[[Any, Manner], object]] = {
    "search": run_searches,
    "fair_rag": run_fair_rag,
    "llm_listwise": run_rankers,
    "llm_pairwise": run_rankers,
    "lora": run_tuning,
}
REPORT: Mapping[str, Callable[[Path], None]] = {
    "search": report_searches,
    "fair_rag": report_fair_rag,
    "llm_listwise": report_probe,
    "llm_pairwise": report_probe,
    "lora": report_probe,
}


def _in_pool(
    do: Callable[..., Awaitable[T]], manner: Manner, replies: Path, watcher: Progress
) -> T:
    """Run work with the workers that the user wants, and show how far it is."""
    from fairqr.evaluation.workers.ray_pool import at_once, opened_pool

    async def work() -> T:
        async with opened_pool(manner.workers, manner.prompts, replies) as pool:
            return await do(watcher=watcher, at_once=at_once(manner.workers, pool), pool=pool)

    with watcher:
        return run(work())


def _attributor(name: str, replies: Path, prompts: PromptLibrary) -> Attributor | None:
    from fairqr.agents.attribution.attributors import open_attributor
    from fairqr.agents.cache import ReplyFile
    from fairqr.evaluation.rag.specification import NO_ATTRIBUTOR

    if name == NO_ATTRIBUTOR:
        return None
    return open_attributor(name, cache=ReplyFile(replies), prompts=prompts)


def _list(paths: Iterable[Path]) -> None:
    for path in paths:
        typer.echo(f"written: {path}")
