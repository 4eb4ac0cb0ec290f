"""The pool: all documents that a search has found so far, and the lists that its rounds make of it.

What to measure, what to re-rank, and in which order: the pool and its order decide the result. A
pool that contains the original top k, ordered by the original query, is the original ranking again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import TypeVar

import numpy as np

from fairqr.base.errors import InputError
from fairqr.graph.running import compute
from fairqr.graph.search.context import Context
from fairqr.graph.search.records import hits_of
from fairqr.graph.search.result import FairList, Measured, Reached, Round, Shares
from fairqr.graph.search.state import (
    EvidenceKind,
    FairListRecord,
    QueryRecord,
    RankingRecord,
    SearchState,
    with_update,
)
from fairqr.graph.search.target import by_group, vector_of
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.claims import Claims
from fairqr.retrieval.fairness.dimension import Dimension, dimensions_of
from fairqr.retrieval.fairness.divergence import kullback_leibler
from fairqr.retrieval.fairness.exposure import Discount, FloatArray, exposure_and_unknown
from fairqr.retrieval.fairness.ranking import Ranking, reciprocal_rank_fusion
from fairqr.retrieval.fairness.relevance import (
    NAMED_WEIGHT,
    POOL,
    UNLIKELY,
    EvidenceWeights,
    combined,
    probability_by_rank,
)
from fairqr.retrieval.fairness.table import DocumentTable
from fairqr.retrieval.rerankers.base import Candidates, by_rank
from fairqr.retrieval.rerankers.fair import relevance_probabilities
from fairqr.retrieval.sources.schema import UNKNOWN

T = TypeVar("T")

REFINED_WEIGHT = 0.5
"""A refined ranking's weight in the fusion. With one attribute, a document can be in two refined
rankings, by the words of the topic and of its group; both weigh as much as the original one."""

SHORT = 20
FEW = 20
"""Up to this many ranks and groups, the fair step takes less than the 5 ms for which Python leaves
the interpreter to a thread. So a thread would hold others up as long, and cost more."""


class Pool:
    """All documents that a search has found so far.

    Args:
        engine: The engine that is searched.
        context: What the run is asked to do.
        state: The state of the run.
    """

    def __init__(self, engine: SearchEngine, context: Context, state: SearchState) -> None:
        self.engine = engine
        self.context = context
        self.state = state

    @cached_property
    def dimensions(self) -> list[Dimension]:
        """The attributes, or their product, that exposure is measured over.

        Open attributes have the groups of what the original query found.

        Raises:
            InputError: The run was resumed with another context.
        """
        attributes = self.context.attributes
        intersect = self.context.intersect
        dimensions = dimensions_of(self.engine.schema, attributes, intersect=intersect)
        names = [dimension.name for dimension in dimensions]
        first_names = list(self.state.get("target") or names)
        if names != first_names:
            raise InputError(
                f"The run was started with the attributes {', '.join(first_names)}; resume it "
                "with the same context."
            )

        if not any(dimension.is_open for dimension in dimensions):
            return dimensions
        original = self.state["rankings"][0]["ids"]
        return [self.table.with_found_groups(dimension, original) for dimension in dimensions]

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
            **dict(self.measured(record["ids"])),
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
    def table(self) -> DocumentTable:
        """The groups of all documents that were retrieved."""
        table = DocumentTable()
        for record in self.state["rankings"]:
            hits = hits_of(record)
            table.add(hits.ids, hits.memberships)
        return table

    @cached_property
    def estimates_relevance(self) -> bool:
        """Whether the engine estimates how likely documents are relevant."""
        return self.state["rankings"][0]["relevance"] is not None

    @cached_property
    def answerable(self) -> float:
        """The probability that there are relevant documents at all, by all queries.

        They are combined as the evidence of documents is. Queries of names say nothing about it.
        """
        by_kind: dict[EvidenceKind, float] = {}
        for record in self.state["rankings"]:
            query = record["query"]
            if not query["names"]:
                highest = by_kind.get(query["kind"], 0.0)
                by_kind[query["kind"]] = max(highest, record["answerable"])
        if len(by_kind) == 1:
            return by_kind["query"]
        evidence = [np.array([probability]) for probability in by_kind.values()]
        weights = [self._weight_of(kind) for kind in by_kind]
        return float(combined(evidence, weights)[0])

    @cached_property
    def evidence(self) -> dict[EvidenceKind, dict[str, float]]:
        """The probability that documents are relevant, by the kind of query and then by id.

        It takes for granted that there are relevant documents. If the engine does not estimate
        relevance, the ranks of each ranking do. Of several queries of a kind, as of groups, the
        highest probability counts.
        """
        evidence: dict[EvidenceKind, dict[str, float]] = {"query": {}}
        for record in self.state["rankings"]:
            query = record["query"]
            by_id = evidence.setdefault(query["kind"], {})
            probabilities = self._probabilities(record)
            repeated = probabilities.keys() & by_id.keys()
            highest = {id_: max(probabilities[id_], by_id[id_]) for id_ in repeated}
            by_id |= probabilities | highest
        for lookup in self.state.get("lookups", []):
            evidence.setdefault(lookup["kind"], {}).update(lookup["relevance"])
        return evidence

    def _probabilities(self, record: RankingRecord) -> dict[str, float]:
        """Return how likely the documents of a ranking are relevant, by its query alone."""
        if record["relevance"] is not None:
            return dict(zip(record["ids"], record["relevance"], strict=True))
        probabilities = probability_by_rank(len(record["ids"]))
        return dict(zip(record["ids"], probabilities.tolist(), strict=True))

    @cached_property
    def relevance(self) -> dict[str, float] | None:
        """The probability that each document is relevant, by id; None if it is not estimated."""
        if not self.estimates_relevance:
            return None
        return {id_: self.answerable * value for id_, value in self.relative_relevance.items()}

    @cached_property
    def relative_relevance(self) -> dict[str, float]:
        """How likely documents are relevant by all evidence, given that anything is, by id.

        All lists are made by it: a factor that all documents share would change no list.

        The evidence of the queries is combined in log-odds; see
        :func:`fairqr.retrieval.fairness.relevance.combined`. A document that a query did not find
        counts as unlikely. But if only some groups have queries, that would count against documents
        of the other groups: then these queries only count for documents that they found.
        """
        ids = self.table.ids
        columns = []
        weights = []
        for kind, by_id in self.evidence.items():
            absent = UNLIKELY
            if kind in ("group", "named") and not self._has_queries_of_all_groups:
                absent = np.nan  # counts neither for nor against the document
            columns.append(np.array([by_id.get(id_, absent) for id_ in ids]))
            weights.append(self._weight_of(kind))
        return dict(zip(ids, combined(columns, weights).tolist(), strict=True))

    def _weight_of(self, kind: EvidenceKind) -> float:
        """Return how much a kind of evidence counts."""
        weights = self.state["weights"]
        if kind == "query":
            return 1.0
        if kind == "named":
            return NAMED_WEIGHT * weights["group"]
        return weights[kind]

    @cached_property
    def _has_queries_of_all_groups(self) -> bool:
        """Whether the model's words of each group were searched with."""
        searched = {
            (record["query"]["attribute"], record["query"]["group"])
            for record in self.state["rankings"]
        }
        for dimension in self.dimensions:
            for group in dimension.groups:
                if group != UNKNOWN and (dimension.name, group) not in searched:
                    return False
        return True

    def mean_relative_relevance(self, ids: Sequence[str]) -> float:
        """Return the mean probability of relevance over a list, weighted by the discount.

        If the engine does not estimate it, ranks stand for it.
        """
        probabilities = [self.relative_relevance[id_] for id_ in ids]
        return discounted_mean(probabilities, self.context.discount)

    def expected_relevance(self, ids: Sequence[str], earlier: Sequence[str] = ()) -> float | None:
        """Return the relevance of a page as a share of the best page's, in [0, 1].

        The best page has the most relevant documents found. Only the original query counts: its
        estimates, or else the ranks that it gave. A document that it did not find counts as
        unlikely, whatever a model's words say for it. None for an empty page.

        Args:
            ids: The documents of the page.
            earlier: The documents of earlier pages, which it could not have.
        """
        if not ids:
            return None
        by_query = self.evidence["query"]
        earlier_ids = set(earlier)
        remaining = [id_ for id_ in self.table.ids if id_ not in earlier_ids]
        probabilities = [by_query.get(id_, UNLIKELY) for id_ in remaining]
        best_page = np.sort(probabilities)[::-1][: self.context.k]
        page = np.array([by_query.get(id_, UNLIKELY) for id_ in ids])

        weights = self.context.discount.weights(max(len(best_page), len(page)))
        highest = float(weights[: len(best_page)] @ best_page)
        if not highest:
            return 1.0
        return min(1.0, float(weights[: len(page)] @ page) / highest)

    @cached_property
    def has_words_evidence(self) -> bool:
        """Whether the model's words count as evidence of relevance."""
        return any(self._weight_of(kind) > 0 for kind in self.evidence if kind != "query")

    @cached_property
    def rescored(self) -> dict[str, float]:
        """The scores, by the original query, of documents that refined queries found."""
        scores: dict[str, float] = {}
        for lookup in self.state.get("lookups", []):
            if lookup["kind"] == "query":
                scores |= lookup["scores"]
        return scores

    @property
    def looked_up(self) -> set[str]:
        """What the original query was asked about, since other queries found it."""
        ids: set[str] = set()
        for lookup in self.state.get("lookups", []):
            if lookup["kind"] == "query":
                ids.update(lookup["scores"], lookup["relevance"])
        return ids

    @property
    def claims(self) -> Claims | None:
        """Which documents that the original query found say the same; None if not compared."""
        claims = self.state["rankings"][0]["claims"]
        return None if claims is None else np.array(claims, dtype=np.intp)

    @cached_property
    def engine_ranking(self) -> Ranking:
        """The engine's own ranking of the original query, without what similarity found."""
        original = self.state["rankings"][0]
        return Ranking(original["ids"], original["scores"]).top(original["own"])

    @property
    def baseline(self) -> Ranking:
        """The first k documents of the engine's own ranking."""
        return self.engine_ranking.top(self.context.k)

    def measured(self, ids: Sequence[str]) -> Measured:
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

    def not_asked(self, kind: EvidenceKind) -> list[str]:
        """Return the documents that no query of this kind has found or was asked about."""
        answered: set[str] = set()
        for record in self.state["rankings"]:
            if record["query"]["kind"] == kind:
                answered.update(record["ids"])
        for lookup in self.state.get("lookups", []):
            if lookup["kind"] == kind:
                answered.update(lookup["scores"], lookup["relevance"])
        return [id_ for id_ in self.table.ids if id_ not in answered]

    def found_far_down(self, kind: EvidenceKind, iteration: int) -> list[str]:
        """Return what a query found far down, and another one of the round near the top.

        An engine without stored vectors only compares the first documents of a ranking with the
        query, so it may estimate these better when asked about them directly.
        """
        far_down: set[str] = set()
        near_top: dict[str, None] = {}
        for record in self.state["rankings"]:
            if record["query"]["kind"] == kind:
                far_down.update(record["ids"][POOL:])
            elif record["iteration"] == iteration:
                near_top |= dict.fromkeys(record["ids"][:POOL])
        for lookup in self.state.get("lookups", []):
            if lookup["kind"] == kind:
                far_down.difference_update(lookup["relevance"])
        return [id_ for id_ in near_top if id_ in far_down]

    def _shares_of_group(self, query: QueryRecord, ids: Sequence[str]) -> FloatArray | None:
        """Return each document's share of the group that a query was refined toward, or None."""
        if query["group"] is None:
            return None
        name = query["attribute"]
        dimension = next(dimension for dimension in self.dimensions if dimension.name == name)
        column = dimension.groups.index(query["group"])
        return self.table.memberships(dimension, ids)[:, column]


def discounted_mean(values: Sequence[float] | FloatArray, discount: Discount) -> float:
    """Return the mean of the values of all ranks, weighted by the discount; 0 for an empty list."""
    if not len(values):
        return 0.0
    weights = discount.weights(len(values))
    return float(weights @ np.array(values)) / float(weights.sum())
