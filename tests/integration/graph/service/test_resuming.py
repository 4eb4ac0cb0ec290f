"""A worker is killed in the middle of a run, and another one goes on with it.

Both are real processes over one database, with a real index and a real HTTP model server that
counts what it is asked. There is no cache of replies: what is not asked again is not asked because
the run knows the reply. A request that was under way at the kill is asked again, as nobody knows
what came of it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from fairqr.agents.models.chat import ChatModel
from fairqr.api import open_engine
from fairqr.graph.answer.builder import build_answer_graph
from fairqr.graph.search.builder import build_search_graph
from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.records import Event, Kind, Run
from fairqr.graph.service.runs.doing import Observer
from fairqr.graph.service.runs.manager import Runs
from fairqr.graph.service.store import Store
from fairqr.graph.service.store.tables import REPLIES
from fairqr.graph.stream import Step, run_graph
from tests.integration import resuming_worker
from tests.integration.model_server import Answer, Asked, ModelServer, says
from tests.integration.stores import freeze
from tests.patience import PATIENCE

SEARCH: dict[str, Any] = {"attributes": ["continent"], "k": 10, "ask": "always", "groups": "all"}
SEARCH |= {"fairness_weight": 0, "patience": 9, "max_iterations": 3}
ANSWER = {"attributes": ["gender"], "k": 10, "samples": 6, "alpha": 1, "documents": 3, "seed": 5}
WORDS = {"Asia": ["asia", "tokyo", "man"], "Africa": ["africa", "cairo", "woman"]}

Start = Callable[..., Awaitable["subprocess.Popen[str]"]]
Undisturbed = tuple[dict[str, Any], list[str], Counter[str]]


class CountingModel:
    """Answers by what it is asked alone, and holds the replies to some of it.

    Attributes:
        holds: Whether the reply to a request is held until the gate is open.
        held: Requests whose replies are held, or were when their worker was killed.
    """

    def __init__(self, server: ModelServer) -> None:
        self.server = server
        self.holds: Callable[[Asked], bool] = lambda asked: False
        self.gate = threading.Event()
        self.held: Counter[str] = Counter()
        server.does(self._answer)

    def _answer(self, asked: Asked) -> Answer:
        if self.gate.is_set() or not self.holds(asked):
            return says(_reply(asked))
        self.held[_body(asked)] += 1
        return says(_reply(asked), gate=self.gate)

    def times(self) -> Counter[str]:
        """How often each distinct request was made."""
        return Counter(_body(asked) for asked in list(self.server.asked))


def _body(asked: Asked) -> str:
    return json.dumps(asked.body, sort_keys=True)


def _reply(asked: Asked) -> object:
    for group, words in WORDS.items():
        if f"= {group}<" in asked.last_message:
            used = asked.last_message.partition("in use:")[2]
            new = [word for word in words if word not in used][:1]
            return {"topic": ["physicist"], "keywords": new}
    if "in use:" in asked.last_message:
        return {"topic": ["physicist"], "keywords": ["berlin"]}
    return f"They are known for physics, see {asked.last_message[12:40]}."


@pytest.fixture
def model(model_server: ModelServer) -> CountingModel:
    return CountingModel(model_server)


@pytest.fixture
async def start(store_url: str, people: Path, model: CountingModel) -> AsyncIterator[Start]:
    """Starts processes of :mod:`tests.integration.resuming_worker`."""
    await (await open_engine(str(people))).aclose()
    started: list[subprocess.Popen[str]] = []

    async def start(*more: str) -> subprocess.Popen[str]:
        given = [store_url, str(people), model.server.base_url, *more]
        process = subprocess.Popen(
            [sys.executable, "-m", resuming_worker.__name__, *given],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[4],
        )
        started.append(process)
        await prints(process, "ready")
        return process

    yield start
    model.gate.set()
    for process in started:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.communicate()


async def prints(process: subprocess.Popen[str], word: str) -> None:
    """Wait until it does."""
    assert process.stdout is not None
    assert (await asyncio.to_thread(process.stdout.readline)).strip() == word


async def submitted(store: Store, kind: Kind, request: dict[str, Any]) -> str:
    """Accept a run in a process that does none."""
    runs = Runs(store, None, ServiceSettings(), Observer())
    asked = {"query": "physicist", **request}
    return (await runs.submit(kind, asked, key="k", query="physicist")).id


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await condition():
            await asyncio.sleep(0.02)


async def over(store: Store, id_: str) -> Run:
    async def ended() -> bool:
        return not (await store.run(id_, "k")).live

    await until(ended)
    run = await store.run(id_, "k")
    assert run.status == "done", run.problem
    return run


def plain(result: dict[str, Any] | None) -> dict[str, Any]:
    """A result without what differs from run to run: its milliseconds."""
    assert result is not None
    return {**result, "usage": {**result["usage"], "milliseconds": 0}}


async def undisturbed(
    kind: Kind, request: dict[str, Any], corpus: Path, model: CountingModel
) -> Undisturbed:
    """The result, the steps and the requests of a run that nobody disturbs."""
    engine = await open_engine(str(corpus))
    chat = ChatModel("openai:fake", base_url=model.server.base_url, cache=None)
    graph: Any = build_search_graph(engine, chat)
    if kind == "answer":
        graph = build_answer_graph(engine, chat, attributor="overlap")
    context = resuming_worker.context_of(kind, request)
    steps, result = [], None
    async with aclosing(run_graph(graph, "physicist", context)) as events:
        async for event in events:
            if isinstance(event, Step):
                steps.append(event.name)
                result = event.update.get("answer" if kind == "answer" else "result", result)
    await engine.aclose()
    requests = model.times()
    model.server.asked.clear()
    return plain(result), steps, requests


async def told(store: Store, id_: str) -> list[Event]:
    events: list[Event] = []
    while more := await store.events(id_, len(events)):
        events += more
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    return events


def steps_of(events: list[Event]) -> list[str]:
    return [event.data["step"] for event in events if event.name == "step"]


def second_round_for_africa(asked: Asked) -> bool:
    return "= Africa<" in asked.last_message and "in use: africa" in asked.last_message


async def until_all_are_kept(store: Store, id_: str, model: CountingModel) -> None:
    """Wait until all replies are kept but the one that is held."""
    counted = sa.select(sa.func.count()).where(REPLIES.c.run_id == id_)

    async def kept() -> bool:
        asked = len(model.server.asked)
        async with store.database.begin() as connection:
            there = (await connection.execute(counted)).scalar_one()
        return bool(model.held) and asked % 3 == 0 and there == asked - 1

    await until(kept)


async def goes_on_as_if_nothing_had_happened(
    id_: str, store: Store, model: CountingModel, expected: Undisturbed
) -> None:
    result, steps, requests = expected
    run = await over(store, id_)
    assert run.attempts == 2
    assert plain(run.result) == result
    events = await told(store, id_)
    assert steps_of(events) == steps
    assert [event.name for event in events].count("run") == 2
    assert model.times().keys() == requests.keys()
    # Asked again is what was under way, and no more; what another step had asked is known.
    assert not model.times() - requests - model.held


@pytest.mark.parametrize(
    ("store_url", "number"),
    [("sqlite", signal.SIGKILL), ("sqlite", signal.SIGTERM), ("postgresql", signal.SIGKILL)],
    indirect=["store_url"],
)
async def test_during_the_second_round_with_one_of_its_replies_there(
    store: Store, start: Start, model: CountingModel, people: Path, number: signal.Signals
) -> None:
    """A worker is killed, or told to end."""
    expected = await undisturbed("search", SEARCH, people, model)
    model.holds = second_round_for_africa
    id_ = await submitted(store, "search", SEARCH)
    worker = await start()

    await until_all_are_kept(store, id_, model)
    worker.send_signal(number)
    code = await asyncio.to_thread(worker.wait, PATIENCE)
    assert code == (0 if number == signal.SIGTERM else -number)
    model.gate.set()
    await start()
    await goes_on_as_if_nothing_had_happened(id_, store, model, expected)


async def test_while_some_rankings_are_answered_and_some_are_not(
    store: Store, start: Start, model: CountingModel, people: Path
) -> None:
    expected = await undisturbed("answer", ANSWER, people, model)
    assert len(expected[2]) == 6
    number = itertools.count(1)
    model.holds = lambda asked: next(number) > 3
    id_ = await submitted(store, "answer", ANSWER)
    worker = await start()

    async def three_are_told() -> bool:
        steps = steps_of(await store.events(id_))
        return steps.count("generate") == 3 and len(model.held) == 3

    await until(three_are_told)
    worker.kill()
    model.gate.set()
    await start()
    await goes_on_as_if_nothing_had_happened(id_, store, model, expected)


async def test_between_the_end_of_the_graph_and_the_end_of_the_run(
    store: Store, start: Start, model: CountingModel, people: Path
) -> None:
    expected = await undisturbed("search", SEARCH, people, model)
    id_ = await submitted(store, "search", SEARCH)
    worker = await start("--stop-when-over")
    await prints(worker, "over")
    worker.kill()
    await start()
    await goes_on_as_if_nothing_had_happened(id_, store, model, expected)


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
async def test_a_worker_that_was_frozen_for_too_long_neither_ends_nor_tells_what_it_lost(
    store: Store, store_url: str, start: Start, model: CountingModel, people: Path
) -> None:
    result, steps, _ = await undisturbed("search", SEARCH, people, model)
    model.holds = second_round_for_africa
    id_ = await submitted(store, "search", SEARCH)
    frozen = await start()

    await until_all_are_kept(store, id_, model)
    await asyncio.to_thread(freeze, frozen.send_signal, store_url)
    other = await start()

    async def another_holds_it() -> bool:
        return sum(model.held.values()) == 2

    await until(another_holds_it)
    # Both have a reply to go on with at the same time.
    model.gate.set()
    frozen.send_signal(signal.SIGCONT)
    run = await over(store, id_)
    assert run.attempts > 1
    assert plain(run.result) == result
    events = await told(store, id_)
    assert steps_of(events) == steps
    # The one that was frozen is as good as before.
    other.send_signal(signal.SIGTERM)
    await asyncio.to_thread(other.wait, PATIENCE)
    again = await over(store, await submitted(store, "search", SEARCH))
    assert plain(again.result) == result
    assert (await told(store, id_)) == events
