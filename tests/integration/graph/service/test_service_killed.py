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

SEARCH = {"query": "physicist", "corpus": "people", "attributes": ["continent"], "k": 10}
SEARCH |= {"ask": "always", "groups": "all"}
ROUNDS = {**SEARCH, "max_iterations": 3, "fairness_weight": 0, "patience": 9}
ROUNDS |= {"prompts": {"topic": "v1", "refine": "v4"}}
ANSWER = {"question": "physicist", "corpus": "people", "attributes": ["gender"], "k": 10}
ANSWER |= {"samples": 6, "alpha": 1, "documents": 3, "seed": 5, "attributor": "overlap"}
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
        group = next((it for it in WORDS if f"= {it}<" in asked.last_message), "")
        holds = False
        if is_about_topic(asked):
            reply: object = {"topic": ["physicist"]}
        elif used:
            new = [word for word in WORDS[group].split() if word not in used]
            reply = {"topic": ["physicist"], "keywords": new[:1]}
            holds = group == "Africa" and "africa" in used
        else:
            reply = f"They are known for physics, see {question[12:40]}."
            holds = len(self.asked) > 3
        if not holds or self.gate.is_set():
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


@pytest.mark.parametrize(
    ("kind", "request_", "store"),
    [("answer", ANSWER, "sqlite"), ("search", ROUNDS, "postgresql")],
)
def test_a_run_goes_on_after_kill_9_and_no_reply_is_asked_for_again(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str, request_: dict[str, Any], store: str
) -> None:
    """With some replies of a round there: it tells and gives what an undisturbed run does."""
    database = ""
    if store == "postgresql":
        database = request.getfixturevalue("postgres_url")
    with contextlib.closing(HeldModel()) as model:
        variables = settings_for(model, tmp_path, f'{SETTINGS}\ndatabase = "{database}"')
        index_people(variables, write_people(tmp_path / "people"))
        with running(variables) as service:
            place = service.client.in_background(request_, kind)
            id_ = place.rpartition("/")[2]
            until(lambda: all_is_kept_but_what_is_held(model, database, tmp_path, id_))
            time.sleep(4 * CHECKPOINTED)
            service.kill()
        model.gate.set()
        with running(variables) as service:
            run, told = over(service.client, place)
            assert run["attempts"] == 2
            assert [name for name, _ in told].count("run") == 2
            # What was under way may be asked for again, and no more; the rest is known.
            times = model.times()
            assert times - Counter(model.held) == Counter(dict.fromkeys(times, 1))
            # Its replies are in the cache by now, which changes no result.
            again = service.client.in_background(request_, kind)
            other, others = over(service.client, again)
    # Samples are asked for side by side: which is told first is not promised.
    steps = [Counter(data["step"] for name, data in it if name == "step") for it in (told, others)]
    assert steps[0] == steps[1]
    for it in (run, other):
        del it["result"]["usage"]
    assert run["result"] == other["result"]
    trace = (tmp_path / "traces" / f"{id_}.jsonl").read_text().splitlines()
    names = [json.loads(line)["name"] for line in trace]
    # What was done before the kill is not done again; the search within an answer prepares, too.
    assert names.count("fairqr.prepare") == (2 if kind == "answer" else 1)
    assert names[-1].startswith("invoke_workflow fairqr")


def all_is_kept_but_what_is_held(model: HeldModel, database: str, folder: Path, run: str) -> bool:
    """Say whether all other replies to groups, or samples, of three are stored.

    The first step has its checkpoint then, too, which is written while others run. This only reads,
    so that the service never waits for it.
    """
    asked, held = len(model.asked), len(model.held)
    by_three = asked - sum(map(is_about_topic, list(model.asked)))
    if not held or by_three % 3:
        return False
    options: Any = {"uri": True} if not database else {"options": "-c search_path=fairqr"}
    connect: Any = psycopg.connect if database else sqlite3.connect
    file = f"file:{folder}/data/service/runs.sqlite?mode=ro"
    with contextlib.closing(connect(database or file, **options)) as connection:
        replies, checkpoints = (
            connection.execute(f"SELECT count(*) FROM {its} = '{run}'").fetchone()[0]
            for its in ("replies WHERE run_id", "checkpoints WHERE thread_id")
        )
    # The first two are of the input and before any step.
    return bool(replies == asked - held and checkpoints > 2)


def over(client: ServiceClient, place: str) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    """Wait until a run is done; return it and its events."""
    run, events = client.ended(place), client.events(place)
    assert (run["status"], events[-1][0]) == ("done", "end"), run
    return run, events


def test_a_server_accepts_runs_and_workers_do_them_though_one_is_killed(
    tmp_path: Path, postgres_url: str, model_server: ModelServer
) -> None:
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
        assert {client.get(place).json()["status"] for place in places} == {"queued"}
        first = work()
        model_server.wait_for(1)
        first.kill()
        second = work()
        gate.set()
        runs = [over(client, place)[0] for place in places]
        assert max(run["attempts"] for run in runs) == 2
        rankings = [[it["id"] for it in run["result"]["ranking"]] for run in runs]
        assert rankings == rankings[:1] * 4
        second.terminate()
        assert second.wait(PATIENCE) == 0
