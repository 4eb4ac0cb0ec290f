"""Builds the graph that searches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from langgraph.graph import END, START, StateGraph

from fairqr.graph.search.context import Context, require_context
from fairqr.graph.search.nodes import SearchNodes
from fairqr.graph.search.rankers import GivenModel, GivenRanker, Rankers, Reserve, model_of
from fairqr.graph.search.state import InputState, OutputState, State
from fairqr.graph.steps import Node
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.engines.engine import SearchEngine, require_engine

if TYPE_CHECKING:
    from langgraph.graph.state import CompiledStateGraph
    from langgraph.types import Checkpointer

# Each round is three nodes, of at most 100 rounds; anything beyond is a fault.
RECURSION_LIMIT = 3 * 100 + 20


def build_search_graph(
    engine: SearchEngine,
    model: GivenModel | None = None,
    *,
    context: Context | None = None,
    ranker: GivenRanker | None = None,
    prompts: PromptLibrary | None = None,
    reserve: Reserve | None = None,
    checkpointer: Checkpointer = None,
) -> CompiledStateGraph[State, Context, InputState, OutputState]:
    """Build the graph that searches fairly.

    ``begin → measure → [over: rerank | refine → retrieve → measure]``

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
        reserve: Returns the most that steps after the search will cost. The search leaves that part
            of the budget to them.
        checkpointer: A checkpointer of LangGraph's. With ``durability="exit"``, each run writes its
            state only once.
    """
    require_engine(engine)
    require_context(Context, context)
    model = model_of(model, engine)
    rankers = Rankers.of(ranker, model, prompts)
    default = context or Context()
    nodes = SearchNodes(
        engine=engine, default=default, model=model, rankers=rankers, reserve=reserve
    )
    graph = StateGraph(
        State, context_schema=Context, input_schema=InputState, output_schema=OutputState
    )
    graph.add_node("begin", nodes.node(nodes.begin, first=True))
    graph.add_node("measure", nodes.node(nodes.measure_and_choose, "measure"))
    for work in (nodes.refine, nodes.retrieve, nodes.rerank):
        graph.add_node(work.__name__, nodes.node(work))
    graph.add_edge(START, "begin")
    graph.add_edge("begin", "measure")
    graph.add_edge("retrieve", "measure")
    graph.add_conditional_edges("measure", _unless_over("refine"), ["refine", "rerank"])
    graph.add_conditional_edges("refine", _unless_over("retrieve"), ["retrieve", "rerank"])
    graph.add_edge("rerank", END)
    compiled = graph.compile(checkpointer=checkpointer, name="fair_search")
    graph.compiled = False  # whoever adds nodes to it compiles it again
    return compiled.with_config(recursion_limit=RECURSION_LIMIT)


def _unless_over(node: str) -> Node:
    async def unless_over(state: State) -> str:
        return "rerank" if state["stop_reason"] else node

    return Node(unless_over)
