"""Helpers for the nodes of all three graphs."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.config import get_config
from langgraph.runtime import Runtime, get_runtime
from langgraph.types import Overwrite

from fairqr.agents.models.cache import ReplyCache, asking_with
from fairqr.base.errors import NoMatchError
from fairqr.base.loops import run_blocking
from fairqr.base.telemetry import Span, span
from fairqr.graph.journal import run_journal
from fairqr.graph.search.context import Context, checked_context
from fairqr.graph.usage import UsageReport, running_from, running_seconds
from fairqr.prompts.template import PromptReference
from fairqr.retrieval.engines.engine import SearchEngine

CONCURRENCY = 8
"""How many rankings are answered or judged, or parts of a probe run, at the same time."""

SEARCH = "search"
"""The node that runs the search graph inside an answer or a probe."""

Update = dict[str, Any]
"""What a node changes in the state."""

C = TypeVar("C", bound=Context)


Work = Coroutine[Any, Any, Update]


def traced(node: Callable[..., Work]) -> Callable[..., Work]:
    """Make a node of a method that takes the state, the run's context and an open span.

    The time of the node is counted, and the journal of a durable run is told that it ended.

    After each reply of a model, LangGraph's stream ``custom`` gets
    ``{"progress": {"node": NAME, "replies": NUMBER}}``. The number counts the node's replies.

    The state's ``seconds`` are the time of all steps up to the end of the node, plus what the node
    itself adds. The first node of a graph overwrites them, since the thread may contain those of an
    earlier run.
    """

    @functools.wraps(node)
    async def step(self: Any, state: Any, runtime: Runtime[Any]) -> Update:
        replies = itertools.count(1)

        def report() -> None:
            progress = {"node": node.__name__, "replies": next(replies)}
            runtime.stream_writer({"progress": progress})

        with (
            span(f"fairqr.{node.__name__}") as opened,
            asking_with(cache=ReplyCache(), on_reply=report),
            running_from(before := state.get("seconds", 0.0)),
        ):
            update = await node(self, state, self.context(runtime.context), opened)
            if isinstance(update.get("seconds"), Overwrite):
                update = {**update, "seconds": Overwrite(running_seconds() - before)}
            else:
                update = {"seconds": running_seconds() + update.pop("seconds", 0.0), **update}
        if (journal := run_journal()) is not None:
            journal.ended(_step_key(), node.__name__, plain_update(update))
        return update

    return step


def _step_key() -> str:
    """Return a key of the step that runs: its number, its place in the graphs, and among others.

    LangGraph's own ids differ where a step runs again because its checkpoint was not written.
    """
    about = get_config()["metadata"]
    nodes = [part.partition(":")[0] for part in about["langgraph_checkpoint_ns"].split("|")]
    return " ".join(map(str, (about["langgraph_step"], *nodes, *about["langgraph_path"])))


def plain_update(update: Mapping[str, Any]) -> Update:
    """Return what a step changed, without LangGraph's ``Overwrite`` marks."""
    return {
        key: value.value if isinstance(value, Overwrite) else value for key, value in update.items()
    }


class Node(Runnable[Any, Any]):
    """A node that works in ``ainvoke`` and in ``invoke``.

    Args:
        step: The asynchronous function that does the work.
    """

    def __init__(self, step: Callable[[Any, Runtime[Any]], Coroutine[Any, Any, Update]]) -> None:
        self._step = step
        self.name = self.__name__ = step.__name__

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Update:
        """Run the step on our own event loop, and wait for it."""
        return run_blocking(self._step(input, get_runtime()))

    async def ainvoke(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Update:
        """Run the step."""
        return await self._step(input, get_runtime())


class Route(Node):
    """Chooses the next nodes from the state alone.

    Unlike a plain function, it needs no thread in ``ainvoke``.

    Args:
        step: Returns the name of a node, or the tasks to send to nodes.
    """

    def __init__(self, step: Callable[[Any], Any]) -> None:
        self._choose = step
        self.name = step.__name__

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Choose the next nodes."""
        return self._choose(input)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Choose the next nodes."""
        return self._choose(input)


def context_of(given: object, default: C) -> C:
    """Return the context of a run.

    Args:
        given: The context that the caller gave, if any.
        default: The context that the graph was built with. It applies if the caller gave none, or
            if the graph is part of a graph with another context. If the caller gave the context of
            another of our graphs, the values set there override the default's.

    Raises:
        InputError: The two contexts contradict each other.
    """
    kind = type(default)
    if isinstance(given, kind):
        return given
    if isinstance(given, Context):  # of another of our graphs
        own = {name: getattr(default, name) for name in default.model_fields_set}
        overrides = given.model_fields_set & kind.model_fields.keys()
        return checked_context(kind, own | {name: getattr(given, name) for name in overrides})
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


def record_outcome(
    step: Span,
    usage: UsageReport,
    prompts: Iterable[PromptReference | None],
    **models: str | None,
) -> None:
    """Record the models and prompts of a run, and what it has cost so far.

    Args:
        step: A step that ends a part of the run.
        usage: What the run has cost so far.
        prompts: The prompts in use; None is skipped.
        models: The names of the models, by their role; None is skipped.
    """
    step.set("fairqr.models", [f"{what}={name}" for what, name in models.items() if name])
    used = [prompt for prompt in prompts if prompt is not None]
    step.set("fairqr.prompts", [f"{it.id}={it.version} {it.sha256}" for it in used])
    step.set("fairqr.model_calls", usage.model_calls)
    step.set("fairqr.cached_calls", usage.cached_calls)
    step.set("fairqr.input_tokens", usage.prompt_tokens)
    step.set("fairqr.output_tokens", usage.completion_tokens)
