"""Makes the final ranking of a run: the best round, re-ranked by the original query and target."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fairqr.graph.search.context import Context
from fairqr.graph.search.decisions import best_iteration, preference
from fairqr.graph.search.measurement import (
    Measurement,
    by_group,
    discounted_mean,
    rank_key,
    vector_of,
)
from fairqr.graph.search.model_ranking import ModelRanking
from fairqr.graph.search.round_lists import RoundLists, scores_of, scores_of_given
from fairqr.graph.search.state import FairListRecord, ObjectiveRecord
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.best_ranking import supply
from fairqr.retrieval.fairness.objective import Quality
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.fairness.relevance import LIKELY
from fairqr.retrieval.rerankers.base import Candidates, Reranker
from fairqr.retrieval.rerankers.fair import FairStep, chances_of, objective_of
from fairqr.retrieval.rerankers.registry import open_reranker


@dataclass(frozen=True, slots=True)
class Final:
    """The final ranking of a round.

    Attributes:
        iteration: The index of the round.
        ranking: The first k documents, with their scores before the final step.
        measured: The exposure in the ranking.
        warnings: The warnings of the final step.
    """

    iteration: int
    ranking: Ranking
    measured: Measurement
    warnings: tuple[str, ...] = ()


async def best_final(
    engine: SearchEngine, lists: RoundLists, by_model: ModelRanking | None = None
) -> Final:
    """Return the final ranking of the best round.

    The fair step has already run while the rounds were measured. Otherwise the best
    round is the one with the lowest divergence. But the exposure-aware step can bring the lists of
    many rounds to the target, even the list of the original query. Then we use the best refined
    round that reaches it, because its list is based on more evidence.

    A model that re-ranks is asked about each round that we try. After its first list, rounds are
    skipped if the budget has no room for them.
    """
    state, context = lists.state, lists.context
    first, *refined = state["iterations"]
    rounds = [best_iteration(state["iterations"])]
    if context.strategy.final_step == "exposure-aware":
        refined.sort(key=lambda record: rank_key(record["divergences"]))
        rounds = [record["index"] for record in [*refined, first]]
    fair = state.get("best_fair")
    if by_model is None and fair:
        measured = Measurement(fair["exposure"], fair["divergences"], fair["unknown"])
        return Final(fair["iteration"], Ranking(fair["ids"], fair["scores"]), measured)
    step = await final_step(context)
    original_scores: Mapping[str, float] = {}
    if context.strategy.rerank == "original_query":
        ids = list(dict.fromkeys(id_ for number in rounds for id_ in lists.pool(number)))
        known = scores_of(state["rankings"][0])
        missing = [id_ for id_ in ids if id_ not in known]
        original_scores = known | await scores_of_given(engine, state["query"], missing)
    finals: list[Final] = []
    for number in rounds:
        order = lists.ordered_pool(number, original_scores)
        if by_model is not None:
            by_its_order = await by_model.reranked(order)
            if by_its_order is None and by_model.lists:
                break  # it re-ranked other rounds, and the budget has no room for this one
            order = by_its_order or order
        finals.append(await _final(engine, lists, number, order, step))
        if rank_key(finals[-1].measured.divergences) <= (0, context.threshold):
            return finals[-1]
    return min(finals, key=lambda final: rank_key(final.measured.divergences))


async def _final(
    engine: SearchEngine, lists: RoundLists, number: int, order: Ranking, step: Reranker | None
) -> Final:
    """Apply the final step, if there is one, to the ordered pool of a round."""
    state, context = lists.state, lists.context
    if step is None:
        ranking = order.top(context.k)
        return Final(number, ranking, lists.measured(ranking.ids))
    last = await step.rerank(engine, state["query"], _candidates(lists, order), context.k)
    scores = dict(zip(order.ids, order.scores, strict=True))
    ranking = Ranking(last.ranking.ids, [scores[id_] for id_ in last.ranking.ids])
    return Final(number, ranking, lists.measured(ranking.ids), last.warnings)


def _candidates(lists: RoundLists, order: Ranking) -> Candidates:
    """Return an order's documents with their relevance, groups and the target."""
    targets = [vector_of(d, lists.state["target"][d.name]) for d in lists.dimensions]
    relevance = None
    if lists.chances is not None:
        # What only a refined query found may have no estimate: then nothing speaks for it.
        relevance = np.array([lists.chances.get(id_, 0.0) for id_ in order.ids])
    return Candidates.of(
        lists.table, order, lists.dimensions, targets, lists.context.discount, relevance=relevance
    )


def fair_list(lists: RoundLists, number: int) -> FairListRecord:
    """Apply the fair step to all documents that were found up to a round."""
    context, order = lists.context, lists.retrieved(number)
    fair_step = FairStep(
        weight=context.fairness_weight, order=context.order, pursue=context.pursued
    )
    step = fair_step.take(_candidates(lists, order), context.k)
    taken = [order.ids[place] for place in step.positions]
    measured = lists.measured(taken)
    relevance = None
    if lists.chances is not None:
        chances = [lists.chances.get(id_, 0.0) for id_ in taken]
        relevance = discounted_mean(chances, context.discount)
    return FairListRecord(
        iteration=number,
        ids=taken,
        scores=[order.scores[place] for place in step.positions],
        exposure=measured.exposure,
        divergences=measured.divergences,
        unknown=measured.unknown,
        relevance=relevance,
        objective=ObjectiveRecord(
            relevance=step.quality.relevance,
            fairness=step.quality.fairness,
            value=step.quality.value,
            undefined=step.quality.undefined,
            missed=step.missed,
            weight=step.weight,
            most=step.quality.most,
        ),
    )


def better(one: FairListRecord | None, other: FairListRecord) -> FairListRecord:
    """Return the better list by the objective; the first one if both are equal."""
    if one is None:
        return other
    return min(one, other, key=lambda record: preference(record["objective"]))


@dataclass(frozen=True, slots=True)
class Judged:
    """What the fair step says of the final list and of the plain one, among all documents found.

    Attributes:
        final: The objective of the final list.
        plain: The objective of the plain list.
        weight: The weight of fairness of both.
        supply: By attribute, the exposure nearest to the target that the documents which are likely
            to be relevant could give; None if relevance was not estimated.
    """

    final: Quality
    plain: Quality
    weight: float
    supply: dict[str, dict[str, float]] | None


def judged(lists: RoundLists, final: Sequence[str], fair: FairListRecord) -> Judged:
    """Judge the final list and the plain one by all documents found, as the fair step does.

    Args:
        lists: The lists of the run's rounds.
        final: The ids of the final list.
        fair: The list of the fair step, with its weight.
    """
    last = lists.retrieved(len(lists.state["iterations"]) - 1)
    # Some orders and pools drop documents of earlier rounds. Scores do not count here.
    every = list(dict.fromkeys([*last.ids, *final, *lists.plain.ids]))
    candidates = _candidates(lists, Ranking(every, [0.0] * len(every)))
    place = {id_: number for number, id_ in enumerate(every)}
    weight = fair["objective"]["weight"]
    objective = objective_of(candidates, lists.context.pursued, weight, lists.context.k)
    final_quality, plain_quality = (
        objective.quality([place[id_] for id_ in ids]) for ids in (final, lists.plain.ids)
    )
    could = None
    if lists.chances is not None:
        likely = np.flatnonzero(chances_of(candidates) >= LIKELY)
        parts = zip(lists.dimensions, candidates.memberships, candidates.targets, strict=True)
        could = {
            dimension.name: by_group(
                dimension, supply(own[likely], target, candidates.discount, lists.context.k)
            )
            for dimension, own, target in parts
        }
    return Judged(final_quality, plain_quality, weight, could)


async def final_step(context: Context) -> Reranker | None:
    """Return the re-ranker of the final step; None for the fair step, which rounds take.

    Raises:
        InputError: Its options are wrong, or its weights are missing.
    """
    name = context.strategy.final_step
    if name in ("none", "fair"):
        return None
    # Opening may read weights from a file.
    return await asyncio.to_thread(open_reranker, name, context.options)
