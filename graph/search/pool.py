"""The pool: the documents that a search has found, and the lists that its rounds make of them.

What to measure, what to re-rank, and in which order: the pool and its order decide the result. A
pool that contains the original top k, ordered by the original query, is the original ranking again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import TypeVar

import numpy as np

from fairqr.graph.running import compute
from fairqr.graph.search.found_documents import FoundDocuments, discounted_mean
from fairqr.graph.search.result import FairList, Measured, Reached, Round, Shares
from fairqr.graph.search.state import FairListRecord, QueryRecord, RankingRecord, with_update
from fairqr.graph.search.target import by_group, vector_of
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.divergence import kullback_leibler
from fairqr.retrieval.fairness.exposure import FloatArray, exposure_and_unknown
from fairqr.retrieval.fairness.ranking import Ranking, reciprocal_rank_fusion
from fairqr.retrieval.fairness.relevance import EvidenceWeights
from fairqr.retrieval.rerankers.base import Candidates, by_rank
from fairqr.retrieval.rerankers.fair import relevance_probabilities

T = TypeVar("T")

REFINED_WEIGHT = 0.5
"""A refined ranking's weight in the fusion. With one attribute, a document can be in two refined
rankings, by the words of the topic and of its group; both weigh as much as the original one."""

SHORT = 20
FEW = 20
"""Up to this many ranks and groups, the fair step takes less than the 5 ms for which Python leaves
the interpreter to a thread. So a thread would hold others up as long, and cost more."""


class Pool(FoundDocuments):
    """All documents that a search has found so far, and the lists that its rounds make of them."""

    @cached_property
    def is_quick(self) -> bool:
        """Whether the fair step takes a few milliseconds, so that it needs no thread."""
        groups = sum(len(dimension.groups) for dimension in self.dimensions)
        is_small = self.context.k <= SHORT and groups <= FEW
        step = self.context.fair_step
        is_demanding = step.pursue or step.spread or step.has_limits
        return is_small and not is_demanding and step.fairness == "mean"

    async def compute(self, work: Callable[[], T]) -> T:
        """Compute something with the fair step, in a thread unless it is quick."""
        return work() if self.is_quick else await compute(work)

    @cached_property
    def rounds(self) -> list[Round]:
        """The rounds that were measured, with the value of their lists by all that was found.

        So rounds can be compared, whatever later rounds found.
        """
        objectives = {fair.iteration: fair.objective for fair in self.fair_lists}
        rounds = []
        for record in self.state.get("iterations", ()):
            round_ = Round(**record)
            update = {"objective": objectives.get(round_.index)}
            rounds.append(round_.model_copy(update=update))
        return rounds

    @cached_property
    def fair_lists(self) -> list[FairList]:
        """The list that the fair step made in each round, valued by all that was found.

        So lists of different rounds can be compared. Empty if the method has another final step.
        """
        records = self.state.get("fair_lists", [])
        if not records:
            return []
        # All lists are valued among the same candidates, so documents of later rounds count, too.
        order = self.order(records[-1]["iteration"])
        score_by_id = dict(zip(order.ids, order.scores, strict=True))
        ids = list(dict.fromkeys([*order.ids, *self.table.ids]))
        scores = [score_by_id.get(id_, 0.0) for id_ in ids]
        candidates = self.candidates(Ranking(ids, scores))
        positions = {id_: position for position, id_ in enumerate(ids)}
        return [self._value(record, candidates, positions) for record in records]

    def _value(
        self, record: FairListRecord, candidates: Candidates, positions: Mapping[str, int]
    ) -> FairList:
        """Return a list of the fair step with its exposure, its relevance and its objective.

        Args:
            record: The list.
            candidates: All documents found.
            positions: The position of each of them in the candidates, by id.
        """
        context = self.context
        rows = np.array([positions[id_] for id_ in record["ids"]], dtype=np.intp)
        relevance = None
        if self.estimates_relevance:
            # If there are relevant documents at all; the product says how likely that is, too.
            probabilities = relevance_probabilities(candidates)[rows]
            relevance = self.answerable * discounted_mean(probabilities, context.discount)
        objective = context.fair_step.objective(candidates, record["weight"], context.k)
        quality = objective.quality(rows)
        return FairList(
            **dict(self.measure(record["ids"])),
            iteration=record["iteration"],
            ids=record["ids"],
            scores=[candidates.ranking.scores[row] for row in rows.tolist()],
            relevance=relevance,
            objective=Reached(**asdict(quality), missed=record["missed"], weight=record["weight"]),
        )

    @cached_property
    def best_fair(self) -> FairList | None:
        """The best list of the fair step so far; None if the method has another final step."""
        if not self.fair_lists:
            return None
        return min(self.fair_lists, key=lambda fair: fair.objective.preference)

    @cached_property
    def engine_ranking(self) -> Ranking:
        """The engine's own ranking of the original query, without what similarity found."""
        original = self.state["rankings"][0]
        return Ranking(original["ids"], original["scores"]).top(original["own"])

    @property
    def baseline(self) -> Ranking:
        """The first k documents of the engine's own ranking."""
        return self.engine_ranking.top(self.context.k)

    def measure(self, ids: Sequence[str]) -> Measured:
        """Measure the first k of a list of documents against the target."""
        context = self.context
        exposures: Shares = {}
        divergences: dict[str, float | None] = {}
        unknown: dict[str, float] = {}
        for dimension in self.dimensions:
            name = dimension.name
            members = self.table.memberships(dimension, ids[: context.k])
            exposure, unknown_share = exposure_and_unknown(members, context.discount)
            exposures[name] = by_group(dimension, exposure)
            divergences[name] = self._divergence(dimension, exposure)
            unknown[name] = float(unknown_share)
        defined = [value for value in divergences.values() if value is not None]
        mean = sum(defined) / len(defined) if defined else None
        return Measured(
            exposure=exposures, divergence=mean, divergences=divergences, unknown=unknown
        )

    def _divergence(self, dimension: Dimension, exposure: FloatArray) -> float | None:
        """Return the divergence of exposure from the target; None without any exposure."""
        if not exposure.any():
            return None
        divergence = kullback_leibler(
            self._target_of(dimension),
            exposure,
            smoothing=self.context.smoothing,
            direction=self.context.direction,
        )
        return float(divergence)

    def _target_of(self, dimension: Dimension) -> FloatArray:
        return vector_of(dimension, self.state["target"][dimension.name])

    def candidates(self, order: Ranking) -> Candidates:
        """Return the documents of an order with their groups, the target, and their relevance.

        It is their relevance given that anything is relevant.
        """
        relevance = None
        if self.estimates_relevance or self.has_words_evidence:
            relevance = np.array([self.relative_relevance[id_] for id_ in order.ids])
        targets = [self._target_of(dimension) for dimension in self.dimensions]
        return Candidates.of(
            self.table,
            order,
            self.dimensions,
            targets,
            self.context.discount,
            relevance=relevance,
        )

    def fair_list(self, iteration: int) -> FairListRecord:
        """Apply the fair step to all documents that were found up to a round."""
        context = self.context
        order = self.order(iteration)
        step = context.fair_step.take(self.candidates(order), context.k)
        return FairListRecord(
            iteration=iteration,
            ids=[order.ids[position] for position in step.positions],
            weight=step.weight,
            missed=step.missed,
        )

    def order(self, iteration: int) -> Ranking:
        """Return the list of a round before any re-ranking.

        With ``relevance``, that is all documents found so far: in an index of ours by how likely
        they are relevant, otherwise in the engine's own order, and below it what it did not find.
        With ``fusion``, it is the fusion of the original ranking and the newest refined ones.
        Otherwise it is what the queries of the round retrieved.
        """
        records = self.state["rankings"]
        if len(records) == 1:
            return self._ranking_of(records[0])
        order = self.context.strategy.rerank
        if order == "relevance":
            return self._order_by_relevance(iteration)
        if order == "fusion":
            return self._fused(self._newest(iteration))
        return self._fused([record for record in records if record["iteration"] == iteration])

    def _order_by_relevance(self, iteration: int) -> Ranking:
        """Return the documents found up to a round, as near to the engine's order as it can be."""
        if self._ranks_by_relevance:
            relevance = self.relative_relevance
            return Ranking.of({id_: relevance[id_] for id_ in self.ids(iteration)})
        if "rescore" in self.engine.capabilities:
            return self._by_original_query(iteration)
        return self._engine_first(iteration)

    @cached_property
    def _ranks_by_relevance(self) -> bool:
        """Whether the engine ranks by its own estimates, as an index of ours does."""
        original = self.state["rankings"][0]
        return self.estimates_relevance and original["scores"] == original["relevance"]

    def _by_original_query(self, iteration: int) -> Ranking:
        """Return the documents found up to a round, by their scores for the original query."""
        original = self.state["rankings"][0]
        scores = dict(zip(original["ids"], original["scores"], strict=True))
        scores |= self.rescored
        # Documents of equal scores stay where the engine put them.
        ranks = {id_: rank for rank, id_ in enumerate(original["ids"])}
        ids = [id_ for id_ in self.ids(iteration) if id_ in scores]
        ids.sort(key=lambda id_: (-scores[id_], ranks.get(id_, len(ranks)), id_))
        return Ranking(ids, [scores[id_] for id_ in ids])

    def _engine_first(self, iteration: int) -> Ranking:
        """Return the engine's own ranking, and below it what only other queries found."""
        engine_ids = self._ranking_of(self.state["rankings"][0]).ids
        engine_set = set(engine_ids)
        relevance = self.relative_relevance
        added = [id_ for id_ in self.ids(iteration) if id_ not in engine_set]
        added.sort(key=lambda id_: (-relevance[id_], id_))
        return by_rank([*engine_ids, *added])

    def _newest(self, iteration: int) -> list[RankingRecord]:
        """Return the original ranking, and the newest one of each other kind up to a round.

        Refined queries grow, so a newer one contains the words of the older ones of its group.
        """
        newest: dict[tuple[object, ...], RankingRecord] = {}
        for record in self.state["rankings"]:
            if record["iteration"] <= iteration:
                query = record["query"]
                key = (query["kind"], query["part"], query["attribute"], query["group"])
                newest[key] = record
        return list(newest.values())

    def ids(self, iteration: int) -> list[str]:
        """Return the ids of the documents to re-rank after a round, each once."""
        first_iteration = 0
        if self.context.strategy.pool == "last":
            first_iteration = iteration
        ids: dict[str, None] = {}
        for record in self.state["rankings"]:
            if first_iteration <= record["iteration"] <= iteration:
                ids |= dict.fromkeys(self._ranking_of(record).ids)
        return list(ids)

    def _ranking_of(self, record: RankingRecord) -> Ranking:
        """Return the engine's own ranking, cut to the depth, and then what similarity found."""
        ids = record["ids"]
        scores = record["scores"]
        similar_from = record["own"]
        depth = self.context.strategy.depth
        return Ranking(
            ids[:similar_from][:depth] + ids[similar_from:],
            scores[:similar_from][:depth] + scores[similar_from:],
        )

    def _fused(self, records: Sequence[RankingRecord]) -> Ranking:
        """Fuse the original ranking with the refined ones.

        A query that was refined toward a group also finds documents of other groups, but says
        nothing about them. So its ranking only counts for documents of the group, by their share in
        it. The ranking of a query with words of the topic counts for all documents.
        """
        rankings = [self._ranking_of(record) for record in records]
        rrf_k = self.context.rrf_k
        if len(rankings) == 1:
            return rankings[0]
        if all(record["iteration"] for record in records):
            return reciprocal_rank_fusion(rankings, k=rrf_k)
        weights = []
        shares = []
        for record, ranking in zip(records, rankings, strict=True):
            is_refined = record["iteration"] > 0
            weights.append(REFINED_WEIGHT if is_refined else 1.0)
            shares.append(self._shares_of_group(record["query"], ranking.ids))
        return reciprocal_rank_fusion(rankings, weights, rrf_k, shares=shares)

    def _shares_of_group(self, query: QueryRecord, ids: Sequence[str]) -> FloatArray | None:
        """Return each document's share of the group that a query was refined toward, or None."""
        if query["group"] is None:
            return None
        name = query["attribute"]
        dimension = next(dimension for dimension in self.dimensions if dimension.name == name)
        column = dimension.groups.index(query["group"])
        return self.table.memberships(dimension, ids)[:, column]

    def with_target(self, target: Shares) -> Pool:
        """Return this pool with the target, once it is known."""
        pool = self._changed(target=target)
        pool.relative_relevance = self.relative_relevance
        return pool

    def with_fair_list(self, fair_list: FairListRecord) -> Pool:
        """Return this pool with another list of the fair step."""
        pool = self._changed(fair_lists=[*self.state.get("fair_lists", []), fair_list])
        pool.relative_relevance = self.relative_relevance
        return pool

    def with_weights(self, weights: EvidenceWeights) -> Pool:
        """Return a pool of the same documents, where the model's words count otherwise."""
        return self._changed(weights=weights.model_dump())

    def _changed(self, **parts: object) -> Pool:
        """Return a pool of the same documents, with other parts of the state."""
        pool = Pool(self.engine, self.context, with_update(self.state, parts))
        # Both only depend on the rankings, and take long to compute.
        pool.table = self.table
        pool.evidence = self.evidence
        return pool
