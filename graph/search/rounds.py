"""The rounds of a run: their lists and exposure, which is best, when to stop, whom to help and how.

What to measure, what to re-rank, and in which order: the pool and its order decide the result. A
pool that contains the original top k, ordered by the original query, is the original ranking again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from itertools import chain, pairwise
from typing import Literal, NamedTuple, cast

import numpy as np

from fairqr.agents.models.replies import Usage
from fairqr.agents.ranking.rankers import Cost
from fairqr.agents.refiners.refiner import Refinement, RefinementStatus
from fairqr.base.errors import InputError, TargetError
from fairqr.graph.search import result as results
from fairqr.graph.search.context import Budget, Context, Groups
from fairqr.graph.search.result import Measured, Round, Shares, State
from fairqr.graph.steps import Update, running_seconds
from fairqr.retrieval.engines.engine import Hits, SearchEngine
from fairqr.retrieval.fairness.dimension import Dimension, dimensions_of
from fairqr.retrieval.fairness.divergence import kullback_leibler
from fairqr.retrieval.fairness.exposure import Discount, FloatArray, exposure_and_unknown
from fairqr.retrieval.fairness.objective import DIGITS
from fairqr.retrieval.fairness.ranking import Ranking, reciprocal_rank_fusion
from fairqr.retrieval.fairness.table import DocumentTable, decoded
from fairqr.retrieval.fairness.target import Part, retrieved_distribution
from fairqr.retrieval.rerankers.base import Candidates
from fairqr.retrieval.rerankers.fair import FairStep
from fairqr.retrieval.sources.schema import UNKNOWN
from fairqr.retrieval.texts import evidence as judging

TARGET_DEPTH = 500
"""How many results of the original query the target part ``retrieved`` uses."""

REFINED_WEIGHT = 0.5
"""A refined ranking's weight in the fusion. With one attribute, a document can be in two refined
rankings, by the words of the topic and of its group; both weigh as much as the original one."""

NEGLIGIBLE = 0.01
"""We ask no question for a group that lacks less than this share of the exposure."""

EXPECTED_SHARE = {True: 0.01, False: 0.13}
"""The share of what is left to gain that a first round of refinement brings: if the engine compares
the query with the vectors of all documents, and if it only finds words. These are means over
notables and TREC Fair 2022 with the refiner ``feedback`` (docs/explanation/relevance.md)."""


class Rounds:
    """What a run has found so far, and the lists of documents that its rounds lead to.

    Args:
        engine: The engine that is searched.
        context: What the run is asked to do.
        state: The state of the run.
    """

    def __init__(self, engine: SearchEngine, context: Context, state: State) -> None:
        self.engine, self.context, self.state = engine, context, state

    @cached_property
    def dimensions(self) -> list[Dimension]:
        """The attributes, or their product, that exposure is measured over.

        Raises:
            InputError: The run was resumed with another context.
        """
        attributes, intersect = self.context.attributes, self.context.intersect
        found = dimensions_of(self.engine.schema, attributes, intersect=intersect)
        names = [dimension.name for dimension in found]
        if names != (begun := list(self.state.get("target", names))):
            raise InputError(
                f"The run was started with the attributes {', '.join(begun)}; resume it with the "
                "same context."
            )
        return found

    @cached_property
    def measured_rounds(self) -> list[Round]:
        """The rounds that were measured."""
        return [Round(**record) for record in self.state.get("iterations", ())]

    @cached_property
    def best_fair(self) -> results.FairList | None:
        """The best list of the fair step so far; None if the method has another final step."""
        return results.FairList(**found) if (found := self.state.get("best_fair")) else None

    @cached_property
    def kept(self) -> Cost:
        """What refinement has to leave of the budget for a model that re-ranks."""
        cost = self.state.get("cost") or {"calls": 0, "tokens": 0}
        return Cost(cost["calls"], cost["tokens"])

    @property
    def usage(self) -> Usage:
        """What models have cost so far."""
        return Usage(**self.state["usage"])

    @property
    def calls_left(self) -> int | None:
        """How many calls of models the loop may still make, or None without such a budget."""
        most = self.context.budget.model_calls
        return None if most is None else max(0, most - self.kept.calls) - self.usage.model_calls

    def is_spent(self, usage: Usage) -> bool:
        """Return whether the budget has no room for another question of the loop."""
        budget = self.context.budget
        if budget.seconds is not None and running_seconds() >= budget.seconds:
            return True
        return shortage(budget, usage, Cost(calls=1, tokens=1) + self.kept) is not None

    @cached_property
    def table(self) -> DocumentTable:
        """The groups of all documents that were retrieved."""
        table = DocumentTable()
        for hits in map(hits_of, self.state["rankings"]):
            table.add(hits.ids, hits.memberships)
        return table

    @cached_property
    def chances(self) -> dict[str, float] | None:
        """The probability that each of them is relevant, by id; None if it is not estimated."""
        first = self.state["rankings"][0]
        if first["relevance"] is None:
            return None
        known = dict(zip(first["ids"], first["relevance"], strict=True))
        return known | self.said("estimated")

    def said(self, what: Literal["rescored", "estimated"]) -> dict[str, float]:
        """Return what the original query says of documents that refined queries found."""
        return dict(chain.from_iterable(it[what].items() for it in self.state["rankings"]))

    @cached_property
    def own_ranking(self) -> Ranking:
        """The engine's own ranking, without what was found by similarity."""
        first = self.state["rankings"][0]
        return Ranking(first["ids"], first["scores"]).top(first["own"])

    @property
    def plain(self) -> Ranking:
        """The first k documents of the engine's own ranking."""
        return self.own_ranking.top(self.context.k)

    def measured(self, ids: Sequence[str]) -> Measured:
        """Measure the first k of a list of documents against the target."""
        context = self.context
        exposures: Shares = {}
        divergences: dict[str, float | None] = {}
        unknown: dict[str, float] = {}
        for dimension in self.dimensions:
            name, divergence = dimension.name, None
            members = self.table.memberships(dimension, ids[: context.k])
            vector, to_unknown = exposure_and_unknown(members, context.discount)
            if vector.any():
                divergence = kullback_leibler(
                    self._target_of(dimension),
                    vector,
                    smoothing=context.smoothing,
                    direction=context.direction,
                )
            exposures[name], unknown[name] = by_group(dimension, vector), float(to_unknown)
            divergences[name] = None if divergence is None else float(divergence)
        defined = [value for value in divergences.values() if value is not None]
        return Measured(
            exposure=exposures,
            divergence=sum(defined) / len(defined) if defined else None,
            divergences=divergences,
            unknown=unknown,
        )

    def _target_of(self, dimension: Dimension) -> FloatArray:
        return vector_of(dimension, self.state["target"][dimension.name])

    def candidates(self, order: Ranking) -> Candidates:
        """Return the documents of an order with their relevance, their groups and the target."""
        targets = [self._target_of(dimension) for dimension in self.dimensions]
        relevance = None
        if self.chances is not None:
            # What only a refined query found may have no estimate: then nothing speaks for it.
            relevance = np.array([self.chances.get(id_, 0.0) for id_ in order.ids])
        discount = self.context.discount
        return Candidates.of(
            self.table, order, self.dimensions, targets, discount, relevance=relevance
        )

    def fair_list(self, number: int) -> results.FairList:
        """Apply the fair step to all documents that were found up to a round."""
        context, order = self.context, self.retrieved(number)
        fair_step = FairStep(
            weight=context.fairness_weight, order=context.order, pursue=context.pursued
        )
        candidates = self.candidates(order)
        step, relevance = fair_step.take(candidates, context.k), None
        if candidates.relevance is not None:
            relevance = discounted_mean(candidates.relevance[step.positions], context.discount)
        taken = [order.ids[place] for place in step.positions]
        return results.FairList(
            **dict(self.measured(taken)),
            iteration=number,
            ids=taken,
            scores=[order.scores[place] for place in step.positions],
            relevance=relevance,
            objective=results.Reached(
                **asdict(step.quality), missed=step.missed, weight=step.weight
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
            return self._ranking_of(rankings[0])
        first = rankings[0]
        if order == "relevance" and "rescore" in self.engine.capabilities:
            scores = dict(zip(first["ids"], first["scores"], strict=True))
            scores |= self.said("rescored")
            # Documents of equal scores stay where the engine put them.
            place = {id_: number for number, id_ in enumerate(first["ids"])}
            found = [id_ for id_ in self.pool(iteration) if id_ in scores]
            found.sort(key=lambda id_: (-scores[id_], place.get(id_, len(place)), id_))
            return Ranking(found, [scores[id_] for id_ in found])
        if order not in ("relevance", "fusion"):
            return self._fused([it for it in rankings if it["iteration"] == iteration])
        # Refined queries grow, so a newer one contains the words of the older ones of its group.
        newest: dict[tuple[object, ...], results.RankingRecord] = {}
        for record in rankings:
            if record["iteration"] <= iteration:
                query = record["query"]
                newest[record["iteration"] == 0, query["attribute"], query["group"]] = record
        return self._fused([*newest.values()])

    def pool(self, iteration: int) -> list[str]:
        """Return the ids of the documents to re-rank after a round, each once."""
        seen = [r for r in self.state["rankings"] if r["iteration"] <= iteration]
        if self.context.strategy.pool == "last":
            seen = [r for r in seen if r["iteration"] == iteration]
        found = chain.from_iterable(self._ranking_of(record).ids for record in seen)
        return list(dict.fromkeys(found))

    def _ranking_of(self, record: results.RankingRecord) -> Ranking:
        """Return the engine's own ranking, cut to the depth, and then what similarity found."""
        ids, scores, own = record["ids"], record["scores"], record["own"]
        depth = self.context.strategy.depth
        return Ranking(ids[:own][:depth] + ids[own:], scores[:own][:depth] + scores[own:])

    def _fused(self, records: Sequence[results.RankingRecord]) -> Ranking:
        """Fuse the original ranking with the refined ones.

        A query that was refined toward a group also finds documents of other groups, but says
        nothing about them. So its ranking only counts for documents of the group, by their share in
        it. The ranking of a query with words of the topic counts for all documents.
        """
        rankings, rrf_k = [self._ranking_of(record) for record in records], self.context.rrf_k
        if len(rankings) == 1:
            return rankings[0]
        if all(record["iteration"] for record in records):
            return reciprocal_rank_fusion(rankings, k=rrf_k)
        weights = [REFINED_WEIGHT if record["iteration"] else 1.0 for record in records]
        shares = [
            self._shares_of_group(record["query"], ranking.ids)
            for record, ranking in zip(records, rankings, strict=True)
        ]
        return reciprocal_rank_fusion(rankings, weights, rrf_k, shares=shares)

    def sought(self, record: results.RankingRecord) -> list[str]:
        """Return the documents of its group that a refined query found; all without a group."""
        ids = record["ids"]
        shares = self._shares_of_group(record["query"], ids)
        if shares is None:
            return ids
        return [id_ for id_, share in zip(ids, shares, strict=True) if share > 0]

    def _shares_of_group(self, query: results.QueryRecord, ids: Sequence[str]) -> FloatArray | None:
        """Return each document's share of the group that a query was refined toward, or None."""
        if query["group"] is None:
            return None
        dimension = next(d for d in self.dimensions if d.name == query["attribute"])
        return self.table.memberships(dimension, ids)[:, dimension.groups.index(query["group"])]


def hits_of(record: results.RankingRecord) -> Hits:
    """Return the hits of a query, with the groups of the run's attributes."""
    memberships = {name: decoded(members) for name, members in record["memberships"].items()}
    return Hits(record["ids"], record["scores"], memberships)


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
) -> Shares:
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
    target: Shares = {}
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


def best_of(rounds: Sequence[Round]) -> Round:
    """Return the first round with the highest objective, or the lowest divergence.

    The objective counts if the fair step ran after each round.
    """
    return min(rounds, key=lambda round_: round_.badness)


def expected_gain(rounds: Sequence[Round], share: float) -> float:
    """Return what another round is expected to add to J, as a share of it.

    If its documents were as relevant as those of today's ranking, it could add up to V − J. It is
    expected to add the mean share of that which rounds have added: those of this search with the
    same weight, and the one that a first round is expected to add.

    Args:
        rounds: The rounds, all with the fair step.
        share: That of a first round, one of :data:`EXPECTED_SHARE`.
    """
    shares, reached = [share], [it.objective for it in rounds if it.objective is not None]
    for before, now in pairwise(reached):
        if before.left > 0 and now.weight == before.weight:
            shares.append(max(0.0, now.worth - before.worth) / before.left)
    last, mean = reached[-1], sum(shares) / len(shares)
    return round(mean * max(0.0, last.left) / last.worth, DIGITS) if last.worth > 0 else 0.0


class Shortage(NamedTuple):
    """What a budget lacks: ``needed`` of a unit, while only ``left`` of ``limit`` remain.

    ``unit`` is ``model_calls`` or ``tokens``.
    """

    unit: str
    needed: int
    left: int
    limit: int


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


def decide_stop(
    rounds: Sequence[Round], context: Context, *, is_spent: bool = False, by_vectors: bool = False
) -> results.StopReason | None:
    """Return why the loop ends after these rounds, or None if it goes on.

    Args:
        rounds: The rounds.
        context: The context of the run.
        is_spent: Whether the budget has no room for another question.
        by_vectors: Whether the engine compares the query with the vectors of all documents.
    """
    last, asks = rounds[-1], context.strategy.ask
    if not context.strategy.refines or asks == "never":
        return "not_refining"
    if last.objective is None:
        if last.distance <= (0, context.threshold):
            return "converged"
    elif asks == "auto" and (
        expected_gain(rounds, EXPECTED_SHARE[by_vectors]) < context.least_gain
    ):
        return "little_to_gain"
    if last.index - best_of(rounds).index >= context.patience:
        return "no_improvement"
    if last.index >= context.max_iterations:
        return "max_iterations"
    return "budget" if is_spent else None


def groups_to_ask_about(
    target: Shares, exposure: Shares, which: Groups, limit: int
) -> list[results.GroupKey]:
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
    # An attribute without any label comes last: nobody knows what its groups lack.
    lacks.sort(key=lambda entry: (not any(exposure[entry[1]].values()), -entry[0]))
    lacking = [entry for entry in lacks if entry[0] > 0]
    if which != "all" or not lacking:
        lacks = [entry for entry in lacking if entry[0] >= NEGLIGIBLE] or lacking[:1]
    return [(name, group) for _, name, group in lacks[: 1 if which == "most" else limit]]


Answers = Mapping[results.GroupKey, Refinement]
"""What was proposed for each chosen group."""

_IN_VAIN: dict[RefinementStatus, str] = {
    "unsupported": "The proposed keywords belong neither to the topic nor to the group.",
    "unknown_terms": "No document contains any of the proposed keywords.",
}
# With all but the first, the model replied, but its words do not help.
_NO_FAILURE = ("ok", "repeated", "unknown_terms", "unsupported")


def shown(query: results.QueryRecord) -> str:
    """Return a query as results show it: its text, and the words that only boost."""
    return f"{query['text']} {query['boost']}".strip()


def after_refinement(
    state: State,
    context: Context,
    answers: Answers,
    new_topic: Sequence[str],
    *,
    is_spent: bool = False,
) -> Update:
    """Return what a round of refinement changes: the next queries, or why the loop ends.

    The loop ends if no group has a new keyword: with ``budget`` if the model failed and the budget
    is spent, with ``model_failed`` if the model failed for all groups, or else with
    ``no_improvement``.

    Args:
        state: The state of the run.
        context: The context of the run.
        answers: The refinements, with the keywords that may be used.
        new_topic: The keywords among them that belong to the topic of the query.
        is_spent: Whether the budget has no room for another question.
    """
    keywords = {name: dict(groups) for name, groups in state["keywords"].items()}
    for (name, group), answer in answers.items():
        if answer.status == "ok":
            groups = keywords.setdefault(name, {})
            kept = [word for word in groups.get(group, []) if word not in answer.drop]
            groups[group] = [*kept, *answer.keywords]
    words = {
        "keywords": keywords,
        "topic_words": list(dict.fromkeys([*state["topic_words"], *new_topic])),
    }
    refinements = [
        results.RefinedGroup(
            attribute=name,
            group=group,
            keywords=list(answer.keywords),
            dropped=list(answer.drop),
            reason=answer.reason,
            status=answer.status,
        ).model_dump()
        for (name, group), answer in answers.items()
    ]
    failed = [answer for answer in answers.values() if answer.status not in _NO_FAILURE]
    helped = any(answer.status == "ok" for answer in answers.values())
    # After some rounds, a loop normally ends without new keywords; in the first round we warn.
    reported = failed if helped or len(state["iterations"]) > 1 else answers.values()
    update: Update = {
        "refinements": refinements,
        "warnings": list(dict.fromkeys(answer.message for answer in reported)),
    }
    if refined_queries(cast("State", {**state, **update, **words}), context):
        return {**update, **words, "iteration": state["iteration"] + 1}
    reason = "model_failed" if failed and len(failed) == len(answers) else "no_improvement"
    return {**update, "stop_reason": "budget" if failed and is_spent else reason}


def refined_queries(state: State, context: Context) -> list[results.QueryRecord]:
    """Return the queries of a refined round; none if there is no new keyword.

    Each query keeps all terms of the original query. If a round refines for one group, there is one
    query with all keywords so far. If it refines for several groups, one query has the words of the
    topic, and each group that lacks exposure has a query with these words and its own.
    """
    ok = [record for record in state["refinements"] if record["status"] == "ok"]
    helped = [(record["attribute"], record["group"]) for record in ok]
    if not helped:
        return []
    topic = state["topic_words"]
    used = {
        (name, group): words
        for name, groups in state["keywords"].items()
        for group, words in groups.items()
        if words
    }

    def query(words: Sequence[str], key: tuple[str | None, str | None]) -> results.QueryRecord:
        text, distinct = state["query"], " ".join(dict.fromkeys(words))
        # With evidence, the words only boost; otherwise they alone can find documents, too.
        if not context.strategy.evidence:
            text, distinct = f"{text} {distinct}", ""
        return results.QueryRecord(text=text, boost=distinct, attribute=key[0], group=key[1])

    if context.strategy.groups == "most":
        # A person may have replaced the group's words with words for another group.
        sought = [key for key in (*helped, *used) if key in used]
        every = [word for words in used.values() for word in words]
        return [query(every, (sought or helped)[0])]
    lacking = [(name, group) for name, group in state["lacking"]]  # lists, if it was stored
    queries = [query([*topic, *used[key]], key) for key in lacking if key in helped and key in used]
    return [query(topic, (None, None)), *queries] if topic else queries


async def checked_refinements(rounds: Rounds, answers: Answers) -> tuple[Answers, list[str]]:
    """Keep the keywords that the documents have evidence for, if the method wants it.

    An engine that counts documents is asked once for all keywords. For other engines, we read the
    texts that were retrieved so far.

    Returns:
        The refinements with the remaining keywords, and the keywords that belong to the topic.
    """
    schema, topic, checked = rounds.engine.schema, list[str](), dict(answers)
    proposals = {
        key: judging.Proposal(Dimension.named(schema, key[0]), key[1], answer.keywords)
        for key, answer in answers.items()
        if answer.status == "ok"
    }
    if proposals and rounds.context.strategy.evidence:
        evidence = await _evidence(rounds, list(proposals.values()))
        for (key, proposal), gathered in zip(proposals.items(), evidence, strict=True):
            pairs = list(zip(proposal.keywords, gathered, strict=True))
            topic += [word for word, found in pairs if found.is_of_the_topic]
            kept = [word for word, found in pairs if found.is_of_the_topic or found.is_of_the_group]
            checked[key] = replace(answers[key], keywords=tuple(kept))
            if not kept:
                is_known = any(found.documents for _, found in pairs)
                status: RefinementStatus = "unsupported" if is_known else "unknown_terms"
                checked[key] = replace(checked[key], status=status, message=_IN_VAIN[status])
    return checked, topic


async def _evidence(
    rounds: Rounds, proposals: Sequence[judging.Proposal]
) -> list[list[judging.Evidence]]:
    """Return the evidence for each keyword of each proposal."""
    engine, state = rounds.engine, rounds.state
    original, query = state["rankings"][0], state["query"]
    if "document_frequencies" in engine.capabilities:
        # Where the engine cannot count the documents of each group, their shares of the documents
        # that the original query retrieved are the usual ones.
        counted = state.get("corpus_shares", {})
        usual = {
            name: np.array(counted[name]) if name in counted else decoded(members).mean(axis=0)
            for name, members in original["memberships"].items()
        }
        return await judging.gather_evidence(engine, query, original["ids"], proposals, usual)
    documents = await engine.documents(rounds.table.ids)
    texts = [f"{document.title}\n{document.text}" for document in documents]
    stems = await asyncio.to_thread(judging.stems_of, texts)
    read, table = [document.id for document in documents], rounds.table
    return [
        judging.evidence_from_texts(
            query,
            stems,
            table.memberships(proposal.dimension, read),
            proposal.dimension.groups.index(proposal.group),
            proposal.keywords,
        )
        for proposal in proposals
    ]
