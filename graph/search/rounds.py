"""The rounds of a run: their lists and exposure, which is best, when to stop, and whom to help.

What to measure, what to re-rank, and in which order: the pool and its order decide the result. A
pool that contains the original top k, ordered by the original query, is the original ranking again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fairqr.agents.models.replies import Usage
from fairqr.agents.ranking.rankers import Cost
from fairqr.base.errors import TargetError
from fairqr.graph.search.context import Budget, Context, Groups
from fairqr.graph.search.state import (
    FairListRecord,
    GroupKey,
    IterationRecord,
    Measured,
    ObjectiveRecord,
    QueryRecord,
    RankingRecord,
    State,
    StopReason,
)
from fairqr.retrieval.engines.engine import Hits, Query, SearchEngine, searched
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.divergence import kullback_leibler
from fairqr.retrieval.fairness.exposure import Discount, FloatArray, exposure_and_unknown
from fairqr.retrieval.fairness.objective import DIGITS
from fairqr.retrieval.fairness.ranking import Ranking, reciprocal_rank_fusion
from fairqr.retrieval.fairness.table import DocumentTable, decoded
from fairqr.retrieval.fairness.target import Part, retrieved_distribution
from fairqr.retrieval.rerankers.base import Candidates
from fairqr.retrieval.rerankers.fair import FairStep
from fairqr.retrieval.sources.schema import UNKNOWN

TARGET_DEPTH = 500
"""How many results of the original query the target part ``retrieved`` uses."""

IDS_AT_ONCE = 10_000
"""How many documents one query scores, since servers limit the hits of a search."""

REFINED_WEIGHT = 0.5
"""A refined ranking's weight in the fusion. With one attribute, a document can be in two refined
rankings, by the words of the topic and of its group; both weigh as much as the original one."""

# We ask no question for a group that lacks less than this share of the exposure.
NEGLIGIBLE = 0.01


EXPECTED_SHARE = {True: 0.01, False: 0.13}
"""The share of what is left to gain that a first round of refinement brings: if the engine compares
the query with the vectors of all documents, and if it only finds words. These are means over
notables and TREC Fair 2022 with the refiner ``feedback`` (docs/explanation/relevance.md)."""


class RoundLists:
    """The lists of documents that the rounds of a run lead to.

    Args:
        dimensions: The attributes, or their product, that exposure is measured over.
        state: The state of the run, after its first round was retrieved.
        context: The context of the run.
        engine: The engine that was searched.

    Attributes:
        table: The groups of all documents that were retrieved.
        chances: The probability that each of them is relevant, by id; None if it is not estimated.
    """

    def __init__(
        self, dimensions: Sequence[Dimension], state: State, context: Context, engine: SearchEngine
    ) -> None:
        self.dimensions = dimensions
        self.state = state
        self.context = context
        self.table = table_of(state["rankings"])
        by_relevance = context.strategy.rerank == "relevance"
        first = state["rankings"][0]
        self.chances: dict[str, float] | None = None
        if first["relevance"] is not None:
            known = zip(first["ids"], first["relevance"], strict=True)
            self.chances = dict(known) | state.get("estimated", {})
        self._by_scores = by_relevance and "rescore" in engine.capabilities

    @property
    def plain(self) -> Ranking:
        """The first k documents of the engine's own ranking."""
        return plain_of(self.state["rankings"][0]).top(self.context.k)

    def measured(self, ids: Sequence[str]) -> Measured:
        """Measure the first k of a list of documents against the target."""
        context = self.context
        exposures: dict[str, dict[str, float]] = {}
        divergences: dict[str, float | None] = {}
        unknown: dict[str, float] = {}
        for dimension in self.dimensions:
            name = dimension.name
            members = self.table.memberships(dimension, ids[: context.k])
            vector, to_unknown = exposure_and_unknown(members, context.discount)
            exposures[name], unknown[name] = by_group(dimension, vector), float(to_unknown)
            divergences[name] = None
            if vector.any():
                target = vector_of(dimension, self.state["target"][name])
                divergence = kullback_leibler(
                    target, vector, smoothing=context.smoothing, direction=context.direction
                )
                divergences[name] = float(divergence)
        return Measured(
            exposure=exposures,
            divergence=mean_divergence(divergences),
            divergences=divergences,
            unknown=unknown,
        )

    def candidates(self, order: Ranking) -> Candidates:
        """Return the documents of an order with their relevance, their groups and the target."""
        targets = [vector_of(d, self.state["target"][d.name]) for d in self.dimensions]
        relevance = None
        if self.chances is not None:
            # What only a refined query found may have no estimate: then nothing speaks for it.
            relevance = np.array([self.chances.get(id_, 0.0) for id_ in order.ids])
        discount = self.context.discount
        return Candidates.of(
            self.table, order, self.dimensions, targets, discount, relevance=relevance
        )

    def fair_list(self, number: int) -> FairListRecord:
        """Apply the fair step to all documents that were found up to a round."""
        context, order = self.context, self.retrieved(number)
        fair_step = FairStep(
            weight=context.fairness_weight, order=context.order, pursue=context.pursued
        )
        candidates = self.candidates(order)
        step = fair_step.take(candidates, context.k)
        quality, chances = step.quality, candidates.relevance
        relevance = None
        if chances is not None:
            relevance = discounted_mean(chances[step.positions], context.discount)
        taken = [order.ids[place] for place in step.positions]
        return FairListRecord(
            **self.measured(taken),
            iteration=number,
            ids=taken,
            scores=[order.scores[place] for place in step.positions],
            relevance=relevance,
            objective=ObjectiveRecord(
                relevance=quality.relevance,
                fairness=quality.fairness,
                value=quality.value,
                undefined=quality.undefined,
                missed=step.missed,
                weight=step.weight,
                most=quality.most,
            ),
        )

    def retrieved(self, iteration: int) -> Ranking:
        """Return the list of a round before any re-ranking.

        With ``relevance``, that is all documents found so far, ordered by the original query. With
        ``fusion``, it is the fusion of the original ranking and the newest refined ones. Otherwise
        it is what the queries of the round retrieved.
        """
        rankings, order = self.state["rankings"], self.context.strategy.rerank
        if len(rankings) == 1:
            return ranking_of(rankings[0], self.context.strategy.depth)
        if self._by_scores:
            scores = scores_of(rankings[0]) | self.state.get("rescored", {})
            # Documents of equal scores stay where the engine put them.
            place = {id_: number for number, id_ in enumerate(rankings[0]["ids"])}
            found = [id_ for id_ in self.pool(iteration) if id_ in scores]
            found.sort(key=lambda id_: (-scores[id_], place.get(id_, len(place)), id_))
            return Ranking(found, [scores[id_] for id_ in found])
        if order in ("relevance", "fusion"):
            return self._fused(newest(rankings, iteration))
        return self._fused([record for record in rankings if record["iteration"] == iteration])

    def pool(self, iteration: int) -> list[str]:
        """Return the ids of the documents to re-rank after a round, each once."""
        strategy = self.context.strategy
        seen = [r for r in self.state["rankings"] if r["iteration"] <= iteration]
        if strategy.pool == "last":
            seen = [r for r in seen if r["iteration"] == iteration]
        if strategy.pool != "per_group":
            found = [ranking_of(record, strategy.depth).ids for record in seen]
            return list(dict.fromkeys(id_ for ids in found for id_ in ids))
        pool: dict[str, None] = {}
        for dimension in self.dimensions:
            quota = -(-(strategy.depth or 0) // len(dimension.groups))
            for position, group in enumerate(dimension.groups):
                # The group's last refined query, or the original query if it has none.
                own = [r for r in seen if r["query"]["group"] in (None, group)]
                own = [r for r in own if r["query"]["attribute"] in (None, dimension.name)]
                ids = own[-1]["ids"]
                shares = self.table.memberships(dimension, ids)[:, position]
                best = [id_ for id_, share in zip(ids, shares, strict=True) if share > 0]
                pool.update(dict.fromkeys(best[:quota]))
        return list(pool)

    def ordered_pool(self, iteration: int, original_scores: Mapping[str, float]) -> Ranking:
        """Order the pool of a round by the original query, before the final step.

        Args:
            iteration: The round.
            original_scores: The scores by the original query, for the order ``original_query``. A
                document that was deleted meanwhile has no score and is left out.
        """
        pool = self.pool(iteration)
        if self.context.strategy.rerank == "original_query":
            return Ranking.of({id_: original_scores[id_] for id_ in pool if id_ in original_scores})
        order, wanted = self.retrieved(iteration), set(pool)
        pairs = zip(order.ids, order.scores, strict=True)
        return Ranking.of((id_, score) for id_, score in pairs if id_ in wanted)

    def _fused(self, records: Sequence[RankingRecord]) -> Ranking:
        """Fuse the original ranking with the refined ones.

        A query that was refined toward a group also finds documents of other groups, but says
        nothing about them. So its ranking only counts for documents of the group, by their share in
        it. The ranking of a query with words of the topic counts for all documents.
        """
        depth = self.context.strategy.depth
        rankings = [ranking_of(record, depth) for record in records]
        if len(rankings) == 1:
            return rankings[0]
        if all(record["iteration"] for record in records):
            return reciprocal_rank_fusion(rankings, k=self.context.rrf_k)
        weights = [REFINED_WEIGHT if record["iteration"] else 1.0 for record in records]
        shares = [
            shares_of_group(record["query"], self.table, self.dimensions, ranking.ids)
            for record, ranking in zip(records, rankings, strict=True)
        ]
        return reciprocal_rank_fusion(rankings, weights, self.context.rrf_k, shares=shares)


def shares_of_group(
    query: QueryRecord, table: DocumentTable, dimensions: Sequence[Dimension], ids: Sequence[str]
) -> FloatArray | None:
    """Return each document's share of the group that a query was refined toward, or None."""
    if query["group"] is None:
        return None
    dimension = next(d for d in dimensions if d.name == query["attribute"])
    return table.memberships(dimension, ids)[:, dimension.groups.index(query["group"])]


def newest(rankings: Sequence[RankingRecord], iteration: int) -> list[RankingRecord]:
    """Return the original ranking, and the newest one of each kind of refined query.

    Refined queries grow, so a newer one contains the words of the older ones of its group.
    """
    found: dict[tuple[object, ...], RankingRecord] = {}
    for record in rankings:
        if record["iteration"] <= iteration:
            query = record["query"]
            found[record["iteration"] == 0, query["attribute"], query["group"]] = record
    return list(found.values())


def table_of(rankings: Sequence[RankingRecord]) -> DocumentTable:
    """Return the groups of all documents that a run has retrieved."""
    table = DocumentTable()
    for record in rankings:
        hits = hits_of(record)
        table.add(hits.ids, hits.memberships)
    return table


def sought_of(record: RankingRecord, dimensions: Sequence[Dimension]) -> list[str]:
    """Return the documents of its group that a refined query found; all of them without a group."""
    ids = record["ids"]
    shares = shares_of_group(record["query"], table_of([record]), dimensions, ids)
    if shares is None:
        return ids
    return [id_ for id_, share in zip(ids, shares, strict=True) if share > 0]


def ranking_of(record: RankingRecord, depth: int | None = None) -> Ranking:
    """Return the engine's own ranking, cut to a depth, and behind it what similarity found."""
    own = record["own"]
    ids, scores = record["ids"], record["scores"]
    return Ranking(ids[:own][:depth] + ids[own:], scores[:own][:depth] + scores[own:])


def plain_of(record: RankingRecord) -> Ranking:
    """Return the engine's own ranking, without what was found by similarity."""
    own = record["own"]
    return Ranking(record["ids"][:own], record["scores"][:own])


def hits_of(record: RankingRecord) -> Hits:
    """Return the hits of a query, with the groups of the run's attributes."""
    memberships = {name: decoded(members) for name, members in record["memberships"].items()}
    return Hits(record["ids"], record["scores"], memberships)


def scores_of(record: RankingRecord) -> dict[str, float]:
    """Return the score of each document of a ranking."""
    return dict(zip(record["ids"], record["scores"], strict=True))


async def search_given(engine: SearchEngine, query: str, ids: Sequence[str]) -> list[Hits]:
    """Return what a query says of given documents, in lists that servers can return."""
    pieces = [ids[at : at + IDS_AT_ONCE] for at in range(0, len(ids), IDS_AT_ONCE)]
    return await searched(engine, [Query(query, len(p), only=tuple(p)) for p in pieces])


def usual_shares(
    corpus_shares: Mapping[str, Sequence[float]], original: RankingRecord
) -> dict[str, FloatArray]:
    """Return the usual share of each group, by attribute.

    That is its share of all documents. If the engine cannot count them, it is its share of the
    documents that the original query retrieved.
    """
    return {
        name: np.array(corpus_shares[name])
        if name in corpus_shares
        else decoded(members).mean(axis=0)
        for name, members in original["memberships"].items()
    }


def mean_divergence(divergences: Mapping[str, float | None]) -> float | None:
    """Return the mean of the defined divergences, or None if none is defined."""
    defined = [value for value in divergences.values() if value is not None]
    return sum(defined) / len(defined) if defined else None


def rank_key(divergences: Mapping[str, float | None]) -> tuple[int, float]:
    """Return a key that sorts measurements from best to worst; undefined divergences are worst."""
    undefined = sum(value is None for value in divergences.values())
    return undefined, mean_divergence(divergences) or 0.0


def discounted_mean(values: Sequence[float] | FloatArray, discount: Discount) -> float:
    """Return the mean of the values of all ranks, weighted by the discount; 0 for an empty list."""
    weights = discount.weights(len(values))
    return float(weights @ np.array(values)) / float(weights.sum()) if len(values) else 0.0


def by_group(dimension: Dimension, vector: FloatArray) -> dict[str, float]:
    """Return the entries of a vector by the names of the groups."""
    return dict(zip(dimension.groups, vector.tolist(), strict=True))


def vector_of(dimension: Dimension, shares: Mapping[str, float]) -> FloatArray:
    """Return named shares as a vector over the groups."""
    return np.array([shares[group] for group in dimension.groups])


def estimate_target(
    table: DocumentTable,
    dimensions: Sequence[Dimension],
    original: Ranking,
    context: Context,
    corpus_shares: Mapping[str, FloatArray],
) -> dict[str, dict[str, float]]:
    """Compute ε* of each dimension from the results of the original query.

    Args:
        table: The groups of these results.
        dimensions: The attributes, or their product, that exposure is measured over.
        original: The results of the original query.
        context: The context of the run.
        corpus_shares: The share of each group in all documents, by attribute; needed for the target
            part ``corpus``.

    Raises:
        TargetError: The target is undefined, or needs shares that are unknown.
    """
    target: dict[str, dict[str, float]] = {}
    for dimension in dimensions:
        estimates: dict[Part, FloatArray] = {}
        if context.effective_target.parts.get("corpus"):
            if dimension.name not in corpus_shares:
                raise TargetError(
                    f"The share of each group of {dimension.name} in all documents is not known, "
                    "so the target cannot have the part 'corpus'; choose another part."
                )
            estimates["corpus"] = corpus_shares[dimension.name]
        if context.effective_target.parts.get("retrieved"):
            members = table.memberships(dimension, original.ids[:TARGET_DEPTH])
            scores = np.array(original.scores[:TARGET_DEPTH])
            estimates["retrieved"] = retrieved_distribution(members, scores)
        vector = context.effective_target.resolve(dimension.attribute, estimates)
        target[dimension.name] = by_group(dimension, vector)
    return target


def best_iteration(iterations: Sequence[IterationRecord]) -> int:
    """Return the index of the first round with the highest objective, or the lowest divergence.

    The objective counts if the fair step ran after each round.
    """

    def badness(record: IterationRecord) -> tuple[tuple[float, ...], int]:
        objective = record["objective"]
        if objective is None:
            return rank_key(record["divergences"]), record["index"]
        return preference(objective), record["index"]

    return min(iterations, key=badness)["index"]


def preference(objective: ObjectiveRecord) -> tuple[float, ...]:
    """Return a key that sorts lists from best to worst.

    A target of one's own comes first, and then the lowest weight of fairness that led so near to
    it, which pays least relevance. J is only comparable at the same weight.
    """
    missed, weight = objective["missed"], objective["weight"]
    return objective["undefined"], missed, weight, -worth(objective)


def better(one: FairListRecord | None, other: FairListRecord) -> FairListRecord:
    """Return the better list by the objective; the first one if both are equal."""
    if one is None:
        return other
    return min(one, other, key=lambda record: preference(record["objective"]))


def worth(objective: ObjectiveRecord) -> float:
    """Return J on a scale that all rounds share, rounded as J itself."""
    return round(objective["value"] * objective["most"], DIGITS)


def expected_gain(iterations: Sequence[IterationRecord], share: float) -> float:
    """Return what another round is expected to add to J, as a share of it.

    If its documents were as relevant as those of today's ranking, it could add up to V − J. It is
    expected to add the mean share of that which rounds have added: those of this search with the
    same weight, and the one that a first round is expected to add.

    Args:
        iterations: The rounds.
        share: That of a first round, one of :data:`EXPECTED_SHARE`.
    """
    shares, left = [share], 0.0
    found = [record["objective"] for record in iterations]
    last, before = 0.0, None
    for objective in found:
        if objective is None:
            return 0.0
        now, weight = worth(objective), objective["weight"]
        if left > 0 and weight == before:
            shares.append(max(0.0, now - last) / left)
        most = objective["relevance"] * objective["most"]
        last, left, before = now, most - now, weight
    return round(sum(shares) / len(shares) * max(0.0, left) / last, DIGITS) if last > 0 else 0.0


class Shortage(NamedTuple):
    """What a budget lacks: ``needed`` of a unit, while only ``left`` of ``limit`` remain.

    ``unit`` is ``model_calls`` or ``tokens``.
    """

    unit: str
    needed: int
    left: int
    limit: int

    @property
    def unit_in_words(self) -> str:
        """The unit in words for users."""
        return self.unit.replace("_", " ")


def shortage(budget: Budget, spent: Usage, needed: Cost) -> Shortage | None:
    """Return what a budget lacks for something, or None if it has room for it."""
    tokens = spent.prompt_tokens + spent.completion_tokens
    for unit, limit, used, number in (
        ("model_calls", budget.model_calls, spent.model_calls, needed.calls),
        ("tokens", budget.tokens, tokens, needed.tokens),
    ):
        if limit is not None and used + number > limit:
            return Shortage(unit, number, max(0, limit - used), limit)
    return None


def for_the_loop(context: Context, state: State) -> Context:
    """Return the context with the budget for refinement: without re-ranking and later steps."""
    cost, budget = state.get("cost"), context.budget
    if cost is None:
        return context
    left: dict[str, int] = {}
    if budget.model_calls is not None:
        left["model_calls"] = max(0, budget.model_calls - cost["calls"] - cost["reserved_calls"])
    if budget.tokens is not None:
        left["tokens"] = max(0, budget.tokens - cost["tokens"] - cost["reserved_tokens"])
    return context.model_copy(update={"budget": budget.model_copy(update=left)})


def budget_is_spent(budget: Budget, usage: Usage, seconds: float) -> bool:
    """Return whether the budget has no room for another question."""
    if budget.seconds is not None and seconds >= budget.seconds:
        return True
    return shortage(budget, usage, Cost(calls=1, tokens=1)) is not None


def decide_stop(
    iterations: Sequence[IterationRecord],
    context: Context,
    usage: Usage,
    seconds: float,
    *,
    by_vectors: bool = False,
) -> StopReason | None:
    """Return why the loop ends after these rounds, or None if it goes on.

    Args:
        iterations: The rounds.
        context: The context of the run.
        usage: What the run has cost so far.
        seconds: How long it has taken.
        by_vectors: Whether the engine compares the query with the vectors of all documents.
    """
    last, asks = iterations[-1], context.strategy.ask
    if not context.strategy.refines or asks == "never":
        return "not_refining"
    if last["objective"] is None:
        undefined, divergence = rank_key(last["divergences"])
        if not undefined and divergence <= context.threshold:
            return "converged"
    elif asks == "auto" and (
        expected_gain(iterations, EXPECTED_SHARE[by_vectors]) < context.least_gain
    ):
        return "little_to_gain"
    if last["index"] - best_iteration(iterations) >= context.patience:
        return "no_improvement"
    if last["index"] >= context.max_iterations:
        return "max_iterations"
    if budget_is_spent(context.budget, usage, seconds):
        return "budget"
    return None


def groups_to_ask_about(
    target: Mapping[str, Mapping[str, float]],
    exposure: Mapping[str, Mapping[str, float]],
    which: Groups,
    limit: int,
) -> list[GroupKey]:
    """Return the groups to ask about, sorted by ε* − ε with the largest first.

    ``unknown`` is left out, since a query cannot be refined toward documents without a label. If no
    group lacks exposure, the list is empty.

    Args:
        target: ε* by dimension and group.
        exposure: ε by dimension and group.
        which: The ``most`` under-represented group, those ``lacking`` exposure, or ``all``.
        limit: The largest number of groups.
    """
    lacks = [
        (share - exposure[name][group], name, group)
        for name, shares in target.items()
        for group, share in shares.items()
        if group != UNKNOWN
    ]
    # An attribute of which nothing has a label comes last: what it lacks is not known.
    lacks.sort(key=lambda entry: (not any(exposure[entry[1]].values()), -entry[0]))
    lacking = [entry for entry in lacks if entry[0] > 0]
    if which != "all" or not lacking:
        lacks = [entry for entry in lacking if entry[0] >= NEGLIGIBLE] or lacking[:1]
    return [(name, group) for _, name, group in lacks[: 1 if which == "most" else limit]]
