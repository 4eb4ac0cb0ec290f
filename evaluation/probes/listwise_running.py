"""Ranking the lists of probe collections; what is done already is not done again."""

from __future__ import annotations

import functools
from collections.abc import Callable

from fairqr.agents.cache import ReplyCache, ReplyFile
from fairqr.agents.models import open_language_model
from fairqr.agents.ranking.item_ranker import ItemRanker, ItemRanking
from fairqr.agents.ranking.model import RankingModel
from fairqr.evaluation.at_once import all_of
from fairqr.evaluation.experiments.care import Patience, is_away
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.evaluation.probes.pairs import rank_item
from fairqr.evaluation.probes.plan import ProbePlan
from fairqr.evaluation.probes.rankers import open_probe_ranker, parse_ranker, windows_of
from fairqr.evaluation.probes.records import RankingRecord, spent_of
from fairqr.evaluation.probes.remote import ranker_there
from fairqr.evaluation.probes.specification import ListwiseExperiment
from fairqr.evaluation.probes.store import ProbeStore
from fairqr.evaluation.probes.tasks import ListTask, list_tasks
from fairqr.evaluation.workers.tools import Pool

__all__ = ["run_listwise"]


async def run_listwise(
    plan: ProbePlan,
    store: ProbeStore,
    *,
    watcher: StageWatcher,
    at_once: int = 4,
    replies: ReplyCache | None = None,
    pool: Pool | None = None,
) -> None:
    """Rank all lists that were not ranked yet, one ranker after the other.

    Args:
        plan: What is to be done.
        store: Where results go; locked while this runs.
        watcher: Told of each list.
        at_once: How many lists may be under way at the same time.
        replies: Where replies are kept; in the folder where None.
        pool: Workers that rank; this process does where None.

    Raises:
        FairqrError: A ranker is not there, its model fails all the time or was never there to
            answer, or reads too little at once for two items; what was done until then is kept.
    """
    experiment = plan.manifest.rankings
    with store.locked():
        store.check(plan.manifest)
        before = [record for record in store.rankings.read() if record.is_final]
        done = {record.key for record in before}
        kept = replies or ReplyFile(store.replies)
        run = _Run(plan, experiment, store, watcher, at_once, kept, pool)
        run.answered.update(record.ranker for record in before)
        for name in experiment.rankers:
            await run.rank_with(name, done)
        store.start(plan.manifest, plan.collections)


class _Run:
    """What all rankers of a run share.

    Attributes:
        answered: The rankers that answered a question, now or before.
    """

    def __init__(
        self,
        plan: ProbePlan,
        experiment: ListwiseExperiment,
        store: ProbeStore,
        watcher: StageWatcher,
        at_once: int,
        replies: ReplyCache,
        pool: Pool | None,
    ) -> None:
        self._plan = plan
        self._experiment = experiment
        self._store = store
        self._watcher = watcher
        self._at_once = at_once
        self._replies = replies
        self._pool = pool
        self.answered: set[str] = set()
        self._tasks = list_tasks(experiment, plan.collections)

    async def rank_with(self, name: str, done: set[tuple[str, ...]]) -> None:
        """Rank all lists with one ranker, in all its windows."""
        opened = self._opener(name)
        for window in windows_of(self._experiment, name):
            todo = [task for task in self._tasks if task.key(name, window) not in done]
            if not todo:
                continue
            ranker = opened(window)
            await ranker.start()
            # Nothing is written before the ranker is there.
            self._store.start(self._plan.manifest, self._plan.collections)
            what = f"{name}, window {window}" if window else name
            self._watcher.stage(f"{what}: lists", len(self._tasks), len(self._tasks) - len(todo))
            await self._rank(name, window, ranker, todo)

    def _opener(self, name: str) -> Callable[[str], ItemRanker]:
        """Return what opens a ranker for a window."""
        if self._pool is not None:
            pool = self._pool
            return lambda window: ranker_there(name, window, self._plan, self._at_once, pool)
        named = parse_ranker(name)

        @functools.cache
        def model() -> RankingModel | None:
            # One for all windows, since a large one takes long to load.
            if not named.asks_a_model:
                return None
            return open_language_model(named.model, cache=self._replies, **self._plan.options)

        return lambda window: open_probe_ranker(
            name,
            window,
            self._experiment,
            self._plan.prompts,
            model=model(),
            concurrency=self._at_once,
        )

    async def _rank(self, name: str, window: str, ranker: ItemRanker, todo: list[ListTask]) -> None:
        patience = Patience(name, has_answered=name in self.answered)
        held: list[RankingRecord] = []
        told: set[str] = set()

        async def one(task: ListTask) -> None:
            items = [rank_item(item) for item in task.query.items]
            ranking = await ranker.rank(task.query.query, items, group=task.group)
            away = _away(ranking)
            _count(ranking, away, patience)
            for sentence in ranking.warnings:
                if sentence not in told:
                    told.add(sentence)
                    self._watcher.note(sentence)
            record = _record(task, name, window, ranking)
            if away:
                held.append(record)
            else:
                self._store.rankings.add(record)
            self._watcher.advance()

        with self._store.rankings.writing():
            await all_of(todo, one, self._at_once)
            patience.at_the_end()
            if patience.has_answered:
                self.answered.add(name)
            # Only now it is known that the model had not gone for good.
            for record in held:
                self._store.rankings.add(record)


def _away(ranking: ItemRanking) -> dict[str, int]:
    """Return how often the model was away for a question, by status."""
    return {s: n for s, n in ranking.failures.items() if is_away(s, ranking.usage)}


def _count(ranking: ItemRanking, away: dict[str, int], patience: Patience) -> None:
    """Count failures one after the other."""
    if ranking.failed and away:
        status = max(away, key=lambda name: away[name])
        message = ranking.message or f"the status '{status}'"
        patience.failed(status, message, sum(away.values()))
    elif ranking.asked:
        patience.answered()


def _record(task: ListTask, ranker: str, window: str, ranking: ItemRanking) -> RankingRecord:
    return RankingRecord(
        collection=task.collection,
        ranker=ranker,
        window=window,
        asker=task.asker,
        query=task.query.id,
        order=ranking.order,
        asked=ranking.asked,
        failures=dict(ranking.failures),
        repairs=dict(ranking.repairs),
        warnings=ranking.warnings,
        spent=spent_of(ranking.usage),
    )
