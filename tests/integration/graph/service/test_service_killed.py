"""`fairqr serve` is killed in the middle of a run and started again: the run comes to its end."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fairqr.graph.service.runs.durable import CHECKPOINTED
from tests.patience import PATIENCE, until
from tests.servers.model_server import Answer, Asked, Command, ModelServer, says, write_people
from tests.servers.page_service import ServiceClient, environment, running, settings_for
from tests.servers.service_client import index_people

SEARCH = {
    "query": "physicist",
    "corpus": "people",
    "attributes": ["continent"],
    "k": 10,
    "ask": "always",
    "groups": "all",
}
ROUNDS = {
    **SEARCH,
    "max_iterations": 3,
    "fairness_weight": 0,
    "patience": 9,
    "prompts": {"topic": "v1", "refine": "v4"},
}
ANSWER = {
    "question": "physicist",
    "corpus": "people",
    "attributes": ["gender"],
    "k": 10,
    "samples": 6,
    "alpha": 1,
    "documents": 3,
    "seed": 5,
    "attributor": "overlap",
}
WORDS = {"Asia": "asia tokyo man", "Africa": "africa cairo woman", "Europe": "berlin born workshop"}
SETTINGS = 'traces = "traces"\ncorpora = ["people"]\nlease = 2\ngrace = 1'


class HeldModel(ModelServer):
    """Answers by what it is asked alone, and holds the replies to some of it.

    Attributes:
        held: Requests whose replies wait for the gate, or did when the service was killed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.held: list[str] = []
        self.does(self._reply)

    def _reply(self, asked: Asked) -> Answer:
        question, _, used = asked.last_message.partition("in use:")
        group = next((name for name in WORDS if f"= {name}<" in asked.last_message), "")
        is_held = False
        if is_about_topic(asked):
            reply: object = {"topic": ["physicist"]}
        elif used:
            new = [word for word in WORDS[group].split() if word not in used]
            reply = {"topic": ["physicist"], "keywords": new[:1]}
            is_held = group == "Africa" and "africa" in used
        else:
            reply = f"They are known for physics, see {question[12:40]}."
            is_held = len(self.asked) > 3

        if not is_held or self.gate.is_set():
            return says(reply)
        self.held.append(body_of(asked))
        return says(reply, gate=self.gate)

    def times(self) -> Counter[str]:
        """How often each distinct request was made."""
        return Counter(body_of(asked) for asked in list(self.asked))


def is_about_topic(asked: Asked) -> bool:
    """Say whether words of the topic are asked for, and none of a group."""
    return "response_format" in asked.body and "<group>" not in asked.last_message


def body_of(asked: Asked) -> str:
    return json.dumps(asked.body, sort_keys=True)


def count_steps(events: list[tuple[str, Any]]) -> Counter[str]:
    return Counter(data["step"] for name, data in events if name == "step")


def result_without_usage(run: dict[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in run["result"].items() if name != "usage"}


@pytest.mark.promise("service")
@pytest.mark.parametrize(
    ("kind", "request_", "store"),
    [("answer", ANSWER, "sqlite"), ("search", ROUNDS, "postgresql")],
    ids=["answer", "search"],
)
def test_after_kill_9_a_run_goes_on_and_asks_for_nothing_again(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str, request_: dict[str, Any], store: str
) -> None:
    """A kept run goes on after kill -9 and comes to what an undisturbed run gives; no reply that
    was kept is asked for again.
    """
    database = ""
    if store == "postgresql":
        database = request.getfixturevalue("postgres_url")
    with contextlib.closing(HeldModel()) as model:
        variables = settings_for(model, tmp_path, f'{SETTINGS}\ndatabase = "{database}"')
        index_people(variables, write_people(tmp_path / "people"))
        with running(variables) as service:
            location = service.client.in_background(request_, kind)
            id_ = location.rpartition("/")[2]
            until(lambda: is_all_stored_but_what_is_held(model, database, tmp_path, id_))
            time.sleep(4 * CHECKPOINTED)
            service.kill()
        model.gate.set()
        with running(variables) as service:
            run, events = over(service.client, location)
            assert run["attempts"] == 2
            assert [name for name, _ in events].count("run") == 2

            # What was under way may be asked for again, and no more; the rest is known.
            times = model.times()
            assert times - Counter(model.held) == Counter(dict.fromkeys(times, 1))

            # Its replies are in the cache by now, which changes no result.
            again = service.client.in_background(request_, kind)
            undisturbed, undisturbed_events = over(service.client, again)

    # Samples are asked for side by side: which is told first is not promised.
    assert count_steps(events) == count_steps(undisturbed_events)
    assert result_without_usage(run) == result_without_usage(undisturbed)

    trace = (tmp_path / "traces" / f"{id_}.jsonl").read_text().splitlines()
    names = [json.loads(line)["name"] for line in trace]
    # What was done before the kill is not done again; the search within an answer prepares, too.
    assert names.count("fairqr.prepare") == (2 if kind == "answer" else 1)
    assert names[-1].startswith("invoke_workflow fairqr")


def is_all_stored_but_what_is_held(model: HeldModel, database: str, folder: Path, run: str) -> bool:
    """Say whether all other replies to groups, or samples, of three are stored.

    The first step has its checkpoint then, too, which is written while others run. This only reads,
    so that the service never waits for it.
    """
    requests = list(model.asked)
    held = len(model.held)
    in_threes = len(requests) - sum(map(is_about_topic, requests))
    if not held or in_threes % 3:
        return False

    with contextlib.closing(connected(database, folder)) as connection:
        replies = count(connection, f"replies WHERE run_id = '{run}'")
        checkpoints = count(connection, f"checkpoints WHERE thread_id = '{run}'")
    # The first two checkpoints are of the input and before any step.
    return replies == len(requests) - held and checkpoints > 2


def connected(database: str, folder: Path) -> Any:
    """Connect to the database of a service."""
    if database:
        return psycopg.connect(database, options="-c search_path=fairqr")
    return sqlite3.connect(f"file:{folder}/data/service/runs.sqlite?mode=ro", uri=True)


def count(connection: Any, rows: str) -> int:
    """Return how many rows there are; they are a table and a condition."""
    number: int = connection.execute(f"SELECT count(*) FROM {rows}").fetchone()[0]
    return number


def over(client: ServiceClient, location: str) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    """Wait until a run is done; return it and its events."""
    run = client.ended(location)
    events = client.events(location)
    assert run["status"] == "done", run
    assert events[-1][0] == "end"
    return run, events


@pytest.mark.promise("service")
def test_workers_do_what_a_server_accepts_though_one_is_killed(
    tmp_path: Path, postgres_url: str, model_server: ModelServer
) -> None:
    """A server accepts runs and workers on their own do them; what a killed worker had begun is
    finished by another.
    """
    gate = threading.Event()
    model_server.does(says({"topic": ["physicist"], "keywords": ["asia"]}, gate=gate))
    settings = f'{SETTINGS}\ndatabase = "{postgres_url}"\nwork = false'
    variables = settings_for(model_server, tmp_path, settings)
    index_people(variables, write_people(tmp_path / "people"))
    with running(variables) as service, contextlib.ExitStack() as workers:

        def work() -> subprocess.Popen[bytes]:
            worker = subprocess.Popen([Command.executable, "work"], env=environment(variables))
            workers.callback(worker.kill)
            return worker

        client = service.client
        places = [client.in_background(SEARCH) for _ in range(4)]
        assert {client.get(location).json()["status"] for location in places} == {"queued"}

        killed = work()
        model_server.wait_for(1)
        killed.kill()
        worker = work()
        gate.set()
        runs = [over(client, location)[0] for location in places]

        assert max(run["attempts"] for run in runs) == 2

        first_ranking = runs[0]["result"]["ranking"]
        assert all(run["result"]["ranking"] == first_ranking for run in runs)

        worker.terminate()
        assert worker.wait(PATIENCE) == 0
