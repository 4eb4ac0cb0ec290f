"""What the nodes of the graph have in common."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar, cast

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.runtime import Runtime, get_runtime
from langgraph.types import Overwrite

from fairqr.agents.cache import remembering
from fairqr.agents.language_model import calling_after_replies
from fairqr.base.loops import run_blocking
from fairqr.base.telemetry import span
from fairqr.graph.journal import step_journal
from fairqr.graph.search.context import Context, checked_context
from fairqr.graph.usage import running_from, running_seconds

__all__ = ["CONCURRENCY", "SEARCH", "Node", "Route", "Update", "context_of", "forgotten", "traced"]

CONCURRENCY = 8
"""How many rankings are answered from or judged, or parts of a probe run, at the same time."""

SEARCH = "search"
"""The node of an answer and of a probe that is the graph of a search."""

Update = dict[str, Any]
"""What a node changes in the state."""

Method = TypeVar("Method", bound=Callable[..., Any])


def traced(node: Method) -> Method:
    """Time a node, in a span of its name, and keep what models answer in it, where that is asked.

    After each reply of a model, the graph's stream ``custom`` gets
    ``{"progress": {"node": NAME, "replies": NUMBER}}``: how many replies the node has had.

    The state's ``seconds`` are those that the steps took until the node's end, and what the node
    adds to them. The first node of a graph overwrites them, since a thread may hold those of an
    earlier run.
    """

    @functools.wraps(node)
    async def timed(self: object, state: Any, runtime: Runtime[Any]) -> Update:
        replies = itertools.count(1)

        def tell() -> None:
            told = {"node": node.__name__, "replies": next(replies)}
            runtime.stream_writer({"progress": told})

        with (
            span(f"fairqr.{node.__name__}"),
            calling_after_replies(tell),
            step_journal(runtime.execution_info),
            remembering(),
            running_from(before := state.get("seconds", 0.0)),
        ):
            update: Update = await node(self, state, runtime)
            if isinstance(update.get("seconds"), Overwrite):
                return {**update, "seconds": Overwrite(running_seconds() - before)}
            return {"seconds": running_seconds() + update.pop("seconds", 0.0), **update}

    # Type checkers look at the node's own parameters.
    return cast("Method", timed)


class Node(Runnable[Any, Any]):
    """A node that runs in ``ainvoke``, and in ``invoke`` too.

    Args:
        step: Does the work.
    """

    def __init__(self, step: Callable[[Any, Runtime[Any]], Coroutine[Any, Any, Update]]) -> None:
        self._step = step
        self.name = step.__name__

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Update:
        """Do the step, and wait for it."""
        return run_blocking(self._step(input, get_runtime()))

    async def ainvoke(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Update:
        """Do the step."""
        return await self._step(input, get_runtime())


class Route(Runnable[Any, Any]):
    """Chooses the next nodes from the state alone.

    LangGraph would send a function that is not asynchronous to a thread.

    Args:
        choose: Returns the name of a node, or what is to be sent to nodes.
    """

    def __init__(self, choose: Callable[[Any], Any]) -> None:
        self._choose = choose
        self.name = choose.__name__

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Choose."""
        return self._choose(input)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Choose."""
        return self._choose(input)


C = TypeVar("C", bound=Context)


def context_of(runtime: Runtime[Any], default: C) -> C:
    """Return the context of a run.

    Args:
        runtime: Of a step.
        default: What the graph was built with. It counts where the caller gave no context, and
            where the graph is a part of another one whose context is its own. What a context of
            another of our graphs says takes the place of the same in the default.

    Raises:
        InputError: The two do not fit.
    """
    given = runtime.context
    if isinstance(given, type(default)):
        return given
    if isinstance(given, Context):  # that of another of our graphs
        kind = type(default)
        said = {name for name in given.model_fields_set if name in kind.model_fields}
        values = {name: getattr(default, name) for name in default.model_fields_set}
        return checked_context(kind, {**values, **{name: getattr(given, name) for name in said}})
    return default


def forgotten(state: Mapping[str, Any], *results: str) -> Update:
    """Return an update without the results of an earlier run, which a thread may still hold."""
    return {name: None for name in results if state.get(name) is not None}
