"""Running the graph, and telling what happens as it happens."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessageChunk
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.types import Overwrite, StateSnapshot

from fairqr.base.telemetry import span
from fairqr.graph.answer.context import AnswerContext
from fairqr.graph.journal import Replies, kept_replies
from fairqr.graph.search.context import Context
from fairqr.graph.steps import SEARCH

__all__ = ["Progress", "RunEvent", "Step", "run_graph"]


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the graph that has just happened.

    Attributes:
        name: Of the node. A search has ``begin``, ``retrieve``, ``measure``, ``choose_group``,
            ``refine`` and ``rerank``; an answer has ``prepare`` before the search, and ``sample``,
            ``generate``, ``collect``, ``attribute`` and ``summarise`` after it; a probe has
            ``prepare`` before, and ``plan``, ``probe`` and ``conclude`` after it.
        update: What it changed in the state of its graph. That of ``rerank`` has ``result``, the
            search result's object; that of ``summarise`` has ``answer``, the answer result's; that
            of ``conclude`` has ``probe``, the probe result's.
        id: The same where a run that goes on tells or does a step again; different for all others.
            Empty where a run that goes on tells a result once more that it had before.
    """

    name: str
    update: dict[str, Any]
    id: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a step is that asks models.

    Attributes:
        node: The step's name.
        replies: How many replies of models it has had so far.
    """

    node: str
    replies: int


RunEvent = Step | Progress | AIMessageChunk
"""What happens in a run: a step, progress within one, or a piece of an answer."""


async def run_graph(
    graph: Any, query: str, context: Context, *, thread: str | None = None, resume: bool = False
) -> AsyncGenerator[RunEvent, None]:
    """Run one of the three graphs, and yield what happens.

    It goes on when the next event is asked for, and ends when the generator is closed.

    Args:
        graph: That of a search, an answer or a probe, compiled with a checkpointer if there is a
            thread. The steps of the search inside the others are told like all others.
        query: What to search for, or to answer.
        context: What the run is asked to do.
        thread: The name that the run's states are kept under, each before the next step begins,
            and with them what models answered since the last of them. A run that was killed then
            goes on from there, and asks nothing again that was answered: of a question to a model,
            only one that was under way. None keeps nothing.
        resume: Go on with what is kept of the thread, under the same query and context. What had
            happened before the last state that was kept is not told again, but for the results that
            there are; of the steps that follow it, those that had ended are. Where the run was
            over, nothing more happens. Where nothing is kept, it begins.
    """
    config: dict[str, Any] = {"configurable": {"thread_id": thread}} if thread else {}
    given: dict[str, Any] | None = {"query": query}
    replies = Replies(graph.checkpointer, thread) if thread else None
    if replies and resume:
        kept = await graph.aget_state(config, subgraphs=True)
        if kept.values:
            for step in _told_before(kept):
                yield step
            # Not `next`, which leaves out what has ended since, though its state was not kept yet.
            if not kept.tasks:
                return
            await replies.load(state.config for state in _states(kept))
            given = None
    # A run of ours keeps its own states, or none. Inside a node of another graph it would else take
    # that graph's checkpointer along, and its mark that it goes on after an interrupt.
    apart = contextvars.copy_context()
    if (outer := var_child_runnable_config.get()) is not None:
        config["callbacks"] = outer.get("callbacks")
        apart.run(var_child_runnable_config.set, None)
    wants_pieces = isinstance(context, AnswerContext) and context.answer.stream
    modes = [*_MODES, "messages"] if wants_pieces else _MODES
    events: asyncio.Queue[RunEvent | None] = asyncio.Queue()

    async def run() -> None:
        updates = graph.astream(
            given,
            config,
            context=context,
            stream_mode=modes,
            subgraphs=True,
            durability="sync" if thread else None,
        )
        try:
            with (
                span("invoke_workflow fairqr", **_asked(context, thread, given is None)),
                kept_replies(replies),
            ):
                async with aclosing(updates):
                    async for _, mode, update in updates:
                        if (event := _event(mode, update)) is not None:
                            events.put_nowait(event)
                            await events.join()
        finally:
            events.put_nowait(None)

    # A generator runs in the context of whoever asks it for the next step or closes it, so that
    # a span cannot be open across its yields. A task has a context of its own.
    task = asyncio.create_task(run(), context=apart)
    try:
        while (event := await events.get()) is not None:
            yield event
            events.task_done()
        await task
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # it has been raised above, or nobody is there to take it


# Of the modes that tell of steps, "updates" names no task, so that a step that is told or done
# again could not be told from another one.
_MODES: list[Any] = ["tasks", "custom"]

ANSWERING = "generate"
"""The step whose messages are pieces of an answer."""

_OUTCOMES = {"rerank": "result", "conclude": "probe", "summarise": "answer"}
"""The steps that end a part of a run, and what each then has."""


def _states(kept: StateSnapshot) -> Iterator[StateSnapshot]:
    """Yield the state of a graph, and then that of the graph inside it which is under way."""
    yield kept
    for task in kept.tasks:
        if isinstance(task.state, StateSnapshot):
            yield from _states(task.state)


def _told_before(kept: StateSnapshot) -> Iterator[Step]:
    """Yield the results so far, and the steps after the last state that need not be done again."""
    for state in _states(kept):
        for name, key in _OUTCOMES.items():
            if state.values.get(key) is not None:
                yield Step(name, {key: state.values[key]})
    for state in _states(kept):
        for task in state.tasks:
            if task.result is None:
                continue
            if task.name == SEARCH:
                yield Step("rerank", _plain(task.result))
            else:
                yield Step(task.name, _plain(task.result), task.id)


def _event(mode: str, update: Any) -> RunEvent | None:
    if mode == "messages":
        piece, told = update
        return piece if told.get("langgraph_node") == ANSWERING else None
    if mode == "custom":  # parts that others have written may tell what they like
        ours = isinstance(update, Mapping) and "progress" in update
        return Progress(**update["progress"]) if ours else None
    if "result" not in update or update["error"] is not None:  # it begins, or has failed
        return None
    if update["name"] == SEARCH:  # its own steps were told
        return None
    return Step(update["name"], _plain(update["result"]), update["id"])


def _plain(update: dict[str, Any]) -> dict[str, Any]:
    """Return what a step changed, without LangGraph's marks of how."""
    return {
        key: value.value if isinstance(value, Overwrite) else value for key, value in update.items()
    }


def _asked(context: Context, thread: str | None, resumed: bool) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": "fairqr",
        "fairqr.method": context.method,
        "fairqr.attributes": list(context.attributes),
        "fairqr.target": str(context.target),
        "fairqr.k": context.k,
    }
    if isinstance(context, AnswerContext):
        asked["fairqr.alpha"] = context.answer.alpha
        asked["fairqr.samples"] = context.answer.samples
        asked["fairqr.documents"] = context.answer.documents
    if thread is not None:
        asked |= {"fairqr.thread": thread, "fairqr.resumed": resumed}
    return asked
