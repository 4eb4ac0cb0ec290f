"""The steps of a search. Each reads the state, does one thing, and returns what changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from langgraph.errors import GraphBubbleUp
from langgraph.types import Overwrite

from fairqr.agents.models.replies import Usage, no_answer_within
from fairqr.agents.ranking.rankers import ItemRanker
from fairqr.agents.refiner import Refinement, RefinementRequest, Refiner, RoundRefiner
from fairqr.base.errors import InputError, ModelUnavailableError, QueryError, one_line
from fairqr.base.loops import run_together
from fairqr.base.telemetry import Kind, Span, span
from fairqr.graph.search.context import Context
from fairqr.graph.search.final_ranking import assemble, final_step
from fairqr.graph.search.rankers import ModelRanking, Reserve, expected_cost
from fairqr.graph.search.refinement import (
    after_refinement,
    checked_refinements,
    refined_queries,
    shown,
)
from fairqr.graph.search.rounds import (
    TARGET_DEPTH,
    RoundLists,
    best_iteration,
    better,
    budget_is_spent,
    decide_stop,
    estimate_target,
    for_the_loop,
    groups_to_ask_about,
    hits_of,
    plain_of,
    search_given,
    sought_of,
    table_of,
)
from fairqr.graph.search.state import GroupKey, IterationRecord, QueryRecord, RankingRecord, State
from fairqr.graph.steps import Update, begun, context_of, forgotten, record_outcome, traced
from fairqr.graph.usage import running_seconds, seconds_left
from fairqr.retrieval.engines.engine import Hits, Query, SearchEngine, require, searched
from fairqr.retrieval.fairness.dimension import Dimension, dimensions_of
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.fairness.table import coded
from fairqr.retrieval.fairness.target import can_be_weights
from fairqr.retrieval.texts.sendable import sendable

MAX_QUERY_CHARACTERS = 5000
MOSTLY_UNKNOWN = 0.5
SHORT = 20
"""Up to this many ranks, the fair step takes less than the 5 ms for which Python leaves the
interpreter to a thread. So a thread would hold others up as long, and cost more."""
GRACE = 0.25
"""Seconds after its deadline in which a refiner may still report its usage."""

RefinerFor = Callable[[Context], Refiner | None]
RankerFor = Callable[[Context], ItemRanker | None]


@dataclass(frozen=True)
class Nodes:
    """The steps over one engine.

    Attributes:
        engine: The engine with the documents.
        refiner_for: Returns the refiner for a run with this context, or None.
        ranker_for: Returns the ranker for a run with this context, or None.
        default: The context of runs that bring none of ours.
        reserve: Returns the largest cost of the steps after the search, which leaves them that part
            of the budget.
    """

    engine: SearchEngine
    refiner_for: RefinerFor
    ranker_for: RankerFor = lambda context: None
    default: Context = field(default_factory=Context)
    reserve: Reserve | None = None

    def context(self, given: object) -> Context:
        """See :func:`fairqr.graph.steps.context_of`."""
        return context_of(given, self.default)

    def _dimensions(self, context: Context) -> list[Dimension]:
        return dimensions_of(self.engine.schema, context.attributes, intersect=context.intersect)

    def _lists(self, state: State, context: Context) -> RoundLists:
        """Return the lists of the run's rounds.

        Raises:
            InputError: The run was resumed with another context.
        """
        dimensions, begun = self._dimensions(context), list(state["target"])
        if [dimension.name for dimension in dimensions] != begun:
            raise InputError(
                f"The run was started with the attributes {', '.join(begun)}; resume it with the "
                "same context."
            )
        return RoundLists(dimensions, state, context, self.engine)

    @traced
    async def begin(self, state: State, context: Context, opened: Span) -> Update:
        """Check the query and the context, run the query, and set the target."""
        if not isinstance(state.get("query"), str):
            raise QueryError("There is no query; give the graph {'query': 'what to search for'}.")
        # Half a surrogate pair is not a character, and no client could send it.
        query = sendable(state["query"]).strip()
        opened.content("fairqr.query", query)
        if not query:
            raise QueryError("The query is empty; write what to search for.")
        if len(query) > MAX_QUERY_CHARACTERS:
            raise QueryError(
                f"The query has {len(query)} characters; shorten it to at most "
                f"{MAX_QUERY_CHARACTERS}."
            )
        attributes = [dimension.attribute for dimension in self._dimensions(context)]
        if context.target is not None:
            context.target.check(attributes)
        warnings = [
            f"No population is stated for '{name}', so its target is the share of each group in "
            "what the query retrieves; state one in the source, or choose a target."
            for name in context.effective_target.without_population(attributes)
        ]
        if context.rounds:
            require(self.engine, "new_queries", "Refining the query", "set max_iterations to 0")
            if context.strategy.rerank == "original_query":
                require(self.engine, "rescore", "The order 'original_query'")
            if (refiner := self.refiner_for(context)) is None:
                raise ModelUnavailableError(
                    "No model is given to refine with; name one, or set ask to never."
                )
            await refiner.start()
        # Find wrong options and missing weights now.
        await final_step(context)
        if (ranker := self.ranker_for(context)) is not None:
            await ranker.start()
        original = QueryRecord(text=query, boost="", attribute=None, group=None)
        plain = await self._plain(state, original, context, warnings)
        opened.set("fairqr.target", plain["target"])
        return {
            # A thread of a checkpointer may contain an earlier search.
            **forgotten(state, "result"),
            "query": query,
            "seconds": Overwrite(0.0),
            "iteration": 0,
            "pending": [original],
            **begun(state, rescored={}, estimated={}, iterations=[]),
            "first_fair": None,
            "best_fair": None,
            "keywords": {},
            "topic_words": [],
            "refinements": [],
            "usage": asdict(Usage()),
            "stop_reason": None,
            "cost": None,
            **plain,
        }

    async def _plain(
        self, state: State, original: QueryRecord, context: Context, warned: list[str]
    ) -> Update:
        """Run the original query, and set the target by what it retrieves."""
        dimensions = self._dimensions(context)
        n = max(context.strategy.depth or context.k, TARGET_DEPTH)
        records, reported, (*_, last) = await self._retrieved([original], n, context, 0)
        size = last.total if "document_frequencies" in self.engine.capabilities else None
        if size is not None and context.k > size:
            raise InputError(
                f"k is {context.k}, but '{self.engine.name}' has only {size} documents; lower k."
            )
        ranking, warnings = plain_of(records[0]), [*warned, *reported]
        if not ranking.ids:
            warnings.append(
                f"No document of '{self.engine.name}' matches the query; try other words."
            )
            return {
                **begun(state, rankings=records, warnings=warnings),
                "target": {d.name: dict.fromkeys(d.groups, 0.0) for d in dimensions},
            }
        shares = await self._corpus_shares(context)
        target = estimate_target(table_of(records), dimensions, ranking, context, shares)
        if context.effective_target.parts.get("retrieved") and not can_be_weights(ranking.scores):
            warnings.append(
                "The engine's scores cannot be used as weights, so the retrieved documents count "
                "by 1/rank in the target."
            )
        ranker, query = self.ranker_for(context), original["text"]
        cost = await expected_cost(self.engine, ranker, self.reserve, query, ranking.ids, context)
        return {
            **begun(state, rankings=records, warnings=warnings),
            "corpus_shares": {name: shared.tolist() for name, shared in shares.items()},
            "target": target,
            "cost": cost,
        }

    @traced
    async def retrieve(self, state: State, context: Context, opened: Span) -> Update:
        """Run the refined queries of a round."""
        opened.set("fairqr.iteration", state["iteration"])
        # The queries are made here, so that a person may change the keywords before.
        pending = refined_queries(state, context) or [state["rankings"][0]["query"]]
        depth = context.strategy.depth or context.k
        records, reported, found = await self._retrieved(
            pending, depth, context, state["iteration"]
        )
        unboosted = {id_: score for hits in found for id_, score in hits.unboosted.items()}
        return {
            **await self._given(state, context, records, unboosted),
            "rankings": records,
            "pending": pending,
            "warnings": [warning for warning in reported if warning not in state["warnings"]],
        }

    async def _retrieved(
        self, pending: Sequence[QueryRecord], n: int, context: Context, iteration: int
    ) -> tuple[list[RankingRecord], list[str], list[Hits]]:
        """Run queries.

        Returns:
            The record of each query, the warnings, and what was found. With the original query, the
            last of these counts all documents if the engine can.
        """
        engine = self.engine
        factors = [one for dimension in self._dimensions(context) for one in dimension.factors]
        attributes = tuple(dict.fromkeys(factor.name for factor in factors))
        queries = [Query(q["text"], n, boost=q["boost"]) for q in pending]
        asked = {"gen_ai.operation.name": "retrieval", "gen_ai.data_source.id": engine.name}
        counted = not iteration and "document_frequencies" in engine.capabilities
        kind: Kind = "internal" if engine.in_process else "client"
        with span(f"retrieval {engine.name}", kind=kind, **asked) as search:
            search.set("gen_ai.retrieval.top_k", n)
            search.content("gen_ai.retrieval.query.text", [shown(query) for query in pending])
            found = await searched(engine, [*queries, Query("", 0)] if counted else queries)
            search.set("fairqr.documents", [len(hits) for hits in found[: len(queries)]])
        are_read = not iteration or context.strategy.rerank in ("none", "original_query")
        records = [
            RankingRecord(
                iteration=iteration,
                query=query,
                ids=hits.ids,
                own=len(hits) if hits.own is None else hits.own,
                scores=hits.scores if are_read else [],
                relevance=None if hits.relevance is None else hits.relevance.tolist(),
                memberships=coded(hits.memberships, attributes),
            )
            for query, hits in zip(pending, found[: len(pending)], strict=True)
        ]
        reported = dict.fromkeys(warning for hits in found for warning in hits.warnings)
        return records, list(reported), found

    async def _given(
        self,
        state: State,
        context: Context,
        found: Sequence[RankingRecord],
        unboosted: Mapping[str, float],
    ) -> dict[str, dict[str, float]]:
        """Return what the original query says of the documents that refined queries sought.

        That is their scores, and how likely they are relevant if the engine estimates that. An
        engine may estimate a document better when asked about it directly, even if the original
        query found it far down. ``unboosted`` are scores that came with the refined rankings.
        """
        scores: dict[str, float] = {}
        chances: dict[str, float] = {}
        can = self.engine.capabilities
        by_relevance = context.strategy.rerank == "relevance"
        if not by_relevance or not can & {"rescore", "relevance"}:
            return {}
        first, *earlier = state["rankings"]
        known = set() if "relevance" in can else set(first["ids"])
        dimensions = self._dimensions(context)
        # What earlier rounds asked about may have got no answer, and would get none now.
        known.update(id_ for record in earlier for id_ in sought_of(record, dimensions))
        sought = [id_ for record in found for id_ in sought_of(record, dimensions)]
        ids = list(dict.fromkeys(id_ for id_ in sought if id_ not in known))
        if "relevance" not in can:
            scores = {id_: unboosted[id_] for id_ in ids if id_ in unboosted}
            ids = [id_ for id_ in ids if id_ not in unboosted]
        for hits in await search_given(self.engine, state["query"], ids) if ids else ():
            if "rescore" in can:
                scores.update(zip(hits.ids, hits.scores, strict=True))
            if hits.relevance is not None:
                chances.update(zip(hits.ids, hits.relevance.tolist(), strict=True))
        return {"rescored": scores, "estimated": chances}

    async def _corpus_shares(self, context: Context) -> Mapping[str, FloatArray]:
        """Return the groups' shares of all documents, if the target or the keywords need them."""
        evidence = context.rounds and context.strategy.evidence
        if not (evidence or context.effective_target.parts.get("corpus")):
            return {}
        if "corpus_shares" not in self.engine.capabilities:
            return {}
        return await self.engine.corpus_shares()

    @traced
    async def measure(self, state: State, context: Context, opened: Span) -> Update:
        """Measure the exposure of the round's list, and decide whether to stop."""
        number = state["iteration"]
        lists = self._lists(state, context)
        found = lists.retrieved(number) if number else lists.plain
        measured = lists.measured(found.ids)
        update: Update = {}
        objective = None
        if context.strategy.final_step == "fair" and lists.plain.ids:
            if context.k > SHORT or context.pursued:
                fair = await asyncio.to_thread(lists.fair_list, number)
            else:
                fair = lists.fair_list(number)
            objective = fair["objective"]
            update = {"best_fair": better(state.get("best_fair"), fair)}
            if number == 0:
                update["first_fair"] = fair
            opened.set("fairqr.objective", objective["value"])
        record = IterationRecord(
            index=number,
            queries=[shown(query) for query in state["pending"]],
            refinements=state["refinements"],
            ids=list(found.ids[: context.k]),
            objective=objective,
            **measured,
        )
        reason = decide_stop(
            [*state.get("iterations", []), record],
            for_the_loop(context, state),
            Usage(**state["usage"]),
            running_seconds(),
            by_vectors="vectors" in self.engine.capabilities,
        )
        if not lists.plain.ids:
            reason = "no_hits"
        exposure = measured["exposure"]
        _record_divergence(opened, measured["divergence"], exposure, state["target"])
        opened.set("fairqr.exposure", exposure)
        opened.set("fairqr.iteration", number)
        if reason:
            opened.set("fairqr.stop_reason", reason)
        warnings = []
        if number == 0:
            warnings = [
                f"{share:.0%} of the exposure of the plain retrieval went to documents without a "
                f"label for '{name}'; only the rest is measured."
                for name, share in measured["unknown"].items()
                if share > MOSTLY_UNKNOWN
            ]
        return update | {"iterations": [record], "stop_reason": reason, "warnings": warnings}

    @traced
    async def choose_group(self, state: State, context: Context, opened: Span) -> Update:
        """Choose the groups to ask about, and those of them that lack exposure."""
        best = state.get("best_fair") or state["iterations"][best_iteration(state["iterations"])]
        exposure = best["exposure"]
        limit = context.max_groups
        calls = for_the_loop(context, state).budget.model_calls
        if calls is not None:
            limit = min(limit, calls - state["usage"]["model_calls"])
        chosen = groups_to_ask_about(state["target"], exposure, context.strategy.groups, limit)
        lacking = groups_to_ask_about(state["target"], exposure, "lacking", len(chosen))
        opened.set("fairqr.groups", [f"{name}={group}" for name, group in lacking])
        return {"chosen": chosen, "lacking": lacking}

    @traced
    async def refine(self, state: State, context: Context, opened: Span) -> Update:
        """Ask for keywords for all chosen groups at once, and check them."""
        refiner = self.refiner_for(context)
        if refiner is None:  # begin() refuses this
            raise ModelUnavailableError("No model is given to refine with.")
        deadline = seconds_left(context)
        budget = for_the_loop(context, state).budget
        calls = budget.model_calls
        left = None if calls is None else calls - state["usage"]["model_calls"]

        requests = [
            RefinementRequest(
                query=state["query"],
                attribute=attribute,
                group=group,
                keywords=state["keywords"].get(attribute, {}).get(group, []),
                seed=context.seed,
                temperature=context.temperature,
                may_ask_again=left is None or left >= 2 * len(state["chosen"]),
            )
            for attribute, group in state["chosen"]
        ]
        before, ended = Usage(**state["usage"]), list[Refinement]()
        try:
            if isinstance(refiner, RoundRefiner):
                answers = await refiner.refine_all(requests, hits_of(state["rankings"][0]))
            else:
                answers = await run_together(
                    [_refined(refiner, request, deadline, ended) for request in requests]
                )
        except GraphBubbleUp:
            raise  # it asks a person
        except Exception as error:
            # Our refiners return a status instead. The other groups of the round are cancelled.
            logging.getLogger(__name__).exception("The refiner %s failed", refiner.name)
            failed = f"The refiner {refiner.name} failed: {one_line(error, 300)}"
            opened.set("error.type", type(error).__name__)
            return {
                "refinements": [],
                "usage": asdict(sum((answer.usage for answer in ended), before)),
                "warnings": [failed],
                "stop_reason": "model_failed",
            }
        usage = sum((answer.usage for answer in answers), before)
        # A stored state has lists instead of tuples.
        chosen: list[GroupKey] = [(name, group) for name, group in state["chosen"]]
        keyed = list(zip(chosen, answers, strict=True))
        checked, topic = await checked_refinements(self.engine, keyed, state, context)
        statuses = []
        for (name, group), refinement in zip(chosen, checked, strict=True):
            opened.content(f"fairqr.keywords.{name}.{group}", refinement.keywords)
            statuses.append(f"{name}={group} {refinement.status}")
        opened.set("fairqr.refinements", statuses)
        spent = budget_is_spent(budget, usage, running_seconds())
        return after_refinement(state, context, checked, topic, usage, budget_is_spent=spent)

    @traced
    async def rerank(self, state: State, context: Context, opened: Span) -> Update:
        """Re-rank by the original query, and make the result."""
        ranker = self.ranker_for(context)
        by_model = ModelRanking(self.engine, ranker, context, state) if ranker else None
        result = await assemble(
            self.engine,
            self._lists(state, context),
            self.refiner_for(context) if context.rounds else None,
            by_model,
        )
        models = {"refiner": result.model, "ranker": result.ranker}
        record_outcome(opened, result.usage, [result.prompt], **models)
        opened.set("fairqr.corpus", result.corpus)
        opened.set("fairqr.best_iteration", result.best_iteration)
        opened.set("fairqr.stop_reason", result.stop_reason)
        _record_divergence(opened, result.divergence, result.exposure, result.target)
        if result.baseline.divergence is not None:
            opened.set("fairqr.baseline_divergence", result.baseline.divergence)
        update: Update = {"result": result.model_dump(mode="json")}
        if by_model is not None:
            update["usage"] = asdict(by_model.usage)
        return update


async def _refined(
    refiner: Refiner, request: RefinementRequest, deadline: float | None, ended: list[Refinement]
) -> Refinement:
    """Ask about one group, and add the answer to ``ended``.

    A refiner that ignores the deadline is cancelled soon after it.
    """
    limit = asyncio.timeout(None if deadline is None else deadline + GRACE)
    with span("fairqr.refine_group") as opened:
        opened.set("fairqr.attribute", request.attribute)
        opened.set("fairqr.group", request.group)
        try:
            async with limit:
                answer = await refiner.refine(request, deadline)
        except TimeoutError:
            if not limit.expired():
                raise
            message = no_answer_within(refiner.name, deadline or 0)
            answer = Refinement("timeout", message=message)
        ended.append(answer)
        return answer


def _record_divergence(
    step: Span,
    divergence: float | None,
    exposure: Mapping[str, Mapping[str, float]],
    target: Mapping[str, Mapping[str, float]],
) -> None:
    """Record in a step's span how far its list is from the target, in nats."""
    worst = [
        f"{name}={group} has {exposure[name][group]:.1%} of the exposure; "
        f"its target is {target[name][group]:.1%}."
        for name, group in groups_to_ask_about(target, exposure, "most", 1)
    ]
    step.evaluation("divergence", divergence, explanation="".join(worst) or None)
