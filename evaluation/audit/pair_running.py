"""Scoring the pairs of an audit, once its queries have been asked."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from fairqr.base.errors import (
    FairqrError,
    IndexUnavailableError,
    ModelError,
    ModelUnavailableError,
    one_line,
)
from fairqr.evaluation.audit.asking import Pace
from fairqr.evaluation.audit.bundle import AuditFolder
from fairqr.evaluation.audit.pairs import (
    EngineScorer,
    PairQuery,
    Pairs,
    PairScorer,
    PairScores,
    scored,
)
from fairqr.evaluation.experiments.engine import Absence, Done, Keep, run_tasks
from fairqr.evaluation.experiments.progress import StageWatcher

__all__ = ["PairPlan", "run_pairs"]


@dataclass(frozen=True, slots=True)
class PairPlan:
    """What is scored, and by what.

    Attributes:
        pairs: The content of the file.
        scorer: Scores them.
    """

    pairs: Pairs
    scorer: PairScorer

    def cost(self, done: int = 0) -> str:
        """Say what is scored.

        Args:
            done: How many queries have been scored.
        """
        left = self.pairs.queries[done:]
        documents, queries = sum(len(it.documents) for it in left), len(left)
        requests = f", up to {queries:,} requests" if self.is_by_engine else ""
        what = "query" if queries == 1 else "queries"
        return f"{documents:,} versions for {queries:,} {what} by '{self.scorer.name}'{requests}"

    @property
    def is_by_engine(self) -> bool:
        """Whether the audited engine is asked."""
        return isinstance(self.scorer, EngineScorer)


async def run_pairs(
    plan: PairPlan, folder: AuditFolder, *, pace: Pace, concurrency: int, watcher: StageWatcher
) -> None:
    """Score all pairs that have no scores yet.

    Args:
        plan: What to score.
        folder: Where scores go; locked, and begun.
        pace: Of the requests to the audited engine.
        concurrency: How many queries may be under way.
        watcher: Told how far it is.

    Raises:
        IndexUnavailableError: The engine is away; what was scored until then is kept.
        ModelError: An encoder or a ranker fails.
    """

    async def do(query: PairQuery, keep: Keep[PairScores]) -> None:
        try:
            if plan.is_by_engine:
                await pace.wait()
            record = scored(query, await plan.scorer.scores(query))
        except (ModelError, ModelUnavailableError):
            raise
        except FairqrError as error:
            message = one_line(error)
            failed = PairScores(query=query.number, status="failed", message=message)
            away = isinstance(error, IndexUnavailableError)
            keep(Done(failed, (Absence("unavailable", message),) if away else (None,)))
        else:
            keep(Done(record, (None,)))

    try:
        await run_tasks(
            plan.pairs.queries,
            do,
            folder.pair_lines,
            title="pairs",
            model=f"'{plan.scorer.name}'",
            key=lambda query: query.number,
            start=lambda: asyncio.sleep(0),
            cost=plan.cost,
            watcher=watcher,
            at_once=concurrency,
        )
    except ModelError as error:
        if not plan.is_by_engine or error.status != "unavailable":
            raise
        raise IndexUnavailableError(str(error)) from None
