"""A Fair RAG experiment from its plan to its records: labels first, then each query's policies."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import (
    Collection,
    Hashable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from fairqr.agents.attribution.attributor import RAW, Attributor
from fairqr.agents.attribution.checking import unchecked_warning
from fairqr.agents.attribution.opening import open_attributor
from fairqr.agents.models.opening import open_generator
from fairqr.base.errors import FairqrError, InputError, ModelError, one_line
from fairqr.evaluation.experiments.engine import Done, refusal_of, run_tasks
from fairqr.evaluation.experiments.kinds import RunOptions
from fairqr.evaluation.experiments.options import check_prompts
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.evaluation.experiments.workers import Pool
from fairqr.evaluation.rag.answering import (
    Asked,
    Draw,
    Policies,
    PolicyTask,
    answer_policy,
    draws_of,
    open_policies,
    score_pool,
)
from fairqr.evaluation.rag.collection import RagCollection, RagQuery
from fairqr.evaluation.rag.finding import find_rag_collection
from fairqr.evaluation.rag.labelling import (
    check_labels,
    given_labels,
    label_manifest,
    label_query,
    labelling_calls,
    useful_positions,
    why_dropped,
)
from fairqr.evaluation.rag.measuring import MeasuredRag, measure_fair_rag
from fairqr.evaluation.rag.specification import NO_ATTRIBUTOR, FairRagExperiment
from fairqr.evaluation.rag.store import (
    CollectionEntry,
    GenerationLabels,
    LabelManifest,
    LabelRecord,
    PolicyRecord,
    RagManifest,
    RagStore,
)
from fairqr.prompts.library import PromptLibrary
from fairqr.prompts.template import PromptTemplate
from fairqr.retrieval.fairness.exposure import FloatArray

STORE = RagStore

Cost = Counter[str]
"""What is still to be done, at most: answers for ``labels`` and from ``rankings``, and
``attributions``. Queries may be dropped, and rankings may be equal."""

GivenLabels = Mapping[tuple[str, str], Sequence[LabelRecord]]
"""Labels that another run made, by the names of the collection and the generator."""


@dataclass(frozen=True, slots=True)
class Part:
    """A generator on a collection.

    Attributes:
        hypothesis: The template that makes answers into hypotheses.
        generator: As the experiment names it.
    """

    collection: RagCollection
    prompt: PromptTemplate
    hypothesis: str
    generator: str

    @property
    def name(self) -> tuple[str, str]:
        """The names of the collection and of the generator."""
        return self.collection.name, self.generator

    @property
    def asked(self) -> Asked:
        """What is asked, as a job needs it."""
        return Asked(self.generator, self.collection.task, self.prompt)


@dataclass(frozen=True, slots=True)
class RagPlan:
    """The work of a run.

    Attributes:
        manifest: What it is done with.
        parts: One for each generator and collection, in the order in which they are done.
        draws: The policies of each query.
    """

    manifest: RagManifest
    parts: tuple[Part, ...]
    draws: tuple[Draw, ...]


def open_collections(experiment: FairRagExperiment) -> list[RagCollection]:
    """Read the collections of an experiment.

    Raises:
        InputError: None is named, two are one, or one has no query.
        CorpusError: One cannot be read.
    """
    if not experiment.collections:
        raise InputError(
            "The experiment names no collection; name one with --collection, such as notables or "
            "a folder of LaMP."
        )
    found = [
        find_rag_collection(
            name, task=experiment.task, limit=experiment.queries, pool=experiment.pool
        )
        for name in experiment.collections
    ]
    names = [collection.name for collection in found]
    for collection in found:
        if names.count(collection.name) > 1:
            raise InputError(
                f"Two collections are called '{one_line(collection.name)}'; rename one of them."
            )
        if not collection.queries:
            raise InputError(
                f"The collection '{one_line(collection.name)}' has no query; name another one."
            )
    return found


def unchanged_collections(manifest: RagManifest) -> dict[str, RagCollection]:
    """Read the collections of a run by their names.

    Raises:
        InputError: One has changed since the run.
    """
    found = open_collections(manifest.experiment)
    for before, found_now in zip(manifest.collections, found, strict=True):
        if (before.name, before.fingerprint) != (found_now.name, found_now.fingerprint):
            raise InputError(
                f"The files of '{before.name}' have changed since the experiment was run; "
                "bring the old ones back, or run it again into another folder."
            )
    return {collection.name: collection for collection in found}


def make_rag_plan(
    experiment: FairRagExperiment,
    collections: Sequence[RagCollection],
    prompts: PromptLibrary,
    attributor: str,
    notes: Sequence[str] = (),
) -> RagPlan:
    """Hold an experiment against its collections.

    Args:
        experiment: What is asked.
        collections: Those that it names, in its order.
        prompts: Where prompts come from.
        attributor: As it names itself; empty where nothing judges.
        notes: Sentences for the report.

    Raises:
        PromptError: A prompt does not exist, or there is no such version of it.
    """
    for name, version in experiment.prompts.items():
        # Also of those that these collections do not ask with: a name may be misspelt.
        prompts.get(name, version)
    each = [
        (
            collection,
            prompts.get(collection.task.prompt, experiment.prompts.get(collection.task.prompt)),
            collection.task.hypothesis if experiment.hypothesis == "task" else RAW,
        )
        for collection in collections
    ]
    manifest = RagManifest(
        experiment=experiment,
        collections=tuple(CollectionEntry.of(*described) for described in each),
        attributor=attributor,
        notes=(*notes, *_notes(experiment, collections)),
    )
    # One generator after the other, since large models do not fit side by side.
    parts = tuple(Part(*it, generator) for generator in experiment.generators for it in each)
    return RagPlan(manifest, parts, tuple(draws_of(experiment)))


def cost_in_words(cost: Cost) -> str:
    """Say what a run will cost at most."""
    answers = cost["labels"] + cost["rankings"]
    if not answers:
        return "nothing is left to ask"
    return (
        f"at most {answers:,} answers ({cost['labels']:,} of them for labels), "
        f"{cost['attributions']:,} attributions"
    )


def _notes(experiment: FairRagExperiment, collections: Sequence[RagCollection]) -> list[str]:
    notes: list[str] = []
    for collection in collections:
        small = sum(len(query.pool) < experiment.k for query in collection.queries)
        if small:
            notes.append(
                f"{small} of {len(collection.queries)} queries of '{collection.name}' have fewer "
                f"than {experiment.k} documents; their rankings are as long as the pool."
            )
    if experiment.attributor == NO_ATTRIBUTOR:
        notes.append("Nothing judged what answers used, so nothing is said about attribution.")
    return notes


def cost_of(
    part: Part,
    experiment: FairRagExperiment,
    *,
    labelled: Collection[str],
    kept: Collection[str],
    done: Collection[Hashable],
) -> Cost:
    """Return the most that a generator still has to do on a collection.

    Args:
        part: Both of them.
        experiment: What is asked.
        labelled: The ids of the queries that have labels.
        kept: The ids of those that have enough useful documents.
        done: The keys of the records that are there.
    """
    cost = Cost()
    draws = draws_of(experiment)
    for query in part.collection.queries:
        if query.id not in labelled:
            cost["labels"] += labelling_calls([query])
        elif query.id not in kept:
            continue
        todo = [draw for draw in draws if draw.key(*part.name, query.id) not in done]
        # Deterministic rankings are the same under every seed.
        fixed = {draw.retriever for draw in todo if draw.policy == "deterministic"}
        drawn = sum(draw.answered(experiment) for draw in todo if draw.policy != "deterministic")
        places = min(experiment.k, len(query.pool))
        answers = min(len(fixed) + drawn, math.perm(len(query.pool), places))
        cost["rankings"] += answers
        if experiment.attributor != NO_ATTRIBUTOR:
            cost["attributions"] += answers * places
    return cost


def match_labels(plan: RagPlan, folders: Sequence[Path]) -> GivenLabels:
    """Read given labels, and find out which collection and generator each folder is for.

    Raises:
        InputError: A folder holds no labels, those of another collection, generator or prompt, or
            has not looked at all documents of the pools.
    """

    def differences(found: LabelManifest, part: Part) -> int:
        wanted = _wanted(plan, part).model_dump().items()
        return sum(getattr(found, name) != value for name, value in wanted)

    matched: dict[tuple[str, str], Sequence[LabelRecord]] = {}
    for folder in folders:
        given = GenerationLabels(folder)
        # The nearest one, so that the sentence is about the difference that matters.
        nearest = min(plan.parts, key=partial(differences, given.manifest()))
        check_labels(given, _wanted(plan, nearest))
        matched[nearest.name] = given_labels(folder, nearest.collection.queries)
    return matched


def remaining_cost(plan: RagPlan, store: RagStore, folders: Sequence[Path] = ()) -> Cost:
    """Estimate what a run will still cost, at most.

    Args:
        plan: What to do.
        store: Where some of it may be done already.
        folders: Folders of labels that already exist.

    Raises:
        InputError: The folder holds another run, given labels do not fit, or a line is damaged.
    """
    store.check(plan.manifest)
    experiment = plan.manifest.experiment
    given = match_labels(plan, folders)
    done = store.lines.done()
    total = Cost()
    for part in plan.parts:
        labels = [*given.get(part.name, ()), *store.labels(*part.name).lines.read()]
        found = {label.query: label for label in labels}
        kept = {it for it in found if why_dropped(found[it], experiment.min_useful) is None}
        total += cost_of(part, experiment, labelled=found, kept=kept, done=done)
    return total


async def run_fair_rag(
    plan: RagPlan,
    store: RagStore,
    pool: Pool,
    *,
    watcher: StageWatcher,
    folders: Sequence[Path] = (),
) -> None:
    """Do all that is not done yet.

    Args:
        plan: What to do.
        store: Where results go; locked while this runs.
        pool: Does the jobs.
        watcher: Receives the progress.
        folders: Folders of labels that already exist; we make the ones that they lack.

    Raises:
        FairqrError: It cannot go on for a reason that concerns more than one answer; the results so
            far are kept.
    """
    run = _Run(plan, store, match_labels(plan, folders), pool)
    with store.locked():
        store.check(plan.manifest)
        undone = [error for part in plan.parts for error in await run.do(part, watcher)]
        store.begin(plan.manifest)
        if undone:
            raise undone[0]


@dataclass(frozen=True, slots=True)
class _Run:
    plan: RagPlan
    store: RagStore
    given: GivenLabels
    pool: Pool
    _scores: dict[tuple[str, str, str], FloatArray] = field(default_factory=dict, init=False)

    async def do(self, part: Part, watcher: StageWatcher) -> list[FairqrError]:
        """Make the labels and then the rankings of a part; return what tells what is not done."""
        labels = self.store.labels(*part.name)
        there = {label.query for label in labels.lines.read()}
        given = [it for it in self.given.get(part.name, ()) if it.query not in there]

        async def start(_: None) -> None:
            """Make the models ready, and then begin the folders."""
            open_generator(part.generator, cache=False)  # a wrong name is an error here
            await self.pool.do(open_policies, self._policies(part))
            self.store.begin(self.plan.manifest)
            labels.begin(_wanted(self.plan, part))
            missing = {label.query for label in given} - {it.query for it in labels.lines.read()}
            with labels.lines.writing():
                for label in given:
                    if label.query in missing:
                        labels.lines.add(label)

        run = partial(
            run_tasks,
            place=lambda _: None,
            start=start,
            model=lambda _: part.generator,
            watcher=watcher,
            at_once=self.pool.at_once,
        )
        known = {label.query for label in given}
        asked = [it for it in part.collection.queries if it.id not in known | there]
        unlabelled = await run(
            [query for query in part.collection.queries if query.id not in known],
            lambda query: self.pool.do(label_query, part.asked, query),
            labels.lines,
            title=f"{', '.join(part.name)}: labels",
            keys=lambda query: [(query.id,)],
        )
        found = {label.query: label for label in [*given, *labels.lines.read()]}
        least = self.plan.manifest.experiment.min_useful
        kept = [
            query
            for query in part.collection.queries
            if query.id in found and why_dropped(found[query.id], least) is None
        ]
        before: dict[str, list[PolicyRecord]] = {}
        for record in self.store.lines.read():
            if (record.collection, record.generator) == part.name:
                before.setdefault(record.query, []).append(record)
        is_left = bool(asked) or len(before) < len(kept)
        if (dropped := len(found) - len(kept)) and is_left:
            watcher.note(
                f"{', '.join(part.name)}: {dropped} of {len(found)} queries are left out, since "
                f"they have fewer than {least} useful documents or could not be labelled."
            )
        unranked = await run(
            kept,
            lambda query: self._rank(part, query, found[query.id], before.get(query.id, ())),
            self.store.lines,
            title=f"{', '.join(part.name)}: rankings",
            keys=lambda query: [draw.key(*part.name, query.id) for draw in self.plan.draws],
        )
        return [error for error in (unlabelled, unranked) if error is not None]

    async def _rank(
        self, part: Part, query: RagQuery, label: LabelRecord, before: Sequence[PolicyRecord]
    ) -> Done[PolicyRecord]:
        """Make the records of a query that are not there yet."""
        policies, useful = self._policies(part), useful_positions(query, label)
        known = {answer.ranking: answer for record in before for answer in record.answers}
        done, made = {record.key for record in before}, list[PolicyRecord]()
        for draw in self.plan.draws:
            if draw.key(*part.name, query.id) not in done:
                scores = await self._score(draw, part, query)
                task = PolicyTask(query, useful, draw, scores, tuple(known.values()))
                try:
                    made.append(await self.pool.do(answer_policy, policies, task))
                except ModelError as error:
                    return Done(made, away=error)
                known |= {answer.ranking: answer for answer in made[-1].answers}
        answers = [answer for record in made for answer in record.answers]
        return Done(made, refusal=refusal_of((answer.status, "") for answer in answers))

    def _policies(self, part: Part) -> Policies:
        manifest, name = self.plan.manifest, part.collection.name
        return Policies(manifest.experiment, name, part.asked, manifest.attributor, part.hypothesis)

    async def _score(self, draw: Draw, part: Part, query: RagQuery) -> FloatArray | None:
        """Return a retriever's scores of a pool, which are the same for every generator."""
        key = (draw.retriever, part.collection.name, query.id)
        if draw.retriever and key not in self._scores:
            self._scores[key] = await self.pool.do(score_pool, draw.retriever, query)
        return self._scores.get(key)


def _wanted(plan: RagPlan, part: Part) -> LabelManifest:
    pool = plan.manifest.experiment.pool
    return label_manifest(part.collection, part.generator, part.prompt, pool)


async def run(experiment: FairRagExperiment, options: RunOptions) -> None:
    """Do all that is not done yet, and say first what it will cost at most."""
    collections = open_collections(experiment)
    check_prompts(options.prompts_set, {collection.task.prompt for collection in collections})
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
