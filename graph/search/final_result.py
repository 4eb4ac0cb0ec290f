"""Makes the result of a run: the final ranking beside the plain one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairqr.agents.models.replies import Usage
from fairqr.agents.refiner import Refiner
from fairqr.graph.search.explanation import explain
from fairqr.graph.search.final_ranking import Final, best_final, judged
from fairqr.graph.search.measurement import discounted_mean, mean_divergence, rank_key
from fairqr.graph.search.model_ranking import ModelRanking
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
from fairqr.graph.search.round_lists import RoundLists
from fairqr.graph.search.state import IterationRecord, ObjectiveRecord, State
from fairqr.graph.usage import usage_report
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.fairness.table import DocumentTable
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.sources.schema import Schema

Shares = Mapping[str, Mapping[str, float]]

_NOT_NEARER = (
    "The model's ranking is farther from the target than the plain retrieval, so this shows the "
    "plain retrieval."
)


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
    best: Final | None = None
    # If the model failed before its first reply, only the plain retrieval is left, or what a step
    # without the model made of it.
    failed = state["stop_reason"] == "model_failed" and len(state["iterations"]) == 1
    fair = state.get("best_fair")
    if original.ids and (not failed or fair):
        found = await best_final(engine, lists, by_model)
        is_nearer = rank_key(found.measured.divergences) <= rank_key(first["divergences"])
        if fair or is_nearer or not context.strategy.refines:
            best = found
    if best is None:
        warned = (_NOT_NEARER,) if by_model is not None and by_model.lists else ()
        best = Final(0, original, lists.measured(original.ids), warned)
    shown = list(dict.fromkeys([*best.ranking.ids, *original.ids]))
    documents = {document.id: document for document in await engine.documents(shown)}
    asked = by_model if by_model is not None and by_model.tried else None
    by_ranker = asked.warnings if asked else []
    warnings = [*state.get("warnings", []), *by_ranker, *best.warnings]
    gone = [id_ for id_ in shown if id_ not in documents]
    if gone and "read_by_id" in engine.capabilities:
        warnings.append(f"{len(gone)} documents were deleted during the search.")
    elif gone:
        # The engine only remembers documents that it has met, so these may still exist.
        documents |= {id_: Document(id_, title="", text="") for id_ in gone}
        warnings.append(f"The titles of {len(gone)} documents could not be read again.")
    if fair and (missed := fair["objective"]["missed"]):
        warnings.append(
            f"The documents found do not suffice for the target: a group stays {missed} points "
            "from its share."
        )
    attributes = [factor.name for dimension in lists.dimensions for factor in dimension.factors]
    groups = _groups_of(lists.table, shown, engine.schema, attributes)
    chances, known = lists.chances or {}, lists.chances is not None
    verdict = judged(lists, best.ranking.ids, fair) if fair else None
    # Without estimates any document found would count as relevant.
    supply = verdict.supply if verdict else None

    def mean_relevance(ranking: Ranking) -> float | None:
        values = [chances[id_] for id_ in ranking.ids if id_ in chances]
        # Other methods have no estimates for documents that only refined queries found.
        complete = known and len(values) == len(ranking)
        return discounted_mean(values, context.discount) if complete else None

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
        unused_refinements=[RefinedGroup(**record) for record in unused],
        attributes=attributes,
        target=state["target"],
        target_origin={
            dimension.name: context.effective_target.in_words(dimension.attribute)
            for dimension in lists.dimensions
        },
        iterations=[_iteration(record) for record in state["iterations"]],
        best_iteration=best.iteration,
        stop_reason=state["stop_reason"] or "max_iterations",
        ranking=_places(best.ranking, documents, groups, chances),
        exposure=best.measured.exposure,
        divergence=best.measured.divergence,
        divergences=best.measured.divergences,
        unknown=best.measured.unknown,
        relevance=mean_relevance(best.ranking),
        objective=Objective.of(verdict.final, verdict.weight) if verdict else None,
        supply=supply,
        gaps=_gaps(state["target"], best.measured.exposure, supply),
        without_model=_without_model(state, best) if refiner else None,
        baseline=Baseline(
            ranking=_places(original, documents, groups, chances),
            exposure=first["exposure"],
            divergence=first["divergence"],
            divergences=first["divergences"],
            relevance=mean_relevance(original),
            objective=Objective.of(verdict.plain, verdict.weight) if verdict else None,
            gaps=_gaps(state["target"], first["exposure"], supply),
        ),
        usage=usage_report(asked.usage if asked else Usage(**state["usage"])),
        warnings=warnings,
    )
    return result.model_copy(update={"explanation": explain(result)})


def _gaps(target: Shares, exposure: Shares, supply: Shares | None) -> Gaps | None:
    """Split each group's lack into what no ranking could give and what this one withholds."""
    if supply is None:
        return None
    lacks_supply: dict[str, dict[str, float]] = {}
    withheld: dict[str, dict[str, float]] = {}
    for name, shares in target.items():
        got, could = exposure[name], supply[name]
        lacks_supply[name] = {g: max(0.0, t - max(got[g], could[g])) for g, t in shares.items()}
        withheld[name] = {g: max(0.0, min(t, could[g]) - got[g]) for g, t in shares.items()}
    return Gaps(supply=lacks_supply, ranking=withheld)


def _objective(record: ObjectiveRecord) -> Objective:
    """Return the objective of a list without what only rounds need to be compared."""
    shown = ("relevance", "fairness", "value", "weight")
    return Objective.model_validate({name: record.get(name) for name in shown})


def _iteration(record: IterationRecord) -> Iteration:
    objective = record["objective"]
    shown = {**record, "objective": objective and _objective(objective)}
    return Iteration.model_validate(shown)


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
        divergence=mean_divergence(first["divergences"]),
        relevance=first["relevance"],
        objective=_objective(first["objective"]),
        documents=sum(id_ not in there for id_ in brought),
    )


def _groups_of(
    table: DocumentTable, ids: Sequence[str], schema: Schema, attributes: Sequence[str]
) -> dict[str, dict[str, dict[str, float]]]:
    """Return, for each document and attribute, the groups in which it has a share above 0."""
    found: dict[str, dict[str, dict[str, float]]] = {id_: {} for id_ in ids}
    for name in attributes:
        dimension = Dimension.named(schema, name)
        rows = table.memberships(dimension, ids).tolist()
        for id_, row in zip(ids, rows, strict=True):
            shares = zip(dimension.groups, row, strict=True)
            found[id_][name] = {group: share for group, share in shares if share > 0}
    return found


def _places(
    ranking: Ranking,
    documents: Mapping[str, Document],
    groups: Mapping[str, dict[str, dict[str, float]]],
    chances: Mapping[str, float],
) -> list[RankedDocument]:
    placed = [
        pair for pair in zip(ranking.ids, ranking.scores, strict=True) if pair[0] in documents
    ]
    return [
        RankedDocument(
            rank=rank,
            id=id_,
            title=documents[id_].title,
            score=score,
            groups=groups[id_],
            relevance=chances.get(id_),
        )
        for rank, (id_, score) in enumerate(placed, start=1)
    ]
