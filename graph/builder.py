"""Putting the machine together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Send

from fairqr.agents.attribution.base import Attributor
from fairqr.agents.attribution.open import open_attributor
from fairqr.agents.chat import ChatModel
from fairqr.agents.chat_generator import ChatGenerator
from fairqr.agents.generation import Generator
from fairqr.agents.generators import open_generator
from fairqr.agents.ranking.base import ItemRanker
from fairqr.agents.ranking.model import RankingModel
from fairqr.agents.refiner import LLMRefiner, Refiner
from fairqr.graph.answering import Answering
from fairqr.graph.context import Context
from fairqr.graph.nodes import Nodes, RefinerFor
from fairqr.graph.probing import Probing
from fairqr.graph.rankers import Rankers, open_language_model, require_refines
from fairqr.graph.state import InputState, OutputState, State
from fairqr.graph.steps import context_of
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.engines.engine import SearchEngine

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.graph.state import CompiledStateGraph

__all__ = ["CONCURRENCY", "RECURSION_LIMIT", "build_graph"]

# Each round is four steps, of at most 100 rounds; anything beyond is a fault.
RECURSION_LIMIT = 4 * 100 + 20

CONCURRENCY = 8
"""How many rankings are answered from, or judged, at the same time; and parts of a probe."""


def build_graph(
    *,
    engine: SearchEngine,
    model: ChatModel | Refiner | RankingModel | str | None = None,
    generator: Generator | str | None = None,
    attributor: Attributor | str | None = None,
    ranker: RankingModel | ItemRanker | str | None = None,
    prompts: PromptLibrary | None = None,
    concurrency: int = CONCURRENCY,
    checkpointer: BaseCheckpointSaver[Any] | None = None,
) -> CompiledStateGraph[State, Context, InputState, OutputState]:
    """Build the machine that searches fairly, and answers where the context asks for it.

    ``begin → retrieve → measure → [stop: rerank | choose_group → refine → retrieve]``; then, if the
    model is probed, ``probe* → conclude``; and then
    ``sample → generate* → collect → attribute* → summarise``. What has a * runs once for each part
    of the probe, or for each ranking.

    Call it with ``await graph.ainvoke({"query": "…"}, context=Context(…))``; the state that comes
    back has ``result``, the object of :class:`fairqr.graph.result.SearchResult`, and ``answer``,
    that of :class:`fairqr.graph.answer_result.AnswerResult`, if ``Context.answer`` is given, and
    ``probe``, that of :class:`fairqr.graph.probe_result.ProbeResult`, if ``Context.probe`` is.

    Args:
        engine: Where the documents are.
        model: What refines queries: a chat model or its name, which is asked with the prompt that
            the context names, or a refiner of your own. None serves contexts with
            ``max_iterations=0``. A model that can only rank, such as ``causal:…``, refines nothing.
        generator: What answers, or its name; the model where None, if that is a chat model.
        attributor: What judges which documents an answer used, or its name; None leaves that out.
        ranker: What re-ranks where the context asks for that: a language model or its name, which
            is asked as the context says, or a ranker of your own, whatever the context names; the
            model where None. A language model given here is also the one that is probed.
        prompts: Where prompts come from.
        concurrency: How many rankings are answered from, or judged, at the same time, for which
            ``max_concurrency`` in the config of a call wins; and how many questions a chat model
            that judges is asked at the same time, if the attributor is named here.
        checkpointer: Of langgraph, to keep states; run with ``durability="exit"`` to write each
            run's state once.
    """
    if isinstance(model, str):
        model = open_language_model(model, engine=engine)
    prompts = prompts or PromptLibrary()
    rankers = Rankers(ranker, model, prompts)
    probing = Probing(engine, rankers.language_model, prompts)
    answering = Answering(
        engine,
        _generator(generator, model),
        _attributor(attributor, model, prompts, concurrency),
        prompts,
    )
    refiner_for = _refiner_source(model, prompts)
    nodes = Nodes(engine, refiner_for, answering, rankers.ranker_for, probing)
    builder = StateGraph(
        State, context_schema=Context, input_schema=InputState, output_schema=OutputState
    )
    builder.add_node("begin", nodes.begin)
    builder.add_node("retrieve", nodes.retrieve)
    builder.add_node("measure", nodes.measure)
    builder.add_node("choose_group", nodes.choose_group)
    builder.add_node("refine", nodes.refine)
    builder.add_node("rerank", nodes.rerank)
    builder.add_node("probe", probing.probe)
    builder.add_node("conclude", probing.conclude)
    builder.add_node("sample", answering.sample)
    builder.add_node("generate", answering.generate)
    builder.add_node("collect", answering.collect)
    builder.add_node("attribute", answering.attribute)
    builder.add_node("summarise", answering.summarise)
    builder.add_edge(START, "begin")
    builder.add_edge("begin", "retrieve")
    builder.add_edge("retrieve", "measure")
    builder.add_conditional_edges(
        "measure", _unless_over("choose_group"), ["choose_group", "rerank"]
    )
    builder.add_edge("choose_group", "refine")
    builder.add_conditional_edges("refine", _unless_over("retrieve"), ["retrieve", "rerank"])
    builder.add_conditional_edges("rerank", _after_rerank, ["probe", "conclude", "sample", END])
    builder.add_edge("probe", "conclude")
    builder.add_conditional_edges("conclude", _answer_if_asked, ["sample", END])
    builder.add_conditional_edges("sample", answering.to_generate, ["generate"])
    builder.add_edge("generate", "collect")
    builder.add_conditional_edges("collect", answering.to_attribute, ["attribute", "summarise"])
    builder.add_edge("attribute", "summarise")
    builder.add_edge("summarise", END)
    graph = builder.compile(checkpointer=checkpointer, name="fairqr")
    return graph.with_config(recursion_limit=RECURSION_LIMIT, max_concurrency=concurrency)


# Routes are asynchronous, since LangGraph sends those that are not to a thread.
async def _after_rerank(state: State, runtime: Runtime[Context]) -> list[Send] | str:
    context = context_of(runtime)
    if context.probe is not None:
        return Probing.tasks(state, context) or "conclude"
    return await _answer_if_asked(state, runtime)


async def _answer_if_asked(state: State, runtime: Runtime[Context]) -> str:
    return "sample" if context_of(runtime).answer is not None else END


def _unless_over(node: str) -> Any:
    async def route(state: State) -> str:
        return "rerank" if state["stop_reason"] else node

    return route


Model = ChatModel | Refiner | RankingModel | None


def _refiner_source(model: Model, prompts: PromptLibrary) -> RefinerFor:
    def refiner_for(context: Context) -> Refiner | None:
        if isinstance(model, ChatModel):
            return LLMRefiner(model, prompts.get("refine", context.prompts.get("refine")))
        if model is None or not (context.rounds or hasattr(model, "refine")):
            return None
        require_refines(model)
        return cast("Refiner", model)

    return refiner_for


def _generator(generator: Generator | str | None, model: Model) -> Generator | None:
    if isinstance(generator, str):
        return open_generator(generator)
    if generator is None and isinstance(model, ChatModel):
        return ChatGenerator(model)
    return generator


def _attributor(
    attributor: Attributor | str | None,
    model: Model,
    prompts: PromptLibrary,
    concurrency: int,
) -> Attributor | None:
    if not isinstance(attributor, str):
        return attributor
    chat = model if isinstance(model, ChatModel) else None
    return open_attributor(attributor, chat=chat, prompts=prompts, concurrency=concurrency)
