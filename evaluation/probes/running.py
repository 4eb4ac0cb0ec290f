"""A probe from its plan to its records and measures. A tuning is a probe before and after.

Models rank lists, or compare pairs; each list or pair is a job that any process may do. Those with
a record are not done again.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

from fairqr.agents.models.cache import ReplyCache, replies_file
from fairqr.agents.models.causal_weights import lasting_name
from fairqr.agents.models.language_model import LanguageModel
from fairqr.agents.models.opening import CAUSAL, open_language_model
from fairqr.agents.ranking import preference, rankers
from fairqr.agents.ranking.pairwise import PairwiseJudge
from fairqr.base.errors import InputError, one_line
from fairqr.evaluation.experiments.folder import spent
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.evaluation.experiments.tasks import (
    Done,
    Tasks,
    check_answered,
    refusal_of,
    run_tasks,
)
from fairqr.evaluation.experiments.workers import RunOptions, Tools, make_ready
from fairqr.evaluation.probes import collection, tuning
from fairqr.evaluation.probes.collection import GROUP_KINDS, ProbeCollection, planned_pairs
from fairqr.evaluation.probes.measures import measure as measure
from fairqr.evaluation.probes.specification import (
    INITIAL,
    ListwiseExperiment,
    LoraExperiment,
    PairwiseExperiment,
    parse_causal,
    parse_ranker,
    parse_window,
)
from fairqr.evaluation.probes.store import (
    STAGES,
    AnyProbe,
    PairRecord,
    ProbeRunManifest,
    ProbeStore,
    RankedList,
)
from fairqr.prompts.library import PromptLibrary
from fairqr.prompts.template import PromptTemplate

Untuned = ListwiseExperiment | PairwiseExperiment

JUDGE = "judge"
"""The kind of what compares pairs; all other kinds are rankers."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """A ranker or a judge of an experiment, as plain data.

    Attributes:
        name: The ranker or the judge's model, as the experiment writes it.
        kind: How it ranks.
        model: The language model that is asked; empty if there is none.
        how: How it is asked.
        options: More for the chat model, such as ``base_url``.
        window: The window of a listwise ranker, as its records name it.
    """

    name: str
    kind: str
    model: str
    how: rankers.RankerOptions
    options: Mapping[str, Any]
    window: str = ""

    @property
    def place(self) -> tuple[str, str]:
        """Distinguishes it from the others of its experiment."""
        return self.name, self.window

    @property
    def prompt(self) -> str:
        """The id of the prompt that it asks with, if it asks a language model."""
        return "pairwise" if self.kind == JUDGE else self.kind

    def language_model(self, cache: ReplyCache | bool = False) -> LanguageModel | None:
        """Open the language model, if one is asked.

        Raises:
            ModelUnavailableError: There is no such model.
        """
        if not self.model:
            return None
        return open_language_model(self.model, cache=cache, **self.options)

    def open(
        self, prompts: PromptLibrary, model: LanguageModel | None, at_once: int = 1
    ) -> rankers.ItemRanker | PairwiseJudge:
        """Open the ranker or judge; nothing is loaded yet.

        Args:
            prompts: Where prompts come from.
            model: The language model.
            at_once: How many comparisons of a pairwise ranker may run at the same time.

        Raises:
            InputError: An option is out of its range.
            PromptError: There is no such prompt.
        """
        if self.kind == JUDGE and model is not None:
            prompt = prompts.get(self.prompt, self.how.versions.get(self.prompt))
            return PairwiseJudge(model, prompt, self.how)
        how = replace(self.how, concurrency=at_once)
        return rankers.open_ranker(self.kind, model, prompts, how)


@dataclass(frozen=True, slots=True)
class Task:
    """A list to be ranked, or a pair to be asked about.

    Attributes:
        entrant: What ranks the list, or compares the items.
        key: The key of its record.
        query: The text of the query.
        items: What may be known of the items; of a pair, the protected one comes first.
        group: What stands before those who ask.
    """

    entrant: Entrant
    key: tuple[str, ...]
    query: str
    items: Any
    group: str


def entrants_of(experiment: Untuned, options: Mapping[str, Any]) -> list[Entrant]:
    """Return the judges, or the rankers with each of their windows, without the initial order.

    Args:
        experiment: How they are asked.
        options: More for chat models.
    """
    how = rankers.RankerOptions(experiment.shown, experiment.length, versions=experiment.prompts)
    if isinstance(experiment, PairwiseExperiment):
        by_answer = replace(how, by=experiment.by)
        return [Entrant(model, JUDGE, model, by_answer, options) for model in experiment.models]
    entrants = []
    for name in experiment.rankers:
        kind, model = parse_ranker(name)
        if kind in (*rankers.POINTWISE, rankers.ENDPOINT):
            neural = replace(how, shown=experiment.shown_to_neural, weights=model or None)
            entrants.append(Entrant(name, kind, "", neural, options))
        elif kind != INITIAL:
            for window in experiment.windows_of(name):
                in_windows = how
                if window:
                    size, step = parse_window(window)
                    in_windows = replace(how, window=size, step=step)
                entrants.append(Entrant(name, kind, model, in_windows, options, window))
    return entrants


def tasks_of(experiment: Untuned, entrant: Entrant, collection: ProbeCollection) -> list[Task]:
    """Return what a ranker has to rank, or a model is asked about.

    Raises:
        InputError: There is no pair of both groups to ask about.
    """
    if isinstance(experiment, PairwiseExperiment):
        return _pairs_of(experiment, entrant, collection)
    name = collection.manifest.name
    tasks = []
    for persona in experiment.personas:
        group = rankers.group_of(persona, collection.manifest.sides.words)
        for query in collection.queries:
            items = tuple(item.shown for item in query.items)
            key = (name, *entrant.place, persona, query.id)
            tasks.append(Task(entrant, key, query.query, items, group))
    return tasks


def _pairs_of(
    experiment: PairwiseExperiment, entrant: Entrant, collection: ProbeCollection
) -> list[Task]:
    """Return the pairs that a model is asked about.

    Raises:
        InputError: There is no pair of both groups.
    """
    name = collection.manifest.name
    group = rankers.group_of(experiment.persona, collection.manifest.sides.words)
    tasks = []
    kinds = set()
    for query in collection.queries:
        pairs = planned_pairs(query, experiment.pairs, experiment.relevance_pairs, experiment.seed)
        for pair in pairs:
            items = tuple(item.shown for item in pair.items)
            key = (name, entrant.name, query.id, *pair.key)
            tasks.append(Task(entrant, key, query.query, items, group))
            kinds.add(pair.kind)
    if kinds.isdisjoint(GROUP_KINDS):
        raise InputError(
            f"No query of {one_line(name)} that is asked about has a pair of both groups; take "
            "more queries, or choose other groups."
        )
    return tasks


async def opened(tools: Tools, entrant: Entrant) -> Any:
    """Return a ranker or judge that is started; it is opened where it is not open yet."""

    async def language_model() -> LanguageModel | None:
        return entrant.language_model(tools.replies)

    # One for all windows, since a large model takes long to load.
    key = (entrant.model, entrant.options)
    model = await tools.keep("ranking model", key, language_model)

    def opened_ranker() -> rankers.ItemRanker | PairwiseJudge:
        return entrant.open(tools.prompts, model, tools.at_once)

    return await tools.started("ranker", entrant, opened_ranker)


async def do_task(tools: Tools, task: Task) -> Done[Any]:
    """Rank a list, or compare the items of a pair in both orders.

    Raises:
        ModelError: The model was away for a part of it.
    """
    opened_entrant = await opened(tools, task.entrant)
    if isinstance(opened_entrant, PairwiseJudge):
        return await _compare(opened_entrant, task)
    return await _rank(opened_entrant, task)


async def _compare(judge: PairwiseJudge, task: Task) -> Done[PairRecord]:
    """Compare the items of a pair in both orders."""
    compared = await judge.compare(task.query, task.items, task.group)
    first = compared.one_first
    second = compared.other_first
    checked = [
        check_answered(first.status, first.message),
        check_answered(second.status, second.message),
    ]
    preferred = compared.preferred(preference.PROTECTED, preference.UNPROTECTED)
    record = PairRecord(
        **dict(zip(PairRecord.keys, task.key, strict=True)),
        protected_first=preferred[0],
        unprotected_first=preferred[1],
        log_odds=(first.log_odds, second.log_odds),
        spent=spent(compared.usage),
    )
    return Done((record,), judge.warnings, refusal=refusal_of(checked))


async def _rank(ranker: rankers.ItemRanker, task: Task) -> Done[RankedList]:
    """Rank a list."""
    ranking = await ranker.rank(task.query, task.items, group=task.group)
    checked = [check_answered(status, ranking.message) for status in ranking.failures]
    record = RankedList(
        **dict(zip(RankedList.keys, task.key, strict=True)),
        order=ranking.order,
        asked=ranking.asked,
        failures=dict(ranking.failures),
        repairs=dict(ranking.repairs),
        warnings=ranking.warnings,
        spent=spent(ranking.usage),
    )
    refusal = refusal_of(checked) if record.failed else None
    return Done((record,), ranking.warnings, refusal=refusal)


class ProbePlan(NamedTuple):
    """The work of a run.

    Attributes:
        collections: In the order of the manifest.
        tasks: What is asked, one ranker or model after the other.
        costs: What each task costs at most, by its key.
        batches: The examples of each training step of a tuning.
    """

    manifest: ProbeRunManifest
    collections: Sequence[ProbeCollection]
    tasks: Sequence[Task]
    costs: Mapping[tuple[str, ...], rankers.Cost]
    batches: tuning.Batches


async def make_probe_plan(
    experiment: AnyProbe, prompts: PromptLibrary, watcher: StageWatcher, **options: Any
) -> ProbePlan:
    """Build the probe collections of an experiment, draw all pairs and estimate what they cost.

    No model is loaded.

    Args:
        experiment: What is asked.
        prompts: Where prompts come from.
        watcher: Receives the name of what is imported or read.
        options: More for chat models, such as ``base_url``: the address of an OpenAI-compatible
            server, which defaults to the provider's own.

    Raises:
        FairqrError: A collection, a group, a prompt or a model that it names is not there, two
            collections have one name, or no pair is left to train on or to probe with.
    """
    base = ""
    probed = cast("Untuned", experiment)
    if isinstance(experiment, LoraExperiment):
        base = lasting_name(parse_causal(experiment.model))
        probed = experiment.probing(f"{CAUSAL}:{base}")
    chosen_options = {name: value for name, value in options.items() if value is not None}
    entrants = entrants_of(probed, chosen_options)
    used_prompts = _used_prompts(experiment, entrants, prompts)
    texts = {experiment.shown, *(entrant.how.shown for entrant in entrants)} != {"title"}
    collections = await asyncio.to_thread(
        collection.open_probe_collections, experiment, texts=texts, watcher=watcher
    )
    entry = None
    probed_collections = collections
    batches: tuning.Batches = ()
    if isinstance(experiment, LoraExperiment):
        drawn = tuning.draw_tuning(experiment, base, collections, watcher)
        probed_collections, entry, batches = drawn
    tasks: list[Task] = []
    for entrant in entrants:
        for probed_collection in probed_collections:
            tasks += tasks_of(probed, entrant, probed_collection)
    manifest = ProbeRunManifest(
        experiment=experiment,
        collections=tuple(drawn_collection.entry for drawn_collection in collections),
        prompts={f"{prompt.id}={prompt.version}": prompt.sha256 for prompt in used_prompts},
        base_url=options.get("base_url"),
        tuning=entry,
    )
    opened_entrants: dict[tuple[str, str], Any] = {
        entrant.place: entrant.open(prompts, entrant.language_model()) for entrant in entrants
    }
    costs = {}
    for task in tasks:
        opened_entrant = opened_entrants[task.entrant.place]
        costs[task.key] = opened_entrant.cost(task.query, task.items, task.group)
    return ProbePlan(manifest, collections, tasks, costs, batches)


def _used_prompts(
    experiment: AnyProbe, entrants: Sequence[Entrant], prompts: PromptLibrary
) -> list[PromptTemplate]:
    """Return the prompts that language models are asked with.

    Raises:
        PromptError: There is no prompt of a name that the experiment has.
    """
    # Also those that are not asked with: a name may be misspelt.
    chosen = {name: prompts.get(name, version) for name, version in experiment.prompts.items()}
    names = dict.fromkeys(entrant.prompt for entrant in entrants if entrant.model)
    return [chosen.get(name) or prompts.get(name) for name in names]


def remaining_cost(plan: ProbePlan, store: ProbeStore) -> rankers.Cost:
    """Return what a run will still cost, at most; what the folder holds does not count.

    Raises:
        FairqrError: The folder holds another run, or a line of it is damaged.
    """
    store.check(plan.manifest)
    total = rankers.Cost()
    for stage in STAGES[plan.manifest.experiment.kind]:
        done = store.lines(stage).done()
        for key, cost in plan.costs.items():
            if key not in done:
                total += cost
    if plan.batches and not store.adapter.exists():
        questions = tuning.AS_QUESTIONS * sum(map(len, plan.batches))
        tokens = max(cost.tokens // cost.calls for cost in plan.costs.values())
        total += rankers.Cost(questions, questions * tokens)
    return total


async def run_probe(
    plan: ProbePlan, store: ProbeStore, tools: Tools, watcher: StageWatcher
) -> None:
    """Do all tasks of a probe that have no record yet, one ranker or model after the other.

    Args:
        plan: What to do.
        store: Where results go; locked while this runs.
        tools: Do the jobs.
        watcher: Receives each list or pair.

    Raises:
        FairqrError: A model is not there, fails all the time, or reads too little at once for two
            items; or it cannot be tuned. The results so far are kept.
    """

    async def start(entrant: Entrant) -> None:
        await tools.do(make_ready, opened, entrant)
        # Nothing is written before the model is there.
        store.start(plan.manifest, plan.collections)

    tasks = plan.tasks
    with store.locked():
        store.check(plan.manifest)
        for stage, title in STAGES[plan.manifest.experiment.kind].items():
            if stage == "after":
                base = tasks[0].entrant
                judge = await opened(tools, base)
                await tuning.tune(store, plan.manifest, plan.batches, judge, watcher)
                tuned = replace(base, model=f"{CAUSAL}:{store.adapter}")
                tasks = [replace(task, entrant=tuned) for task in tasks]
            stage_tasks: Tasks[Task, Any] = Tasks(
                tasks=tasks,
                do=lambda task: tools.do(do_task, task),
                lines=store.lines(stage),
                title=title,
                keys=lambda task: [task.key],
                start=start,
                name_at=lambda entrant: entrant.name,
                place=lambda task: task.entrant,
                questions=lambda task: max(1, plan.costs[task.key].calls),
            )
            await run_tasks(stage_tasks, watcher=watcher, at_once=tools.at_once)
            store.start(plan.manifest, plan.collections)


async def run(
    experiment: AnyProbe, options: RunOptions, *, shared: bool = False, **model_options: Any
) -> ProbeStore:
    """Do all that is not done yet, and say first what it will cost at most.

    Args:
        experiment: What to do.
        options: How to do it.
        shared: Whether the folder is for any number of runs: each has one of its own in it, and
            replies are kept in the user's cache.
        model_options: More for chat models, such as ``base_url``.

    Raises:
        FairqrError: The folder holds something else, a model fails or cannot be tuned, or the run
            is costly and the user did not agree.
    """
    if isinstance(experiment, LoraExperiment) and options.workers:
        raise InputError("A model is tuned in one process; leave the workers on Ray out.")
    plan = await make_probe_plan(experiment, options.prompts, options.watcher, **model_options)
    folder = options.folder
    if shared:
        folder /= _name_of(plan.manifest)
    store = ProbeStore(folder)
    cost = remaining_cost(plan, store)
    options.agree(cost.calls, cost.tokens)
    note = "no question to a language model is left"
    if cost.calls:
        note = f"at most {cost.calls:,} questions to language models, about {cost.tokens:,} tokens"
    options.watcher.note(note)
    replies = replies_file() if shared else store.replies
    async with options.tools(replies) as tools:
        await run_probe(plan, store, tools, options.watcher)
    return store


def _name_of(manifest: ProbeRunManifest) -> str:
    """Return the name of the folder of a run among others: the same for the same settings."""
    settings = manifest.model_dump_json(include=set(manifest.identity()))
    return hashlib.sha256(settings.encode()).hexdigest()[:24]
