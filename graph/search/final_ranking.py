"""Makes the result of a run: the best round, re-ranked by query and target, and words about it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fairqr.agents.models.replies import Usage
from fairqr.agents.ranking.rankers import ItemRanker
from fairqr.agents.refiner import Refiner
from fairqr.graph.running import usage_report
from fairqr.graph.search import result as results
from fairqr.graph.search.context import Context
from fairqr.graph.search.explanation import explain
from fairqr.graph.search.pool import Pool, discounted_mean
from fairqr.graph.search.rankers import ModelRanking, reranked
from fairqr.graph.search.result import FairList, Measured, Objective, SearchResult, Shares
from fairqr.graph.search.stopping import best_of
from fairqr.graph.search.target import by_group
from fairqr.retrieval.engines.engine import Hits, Query, SearchEngine, require, searched
from fairqr.retrieval.fairness.best_ranking import supply
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.fairness.relevance import LIKELY
from fairqr.retrieval.rerankers.base import Reranker
from fairqr.retrieval.rerankers.fair import chances_of, objective_of
from fairqr.retrieval.rerankers.registry import open_reranker
from fairqr.retrieval.sources.documents import Document

IDS_AT_ONCE = 10_000
"""How many documents one query scores, since servers limit the hits of a search."""

_NOT_NEARER = "This is the plain retrieval: it is nearer to the target than the model's ranking."


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


async def search_given(engine: SearchEngine, query: str, ids: Sequence[str]) -> list[Hits]:
    """Return what a query says of given documents, in lists that servers can return."""
    pieces = [ids[at : at + IDS_AT_ONCE] for at in range(0, len(ids), IDS_AT_ONCE)]
    return await searched(engine, [Query(query, len(p), only=tuple(p)) for p in pieces])


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
    context, fair, tried = pool.context, pool.best_fair, [best_of(pool.rounds)]
    if ranker is None and fair:
        return Final(fair.iteration, Ranking(fair.ids, fair.scores), fair)
    if context.strategy.final_step == "exposure-aware":
        first, *refined = pool.rounds
        tried = [*sorted(refined, key=lambda round_: round_.distance), first]
    finals: list[Final] = []
    for round_ in tried[: None if ranker is None else 1]:
        finals.append(await _final(pool, ranker, round_.index))
        if finals[-1].measured.distance <= (0, context.threshold):
            break
    return min(finals, key=lambda final: final.measured.distance)


async def _final(pool: Pool, ranker: ItemRanker | None, number: int) -> Final:
    """Return the final ranking of a round, after the ranker and the last step."""
    context, warnings = pool.context, list[str]()
    listed, pool = pool.order(number), pool.ids(number)
    scores = dict(zip(listed.ids, listed.scores, strict=True))
    if context.strategy.rerank == "original_query":
        scores = await _original_scores(pool, pool)
    order, by_model = Ranking.of({id_: scores[id_] for id_ in pool if id_ in scores}), None
    if ranker is not None:
        by_model = await reranked(pool, ranker, order)
        order, warnings = by_model.ranking, [*by_model.warnings]
    ranking = order.top(context.k)
    if (step := await final_step(context)) is not None:
        candidates = pool.candidates(order)
        last = await step.rerank(pool.engine, pool.state["query"], candidates, context.k)
        known = dict(zip(order.ids, order.scores, strict=True))
        ranking = Ranking(last.ranking.ids, [known[id_] for id_ in last.ranking.ids])
        warnings += last.warnings
    return Final(number, ranking, pool.measured(ranking.ids), warnings, by_model)


async def _original_scores(pool: Pool, ids: Sequence[str]) -> dict[str, float]:
    """Return the scores of documents by the original query; without those deleted meanwhile."""
    first = pool.state["rankings"][0]
    scores = dict(zip(first["ids"], first["scores"], strict=True))
    if missing := [id_ for id_ in ids if id_ not in scores]:
        require(pool.engine, "rescore", "The order 'original_query'")
        for hits in await search_given(pool.engine, pool.state["query"], missing):
            scores.update(zip(hits.ids, hits.scores, strict=True))
    return scores


def judged(
    pool: Pool, final: Sequence[str], fair: FairList
) -> tuple[list[Objective], Shares | None]:
    """Judge the final list and the plain one by all documents found, as the fair step does.

    Args:
        pool: What the run has found.
        final: The ids of the final list.
        fair: The list of the fair step, with its weight.

    Returns:
        The objectives of the final and the plain list; and by attribute, the exposure nearest to
        the target that the documents which are likely to be relevant could give, or None if
        relevance was not estimated.
    """
    context, plain, weight = pool.context, pool.baseline.ids, fair.objective.weight
    last = pool.order(len(pool.rounds) - 1)
    # Some orders and pools drop documents of earlier pool. Scores do not count here.
    every = list(dict.fromkeys([*last.ids, *final, *plain]))
    candidates = pool.candidates(Ranking(every, [0.0] * len(every)))
    place = {id_: number for number, id_ in enumerate(every)}
    objective = objective_of(candidates, context.pursued, weight, context.k)
    lists = ([place[id_] for id_ in ids] for ids in (final, plain))
    objectives = [Objective(**objective.quality(it).figures, weight=weight) for it in lists]
    if pool.relevance is None:
        return objectives, None  # any document found would count as relevant
    likely = np.flatnonzero(chances_of(candidates) >= LIKELY)
    parts = zip(pool.dimensions, candidates.memberships, candidates.targets, strict=True)
    return objectives, {
        dimension.name: by_group(
            dimension, supply(own[likely], target, candidates.discount, context.k)
        )
        for dimension, own, target in parts
    }


async def assemble(pool: Pool, refiner: Refiner | None, ranker: ItemRanker | None) -> SearchResult:
    """Re-rank the documents of the best round, and report them beside the plain retrieval.

    A method that refines returns the plain retrieval if its own ranking would be farther from the
    target, or if the model failed before its first reply.
    """
    state, context, engine = pool.state, pool.context, pool.engine
    measured, plain, fair = pool.rounds, pool.baseline, pool.best_fair
    failed, best = state["stop_reason"] == "model_failed", Final(0, plain, measured[0])
    # If the model failed before its first reply, only the plain retrieval is left, or what a step
    # without the model made of it.
    if plain.ids and (fair or not failed or len(measured) > 1):
        found = await best_final(pool, ranker)
        by_model, is_nearer = found.by_model, found.measured.distance <= measured[0].distance
        if fair or is_nearer or not context.strategy.refines:
            best = found
        elif by_model and by_model.report:
            why = [_NOT_NEARER] if by_model.report.lists else []
            best = replace(best, warnings=[*by_model.warnings, *why], by_model=by_model)
    report = best.by_model and best.by_model.report
    documents, missing = await _documents(engine, [*best.ranking.ids, *plain.ids])
    warnings = [*state.get("warnings", ()), *best.warnings, *missing]
    objectives: Sequence[Objective | None] = (None, None)
    supplied: Shares | None = None
    if fair:
        objectives, supplied = judged(pool, best.ranking.ids, fair)
        if missed := fair.objective.missed:
            warnings.append(
                f"The documents found do not suffice for the target: a group stays {missed} points "
                "from its share."
            )
    attributes = [factor.name for dimension in pool.dimensions for factor in dimension.factors]
    groups = _groups_of(pool, attributes, list(documents))
    chances = pool.relevance or {}

    def placed(rank: int, id_: str, score: float) -> dict[str, Any]:
        place = {"rank": rank, "id": id_, "title": documents[id_].title, "score": score}
        return place | {"groups": groups[id_], "relevance": chances.get(id_)}

    def shown(ranking: Ranking, measured: Measured, objective: Objective | None) -> dict[str, Any]:
        """Return what a result says of a list."""
        pairs = zip(ranking.ids, ranking.scores, strict=True)
        read = [(id_, score) for id_, score in pairs if id_ in documents]
        known = [chances[id_] for id_ in ranking.ids if id_ in chances]
        # Other methods have no estimates for documents that only refined queries found.
        is_complete = pool.relevance is not None and len(known) == len(ranking)
        return {
            "ranking": [placed(rank, *pair) for rank, pair in enumerate(read, start=1)],
            **measured.model_dump(include={"exposure", "divergence", "divergences"}),
            "relevance": discounted_mean(known, context.discount) if is_complete else None,
            "objective": objective,
            "gaps": supplied and _gaps(state["target"], measured.exposure, supplied),
        }

    # If no query came from the last refinements, they belong to no round.
    proposed = [results.RefinedGroup(**record) for record in state["refinements"]]
    if not proposed and not failed:
        refiner = None  # it was not asked
    result = SearchResult(
        query=state["query"],
        corpus=engine.name,
        method=context.method,
        retriever=engine.retriever,
        model=refiner.name if refiner else None,
        prompt=refiner.prompt if refiner else None,
        ranker=report.ranker if report else None,
        reranking=report,
        unused_refinements=[] if proposed == measured[-1].refinements else proposed,
        attributes=attributes,
        target=state["target"],
        target_origin={
            dimension.name: context.effective_target.in_words(dimension.attribute)
            for dimension in pool.dimensions
        },
        iterations=measured,
        best_iteration=best.iteration,
        stop_reason=state["stop_reason"] or "max_iterations",
        **shown(best.ranking, best.measured, objectives[0]),
        unknown=best.measured.unknown,
        supply=supplied,
        without_model=_without_model(pool, best) if refiner else None,
        baseline=shown(plain, measured[0], objectives[1]),
        usage=usage_report(best.by_model.usage if best.by_model else Usage(**pool.state["usage"])),
        warnings=warnings,
    )
    return result.model_copy(update={"explanation": explain(result)})


async def _documents(
    engine: SearchEngine, ids: Sequence[str]
) -> tuple[dict[str, Document], list[str]]:
    """Return the documents to show, and sentences about those that could not be read."""
    shown = list(dict.fromkeys(ids))
    documents = {document.id: document for document in await engine.documents(shown)}
    gone = [id_ for id_ in shown if id_ not in documents]
    if not gone:
        return documents, []
    if "read_by_id" in engine.capabilities:
        return documents, [f"{len(gone)} documents were deleted during the search."]
    # The engine only remembers documents that it has met, so these may still exist.
    documents |= {id_: Document(id_, title="", text="") for id_ in gone}
    return documents, [f"The titles of {len(gone)} documents could not be read again."]


def _gaps(target: Shares, exposure: Shares, supplied: Shares) -> results.Gaps:
    """Split each group's lack into what no ranking could give and what this one withholds."""
    lacks_supply, withheld = Shares(), Shares()
    for name, shares in target.items():
        got, could = exposure[name], supplied[name]
        lacks_supply[name] = {g: max(0.0, t - max(got[g], could[g])) for g, t in shares.items()}
        withheld[name] = {g: max(0.0, min(t, could[g]) - got[g]) for g, t in shares.items()}
    return results.Gaps(supply=lacks_supply, ranking=withheld)


def _without_model(pool: Pool, best: Final) -> results.WithoutModel | None:
    """Return what the search would have given without asking the model."""
    if (first := pool.state["first_fair"]) is None:
        return None
    fair = FairList(**first)
    # An engine may give a better estimate for documents of a refined query, even if the original
    # query also found them.
    known = {*pool.state["rankings"][0]["ids"]} - pool.estimated.keys()
    return results.WithoutModel(
        divergence=fair.divergence,
        relevance=fair.relevance,
        objective=fair.objective,
        documents=len({*best.ranking.ids} - known - {*fair.ids}),
    )


def _groups_of(
    pool: Pool, attributes: Sequence[str], ids: Sequence[str]
) -> dict[str, dict[str, dict[str, float]]]:
    """Return, for each document and attribute, the groups in which it has a share above 0."""
    table, schema = pool.table, pool.engine.schema
    members = {name: table.memberships(Dimension.named(schema, name), ids) for name in attributes}
    hits = Hits([*ids], [], members)
    return {id_: hits.groups(row, schema) for row, id_ in enumerate(ids)}
