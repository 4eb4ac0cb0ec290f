"""The steps of a search. Each reads the state, does one thing, and returns what changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

from langgraph.errors import GraphBubbleUp
from langgraph.graph import START
from langgraph.graph.state import CompiledStateGraph, StateGraph
from langgraph.types import Checkpointer

from fairqr.agents.models.chat import ChatModel
from fairqr.agents.models.recorded import RecordedModel
from fairqr.agents.models.replies import Usage, no_answer_within
from fairqr.agents.refiners.cleaning import take_in_turn
from fairqr.agents.refiners.language_model import LLMRefiner
from fairqr.agents.refiners.refiner import GroupRequest, Refinement, Refiner, RoundRefiner
from fairqr.base.errors import ModelUnavailableError, QueryError, one_line
from fairqr.base.loops import run_together
from fairqr.base.telemetry import Kind, current_span, span
from fairqr.graph import steps
from fairqr.graph.search import rankers as ranking
from fairqr.graph.search import result as results
from fairqr.graph.search import rounds as deciding
from fairqr.graph.search.context import Context
from fairqr.graph.search.final_ranking import assemble, final_step, search_given
from fairqr.graph.search.result import Round, Shares, State
from fairqr.graph.search.rounds import Rounds, groups_to_ask_about
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.engines import engine as engines
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.fairness.table import coded
from fairqr.retrieval.fairness.target import can_be_weights
from fairqr.retrieval.texts.words import sendable

# Each round is two nodes, of at most 100 rounds; anything beyond is a fault.
RECURSION_LIMIT = 2 * 100 + 20

MAX_QUERY_CHARACTERS = 5000
MOSTLY_UNKNOWN = 0.5
SHORT = 20
"""Up to this many ranks, the fair step takes less than the 5 ms for which Python leaves the
interpreter to a thread. So a thread would hold others up as long, and cost more."""
GRACE = 0.25
"""Seconds after its deadline in which a refiner may still report its usage."""


@dataclass(frozen=True, kw_only=True)
class SearchNodes(steps.Nodes[Context]):
    """The steps that search.

    Attributes:
        model: Refines queries; optional.
        rankers: Return the ranker for a run.
    """

    kind = Context
    model: ranking.Model | None
    rankers: ranking.Rankers

    def _refiner(self, context: Context) -> Refiner | None:
        """Return the refiner for a run with this context, or None."""
        if isinstance(self.model, ChatModel | RecordedModel):
            prompt = self.rankers.prompts.get("refine", context.prompts.get("refine"))
            return LLMRefiner(self.model, prompt)
        if self.model is None or not (context.rounds or hasattr(self.model, "refine")):
            return None
        ranking.require_refines(self.model)
        return cast("Refiner", self.model)

    @steps.traced
    async def begin(self, state: State, context: Context) -> steps.Update:
        """Check the query and the context, run the query, and set the target."""
        query, engine = _checked(state.get("query")), self.engine
        current_span().content("fairqr.query", query)
        fresh = cast("State", {"query": query, "iteration": 0, "rankings": []})
        rounds = Rounds(engine, context, fresh)
        attributes = [dimension.attribute for dimension in rounds.dimensions]
        if context.target is not None:
            context.target.check(attributes)
        warnings = [
            f"No population is stated for '{name}', so its target is the share of each group in "
            "what the query retrieves; state one in the source, or choose a target."
            for name in context.effective_target.without_population(attributes)
        ]
        if context.rounds:
            engines.require(engine, "new_queries", "Refining the query", "set max_iterations to 0")
            if context.strategy.rerank == "original_query":
                engines.require(engine, "rescore", "The order 'original_query'")
            if (refiner := self._refiner(context)) is None:
                raise ModelUnavailableError(
                    "No model is given to refine with; name one, or set ask to never."
                )
            await refiner.start()
        # Find wrong options and missing weights now.
        await final_step(context)
        if (ranker := self.rankers.ranker_for(context)) is not None:
            await ranker.start()
        parts, evidence = context.effective_target.parts, context.strategy.evidence
        needs_shares = parts.get("corpus") or (context.rounds and evidence)
        original = results.QueryRecord(text=query, boost="", attribute=None, group=None)
        n = max(context.strategy.depth or context.k, deciding.TARGET_DEPTH)
        records, reported, _ = await self._retrieved(rounds, [original], n)
        fresh["rankings"] = records
        warnings += reported
        target: Shares = {it.name: dict.fromkeys(it.groups, 0.0) for it in rounds.dimensions}
        shares: Mapping[str, FloatArray] = {}
        if not (found := rounds.own_ranking).ids:
            warnings.append(f"No document of '{engine.name}' matches the query; try other words.")
        else:
            if needs_shares and "corpus_shares" in engine.capabilities:
                shares = await engine.corpus_shares()
            target = deciding.estimate_target(
                rounds.table, rounds.dimensions, found, context, shares
            )
            if parts.get("retrieved") and not can_be_weights(found.scores):
                warnings.append(
                    "The engine's scores cannot be used as weights, so the retrieved documents "
                    "count by 1/rank in the target."
                )
        cost = await ranking.expected_cost(rounds, ranker) if ranker and found.ids else None
        steps.record(target=target)
        return {
            **fresh,
            "warnings": warnings,
            "iterations": [],
            "first_fair": None,
            "best_fair": None,
            "corpus_shares": {name: shared.tolist() for name, shared in shares.items()},
            "target": target,
            "keywords": {},
            "topic_words": [],
            "refinements": [],
            "usage": asdict(Usage()),
            "stop_reason": None,
            "cost": cost and cost.model_dump(),
        }

    @steps.traced
    async def retrieve(self, state: State, context: Context) -> steps.Update:
        """Run the refined queries of a round."""
        steps.record(iteration=state["iteration"])
        # The queries are made here, so that a person may change the keywords before.
        pending = deciding.refined_queries(state, context) or [state["rankings"][0]["query"]]
        rounds, depth = Rounds(self.engine, context, state), context.strategy.depth or context.k
        records, reported, found = await self._retrieved(rounds, pending, depth)
        unboosted = {id_: score for hits in found for id_, score in hits.unboosted.items()}
        records[0] |= await self._given(rounds, records, unboosted)
        return {
            "rankings": records,
            "warnings": [warning for warning in reported if warning not in state["warnings"]],
        }

    async def _retrieved(
        self, rounds: Rounds, pending: Sequence[results.QueryRecord], n: int
    ) -> tuple[list[results.RankingRecord], list[str], list[engines.Hits]]:
        """Run queries, and return the record of each, the warnings, and what was found."""
        engine, iteration = self.engine, rounds.state["iteration"]
        attributes = {factor.name for it in rounds.dimensions for factor in it.factors}
        queries = [engines.Query(q["text"], n, boost=q["boost"]) for q in pending]
        asked = {"gen_ai.operation.name": "retrieval", "gen_ai.data_source.id": engine.name}
        kind: Kind = "internal" if engine.in_process else "client"
        with span(f"retrieval {engine.name}", kind=kind, **asked) as search:
            search.set("gen_ai.retrieval.top_k", n)
            search.content("gen_ai.retrieval.query.text", list(map(deciding.shown, pending)))
            found = await engines.searched(engine, queries)
            search.set("fairqr.documents", [len(hits) for hits in found])
        are_read = not iteration or rounds.context.strategy.rerank in ("none", "original_query")
        records = [
            results.RankingRecord(
                iteration=iteration,
                query=query,
                ids=hits.ids,
                own=len(hits) if hits.own is None else hits.own,
                scores=hits.scores if are_read else [],
                relevance=None if hits.relevance is None else hits.relevance.tolist(),
                memberships=coded(hits.memberships, attributes),
                rescored={},
                estimated={},
            )
            for query, hits in zip(pending, found, strict=True)
        ]
        reported = dict.fromkeys(warning for hits in found for warning in hits.warnings)
        return records, list(reported), found

    async def _given(
        self, rounds: Rounds, found: Sequence[results.RankingRecord], unboosted: Mapping[str, float]
    ) -> Any:
        """Return what the original query says of the documents that refined queries sought.

        That is their scores, and how likely they are relevant if the engine estimates that. An
        engine may estimate a document better when asked about it directly, even if the original
        query found it far down. ``unboosted`` are scores that came with the refined rankings.
        """
        can, state = self.engine.capabilities, rounds.state
        if rounds.context.strategy.rerank != "relevance" or not can & {"rescore", "relevance"}:
            return {}
        first, *earlier = state["rankings"]
        state = {**state, "rankings": [first, *earlier, *found]}
        rounds = Rounds(self.engine, rounds.context, state)
        # What earlier rounds asked about may have got no answer, and would get none now.
        known = {id_ for record in earlier for id_ in rounds.sought(record)}
        if "relevance" not in can:
            known.update(first["ids"])
        sought = dict.fromkeys(id_ for record in found for id_ in rounds.sought(record))
        ids = [id_ for id_ in sought if id_ not in known]
        scores, chances = dict[str, float](), dict[str, float]()
        if "relevance" not in can:
            scores = {id_: unboosted[id_] for id_ in ids if id_ in unboosted}
            ids = [id_ for id_ in ids if id_ not in unboosted]
        for hits in await search_given(self.engine, state["query"], ids) if ids else ():
            if "rescore" in can:
                scores.update(zip(hits.ids, hits.scores, strict=True))
            if hits.relevance is not None:
                chances.update(zip(hits.ids, hits.relevance.tolist(), strict=True))
        return {"rescored": scores, "estimated": chances}

    async def measure_and_refine(self, state: State, context: Context) -> steps.Update:
        """Measure a round; if there will be another one, ask for keywords for the groups it needs.

        That is one node: less is written and read between the steps of a round.
        """
        update = await self.measure(state, context)
        if update["stop_reason"]:
            return update
        iterations = [*state["iterations"], *update["iterations"]]
        measured: Any = {**state, **update, "iterations": iterations}
        chosen = await self.choose_group(measured, context)
        refined = await self.refine({**measured, **chosen}, context)
        warnings = [*update["warnings"], *refined["warnings"]]
        return {**update, **chosen, **refined, "warnings": warnings}

    @steps.traced
    async def measure(self, state: State, context: Context) -> steps.Update:
        """Measure the exposure of the round's list, and decide whether to stop."""
        number, rounds = state["iteration"], Rounds(self.engine, context, state)
        plain, update, objective, warnings = rounds.plain, steps.Update(), None, []
        found, rankings = rounds.retrieved(number) if number else plain, state["rankings"]
        measured = rounds.measured(found.ids)
        if context.strategy.final_step == "fair" and plain.ids:
            make, slow = rounds.fair_list, context.k > SHORT or context.pursued
            fair = await asyncio.to_thread(make, number) if slow else make(number)
            objective, best = fair.objective, rounds.best_fair or fair
            if fair.objective.preference < best.objective.preference:
                best = fair
            update = {"best_fair": best.model_dump()}
            if number == 0:
                update["first_fair"] = fair.model_dump()
        record = Round(
            **dict(measured),
            index=number,
            queries=[deciding.shown(it["query"]) for it in rankings if it["iteration"] == number],
            refinements=state["refinements"],
            ids=found.ids[: context.k],
            objective=objective,
        )
        reason: results.StopReason | None = "no_hits"
        if plain.ids:
            reason = deciding.decide_stop(
                [*rounds.measured_rounds, record],
                context,
                is_spent=rounds.is_spent(rounds.usage),
                by_vectors="vectors" in self.engine.capabilities,
            )
        current_span().evaluation("divergence", measured.divergence)
        steps.record(iteration=number, exposure=measured.exposure, stop_reason=reason)
        steps.record(objective=objective and objective.value)
        if number == 0:
            warnings = [
                f"{share:.0%} of the exposure of the plain retrieval went to documents without a "
                f"label for '{name}'; only the rest is measured."
                for name, share in measured.unknown.items()
                if share > MOSTLY_UNKNOWN
            ]
        iterations = [record.model_dump()]
        return update | {"iterations": iterations, "stop_reason": reason, "warnings": warnings}

    @steps.traced
    async def choose_group(self, state: State, context: Context) -> steps.Update:
        """Choose the groups to ask about, and those of them that lack exposure."""
        rounds, target = Rounds(self.engine, context, state), state["target"]
        best = rounds.best_fair or deciding.best_of(rounds.measured_rounds)
        exposure, limit = best.exposure, context.max_groups
        if (left := rounds.calls_left) is not None:
            limit = min(limit, left)
        chosen = groups_to_ask_about(target, exposure, context.strategy.groups, limit)
        lacking = groups_to_ask_about(target, exposure, "lacking", len(chosen))
        steps.record(groups=[f"{name}={group}" for name, group in lacking])
        return {"chosen": chosen, "lacking": lacking}

    @steps.traced
    async def refine(self, state: State, context: Context) -> steps.Update:
        """Ask for keywords for all chosen groups at once, and check them."""
        refiner = cast("Refiner", self._refiner(context))
        rounds, deadline = Rounds(self.engine, context, state), steps.seconds_left(context)
        left = rounds.calls_left
        # A stored state has lists instead of tuples.
        chosen = [(name, group) for name, group in state["chosen"]]
        requests = [
            GroupRequest(
                query=state["query"],
                attribute=name,
                group=group,
                keywords=state["keywords"].get(name, {}).get(group, []),
                seed=context.seed,
                temperature=context.temperature,
                may_ask_again=left is None or left >= 2 * len(chosen),
            )
            for name, group in chosen
        ]
        ended = list[Refinement]()
        try:
            if isinstance(refiner, RoundRefiner):
                ended = await refiner.refine_all(requests, deciding.hits_of(state["rankings"][0]))
                answers = ended
            else:
                answers = await run_together(
                    [_refined(refiner, request, deadline, ended) for request in requests]
                )
        except GraphBubbleUp:
            raise  # it asks a person
        except Exception as error:
            # Our refiners return a status instead. The other groups of the round are cancelled.
            logging.getLogger(__name__).exception("The refiner %s failed", refiner.name)
            current_span().set("error.type", type(error).__name__)
            return {
                "refinements": [],
                "usage": asdict(sum((answer.usage for answer in ended), rounds.usage)),
                "warnings": [f"The refiner {refiner.name} failed: {one_line(error, 300)}"],
                "stop_reason": "model_failed",
            }
        usage = sum((answer.usage for answer in answers), rounds.usage)
        proposed = dict(zip(chosen, map(take_in_turn, answers), strict=True))
        checked, topic = await deciding.checked_refinements(rounds, proposed)
        for (name, group), refinement in checked.items():
            current_span().content(f"fairqr.keywords.{name}.{group}", refinement.keywords)
        statuses = [f"{name}={group} {it.status}" for (name, group), it in checked.items()]
        steps.record(refinements=statuses)
        spent = rounds.is_spent(usage)
        update = deciding.after_refinement(state, context, checked, topic, is_spent=spent)
        return {"usage": asdict(usage), **update}

    @steps.traced
    async def rerank(self, state: State, context: Context) -> steps.Update:
        """Re-rank by the original query, and make the result."""
        rounds, ranker = Rounds(self.engine, context, state), self.rankers.ranker_for(context)
        refiner = self._refiner(context) if context.rounds else None
        result = await assemble(rounds, refiner, ranker)
        models = {"refiner": result.model, "ranker": result.ranker}
        steps.record_outcome(result.usage, [result.prompt], **models)
        steps.record(best_iteration=result.best_iteration)
        current_span().evaluation("divergence", result.divergence)
        update: steps.Update = {"result": result.model_dump(mode="json")}
        return update | {"usage": asdict(steps.usage_of(update["result"]))}


def _checked(query: object) -> str:
    """Return the query without white space around it.

    Raises:
        QueryError: There is none, or it is too long.
    """
    # Half a surrogate pair is not a character, and no client could send it.
    query = sendable(query).strip() if isinstance(query, str) else ""
    if not query:
        raise QueryError("The query is empty; write what to search for.")
    if len(query) > MAX_QUERY_CHARACTERS:
        raise QueryError(
            f"The query has {len(query)} characters; shorten it to at most {MAX_QUERY_CHARACTERS}."
        )
    return query


async def _refined(
    refiner: Refiner, request: GroupRequest, deadline: float | None, ended: list[Refinement]
) -> Refinement:
    """Ask about one group, and add the answer to ``ended``.

    A refiner that ignores the deadline is cancelled soon after it.
    """
    limit = asyncio.timeout(None if deadline is None else deadline + GRACE)
    with span("fairqr.refine_group"):
        steps.record(attribute=request.attribute, group=request.group)
        try:
            async with limit:
                answer = await refiner.refine(request, deadline)
        except TimeoutError:
            if not limit.expired():
                raise
            answer = Refinement("timeout", message=no_answer_within(refiner.name, deadline or 0))
        ended.append(answer)
        return answer


def build_search_graph(
    engine: engines.SearchEngine,
    model: ranking.GivenModel | None = None,
    *,
    context: Context | None = None,
    ranker: ranking.GivenRanker | None = None,
    prompts: PromptLibrary | None = None,
    checkpointer: Checkpointer = None,
) -> CompiledStateGraph[State, Context, results.InputState, results.OutputState]:
    """Build the graph that searches fairly.

    ``begin → measure → [over: rerank | retrieve → measure]``, where ``measure`` also asks for the
    keywords that ``retrieve`` then searches with. To look at these first, interrupt before
    ``retrieve``.

    Call it with ``await graph.ainvoke({"query": "…"}, context=Context(…))``; the state that comes
    back has ``result``, the object of :class:`fairqr.graph.search.result.SearchResult`. To add or
    replace nodes, change its ``builder`` and compile that.

    Args:
        engine: The search engine.
        model: Refines queries: a chat model of LangChain's, the name of a model, or a refiner of
            your own. It may be left out for methods that do not refine, and with
            ``max_iterations=0``. A model that only ranks, such as ``causal:…``, cannot refine.
        context: The context of runs that bring none of ours, such as runs inside a parent graph
            with a context of its own.
        ranker: Re-ranks if the context asks for it: a language model or its name, which works as
            the context says; or a ranker of your own. Defaults to the model.
        prompts: The library of prompts; defaults to the shipped prompts and yours.
        checkpointer: A checkpointer of LangGraph's. With ``durability="exit"``, each run writes its
            state only once.
    """
    engines.require_engine(engine)
    model = ranking.model_of(model, engine)
    rankers = ranking.Rankers.of(ranker, model, prompts)
    default = Context() if context is None else context
    nodes = SearchNodes(engine=engine, default=default, model=model, rankers=rankers)
    graph = StateGraph(
        State,
        context_schema=Context,
        input_schema=results.InputState,
        output_schema=results.OutputState,
    )
    graph.add_node("begin", nodes.node(nodes.begin, grows=("rankings", "warnings", "iterations")))
    graph.add_node("measure", nodes.node(nodes.measure_and_refine, "measure"))
    graph.add_node("retrieve", nodes.node(nodes.retrieve))
    graph.add_node("rerank", nodes.node(nodes.rerank))
    graph.add_edge(START, "begin")
    graph.add_edge("begin", "measure")
    graph.add_edge("retrieve", "measure")
    graph.add_conditional_edges("measure", steps.Node(after_measure), ["retrieve", "rerank"])
    compiled = graph.compile(checkpointer=checkpointer, name="fair_search")
    graph.compiled = False  # whoever adds nodes to it compiles it again
    return compiled.with_config(recursion_limit=RECURSION_LIMIT)


async def after_measure(state: State) -> str:
    """Return the node that follows: the next round's, unless the loop is over."""
    return "rerank" if state["stop_reason"] else "retrieve"
