"""Running one of the graphs, and yielding its steps and its progress as they happen."""

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
    """A step of the graph that has just ended.

    Attributes:
        name: The name of the node. A search has ``begin``, ``retrieve``, ``measure``,
            ``choose_group``, ``refine`` and ``rerank``; an answer has ``prepare`` before the
            search, and ``sample``, ``generate``, ``collect``, ``attribute`` and ``summarise`` after
            it; a probe has ``prepare`` before, and ``plan``, ``probe`` and ``conclude`` after it.
        update: What it changed in the state of its graph. The update of ``rerank`` has ``result``
            with the search result as plain data; ``summarise`` has ``answer``, and ``conclude``
            has ``probe``.
        id: Identifies the step. If a resumed run yields or does a step again, the id is the same.
            It is empty for a result that a resumed run already had.
    """

    name: str
    update: dict[str, Any]
    id: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a step is that asks models.

    Attributes:
        node: The name of the step.
        replies: How many replies of models it has got so far.
    """

    node: str
    replies: int


RunEvent = Step | Progress | AIMessageChunk
"""What happens in a run: a step, progress within one, or a piece of an answer."""


async def run_graph(
    graph: Any, query: str, context: Context, *, thread: str | None = None, resume: bool = False
) -> AsyncGenerator[RunEvent, None]:
    """Run one of the three graphs, and yield what happens.

    The run continues when the next event is requested, and ends when the generator is closed.

    Args:
        graph: The graph that searches, answers or probes; compiled with a checkpointer if a thread
            is given. The steps of the search inside an answer or a probe are yielded, too.
        query: What to search for, or the question to answer.
        context: What the run is asked to do.
        thread: The name of the thread that keeps the run's states and the replies of models. A run
            that was killed can be resumed from there. Only questions that were under way are asked
            again. Without a thread, nothing is kept.
        resume: Resume the run of the thread, with the same query and context. Yields the results so
            far and the steps that ended after the last state was saved, and then goes on. If the
            run was over, nothing more happens; if the thread is empty, the run starts.
    """
    config: dict[str, Any] = {"configurable": {"thread_id": thread}} if thread else {}
    given: dict[str, Any] | None = {"query": query}
    replies = Replies(graph.checkpointer, thread) if thread else None
    if replies and resume:
        kept = await graph.aget_state(config, subgraphs=True)
        if kept.values:
            for step in _happened_before(kept):
                yield step
            # Not `next`, which leaves out what has ended since, though its state was not kept yet.
            if not kept.tasks:
                return
            await replies.load(state.config for state in _states(kept))
            given = None
    # A run of ours keeps its own states, or none. Inside a node of another graph, it would inherit
    # that graph's checkpointer, and its mark that it resumes after an interrupt.
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


# "updates" would name no task, so a step that is done again would look like another one.
_MODES: list[Any] = ["tasks", "custom"]

ANSWERING = "generate"
"""The step whose messages are pieces of an answer."""

_OUTCOMES = {"rerank": "result", "conclude": "probe", "summarise": "answer"}
"""The steps that end a part of a run, and the key of the result in their update."""


def _states(kept: StateSnapshot) -> Iterator[StateSnapshot]:
    """Yield the state of a graph, and then the state of the graph that is running inside it."""
    yield kept
    for task in kept.tasks:
        if isinstance(task.state, StateSnapshot):
            yield from _states(task.state)


def _happened_before(kept: StateSnapshot) -> Iterator[Step]:
    """Yield the results so far, and the steps that ended after the last state was saved."""
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
        piece, about = update
        return piece if about.get("langgraph_node") == ANSWERING else None
    if mode == "custom":  # nodes of others may write what they like
        ours = isinstance(update, Mapping) and "progress" in update
        return Progress(**update["progress"]) if ours else None
    if "result" not in update or update["error"] is not None:  # it begins, or has failed
        return None
    if update["name"] == SEARCH:  # its own steps were yielded already
        return None
    return Step(update["name"], _plain(update["result"]), update["id"])


def _plain(update: dict[str, Any]) -> dict[str, Any]:
    """Return what a step changed, without LangGraph's ``Overwrite`` marks."""
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
