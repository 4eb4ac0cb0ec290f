"""A probe from its plan to its records: its cost at most, its jobs, a stage for each model.

Tasks with a record are not done again. The jobs run in this process or on Ray.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fairqr.agents.cache import ReplyCache, ReplyFile
from fairqr.agents.models import open_language_model
from fairqr.agents.ranking.item_ranker import Cost, ItemRanker, ItemRanking
from fairqr.agents.ranking.lean import PROTECTED, UNPROTECTED
from fairqr.agents.ranking.model import RankingModel
from fairqr.agents.ranking.pairwise import PairwiseJudge
from fairqr.base.errors import InputError, one_line
from fairqr.evaluation.experiments.care import is_away
from fairqr.evaluation.experiments.engine import Absence, Done, Stage, by_job, run_stages
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.evaluation.probes.building import Preparing, open_probe_collections
from fairqr.evaluation.probes.collection import ProbeCollection
from fairqr.evaluation.probes.pairs import ListTask, PairTask, list_tasks, pair_tasks, rank_item
from fairqr.evaluation.probes.rankers import (
    INITIAL,
    open_probe_ranker,
    parse_ranker,
    windows_of,
)
from fairqr.evaluation.probes.specification import ListwiseExperiment, PairwiseExperiment
from fairqr.evaluation.probes.store import (
    CollectionEntry,
    PairRecord,
    ProbeRunManifest,
    ProbeStore,
    PromptEntry,
    RankingRecord,
    spent_of,
    total_spent,
)
from fairqr.evaluation.workers.tools import LocalPool, Pool, Tools
from fairqr.prompts.library import PromptLibrary

__all__ = [
    "ProbePlan",
    "compare_pair",
    "cost_in_words",
    "make_probe_plan",
    "remaining_cost",
    "run_probe",
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


@dataclass(frozen=True, slots=True)
class Asked:
    """The ranker or judge of an experiment that a job needs.

    Attributes:
        name: Of the ranker, or of the judge's model, as the experiment writes it.
        experiment: How it is asked.
        options: More for the chat model, such as ``base_url``.
        window: Of the ranker, one of :func:`windows_of`.
        concurrency: How many comparisons of a pairwise ranker may run at the same time.
    """

    name: str
    experiment: ListwiseExperiment | PairwiseExperiment
    options: Mapping[str, Any] = field(default_factory=dict)
    window: str = ""
    concurrency: int = 1


async def run_probe(
    plan: ProbePlan,
    store: ProbeStore,
    *,
    watcher: StageWatcher,
    at_once: int = 4,
    replies: ReplyCache | None = None,
    pool: Pool | None = None,
) -> None:
    """Do all tasks of a probe that have no record yet, one ranker or model after the other.

    Args:
        plan: What is to be done.
        store: Where results go; locked while this runs.
        watcher: Told of each list or pair.
        at_once: How many lists or pairs may be under way at the same time.
        replies: Where replies are kept; defaults to the folder.
        pool: Does the jobs; defaults to this process.

    Raises:
        FairqrError: A model is not there, fails all the time, or reads too little at once for two
            items. What was done until then is kept.
    """
    here = LocalPool(Tools(plan.prompts, replies or ReplyFile(store.replies)))
    run = _Run(plan, store, at_once, here, pool or here)
    with store.locked():
        store.check(plan.manifest)
        await run_stages(run.stages, watcher=watcher, at_once=at_once)
        store.start(plan.manifest, plan.collections)


@dataclass(frozen=True, slots=True)
class _Run:
    plan: ProbePlan
    store: ProbeStore
    at_once: int
    here: Pool
    pool: Pool

    def stages(self) -> AsyncIterator[Stage[Any, Any]]:
        """Return a stage for each model, or for each ranker and window."""
        experiment = self.plan.manifest.experiment
        if isinstance(experiment, PairwiseExperiment):
            return self._pairs(experiment)
        return self._lists(experiment)

    async def _pairs(
        self, experiment: PairwiseExperiment
    ) -> AsyncIterator[Stage[PairTask, PairRecord]]:
        """Yield a stage for each model."""
        tasks = pair_tasks(experiment, self.plan.collections)
        done = {record.key for record in self.store.pairs.read() if record.is_final}
        for model in experiment.models:
            # A wrong name is an error before anything is sent to a worker.
            open_judge(self.plan, model)
            asked = Asked(model, experiment, self.plan.options)
            yield Stage(
                title=f"{model}: pairs",
                model=model,
                tasks=tasks,
                keys=partial(_pair_keys, model),
                done=done,
                start=partial(self._start, self.pool, asked),
                do=by_job(self.pool, ask_pair, asked),
                lines=self.store.pairs,
                pace=model,
            )

    async def _lists(
        self, experiment: ListwiseExperiment
    ) -> AsyncIterator[Stage[ListTask, RankingRecord]]:
        """Yield a stage for each ranker and window."""
        tasks = list_tasks(experiment, self.plan.collections)
        done = {record.key for record in self.store.rankings.read() if record.is_final}
        for name in experiment.rankers:
            # The initial order is not worth sending anywhere.
            pool = self.here if name == INITIAL else self.pool
            for window in windows_of(experiment, name):
                open_probe_ranker(
                    name, window, experiment, self.plan.prompts, options=self.plan.options
                )
                asked = Asked(name, experiment, self.plan.options, window, self.at_once)
                yield Stage(
                    title=f"{name}, window {window}: lists" if window else f"{name}: lists",
                    model=name,
                    tasks=tasks,
                    keys=partial(_list_keys, name, window),
                    done=done,
                    start=partial(self._start, pool, asked),
                    do=by_job(pool, rank_list, asked),
                    lines=self.store.rankings,
                    pace=f"{name} {window}",
                )

    async def _start(self, pool: Pool, asked: Asked) -> None:
        await pool.do(open_asked, asked)
        # Nothing is written before the model is there.
        self.store.start(self.plan.manifest, self.plan.collections)


def _pair_keys(model: str, task: PairTask) -> list[Hashable]:
    return [task.key(model)]


def _list_keys(ranker: str, window: str, task: ListTask) -> list[Hashable]:
    return [task.key(ranker, window)]


async def open_asked(tools: Tools, asked: Asked) -> None:
    """Open and start a ranker or judge, where it is not open yet."""
    await _opened(tools, asked)


async def rank_list(tools: Tools, asked: Asked, task: ListTask) -> Done[RankingRecord]:
    """Rank a list."""
    ranker: ItemRanker = await _opened(tools, asked)
    items = [rank_item(item) for item in task.query.items]
    ranking = await ranker.rank(task.query.query, items, group=task.group)
    record = RankingRecord(
        collection=task.collection,
        ranker=asked.name,
        window=asked.window,
        asker=task.asker,
        query=task.query.id,
        order=ranking.order,
        asked=ranking.asked,
        failures=dict(ranking.failures),
        repairs=dict(ranking.repairs),
        warnings=ranking.warnings,
        spent=spent_of(ranking.usage),
    )
    return Done(record, _replies(ranking), ranking.warnings, ranking.usage)


def _replies(ranking: ItemRanking) -> tuple[Absence | None, ...]:
    """Return whether the model of a ranking was there; nothing where it was not asked."""
    away = {s: n for s, n in ranking.failures.items() if is_away(s, ranking.usage)}
    if ranking.failed and away:
        status = max(away, key=lambda name: away[name])
        message = ranking.message or f"the status '{status}'"
        return (Absence(status, message, sum(away.values())),)
    return (None,) if ranking.asked else ()


async def ask_pair(tools: Tools, asked: Asked, task: PairTask) -> Done[PairRecord]:
    """Compare the items of a pair in both orders."""
    return await compare_pair(await _opened(tools, asked), asked.name, task)


async def compare_pair(judge: PairwiseJudge, model: str, task: PairTask) -> Done[PairRecord]:
    """Compare the items of a pair in both orders.

    Args:
        judge: A started judge.
        model: Its name in results.
        task: The pair.
    """
    pair = task.pair
    asked = await judge.compare(
        task.query.query, rank_item(pair.protected), rank_item(pair.unprotected), group=task.group
    )
    both = (asked.one_first, asked.other_first)
    protected_first, unprotected_first = asked.preferred(PROTECTED, UNPROTECTED)
    record = PairRecord(
        collection=task.collection,
        model=model,
        query=task.query.id,
        kind=pair.kind,
        protected=pair.protected.id,
        unprotected=pair.unprotected.id,
        protected_first=protected_first,
        unprotected_first=unprotected_first,
        log_odds=(asked.one_first.log_odds, asked.other_first.log_odds),
        spent=total_spent(spent_of(each.usage) for each in both),
    )
    replies = tuple(
        Absence(each.status, each.message) if is_away(each.status, each.usage) else None
        for each in both
    )
    return Done(record, replies, judge.warnings, both[0].usage + both[1].usage)


async def _opened(tools: Tools, asked: Asked) -> Any:
    """Return the ranker or judge, started."""

    async def opened() -> Any:
        experiment = asked.experiment
        made: ItemRanker | PairwiseJudge
        if isinstance(experiment, PairwiseExperiment):
            made = PairwiseJudge(
                await _model(tools, asked.name, asked.options),
                tools.prompts.get("pairwise", experiment.prompts.get("pairwise")),
                by=experiment.by,
                shown=experiment.shown,
                length=experiment.length,
            )
        else:
            named = parse_ranker(asked.name)
            made = open_probe_ranker(
                asked.name,
                asked.window,
                experiment,
                tools.prompts,
                model=await _model(tools, named.model, asked.options)
                if named.asks_a_model
                else None,
                concurrency=asked.concurrency,
            )
        await made.start()
        return made

    return await tools.keep("ranker", asked, opened)


async def _model(tools: Tools, name: str, options: Mapping[str, Any]) -> RankingModel:
    async def opened() -> RankingModel:
        return open_language_model(name, cache=tools.replies, **options)

    # One for all windows, since a large model takes long to load.
    return await tools.keep("ranking model", (name, dict(options)), opened)
