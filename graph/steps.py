"""Helpers for the nodes of all three graphs."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar, cast

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.runtime import Runtime, get_runtime
from langgraph.types import Overwrite

from fairqr.agents.models.cache import ReplyCache, asking_with
from fairqr.base.errors import NoMatchError
from fairqr.base.loops import run_blocking
from fairqr.base.telemetry import span
from fairqr.graph.journal import run_journal
from fairqr.graph.search.context import Context, checked_context
from fairqr.graph.usage import running_from, running_seconds
from fairqr.retrieval.engines.engine import SearchEngine

CONCURRENCY = 8
"""How many rankings are answered or judged, or parts of a probe run, at the same time."""

SEARCH = "search"
"""The node that runs the search graph inside an answer or a probe."""

Update = dict[str, Any]
"""What a node changes in the state."""

Method = TypeVar("Method", bound=Callable[..., Any])


def traced(node: Method) -> Method:
    """Run a node in a span, and count its time. If the journal has its update, return that instead.

    After each reply of a model, LangGraph's stream ``custom`` gets
    ``{"progress": {"node": NAME, "replies": NUMBER}}``. The number counts the node's replies.

    The state's ``seconds`` are the time of all steps up to the end of the node, plus what the node
    itself adds. The first node of a graph overwrites them, since the thread may contain those of an
    earlier run.
    """

    @functools.wraps(node)
    async def timed(self: object, state: Any, runtime: Runtime[Any]) -> Update:
        info, journal = runtime.execution_info, run_journal()
        if journal is not None and info is not None:
            kept = journal.begin(node.__name__, state, info.task_id)
            if kept is not None:
                return kept
        replies = itertools.count(1)

        def report() -> None:
            progress = {"node": node.__name__, "replies": next(replies)}
            runtime.stream_writer({"progress": progress})

        with (
            span(f"fairqr.{node.__name__}"),
            asking_with(cache=ReplyCache(), on_reply=report),
            running_from(before := state.get("seconds", 0.0)),
        ):
            update: Update = await node(self, state, runtime)
            if isinstance(update.get("seconds"), Overwrite):
                return {**update, "seconds": Overwrite(running_seconds() - before)}
            return {"seconds": running_seconds() + update.pop("seconds", 0.0), **update}

    # Type checkers look at the node's own parameters.
    return cast("Method", timed)


class Node(Runnable[Any, Any]):
    """A node that works in ``ainvoke`` and in ``invoke``.

    Args:
        step: The asynchronous function that does the work.
    """

    def __init__(self, step: Callable[[Any, Runtime[Any]], Coroutine[Any, Any, Update]]) -> None:
        self._step = step
        self.name = step.__name__

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Update:
        """Run the step on our own event loop, and wait for it."""
        return run_blocking(self._step(input, get_runtime()))

    async def ainvoke(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Update:
        """Run the step."""
        return await self._step(input, get_runtime())


class Route(Runnable[Any, Any]):
    """Chooses the next nodes from the state alone.

    Unlike a plain function, it needs no thread in ``ainvoke``.

    Args:
        choose: Returns the name of a node, or the tasks to send to nodes.
    """

    def __init__(self, choose: Callable[[Any], Any]) -> None:
        self._choose = choose
        self.name = choose.__name__

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Choose the next nodes."""
        return self._choose(input)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Choose the next nodes."""
        return self._choose(input)


C = TypeVar("C", bound=Context)


def context_of(runtime: Runtime[Any], default: C) -> C:
    """Return the context of a run.

    Args:
        runtime: The runtime of a step.
        default: The context that the graph was built with. It applies if the caller gave none, or
            if the graph is part of a graph with another context. If the caller gave the context of
            another of our graphs, the values set there override the default's.

    Raises:
        InputError: The two contexts contradict each other.
    """
    given = runtime.context
    if isinstance(given, type(default)):
        return given
    if isinstance(given, Context):  # of another of our graphs
        kind = type(default)
        overrides = {name for name in given.model_fields_set if name in kind.model_fields}
        values = {name: getattr(default, name) for name in default.model_fields_set}
        return checked_context(
            kind, {**values, **{name: getattr(given, name) for name in overrides}}
        )
    return default


def require_hits(found: Sequence[object], engine: SearchEngine, query: str) -> None:
    """Refuse to go on without documents: an answer or a probe needs some.

    Raises:
        NoMatchError: Nothing was found.
    """
    if not found:
        raise NoMatchError(
            f"No document of '{engine.name}' matches the query '{query[:100]}'; try other words."
        )


def forgotten(state: Mapping[str, Any], *results: str) -> Update:
    """Return an update that clears the results of an earlier run, if the thread has any."""
    return {name: None for name in results if state.get(name) is not None}


def begun(state: Mapping[str, Any], **values: Any) -> Update:
    """Return the first values of channels that grow, in place of those of an earlier run.

    To overwrite a channel takes another copy of it in a checkpoint, so we only do that if need be.
    """
    return {key: Overwrite(own) if state.get(key) else own for key, own in values.items()}
