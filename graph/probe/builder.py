"""Builds the graph that probes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langgraph.graph import START, StateGraph

from fairqr.graph.probe.context import ProbeContext
from fairqr.graph.probe.nodes import ProbeNodes, to_probe
from fairqr.graph.probe.state import OutputState, State
from fairqr.graph.search.builder import RECURSION_LIMIT, build_search_graph
from fairqr.graph.search.context import require_context
from fairqr.graph.search.rankers import GivenModel, GivenRanker, Rankers, model_of
from fairqr.graph.search.state import InputState
from fairqr.graph.steps import CONCURRENCY, SEARCH, Node
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.engines.engine import SearchEngine

if TYPE_CHECKING:
    from langgraph.graph.state import CompiledStateGraph
    from langgraph.types import Checkpointer


def build_probe_graph(
    engine: SearchEngine,
    model: GivenModel | None = None,
    *,
    context: ProbeContext | None = None,
    ranker: GivenRanker | None = None,
    prompts: PromptLibrary | None = None,
    concurrency: int = CONCURRENCY,
    checkpointer: Checkpointer = None,
) -> CompiledStateGraph[State, ProbeContext, InputState, OutputState]:
    """Build the graph that finds out whether a model favours a group when it ranks a result.

    ``prepare → search → plan → probe* → conclude``, where ``search`` is the graph of
    :func:`fairqr.graph.search.builder.build_search_graph`. The step with a star runs once for each
    batch of pairs and for each asker.

    Call it with ``await graph.ainvoke({"query": "…"}, context=ProbeContext(…))``; the state that
    comes back has ``probe``, the object of :class:`fairqr.graph.probe.result.ProbeResult`, and the
    ``result`` of the search. To add or replace nodes, change its ``builder`` and compile that.

    Args:
        engine: The search engine.
        model: The model to probe, unless a language model is given as ``ranker``. It also refines,
            as in a search.
        context: The context of runs that bring none of ours.
        ranker: Re-ranks, as in a search. If it is a language model, it is the one to probe.
        prompts: The library of prompts; defaults to the shipped prompts and yours.
        concurrency: How many parts of the probe run at the same time, unless the config of a call
            sets ``max_concurrency``.
        checkpointer: A checkpointer of LangGraph's.
    """
    require_context(ProbeContext, context)
    model = model_of(model, engine)
    rankers = Rankers.of(ranker, model, prompts)
    nodes = ProbeNodes(engine=engine, default=context, rankers=rankers)
    search = build_search_graph(engine, model, context=context, ranker=rankers, reserve=nodes.cost)
    graph = StateGraph(
        State, context_schema=ProbeContext, input_schema=InputState, output_schema=OutputState
    )
    begins, node = nodes.node(nodes.prepare, first=True), nodes.node
    steps: list[Any] = [begins, (SEARCH, search), node(nodes.plan)]
    graph.add_sequence(steps)
    graph.add_sequence([node(nodes.probe), node(nodes.conclude)])
    graph.add_edge(START, "prepare")
    graph.add_conditional_edges("plan", Node(to_probe), ["probe", "conclude"])
    compiled = graph.compile(checkpointer=checkpointer, name="fair_probe")
    graph.compiled = False  # whoever adds nodes to it compiles it again
    return compiled.with_config(recursion_limit=RECURSION_LIMIT, max_concurrency=concurrency)
