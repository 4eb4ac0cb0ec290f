"""What the nodes of the graph have in common."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from langgraph.runtime import Runtime

from fairqr.graph.context import Context
from fairqr.graph.journal import step_journal
from fairqr.telemetry import span

__all__ = ["Update", "context_of", "traced"]

Update = dict[str, Any]
"""What a node changes in the state."""

Node = TypeVar("Node", bound=Callable[..., Any])


def traced(node: Node) -> Node:
    """Time a node in a span of its name, and keep what models answer in it, where that is asked."""

    @functools.wraps(node)
    async def timed(self: object, state: Any, runtime: Runtime[Context]) -> Update:
        with span(f"fairqr.{node.__name__}"), step_journal(runtime.execution_info):
            update: Update = await node(self, state, runtime)
            return update

    # LangGraph and type checkers look at the node's own parameters.
    return cast("Node", timed)


def context_of(runtime: Runtime[Context]) -> Context:
    """Return the context of a run; LangGraph gives None where the caller gave none."""
    return runtime.context or Context()
