"""What LangGraph and tracing add to a loop whose steps cost next to nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypedDict
from unittest import mock

from langgraph.graph import END, START, StateGraph
from langgraph.types import Overwrite
from measuring import Row, in_turns, in_turns_async, median
from stubs import InstantEngine, InstantRefiner
from workspace import Workspace

from fairqr.graph.search.builder import SearchNodes, build_search_graph
from fairqr.graph.search.context import Context
from fairqr.graph.search.rankers import Rankers

ROUNDS = 5
MAX_MILLISECONDS = 1.2
# Never converged, never out of patience: every run has as many rounds.
CONTEXT = Context(k=20, depth=20, ask="always", patience=ROUNDS + 1, max_iterations=ROUNDS)
ACCUMULATED = ("rankings", "iterations", "warnings")


def _merged(key: str, before: Any, value: Any) -> Any:
    """Return the state's new value, as LangGraph's channels would."""
    if isinstance(value, Overwrite):
        return value.value
    return before + value if key in ACCUMULATED else value


async def run_bare(nodes: SearchNodes) -> dict[str, Any]:
    """Run the loop by calling the work of its nodes, one after the other, without LangGraph."""
    state: dict[str, Any] = {"query": "word"}

    async def take(work: Callable[..., Any]) -> None:
        for key, value in (await work(state, CONTEXT)).items():
            state[key] = _merged(key, state.get(key, []), value)

    await take(nodes.begin)
    while True:
        await take(nodes.measure_and_refine)
        if state["stop_reason"]:
            break
        await take(nodes.retrieve)
    await take(nodes.rerank)
    assert len(state["iterations"]) == ROUNDS + 1, "the loop has ended early"
    return state


def _nodes() -> SearchNodes:
    return SearchNodes(
        engine=InstantEngine(), default=CONTEXT, model=InstantRefiner(), rankers=Rankers()
    )


class _Counted(TypedDict, total=False):
    """The state of the loop that does nothing."""

    rounds: int


def _empty_graph() -> Any:
    """Return a graph of the same shape whose nodes do nothing but count the rounds."""

    async def nothing(state: _Counted) -> _Counted:
        return {}

    async def count(state: _Counted) -> _Counted:
        return {"rounds": state.get("rounds", 0) + 1}

    builder = StateGraph(_Counted)
    for name in ("begin", "retrieve", "rerank"):
        builder.add_node(name, nothing)
    builder.add_node("measure", count)
    builder.add_edge(START, "begin")
    builder.add_edge("begin", "measure")
    builder.add_edge("retrieve", "measure")
    builder.add_conditional_edges(
        "measure",
        lambda state: "rerank" if state.get("rounds", 0) > ROUNDS else "retrieve",
        ["retrieve", "rerank"],
    )
    builder.add_edge("rerank", END)
    return builder.compile()


def graph_rows(workspace: Workspace) -> Iterator[Row]:
    """Measure a run of 5 rounds through the graph, and the same node functions called directly."""
    graph = build_search_graph(InstantEngine(), InstantRefiner())
    nodes = _nodes()
    empty = _empty_graph()

    async def through_graph(_: int) -> object:
        return await graph.ainvoke({"query": "word"}, context=CONTEXT)

    async def bare(_: int) -> object:
        return await run_bare(nodes)

    async def nothing(_: int) -> object:
        return await empty.ainvoke({"rounds": 0}, {"recursion_limit": 100})

    taken = asyncio.run(
        in_turns_async(
            {"graph": through_graph, "bare": bare, "empty": nothing}, workspace.rounds(100), 3
        )
    )
    whole, steps = median(taken["graph"]), median(taken["bare"])
    yield Row("graph", f"a run of {ROUNDS} rounds", whole, "ms", "its nodes called bare", steps)
    added, empty = (whole - steps) / ROUNDS, median(taken["empty"]) / ROUNDS
    yield Row(
        "graph",
        "added by the graph to a round of 2 nodes",
        added,
        "ms",
        "LangGraph with empty nodes",
        empty,
        f"≤ {MAX_MILLISECONDS:g} ms",
        added <= MAX_MILLISECONDS,
    )


def tracing_rows(workspace: Workspace) -> Iterator[Row]:
    """Measure one span, and a run of 5 rounds by bare nodes, with and without OpenTelemetry."""
    nodes = _nodes()
    modes: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
        "none": _no_spans,
        "api": contextlib.nullcontext,
    }
    with contextlib.suppress(ImportError):
        modes["sdk"] = _sdk()

    def runs(mode: str) -> Callable[[int], object]:
        def run(_: int) -> object:
            with modes[mode]():
                return asyncio.run(run_bare(nodes))

        return run

    taken = in_turns({mode: runs(mode) for mode in modes}, workspace.rounds(100), 3)
    for mode, words in (("api", "API only"), ("sdk", "SDK, exporter in memory")):
        if mode in taken:
            yield Row(
                "tracing",
                f"bare nodes, {ROUNDS} rounds, spans by OpenTelemetry's {words}",
                median(taken[mode]),
                "ms",
                "no spans",
                median(taken["none"]),
            )


class _NoSpan:
    """Takes what a span takes, and drops it."""

    def set(self, *what: object, **attributes: object) -> None:
        pass

    content = event = evaluation = set


def _no_spans() -> contextlib.AbstractContextManager[object]:
    """Take the spans out of the nodes."""

    def no_span(*_: object, **__: object) -> contextlib.AbstractContextManager[_NoSpan]:
        return contextlib.nullcontext(_NoSpan())

    patched = contextlib.ExitStack()
    for module in ("search.builder", "steps"):
        patched.enter_context(mock.patch(f"fairqr.graph.{module}.span", no_span))
    return patched


def _sdk() -> Callable[[], contextlib.AbstractContextManager[object]]:
    """Give fairqr a tracer of the SDK for a while, without touching the global provider.

    Raises:
        ImportError: The SDK is not installed.
    """
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
    return lambda: mock.patch("fairqr.base.telemetry._tracer", provider.get_tracer("fairqr"))
