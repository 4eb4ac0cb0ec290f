"""A step of a run: what has ended, with what it changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langgraph.types import Overwrite


@dataclass(frozen=True, slots=True)
class Step:
    """A node of the graph that has just ended, or a part of an audit, or a whole run.

    Attributes:
        name: The name of the node, if it is one. A search has ``prepare``, ``retrieve``,
            ``measure``, ``choose_group``, ``refine``, ``review`` and ``rerank``; an answer has
            ``prepare`` before the search, and ``sample``, ``generate``, ``attribute`` and
            ``summarize`` after it; a probe has ``prepare`` before, and ``draw``, ``ask`` and
            ``compare`` after it.
        update: What it changed in the state of its graph. The update of ``rerank`` has ``result``
            with the search result as plain data; ``summarize`` has ``answer``, and ``compare`` has
            ``probe``.
        key: The same each time the node does the same part of a run, also after a crash.
    """

    name: str
    update: dict[str, Any]
    key: str = ""


def step_of(graphs: Sequence[str], name: str, changes: Mapping[str, Any]) -> Step:
    """Return the step of a node.

    Args:
        graphs: The nodes that its graph is inside of.
        name: Its name.
        changes: What it changed in the state.
    """
    update = {}
    for field, value in changes.items():
        update[field] = value.value if isinstance(value, Overwrite) else value
    key = " ".join([*graphs, name, _part_of(name, update)]).rstrip()
    return Step(name, update, key)


def _part_of(name: str, update: Mapping[str, Any]) -> str:
    """Return which part of a run a node did that runs several times."""
    if name == "generate":
        return ",".join(update["answers"][0]["ids"])
    if name == "ask":
        outcome = update["outcomes"][0]
        pairs = outcome.get("pairs")
        if pairs:
            return str(pairs[0]["protected"])
        return str(outcome["order"]["persona"])
    return str(update.get("iteration", ""))
