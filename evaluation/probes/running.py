"""A probe from its plan to its records: its cost at most, its jobs, a stage for each model.

Tasks with a record are not done again. The jobs run in this process or on Ray.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fairqr.agents.models.cache import ReplyCache, replies_file
from fairqr.agents.models.language_model import LanguageModel
from fairqr.agents.models.opening import open_language_model
from fairqr.agents.ranking.lean import PROTECTED, UNPROTECTED
from fairqr.agents.ranking.pairwise import PairwiseJudge
from fairqr.agents.ranking.rankers import Cost, ItemRanker, RankerOptions
from fairqr.evaluation.experiments.engine import Done, check_answered, refusal_of, run_tasks
from fairqr.evaluation.experiments.folder import spent
from fairqr.evaluation.experiments.kinds import RunOptions
from fairqr.evaluation.experiments.options import check_prompts
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.evaluation.experiments.workers import Pool, Tools
from fairqr.evaluation.probes.building import Preparing, open_probe_collections
from fairqr.evaluation.probes.collection import ProbeCollection
from fairqr.evaluation.probes.listwise_measures import MeasuredListwise, measure_listwise
from fairqr.evaluation.probes.pairs import ListTask, PairTask, tasks_of
from fairqr.evaluation.probes.pairwise_measures import MeasuredPairwise, measure_pairwise
from fairqr.evaluation.probes.rankers import open_probe_ranker, parse_ranker, windows_of
from fairqr.evaluation.probes.specification import ListwiseExperiment, PairwiseExperiment
from fairqr.evaluation.probes.store import (
    CollectionEntry,
    PairRecord,
    ProbeRunManifest,
    ProbeStore,
    PromptEntry,
    RankingRecord,
    Spent,
)
from fairqr.prompts.library import PromptLibrary

STORE = ProbeStore


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """The work of a run.

    Attributes:
        collections: In the order of the manifest.
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
    preparing: Preparing | None = None,
    **options: Any,
) -> ProbePlan:
    """Build the probe collections of an experiment, or read them.

    Args:
        experiment: What is asked.
        prompts: Where prompts come from.
        preparing: Receives the name of what is imported, read or indexed.
        options: More for chat models, such as ``base_url``: the address of an OpenAI-compatible
            server, which defaults to the provider's own.

    Raises:
        FairqrError: A collection, a prompt or a ranker that it names is not there, or two
            collections have one name.
    """
    asked_with = _asked_with(experiment)
    check_prompts(experiment.prompts.keys(), asked_with.keys())
    entries = []
    for name, asked in asked_with.items():
        prompt = prompts.get(name, experiment.prompts.get(name))
        entries.append(
            PromptEntry(
                prompt=f"{prompt.id}={prompt.version}", sha256=prompt.sha256, asked=tuple(asked)
            )
        )
    collections, notes = await open_probe_collections(
        experiment, texts=_reads_texts(experiment), preparing=preparing
    )
    manifest = ProbeRunManifest(
        experiment=experiment,
        collections=tuple(map(CollectionEntry.of, collections)),
        prompts=tuple(entries),
        base_url=options.get("base_url"),
        notes=tuple(notes),
    )
    given = {name: value for name, value in options.items() if value is not None}
    return ProbePlan(manifest, tuple(collections), prompts, given)


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


@dataclass(frozen=True, slots=True)
class Asked:
    """A ranker or a judge of an experiment, as plain data.

    Attributes:
        name: The ranker or the judge's model, as the experiment writes it.
        experiment: How it is asked.
        options: More for the chat model, such as ``base_url``.
        window: The ranker's window, one of :func:`windows_of`.
        concurrency: How many comparisons of a pairwise ranker may run at the same time.
    """

    name: str
    experiment: ListwiseExperiment | PairwiseExperiment
    options: Mapping[str, Any] = field(default_factory=dict)
    window: str = ""
    concurrency: int = 1

    @property
    def model(self) -> str:
        """The language model that is asked; empty if none is."""
        if isinstance(self.experiment, PairwiseExperiment):
            return self.name
        named = parse_ranker(self.name)
        return named.model if named.asks_a_model else ""

    def language_model(self, cache: ReplyCache | Literal[False] = False) -> LanguageModel:
        """Open the language model."""
        return open_language_model(self.model, cache=cache, **self.options)

    def open(self, prompts: PromptLibrary, model: LanguageModel | None = None) -> Any:
        """Open the ranker or judge; nothing is loaded yet.

        Args:
            prompts: Where prompts come from.
            model: The language model; opened by default.

        Raises:
            InputError: It is no ranker, or an option is out of its range.
            ModelUnavailableError: There is no such model.
            PromptError: There is no such prompt.
        """
        experiment = self.experiment
        if isinstance(experiment, ListwiseExperiment):
            if self.model:
                model = model or self.language_model()
            return open_probe_ranker(
                self.name, self.window, experiment, prompts, model, self.concurrency
            )
        return PairwiseJudge(
            model or self.language_model(),
            prompts.get("pairwise", experiment.prompts.get("pairwise")),
            RankerOptions(by=experiment.by, shown=experiment.shown, length=experiment.length),
        )


def askings(plan: ProbePlan, concurrency: int = 1) -> list[Asked]:
    """Return the judges, or the rankers with each of their windows."""
    experiment = plan.manifest.experiment
    if isinstance(experiment, PairwiseExperiment):
        return [Asked(model, experiment, plan.options) for model in experiment.models]
    return [
        Asked(name, experiment, plan.options, window, concurrency)
        for name in experiment.rankers
        for window in windows_of(experiment, name)
    ]


def remaining_cost(plan: ProbePlan, store: ProbeStore) -> Cost:
    """Estimate what a run will still cost, at most; what the folder holds does not count.

    Raises:
        FairqrError: The folder holds another run, a line of it is damaged, or a model or ranker is
            not named rightly.
    """
    store.check(plan.manifest)
    experiment = plan.manifest.experiment
    done = store.lines(experiment).done()
    tasks = tasks_of(experiment, plan.collections)
    total = Cost()
    for asked in askings(plan):
        opened = asked.open(plan.prompts)
        for task in tasks:
            if task.key(asked.name, asked.window) not in done:
                total += task.cost(opened)
    return total


def cost_in_words(cost: Cost) -> str:
    """Say what a run will cost at most."""
    if not cost.calls:
        return "no question to a language model is left"
    return f"at most {cost.calls:,} questions to language models, about {cost.tokens:,} tokens"


async def run_probe(
    plan: ProbePlan, store: ProbeStore, pool: Pool, *, watcher: StageWatcher
) -> None:
    """Do all tasks of a probe that have no record yet, one ranker or model after the other.

    Args:
        plan: What to do.
        store: Where results go; locked while this runs.
        pool: Does the jobs.
        watcher: Receives each list or pair.

    Raises:
        FairqrError: A model is not there, fails all the time, or reads too little at once for two
            items. The results so far are kept.
    """
    experiment = plan.manifest.experiment
    each = askings(plan, pool.at_once)
    for asked in each:
        asked.open(plan.prompts)  # a wrong name is an error before anything is sent to a worker
    tasks = tasks_of(experiment, plan.collections)

    async def start(place: int) -> None:
        await pool.do(open_asked, each[place])
        # Nothing is written before the model is there.
        store.start(plan.manifest, plan.collections)

    with store.locked():
        store.check(plan.manifest)
        undone = await run_tasks(
            [(place, task) for place in range(len(each)) for task in tasks],
            lambda it: pool.do(do_task, each[it[0]], it[1]),
            store.lines(experiment),
            title="pairs" if isinstance(experiment, PairwiseExperiment) else "lists",
            keys=lambda it: [it[1].key(each[it[0]].name, each[it[0]].window)],
            place=lambda it: it[0],
            start=start,
            model=lambda place: each[place].name,
            watcher=watcher,
            at_once=pool.at_once,
        )
        store.start(plan.manifest, plan.collections)
        if undone is not None:
            raise undone


async def open_asked(tools: Tools, asked: Asked) -> None:
    """Open and start a ranker or judge, where it is not open yet."""
    await _opened(tools, asked)


async def do_task(tools: Tools, asked: Asked, task: ListTask | PairTask) -> Done[Any]:
    """Rank a list, or compare the items of a pair."""
    opened = await _opened(tools, asked)
    if isinstance(task, PairTask):
        return await compare_pair(opened, asked.name, task)
    return await rank_list(opened, asked, task)


async def rank_list(ranker: ItemRanker, asked: Asked, task: ListTask) -> Done[RankingRecord]:
    """Rank a list.

    Raises:
        ModelError: The model was away for a part of it.
    """
    ranking = await ranker.rank(task.query.query, task.items, group=task.group)
    failed = [check_answered(it, ranking.message, ranking.usage) for it in ranking.failures]
    refusal = next(filter(None, failed), None) if ranking.failed else None
    key = task.key(asked.name, asked.window)
    record = RankingRecord(
        **dict(zip(RankingRecord.keys, key, strict=True)),
        order=ranking.order,
        asked=ranking.asked,
        failures=dict(ranking.failures),
        repairs=dict(ranking.repairs),
        warnings=ranking.warnings,
        spent=Spent(**spent(ranking.usage)),
    )
    return Done((record,), ranking.warnings, refusal=refusal)


async def compare_pair(judge: PairwiseJudge, model: str, task: PairTask) -> Done[PairRecord]:
    """Compare the items of a pair in both orders.

    Args:
        judge: A started judge.
        model: Its name in results.
        task: The pair.

    Raises:
        ModelError: The model was away for one of them.
    """
    asked = await judge.compare(task.query.query, task.items, task.group)
    both = (asked.one_first, asked.other_first)
    usage = both[0].usage + both[1].usage
    for each in both:
        check_answered(each.status, each.message, each.usage)
    protected_first, unprotected_first = asked.preferred(PROTECTED, UNPROTECTED)
    record = PairRecord(
        **dict(zip(PairRecord.keys, task.key(model), strict=True)),
        protected_first=protected_first,
        unprotected_first=unprotected_first,
        log_odds=(asked.one_first.log_odds, asked.other_first.log_odds),
        spent=Spent(**spent(usage)),
    )
    return Done(
        (record,), judge.warnings, refusal=refusal_of((it.status, it.message) for it in both)
    )


async def _opened(tools: Tools, asked: Asked) -> Any:
    """Return the ranker or judge, started."""

    async def opened() -> Any:
        made = asked.open(tools.prompts, await _model(tools, asked) if asked.model else None)
        await made.start()
        return made

    return await tools.keep("ranker", asked, opened)


async def _model(tools: Tools, asked: Asked) -> LanguageModel:
    async def opened() -> LanguageModel:
        return asked.language_model(tools.replies)

    # One for all windows, since a large model takes long to load.
    return await tools.keep("ranking model", (asked.model, dict(asked.options)), opened)


async def run(
    experiment: ListwiseExperiment | PairwiseExperiment,
    options: RunOptions,
    *,
    shared: bool = False,
    **asked: Any,
) -> ProbeStore:
    """Do all that is not done yet, and say first what it will cost at most.

    Args:
        experiment: What to do.
        options: How to do it.
        shared: Whether the folder is for any number of runs: each has one of its own in it, and
            replies are kept in the user's cache.
        asked: More for chat models, such as ``base_url``.

    Raises:
        FairqrError: The folder holds something else, a model fails, or the run is costly and
            the user did not agree.
    """
    watcher = options.watcher
    plan = await make_probe_plan(experiment, options.prompts, preparing=watcher.count, **asked)
    for sentence in plan.manifest.notes:
        watcher.note(sentence)
    same = plan.manifest.model_dump_json(include=set(plan.manifest.identity()))
    own = hashlib.sha256(same.encode()).hexdigest()[:24]
    store = ProbeStore(options.folder / own if shared else options.folder)
    cost = remaining_cost(plan, store)
    options.agree(cost.calls, cost.tokens)
    watcher.note(cost_in_words(cost))
    async with options.pool(replies_file() if shared else store.replies) as pool:
        await run_probe(plan, store, pool, watcher=watcher)
    return store


def measure(store: ProbeStore) -> MeasuredListwise | MeasuredPairwise:
    """Measure all lists or pairs, and count the missing ones.

    Raises:
        InputError: The folder holds no run, or a file of it is damaged.
    """
    manifest, collections = store.manifest(), store.collections()
    if isinstance(manifest.experiment, ListwiseExperiment):
        return measure_listwise(manifest, collections, store.rankings.read())
    return measure_pairwise(manifest, collections, store.pairs.read())
