"""What the nodes of the graph have in common."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from langgraph.runtime import Runtime

from fairqr.graph.journal import step_journal
from fairqr.graph.search.context import Context
from fairqr.telemetry import span

__all__ = ["Update", "context_of", "forgotten", "traced"]

Update = dict[str, Any]
"""What a node changes in the state."""

Node = TypeVar("Node", bound=Callable[..., Any])


def traced(node: Node) -> Node:
    """Time a node in a span of its name, and keep what models answer in it, where that is asked."""

    @functools.wraps(node)
    async def timed(self: object, state: Any, runtime: Runtime[Any]) -> Update:
        with span(f"fairqr.{node.__name__}"), step_journal(runtime.execution_info):
            update: Update = await node(self, state, runtime)
            return update

    # LangGraph and type checkers look at the node's own parameters.
    return cast("Node", timed)


C = TypeVar("C", bound=Context)


def context_of(runtime: Runtime[Any], default: C) -> C:
    """Return the context of a run.

    Args:
        runtime: Of a step.
        default: What the graph was built with. It counts where the caller gave no context, and
            where the graph is a part of another one whose context is its own.
    """
    given = runtime.context
    if isinstance(given, type(default)):
        return given
    if isinstance(given, Context):  # that of a search, given to a graph that does more
        values = {**_fields(default), **_fields(given)}
        return type(default).model_validate(values)
    return default


def _fields(context: Context) -> dict[str, Any]:
    return {name: getattr(context, name) for name in type(context).model_fields}


def forgotten(state: Mapping[str, Any], *results: str) -> Update:
    """Return an update without the results of an earlier run, which a thread may still hold."""
    return {name: None for name in results if state.get(name) is not None}
