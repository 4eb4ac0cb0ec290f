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
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
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
from tests.integration.model_server import (
    Answer,
    Asked,
    ModelServer,
    clean_environment,
    model_server,
    people,
    says,
)
from tests.integration.stores import freeze
from tests.patience import PATIENCE

__all__ = ["clean_environment", "model_server", "people"]

KEY = "k"
SEARCH = {
    "attributes": ["continent"],
    "k": 10,
    "ask": "always",
    "groups": "all",
    "fairness_weight": 0,
    "patience": 9,
    "max_iterations": 3,
}
ANSWER = {"attributes": ["gender"], "k": 10, "samples": 6, "alpha": 1, "documents": 3, "seed": 5}
WORDS = {"Asia": ["asia", "tokyo", "man"], "Africa": ["africa", "cairo", "woman"]}


class CountingModel:
    """Answers by what it is asked alone, and holds the replies to some of it.

    Attributes:
        held: Requests whose replies are held, or were when their worker was killed.
    """

    def __init__(self, server: ModelServer) -> None:
        self.server = server
        self.holds: Callable[[Asked], bool] = lambda asked: False
        self.gate = threading.Event()
        self.held: Counter[str] = Counter()
        server.does(self._answer)

    def _answer(self, asked: Asked) -> Answer:
        answer = says(_reply(asked))
        if self.gate.is_set() or not self.holds(asked):
            return answer
        self.held[_body(asked)] += 1
        return says(_reply(asked), gate=self.gate)

    def open(self) -> None:
        """Send what is held, and hold nothing more."""
        self.gate.set()

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
def model(model_server: ModelServer) -> Iterator[CountingModel]:
    counting = CountingModel(model_server)
    yield counting
    counting.open()


class Worker:
    """A process of :mod:`tests.integration.resuming_worker`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    async def says(self, word: str) -> None:
        """Wait until it does."""
        assert self.process.stdout is not None
        said = await asyncio.to_thread(self.process.stdout.readline)
        assert said.strip() == word

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)


class Workers:
    """Starts them, over one store and one corpus."""

    def __init__(self, url: str, corpus: Path, model: CountingModel) -> None:
        self._given = [url, str(corpus), model.server.base_url]
        self.started: list[Worker] = []

    async def start(self, *more: str) -> Worker:
        worker = Worker(
            subprocess.Popen(
                [sys.executable, "-m", resuming_worker.__name__, *self._given, *more],
                stdout=subprocess.PIPE,
                text=True,
                cwd=Path(__file__).parents[4],
            )
        )
        self.started.append(worker)
        await worker.says("ready")
        return worker


@pytest.fixture
async def workers(store_url: str, people: Path, model: CountingModel) -> AsyncIterator[Workers]:
    await (await open_engine(str(people))).aclose()
    made = Workers(store_url, people, model)
    yield made
    model.open()
    for worker in made.started:
        worker.signal(signal.SIGCONT)
        worker.kill()
        assert worker.process.stdout is not None
        worker.process.stdout.close()


async def submitted(store: Store, kind: Kind, request: dict[str, Any]) -> str:
    """Accept a run in a process that does none."""
    runs = Runs(store, None, ServiceSettings(), Observer())
    run = await runs.submit(kind, {"query": "physicist", **request}, key=KEY, query="physicist")
    return run.id


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


async def over(store: Store, id_: str) -> Run:
    async def ended() -> bool:
        return not (await store.run(id_, KEY)).live

    await until(ended)
    return await store.run(id_, KEY)


def plain(result: dict[str, Any] | None) -> dict[str, Any]:
    """A result without what differs from run to run: its milliseconds."""
    assert result is not None
    found: dict[str, Any] = json.loads(json.dumps(result))
    del found["usage"]["milliseconds"]
    return found


async def undisturbed(
    kind: Kind, request: dict[str, Any], corpus: Path, model: CountingModel
) -> tuple[dict[str, Any], list[str], Counter[str]]:
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


def is_of_round(number: int, group: str) -> Callable[[Asked], bool]:
    """Whether a request asks about a group in that round."""
    used = ", ".join(WORDS[group][: number - 1]) or "none"
    return lambda asked: (
        f"= {group}<" in asked.last_message and f"in use: {used}" in (asked.last_message)
    )


async def replies(store: Store, id_: str) -> int:
    """How many replies are kept with a run."""
    counted = sa.select(sa.func.count()).where(REPLIES.c.run_id == id_)
    async with store.database.begin() as connection:
        return (await connection.execute(counted)).scalar_one()


async def until_all_are_kept(store: Store, id_: str, model: CountingModel) -> None:
    """Wait until all replies are kept but the one that is held."""

    async def kept() -> bool:
        asked = len(model.server.asked)
        return bool(model.held) and asked % 3 == 0 and await replies(store, id_) == asked - 1

    await until(kept)


async def goes_on_as_if_nothing_had_happened(
    id_: str,
    store: Store,
    model: CountingModel,
    expected: tuple[dict[str, Any], list[str], Counter[str]],
) -> None:
    result, steps, requests = expected
    run = await over(store, id_)
    assert run.status == "done", run.problem
    assert run.attempts == 2
    assert plain(run.result) == result
    events = await told(store, id_)
    assert [e.data["step"] for e in events if e.name == "step"] == steps
    assert [e.name for e in events].count("run") == 2
    assert model.times().keys() == requests.keys()
    # Asked again is what was under way, and no more; what another step had asked is known.
    assert not model.times() - requests - model.held


class TestKilled:
    async def test_during_the_second_round_with_one_of_its_replies_there(
        self, store: Store, workers: Workers, model: CountingModel, people: Path
    ) -> None:
        expected = await undisturbed("search", SEARCH, people, model)
        model.holds = is_of_round(2, "Africa")
        id_ = await submitted(store, "search", SEARCH)
        worker = await workers.start()

        await until_all_are_kept(store, id_, model)
        worker.kill()
        model.open()
        await workers.start()
        await goes_on_as_if_nothing_had_happened(id_, store, model, expected)

    async def test_while_some_rankings_are_answered_and_some_are_not(
        self, store: Store, workers: Workers, model: CountingModel, people: Path
    ) -> None:
        expected = await undisturbed("answer", ANSWER, people, model)
        assert len(expected[2]) == 6
        number = itertools.count(1)

        def all_but_three(asked: Asked) -> bool:
            return next(number) > 3

        model.holds = all_but_three
        id_ = await submitted(store, "answer", ANSWER)
        worker = await workers.start()

        async def three_are_told() -> bool:
            events = await store.events(id_)
            steps = [event.data.get("step") for event in events]
            return steps.count("generate") == 3 and len(model.held) == 3

        await until(three_are_told)
        worker.kill()
        model.open()
        await workers.start()
        await goes_on_as_if_nothing_had_happened(id_, store, model, expected)

    async def test_between_the_end_of_the_graph_and_the_end_of_the_run(
        self, store: Store, workers: Workers, model: CountingModel, people: Path
    ) -> None:
        expected = await undisturbed("search", SEARCH, people, model)
        id_ = await submitted(store, "search", SEARCH)
        worker = await workers.start("--stop-when-over")
        await worker.says("over")
        worker.kill()
        await workers.start()
        await goes_on_as_if_nothing_had_happened(id_, store, model, expected)


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_a_worker_that_is_told_to_end_hands_over_what_it_does(
    store: Store, workers: Workers, model: CountingModel, people: Path
) -> None:
    expected = await undisturbed("search", SEARCH, people, model)
    model.holds = is_of_round(1, "Asia")
    id_ = await submitted(store, "search", SEARCH)
    worker = await workers.start()

    await until_all_are_kept(store, id_, model)
    worker.signal(signal.SIGTERM)
    assert await asyncio.to_thread(worker.process.wait, PATIENCE) == 0
    model.open()
    await workers.start()
    await goes_on_as_if_nothing_had_happened(id_, store, model, expected)


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
async def test_a_worker_that_was_frozen_for_too_long_neither_ends_nor_tells_what_it_lost(
    store: Store, store_url: str, workers: Workers, model: CountingModel, people: Path
) -> None:
    expected = await undisturbed("search", SEARCH, people, model)
    model.holds = is_of_round(2, "Africa")
    id_ = await submitted(store, "search", SEARCH)
    frozen = await workers.start()

    await until_all_are_kept(store, id_, model)
    await asyncio.to_thread(freeze, frozen.signal, store_url)
    other = await workers.start()

    async def another_holds_it() -> bool:
        return sum(model.held.values()) == 2

    await until(another_holds_it)
    # Both have a reply to go on with at the same time.
    model.open()
    frozen.signal(signal.SIGCONT)
    run = await over(store, id_)
    assert run.status == "done"
    assert run.attempts > 1
    assert plain(run.result) == expected[0]
    events = await told(store, id_)
    assert [e.data["step"] for e in events if e.name == "step"] == expected[1]
    # The one that was frozen is as good as before.
    other.signal(signal.SIGTERM)
    await asyncio.to_thread(other.process.wait, PATIENCE)
    again = await over(store, await submitted(store, "search", SEARCH))
    assert plain(again.result) == expected[0]
    assert (await told(store, id_)) == events
