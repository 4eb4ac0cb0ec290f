"""Putting the result of a run together: the final ranking beside the plain one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from fairqr.agents.refiner import Refiner
from fairqr.errors import InputError
from fairqr.graph.context import Context
from fairqr.graph.decisions import best_iteration
from fairqr.graph.lists import pooled, reranked
from fairqr.graph.measurement import Measurement, measure, rank_key, vector_of
from fairqr.graph.result import (
    Baseline,
    Iteration,
    RankedDocument,
    RefinedGroup,
    SearchResult,
    UsageReport,
)
from fairqr.graph.state import RefinementRecord, State, ranking_of
from fairqr.retrieval.dimension import Dimension
from fairqr.retrieval.documents import Document
from fairqr.retrieval.index import Index
from fairqr.retrieval.ranking import Ranking
from fairqr.retrieval.rerankers.base import Reranker, gather_candidates
from fairqr.retrieval.rerankers.registry import open_reranker

__all__ = ["assemble", "final_step"]


async def assemble(
    index: Index,
    dimensions: Sequence[Dimension],
    state: State,
    context: Context,
    refiner: Refiner | None,
) -> SearchResult:
    """Re-rank what the best round retrieved, and report it beside the plain retrieval.

    A method that refines returns the plain retrieval itself where its ranking would be farther from
    the target, and where the model failed before it gave anything.
    """
    original = ranking_of(state["rankings"][0]).top(context.k)
    plain = await measure(index, dimensions, state["target"], original.ids, context)
    best = Final(0, original, plain)
    # A model that failed before it gave anything leaves the plain retrieval.
    if state["stop_reason"] != "model_failed" or len(state["iterations"]) > 1:
        found = await _best_final(index, dimensions, state, context)
        is_nearer = rank_key(found.measured.divergences) <= rank_key(plain.divergences)
        if is_nearer or not context.strategy.refines:
            best = found
    shown = list(dict.fromkeys([*best.ranking.ids, *original.ids]))
    documents = {document.id: document for document in await index.documents(shown)}
    warnings = [*state.get("warnings", []), *best.warnings]
    if gone := sum(id_ not in documents for id_ in shown):
        warnings.append(f"{gone} documents were deleted from the index during the search.")
    attributes = [factor.name for dimension in dimensions for factor in dimension.factors]
    # The last refinements stand in no round if no query came of them.
    was_in_vain = state["refinements"] != state["iterations"][-1]["refinements"]
    if not state["refinements"]:
        refiner = None  # it was not needed
    return SearchResult(
        query=state["query"],
        corpus=index.name,
        method=context.method,
        retriever=index.retriever,
        model=refiner.name if refiner else None,
        prompt=refiner.prompt if refiner else None,
        unused_refinements=_refined_groups(state["refinements"] if was_in_vain else []),
        attributes=attributes,
        target=state["target"],
        iterations=[
            Iteration(
                index=record["index"],
                queries=record["queries"],
                refinements=_refined_groups(record["refinements"]),
                ids=record["ids"],
                exposure=record["exposure"],
                divergence=record["divergence"],
                divergences=record["divergences"],
            )
            for record in state["iterations"]
        ],
        best_iteration=best.iteration,
        stop_reason=state["stop_reason"] or "max_iterations",
        ranking=_places(best.ranking, documents, index, attributes),
        exposure=best.measured.exposure,
        divergence=best.measured.divergence,
        divergences=best.measured.divergences,
        unknown=best.measured.unknown,
        baseline=_baseline(original, plain, documents, index, attributes),
        usage=UsageReport(
            **state["usage"], milliseconds=round((time.time() - state["started"]) * 1000, 1)
        ),
        warnings=warnings,
    )


def _refined_groups(records: Sequence[RefinementRecord]) -> list[RefinedGroup]:
    return [RefinedGroup(**record) for record in records]


@dataclass(frozen=True, slots=True)
class Final:
    """What a round comes to in the end.

    Attributes:
        iteration: The round.
        ranking: The first k, with the scores they had before the final step.
        measured: How it is exposed.
        warnings: Of the final step.
    """

    iteration: int
    ranking: Ranking
    measured: Measurement
    warnings: tuple[str, ...] = ()


async def _best_final(
    index: Index, dimensions: Sequence[Dimension], state: State, context: Context
) -> Final:
    """Return what the best round comes to.

    That is the round that was measured best. But the exposure-aware step can bring the lists of
    many rounds equally near to the target, that of the original query too. Then the best refined
    round that it brings there is the best one, because its list rests on more evidence.
    """
    first, *refined = state["iterations"]
    rounds = [best_iteration(state["iterations"])]
    if context.strategy.final_step == "exposure-aware":
        refined.sort(key=lambda record: rank_key(record["divergences"]))
        rounds = [record["index"] for record in [*refined, first]]
    finals: list[Final] = []
    for number in rounds:
        finals.append(await _final(index, dimensions, state, context, number))
        if rank_key(finals[-1].measured.divergences) <= (0, context.threshold):
            return finals[-1]
    return min(finals, key=lambda final: rank_key(final.measured.divergences))


async def _final(
    index: Index, dimensions: Sequence[Dimension], state: State, context: Context, number: int
) -> Final:
    """Re-rank what a round had by the original intent, and take the final step."""
    rankings = state["rankings"]
    pool = await pooled(index, dimensions, rankings, number, context.strategy)
    order = await reranked(index, dimensions, state["query"], pool, rankings, number, context)
    ranking = order.top(context.k)
    warnings: tuple[str, ...] = ()
    if (step := await final_step(index, context)) is not None:
        targets = [vector_of(d, state["target"][d.name]) for d in dimensions]
        candidates = await gather_candidates(index, order, dimensions, targets, context.discount)
        last = await step.rerank(state["query"], candidates, context.k)
        scores = dict(zip(order.ids, order.scores, strict=True))
        ranking = Ranking(last.ranking.ids, [scores[id_] for id_ in last.ranking.ids])
        warnings = last.warnings
    measured = await measure(index, dimensions, state["target"], ranking.ids, context)
    return Final(number, ranking, measured, warnings)


async def final_step(index: Index, context: Context) -> Reranker | None:
    """Return the re-ranker of the final step, if there is one.

    Raises:
        InputError: Its options are wrong, or its weights are missing.
    """
    name = context.strategy.final_step
    if name == "none":
        if context.options:
            raise InputError("Options are for a final step, and there is none; leave them out.")
        return None
    options = context.options
    if name == "exposure-aware":
        # It goes as far as the loop asks for, by the loop's own measure.
        measure = {"smoothing": context.smoothing, "direction": context.direction}
        options = {"tolerance": context.threshold, **measure, **options}
    # It may read weights from a file.
    return await asyncio.to_thread(open_reranker, name, options, index=index)


def _baseline(
    ranking: Ranking,
    measured: Measurement,
    documents: dict[str, Document],
    index: Index,
    attributes: Sequence[str],
) -> Baseline:
    return Baseline(
        ranking=_places(ranking, documents, index, attributes),
        exposure=measured.exposure,
        divergence=measured.divergence,
        divergences=measured.divergences,
    )


def _places(
    ranking: Ranking, documents: dict[str, Document], index: Index, attributes: Sequence[str]
) -> list[RankedDocument]:
    places = []
    scored = [
        pair for pair in zip(ranking.ids, ranking.scores, strict=True) if pair[0] in documents
    ]
    for rank, (id_, score) in enumerate(scored, start=1):
        document = documents[id_]
        groups: dict[str, dict[str, float]] = {}
        for name in attributes:
            attribute = index.schema.attribute(name)
            shares = zip(attribute.universe, document.membership(attribute), strict=True)
            groups[name] = {group: share for group, share in shares if share > 0}
        places.append(
            RankedDocument(rank=rank, id=id_, title=document.title, score=score, groups=groups)
        )
    return places
