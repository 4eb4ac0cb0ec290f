"""Builds the graph that answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain_core.language_models import BaseChatModel
from langgraph.graph import START, StateGraph

from fairqr.agents.attribution.attributor import Attributor
from fairqr.agents.attribution.opening import open_attributor
from fairqr.agents.generators import Generator, ModelGenerator
from fairqr.agents.models.chat import ChatModel
from fairqr.agents.models.opening import open_generator
from fairqr.graph.answer.context import AnswerContext
from fairqr.graph.answer.nodes import AnswerNodes, to_generate
from fairqr.graph.answer.state import OutputState, State
from fairqr.graph.search.builder import RECURSION_LIMIT, build_search_graph
from fairqr.graph.search.context import require_context
from fairqr.graph.search.rankers import GivenModel, GivenRanker, Rankers, model_of, require_method
from fairqr.graph.search.state import InputState
from fairqr.graph.steps import CONCURRENCY, SEARCH, Node
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.engines.engine import SearchEngine

if TYPE_CHECKING:
    from langgraph.graph.state import CompiledStateGraph
    from langgraph.types import Checkpointer


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
    checkpointer: Checkpointer = None,
) -> CompiledStateGraph[State, AnswerContext, InputState, OutputState]:
    """Build the graph that answers a question from randomly drawn rankings.

    ``prepare → search → sample → generate* → collect → attribute* → summarise``, where ``search``
    is the graph of :func:`fairqr.graph.search.builder.build_search_graph`. Steps with a star run
    once for each distinct ranking.

    Call it with ``await graph.ainvoke({"query": "…"}, context=AnswerContext(…))``; the state that
    comes back has ``answer``, the object of :class:`fairqr.graph.answer.result.AnswerResult`, and
    the ``result`` of the search. To add or replace nodes, change its ``builder`` and compile that.

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
    require_context(AnswerContext, context)
    model, context = model_of(model, engine), context or AnswerContext()
    rankers = Rankers.of(ranker, model, prompts)
    search = build_search_graph(engine, model, context=context, ranker=rankers)
    chat = model if isinstance(model, ChatModel) else None
    judge = _attributor(attributor, chat, rankers.prompts, concurrency)
    nodes = AnswerNodes(
        engine=engine,
        default=context,
        generator=_generator(generator, chat),
        attributor=judge,
        prompts=rankers.prompts,
    )
    graph = StateGraph(
        State, context_schema=AnswerContext, input_schema=InputState, output_schema=OutputState
    )
    begins, node = nodes.node(nodes.prepare, first=True), nodes.node
    steps: list[Any] = [begins, (SEARCH, search), node(nodes.sample)]
    graph.add_sequence(steps)
    graph.add_sequence([node(nodes.generate), node(nodes.collect)])
    graph.add_sequence([node(nodes.attribute), node(nodes.summarise)])
    graph.add_edge(START, "prepare")
    graph.add_conditional_edges("sample", Node(to_generate), ["generate"])
    graph.add_conditional_edges("collect", Node(nodes.to_attribute), ["attribute", "summarise"])
    compiled = graph.compile(checkpointer=checkpointer, name="fair_answer")
    graph.compiled = False  # whoever adds nodes to it compiles it again
    return compiled.with_config(recursion_limit=RECURSION_LIMIT, max_concurrency=concurrency)


def _generator(
    given: Generator | BaseChatModel | str | None, chat: ChatModel | None
) -> Generator | None:
    if isinstance(given, str):
        return open_generator(given)
    if isinstance(given, BaseChatModel):
        return ModelGenerator(ChatModel.of(given))
    if given is None:
        return ModelGenerator(chat) if chat else None
    require_method("generator", given, "generate")
    return given


def _attributor(
    given: Attributor | BaseChatModel | str | None,
    chat: ChatModel | None,
    prompts: PromptLibrary,
    concurrency: int,
) -> Attributor | None:
    if isinstance(given, BaseChatModel):
        chat, given = ChatModel.of(given), "llm"
    if isinstance(given, str):
        return open_attributor(given, chat=chat, prompts=prompts, concurrency=concurrency)
    if given is not None:
        require_method("attributor", given, "judge")
    return given
