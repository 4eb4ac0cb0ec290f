"""Durable runs of real graphs that are left somewhere, and go on from their checkpoints."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from fairqr.agents.models.replies import Reply, Usage
from fairqr.graph.answer.builder import build_answer_graph
from fairqr.graph.answer.context import AnswerContext, AnswerSettings
from fairqr.graph.probe.builder import build_probe_graph
from fairqr.graph.probe.context import ProbeContext, ProbeSettings
from fairqr.graph.search.builder import build_search_graph
from fairqr.graph.search.context import Context
from fairqr.graph.service.records import Event, Kind, Run
from fairqr.graph.service.runs.durable import DurableRun
from fairqr.graph.service.store import Store
from fairqr.graph.step import Step
from fairqr.graph.stream import RunOutput, run_graph
from fairqr.retrieval.engines.engine import SearchEngine
from tests.servers.stores import over
from tests.unit.agents.ranking.fakes import Planted
from tests.unit.graph.service.test_runs import running, submitted, until
from tests.unit.graph.test_answering import KnownAttributor, KnownGenerator

SEARCH = Context.of(attributes=["gender"], k=6, ask="always", patience=5)


class Graph:
    """Does runs with a graph; leaves the first attempt at each after so many steps.

    Attributes:
        rebuilt: Whether the index is built again between two attempts.
        steps: The names of the steps that were yielded, with those of all attempts.
        ran: The names of the nodes that ran.
    """

    def __init__(self, graph: Any, context: Context = SEARCH) -> None:
        self.graph = graph
        self.context = context
        self.leaves_after = 0
        self.rebuilt = False
        self.steps: list[str] = []
        self.ran: list[str] = []

    async def __call__(self, run: Run, durable: DurableRun) -> AsyncGenerator[RunOutput, None]:
        await durable.start_over(str(run.attempts) if self.rebuilt else "first")
        graph = self.graph.copy({"checkpointer": durable.saver})
        options: dict[str, Any] = {"thread": run.id, "resume": durable.resumed}
        events = run_graph(graph, "science", self.context, journal=durable, **options)
        number = 0
        step_from_node = durable.step_from_node

        def note_step(step: Step) -> None:
            self.ran.append(step.name)
            step_from_node(step)

        durable.step_from_node = note_step  # type: ignore[method-assign]
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Step) and event.name != "result":
                    self.steps.append(event.name)
                    number += 1
                yield event
                if run.attempts == 1 and number == self.leaves_after:
                    raise asyncio.CancelledError  # as a process that is told to stop


async def run_to_its_end(
    store: Store, graph: Graph, kind: Kind = "search"
) -> tuple[Run, list[Event]]:
    """Do a run; where it is left, go on as the next process does."""
    graph.steps.clear()
    graph.ran.clear()
    async with running(store, graph) as runs:
        started = await submitted(runs, kind)
        await until(lambda: bool(graph.steps) and not runs.durable)
    async with running(store, graph) as runs:
        run = await over(runs, store, started)
    return run, await store.events(run.id)


def result_of(run: Run) -> dict[str, Any]:
    assert run.result is not None, run.problem
    return {**run.result, "usage": {**run.result["usage"], "milliseconds": 0}}


def search_graph(engine: SearchEngine) -> Graph:
    return Graph(build_search_graph(engine, "feedback"))


def answer_graph(engine: SearchEngine) -> Graph:
    settings = AnswerSettings(samples=6, alpha=0, documents=2)
    context = AnswerContext(attributes=("gender",), k=5, seed=1, answer=settings)
    models: Any = {"generator": KnownGenerator(), "attributor": KnownAttributor()}
    return Graph(build_answer_graph(engine, concurrency=1, **models), context)


def probe_graph(engine: SearchEngine) -> Graph:
    settings = ProbeSettings(attribute="place", protected="south")
    context = ProbeContext(attributes=("place",), k=8, probe=settings)
    model = Planted(lambda title, position, group: 0.0)
    return Graph(build_probe_graph(engine, model, concurrency=1), context)


def steps_of(events: list[Event]) -> list[str]:
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    json.dumps([event.data for event in events])
    return [event.data["step"] for event in events if event.name == "step"]


@pytest.mark.promise("service")
@pytest.mark.parametrize(
    ("make_graph", "kind", "steps"),
    [
        (search_graph, "search", ["prepare", "retrieve", "measure", "choose_group"]),
        (answer_graph, "answer", ["sample", "generate", "generate", "attribute", "summarize"]),
        (probe_graph, "probe", ["draw", "ask", "ask", "ask", "ask", "compare"]),
    ],
    ids=["search", "answer", "probe"],
)
async def test_a_run_goes_on_wherever_it_was_left(
    store: Store, engine: SearchEngine, make_graph: Any, kind: Any, steps: list[str]
) -> None:
    """A run goes on after any of its steps, wherever its process ended, comes to the same result as
    if nothing had happened, and tells each step once.
    """
    graph = make_graph(engine)
    unbroken, events = await run_to_its_end(store, graph, kind)
    all_steps = steps_of(events)

    assert not Counter(steps) - Counter(all_steps)
    assert all_steps == graph.steps

    for number in range(1, len(all_steps) + 1):
        graph.leaves_after = number
        run, events = await run_to_its_end(store, graph, kind)
        assert run.attempts == 2
        assert result_of(run) == result_of(unbroken)
        assert steps_of(events) == all_steps  # each once, whatever ran twice
        assert len(graph.ran) <= len(all_steps) + 2  # it went on where it was, or a step before


@pytest.mark.promise("service")
async def test_a_run_whose_index_was_built_again_starts_over(
    store: Store, engine: SearchEngine
) -> None:
    """A run whose index was built again while it was left starts over, so its result is of one
    index alone.
    """
    graph = Graph(build_search_graph(engine, "feedback"))
    unbroken, events = await run_to_its_end(store, graph)
    graph.leaves_after = 4
    graph.rebuilt = True
    run, again = await run_to_its_end(store, graph)

    assert result_of(run) == result_of(unbroken)
    assert graph.steps[4:] == steps_of(events)
    assert steps_of(again) == graph.steps  # what was told before is told again, as it is new


async def test_a_resumed_run_asks_nothing_again_but_what_may_heal(store: Store) -> None:
    replies = [
        Reply("ok", {"text": "one"}, usage=Usage(model_calls=2)),
        Reply("timeout", message="too slow"),
        Reply("refused", message="no"),
        Reply("ok", {"text": "two"}),
    ]
    attempts: list[list[Reply]] = []

    async def next_reply() -> Reply:
        return replies.pop(0)

    async def ask_three_questions(run: Run, durable: DurableRun) -> AsyncGenerator[RunOutput, None]:
        questions = ("known", "slow", "refused")
        attempts.append([await durable.once(question, dict, next_reply) for question in questions])
        if run.attempts == 1:
            raise asyncio.CancelledError
        yield Step("rerank", {"result": {}})
        yield Step("rerank", {"result": {"ranking": []}})

    async with running(store, ask_three_questions) as runs:
        started = await submitted(runs)
        await until(lambda: bool(attempts))
    async with running(store, ask_three_questions) as runs:
        assert (await over(runs, store, started)).status == "done"

    first, again = attempts
    assert not replies
    assert [again[0], again[2]] == [first[0], first[2]]
    assert again[1].value == {"text": "two"}
