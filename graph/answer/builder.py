"""Builds the graph that answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain_core.language_models import BaseChatModel
from langgraph.graph import END, START, StateGraph

from fairqr.agents.attribution.attributor import Attributor
from fairqr.agents.attribution.opening import open_attributor
from fairqr.agents.generators import Generator, ModelGenerator
from fairqr.agents.models.chat import ChatModel
from fairqr.agents.models.opening import open_generator
from fairqr.graph.answer.context import AnswerContext
from fairqr.graph.answer.nodes import Nodes, to_generate
from fairqr.graph.answer.state import OutputState, State
from fairqr.graph.search.builder import RECURSION_LIMIT, search_state_graph
from fairqr.graph.search.context import require_context
from fairqr.graph.search.rankers import (
    GivenModel,
    GivenRanker,
    Model,
    model_of,
    require_method,
)
from fairqr.graph.search.state import InputState
from fairqr.graph.steps import CONCURRENCY, SEARCH, Node, Route
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.engines.engine import SearchEngine

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.graph.state import CompiledStateGraph


def answer_state_graph(
    engine: SearchEngine,
    model: GivenModel | None = None,
    *,
    context: AnswerContext | None = None,
    generator: Generator | BaseChatModel | str | None = None,
    attributor: Attributor | BaseChatModel | str | None = None,
    ranker: GivenRanker | None = None,
    prompts: PromptLibrary | None = None,
    concurrency: int = CONCURRENCY,
) -> StateGraph[State, AnswerContext, InputState, OutputState]:
    """Return the graph that answers, not compiled, for those who add or replace nodes.

    The arguments are those of :func:`build_answer_graph`. Here ``concurrency`` only limits the
    questions to a chat model that judges; for the rankings, set ``max_concurrency`` in the config.
    """
    require_context(AnswerContext, context)
    model = model_of(model, engine)
    prompts, context = prompts or PromptLibrary(), context or AnswerContext()
    nodes = Nodes(
        engine,
        _generator(generator, model),
        _attributor(attributor, model, prompts, concurrency),
        prompts,
        context,
    )
    search = search_state_graph(engine, model, context=context, ranker=ranker, prompts=prompts)
    graph = StateGraph(
        State, context_schema=AnswerContext, input_schema=InputState, output_schema=OutputState
    )
    graph.add_node(SEARCH, search.compile(name="fair_search"))
    for name in ("prepare", "sample", "generate", "collect", "attribute", "summarise"):
        graph.add_node(name, Node(getattr(nodes, name)))
    graph.add_edge(START, "prepare")
    graph.add_edge("prepare", SEARCH)
    graph.add_edge(SEARCH, "sample")
    graph.add_conditional_edges("sample", Route(to_generate), ["generate"])
    graph.add_edge("generate", "collect")
    graph.add_conditional_edges("collect", Route(nodes.to_attribute), ["attribute", "summarise"])
    graph.add_edge("attribute", "summarise")
    graph.add_edge("summarise", END)
    return graph


def build_answer_graph(
    engine: SearchEngine,
    model: GivenModel | None = None,
    *,
    context: AnswerContext | None = None,
    generator: Generator | BaseChatModel | str | None = None,
    attributor: Attributor | BaseChatModel | str | None = None,
    ranker: GivenRanker | None = None,
    prompts: PromptLibrary | None = None,
    concurrency: int = CONCURRENCY,
    checkpointer: BaseCheckpointSaver[Any] | None = None,
) -> CompiledStateGraph[State, AnswerContext, InputState, OutputState]:
    """Build the graph that answers a question from randomly drawn rankings.

    ``prepare → search → sample → generate* → collect → attribute* → summarise``, where ``search``
    is the graph of :func:`fairqr.graph.search.builder.build_search_graph`. Steps with a star run
    once for each distinct ranking.

    Call it with ``await graph.ainvoke({"query": "…"}, context=AnswerContext(…))``; the state that
    comes back has ``answer``, the object of :class:`fairqr.graph.answer.result.AnswerResult`, and
    the ``result`` of the search.

    Args:
        engine: The search engine.
        model: Refines and ranks, as in a search; also writes the answers if no generator is given.
        context: The context of runs that bring none of ours.
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
    graph = answer_state_graph(
        engine,
        model,
        context=context,
        generator=generator,
        attributor=attributor,
        ranker=ranker,
        prompts=prompts,
        concurrency=concurrency,
    )
    compiled = graph.compile(checkpointer=checkpointer, name="fair_answer")
    return compiled.with_config(recursion_limit=RECURSION_LIMIT, max_concurrency=concurrency)


def _generator(
    generator: Generator | BaseChatModel | str | None, model: Model | None
) -> Generator | None:
    if isinstance(generator, str):
        return open_generator(generator)
    if isinstance(generator, BaseChatModel):
        return ModelGenerator(ChatModel.of(generator))
    if generator is None:
        return ModelGenerator(model) if isinstance(model, ChatModel) else None
    require_method("generator", generator, "generate")
    return generator


def _attributor(
    attributor: Attributor | BaseChatModel | str | None,
    model: Model | None,
    prompts: PromptLibrary,
    concurrency: int,
) -> Attributor | None:
    chat = model if isinstance(model, ChatModel) else None
    if isinstance(attributor, BaseChatModel):
        chat = ChatModel.of(attributor)
        attributor = "llm"
    if isinstance(attributor, str):
        return open_attributor(attributor, chat=chat, prompts=prompts, concurrency=concurrency)
    if attributor is not None:
        require_method("attributor", attributor, "judge")
    return attributor
