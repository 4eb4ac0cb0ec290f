"""Asking models about the pairs of probe collections; what is done already is not done again."""

from __future__ import annotations

from fairqr.agents.cache import ReplyCache, ReplyFile
from fairqr.agents.ranking.lean import PROTECTED, UNPROTECTED
from fairqr.agents.ranking.pairwise import PairwiseJudge
from fairqr.evaluation.at_once import all_of
from fairqr.evaluation.experiments.care import Patience, is_away
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.evaluation.probes.pairs import rank_item
from fairqr.evaluation.probes.plan import ProbePlan, open_judge
from fairqr.evaluation.probes.records import PairRecord, spent_of, total_spent
from fairqr.evaluation.probes.remote import JudgeThere
from fairqr.evaluation.probes.store import ProbeStore
from fairqr.evaluation.probes.tasks import PairTask, pair_tasks
from fairqr.evaluation.workers.tools import Pool

__all__ = ["ask_about", "run_pairwise"]


async def run_pairwise(
    plan: ProbePlan,
    store: ProbeStore,
    *,
    watcher: StageWatcher,
    at_once: int = 4,
    replies: ReplyCache | None = None,
    pool: Pool | None = None,
) -> None:
    """Ask about all pairs that were not asked about yet, one model after the other.

    Args:
        plan: What is to be done.
        store: Where results go; locked while this runs.
        watcher: Told of each pair.
        at_once: How many pairs may be under way at the same time.
        replies: Where replies are kept; in the folder where None.
        pool: Workers that ask; this process does where None.

    Raises:
        FairqrError: A model is not there, or fails all the time; what was done until then is kept.
    """
    experiment = plan.manifest.pairs
    tasks = pair_tasks(experiment, plan.collections)
    with store.locked():
        store.check(plan.manifest)
        done = {record.key for record in store.pairs.read() if record.is_final}
        for model in experiment.models:
            todo = [task for task in tasks if task.key(model) not in done]
            if not todo:
                continue
            judge: PairwiseJudge | JudgeThere
            if pool is None:
                judge = open_judge(plan, model, replies or ReplyFile(store.replies))
            else:
                judge = JudgeThere(plan, model, pool)
            await judge.start()
            # Nothing is written before the model is there.
            store.start(plan.manifest, plan.collections)
            watcher.stage(f"{model}: pairs", len(tasks), len(tasks) - len(todo))
            answered = any(key[1] == model for key in done)
            await _ask(model, judge, todo, store, watcher, at_once, has_answered=answered)
        store.start(plan.manifest, plan.collections)


async def _ask(
    model: str,
    judge: PairwiseJudge | JudgeThere,
    todo: list[PairTask],
    store: ProbeStore,
    watcher: StageWatcher,
    at_once: int,
    *,
    has_answered: bool,
) -> None:
    patience = Patience(model, has_answered=has_answered)
    held: list[PairRecord] = []

    async def one(task: PairTask) -> None:
        record, away = await ask_about(task, model, judge, patience)
        if away:
            held.append(record)
        else:
            store.pairs.add(record)
        watcher.advance()

    with store.pairs.writing():
        await all_of(todo, one, at_once)
        patience.at_the_end()
        # Only now it is known that the model had not gone for good.
        for record in held:
            store.pairs.add(record)
    for sentence in judge.warnings:
        watcher.note(sentence)


async def ask_about(
    task: PairTask, model: str, judge: PairwiseJudge | JudgeThere, patience: Patience
) -> tuple[PairRecord, bool]:
    """Ask about a pair in both orders.

    Args:
        task: Which pair.
        model: Its name in results.
        judge: Which has been started.
        patience: With the model.

    Returns:
        The record, and whether the model was away for one of the orders.

    Raises:
        ModelError: It was away too often.
    """
    pair = task.pair
    asked = await judge.compare(
        task.query.query, rank_item(pair.protected), rank_item(pair.unprotected), group=task.group
    )
    both = (asked.one_first, asked.other_first)
    away = False
    for each in both:
        if is_away(each.status, each.usage):
            away = True
            patience.failed(each.status, each.message)
        else:
            patience.answered()
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
    return record, away
