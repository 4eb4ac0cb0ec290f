"""What the nodes of all three graphs share: tracing, time and usage, the journal, contexts.

Only the time within steps counts. Between two steps, a person may think for an hour about the
keywords, or a killed run may be resumed the next day.
"""

from __future__ import annotations

import functools
import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict
from typing import Any, TypeVar

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.config import get_config
from langgraph.runtime import Runtime, get_runtime
from langgraph.types import Overwrite

from fairqr.agents.models.cache import ReplyCache, asking_with, surroundings
from fairqr.agents.models.replies import Reply, Usage, Validate
from fairqr.base.errors import NoMatchError
from fairqr.base.loops import run_blocking
from fairqr.base.telemetry import Span, span
from fairqr.graph.search.context import Context, Frozen, checked_context
from fairqr.prompts.template import PromptReference
from fairqr.retrieval.engines.engine import SearchEngine

CONCURRENCY = 8
"""How many rankings are answered or judged, or parts of a probe run, at the same time."""

SEARCH = "search"
"""The node that runs the search graph inside an answer or a probe."""

Update = dict[str, Any]
"""What a node changes in the state."""

Write = Callable[[Any], Awaitable[Any]]
"""Writes something on a connection of the database."""

C = TypeVar("C", bound=Context)


class UsageReport(Frozen):
    """The cost of a search, an answer or a probe, in its result.

    Attributes:
        model_calls: Requests to models.
        cached_calls: Requests that the cache answered.
        prompt_tokens, completion_tokens: The tokens of the requests to models.
        cached_tokens: The tokens that cached replies cost when models were first asked.
        cached_milliseconds: How long models took for these replies, added up.
        milliseconds: How long the steps took.
    """

    model_calls: int
    cached_calls: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    cached_milliseconds: float = 0.0
    milliseconds: float


def usage_of(result: Mapping[str, Any]) -> Usage:
    """Return the usage in a result that is plain data."""
    return Usage(**{key: value for key, value in result["usage"].items() if key != "milliseconds"})


def total_usage(records: Iterable[Mapping[str, Any]], before: Usage | None = None) -> Usage:
    """Return the sum of several records, plus the usage before them."""
    return sum((Usage(**record) for record in records), before or Usage())


def usage_report(usage: Usage) -> UsageReport:
    """Return what a run has cost so far, for its result."""
    return UsageReport(**asdict(usage), milliseconds=round(running_seconds() * 1000, 1))


_began: ContextVar[float | None] = ContextVar("fairqr_began", default=None)


@contextmanager
def running_from(seconds: float) -> Iterator[None]:
    """Time a step of a run whose earlier steps took this many seconds."""
    token = _began.set(time.perf_counter() - seconds)
    try:
        yield
    finally:
        _began.reset(token)


def running_seconds() -> float:
    """Return how long the run has been running until now; 0 outside of a step."""
    began = _began.get()
    return 0.0 if began is None else time.perf_counter() - began


def seconds_left(context: Context) -> float | None:
    """Return the seconds that are left of a run's budget, or None without such a budget."""
    if context.budget.seconds is None:
        return None
    return max(0.0, context.budget.seconds - running_seconds())


def longest(one: float, other: float) -> float:
    """Return the greater of two times; parallel steps each report the time of the whole run."""
    return max(one, other)


class RunJournal(ABC):
    """The journal of one run; see :class:`fairqr.agents.models.cache.Journal`.

    Attributes:
        saver: LangGraph's checkpointer, which keeps where the run is.
        resumed: Whether there are checkpoints to go on from.
    """

    saver: BaseCheckpointSaver[Any]
    resumed: bool

    @abstractmethod
    async def begin_over(self, version: str) -> None:
        """Forget the checkpoints if they are over another version of the index."""

    @abstractmethod
    async def once(self, key: str, check: Validate, ask: Callable[[], Awaitable[Reply]]) -> Reply:
        """Return the kept reply to a question, or ask it and keep the reply."""

    @abstractmethod
    def ended(self, key: str, name: str, update: Mapping[str, Any]) -> None:
        """Take note that a step has ended.

        Args:
            key: The same each time the step runs, also after a crash.
            name: The name of the node.
            update: What it changed in the state.
        """

    @abstractmethod
    def write(self, write: Write) -> None:
        """Take note of a checkpoint, or a part of one."""

    @abstractmethod
    async def flush(self) -> None:
        """Keep for good what was noted, all of it or nothing.

        Raises:
            asyncio.CancelledError: The run is not this process's any more.
        """


def run_journal() -> RunJournal | None:
    """Return the journal of the current run, or None if it has none."""
    journal = surroundings().journal
    return journal if isinstance(journal, RunJournal) else None


Work = Callable[..., Coroutine[Any, Any, Update]]


def traced(node: Work) -> Work:
    """Make a node of a method that takes the state, the run's context and an open span.

    The time of the node is counted, and the journal of a durable run is told that it ended.

    After each reply of a model, LangGraph's stream ``custom`` gets
    ``{"progress": {"node": NAME, "replies": NUMBER}}``. The number counts the node's replies.

    The state's ``seconds`` are the time of all steps up to the end of the node, plus what the node
    itself adds. The first node of a graph overwrites them, since the thread may contain those of an
    earlier run.
    """

    @functools.wraps(node)
    async def step(self: Any, state: Any, runtime: Runtime[Any] | None = None) -> Update:
        running, replies = runtime or get_runtime(), itertools.count(1)

        def report() -> None:
            progress = {"node": node.__name__, "replies": next(replies)}
            running.stream_writer({"progress": progress})

        with (
            span(f"fairqr.{node.__name__}") as opened,
            asking_with(cache=ReplyCache(), on_reply=report),
            running_from(before := state.get("seconds", 0.0)),
        ):
            update = await node(self, state, self.context(running.context), opened)
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
    """A node, or a choice of the next nodes, that works in ``ainvoke`` and in ``invoke``.

    Unlike for a plain function, LangGraph starts no thread for it.

    Args:
        step: Takes the state, and does the work.
    """

    def __init__(self, step: Callable[[Any], Coroutine[Any, Any, Any]]) -> None:
        self._step = step
        self.name = self.__name__ = step.__name__

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Run the step on our own event loop, and wait for it."""
        return run_blocking(self._step(input))

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Run the step."""
        return await self._step(input)


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
