"""A probe from its plan to its records and measures. A tuning is a probe before and after.

What is asked are lists to be ranked and pairs to be compared, as jobs of any process. Tasks with a
record are not done again.
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
from fairqr.evaluation.experiments import engine
from fairqr.evaluation.experiments.folder import spent
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.evaluation.experiments.workers import RunOptions, Tools, make_ready
from fairqr.evaluation.probes import collection as probes
from fairqr.evaluation.probes import specification as specs
from fairqr.evaluation.probes import store as kept
from fairqr.evaluation.probes import tuning
from fairqr.evaluation.probes.measures import measure as measure
from fairqr.prompts.library import PromptLibrary

Untuned = specs.ListwiseExperiment | specs.PairwiseExperiment

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
        return open_language_model(self.model, cache=cache, **self.options) if self.model else None

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
        asked: Who is asked.
        key: The key of its record.
        query: The text of the query.
        items: What may be known of the items; of a pair, the protected one comes first.
        group: What stands before those who ask.
    """

    asked: Entrant
    key: tuple[str, ...]
    query: str
    items: Any
    group: str


def askings(experiment: Untuned, options: Mapping[str, Any]) -> list[Entrant]:
    """Return the judges, or the rankers with each of their windows; the order as given is none.

    Args:
        experiment: How they are asked.
        options: More for chat models.
    """
    how = rankers.RankerOptions(experiment.shown, experiment.length, versions=experiment.prompts)
    if isinstance(experiment, specs.PairwiseExperiment):
        how = replace(how, by=experiment.by)
        return [Entrant(model, JUDGE, model, how, options) for model in experiment.models]
    found = []
    for name in experiment.rankers:
        kind, model = specs.parse_ranker(name)
        if kind in (*specs.POINTWISE, rankers.ENDPOINT):
            weighs = replace(how, shown=experiment.shown_to_neural, weights=model or None)
            found.append(Entrant(name, kind, "", weighs, options))
        elif kind != specs.INITIAL:
            for window in experiment.windows_of(name):
                size, step = specs.parse_window(window) if window else (how.window, how.step)
                sorts = replace(how, window=size, step=step)
                found.append(Entrant(name, kind, model, sorts, options, window))
    return found


def tasks_of(experiment: Untuned, asked: Entrant, collection: probes.ProbeCollection) -> list[Task]:
    """Return what a ranker has to rank, or a model is asked about.

    Raises:
        InputError: There is no pair of both groups to ask about.
    """
    name, words = collection.manifest.name, collection.manifest.sides.words
    if not isinstance(experiment, specs.PairwiseExperiment):
        shown = {query: tuple(item.shown for item in query.items) for query in collection.queries}
        return [
            Task(asked, (name, *asked.place, persona, query.id), query.query, items, group)
            for persona, group in ((it, rankers.group_of(it, words)) for it in experiment.personas)
            for query, items in shown.items()
        ]
    group = rankers.group_of(experiment.persona, words)
    drawn = (experiment.pairs, experiment.relevance_pairs, experiment.seed)
    tasks = []
    for query in collection.queries:
        for pair in probes.planned_pairs(query, *drawn):
            items = tuple(item.shown for item in pair.items)
            tasks.append(
                Task(asked, (name, asked.name, query.id, *pair.key), query.query, items, group)
            )
    if not any(task.key[3] in probes.GROUP_KINDS for task in tasks):
        raise InputError(
            f"No query of {one_line(name)} that is asked about has a pair of both groups; take "
            "more queries, or choose other groups."
        )
    return tasks


async def opened(tools: Tools, asked: Entrant) -> Any:
    """Return a ranker or judge that is started; it is opened where it is not open yet."""

    async def language_model() -> LanguageModel | None:
        return asked.language_model(tools.replies)

    # One for all windows, since a large model takes long to load.
    model = await tools.keep("ranking model", (asked.model, asked.options), language_model)
    how = (tools.prompts, model, tools.at_once)
    return await tools.started("ranker", asked, lambda: asked.open(*how))


async def do_task(tools: Tools, task: Task) -> engine.Done[Any]:
    """Rank a list, or compare the items of a pair in both orders.

    Raises:
        ModelError: The model was away for a part of it.
    """
    made = await opened(tools, task.asked)
    if isinstance(made, PairwiseJudge):
        compared = await made.compare(task.query, task.items, task.group)
        both = (compared.one_first, compared.other_first)
        checked = [engine.check_answered(it.status, it.message) for it in both]
        said = compared.preferred(preference.PROTECTED, preference.UNPROTECTED)
        record: Any = kept.PairRecord(
            **dict(zip(kept.PairRecord.keys, task.key, strict=True)),
            protected_first=said[0],
            unprotected_first=said[1],
            log_odds=(both[0].log_odds, both[1].log_odds),
            spent=spent(compared.usage),
        )
        return engine.Done((record,), made.warnings, refusal=engine.refusal_of(checked))
    found = await made.rank(task.query, task.items, group=task.group)
    checked = [engine.check_answered(it, found.message) for it in found.failures]
    record = kept.RankingRecord(
        **dict(zip(kept.RankingRecord.keys, task.key, strict=True)),
        order=found.order,
        asked=found.asked,
        failures=dict(found.failures),
        repairs=dict(found.repairs),
        warnings=found.warnings,
        spent=spent(found.usage),
    )
    refusal = engine.refusal_of(checked) if record.failed else None
    return engine.Done((record,), found.warnings, refusal=refusal)


class ProbePlan(NamedTuple):
    """The work of a run.

    Attributes:
        collections: In the order of the manifest.
        tasks: What is asked, one ranker or model after the other.
        costs: What each task costs at most, by its key.
        batches: The examples of each training step of a tuning.
    """

    manifest: kept.ProbeRunManifest
    collections: Sequence[probes.ProbeCollection]
    tasks: Sequence[Task]
    costs: Mapping[tuple[str, ...], rankers.Cost]
    batches: tuning.Batches


async def make_probe_plan(
    experiment: kept.AnyProbe, prompts: PromptLibrary, watcher: StageWatcher, **options: Any
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
    base, probed = "", cast("Untuned", experiment)
    if isinstance(experiment, specs.LoraExperiment):
        base = lasting_name(specs.parse_causal(experiment.model))
        probed = experiment.probing(f"{CAUSAL}:{base}")
    asked = askings(probed, {name: it for name, it in options.items() if it is not None})
    used = dict.fromkeys(it.prompt for it in asked if it.model)
    # Also those that are not asked with: a name may be misspelt.
    chosen = {name: prompts.get(name, version) for name, version in experiment.prompts.items()}
    found = [chosen.get(name) or prompts.get(name) for name in used]
    texts = {experiment.shown, *(it.how.shown for it in asked)} != {"title"}
    collections = await asyncio.to_thread(
        probes.open_probe_collections, experiment, texts=texts, watcher=watcher
    )
    entry, probed_with, batches = None, collections, cast("tuning.Batches", ())
    if isinstance(experiment, specs.LoraExperiment):
        probed_with, entry, batches = tuning.draw_tuning(experiment, base, collections, watcher)
    tasks = [task for it in asked for each in probed_with for task in tasks_of(probed, it, each)]
    manifest = kept.ProbeRunManifest(
        experiment=experiment,
        collections=tuple(it.entry for it in collections),
        prompts={f"{it.id}={it.version}": it.sha256 for it in found},
        base_url=options.get("base_url"),
        tuning=entry,
    )
    made: dict[Any, Any] = {it.place: it.open(prompts, it.language_model()) for it in asked}
    costs = {it.key: made[it.asked.place].cost(it.query, it.items, it.group) for it in tasks}
    return ProbePlan(manifest, collections, tasks, costs, batches)


def remaining_cost(plan: ProbePlan, store: kept.ProbeStore) -> rankers.Cost:
    """Return what a run will still cost, at most; what the folder holds does not count.

    Raises:
        FairqrError: The folder holds another run, or a line of it is damaged.
    """
    store.check(plan.manifest)
    total = rankers.Cost()
    for stage in kept.STAGES[plan.manifest.experiment.kind]:
        done = store.lines(stage).done()
        total = sum((cost for key, cost in plan.costs.items() if key not in done), total)
    if plan.batches and not store.adapter.exists():
        examples = tuning.AS_QUESTIONS * sum(map(len, plan.batches))
        each = max(cost.tokens // cost.calls for cost in plan.costs.values())
        total += rankers.Cost(examples, examples * each)
    return total


async def run_probe(
    plan: ProbePlan, store: kept.ProbeStore, tools: Tools, watcher: StageWatcher
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

    async def start(asked: Entrant) -> None:
        await tools.do(make_ready, opened, asked)
        # Nothing is written before the model is there.
        store.start(plan.manifest, plan.collections)

    tasks = plan.tasks
    with store.locked():
        store.check(plan.manifest)
        for stage, title in kept.STAGES[plan.manifest.experiment.kind].items():
            if stage == "after":
                judge = await opened(tools, tasks[0].asked)
                await tuning.tune(store, plan.manifest, plan.batches, judge, watcher)
                tuned = replace(tasks[0].asked, model=f"{CAUSAL}:{store.adapter}")
                tasks = [replace(task, asked=tuned) for task in tasks]
            await engine.run_tasks(
                tasks,
                lambda task: tools.do(do_task, task),
                store.lines(stage),
                title=title,
                keys=lambda task: [task.key],
                place=lambda task: task.asked,
                start=start,
                model=lambda asked: asked.name,
                questions=lambda task: max(1, plan.costs[task.key].calls),
                watcher=watcher,
                at_once=tools.at_once,
            )
            store.start(plan.manifest, plan.collections)


async def run(
    experiment: kept.AnyProbe, options: RunOptions, *, shared: bool = False, **asked: Any
) -> kept.ProbeStore:
    """Do all that is not done yet, and say first what it will cost at most.

    Args:
        experiment: What to do.
        options: How to do it.
        shared: Whether the folder is for any number of runs: each has one of its own in it, and
            replies are kept in the user's cache.
        asked: More for chat models, such as ``base_url``.

    Raises:
        FairqrError: The folder holds something else, a model fails or cannot be tuned, or the run
            is costly and the user did not agree.
    """
    if isinstance(experiment, specs.LoraExperiment) and options.workers:
        raise InputError("A model is tuned in one process; leave the workers on Ray out.")
    plan = await make_probe_plan(experiment, options.prompts, options.watcher, **asked)
    same = plan.manifest.model_dump_json(include=set(plan.manifest.identity()))
    own = hashlib.sha256(same.encode()).hexdigest()[:24]
    store = kept.ProbeStore(options.folder / own if shared else options.folder)
    cost = remaining_cost(plan, store)
    options.agree(cost.calls, cost.tokens)
    most = f"at most {cost.calls:,} questions to language models, about {cost.tokens:,} tokens"
    options.watcher.note(most if cost.calls else "no question to a language model is left")
    async with options.tools(replies_file() if shared else store.replies) as tools:
        await run_probe(plan, store, tools, options.watcher)
    return store
