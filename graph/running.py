"""What runs of all graphs share: nodes, contexts, the time and the cost of a run, and traces.

Only the time within nodes counts. Between two nodes, a person may think for an hour about the
model's words, or a killed run may be resumed the next day.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import asdict
from typing import Any, Protocol, TypeVar

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.config import get_config
from langgraph.runtime import get_runtime
from langgraph.types import Overwrite
from pydantic import Field

from fairqr.agents.models.replies import Usage
from fairqr.base.errors import InputError, QueryError
from fairqr.base.loops import Turn, run_blocking
from fairqr.base.telemetry import current_span, span
from fairqr.graph.journal import run_journal
from fairqr.graph.search.context import Context, Frozen
from fairqr.graph.step import step_of
from fairqr.retrieval.engines.engine import SearchEngine

CONCURRENCY = 8
"""How many rankings are answered or judged, or parts of a probe asked, at the same time."""

RETRIEVE = "retrieve"
"""The node of an answer or a probe that is the graph that searches."""

Update = dict[str, Any]
"""What a node changes in the state."""

T = TypeVar("T")
C = TypeVar("C", bound=Context)
C_co = TypeVar("C_co", bound=Context, covariant=True)


class GraphParts(Protocol[C_co]):
    """What a graph is built from."""

    def context(self, given: object) -> C_co:
        """Return the context of a run, from what the caller gave."""


def context_of(kind: type[C], given: object, default: C | None) -> C:
    """Return the context of a run.

    Args:
        kind: The class of the graph's contexts.
        given: What the caller gave, which may be meant for a graph around this one.
        default: The context that the graph was built with, if any.

    Raises:
        InputError: There is none, or it is that of another of our graphs.
    """
    if isinstance(given, kind):
        return given
    if default is None or isinstance(given, Context):
        raise InputError(f"The run needs a context; give the graph a {kind.__name__}.")
    return default


def require_hits(hits: Sequence[object], engine: SearchEngine, query: str) -> None:
    """Check that a search found documents: an answer or a probe needs some.

    Raises:
        QueryError: It found none.
    """
    if not hits:
        raise QueryError(
            f"No document of '{engine.name}' matches the query '{query[:100]}'; try other words."
        )


class UsageReport(Frozen):
    """The cost of a search, an answer or a probe, in its result."""

    model_calls: int = Field(description="Requests to models.")
    cached_calls: int = Field(description="Requests that the cache answered.")
    prompt_tokens: int = Field(description="The tokens of the requests to models.")
    completion_tokens: int = Field(description="The tokens of the requests to models.")
    cached_tokens: int = Field(
        0, description="The tokens that cached replies cost when models were first asked."
    )
    cached_milliseconds: float = Field(
        0.0, description="How long models took for these replies, added up."
    )
    milliseconds: float = Field(description="How long the nodes took.")


def usage_of(result: Mapping[str, Any]) -> Usage:
    """Return the usage in a result that is plain data."""
    figures = dict(result["usage"])
    del figures["milliseconds"]
    return Usage(**figures)


def usage_report(usage: Usage) -> UsageReport:
    """Return what a run has cost so far, for its result."""
    milliseconds = round(running_seconds() * 1000, 1)
    return UsageReport(**asdict(usage), milliseconds=milliseconds)


class _Clock:
    """Counts the seconds of a run.

    Attributes:
        started: When the run would have started without pauses, by :func:`time.perf_counter`.
    """

    def __init__(self, seconds: float) -> None:
        self.started = time.perf_counter() - seconds


_clock: ContextVar[_Clock | None] = ContextVar("fairqr_clock", default=None)


@contextmanager
def timed(seconds: float) -> Iterator[None]:
    """Count the time of a node.

    Args:
        seconds: How long the nodes before it took.
    """
    token = _clock.set(_Clock(seconds))
    try:
        yield
    finally:
        _clock.reset(token)


def running_seconds() -> float:
    """Return how long the run has been running until now; 0 outside of a node."""
    clock = _clock.get()
    return 0.0 if clock is None else time.perf_counter() - clock.started


def seconds_left(context: Context) -> float | None:
    """Return the seconds that are left of a run's budget, or None without such a budget."""
    if context.budget.seconds is None:
        return None
    return max(0.0, context.budget.seconds - running_seconds())


def add_seconds(result: Mapping[str, Any]) -> None:
    """Count the time of a search, from its result, as time of the run."""
    clock = _clock.get()
    if clock is not None:
        clock.started -= result["usage"]["milliseconds"] / 1000


class RunTurn:
    """The turn of a run, which it holds from a node that computes until one that asks a model.

    If a run gave it back after each node, all other runs of its key would go on between two of its
    nodes, and those of another key would wait for all of them. Nobody can stop a thread, so the
    turn of a run that ends before its threads lasts as long as they do.

    Args:
        turn: Returns what the run enters when it takes its turn.
        between_nodes: Whether it holds its turn between nodes, or in :func:`compute` alone.
    """

    def __init__(self, turn: Turn, *, between_nodes: bool = True) -> None:
        self._turn = turn
        self.between_nodes = between_nodes
        self._current: AsyncExitStack | None = None
        self._threads: set[asyncio.Task[Any]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        # Of two nodes at once, the second must not take another turn.
        self._taking = asyncio.Lock()

    async def take(self) -> None:
        """Wait for the turn, unless the run holds it."""
        async with self._taking:
            if self._current is None:
                async with AsyncExitStack() as stack:
                    await stack.enter_async_context(self._turn())
                    self._current = stack.pop_all()

    async def give_back(self) -> None:
        """Give the turn back, if the run holds it, now or once its threads have ended."""
        current = self._current
        if current is None:
            return
        self._current = None
        if not self._threads:
            await current.aclose()
            return
        closing = asyncio.create_task(_close_after({*self._threads}, current))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Do something in a thread in one's turn."""
        await self.take()
        working = asyncio.create_task(asyncio.to_thread(work))
        self._threads.add(working)
        working.add_done_callback(self._threads.discard)
        # If the run is cancelled, nobody reads an error of the thread, and asyncio would log it.
        working.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            return await asyncio.shield(working)
        finally:
            if not self.between_nodes:
                await self.give_back()


async def _close_after(threads: set[asyncio.Task[Any]], turn: AsyncExitStack) -> None:
    await asyncio.wait(threads)
    await turn.aclose()


_run_turn: ContextVar[RunTurn | None] = ContextVar("fairqr_run_turn", default=None)


async def compute(work: Callable[[], T]) -> T:
    """Compute something that takes long in a thread, when it is the turn of the run."""
    turn = _run_turn.get()
    if turn is None:
        return await asyncio.to_thread(work)
    return await turn.in_thread(work)


@asynccontextmanager
async def in_turns(turn: Turn, *, between_nodes: bool = True) -> AsyncIterator[None]:
    """Let the run that is started meanwhile wait for its turn before it computes.

    Args:
        turn: Returns what the run enters.
        between_nodes: See :class:`RunTurn`.
    """
    run_turn = RunTurn(turn, between_nodes=between_nodes)
    token = _run_turn.set(run_turn)
    try:
        yield
    finally:
        _run_turn.reset(token)
        await run_turn.give_back()


def never(context: object) -> bool:
    """Return that a node does more than compute: it asks a model, or a person."""
    return False


class Node(Runnable[Any, Any]):
    """A node, or a choice of the next nodes, that works in ``ainvoke`` and in ``invoke``.

    Unlike for a plain function, LangGraph starts no thread for it.

    Args:
        work: Takes the state.
        name: Its name; by default the name of the work.
    """

    def __init__(self, work: Callable[[Any], Coroutine[Any, Any, Any]], name: str = "") -> None:
        self._work = work
        self.name = self.__name__ = name or work.__name__

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Run the node on our own event loop, and wait for it."""
        return run_blocking(self._work(input))

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Run the node."""
        return await self._work(input)


def node(
    work: Callable[[Any, C, Any], Awaitable[Update]],
    parts: GraphParts[C],
    *,
    is_first: bool = False,
    computes: Callable[[C], bool] = never,
) -> Node:
    """Return the node that does some work, in a span of its own, and whose time is counted.

    Args:
        work: Takes the state, the run's context and the parts of the graph; returns what it changes
            in the state. The node has its name.
        parts: What the graph is built from.
        is_first: Whether runs start with it.
        computes: Whether it only computes in runs with a context; where runs take turns, they
            hold theirs from such a node until another one.
    """
    name = work.__name__

    async def run(state: Any) -> Update:
        context = parts.context(get_runtime().context)
        turn = _run_turn.get()
        if turn is not None and turn.between_nodes:
            if computes(context):
                await turn.take()
            else:
                await turn.give_back()
        update = await timed_work(state, context)
        journal = run_journal()
        if journal is not None:
            namespace = get_config()["metadata"]["langgraph_checkpoint_ns"]
            nodes = [part.partition(":")[0] for part in namespace.split("|")]
            journal.step_from_node(step_of(nodes[:-1], name, update))
        return update

    async def timed_work(state: Any, context: C) -> Update:
        seconds_before = 0.0 if is_first else state["seconds"]
        with timed(seconds_before), span(f"fairqr.{name}"):
            update = await work(state, context, parts)
            seconds = running_seconds()
        # The thread may contain an earlier run, which took longer.
        update["seconds"] = Overwrite(seconds) if is_first else seconds
        return update

    return Node(run, name)


def longest(first: float, second: float) -> float:
    """Return the time of nodes that run side by side."""
    return max(first, second)


def record(**figures: Any) -> None:
    """Record figures and decisions in the span of the current node; None is left out."""
    for name, value in figures.items():
        if value is not None:
            current_span().set(f"fairqr.{name}", value)


def record_outcome(usage: UsageReport, prompts: Iterable[Any], **models: str | None) -> None:
    """Record the models and prompts of a run, and what it has cost so far.

    Args:
        usage: What the run has cost so far.
        prompts: The references of the prompts in use; None is skipped.
        models: The names of the models, by their role; None is skipped.
    """
    references = [prompt for prompt in prompts if prompt is not None]
    record(
        models=[f"{role}={name}" for role, name in models.items() if name],
        prompts=[f"{prompt.id}={prompt.version} {prompt.sha256}" for prompt in references],
        **usage.model_dump(include={"model_calls", "cached_calls"}),
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
    )
