"""`fairqr serve` is killed in the middle of a run and started again: the run comes to its end."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from tests.integration.model_server import Asked, Command, ModelServer, says, write_people
from tests.integration.page_service import environment, running, settings_for
from tests.integration.service_client import events_of, index_people, until
from tests.patience import PATIENCE

ASKED = {
    "query": "physicist",
    "corpus": "people",
    "attributes": ["continent"],
    "k": 10,
    "ask": "always",
    "groups": "all",
}
SETTINGS = 'traces = "traces"\ncorpora = ["people"]'


def test_a_run_goes_on_after_kill_9_and_no_reply_is_asked_for_again(tmp_path: Path) -> None:
    """Its result is that of a run that nobody disturbed, and its trace has both parts."""
    model, gate = ModelServer(), threading.Event()
    held: list[str] = []
    asked = {**ASKED, "max_iterations": 3, "fairness_weight": 0, "patience": 9}

    def first_round(request: Asked) -> Any:
        """Answer what is asked in the first round; hold the rest until the gate is open."""
        if "in use: none" not in request.last_message and not gate.is_set():
            held.append(_body(request))
            gate.wait(PATIENCE)
        used = request.last_message.partition("in use:")[2]
        new = [word for word in ("asia", "tokyo", "africa", "cairo") if word not in used]
        return says({"topic": ["physicist"], "keywords": new[:1]})

    model.does(first_round)
    variables = settings_for(model, tmp_path, SETTINGS)
    index_people(variables, write_people(tmp_path / "people"))
    try:
        with running(variables) as service:
            begun = service.client.post("/v1/runs", json={"kind": "search", "request": asked})
            place = begun.headers["Location"]
            # One question a group was answered; a reply that is on its way may be asked for again.
            until(lambda: held and _kept(tmp_path, begun.json()["id"]) == (3, True))
            service.kill()
        gate.set()
        with running(variables) as service:
            client = service.client
            (listed,) = client.get("/v1/runs").json()["runs"]
            assert listed["id"] == begun.json()["id"]
            run = until(lambda: _over(client.get(place).json()))
            assert (run["status"], run["attempts"]) == ("done", 2), run
            counted = Counter(_body(it) for it in model.asked)
            assert len(counted) > len(held)
            assert counted - Counter(held) == Counter(dict.fromkeys(counted, 1))
            # Its replies are in the cache by now, which changes no result.
            again = client.post("/v1/search", json=asked).json()
        for result in (run["result"], again):
            del result["usage"]
        assert run["result"] == again
    finally:
        gate.set()
        model.close()
    names = [
        json.loads(line)["name"]
        for line in (tmp_path / "traces" / f"{run['id']}.jsonl").read_text().splitlines()
    ]
    assert names.count("fairqr.begin") == 1
    assert names[-1] == "invoke_workflow fairqr"


def _kept(folder: Path, run: str) -> tuple[int, bool]:
    """Count the questions of a run whose replies are stored; some are asked more than once.

    Also say whether its first step has its checkpoint, which is written while others run. This only
    reads, so that the service never waits for it.
    """
    file = f"file:{folder}/data/service/runs.sqlite?mode=ro"
    with contextlib.closing(sqlite3.connect(file, uri=True)) as connection:
        found = connection.execute("SELECT id FROM replies WHERE run_id = ?", (run,)).fetchall()
        counted = "SELECT count(*) FROM checkpoints WHERE thread_id = ?"
        [(checkpoints,)] = connection.execute(counted, (run,)).fetchall()
    # The first two are of the input and before any step.
    return len({key.partition(":")[0] for (key,) in found}), checkpoints > 2


def _body(request: Asked) -> str:
    return json.dumps(request.body, sort_keys=True)


def _over(run: dict[str, Any]) -> dict[str, Any] | None:
    return run if run["status"] in ("done", "failed", "cancelled") else None


def test_a_server_accepts_runs_and_workers_do_them_though_one_is_killed(
    tmp_path: Path, postgres_url: str
) -> None:
    model, gate = ModelServer(), threading.Event()

    def held(request: Asked) -> Any:
        gate.wait(PATIENCE)
        return says({"topic": ["physicist"], "keywords": ["asia"]})

    model.does(held)
    settings = f'{SETTINGS}\ndatabase = "{postgres_url}"\nlease = 2\ngrace = 1\nwork = false'
    variables = settings_for(model, tmp_path, settings)
    index_people(variables, write_people(tmp_path / "people"))
    command = [Command.executable, "work"]
    workers: list[subprocess.Popen[bytes]] = []
    try:
        with running(variables) as service:
            client = service.client
            asked = {"kind": "search", "request": ASKED}
            places = [client.post("/v1/runs", json=asked).headers["Location"] for _ in range(4)]
            assert {client.get(place).json()["status"] for place in places} == {"queued"}
            workers.append(subprocess.Popen(command, env=environment(variables)))
            model.wait_for(1)
            workers[0].kill()
            workers.append(subprocess.Popen(command, env=environment(variables)))
            gate.set()
            runs = [until(lambda place=place: _over(client.get(place).json())) for place in places]
            assert {run["status"] for run in runs} == {"done"}
            assert max(run["attempts"] for run in runs) == 2
            rankings = [[it["id"] for it in run["result"]["ranking"]] for run in runs]
            assert rankings == rankings[:1] * 4
            with client.stream("GET", f"{places[0]}/events") as told:
                assert [name for _, name, _ in events_of(told) if name][-1] == "end"
            workers[1].terminate()
            assert workers[1].wait(PATIENCE) == 0
    finally:
        gate.set()
        model.close()
        for worker in workers:
            worker.kill()
            worker.wait()
