"""What the nodes that answer and probe share: tracing, the journal of durable runs, contexts."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.config import get_config
from langgraph.runtime import get_runtime

from fairqr.agents.models.cache import Journal, ReplyCache, asking_with, surroundings
from fairqr.base.errors import InputError, QueryError
from fairqr.base.loops import run_together
from fairqr.base.telemetry import span
from fairqr.graph.running import Node, Update, running_seconds, timed
from fairqr.graph.search.context import Context, require_context
from fairqr.retrieval.engines.engine import SearchEngine

CONCURRENCY = 8
"""How many rankings are answered or judged, or parts of a probe run, at the same time."""

SEARCH = "search"
"""The node that runs the search graph inside an answer or a probe."""

RESULTS = ("result", "answer", "probe")
"""What the three graphs end with."""

Write = Callable[[Any], Awaitable[Any]]
"""Writes something on a connection of the database."""

C = TypeVar("C", bound=Context)


Tell = Callable[[str, int, Update], None]
"""Tells that a step has ended: its name, its number and what it changed."""

_tell: ContextVar[Tell | None] = ContextVar("fairqr_tell", default=None)


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
        tell = _tell.get()
        if tell is not None:
            tell(work.__name__, state.get("at", 0), update)
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
        *,
        is_first: bool = False,
    ) -> Node:
        """Return the node that does the work of a method: one step, or several after one another.

        Its time is counted: the state's ``seconds`` are the time of all nodes up to its end. The
        journal of a durable run hears of each of its steps.

        When a step has ended, LangGraph's stream ``custom`` gets its name and what it changed.

        Args:
            work: The method, which takes the state and the run's context.
            name: The name of the node; by default the method's.
            is_first: Whether runs start with it.
        """

        async def run(state: Any) -> Update:
            write, journal = get_runtime().stream_writer, run_journal()

            def tell(step: str, at: int, update: Update) -> None:
                if journal is not None:
                    journal.ended(_step_key(step, at), step, update)
                write({"step": step, "update": update})

            seconds = 0.0 if is_first else state.get("seconds", 0.0)
            token = _tell.set(tell)
            try:
                with asking_with(cache=ReplyCache()), timed(seconds):
                    update = await work(state, self.context(get_runtime().context))
                    update = {**update, "seconds": running_seconds()}
            finally:
                _tell.reset(token)
            if is_first:
                # The thread may contain an earlier run.
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
