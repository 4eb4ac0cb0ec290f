"""Runs one of the graphs, yields its steps as LangGraph streams them, and gives their data."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, TypeVar

from langchain_core.messages import AIMessageChunk
from langchain_core.runnables.config import var_child_runnable_config
from pydantic import Field

from fairqr.agents.models.cache import asking_with
from fairqr.base.telemetry import span
from fairqr.graph.answer.builder import NODES as ANSWER_NODES
from fairqr.graph.answer.context import AnswerContext
from fairqr.graph.answer.result import RankingAnswer, SampledRanking
from fairqr.graph.journal import RunJournal
from fairqr.graph.probe.builder import NODES as PROBE_NODES
from fairqr.graph.running import RETRIEVE
from fairqr.graph.search.builder import NODES as SEARCH_NODES
from fairqr.graph.search.context import Context, Frozen
from fairqr.graph.search.result import (
    GroupKey,
    RankingCost,
    RefinedGroup,
    Round,
    SearchResult,
    StopReason,
)
from fairqr.graph.step import Step, step_of

NODES = {"search": SEARCH_NODES, "answer": ANSWER_NODES, "probe": PROBE_NODES}
"""The nodes of each graph whose ends are steps."""


PREPARED = ("iteration", "usage", "warnings")
"""The fields of the step ``prepare``. For a later page, its update has all that was found, too."""

WHOLE_STATE = "result"
"""The last step of a run whose steps nobody follows, or were published before: the whole state."""

RunOutput = Step | AIMessageChunk
"""What a run yields while it goes on: a step that ended, or a piece of an answer."""

T = TypeVar("T")


class StepData(Frozen):
    """A step that has just ended. A field that does not apply to the step is left out, or None."""

    step: str = Field(
        description=(
            "Its name. A search has `prepare`, `retrieve`, `measure`, `choose_group`, `refine` and "
            "`rerank`, some several times; an answer has `prepare` before it, and `sample`, "
            "`generate` for each ranking, `attribute` and `summarize` after it; a probe has "
            "`prepare` before it, and `draw`, `ask` for each part and `compare` after it."
        )
    )
    iteration: int | None = Field(
        None, description="The number of the round; 0 is the baseline ranking."
    )
    target: dict[str, dict[str, float]] | None = Field(
        None, description="After the first `measure`: the target, by attribute and group."
    )
    cost: RankingCost | None = Field(
        None,
        description=(
            "After the first `retrieve`: what re-ranking by a model costs at most; after `draw`, a "
            "probe."
        ),
    )
    round: Round | None = Field(None, description="After `measure`: the round that was measured.")
    chosen: list[GroupKey] | None = Field(
        None, description="After `choose_group`: the attributes and groups to ask the model about."
    )
    lacking: list[GroupKey] | None = Field(
        None, description="After `choose_group`: the attributes and groups that lack exposure."
    )
    refinements: list[RefinedGroup] | None = Field(
        None, description="After `refine`: the keywords that the model proposed."
    )
    stop_reason: StopReason | None = Field(None, description="Why the loop ended.")
    search: SearchResult | None = Field(
        None,
        description=(
            "After `rerank` in an answer or a probe: the result of its search. A baseline search "
            "gives its result at the end of the stream."
        ),
    )
    sampled: list[SampledRanking] | None = Field(
        None, description="After `sample`: the rankings to answer from."
    )
    answers: list[RankingAnswer] | None = Field(
        None,
        description=(
            "After `generate`: what was answered from one ranking; after `attribute`: all answers, "
            "with the documents that they used."
        ),
    )
    usage: dict[str, int | float] | None = Field(
        None,
        description=(
            "What models have cost so far; after `generate`, `attribute` and `ask`, what this step "
            "has cost."
        ),
    )
    warnings: list[str] | None = Field(None, description="Sentences for people.")


def step_data(kind: str, step: Step) -> dict[str, Any]:
    """Return a step as plain data of :class:`StepData`.

    Args:
        kind: What the run does: ``search``, ``answer`` or ``probe``.
        step: The step.
    """
    update = step.update
    if step.name == "prepare":
        update = {name: update[name] for name in PREPARED if name in update}
    data = {name: update.get(name) for name in StepData.model_fields}
    data["step"] = step.name
    rounds = update.get("iterations")
    data["round"] = rounds[0] if rounds else None
    if kind != "search":
        data["search"] = update.get("result")
    usages = update.get("usages")
    if usages:
        data["usage"] = usages[-1]
    notes = update.get("notes")
    if notes:
        data["warnings"] = notes
    outcomes = update.get("outcomes")
    if outcomes:
        data["usage"] = outcomes[-1]["usage"]
        data["warnings"] = outcomes[-1]["warnings"]
    return {name: value for name, value in data.items() if value not in (None, [], {})}


def run_graph(
    graph: Any,
    query: str,
    context: Context,
    *,
    journal: RunJournal | None = None,
    thread: str | None = None,
    resume: bool = False,
) -> AsyncGenerator[RunOutput, None]:
    """Run one of the three graphs; yields its steps, and pieces of its answer.

    The run continues when the next output is requested, and ends when the generator is closed.

    Args:
        graph: The graph that searches, answers or probes; compiled with a checkpointer if a thread
            is given. The steps of the search inside an answer or a probe are yielded, too.
        query: What to search for, or the question to answer.
        context: What the run is asked to do.
        journal: The journal of a durable run.
        thread: The name of the thread in which the checkpointer keeps the states.
        resume: Resume the run of the thread after an interrupt. A durable run then yields a last
            step :data:`WHOLE_STATE` with the whole state.
    """
    graph_input = None if resume else {"query": query}
    modes = ["updates"]
    if isinstance(context, AnswerContext) and context.answer.stream:
        modes.append("messages")
    outputs: asyncio.Queue[RunOutput | None] = asyncio.Queue()

    async def run() -> None:
        with _detached() as config, span("invoke_workflow fairqr", **_span_attributes(context)):
            if thread:
                config["configurable"] = {"thread_id": thread}
            entries = graph.astream(
                graph_input,
                config,
                context=context,
                stream_mode=modes,
                subgraphs=True,
                durability="async" if thread else None,  # the journal settles checkpoints
            )
            with asking_with(journal=journal):
                async with aclosing(entries):
                    async for namespace, mode, entry in entries:
                        for output in _outputs_of(context.kind, namespace, mode, entry):
                            outputs.put_nowait(output)
                            await outputs.join()
                if resume and journal is not None:
                    state = await graph.aget_state(config)
                    outputs.put_nowait(Step(WHOLE_STATE, state.values))

    return yield_queued(run, outputs)


async def yield_queued(
    work: Callable[[], Coroutine[Any, Any, None]], queue: asyncio.Queue[T | None]
) -> AsyncGenerator[T, None]:
    """Do some work, and yield what it puts into a queue; it ends when the generator is closed.

    A generator runs in the context of the caller that requests the next output or closes it, so a
    span cannot be open across its yields. A task has a context of its own.
    """
    task = asyncio.create_task(work())
    task.add_done_callback(lambda _: queue.put_nowait(None))
    try:
        while (output := await queue.get()) is not None:
            yield output
            queue.task_done()
        await task
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # it was raised above, or nobody waits for it


async def final_step_of(graph: Any, query: str, context: Context) -> Step:
    """Run one of the three graphs whose steps nobody follows.

    Returns:
        A step :data:`WHOLE_STATE` with the whole state.
    """
    with _detached() as config, span("invoke_workflow fairqr", **_span_attributes(context)):
        state = await graph.ainvoke({"query": query}, config, context=context)
    return Step(WHOLE_STATE, state)


@contextmanager
def _detached() -> Iterator[dict[str, Any]]:
    """Yield the config of a run that keeps its own states, or none.

    Inside a node of another graph, it would inherit that graph's checkpointer, and its mark that it
    resumes after an interrupt.
    """
    outer = var_child_runnable_config.get()
    token = var_child_runnable_config.set(None)
    try:
        yield {} if outer is None else {"callbacks": outer.get("callbacks")}
    finally:
        var_child_runnable_config.reset(token)


def _outputs_of(kind: str, namespace: Sequence[str], mode: str, entry: Any) -> Iterator[RunOutput]:
    """Yield the steps, or the piece of an answer, in an entry of LangGraph's stream.

    Args:
        kind: What the run does: ``search``, ``answer`` or ``probe``.
        namespace: The nodes that the graph is inside of, with their ids.
        mode: ``updates`` for what nodes changed, ``messages`` for pieces of texts.
        entry: The entry. It may be of nodes that others added, with anything in it.
    """
    if mode == "messages":
        piece, metadata = entry
        if metadata.get("langgraph_node") == "generate":
            yield piece
        return

    graphs = [node.partition(":")[0] for node in namespace]
    if graphs not in ([], [RETRIEVE]):
        return
    nodes = NODES["search" if graphs else kind]
    for name, changes in entry.items():
        if name in nodes and isinstance(changes, Mapping):
            yield step_of(graphs, name, changes)


def _span_attributes(context: Context) -> dict[str, Any]:
    """Return the attributes of the span of a run."""
    return {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.agent.name": "fairqr",
        "fairqr.method": context.method,
        "fairqr.attributes": list(context.attributes),
        "fairqr.target": str(context.effective_target),
        "fairqr.k": context.k,
    }
