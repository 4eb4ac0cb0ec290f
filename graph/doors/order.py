"""The fair order of a list that somebody else retrieved: what both doors show.

It is the fair step of a search whose only round is that list, so it equals what
:class:`fairqr.FairReranker` makes of it. Nothing is searched, and no model is asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from fairqr.graph.doors.memory import moved
from fairqr.graph.search.context import Context
from fairqr.graph.search.result import QueryRecord, RankingRecord, Shares
from fairqr.graph.search.rounds import Rounds, estimate_target
from fairqr.retrieval.engines.engine import Hits
from fairqr.retrieval.fairness.objective import Quality
from fairqr.retrieval.fairness.table import coded
from fairqr.retrieval.rerankers.fair import objective_of
from fairqr.retrieval.sources.schema import Schema


@dataclass(frozen=True, slots=True)
class FairOrder:
    """A list in its fair order.

    Attributes:
        positions: The places of all its documents, in their new order: the first k are fair, the
            others keep their order.
        before: The expected relevance V, the fairness F and the objective J of the first k as they
            were.
        after: Those of the first k as they are now.
        target: The exposure that each group should get, by attribute; not moved by debts.
        shown: The exposure of each group in the first k as they were.
        exposure: The exposure of each group in the first k as they are now.
        missed: By how many points a group stays away from a target of the caller's own; 0 if by at
            most one.
    """

    positions: list[int]
    before: Quality
    after: Quality
    target: Shares
    shown: Shares
    exposure: Shares
    missed: int


def fair_order(
    schema: Schema, context: Context, hits: Hits, owed: Shares | None = None
) -> FairOrder:
    """Return the fair order of a list.

    Args:
        schema: The attributes of the documents.
        context: What to aim at; ``k`` is how many ranks count.
        hits: The list, best first, at least one document, with its groups.
        owed: What groups are owed by earlier lists, by attribute, which moves the target.

    Raises:
        InputError: An attribute does not exist.
        TargetError: The target is undefined, or needs what a list cannot tell.
    """
    whole: Any = SimpleNamespace(schema=schema)
    record = RankingRecord(
        iteration=0,
        query=QueryRecord(text="", boost="", attribute=None, group=None),
        ids=hits.ids,
        own=len(hits),
        scores=hits.scores,
        relevance=None if hits.relevance is None else hits.relevance.tolist(),
        memberships=coded(hits.memberships, set(hits.memberships)),
        rescored={},
        estimated={},
    )
    state: Any = {"query": "", "iteration": 0, "rankings": [record]}
    first = Rounds(whole, context, state)
    target = estimate_target(first.table, first.dimensions, first.own_ranking, context, {})
    aim = target if owed is None else moved(target, owed)
    state["target"] = aim
    rounds = Rounds(whole, context, state)
    fair, candidates = rounds.fair_list(0), rounds.candidates(rounds.own_ranking)
    objective = objective_of(candidates, context.pursued, fair.objective.weight, context.k)
    place = {id_: number for number, id_ in enumerate(hits.ids)}
    best = [place[id_] for id_ in fair.ids]
    chosen = {*best}
    return FairOrder(
        positions=best + [number for number in range(len(hits)) if number not in chosen],
        before=objective.quality(range(min(context.k, len(hits)))),
        after=objective.quality(best),
        target=target,
        shown=rounds.measured(rounds.plain.ids).exposure,
        exposure=fair.exposure,
        missed=fair.objective.missed,
    )
