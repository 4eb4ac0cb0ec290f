"""Putting the machine together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langgraph.graph import END, START, StateGraph

from fairqr.agents.chat import ChatModel
from fairqr.agents.models import open_model
from fairqr.agents.refiner import LLMRefiner, Refiner
from fairqr.graph.context import Context
from fairqr.graph.nodes import Nodes, RefinerFor
from fairqr.graph.state import InputState, OutputState, State
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.index import Index

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.graph.state import CompiledStateGraph

__all__ = ["RECURSION_LIMIT", "build_graph"]

# Each round is four steps, of at most 100 rounds; anything beyond is a fault.
RECURSION_LIMIT = 4 * 100 + 10


def build_graph(
    *,
    index: Index,
    model: ChatModel | Refiner | str | None = None,
    prompts: PromptLibrary | None = None,
    checkpointer: BaseCheckpointSaver[Any] | None = None,
) -> CompiledStateGraph[State, Context, InputState, OutputState]:
    """Build the machine that searches fairly.

    ``begin → retrieve → measure → [stop: rerank | choose_group → refine → retrieve]``

    Call it with ``await graph.ainvoke({"query": "…"}, context=Context(…))``; the state that comes
    back has ``result``, the object of :class:`fairqr.graph.result.SearchResult`.

    Args:
        index: Where the documents are.
        model: What refines queries: a chat model or its name, which is asked with the prompt that
            the context names, or a refiner of your own. None serves contexts with
            ``max_iterations=0``.
        prompts: Where prompts come from.
        checkpointer: Of langgraph, to keep states; run with ``durability="exit"`` to write each
            run's state once.
    """
    if isinstance(model, str):
        model = open_model(model, index=index)
    nodes = Nodes(index, _refiner_source(model, prompts or PromptLibrary()))
    builder = StateGraph(
        State, context_schema=Context, input_schema=InputState, output_schema=OutputState
    )
    builder.add_node("begin", nodes.begin)
    builder.add_node("retrieve", nodes.retrieve)
    builder.add_node("measure", nodes.measure)
    builder.add_node("choose_group", nodes.choose_group)
    builder.add_node("refine", nodes.refine)
    builder.add_node("rerank", nodes.rerank)
    builder.add_edge(START, "begin")
    builder.add_edge("begin", "retrieve")
    builder.add_edge("retrieve", "measure")
    builder.add_conditional_edges(
        "measure", _unless_over("choose_group"), ["choose_group", "rerank"]
    )
    builder.add_edge("choose_group", "refine")
    builder.add_conditional_edges("refine", _unless_over("retrieve"), ["retrieve", "rerank"])
    builder.add_edge("rerank", END)
    graph = builder.compile(checkpointer=checkpointer, name="fairqr")
    return graph.with_config(recursion_limit=RECURSION_LIMIT)


def _unless_over(node: str) -> Any:
    def route(state: State) -> str:
        return "rerank" if state["stop_reason"] else node

    return route


def _refiner_source(model: ChatModel | Refiner | None, prompts: PromptLibrary) -> RefinerFor:
    def refiner_for(context: Context) -> Refiner | None:
        if isinstance(model, ChatModel):
            return LLMRefiner(model, prompts.get("refine", context.prompts.get("refine")))
        return model

    return refiner_for
