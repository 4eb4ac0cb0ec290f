"""What the nodes of all three graphs share: tracing, time and usage, the journal, contexts.

Only the time within steps counts. Between two steps, a person may think for an hour about the
keywords, or a killed run may be resumed the next day.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.config import get_config
from langgraph.runtime import get_runtime
from langgraph.types import Overwrite

from fairqr.agents.models.cache import Journal, ReplyCache, asking_with, surroundings
from fairqr.agents.models.replies import Usage
from fairqr.base.errors import InputError, QueryError
from fairqr.base.loops import run_blocking, run_together
from fairqr.base.telemetry import current_span, span
from fairqr.graph.search.context import Context, Frozen, require_context
from fairqr.retrieval.engines.engine import SearchEngine

CONCURRENCY = 8
"""How many rankings are answered or judged, or parts of a probe run, at the same time."""

SEARCH = "search"
"""The node that runs the search graph inside an answer or a probe."""

RESULTS = ("result", "answer", "probe")
"""What the three graphs end with."""

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


def usage_report(usage: Usage) -> UsageReport:
    """Return what a run has cost so far, for its result."""
    return UsageReport(**asdict(usage), milliseconds=round(running_seconds() * 1000, 1))


@dataclass
class _Running:
    """A node that runs.

    Attributes:
        began: When the run would have begun without pauses.
        tell: Tells that a step has ended: its name, its number and what it changed.
    """

    began: float
    tell: Callable[[str, int, Update], None]


_running: ContextVar[_Running | None] = ContextVar("fairqr_running", default=None)


def running_seconds() -> float:
    """Return how long the run has been running until now; 0 outside of a step."""
    running = _running.get()
    return 0.0 if running is None else time.perf_counter() - running.began


def seconds_left(context: Context) -> float | None:
    """Return the seconds that are left of a run's budget, or None without such a budget."""
    if context.budget.seconds is None:
        return None
    return max(0.0, context.budget.seconds - running_seconds())


def add_seconds(result: Mapping[str, Any]) -> None:
    """Count the time of a search, from its result, as time of the run."""
    if (running := _running.get()) is not None:
        running.began -= result["usage"]["milliseconds"] / 1000


class RunJournal(Journal, Protocol):
    """The journal of a durable run, which also keeps the run's events.

    Attributes:
        saver: LangGraph's checkpointer, which keeps where the run is.
        resumed: Whether there are checkpoints to go on from.
    """

    saver: BaseCheckpointSaver[Any]
    resumed: bool

    async def begin_over(self, version: str) -> None:
        """Forget the checkpoints if they are over another version of the index."""

    def ended(self, key: str, name: str, update: Mapping[str, Any]) -> None:
        """Take note that a step has ended.

        Args:
            key: The same each time the step runs, also after a crash.
            name: Its name.
            update: What it changed in the state.
        """

    def write(self, write: Write) -> None:
        """Take note of a checkpoint, or a part of one; it is kept a moment later."""

    async def settled(self) -> bool:
        """Keep the checkpoints that were noted; return whether there are any of the run."""


def run_journal() -> RunJournal | None:
    """Return the journal of the current run, or None if it has none."""
    return cast("RunJournal | None", surroundings().journal)


Work = Callable[..., Coroutine[Any, Any, Update]]


def traced(work: Work) -> Work:
    """Make a step, with a span of its own, of a method that takes the state and the run's context.

    If the same step runs several times in a node, each time's state has a number ``at``.
    """

    @functools.wraps(work)
    async def step(self: Any, state: Any, context: Any) -> Update:
        with span(f"fairqr.{work.__name__}"):
            update = await work(self, state, context)
        if (running := _running.get()) is not None:
            running.tell(work.__name__, state.get("at", 0), update)
        return update

    return step


async def at_once(work: Callable[..., Any], tasks: Iterable[Any], context: Context) -> list[Any]:
    """Do several tasks of a node, as many at the same time as LangGraph's config allows.

    Each is work with a state: the task, and its number ``at``.
    """
    limit = asyncio.Semaphore(get_config().get("max_concurrency") or CONCURRENCY)

    async def do(at: int, task: Mapping[str, Any]) -> Any:
        async with limit:
            return await work({**task, "at": at}, context)

    return await run_together([do(at, task) for at, task in enumerate(tasks)])


def _step_key(name: str, at: int) -> str:
    """Return a key of a step: its name and number, and of its node the same, and the place.

    LangGraph's own ids differ where a step runs again because its checkpoint was not written.
    """
    about = get_config()["metadata"]
    nodes = [part.partition(":")[0] for part in about["langgraph_checkpoint_ns"].split("|")]
    place = about["langgraph_step"], *nodes, *about["langgraph_path"]
    return " ".join(map(str, (*place, name, at)))


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
        """Run the step on our own event loop, and wait for it."""
        return run_blocking(self._work(input))

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Run the step."""
        return await self._work(input)


@dataclass(frozen=True, kw_only=True)
class Nodes(Generic[C]):
    """The steps of a graph over one engine.

    Attributes:
        engine: The search engine.
        default: The context that the graph was built with, if any. It applies to runs that bring
            none, and inside a graph of others with another context.
        kind: The class of the contexts.
    """

    engine: SearchEngine
    default: C | None
    kind: ClassVar[type[Context]]

    def __post_init__(self) -> None:
        """Check the context that the graph was built with."""
        require_context(self.kind, self.default)

    def context(self, given: object) -> C:
        """Return the context of a run, from what the caller gave.

        Raises:
            InputError: There is none, or two contradict each other.
        """
        if isinstance(given, self.kind):
            return cast("C", given)
        if self.default is None or isinstance(given, Context):  # of another of our graphs
            raise InputError(f"The run needs a context; give the graph a {self.kind.__name__}.")
        return self.default

    def node(
        self,
        work: Callable[[Any, C], Awaitable[Update]],
        name: str = "",
        grows: Sequence[str] | None = None,
    ) -> Node:
        """Return the node that does the work of a method: one step, or several after one another.

        Its time is counted: the state's ``seconds`` are the time of all nodes up to its end. The
        journal of a durable run hears of each of its steps.

        When a step has ended, LangGraph's stream ``custom`` gets its name and what it changed.

        Args:
            work: The method, which takes the state and the run's context.
            name: The name of the node; by default the method's.
            grows: If a run begins with it, the lists of the state that grow. The thread may contain
                an earlier run.
        """

        async def run(state: Any) -> Update:
            write, journal = get_runtime().stream_writer, run_journal()

            def tell(step: str, at: int, update: Update) -> None:
                if journal is not None:
                    journal.ended(_step_key(step, at), step, update)
                write({"step": step, "update": update})

            before = state.get("seconds", 0.0) if grows is None else 0.0
            token = _running.set(_Running(time.perf_counter() - before, tell))
            try:
                with asking_with(cache=ReplyCache()):
                    update = await work(state, self.context(get_runtime().context))
                update = {**update, "seconds": running_seconds()}
            finally:
                _running.reset(token)
            if grows is not None:
                # To overwrite takes another copy in a checkpoint, so only if need be.
                known = [key for key in grows if state.get(key)]
                update |= {key: Overwrite(update.get(key, [])) for key in known}
                update |= {key: None for key in RESULTS if state.get(key) is not None}
            return update

        return Node(run, name or work.__name__)


def require_hits(found: Sequence[object], engine: SearchEngine, query: str) -> None:
    """Refuse to go on without documents: an answer or a probe needs some.

    Raises:
        QueryError: Nothing was found.
    """
    if not found:
        raise QueryError(
            f"No document of '{engine.name}' matches the query '{query[:100]}'; try other words."
        )


def record(**figures: Any) -> None:
    """Record figures and decisions in the span of the current step; None is left out."""
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
    record(
        models=[f"{what}={name}" for what, name in models.items() if name],
        prompts=[f"{it.id}={it.version} {it.sha256}" for it in prompts if it is not None],
        **usage.model_dump(include={"model_calls", "cached_calls"}),
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
    )
