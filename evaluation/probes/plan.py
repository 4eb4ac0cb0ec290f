"""What a probe has to do, and what that will cost at most."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairqr.agents.cache import ReplyCache
from fairqr.agents.models import open_language_model
from fairqr.agents.ranking.item_ranker import Cost
from fairqr.agents.ranking.pairwise import PairwiseJudge
from fairqr.base.errors import InputError, one_line
from fairqr.evaluation.probes.collection import ProbeCollection
from fairqr.evaluation.probes.pairs import rank_item
from fairqr.evaluation.probes.rankers import open_probe_ranker, parse_ranker, windows_of
from fairqr.evaluation.probes.sources import Preparing, open_probe_collections
from fairqr.evaluation.probes.specification import ListwiseExperiment, PairwiseExperiment
from fairqr.evaluation.probes.store import (
    CollectionEntry,
    ProbeRunManifest,
    ProbeStore,
    PromptEntry,
)
from fairqr.evaluation.probes.tasks import list_tasks, pair_tasks
from fairqr.prompts.library import PromptLibrary

__all__ = [
    "ProbePlan",
    "cost_in_words",
    "make_probe_plan",
    "open_judge",
    "remaining_cost",
]


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """What is to be done.

    Attributes:
        manifest: What it is done with.
        collections: In the manifest's order.
        prompts: Where prompts come from.
        options: More for chat models, such as ``base_url``.
    """

    manifest: ProbeRunManifest
    collections: tuple[ProbeCollection, ...]
    prompts: PromptLibrary
    options: Mapping[str, Any] = field(default_factory=dict)


async def make_probe_plan(
    experiment: ListwiseExperiment | PairwiseExperiment,
    prompts: PromptLibrary,
    *,
    base_url: str | None = None,
    options: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
    preparing: Preparing | None = None,
) -> ProbePlan:
    """Build the probe collections of an experiment, or read them.

    Args:
        experiment: What is asked.
        prompts: Where prompts come from.
        base_url: Where an OpenAI-compatible server listens; the providers' own where None.
        options: More for chat models.
        notes: Sentences for the report.
        preparing: Told what is imported, read and indexed.

    Raises:
        FairqrError: A collection, a prompt or a ranker that it names is not there, or two
            collections have one name.
    """
    asked_with = _asked_with(experiment)
    if unused := sorted(experiment.prompts.keys() - asked_with.keys()):
        known = f"but with {', '.join(asked_with)}" if asked_with else "with any prompt"
        raise InputError(
            f"This asks not with the prompt '{one_line(unused[0])}' {known}; leave it out."
        )
    entries = []
    for name, asked in asked_with.items():
        prompt = prompts.get(name, experiment.prompts.get(name))
        entries.append(
            PromptEntry(
                prompt=f"{prompt.id}={prompt.version}", sha256=prompt.sha256, asked=tuple(asked)
            )
        )
    collections = await open_probe_collections(
        experiment, texts=_reads_texts(experiment), preparing=preparing
    )
    manifest = ProbeRunManifest(
        experiment=experiment,
        collections=tuple(map(CollectionEntry.of, collections)),
        prompts=tuple(entries),
        base_url=base_url,
        notes=tuple(notes),
    )
    own = {"base_url": base_url} if base_url else {}
    return ProbePlan(manifest, tuple(collections), prompts, {**(options or {}), **own})


def _asked_with(experiment: ListwiseExperiment | PairwiseExperiment) -> dict[str, list[str]]:
    """Return the ids of the prompts that are asked with, and who is asked by each."""
    if isinstance(experiment, PairwiseExperiment):
        return {"pairwise": list(experiment.models)}
    found: dict[str, list[str]] = {}
    for name in experiment.rankers:
        named = parse_ranker(name)
        if named.asks_a_model:
            found.setdefault(named.kind, []).append(name)
    return found


def _reads_texts(experiment: ListwiseExperiment | PairwiseExperiment) -> bool:
    shown = {experiment.shown}
    if isinstance(experiment, ListwiseExperiment) and any(
        parse_ranker(name).kind in ("monot5", "monobert") for name in experiment.rankers
    ):
        shown.add(experiment.shown_to_neural)
    return shown != {"title"}


def open_judge(plan: ProbePlan, model: str, cache: ReplyCache | None = None) -> PairwiseJudge:
    """Open the judge that asks a model about pairs; nothing is loaded yet.

    Raises:
        ModelUnavailableError: There is no such model.
        PromptError: There is no such prompt.
    """
    experiment = plan.manifest.pairs
    return PairwiseJudge(
        open_language_model(model, cache=cache or False, **plan.options),
        plan.prompts.get("pairwise", experiment.prompts.get("pairwise")),
        by=experiment.by,
        shown=experiment.shown,
        length=experiment.length,
    )


def remaining_cost(plan: ProbePlan, store: ProbeStore) -> Cost:
    """Estimate what a run will still cost, at most; what the folder holds does not count.

    Raises:
        FairqrError: The folder holds another run, a line of it is damaged, or a model or ranker is
            not named rightly.
    """
    store.check(plan.manifest)
    total = Cost()
    for cost in _costs(plan, store):
        total += cost
    return total


def _costs(plan: ProbePlan, store: ProbeStore) -> Iterator[Cost]:
    experiment = plan.manifest.experiment
    if isinstance(experiment, PairwiseExperiment):
        done = {record.key for record in store.pairs.read() if record.is_final}
        tasks = pair_tasks(experiment, plan.collections)
        for model in experiment.models:
            judge = open_judge(plan, model)
            for task in tasks:
                if task.key(model) not in done:
                    one, other = rank_item(task.pair.protected), rank_item(task.pair.unprotected)
                    yield judge.cost(task.query.query, one, other, group=task.group)
        return
    done = {record.key for record in store.rankings.read() if record.is_final}
    lists = list_tasks(experiment, plan.collections)
    for name in experiment.rankers:
        for window in windows_of(experiment, name):
            ranker = open_probe_ranker(name, window, experiment, plan.prompts, options=plan.options)
            for each in lists:
                if each.key(name, window) not in done:
                    items = [rank_item(item) for item in each.query.items]
                    yield ranker.cost(each.query.query, items, each.group)


def cost_in_words(cost: Cost) -> str:
    """Say what a run will cost at most."""
    if not cost.calls:
        return "no question to a language model is left"
    return f"at most {cost.calls:,} questions to language models, about {cost.tokens:,} tokens"
