"""The steps of the loop. Each reads the state, does one thing, and returns what changed."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import time
from collections.abc import Awaitable, Callable
from typing import Any

from langgraph.runtime import Runtime

from fairqr.agents.refiner import Refinement, RefinementRequest, Refiner
from fairqr.agents.replies import Usage
from fairqr.errors import InputError, ModelUnavailableError, QueryError
from fairqr.graph.assembly import assemble
from fairqr.graph.context import Context
from fairqr.graph.decisions import best_iteration, decide_stop, under_represented
from fairqr.graph.lists import measured_list
from fairqr.graph.measurement import TARGET_DEPTH, estimate_target, measure
from fairqr.graph.state import (
    GroupKey,
    IterationRecord,
    QueryRecord,
    RankingRecord,
    RefinementRecord,
    State,
    ranking_of,
    usage_record,
)
from fairqr.retrieval.dimension import Dimension, dimensions_of
from fairqr.retrieval.index import Index
from fairqr.telemetry import current_span, span

__all__ = ["Nodes"]

MAX_QUERY_CHARACTERS = 5000
MOSTLY_UNKNOWN = 0.5

Update = dict[str, Any]
RefinerFor = Callable[[Context], Refiner | None]
Node = Callable[["Nodes", State, Runtime[Context]], Awaitable[Update]]


def traced(node: Node) -> Node:
    """Time a node in a span of its name."""

    @functools.wraps(node)
    async def timed(self: Nodes, state: State, runtime: Runtime[Context]) -> Update:
        with span(f"fairqr.{node.__name__}"):
            return await node(self, state, runtime)

    return timed


def context_of(runtime: Runtime[Context]) -> Context:
    """Return the context of a run; LangGraph gives None where the caller gave none."""
    return runtime.context or Context()


class Nodes:
    """The steps over one index.

    Args:
        index: Where the documents are.
        refiner_for: Returns what refines queries in a run with this context, or None.
    """

    def __init__(self, index: Index, refiner_for: RefinerFor) -> None:
        self._index = index
        self._refiner_for = refiner_for

    def _dimensions(self, context: Context) -> list[Dimension]:
        return dimensions_of(self._index.schema, context.attributes, intersect=context.intersect)

    @traced
    async def begin(self, state: State, runtime: Runtime[Context]) -> Update:
        """Check what is asked, before anything is spent."""
        context, opened = context_of(runtime), current_span()
        query = state["query"].strip()
        opened.content("fairqr.query", query)
        if not query:
            raise QueryError("The query is empty; write what to search for.")
        if len(query) > MAX_QUERY_CHARACTERS:
            raise QueryError(
                f"The query has {len(query)} characters; at most {MAX_QUERY_CHARACTERS} are taken."
            )
        context.target.check([dimension.attribute for dimension in self._dimensions(context)])
        size = (await self._index.info()).documents
        if context.k > size:
            raise InputError(
                f"k is {context.k}, but '{self._index.name}' has only {size} documents; lower k."
            )
        refiner = self._refiner_for(context)
        if context.max_iterations and refiner is None:
            raise ModelUnavailableError(
                "No model is given to refine with; name one, or set max_iterations to 0."
            )
        if refiner is not None and context.max_iterations:
            await refiner.start()
        original = QueryRecord(text=query, attribute=None, group=None)
        return {
            "query": query,
            "started": time.time(),
            "iteration": 0,
            "pending": [original],
            "keywords": {},
            "refinements": [],
            "usage": usage_record(Usage()),
            "stop_reason": None,
        }

    @traced
    async def retrieve(self, state: State, runtime: Runtime[Context]) -> Update:
        """Search by the pending queries."""
        context, opened = context_of(runtime), current_span()
        depth = context.strategy.depth or context.k
        first = state["iteration"] == 0
        n = max(depth, TARGET_DEPTH) if first else depth
        opened.set("fairqr.iteration", state["iteration"])

        async def retrieved(query: QueryRecord) -> RankingRecord:
            with span(f"retrieval {self._index.name}") as search:
                search.content("fairqr.query", query["text"])
                found = await self._index.search(query["text"], n)
                search.set("fairqr.documents", len(found))
            return RankingRecord(
                iteration=state["iteration"], query=query, ids=found.ids, scores=found.scores
            )

        rankings = list(await asyncio.gather(*(retrieved(q) for q in state["pending"])))
        if not first:
            return {"rankings": rankings}
        if not rankings[0]["ids"]:
            raise QueryError(
                f"No document of '{self._index.name}' contains a term of the query "
                f"'{state['query'][:100]}'; try other words."
            )
        target = await estimate_target(
            self._index, self._dimensions(context), ranking_of(rankings[0]), context
        )
        opened.set("fairqr.target", target)
        return {"rankings": rankings, "target": target}

    @traced
    async def measure(self, state: State, runtime: Runtime[Context]) -> Update:
        """Measure the exposure of the round's list, and decide whether to stop."""
        context, opened = context_of(runtime), current_span()
        number = state["iteration"]
        found = measured_list(state["rankings"], number, context)
        measured = await measure(
            self._index, self._dimensions(context), state["target"], found.ids, context
        )
        record = IterationRecord(
            index=number,
            queries=[query["text"] for query in state["pending"]],
            refinements=state["refinements"],
            exposure=measured.exposure,
            divergences=measured.divergences,
            divergence=measured.divergence,
            unknown=measured.unknown,
        )
        iterations = [*state.get("iterations", []), record]
        seconds = time.time() - state["started"]
        reason = decide_stop(iterations, context, state["usage"], seconds)
        opened.event("divergence", value=measured.divergence, exposure=measured.exposure)
        opened.set("fairqr.iteration", number)
        if reason:
            opened.set("fairqr.stop_reason", reason)
        warnings = []
        if number == 0:
            warnings = [
                f"{share:.0%} of the exposure of the plain retrieval went to documents without a "
                f"label for '{name}'; what is measured is the rest."
                for name, share in measured.unknown.items()
                if share > MOSTLY_UNKNOWN
            ]
        return {"iterations": [record], "stop_reason": reason, "warnings": warnings}

    @traced
    async def choose_group(self, state: State, runtime: Runtime[Context]) -> Update:
        """Name the groups to refine for: the most under-represented one, or all that are."""
        context, opened = context_of(runtime), current_span()
        best = state["iterations"][best_iteration(state["iterations"])]
        chosen = under_represented(
            state["target"], best["exposure"], context.strategy.groups, context.max_groups
        )
        opened.set("fairqr.groups", [f"{name}={group}" for name, group in chosen])
        return {"chosen": chosen}

    @traced
    async def refine(self, state: State, runtime: Runtime[Context]) -> Update:
        """Ask for keywords for all chosen groups at once, and make them into queries."""
        context, opened = context_of(runtime), current_span()
        refiner = self._refiner_for(context)
        if refiner is None:  # begin() refuses this
            raise ModelUnavailableError("No model is given to refine with.")
        deadline = None
        if context.budget.seconds is not None:
            deadline = max(0.0, context.budget.seconds - (time.time() - state["started"]))

        async def refined(key: GroupKey) -> Refinement:
            request = RefinementRequest(
                query=state["query"],
                attribute=key[0],
                group=key[1],
                keywords=state["keywords"].get(key[0], {}).get(key[1], []),
                seed=context.seed,
                temperature=context.temperature,
            )
            return await self._known(await refiner.refine(request, deadline))

        answers = await asyncio.gather(*(refined(key) for key in state["chosen"]))
        usage = sum((answer.usage for answer in answers), Usage(**state["usage"]))
        for (name, group), answer in zip(state["chosen"], answers, strict=True):
            opened.event(
                "refinement",
                attribute=name,
                group=group,
                status=answer.status,
                keywords=len(answer.keywords),
            )
            opened.content(f"fairqr.keywords.{name}.{group}", list(answer.keywords))
        return _after_refinement(state, context, answers, usage)

    async def _known(self, refinement: Refinement) -> Refinement:
        """Drop keywords that no document has."""
        if refinement.status != "ok":
            return refinement
        frequencies = await self._index.document_frequencies(refinement.keywords)
        known = tuple(
            word for word, n in zip(refinement.keywords, frequencies, strict=True) if n > 0
        )
        if known:
            return dataclasses.replace(refinement, keywords=known)
        message = "No document contains any of the proposed keywords."
        return dataclasses.replace(refinement, status="unknown_terms", keywords=(), message=message)

    @traced
    async def rerank(self, state: State, runtime: Runtime[Context]) -> Update:
        """Re-rank by the original intent, and put the result together."""
        context, opened = context_of(runtime), current_span()
        result = await assemble(
            self._index,
            self._dimensions(context),
            state,
            context,
            self._refiner_for(context) if context.max_iterations else None,
        )
        opened.set("fairqr.best_iteration", result.best_iteration)
        opened.set("fairqr.stop_reason", result.stop_reason)
        opened.event("divergence", value=result.divergence, baseline=result.baseline.divergence)
        return {"result": result.model_dump(mode="json")}


_NOTHING_NEW = ("repeated", "empty", "unknown_terms")


def _after_refinement(
    state: State, context: Context, answers: list[Refinement], usage: Usage
) -> Update:
    """Return the state with the next round's queries, or with the reason why there are none."""
    keywords = {name: dict(groups) for name, groups in state["keywords"].items()}
    refinements: list[RefinementRecord] = []
    for (name, group), answer in zip(state["chosen"], answers, strict=True):
        refinements.append(
            RefinementRecord(
                attribute=name,
                group=group,
                keywords=list(answer.keywords),
                dropped=list(answer.drop),
                reason=answer.reason,
                status=answer.status,
            )
        )
        if answer.status == "ok":
            used = keywords.setdefault(name, {}).get(group, [])
            kept = [word for word in used if word not in answer.drop]
            keywords[name][group] = [*kept, *answer.keywords]
    update: Update = {
        "usage": usage_record(usage),
        "refinements": refinements,
        "warnings": list(
            dict.fromkeys(answer.message for answer in answers if answer.status != "ok")
        ),
    }
    helped = [
        key for key, answer in zip(state["chosen"], answers, strict=True) if answer.status == "ok"
    ]
    if not helped:
        gave_nothing_new = any(answer.status in _NOTHING_NEW for answer in answers)
        nothing_before = len(state["iterations"]) == 1
        failed = not gave_nothing_new or (nothing_before and usage.model_calls > 0)
        return {**update, "stop_reason": "model_failed" if failed else "no_improvement"}
    return {
        **update,
        "keywords": keywords,
        "iteration": state["iteration"] + 1,
        "pending": _queries(state["query"], helped, keywords, context),
    }


def _queries(
    query: str,
    helped: list[GroupKey],
    keywords: dict[str, dict[str, list[str]]],
    context: Context,
) -> list[QueryRecord]:
    """Add the keywords to the original query, whose own terms always stay.

    One query per group; refining for one group a round, the query grows by all keywords so far.
    """
    if context.strategy.groups == "most":
        every = [
            word for groups in keywords.values() for words in groups.values() for word in words
        ]
        name, group = helped[0]
        return [QueryRecord(text=" ".join([query, *every]), attribute=name, group=group)]
    return [
        QueryRecord(text=" ".join([query, *keywords[name][group]]), attribute=name, group=group)
        for name, group in helped
    ]
