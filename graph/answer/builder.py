"""Builds the graph that answers: its nodes, and the arrows between them."""

from __future__ import annotations

from langgraph.graph import END, START
from langgraph.graph.state import CompiledStateGraph, StateGraph
from langgraph.types import Checkpointer

from fairqr.graph.answer import nodes
from fairqr.graph.answer.context import AnswerContext
from fairqr.graph.answer.parts import (
    AnswerParts,
    GivenAttributor,
    GivenGenerator,
    attributor_of,
    generator_of,
)
from fairqr.graph.answer.state import AnswerOutput, AnswerState
from fairqr.graph.running import CONCURRENCY, RETRIEVE, Node, node
from fairqr.graph.search.builder import RECURSION_LIMIT, as_node, build_search_graph
from fairqr.graph.search.context import require_context
from fairqr.graph.search.models import GivenModel, model_of
from fairqr.graph.search.rankers import GivenRanker, Rankers
from fairqr.graph.search.state import InputState
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.engines.engine import SearchEngine

NODES = ("prepare", "sample", "generate", "attribute", "summarize")
"""The names of the nodes, without ``retrieve``, which has nodes of its own."""

AnswerGraph = CompiledStateGraph[AnswerState, AnswerContext, InputState, AnswerOutput]


def build_answer_graph(
    engine: SearchEngine,
    model: GivenModel | None = None,
    *,
    context: AnswerContext | None = None,
    generator: GivenGenerator | None = None,
    attributor: GivenAttributor | None = None,
    ranker: GivenRanker | None = None,
    prompts: PromptLibrary | None = None,
    concurrency: int = CONCURRENCY,
    checkpointer: Checkpointer = None,
) -> AnswerGraph:
    """Build the graph that answers a question from randomly drawn rankings.

    ``prepare → retrieve → sample → generate → attribute → summarize``, where ``retrieve`` is the
    graph of :func:`fairqr.graph.search.builder.build_search_graph`, and ``generate`` runs for
    several rankings side by side. Without a judge there is no ``attribute``.

    Call it with ``await graph.ainvoke({"query": "…"}, context=AnswerContext(…))``; the state that
    comes back has ``answer``, the object of :class:`fairqr.graph.answer.result.AnswerResult`, and
    the ``result`` of the search. To add or replace nodes, change its ``builder`` and compile that.

    Args:
        engine: The search engine.
        model: Refines and ranks, as in a search; also writes the answers if no generator is given.
        context: The context of runs without one of ours.
        generator: Writes the answers: a generator, a chat model of LangChain's, or a name. Defaults
            to the model, if that is a chat model.
        attributor: Judges which documents an answer used: an attributor, its name, or a chat model
            of LangChain's. None skips that.
        ranker: Re-ranks, as in a search.
        prompts: The library of prompts; defaults to the shipped prompts and yours.
        concurrency: How many rankings are answered from or judged at the same time, unless the
            config of a call sets ``max_concurrency``. A chat model that is named as the attributor
            gets at most as many questions at once.
        checkpointer: A checkpointer of LangGraph's.
    """
    require_context(AnswerContext, context)
    context = AnswerContext() if context is None else context
    model = model_of(model, engine)
    rankers = Rankers.of(ranker, model, prompts)
    search = build_search_graph(engine, model, context=context, ranker=rankers)
    judge = attributor_of(attributor, model, rankers.prompts, concurrency)
    parts = AnswerParts(
        engine=engine,
        given_generator=generator_of(generator, model),
        attributor=judge,
        prompts=rankers.prompts,
        default=context,
    )
    graph = StateGraph(
        AnswerState,
        context_schema=AnswerContext,
        input_schema=InputState,
        output_schema=AnswerOutput,
    )
    graph.add_node("prepare", node(nodes.prepare, parts, is_first=True))
    graph.add_node(RETRIEVE, as_node(search))
    graph.add_node("sample", node(nodes.sample, parts))
    graph.add_node("generate", node(nodes.generate, parts))
    graph.add_node("summarize", node(nodes.summarize, parts))

    graph.add_edge(START, "prepare")
    graph.add_edge("prepare", RETRIEVE)
    graph.add_edge(RETRIEVE, "sample")
    graph.add_conditional_edges("sample", Node(nodes.each_ranking), ["generate"])
    if judge is None:
        graph.add_edge("generate", "summarize")
    else:
        graph.add_node("attribute", node(nodes.attribute, parts))
        graph.add_edge("generate", "attribute")
        graph.add_edge("attribute", "summarize")
    graph.add_edge("summarize", END)

    compiled = graph.compile(checkpointer=checkpointer, name="fair_answer")
    graph.compiled = False  # so that users can add nodes and compile it again
    return compiled.with_config(recursion_limit=RECURSION_LIMIT, max_concurrency=concurrency)
