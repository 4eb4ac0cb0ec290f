"""A Fair RAG experiment from its plan to its records: for each query labels, then all policies."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fairqr.agents.attribution.checking import unchecked_warning
from fairqr.agents.attribution.opening import open_attributor
from fairqr.agents.models.opening import open_generator
from fairqr.base.errors import InputError, one_line
from fairqr.base.files import sha256_of
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.evaluation.experiments.tasks import Done, Tasks, run_tasks
from fairqr.evaluation.experiments.workers import RunOptions, Tools, make_ready
from fairqr.evaluation.lamp.loading import KeptDocuments
from fairqr.evaluation.rag.answering import Part, Task, answer_query, open_part, singles
from fairqr.evaluation.rag.collection import RagCollection, RagQuery
from fairqr.evaluation.rag.finding import find_rag_collection
from fairqr.evaluation.rag.labels import judged_labels, read_labels
from fairqr.evaluation.rag.measured import MeasuredRag, measure_fair_rag
from fairqr.evaluation.rag.specification import LABELS, Draw, FairRagExperiment
from fairqr.evaluation.rag.store import PolicyRecord, RagManifest, RagStore
from fairqr.prompts.library import PromptLibrary
from fairqr.prompts.template import PromptTemplate
from fairqr.retrieval.pools.retrievers import open_pool_retriever


class RagPlan(NamedTuple):
    """The work of a run.

    Attributes:
        manifest: What it is done with.
        tasks: One part after the other, since large models do not fit side by side.
        labels: Labels that somebody else made.
    """

    manifest: RagManifest
    tasks: list[Task]
    labels: Sequence[PolicyRecord] = ()

    def records(self, store: RagStore) -> dict[Hashable, PolicyRecord]:
        """Return the records that need not be made."""
        return {record.key: record for record in (*self.labels, *store.lines.read())}


def open_collections(experiment: FairRagExperiment) -> dict[str, RagCollection]:
    """Read the collections of an experiment, by name.

    Raises:
        InputError: None is named, or two have one name.
        CorpusError: One cannot be read.
    """
    if not experiment.collections:
        raise InputError("The experiment names no collection; name one with --collection.")
    kept = KeptDocuments(not experiment.drop_duplicates, not experiment.drop_answers)
    collections = [
        find_rag_collection(
            name,
            task=experiment.task,
            limit=experiment.queries,
            pool=experiment.pool,
            kept=kept,
            rating_labels=experiment.rating_labels,
        )
        for name in experiment.collections
    ]
    by_name = {collection.name: collection for collection in collections}
    if len(by_name) < len(collections):
        raise InputError("Two of the collections have the same name; rename one of them.")
    return by_name


def make_rag_plan(
    experiment: FairRagExperiment,
    collections: Mapping[str, RagCollection],
    prompts: PromptLibrary,
    attributor: str = "",
    notes: Iterable[str] = (),
    labels: Sequence[Path] = (),
) -> RagPlan:
    """Plan an experiment on its collections.

    Args:
        experiment: What is asked.
        collections: The collections that it names, in its order.
        prompts: Where prompts come from.
        attributor: As it names itself; empty where nothing judges.
        notes: Sentences for the report.
        labels: Tables for :func:`read_labels`.

    Raises:
        InputError: Documents of a collection do not have the groups to mind, or labels are of
            something else.
        PromptError: A prompt does not exist, or there is no such version of it.
    """
    used_prompts = _used_prompts(experiment, collections, prompts)
    _check_groups(experiment, collections)
    asks = bool(experiment.generators) and (experiment.answered > 0 or not labels)
    tasks: list[Task] = []
    for generator in experiment.labellers:
        for name, collection in collections.items():
            groups = None
            if experiment.group_aware and collection.schema:
                groups = collection.schema.attributes[experiment.group_aware]
            part = Part(
                experiment,
                name,
                generator,
                utility=collection.utility,
                label_utility=collection.label_utility or collection.utility,
                prompt=used_prompts[name],
                attributor=attributor,
                groups=groups,
                asks=asks,
            )
            tasks += [(part, query) for query in collection.queries]
    records: list[PolicyRecord] = []
    for path in labels:
        records += read_labels(path, tasks)
    if not labels and not experiment.generators:
        records = judged_labels(tasks)
    needs_all_labels = bool(labels) and bool(experiment.generators) and not asks
    if needs_all_labels and len(records) < len(tasks):
        raise InputError("The labels are not those of all generators and collections; add them.")
    manifest = RagManifest(
        experiment=experiment,
        collections=_fingerprints(collections),
        prompts={
            f"{prompt.id}={prompt.version}": prompt.sha256 for prompt in used_prompts.values()
        },
        attributor=attributor,
        labels=tuple(map(sha256_of, labels)),
        notes=tuple(notes),
    )
    return RagPlan(manifest, tasks, records)


def _used_prompts(
    experiment: FairRagExperiment,
    collections: Mapping[str, RagCollection],
    prompts: PromptLibrary,
) -> dict[str, PromptTemplate]:
    """Return the prompt of each collection, by its name.

    Raises:
        PromptError: A prompt does not exist, or there is no such version of it.
    """
    # Also those that these collections do not ask with: a name may be misspelt.
    chosen = {name: prompts.get(name, version) for name, version in experiment.prompts.items()}
    used = {}
    for name, collection in collections.items():
        kind = collection.prompt
        used[name] = chosen.get(kind) or prompts.get(kind)
    return used


def _check_groups(experiment: FairRagExperiment, collections: Mapping[str, RagCollection]) -> None:
    """Refuse collections whose documents lack the attribute whose groups policies mind."""
    attribute = experiment.group_aware
    if not attribute:
        return
    for name, collection in collections.items():
        attributes = collection.schema.attributes if collection.schema else {}
        if attribute not in attributes:
            raise InputError(
                f"The documents of '{name}' have no attribute '{one_line(attribute)}'."
            )


def _fingerprints(collections: Mapping[str, RagCollection]) -> dict[str, str]:
    return {name: collection.fingerprint for name, collection in collections.items()}


def keys_of(task: Task, records: Mapping[Hashable, PolicyRecord]) -> list[Hashable]:
    """Return the keys of a query's label and, if that keeps it, of all policies."""
    part, query = task
    label = records.get(part.key(LABELS, query))
    is_kept = label is not None and not label.why_dropped(part.experiment.min_useful)
    draws = [LABELS, *part.experiment.draws] if is_kept else [LABELS]
    return [part.key(draw, query) for draw in draws]


def cost_of(plan: RagPlan, store: RagStore) -> Counter[str]:
    """Return what is still to be done, at most: queries may be dropped, and rankings be equal.

    Returns:
        How many answers for ``labels`` and from ``rankings``, and how many ``attributions``.
    """
    experiment = plan.manifest.experiment
    records = plan.records(store)
    cost = Counter[str]()
    for part, query in plan.tasks:
        draws = (LABELS, *experiment.draws)
        remaining = [draw for draw in draws if part.key(draw, query) not in records]
        is_labelled = LABELS not in remaining
        if is_labelled and len(keys_of((part, query), records)) == 1:
            continue  # it is left out
        labels, answers = answers_of(query, experiment, remaining)
        cost["labels"] += labels
        cost["rankings"] += answers
        if part.attributor:
            cost["attributions"] += answers * min(experiment.k, len(query.pool))
    return cost


def answers_of(
    query: RagQuery, experiment: FairRagExperiment, draws: Sequence[Draw]
) -> tuple[int, int]:
    """Return how many answers a query takes, at most: for its labels, and from rankings.

    Args:
        query: It has a pool.
        experiment: How many rankings are answered, and how long they are.
        draws: Labels and policies that have no record yet.
    """
    answered = experiment.answered
    labels = 0
    rankings = 0
    for draw in draws:
        if draw == LABELS:
            labels = len(singles(query)) if experiment.generators else 0
        elif draw.policy == "deterministic":
            rankings += min(1, answered)
        else:
            rankings += answered
    size = len(query.pool)
    different_rankings = math.perm(size, min(experiment.k, size))
    return labels, min(rankings, different_rankings)


async def run_fair_rag(plan: RagPlan, store: RagStore, tools: Tools, watcher: StageWatcher) -> None:
    """Do all that is not done yet.

    Args:
        plan: What to do.
        store: Where results go; locked while this runs.
        tools: Do the jobs.
        watcher: Receives the progress.

    Raises:
        FairqrError: It cannot go on for a reason that concerns more than one answer; the results so
            far are kept.
    """
    experiment = plan.manifest.experiment
    draws = (LABELS, *experiment.draws)

    async def start(part: Part) -> None:
        await tools.do(make_ready, open_part, part)
        store.begin(plan.manifest)

    async def do(task: Task) -> Done[PolicyRecord]:
        before = [records[key] for key in keys_of(task, records) if key in records]
        done = await tools.do(answer_query, *task, before)
        # Labels that somebody else made are kept in the folder, too.
        imported = [record for record in before if record.key not in kept]
        return replace(done, records=[*imported, *done.records])

    with store.locked():
        store.check(plan.manifest)
        records = plan.records(store)
        kept = store.lines.done()
        tasks = Tasks(
            tasks=plan.tasks,
            do=do,
            lines=store.lines,
            title="queries",
            keys=lambda task: keys_of(task, records),
            start=start,
            name_at=lambda part: part.generator,
            place=lambda task: task[0],
            questions=lambda task: sum(answers_of(task[1], experiment, draws)) or 1,
        )
        await run_tasks(tasks, watcher=watcher, at_once=tools.at_once)


async def run(experiment: FairRagExperiment, options: RunOptions) -> None:
    """Do all that is not done yet, and say first what it will cost at most."""
    collections = open_collections(experiment)
    # A wrong name is an error here.
    for name in experiment.retrievers:
        open_pool_retriever(name)
    for name in experiment.generators:
        open_generator(name, cache=False)
    attributor = ""
    notes: list[str] = []
    if experiment.answered and experiment.attributor != "none":
        judge = open_attributor(experiment.attributor, cache=False, prompts=options.prompts)
        attributor = judge.name
        warning = unchecked_warning(judge)
        if warning:
            notes.append(warning)
    for path in options.labels:
        notes.append(f"Which documents are useful is imported from {path.name}.")
    if not (experiment.generators or options.labels):
        notes.append("Useful documents are those that the collection's judgements call relevant.")
    plan = make_rag_plan(
        experiment, collections, options.prompts, attributor, notes, options.labels
    )
    store = RagStore(options.folder)
    store.check(plan.manifest)
    for sentence in (*plan.manifest.notes, _cost_in_words(cost_of(plan, store))):
        options.watcher.note(sentence)
    async with options.tools(store.replies) as tools:
        await run_fair_rag(plan, store, tools, options.watcher)


def _cost_in_words(cost: Counter[str]) -> str:
    """Say what is still to be asked, at most."""
    answers = cost["labels"] + cost["rankings"]
    if not answers:
        return "nothing is left to ask"
    return (
        f"at most {answers:,} answers ({cost['labels']:,} of them for labels), "
        f"{cost['attributions']:,} attributions"
    )


def measure(folder: Path) -> MeasuredRag:
    """Measure all answers of a folder.

    Raises:
        InputError: A collection has changed since the run.
    """
    store = RagStore(folder)
    manifest = store.manifest()
    collections = open_collections(manifest.experiment)
    if _fingerprints(collections) != manifest.collections:
        raise InputError(f"The collections of {folder} have changed since the experiment was run.")
    return measure_fair_rag(manifest, store.lines.read(), collections)
