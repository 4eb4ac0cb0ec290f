"""Running the graph, and telling what happens as it happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fairqr.graph.context import Context
from fairqr.telemetry import span

__all__ = ["Step", "Token", "run_graph"]


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the graph that has just happened.

    Attributes:
        name: ``begin``, ``retrieve``, ``measure``, ``choose_group``, ``refine`` or ``rerank``; with
            an answer then ``sample``, ``generate``, ``collect``, ``attribute`` or ``summarise``;
            with a probe then ``probe`` or ``conclude``.
        update: What it changed in the state of the graph; see :class:`fairqr.graph.state.State`.
            That of ``rerank`` has ``result``, the search result's object; that of ``summarise``,
            the last step where an answer is asked for, has ``answer``, the answer result's; that of
            ``conclude`` has ``probe``, the probe result's.
    """

    name: str
    update: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of an answer that is being written."""

    text: str


async def run_graph(
    graph: Any, query: str, context: Context, *, thread: str | None = None, resume: bool = False
) -> AsyncGenerator[Step | Token, None]:
    """Run the graph of :func:`fairqr.graph.builder.build_graph`, and yield what happens.

    It goes on when the next event is asked for, and ends when the generator is closed.

    Args:
        graph: Compiled with a checkpointer if there is a thread.
        query: What to search for, or to answer.
        context: What the run is asked to do.
        thread: The name that the run's states are kept under, each before the next step begins; a
            run that was killed then goes on from its last step. None keeps nothing.
        resume: Go on with what is kept of the thread, under the same query and context. What had
            happened is not told again; where the run was over, its last step is. Where nothing is
            kept, the run begins.
    """
    config: dict[str, Any] = {"configurable": {"thread_id": thread}} if thread else {}
    given: dict[str, Any] | None = {"query": query}
    if thread and resume:
        kept = await graph.aget_state(config)
        if kept.values:
            if not kept.next:
                for step in _outcome(kept.values):
                    yield step
                return
            given = None
    events: asyncio.Queue[Step | Token | None] = asyncio.Queue()

    async def run() -> None:
        updates = graph.astream(
            given,
            config,
            context=context,
            stream_mode=_MODES,
            durability="sync" if thread else None,
        )
        try:
            with span("invoke_workflow fairqr", **_asked(context)):
                async with aclosing(updates):
                    async for mode, update in updates:
                        for event in _events(mode, update):
                            events.put_nowait(event)
                            await events.join()
        finally:
            events.put_nowait(None)

    # A generator runs in the context of whoever asks it for the next step or closes it, so that
    # a span cannot be open across its yields. A task has a context of its own.
    task = asyncio.create_task(run())
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


_MODES = ["updates", "custom"]

_OUTCOMES = {"rerank": "result", "conclude": "probe", "summarise": "answer"}
"""The steps that end a part of a run, and what each then has."""


def _outcome(values: dict[str, Any]) -> list[Step]:
    """Return the last steps of a run that is over, as they were told when they happened."""
    return [
        Step(name, {key: values[key]})
        for name, key in _OUTCOMES.items()
        if values.get(key) is not None
    ]


def _events(mode: str, update: dict[str, Any]) -> list[Step | Token]:
    if mode == "custom":
        return [Token(update["token"])]
    return [Step(name, change or {}) for name, change in update.items()]


def _asked(context: Context) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "fairqr.method": context.method,
        "fairqr.attributes": list(context.attributes),
        "fairqr.target": str(context.target),
        "fairqr.k": context.k,
    }
    if context.answer is not None:
        asked["fairqr.alpha"] = context.answer.alpha
        asked["fairqr.samples"] = context.answer.samples
        asked["fairqr.documents"] = context.answer.documents
    return asked
