"""Builds the graph that searches: its nodes, and the arrows between them."""

from __future__ import annotations

from langgraph.graph import END, START
from langgraph.graph.state import CompiledStateGraph, StateGraph
from langgraph.types import Checkpointer

from fairqr.graph.running import Node, node
from fairqr.graph.search import nodes
from fairqr.graph.search.context import Context, require_context
from fairqr.graph.search.models import GivenModel, model_of
from fairqr.graph.search.parts import SearchParts
from fairqr.graph.search.rankers import GivenRanker, Rankers
from fairqr.graph.search.review import review
from fairqr.graph.search.state import InputState, SearchOutput, SearchState
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.engines.engine import SearchEngine, require_engine

RECURSION_LIMIT = 4 * 100 + 20
"""Each round is four nodes, of at most 100 rounds; anything beyond is a fault."""

NODES = ("prepare", "retrieve", "measure", "choose_group", "refine", "review", "rerank")
"""The names of the nodes."""

SearchGraph = CompiledStateGraph[SearchState, Context, InputState, SearchOutput]


def build_search_graph(
    engine: SearchEngine,
    model: GivenModel | None = None,
    *,
    context: Context | None = None,
    ranker: GivenRanker | None = None,
    prompts: PromptLibrary | None = None,
    checkpointer: Checkpointer = None,
) -> SearchGraph:
    """Build the graph that searches fairly.

    ``prepare → retrieve → measure → choose_group → refine → retrieve → …``, and ``→ rerank`` from
    ``measure`` or ``refine`` when the loop is over. With ``review`` in the context, a person is
    asked about the model's words between ``refine`` and ``retrieve``. A later page of a list that
    an earlier page was made of goes from ``prepare`` to ``rerank``.

    Call it with ``await graph.ainvoke({"query": "…"}, context=Context(…))``; the state that comes
    back has ``result``, the object of :class:`fairqr.graph.search.result.SearchResult`. To add or
    replace nodes, change its ``builder`` and compile that.

    Args:
        engine: The search engine.
        model: Refines queries: a chat model of LangChain's, the name of a model, or a refiner of
            your own. It may be left out for methods that do not refine, and with
            ``max_iterations=0``. A model that only ranks, such as ``causal:…``, cannot refine.
        context: The context of runs without one of ours, such as runs inside a parent graph with a
            context of its own.
        ranker: Re-ranks if the context asks for it: a language model or its name, which works as
            the context says; or a ranker of your own. Defaults to the model.
        prompts: The library of prompts; defaults to the shipped prompts and yours.
        checkpointer: A checkpointer of LangGraph's. With ``durability="exit"``, each run writes its
            state only once.
    """
    require_engine(engine)
    require_context(Context, context)
    opened_model = model_of(model, engine)
    parts = SearchParts(
        engine=engine,
        model=opened_model,
        rankers=Rankers.of(ranker, opened_model, prompts),
        default=Context() if context is None else context,
    )
    graph = StateGraph(
        SearchState, context_schema=Context, input_schema=InputState, output_schema=SearchOutput
    )
    graph.add_node("prepare", node(nodes.prepare, parts, is_first=True, computes=only_computes))
    graph.add_node("retrieve", node(nodes.retrieve, parts, computes=only_computes))
    graph.add_node("measure", node(nodes.measure, parts, computes=only_computes))
    graph.add_node("choose_group", node(nodes.choose_group, parts, computes=only_computes))
    graph.add_node("refine", node(nodes.refine, parts))
    graph.add_node("review", node(review, parts))
    graph.add_node("rerank", node(nodes.rerank, parts, computes=only_computes))

    graph.add_edge(START, "prepare")
    graph.add_conditional_edges("prepare", Node(after_prepare), ["retrieve", "rerank"])
    graph.add_edge("retrieve", "measure")
    graph.add_conditional_edges("measure", Node(after_measure), ["choose_group", "rerank"])
    graph.add_edge("choose_group", "refine")
    graph.add_conditional_edges("refine", Node(after_refine), ["retrieve", "review", "rerank"])
    graph.add_edge("review", "retrieve")
    graph.add_edge("rerank", END)

    compiled = graph.compile(checkpointer=checkpointer, name="fair_search")
    graph.compiled = False  # so that users can add nodes and compile it again
    return compiled.with_config(recursion_limit=RECURSION_LIMIT)


def only_computes(context: Context) -> bool:
    """Return whether no model ranks, so that only ``refine`` asks one."""
    return context.strategy.ranker is None


def as_node(graph: SearchGraph) -> SearchGraph:
    """Return a search graph to be a node of another graph.

    A subgraph's stream ``updates`` only has what it returns to its parent. So this one returns its
    whole state, and the parent takes the fields that it has. The parent counts the time itself.
    """
    returned = [name for name in graph.stream_channels_asis if name != "seconds"]
    return graph.copy({"output_channels": returned})


async def after_prepare(state: SearchState) -> str:
    """Search, unless the list of an earlier page goes on."""
    return "rerank" if state["stop_reason"] else "retrieve"


async def after_measure(state: SearchState) -> str:
    """Refine the query, unless the loop is over."""
    return "rerank" if state["stop_reason"] else "choose_group"


async def after_refine(state: SearchState) -> str:
    """Search with the new words, unless there are none; a person may look at them first."""
    if state["stop_reason"]:
        return "rerank"
    return "review" if state["review"] else "retrieve"
