"""Experiments on Fair RAG: run, measured and reported."""

from __future__ import annotations

from fairqr.agents.attribution.attributors import open_attributor
from fairqr.agents.attribution.checking import unchecked_warning
from fairqr.agents.attribution.verdicts import Attributor
from fairqr.base.errors import InputError, one_line
from fairqr.evaluation.experiments.kinds import RunOptions
from fairqr.evaluation.rag.measuring import MeasuredRag, measure_fair_rag
from fairqr.evaluation.rag.running import (
    cost_in_words,
    make_rag_plan,
    open_collections,
    remaining_cost,
    run_fair_rag,
    unchanged_collections,
)
from fairqr.evaluation.rag.specification import NO_ATTRIBUTOR, FairRagExperiment
from fairqr.evaluation.rag.store import RagStore
from fairqr.prompts.library import PromptLibrary

__all__ = ["STORE", "measure", "run"]

STORE = RagStore


async def run(experiment: FairRagExperiment, options: RunOptions) -> None:
    """Do all that is not done yet, and say first what it will cost at most."""
    collections = open_collections(experiment)
    asked_with = {collection.task.prompt for collection in collections}
    if unused := sorted(options.prompts_set - asked_with):
        raise InputError(
            f"The collections do not ask with the prompt '{one_line(unused[0])}' but with "
            f"{', '.join(sorted(asked_with))}; set the version of one of these."
        )
    store = RagStore(options.folder)
    attributor = _attributor(experiment.attributor, options.prompts)
    unchecked = unchecked_warning(attributor) if attributor else None
    plan = make_rag_plan(
        experiment,
        collections,
        options.prompts,
        attributor.name if attributor else "",
        [unchecked] if unchecked else [],
    )
    cost = remaining_cost(plan, store, options.labels)
    for sentence in (*plan.manifest.notes, cost_in_words(cost)):
        options.watcher.note(sentence)
    async with options.pool(store.replies) as pool:
        await run_fair_rag(plan, store, pool, watcher=options.watcher, folders=options.labels)


def measure(store: RagStore) -> MeasuredRag:
    """Measure all answers."""
    manifest = store.manifest()
    collections = unchanged_collections(manifest)
    return measure_fair_rag(manifest, store.lines.read(), store.all_labels(), collections)


def _attributor(name: str, prompts: PromptLibrary) -> Attributor | None:
    return None if name == NO_ATTRIBUTOR else open_attributor(name, cache=False, prompts=prompts)
