"""Makes the result of a run: the best round, re-ranked by query and target, and words about it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from fairqr.agents.models.replies import Usage
from fairqr.agents.ranking.rankers import ItemRanker
from fairqr.agents.refiners.refiner import Refiner
from fairqr.graph.running import usage_report
from fairqr.graph.search import result as results
from fairqr.graph.search.context import Context
from fairqr.graph.search.explanation import explain
from fairqr.graph.search.pool import Pool, discounted_mean
from fairqr.graph.search.rankers import ModelRanking, reranked
from fairqr.graph.search.result import Measured, Objective, SearchResult, Shares
from fairqr.graph.search.state import State
from fairqr.graph.search.stopping import best_of
from fairqr.graph.search.target import by_group
from fairqr.retrieval.engines.engine import (
    Hits,
    Query,
    SearchEngine,
    require,
    searched,
    titles_of,
)
from fairqr.retrieval.fairness.best_ranking import attainable_exposure
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.fairness.relevance import LIKELY
from fairqr.retrieval.rerankers.base import Candidates, Reranker
from fairqr.retrieval.rerankers.fair import objective_of, relevance_probabilities
from fairqr.retrieval.rerankers.registry import open_reranker

IDS_AT_ONCE = 10_000
"""How many documents one query scores, since servers limit the hits of a search."""

_NOT_NEARER = "This is the baseline ranking: it is nearer to the target than the model's ranking."


@dataclass(frozen=True, slots=True)
class Final:
    """The final ranking of a round.

    Attributes:
        iteration: The index of the round.
        ranking: The first k documents, with their scores before the final step.
        measured: The exposure in the ranking.
        warnings: Sentences about how it came about.
        by_model: How a model re-ranked it, if one did.
    """

    iteration: int
    ranking: Ranking
    measured: Measured
    warnings: Sequence[str] = ()
    by_model: ModelRanking | None = None


def queries_about(text: str, ids: Sequence[str]) -> list[Query]:
    """Return the queries that ask about given documents, in lists that servers can return."""
    queries = []
    for start in range(0, len(ids), IDS_AT_ONCE):
        some = tuple(ids[start : start + IDS_AT_ONCE])
        queries.append(Query(text, len(some), only=some))
    return queries


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


async def best_final(pool: Pool, ranker: ItemRanker | None) -> Final:
    """Return the final ranking of the best round.

    The fair step has already run while the rounds were measured. Otherwise the best round is the
    one with the lowest divergence. But the exposure-aware step can bring the lists of many rounds
    to the target, even the list of the original query. Then we use the best refined round that
    reaches it, because its list is based on more evidence. A model re-ranks one list only.
    """
    fair = pool.best_fair
    if ranker is None and fair:
        return Final(fair.iteration, Ranking(fair.ids, fair.scores), fair)
    rounds = [best_of(pool.rounds)]
    if pool.context.strategy.final_step == "exposure-aware":
        first, *refined = pool.rounds
        rounds = [*sorted(refined, key=lambda round_: round_.distance), first]
    if ranker is not None:
        rounds = rounds[:1]
    finals: list[Final] = []
    for round_ in rounds:
        final = await _final(pool, ranker, round_.index)
        finals.append(final)
        if final.measured.distance <= (0, pool.context.threshold):
            break
    return min(finals, key=lambda final: final.measured.distance)


async def _final(pool: Pool, ranker: ItemRanker | None, iteration: int) -> Final:
    """Return the final ranking of a round, after the ranker and the last step."""
    context = pool.context
    warnings: list[str] = []
    order = await _order_of_pool(pool, iteration)
    by_model = None
    if ranker is not None:
        by_model = await reranked(pool, ranker, order)
        order = by_model.ranking
        warnings += by_model.warnings
    ranking = order.top(context.k)
    step = await final_step(context)
    if step is not None:
        candidates = pool.candidates(order)
        last = await step.rerank(pool.engine, pool.state["query"], candidates, context.k)
        scores = dict(zip(order.ids, order.scores, strict=True))
        ids = last.ranking.ids
        ranking = Ranking(ids, [scores[id_] for id_ in ids])
        warnings += last.warnings
    return Final(iteration, ranking, pool.measured(ranking.ids), warnings, by_model)


async def _order_of_pool(pool: Pool, iteration: int) -> Ranking:
    """Return the documents to re-rank after a round, by their scores in the method's order."""
    ids = pool.ids(iteration)
    if pool.context.strategy.rerank == "original_query":
        scores = await _original_scores(pool, ids)
    else:
        listed = pool.order(iteration)
        scores = dict(zip(listed.ids, listed.scores, strict=True))
    return Ranking.of({id_: scores[id_] for id_ in ids if id_ in scores})


async def _original_scores(pool: Pool, ids: Sequence[str]) -> dict[str, float]:
    """Return the scores of documents by the original query; without those deleted meanwhile."""
    original = pool.state["rankings"][0]
    scores = dict(zip(original["ids"], original["scores"], strict=True))
    missing = [id_ for id_ in ids if id_ not in scores]
    if missing:
        require(pool.engine, "rescore", "The order 'original_query'")
        for hits in await searched(pool.engine, queries_about(pool.state["query"], missing)):
            scores.update(zip(hits.ids, hits.scores, strict=True))
    return scores


@dataclass(frozen=True, slots=True)
class Judged:
    """How good the final list and the baseline are, by all documents found.

    Attributes:
        final, baseline: The objectives of both lists; None if the method has no fair step.
        attainable: By attribute, the exposure nearest to the target that the documents which are
            likely to be relevant could give; None if relevance was not estimated.
    """

    final: Objective | None = None
    baseline: Objective | None = None
    attainable: Shares | None = None


def judge(pool: Pool, final: Sequence[str]) -> Judged:
    """Judge the final list and the baseline by all documents found, as the fair step does.

    Args:
        pool: What the run has found.
        final: The ids of the final list.
    """
    fair = pool.best_fair
    if fair is None:
        return Judged()
    context = pool.context
    baseline = pool.baseline.ids
    weight = fair.objective.weight
    last = pool.order(len(pool.rounds) - 1)
    # Some orders and pools drop documents of earlier rounds. Scores do not count here.
    ids = list(dict.fromkeys([*last.ids, *final, *baseline]))
    candidates = pool.candidates(Ranking(ids, [0.0] * len(ids)))
    position = {id_: number for number, id_ in enumerate(ids)}
    objective = objective_of(candidates, context.pursued, weight, context.k)

    def judged(ranking: Sequence[str]) -> Objective:
        quality = objective.quality([position[id_] for id_ in ranking])
        return Objective(**quality.figures, weight=weight)

    attainable = None if pool.relevance is None else _attainable(pool, candidates)
    return Judged(judged(final), judged(baseline), attainable)


def _attainable(pool: Pool, candidates: Candidates) -> Shares:
    """Return the exposure nearest to the target that likely relevant documents could give."""
    likely = np.flatnonzero(pool.answerable * relevance_probabilities(candidates) >= LIKELY)
    shares: Shares = {}
    parts = zip(pool.dimensions, candidates.memberships, candidates.targets, strict=True)
    for dimension, members, target in parts:
        nearest = attainable_exposure(members[likely], target, candidates.discount, pool.context.k)
        shares[dimension.name] = by_group(dimension, nearest)
    return shares


async def assemble(
    pool: Pool,
    refiner: Refiner | None,
    ranker: ItemRanker | None,
    notes: Sequence[str] = (),
) -> SearchResult:
    """Re-rank the documents of the best round, and report them beside the baseline ranking.

    Args:
        pool: What the run has found.
        refiner: What may have refined the query.
        ranker: What re-ranks the list, if the method names a model for that.
        notes: More sentences about the refiner, for the explanation.
    """
    state = pool.state
    engine = pool.engine
    final = await _chosen(pool, ranker)
    shown = [*final.ranking.ids, *pool.baseline.ids]
    titles, missing = await _titles(engine, shown)
    judged = judge(pool, final.ranking.ids)
    report = final.by_model.report if final.by_model else None
    last = _last_answers(state)
    was_used = last.topic == pool.rounds[-1].topic and last.groups == pool.rounds[-1].refinements
    was_asked = state["stop_reason"] == "model_failed" or last.topic or last.groups
    if not was_asked and not any(round_.topic or round_.refinements for round_ in pool.rounds):
        refiner = None
    lister = _Lister(pool, titles, judged.attainable)
    result = SearchResult(
        query=state["query"],
        corpus=engine.name,
        method=pool.context.method,
        retriever=engine.retriever,
        model=refiner.name if refiner else None,
        prompts=list(refiner.prompts) if refiner else [],
        ranker=report.ranker if report else None,
        reranking=report,
        # If no query came from the last answers, they belong to no round.
        unused_topic=None if was_used else last.topic,
        unused_refinements=[] if was_used else last.groups,
        attributes=lister.attributes,
        target=state["target"],
        target_origin={
            dimension.name: pool.context.effective_target.in_words(dimension.attribute)
            for dimension in pool.dimensions
        },
        iterations=pool.rounds,
        best_iteration=final.iteration,
        stop_reason=state["stop_reason"],
        **lister.fields(final.ranking, final.measured, judged.final),
        unknown=final.measured.unknown,
        attainable=judged.attainable,
        without_model=_without_model(pool, final) if refiner else None,
        baseline=lister.fields(pool.baseline, pool.rounds[0], judged.baseline),
        usage=usage_report(final.by_model.usage if final.by_model else Usage(**state["usage"])),
        warnings=[*state["warnings"], *final.warnings, *missing, *_missed_target(pool)],
    )
    says_notes = pool.context.words_are_evidence and result.ranking
    about_model = notes if says_notes else ()
    return result.model_copy(update={"explanation": explain(result, about_model)})


class _LastAnswers(NamedTuple):
    """What the model answered when it was last asked."""

    topic: results.RefinedTopic | None
    groups: list[results.RefinedGroup]


def _last_answers(state: State) -> _LastAnswers:
    topic = state["refined_topic"]
    return _LastAnswers(
        None if topic is None else results.RefinedTopic(**topic),
        [results.RefinedGroup(**record) for record in state["refinements"]],
    )


async def _chosen(pool: Pool, ranker: ItemRanker | None) -> Final:
    """Return the final ranking of the best round, or the baseline ranking.

    A method that refines returns the baseline ranking if its own ranking would be farther from the
    target, or if the model failed before its first reply.
    """
    rounds = pool.rounds
    fair = pool.best_fair
    baseline = Final(0, pool.baseline, rounds[0])
    failed_at_once = pool.state["stop_reason"] == "model_failed" and len(rounds) == 1
    if not pool.baseline.ids or (failed_at_once and fair is None):
        return baseline
    final = await best_final(pool, ranker)
    is_nearer = final.measured.distance <= rounds[0].distance
    if fair or is_nearer or not pool.context.strategy.refines:
        return final
    by_model = final.by_model
    if by_model is None or by_model.report is None:
        return baseline
    reason = [_NOT_NEARER] if by_model.report.lists else []
    return replace(baseline, warnings=[*by_model.warnings, *reason], by_model=by_model)


def _missed_target(pool: Pool) -> list[str]:
    """Return a warning if the documents found do not suffice for a target of the user's own."""
    if pool.best_fair is None or not pool.best_fair.objective.missed:
        return []
    points = pool.best_fair.objective.missed
    return [
        f"The documents found do not suffice for the target: a group stays {points} points from "
        "its share."
    ]


class _Lister:
    """Makes what a result says of a list.

    Args:
        pool: What the run has found.
        documents: The documents of all lists, by id.
        attainable: What likely relevant documents could give; None if relevance was not estimated.

    Attributes:
        attributes: The measured attributes.
    """

    def __init__(self, pool: Pool, titles: Mapping[str, str], attainable: Shares | None) -> None:
        self._pool = pool
        self._titles = titles
        self._attainable = attainable
        self.attributes = [
            factor.name for dimension in pool.dimensions for factor in dimension.factors
        ]
        self._groups = _groups_of(pool, self.attributes, list(titles))

    def fields(
        self, ranking: Ranking, measured: Measured, objective: Objective | None
    ) -> dict[str, Any]:
        """Return the fields of a result about a list."""
        relevance = self._pool.relevance or {}
        places: list[results.RankedDocument] = []
        for id_, score in zip(ranking.ids, ranking.scores, strict=True):
            if id_ in self._titles:
                place = results.RankedDocument(
                    rank=len(places) + 1,
                    id=id_,
                    title=self._titles[id_],
                    score=score,
                    groups=self._groups[id_],
                    relevance=relevance.get(id_),
                    evidence=self._evidence_of(id_),
                )
                places.append(place)
        estimates = [relevance[id_] for id_ in ranking.ids if id_ in relevance]
        # Other methods have no estimates for documents that only refined queries found.
        is_complete = self._pool.relevance is not None and len(estimates) == len(ranking)
        mean = discounted_mean(estimates, self._pool.context.discount) if is_complete else None
        gaps = None
        if self._attainable is not None:
            gaps = _gaps(self._pool.state["target"], measured.exposure, self._attainable)
        return {
            "ranking": places,
            **measured.model_dump(include={"exposure", "divergence", "divergences"}),
            "relevance": mean,
            "objective": objective,
            "gaps": gaps,
        }

    def _evidence_of(self, id_: str) -> dict[str, float]:
        """Return what each kind of query tells of a document, where a model's words count."""
        evidence: dict[str, float] = {}
        if self._pool.has_words_evidence:
            for kind, by_id in self._pool.evidence.items():
                if id_ in by_id:
                    evidence[kind] = self._pool.answerable * by_id[id_]
        return evidence


async def _titles(engine: SearchEngine, ids: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the titles of the documents to show, and sentences about those not read."""
    wanted = list(dict.fromkeys(ids))
    titles = {**await titles_of(engine, wanted)}
    missing = [id_ for id_ in wanted if id_ not in titles]
    if not missing:
        return titles, []
    if "read_by_id" in engine.capabilities:
        return titles, [f"{len(missing)} documents were deleted during the search."]
    # The engine only remembers documents that it has met, so these may still exist.
    titles |= dict.fromkeys(missing, "")
    return titles, [f"The titles of {len(missing)} documents could not be read again."]


def _gaps(target: Shares, exposure: Shares, attainable: Shares) -> results.Gaps:
    """Split each group's lack into what no ranking could give and what this one withholds."""
    missing: Shares = {}
    withheld: Shares = {}
    for name, shares in target.items():
        missing[name] = {}
        withheld[name] = {}
        for group, share in shares.items():
            reached = exposure[name][group]
            possible = attainable[name][group]
            missing[name][group] = max(0.0, share - max(reached, possible))
            withheld[name][group] = max(0.0, min(share, possible) - reached)
    return results.Gaps(unattainable=missing, ranking=withheld)


def _without_model(pool: Pool, final: Final) -> results.WithoutModel | None:
    """Return what the search would have given without asking the model."""
    if not pool.fair_lists:
        return None
    fair = pool.fair_lists[0]
    # The original query may be asked again about documents that it found far down.
    known = set(pool.state["rankings"][0]["ids"]) - pool.looked_up
    return results.WithoutModel(
        divergence=fair.divergence,
        relevance=fair.relevance,
        objective=fair.objective,
        documents=len(set(final.ranking.ids) - known - set(fair.ids)),
    )


def _groups_of(
    pool: Pool, attributes: Sequence[str], ids: Sequence[str]
) -> dict[str, dict[str, dict[str, float]]]:
    """Return, for each document and attribute, the groups in which it has a share above 0."""
    schema = pool.engine.schema
    members = {
        name: pool.table.memberships(Dimension.named(schema, name), ids) for name in attributes
    }
    hits = Hits(list(ids), [], members)
    return {id_: hits.groups(row, schema) for row, id_ in enumerate(ids)}
