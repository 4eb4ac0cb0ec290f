"""Makes the result of a run: the best round, re-ranked by query and target, and words about it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fairqr.agents.ranking.rankers import ItemRanker
from fairqr.agents.refiners.refiner import Refiner
from fairqr.graph.search import result as results
from fairqr.graph.search.context import Context
from fairqr.graph.search.rankers import ModelRanking, reranked
from fairqr.graph.search.result import FairList, Measured, Objective, SearchResult, Shares
from fairqr.graph.search.rounds import Rounds, best_of, by_group, discounted_mean
from fairqr.graph.steps import usage_report
from fairqr.prompts.template import fence
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


async def best_final(rounds: Rounds, ranker: ItemRanker | None) -> Final:
    """Return the final ranking of the best round.

    The fair step has already run while the rounds were measured. Otherwise the best round is the
    one with the lowest divergence. But the exposure-aware step can bring the lists of many rounds
    to the target, even the list of the original query. Then we use the best refined round that
    reaches it, because its list is based on more evidence. A model re-ranks one list only.
    """
    context, fair, tried = rounds.context, rounds.best_fair, [best_of(rounds.measured_rounds)]
    if ranker is None and fair:
        return Final(fair.iteration, Ranking(fair.ids, fair.scores), fair)
    if context.strategy.final_step == "exposure-aware":
        first, *refined = rounds.measured_rounds
        tried = [*sorted(refined, key=lambda round_: round_.distance), first]
    finals: list[Final] = []
    for round_ in tried[: None if ranker is None else 1]:
        finals.append(await _final(rounds, ranker, round_.index))
        if finals[-1].measured.distance <= (0, context.threshold):
            break
    return min(finals, key=lambda final: final.measured.distance)


async def _final(rounds: Rounds, ranker: ItemRanker | None, number: int) -> Final:
    """Return the final ranking of a round, after the ranker and the last step."""
    context, warnings = rounds.context, list[str]()
    listed, pool = rounds.retrieved(number), rounds.pool(number)
    scores = dict(zip(listed.ids, listed.scores, strict=True))
    if context.strategy.rerank == "original_query":
        scores = await _original_scores(rounds, pool)
    order, by_model = Ranking.of({id_: scores[id_] for id_ in pool if id_ in scores}), None
    if ranker is not None:
        by_model = await reranked(rounds, ranker, order)
        order, warnings = by_model.ranking, [*by_model.warnings]
    ranking = order.top(context.k)
    if (step := await final_step(context)) is not None:
        candidates = rounds.candidates(order)
        last = await step.rerank(rounds.engine, rounds.state["query"], candidates, context.k)
        known = dict(zip(order.ids, order.scores, strict=True))
        ranking = Ranking(last.ranking.ids, [known[id_] for id_ in last.ranking.ids])
        warnings += last.warnings
    return Final(number, ranking, rounds.measured(ranking.ids), warnings, by_model)


async def _original_scores(rounds: Rounds, ids: Sequence[str]) -> dict[str, float]:
    """Return the scores of documents by the original query; without those deleted meanwhile."""
    first = rounds.state["rankings"][0]
    scores = dict(zip(first["ids"], first["scores"], strict=True))
    if missing := [id_ for id_ in ids if id_ not in scores]:
        require(rounds.engine, "rescore", "The order 'original_query'")
        for hits in await search_given(rounds.engine, rounds.state["query"], missing):
            scores.update(zip(hits.ids, hits.scores, strict=True))
    return scores


def judged(
    rounds: Rounds, final: Sequence[str], fair: FairList
) -> tuple[list[Objective], Shares | None]:
    """Judge the final list and the plain one by all documents found, as the fair step does.

    Args:
        rounds: The rounds of the run.
        final: The ids of the final list.
        fair: The list of the fair step, with its weight.

    Returns:
        The objectives of the final and the plain list; and by attribute, the exposure nearest to
        the target that the documents which are likely to be relevant could give, or None if
        relevance was not estimated.
    """
    context, plain, weight = rounds.context, rounds.plain.ids, fair.objective.weight
    last = rounds.retrieved(len(rounds.measured_rounds) - 1)
    # Some orders and pools drop documents of earlier rounds. Scores do not count here.
    every = list(dict.fromkeys([*last.ids, *final, *plain]))
    candidates = rounds.candidates(Ranking(every, [0.0] * len(every)))
    place = {id_: number for number, id_ in enumerate(every)}
    objective = objective_of(candidates, context.pursued, weight, context.k)
    lists = ([place[id_] for id_ in ids] for ids in (final, plain))
    objectives = [Objective(**objective.quality(it).figures, weight=weight) for it in lists]
    if rounds.chances is None:
        return objectives, None  # any document found would count as relevant
    likely = np.flatnonzero(chances_of(candidates) >= LIKELY)
    parts = zip(rounds.dimensions, candidates.memberships, candidates.targets, strict=True)
    return objectives, {
        dimension.name: by_group(
            dimension, supply(own[likely], target, candidates.discount, context.k)
        )
        for dimension, own, target in parts
    }


async def assemble(
    rounds: Rounds, refiner: Refiner | None, ranker: ItemRanker | None
) -> SearchResult:
    """Re-rank the documents of the best round, and report them beside the plain retrieval.

    A method that refines returns the plain retrieval if its own ranking would be farther from the
    target, or if the model failed before its first reply.
    """
    state, context, engine = rounds.state, rounds.context, rounds.engine
    measured, plain, fair = rounds.measured_rounds, rounds.plain, rounds.best_fair
    failed, best = state["stop_reason"] == "model_failed", Final(0, plain, measured[0])
    # If the model failed before its first reply, only the plain retrieval is left, or what a step
    # without the model made of it.
    if plain.ids and (fair or not failed or len(measured) > 1):
        found = await best_final(rounds, ranker)
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
        objectives, supplied = judged(rounds, best.ranking.ids, fair)
        if missed := fair.objective.missed:
            warnings.append(
                f"The documents found do not suffice for the target: a group stays {missed} points "
                "from its share."
            )
    attributes = [factor.name for dimension in rounds.dimensions for factor in dimension.factors]
    groups = _groups_of(rounds, attributes, list(documents))
    chances = rounds.chances or {}

    def placed(rank: int, id_: str, score: float) -> dict[str, Any]:
        place = {"rank": rank, "id": id_, "title": documents[id_].title, "score": score}
        return place | {"groups": groups[id_], "relevance": chances.get(id_)}

    def shown(ranking: Ranking, measured: Measured, objective: Objective | None) -> dict[str, Any]:
        """Return what a result says of a list."""
        pairs = zip(ranking.ids, ranking.scores, strict=True)
        read = [(id_, score) for id_, score in pairs if id_ in documents]
        known = [chances[id_] for id_ in ranking.ids if id_ in chances]
        # Other methods have no estimates for documents that only refined queries found.
        is_complete = rounds.chances is not None and len(known) == len(ranking)
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
            for dimension in rounds.dimensions
        },
        iterations=measured,
        best_iteration=best.iteration,
        stop_reason=state["stop_reason"] or "max_iterations",
        **shown(best.ranking, best.measured, objectives[0]),
        unknown=best.measured.unknown,
        supply=supplied,
        without_model=_without_model(rounds, best) if refiner else None,
        baseline=shown(plain, measured[0], objectives[1]),
        usage=usage_report(best.by_model.usage if best.by_model else rounds.usage),
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


def _without_model(rounds: Rounds, best: Final) -> results.WithoutModel | None:
    """Return what the search would have given without asking the model."""
    if (first := rounds.state["first_fair"]) is None:
        return None
    fair = FairList(**first)
    # An engine may give a better estimate for documents of a refined query, even if the original
    # query also found them.
    known = {*rounds.state["rankings"][0]["ids"]} - rounds.said("estimated").keys()
    return results.WithoutModel(
        divergence=fair.divergence,
        relevance=fair.relevance,
        objective=fair.objective,
        documents=len({*best.ranking.ids} - known - {*fair.ids}),
    )


def _groups_of(
    rounds: Rounds, attributes: Sequence[str], ids: Sequence[str]
) -> dict[str, dict[str, dict[str, float]]]:
    """Return, for each document and attribute, the groups in which it has a share above 0."""
    table, schema = rounds.table, rounds.engine.schema
    members = {name: table.memberships(Dimension.named(schema, name), ids) for name in attributes}
    hits = Hits([*ids], [], members)
    return {id_: hits.groups(row, schema) for row, id_ in enumerate(ids)}


LEAST_GAP = 0.01
"""Gaps below one percentage point are left out."""

LINE = 120
"""How many characters of a document's title, and of its text, are shown."""

UNCHECKED = "We moved documents up without checking that they are relevant"
BROUGHT = "The model's queries brought"
TOO_FEW = "too few documents were found that are likely to be relevant"
"""Others may exist: their estimates may be too low, or they were not found at all."""


def explain(result: SearchResult) -> list[str]:
    """Return what each group lacked and why, what fairness cost, and what the model brought.

    Figures that the result does not have are left out.
    """
    return [*_before(result), *_lacked(result), *_gained(result)]


def _before(result: SearchResult) -> Iterator[str]:
    """Say how the target came about, and whether relevance was estimated."""
    origins, plain = result.target_origin, result.baseline.ranking
    phrases = list(dict.fromkeys(origins.values()))
    if len(phrases) > 1:
        phrases = [f"{name}: {how}" for name, how in origins.items()]
    if result.ranking and phrases:
        yield f"The target: {'; '.join(phrases)}."
    is_estimated = any(place.relevance is not None for place in [*result.ranking, *plain])
    is_moved = [place.id for place in result.ranking] != [place.id for place in plain]
    if result.method == "fairqr" and is_moved and not is_estimated:
        why = f"{result.retriever} does not estimate that; the retriever 'hybrid' does"
        if result.retriever.startswith(("hybrid", "run:")):
            why = "the documents have no texts to compare"
        yield f"{UNCHECKED}: {why}."


def _lacked(result: SearchResult) -> Iterator[str]:
    """Yield a sentence for each group that lacked exposure in the plain retrieval."""
    gaps, before = result.baseline.gaps, result.baseline.exposure
    if gaps is None:
        return
    for name, groups in result.target.items():
        for group, wanted in groups.items():
            reasons = []
            if (withheld := gaps.ranking[name][group]) >= LEAST_GAP:
                points = _points(withheld)
                verb = "was" if points == "1 point" else "were"
                reasons.append(f"{points} {verb} withheld by the ranking")
            if (missing := gaps.supply[name][group]) >= LEAST_GAP:
                reasons.append(f"for {_points(missing)}, {TOO_FEW}")
            if reasons:
                why = "; ".join(reasons)
                yield (
                    f"{group}: {before[name][group]:.0%} of the exposure before, target "
                    f"{wanted:.0%}. {why[0].upper()}{why[1:]}."
                )


def _points(share: float) -> str:
    points = round(100 * share)
    return "1 point" if points == 1 else f"{points} points"


def _gained(result: SearchResult) -> Iterator[str]:
    """Say what fairness cost in relevance, and what the model brought."""
    after, before, without = result.objective, result.baseline.objective, result.without_model
    if after and before and result.ranking:
        relevance = "Expected relevance" if result.relevance is not None else "Relevance by rank"
        yield (
            f"{relevance}: {after.relevance:.2f} of what is possible; before, it was "
            f"{before.relevance:.2f}. Fairness: {after.fairness:.2f}; before, "
            f"{before.fairness:.2f}."
        )
        if after.weight != 1:
            yield f"The weight of fairness was {after.weight:g}."
    if after and without and not without.documents:
        yield f"{BROUGHT} no documents into this ranking."
    elif after and without:
        brought = "1 document" if without.documents == 1 else f"{without.documents} documents"
        gained = after.relevance - without.objective.relevance
        yield (
            f"{BROUGHT} {brought} into this ranking: {gained:+.3f} of expected relevance, "
            f"{after.fairness - without.objective.fairness:+.3f} of fairness."
        )


def passage_lines(ranking: Sequence[results.Place], documents: Sequence[Document]) -> Iterator[str]:
    """Yield the rank, the title, the groups and a line of text of each document."""
    texts = {document.id: document.text for document in documents}
    for place in ranking:
        groups = "; ".join(
            f"{attribute}: {', '.join(shares) or 'unknown'}"
            for attribute, shares in place.groups.items()
        )
        title, text = fence(place.title, LINE), passage_of(texts.get(place.id, ""))
        yield f"{place.rank}. {title} [{groups}] {text}".rstrip()


def exposure_lines(result: SearchResult) -> Iterator[str]:
    """Yield a line for each attribute that says how the exposure of its groups changed."""
    for attribute, shares in result.exposure.items() if result.ranking else ():
        before, target = result.baseline.exposure[attribute], result.target[attribute]
        changes = [
            f"{group} {before[group]:.0%} to {share:.0%} (target {target[group]:.0%})"
            for group, share in shares.items()
        ]
        yield f"Exposure by {attribute}: {', '.join(changes)}."


def passage_of(text: str) -> str:
    """Return the beginning of a text as one line without markup."""
    line = fence(text, len(text) + 1)
    return line if len(line) <= LINE else f"{line[:LINE].rsplit(' ', 1)[0]} …"
