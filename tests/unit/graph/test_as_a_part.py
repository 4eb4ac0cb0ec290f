"""The graphs inside the graphs of others, with nodes of others, and with a person in the loop."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Overwrite, interrupt
from typing_extensions import TypedDict

from fairqr import (
    AnswerContext,
    Budget,
    Context,
    FairSearch,
    ProbeContext,
    build_answer_graph,
    build_probe_graph,
    build_search_graph,
)
from fairqr.agents.models.replies import Usage
from fairqr.agents.refiners.refiner import GroupRequest, Refinement
from fairqr.base.errors import InputError, ModelError
from fairqr.retrieval.engines.engine import SearchEngine
from tests.patience import PATIENCE
from tests.servers.model_server import write_people
from tests.unit.agents.ranking.fakes import Planted
from tests.unit.graph.corpora import KnownRefiner

QUERY: Any = {"query": "physicist"}
THREAD: Any = {"configurable": {"thread_id": "1"}}
ANSWER = AnswerContext(attributes=("gender",), k=4, seed=1)
CONTEXT = Context(ask="always", groups="all", attributes=("gender",), k=5, max_iterations=1)
ALONE: Any = {"ask": "never", "attributes": ("gender",), "k": 5}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_people(tmp_path_factory.mktemp("people"))


async def result_of(graph: Any, kind: str = "result", **config: Any) -> Any:
    return (await graph.ainvoke(QUERY, **config))[kind]


def stopping(engine: SearchEngine, refiner: Any, context: Context | None = None) -> Any:
    """A graph in which a person may look at keywords."""
    graph = build_search_graph(engine, refiner, context=context)
    return graph.builder.compile(checkpointer=InMemorySaver(), interrupt_after=["refine"])


@dataclass
class Theirs:
    """The context of a graph that knows nothing of ours."""

    user: str


class Desk(TypedDict, total=False):
    """The state of such a graph."""

    query: str
    result: dict[str, Any]
    seen_by: str


@pytest.mark.promise("graph")
async def test_a_parent_graph_may_have_its_own_context(
    engine: SearchEngine,
) -> None:
    """Our graph is a node of another graph, which may have a context and a checkpointer of its own.

    What we are asked to do is then what the graph was built with.
    """
    alone = await build_search_graph(engine, KnownRefiner()).ainvoke(QUERY, context=CONTEXT)

    def greet(state: Desk, runtime: Any) -> Desk:
        return {"seen_by": runtime.context.user}

    desk: Any = StateGraph(Desk, context_schema=Theirs)
    desk.add_node("greet", greet)
    desk.add_node("look_up", build_search_graph(engine, KnownRefiner(), context=CONTEXT))
    desk.add_edge(START, "greet")
    desk.add_edge("greet", "look_up")
    desk.add_edge("look_up", END)
    parent = desk.compile(checkpointer=InMemorySaver())
    names = [
        update["name"]
        async for _, update in parent.astream(
            QUERY, THREAD, context=Theirs("Ada"), stream_mode="tasks", subgraphs=True
        )
        if "result" in update
    ]
    assert names[:3] == ["greet", "prepare", "retrieve"]
    state = (await parent.aget_state(THREAD)).values
    assert state["seen_by"] == "Ada"
    del state["result"]["usage"], alone["result"]["usage"]
    assert state["result"] == alone["result"]
    assert len(state["result"]["ranking"]) == 5


@pytest.mark.promise("graph")
async def test_a_node_of_ones_own_stands_between_two_of_ours(engine: SearchEngine) -> None:
    """Another's node stands between two of ours.

    Here one that takes documents out before they are measured.
    """
    graph = build_search_graph(engine, context=Context(k=5, method="baseline")).builder

    async def hide(state: Any) -> dict[str, Any]:
        (ranking,) = state["rankings"]
        kept = [row for row, id_ in enumerate(ranking["ids"]) if id_ != "p01"]
        members = {
            name: {**coded, "rows": [coded["rows"][row] for row in kept]}
            for name, coded in ranking["memberships"].items()
        }
        columns = {name: [ranking[name][row] for row in kept] for name in ("ids", "scores")}
        return {"rankings": Overwrite([{**ranking, **columns, "memberships": members}])}

    graph.add_node("hide", hide)
    graph.edges.remove(("retrieve", "measure"))
    graph.add_edge("retrieve", "hide")
    graph.add_edge("hide", "measure")
    final = await graph.compile().ainvoke(QUERY)

    baseline = await build_search_graph(engine).ainvoke(
        QUERY, context=Context(k=5, method="baseline")
    )
    baseline_ids = [place["id"] for place in baseline["result"]["ranking"]]
    ids = [place["id"] for place in final["result"]["ranking"]]
    assert "p01" in baseline_ids
    assert "p01" not in ids
    assert len(ids) == 5


@pytest.mark.promise("graph")
@pytest.mark.parametrize(("groups", "helped"), [("all", "female"), ("most", "male")])
async def test_a_person_may_change_the_words_and_nobody_is_asked_again(
    engine: SearchEngine, groups: str, helped: str
) -> None:
    """A person may change the words, and the model is not asked again.

    What was rejected does not come back, and words that were searched with are not again.
    """
    refiner = KnownRefiner()
    context = CONTEXT.model_copy(update={"max_iterations": 2, "patience": 5, "groups": groups})
    graph = stopping(engine, refiner, context)
    await graph.ainvoke(QUERY, THREAD)
    waiting = await graph.aget_state(THREAD)
    assert waiting.next == ("retrieve",)
    questions = len(refiner.asked)
    assert questions > 0

    workshop = {"keywords": ["workshop"], "phrases": [], "names": [], "passage": ""}
    changed = {"words": {"gender": {helped: workshop}}, "topic": None}
    await graph.aupdate_state(THREAD, changed)
    await graph.ainvoke(None, THREAD)
    waiting = await graph.aget_state(THREAD)
    assert len(refiner.asked) > questions, "the next round asks again"
    searched = [ranking["query"] for ranking in waiting.values["rankings"]]
    assert [(query["text"], query["group"]) for query in searched] == [
        ("physicist", None),
        ("physicist workshop", helped),
    ]

    questions = len(refiner.asked)
    named = {**workshop, "names": ["Marie Curie"]}
    await graph.aupdate_state(THREAD, {"words": {"gender": {helped: named}}, "topic": None})
    final = await graph.ainvoke(None, THREAD)
    assert len(refiner.asked) == questions
    queries = [round_["queries"] for round_ in final["result"]["iterations"]]
    assert queries == [["physicist"], ["physicist workshop"], ["Marie Curie"]]


@pytest.mark.promise("graph")
@pytest.mark.parametrize("method", ["fairqr", "fair-qr"])
async def test_a_person_may_reject_all_words(engine: SearchEngine, method: str) -> None:
    """A person may reject the words, and the model is not asked again.

    The round then finds nothing more, and the best list so far is the result.
    """
    context = CONTEXT.model_copy(update={"method": method, "groups": None})
    graph = stopping(engine, KnownRefiner(), context)
    await graph.ainvoke(QUERY, THREAD)
    await graph.aupdate_state(THREAD, {"words": {}, "topic": None})
    result = (await graph.ainvoke(None, THREAD))["result"]
    alone = await result_of(build_search_graph(engine, context=Context(**ALONE, method=method)))
    assert result["iterations"][1]["queries"] == []
    assert (result["best_iteration"], result["ranking"]) == (0, alone["ranking"])


class Fixed(GenericFakeChatModel):
    """A model of LangChain's that has neither tools nor objects of its own."""

    asked: ClassVar[list[Any]] = []

    def _generate(self, messages: Any, *args: Any, **options: Any) -> Any:
        self.asked.append((messages, options))
        return super()._generate(messages, *args, **options)


class Tooled(Fixed):
    """One that gives objects by a tool."""

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        name = tools[0]["function"]["name"] if "function" in tools[0] else tools[0]["title"]
        arguments = {"keywords": ["laboratory"], "topic": ["physics"]}
        call = {"name": name, "args": arguments, "id": "1", "type": "tool_call"}
        replies = iter(lambda: AIMessage("", tool_calls=[call]), None)
        return Tooled(messages=replies)


def replies(text: str = '{"keywords": ["laboratory"], "topic": ["physics"]}') -> Any:
    return iter(lambda: AIMessage(text), None)


def saying(text: str) -> Fixed:
    return Fixed(messages=replies(text))


@pytest.mark.parametrize("kind", [Fixed, Tooled])
async def test_any_chat_model_of_langchain_refines(engine: SearchEngine, kind: Any) -> None:
    """By objects where it has them, else by text; its own settings are not touched."""
    Fixed.asked.clear()
    model = kind(messages=replies())
    result = await result_of(build_search_graph(engine, model, context=CONTEXT))

    assert result["model"].endswith(kind.__name__)
    refinements = result["iterations"][1]["refinements"]
    words = [word for refinement in refinements for word in refinement["keywords"]]
    assert "laboratory" in words, result["warnings"]
    assert model.asked
    assert all(not {"temperature", "max_tokens"} & options.keys() for _, options in model.asked)


RETRIED = saying("Marie.").with_retry()


class Failing(Fixed):
    """A model that always fails."""

    error: Exception = ConnectionError("no such server")

    def _generate(self, messages: Any, *args: Any, **options: Any) -> Any:
        self.asked.append(messages)
        raise self.error


async def test_a_callers_model_is_not_retried_by_us(engine: SearchEngine) -> None:
    Fixed.asked.clear()
    graph = build_answer_graph(engine, Failing(messages=replies()), context=ANSWER)

    with pytest.raises(ModelError, match="cannot be reached"):
        await graph.ainvoke(QUERY)
    assert len(Fixed.asked) == 1


async def test_errors_of_a_callers_model_are_named_without_texts(engine: SearchEngine) -> None:
    wrong = Failing(messages=replies(), error=RuntimeError("the key s3cret is wrong"))
    result = await result_of(build_search_graph(engine, wrong, context=CONTEXT))

    assert result["stop_reason"] == "model_failed"
    (warning,) = result["warnings"]
    assert "failed with RuntimeError; call the chat model itself to see why." in warning


@pytest.mark.parametrize("temperature", [0.2, None], ids=["stated", "unknown"])
async def test_a_callers_model_keeps_its_settings(
    engine: SearchEngine, temperature: float | None
) -> None:
    """The result says its temperature, and None if it does not say; it may judge as well."""

    class Counting(BaseCallbackHandler):
        ended = 0

        def on_llm_end(self, *args: Any, **more: Any) -> None:
            self.ended += 1

    class Tempered(Fixed):
        temperature: float | None = None

    handler = Counting()
    context = AnswerContext(k=4, seed=1, answer={"temperature": 0.9})
    model = Tempered(messages=replies("Marie."), temperature=temperature, callbacks=[handler])
    judge = saying('{"entailed": true}')
    graph = build_answer_graph(engine, model, context=context, attributor=judge)
    result = await result_of(graph, "answer")

    (answer,) = result["answers"]
    assert (result["temperature"], answer["text"]) == (temperature, "Marie.")
    assert result["attributor"].startswith("llm:")
    assert answer["used"] == [True] * 4
    assert handler.ended == 1


async def test_a_search_goes_on_when_a_refiner_fails(engine: SearchEngine) -> None:
    """The list that needs no model is shown, and what was paid is counted."""
    answered = asyncio.Event()

    async def fail(request: GroupRequest) -> Refinement:
        if request.group == "female":
            await answered.wait()
            raise RuntimeError("no such\ngroup")
        answered.set()
        return Refinement("ok", keywords=("laboratory",), usage=Usage(1, prompt_tokens=7))

    result = await result_of(build_search_graph(engine, KnownRefiner(fail), context=CONTEXT))
    assert (result["usage"]["model_calls"], result["usage"]["prompt_tokens"]) == (1, 7)
    never = CONTEXT.model_copy(update={"ask": "never"})
    alone = await result_of(build_search_graph(engine), context=never)
    assert result["ranking"] == alone["ranking"]
    assert result["stop_reason"] == "model_failed"
    assert result["warnings"] == ["The refiner known failed: no such group"]


async def test_a_refiner_that_ignores_its_deadline_is_cancelled(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 0.0  # so that only the refiner spends the budget
    monkeypatch.setattr(time, "perf_counter", lambda: clock)

    async def sleep(request: GroupRequest) -> list[str]:
        nonlocal clock
        if len(refiner.asked) > 2:
            clock += 1
            await asyncio.Event().wait()
        return list(words.words)

    words = KnownRefiner(["laboratory", "workshop"])
    once = await result_of(build_search_graph(engine, words, context=CONTEXT))
    refiner = KnownRefiner(sleep)
    more = {"budget": Budget(seconds=0.05), "max_iterations": 5, "patience": 9}
    graph = build_search_graph(engine, refiner, context=CONTEXT.model_copy(update=more))
    result = await asyncio.wait_for(result_of(graph), PATIENCE)
    assert (result["stop_reason"], len(result["iterations"])) == ("budget", 2)
    assert result["ranking"] == once["ranking"]
    (warning,) = result["warnings"]
    assert warning == "The model known did not answer within 0.05 s."


async def test_a_search_in_a_node_does_not_go_on_where_the_node_does(engine: SearchEngine) -> None:
    """Nor are its states kept by the checkpointer of the graph around it."""
    search = FairSearch(engine, KnownRefiner())

    async def node(state: Any) -> Any:
        found = await search.search("physicist", CONTEXT)
        word = interrupt("which word?")
        return {"result": found.model_dump(mode="json"), "seen_by": word}

    desk: Any = StateGraph(Desk)
    desk.add_node("node", node)
    desk.add_edge(START, "node")
    saver = InMemorySaver()
    graph = desk.compile(checkpointer=saver)
    await graph.ainvoke(QUERY, THREAD)
    found = await graph.ainvoke(Command(resume="composer"), THREAD)
    assert found["seen_by"] == "composer"
    assert len(found["result"]["ranking"]) == 5
    assert all(not kept.config["configurable"]["checkpoint_ns"] for kept in saver.list(None))


async def ask_person(request: GroupRequest) -> Any:
    """Refine by a person's words."""
    return [interrupt(f"words for {request.group}?")]


async def test_a_refiner_may_ask_a_person(engine: SearchEngine) -> None:
    context = CONTEXT.model_copy(update={"max_groups": 1})
    options: Any = {"context": context, "checkpointer": InMemorySaver()}
    graph = build_search_graph(engine, KnownRefiner(ask_person), **options)
    waiting: Any = await graph.ainvoke(QUERY, THREAD)
    assert "words for" in waiting["__interrupt__"][0].value
    final = await graph.ainvoke(Command(resume="laboratory"), THREAD)
    assert final["result"]["iterations"][1]["refinements"][0]["keywords"] == ["laboratory"]


async def test_a_facade_that_cannot_ask_a_person_says_so(engine: SearchEngine) -> None:
    search = FairSearch(engine, KnownRefiner(ask_person))
    context = CONTEXT.model_copy(update={"max_groups": 1})

    with pytest.raises(InputError, match="use build_search_graph with a checkpointer"):
        await search.search("physicist", context)
    with pytest.raises(InputError, match="was interrupted"):
        assert [event async for event in search.stream("physicist", context)]


async def test_blocking_code_that_would_wait_for_ever_is_refused(
    engine: SearchEngine,
) -> None:
    inner = build_search_graph(engine, context=Context(k=3, method="baseline"))

    async def block(request: GroupRequest) -> None:
        inner.invoke({"query": "chemist"})
        raise AssertionError("it was let through")

    outer = build_search_graph(engine, KnownRefiner(block), context=CONTEXT)
    found = await asyncio.to_thread(outer.invoke, QUERY)
    assert "call the asynchronous method" in found["result"]["warnings"][0]


async def test_a_persons_time_to_think_is_not_charged(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"budget": Budget(seconds=60), "max_iterations": 2, "patience": 5}
    graph = stopping(engine, KnownRefiner(), CONTEXT.model_copy(update=more))
    await graph.ainvoke(QUERY, THREAD)
    real = time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: real() + 3600)
    while (await graph.aget_state(THREAD)).next:
        found = await graph.ainvoke(None, THREAD)
    assert len(found["result"]["iterations"]) == 3
    assert 0 < found["result"]["usage"]["milliseconds"] < 60_000


async def test_a_resumed_run_needs_its_first_context(
    engine: SearchEngine,
) -> None:
    graph = stopping(engine, KnownRefiner())
    await graph.ainvoke(QUERY, THREAD, context=CONTEXT)
    with pytest.raises(InputError, match="started with the attributes gender; resume it"):
        await graph.ainvoke(None, THREAD)
    found = await graph.ainvoke(None, THREAD, context=CONTEXT)
    assert found["result"]["attributes"] == ["gender"]


@pytest.mark.parametrize(
    ("build", "options", "sentence"),
    [
        (build_search_graph, {"engine": "notables"}, "open engine, not str"),
        (build_search_graph, {"model": RETRIED}, "The model must be .* not RunnableRetry"),
        (build_search_graph, {"context": {"k": 5}}, r"must be a fairqr\.Context, not dict"),
        (build_answer_graph, {"generator": RETRIED}, "generator must be .* not RunnableRetry"),
        (build_probe_graph, {"context": CONTEXT}, r"a fairqr\.ProbeContext, not Context"),
        # So it reaches the judge, which asks no more at once.
        (build_answer_graph, {"attributor": "llm", "concurrency": 0}, "at least 1, not 0"),
    ],
    ids=["engine", "model", "context", "generator", "probe context", "concurrency"],
)
async def test_a_graph_refuses_what_is_no_part_of_it(
    engine: SearchEngine, build: Any, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        build(**{"engine": engine, "model": saying("Marie."), **options})


GRAPHS: dict[str, tuple[Any, Any, Any]] = {
    "result": (build_search_graph, KnownRefiner(), CONTEXT),
    "answer": (
        build_answer_graph,
        saying("Marie."),
        AnswerContext.of(k=8, seed=1, samples=100, alpha=0),
    ),
    "probe": (
        build_probe_graph,
        Planted(),
        ProbeContext.of(k=20, attribute="gender", protected="female"),
    ),
}


@pytest.mark.promise("graph")
@pytest.mark.parametrize("kind", GRAPHS)
async def test_a_thread_is_small_and_forgets_its_last_run(engine: SearchEngine, kind: str) -> None:
    """A graph's state is plain data without texts, and a second search on a thread knows nothing of
    the first.
    """
    build, model, context = GRAPHS[kind]
    saver = InMemorySaver()
    graph = build(engine, model, context=context, checkpointer=saver)
    first = (await graph.ainvoke(QUERY, THREAD))[kind]
    await graph.ainvoke({"query": "laboratory"}, THREAD)
    # Code that is not asynchronous runs the graph, too.
    again = (await asyncio.to_thread(graph.invoke, QUERY, THREAD))[kind]
    assert {**first, "usage": None} == {**again, "usage": None}
    state = json.dumps((await graph.aget_state(THREAD)).values)
    everything = [*saver.storage.values(), *saver.writes.values(), *saver.blobs.values()]
    assert "with a workshop" not in repr(everything) + state
    assert len(state) < 200_000
