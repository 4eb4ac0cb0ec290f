"""Running experiments of Fair RAG, and writing their reports, for ``fairqr experiment``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fairqr.cli.common import run, warn
from fairqr.cli.progress import Progress

if TYPE_CHECKING:
    from fairqr.agents.attribution.base import Attributor
    from fairqr.evaluation.rag.plan import Cost
    from fairqr.evaluation.rag.specification import FairRagExperiment
    from fairqr.evaluation.rag.store import RagStore
    from fairqr.evaluation.workers.choice import Workers
    from fairqr.prompts.library import PromptLibrary

__all__ = ["cost_in_words", "report_fair_rag", "run_fair_rag_here"]


def run_fair_rag_here(
    path: Path,
    changes: Mapping[str, Any],
    folder: Path,
    *,
    prompts: Path | None,
    versions: Mapping[str, str],
    labels: Sequence[Path],
    workers: Workers,
    report: bool,
) -> None:
    """Run an experiment into a folder, and say before what it will cost at most.

    Args:
        path: Its file.
        changes: Values instead of the file's; those that are None are left.
        folder: Where everything goes.
        prompts: The user's own.
        versions: Of prompts, by id, instead of the file's.
        labels: Folders of labels that are given.
        workers: Who generates and judges, and how many queries may be under way at the same time.
        report: Write the report too.

    Raises:
        FairqrError: What it names is not there, or the folder or the labels are of something else.
    """
    from fairqr.evaluation.experiments.catalogue import load_experiment
    from fairqr.evaluation.rag.plan import make_rag_plan, open_collections
    from fairqr.evaluation.rag.running import remaining_cost, run_fair_rag
    from fairqr.evaluation.rag.specification import FairRagExperiment
    from fairqr.evaluation.rag.store import RagStore
    from fairqr.evaluation.workers.ray_pool import at_once, opened_pool
    from fairqr.prompts.library import PromptLibrary

    experiment = load_experiment(path, FairRagExperiment, changes)
    store = RagStore(folder)
    library = PromptLibrary(prompts)
    collections = open_collections(experiment)
    experiment = _with_versions(experiment, versions, {one.task.prompt for one in collections})
    attributor = _attributor(experiment, store, library)
    warnings = _unchecked(attributor)
    plan = make_rag_plan(
        experiment, collections, library, attributor.name if attributor else "", warnings
    )
    cost = remaining_cost(plan, store, labels)
    for sentence in plan.manifest.notes:
        warn(sentence)
    typer.echo(cost_in_words(cost), err=True)

    async def work(watcher: Progress) -> None:
        async with opened_pool(workers, library, store.replies) as pool:
            await run_fair_rag(
                plan,
                store,
                attributor=attributor,
                watcher=watcher,
                at_once=at_once(workers, pool),
                folders=labels,
                pool=pool,
            )

    with Progress() as watcher:
        run(work(watcher))
    if report:
        report_fair_rag(folder)
    else:
        typer.echo(f"done: {folder}; 'fairqr experiment report {folder}' writes the report")


def report_fair_rag(folder: Path) -> None:
    """Write the report of an experiment.

    Raises:
        InputError: There is no experiment, it has no results yet, or its collections have changed.
    """
    from fairqr.base.errors import InputError
    from fairqr.evaluation.rag.analysis.measuring import measure_fair_rag
    from fairqr.evaluation.rag.plan import open_collections
    from fairqr.evaluation.rag.report.writing import write_rag_report
    from fairqr.evaluation.rag.store import RagStore

    store = RagStore(folder)
    manifest = store.manifest()
    collections = open_collections(manifest.experiment)
    for entry, found in zip(manifest.collections, collections, strict=True):
        if (entry.name, entry.fingerprint) != (found.name, found.fingerprint):
            raise InputError(
                f"The files of '{entry.name}' have changed since the experiment was run; "
                "bring the old ones back, or run it again into another folder."
            )
    measured = measure_fair_rag(
        manifest, store.records(), store.all_labels(), {found.name: found for found in collections}
    )
    for sentence in measured.warnings:
        warn(sentence)
    for path in write_rag_report(store, measured):
        typer.echo(f"written: {path}")


def cost_in_words(cost: Cost) -> str:
    """Say what a run will cost at most."""
    if cost.is_nothing:
        return "nothing is left to ask"
    return (
        f"at most {cost.labels + cost.answers:,} answers ({cost.labels:,} of them for labels), "
        f"{cost.attributions:,} attributions, about {cost.tokens:,} tokens"
    )


def _with_versions(
    experiment: FairRagExperiment, versions: Mapping[str, str], asked_with: Set[str]
) -> FairRagExperiment:
    """Return the experiment with these versions of prompts before its own.

    Raises:
        InputError: One is of a prompt that the collections do not ask with.
    """
    from fairqr.base.errors import InputError, one_line

    if unused := sorted(versions.keys() - asked_with):
        raise InputError(
            f"The collections do not ask with the prompt '{one_line(unused[0])}' but with "
            f"{', '.join(sorted(asked_with))}; name one of these with --prompt."
        )
    return experiment.model_copy(update={"prompts": {**experiment.prompts, **versions}})


def _attributor(
    experiment: FairRagExperiment, store: RagStore, prompts: PromptLibrary
) -> Attributor | None:
    from fairqr.agents.attribution.open import open_attributor
    from fairqr.agents.cache import ReplyCache
    from fairqr.evaluation.rag.specification import NO_ATTRIBUTOR

    if experiment.attributor == NO_ATTRIBUTOR:
        return None
    cache = ReplyCache(store.replies)
    return open_attributor(experiment.attributor, cache=cache, prompts=prompts)


def _unchecked(attributor: Attributor | None) -> list[str]:
    from fairqr.agents.attribution.checking import unchecked_warning

    sentence = unchecked_warning(attributor) if attributor else None
    return [sentence] if sentence else []
