"""Builds the graph that probes: its nodes, and the arrows between them."""

from __future__ import annotations

from langgraph.graph import END, START
from langgraph.graph.state import CompiledStateGraph, StateGraph
from langgraph.types import Checkpointer

from fairqr.graph.probe import nodes
from fairqr.graph.probe.context import ProbeContext
from fairqr.graph.probe.parts import ProbeParts
from fairqr.graph.probe.state import ProbeOutput, ProbeState
from fairqr.graph.running import CONCURRENCY, RETRIEVE, Node, node
from fairqr.graph.search.builder import RECURSION_LIMIT, as_node, build_search_graph
from fairqr.graph.search.context import require_context
from fairqr.graph.search.models import GivenModel, model_of
from fairqr.graph.search.rankers import GivenRanker, Rankers
from fairqr.graph.search.state import InputState
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.engines.engine import SearchEngine

NODES = ("prepare", "draw", "ask", "compare")
"""The names of the nodes, without ``retrieve``, which has nodes of its own."""

ProbeGraph = CompiledStateGraph[ProbeState, ProbeContext, InputState, ProbeOutput]


def build_probe_graph(
    engine: SearchEngine,
    model: GivenModel | None = None,
    *,
    context: ProbeContext | None = None,
    ranker: GivenRanker | None = None,
    prompts: PromptLibrary | None = None,
    concurrency: int = CONCURRENCY,
    checkpointer: Checkpointer = None,
) -> ProbeGraph:
    """Build the graph that finds out whether a model favours a group when it ranks a result.

    ``prepare → retrieve → draw → ask → compare``, where ``retrieve`` is the graph of
    :func:`fairqr.graph.search.builder.build_search_graph`, and ``ask`` runs for several parts of
    the probe side by side.

    Call it with ``await graph.ainvoke({"query": "…"}, context=ProbeContext(…))``; the state that
    comes back has ``probe``, the object of :class:`fairqr.graph.probe.result.ProbeResult`, and the
    ``result`` of the search. To add or replace nodes, change its ``builder`` and compile that.

    Args:
        engine: The search engine.
        model: The model to probe, unless a language model is given as ``ranker``. It also refines,
            as in a search.
        context: The context of runs without one of ours.
        ranker: Re-ranks, as in a search. If it is a language model, it is the one to probe.
        prompts: The library of prompts; defaults to the shipped prompts and yours.
        concurrency: How many parts of the probe run at the same time, unless the config of a call
            sets ``max_concurrency``.
        checkpointer: A checkpointer of LangGraph's.
    """
    require_context(ProbeContext, context)
    model = model_of(model, engine)
    rankers = Rankers.of(ranker, model, prompts)
    parts = ProbeParts(engine=engine, rankers=rankers, default=context)
    search = build_search_graph(engine, model, context=context, ranker=rankers)
    graph = StateGraph(
        ProbeState, context_schema=ProbeContext, input_schema=InputState, output_schema=ProbeOutput
    )
    graph.add_node("prepare", node(nodes.prepare, parts, is_first=True))
    graph.add_node(RETRIEVE, as_node(search))
    graph.add_node("draw", node(nodes.draw, parts))
    graph.add_node("ask", node(nodes.ask, parts))
    graph.add_node("compare", node(nodes.compare, parts))

    graph.add_edge(START, "prepare")
    graph.add_edge("prepare", RETRIEVE)
    graph.add_edge(RETRIEVE, "draw")
    graph.add_conditional_edges("draw", Node(nodes.each_task), ["ask", "compare"])
    graph.add_edge("ask", "compare")
    graph.add_edge("compare", END)

    compiled = graph.compile(checkpointer=checkpointer, name="fair_probe")
    graph.compiled = False  # so that users can add nodes and compile it again
    return compiled.with_config(recursion_limit=RECURSION_LIMIT, max_concurrency=concurrency)
