"""Makes the result of a run: the best round, re-ranked by the original query and the target."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fairqr.agents.models.replies import Usage
from fairqr.agents.refiner import Refiner
from fairqr.graph.search.context import Context
from fairqr.graph.search.explanation import explain
from fairqr.graph.search.rankers import ModelRanking
from fairqr.graph.search.result import (
    Baseline,
    Gaps,
    Iteration,
    Objective,
    RankedDocument,
    RefinedGroup,
    SearchResult,
    WithoutModel,
)
from fairqr.graph.search.rounds import (
    RoundLists,
    best_iteration,
    by_group,
    discounted_mean,
    rank_key,
    scores_of,
    search_given,
)
from fairqr.graph.search.state import FairListRecord, Measured, State
from fairqr.graph.usage import usage_report
from fairqr.retrieval.engines.engine import SearchEngine, require
from fairqr.retrieval.fairness.best_ranking import supply
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.fairness.relevance import LIKELY
from fairqr.retrieval.rerankers.base import Reranker
from fairqr.retrieval.rerankers.fair import chances_of, objective_of
from fairqr.retrieval.rerankers.registry import open_reranker
from fairqr.retrieval.sources.documents import Document

Shares = Mapping[str, Mapping[str, float]]

_NOT_NEARER = (
    "The model's ranking is farther from the target than the plain retrieval, so this shows the "
    "plain retrieval."
)


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
    measured: Measured
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
    fair = state.get("best_fair")
    if by_model is None and fair:
        return Final(fair["iteration"], Ranking(fair["ids"], fair["scores"]), fair)
    first, *refined = state["iterations"]
    rounds = [best_iteration(state["iterations"])]
    if context.strategy.final_step == "exposure-aware":
        refined.sort(key=lambda record: rank_key(record["divergences"]))
        rounds = [record["index"] for record in [*refined, first]]
    step = await final_step(context)
    original_scores: dict[str, float] = {}
    if context.strategy.rerank == "original_query":
        ids = list(dict.fromkeys(id_ for number in rounds for id_ in lists.pool(number)))
        original_scores = scores_of(state["rankings"][0])
        if missing := [id_ for id_ in ids if id_ not in original_scores]:
            require(engine, "rescore", "The order 'original_query'")
            for hits in await search_given(engine, state["query"], missing):
                original_scores.update(zip(hits.ids, hits.scores, strict=True))
    finals: list[Final] = []
    for number in rounds:
        order = lists.ordered_pool(number, original_scores)
        if by_model is not None:
            by_its_order = await by_model.reranked(order)
            if by_its_order is None and by_model.lists:
                break  # it re-ranked other rounds, and the budget has no room for this one
            order = by_its_order or order
        warnings: tuple[str, ...] = ()
        ranking = order.top(context.k)
        if step is not None:
            query, candidates = state["query"], lists.candidates(order)
            last = await step.rerank(engine, query, candidates, context.k)
            scores = dict(zip(order.ids, order.scores, strict=True))
            ranking = Ranking(last.ranking.ids, [scores[id_] for id_ in last.ranking.ids])
            warnings = last.warnings
        finals.append(Final(number, ranking, lists.measured(ranking.ids), warnings))
        if rank_key(finals[-1].measured["divergences"]) <= (0, context.threshold):
            return finals[-1]
    return min(finals, key=lambda final: rank_key(final.measured["divergences"]))


def judged(
    lists: RoundLists, final: Sequence[str], fair: FairListRecord
) -> tuple[list[Objective], Shares | None]:
    """Judge the final list and the plain one by all documents found, as the fair step does.

    Args:
        lists: The lists of the run's rounds.
        final: The ids of the final list.
        fair: The list of the fair step, with its weight.

    Returns:
        The objectives of the final and the plain list; and by attribute, the exposure nearest to
        the target that the documents which are likely to be relevant could give, or None if
        relevance was not estimated.
    """
    last = lists.retrieved(len(lists.state["iterations"]) - 1)
    # Some orders and pools drop documents of earlier rounds. Scores do not count here.
    every = list(dict.fromkeys([*last.ids, *final, *lists.plain.ids]))
    candidates = lists.candidates(Ranking(every, [0.0] * len(every)))
    place = {id_: number for number, id_ in enumerate(every)}
    weight, k = fair["objective"]["weight"], lists.context.k
    objective = objective_of(candidates, lists.context.pursued, weight, k)
    qualities = (objective.quality([place[id_] for id_ in ids]) for ids in (final, lists.plain.ids))
    objectives = [Objective.model_validate({**asdict(it), "weight": weight}) for it in qualities]
    if lists.chances is None:
        return objectives, None  # any document found would count as relevant
    likely = np.flatnonzero(chances_of(candidates) >= LIKELY)
    parts = zip(lists.dimensions, candidates.memberships, candidates.targets, strict=True)
    return objectives, {
        dimension.name: by_group(dimension, supply(own[likely], target, candidates.discount, k))
        for dimension, own, target in parts
    }


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


async def assemble(
    engine: SearchEngine,
    lists: RoundLists,
    refiner: Refiner | None,
    by_model: ModelRanking | None = None,
) -> SearchResult:
    """Re-rank the documents of the best round, and report them beside the plain retrieval.

    A method that refines returns the plain retrieval if its own ranking would be farther from the
    target, or if the model failed before its first reply.
    """
    state, context = lists.state, lists.context
    original, first = lists.plain, state["iterations"][0]
    # If the model failed before its first reply, only the plain retrieval is left, or what a step
    # without the model made of it.
    failed = state["stop_reason"] == "model_failed" and len(state["iterations"]) == 1
    fair, best = state.get("best_fair"), None
    if original.ids and (not failed or fair):
        found = await best_final(engine, lists, by_model)
        is_nearer = rank_key(found.measured["divergences"]) <= rank_key(first["divergences"])
        if fair or is_nearer or not context.strategy.refines:
            best = found
    if best is None:
        warned = (_NOT_NEARER,) if by_model is not None and by_model.lists else ()
        best = Final(0, original, lists.measured(original.ids), warned)
    asked = by_model if by_model is not None and by_model.tried else None
    documents, missing = await _documents(engine, [*best.ranking.ids, *original.ids])
    warnings = [
        *state.get("warnings", []),
        *(asked.warnings if asked else []),
        *best.warnings,
        *missing,
    ]
    if fair and (missed := fair["objective"]["missed"]):
        warnings.append(
            f"The documents found do not suffice for the target: a group stays {missed} points "
            "from its share."
        )
    attributes = [factor.name for dimension in lists.dimensions for factor in dimension.factors]
    groups = _groups_of(
        lists, [Dimension.named(engine.schema, name) for name in attributes], list(documents)
    )
    objectives: list[Objective] | list[None] = [None, None]
    supplied: Shares | None = None
    if fair:
        objectives, supplied = judged(lists, best.ranking.ids, fair)
    chances = lists.chances or {}

    def shown(ranking: Ranking, measured: Measured, objective: Objective | None) -> dict[str, Any]:
        """Return what a result says of a list."""
        placed = [
            (id_, score)
            for id_, score in zip(ranking.ids, ranking.scores, strict=True)
            if id_ in documents
        ]
        known = [chances[id_] for id_ in ranking.ids if id_ in chances]
        # Other methods have no estimates for documents that only refined queries found.
        is_complete = lists.chances is not None and len(known) == len(ranking)
        return {
            "ranking": [
                RankedDocument(
                    rank=rank,
                    id=id_,
                    title=documents[id_].title,
                    score=score,
                    groups=groups[id_],
                    relevance=chances.get(id_),
                )
                for rank, (id_, score) in enumerate(placed, start=1)
            ],
            "exposure": measured["exposure"],
            "divergence": measured["divergence"],
            "divergences": measured["divergences"],
            "relevance": discounted_mean(known, context.discount) if is_complete else None,
            "objective": objective,
            "gaps": _gaps(state["target"], measured["exposure"], supplied),
        }

    # If no query came from the last refinements, they belong to no round.
    proposed = state["refinements"]
    unused = [] if proposed == state["iterations"][-1]["refinements"] else proposed
    if not proposed and state["stop_reason"] != "model_failed":
        refiner = None  # it was not asked
    result = SearchResult(
        query=state["query"],
        corpus=engine.name,
        method=context.method,
        retriever=engine.retriever,
        model=refiner.name if refiner else None,
        prompt=refiner.prompt if refiner else None,
        ranker=asked.name if asked else None,
        reranking=asked.report if asked else None,
        unused_refinements=[RefinedGroup.model_validate(record) for record in unused],
        attributes=attributes,
        target=state["target"],
        target_origin={
            dimension.name: context.effective_target.in_words(dimension.attribute)
            for dimension in lists.dimensions
        },
        iterations=[Iteration.model_validate(record) for record in state["iterations"]],
        best_iteration=best.iteration,
        stop_reason=state["stop_reason"] or "max_iterations",
        **shown(best.ranking, best.measured, objectives[0]),
        unknown=best.measured["unknown"],
        supply=supplied,
        without_model=_without_model(state, best) if refiner else None,
        baseline=Baseline(**shown(original, first, objectives[1])),
        usage=usage_report(asked.usage if asked else Usage(**state["usage"])),
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


def _gaps(target: Shares, exposure: Shares, supplied: Shares | None) -> Gaps | None:
    """Split each group's lack into what no ranking could give and what this one withholds."""
    if supplied is None:
        return None
    lacks_supply: dict[str, dict[str, float]] = {}
    withheld: dict[str, dict[str, float]] = {}
    for name, shares in target.items():
        got, could = exposure[name], supplied[name]
        lacks_supply[name] = {g: max(0.0, t - max(got[g], could[g])) for g, t in shares.items()}
        withheld[name] = {g: max(0.0, min(t, could[g]) - got[g]) for g, t in shares.items()}
    return Gaps(supply=lacks_supply, ranking=withheld)


def _without_model(state: State, best: Final) -> WithoutModel | None:
    """Return what the search would have given without asking the model."""
    first = state.get("first_fair")
    if first is None:
        return None
    known, there = set(state["rankings"][0]["ids"]), set(first["ids"])
    # An engine may give a better estimate for documents of a refined query, even if the original
    # query also found them.
    closer = state.get("estimated", {})
    brought = [id_ for id_ in best.ranking.ids if id_ not in known or id_ in closer]
    return WithoutModel(
        divergence=first["divergence"],
        relevance=first["relevance"],
        objective=Objective.model_validate(first["objective"]),
        documents=sum(id_ not in there for id_ in brought),
    )


def _groups_of(
    lists: RoundLists, dimensions: Sequence[Dimension], ids: Sequence[str]
) -> dict[str, dict[str, dict[str, float]]]:
    """Return, for each document and attribute, the groups in which it has a share above 0."""
    found: dict[str, dict[str, dict[str, float]]] = {id_: {} for id_ in ids}
    for dimension in dimensions:
        rows = lists.table.memberships(dimension, ids).tolist()
        for id_, row in zip(ids, rows, strict=True):
            shares = zip(dimension.groups, row, strict=True)
            found[id_][dimension.name] = {group: share for group, share in shares if share > 0}
    return found
