"""What is secret stays so: nothing that comes out has a key, a password, or the place of a file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairqr.base import errors
from fairqr.graph.service.problems import problem_of
from tests.servers.model_server import (
    Answer,
    Asked,
    failure,
)
from tests.servers.page_service import MODEL_KEY, events_of, run_command
from tests.servers.postgres_server import new_database
from tests.servers.service_client import PHYSICIST, Served, a_service, answers_all

OTHER_KEY = "sk-CANARY-of-the-environment-0123"
URL_PASSWORD = "CANARYinTheAddress"
QUERY = "physicist Qanaryquery"


SETTINGS = f"""
traces = "traces"
traffic.rate = ""
[service.models."openai:elsewhere"]
base_url = "http://MODEL/other"
api_key = "none"
[service.models."openai:guarded"]
base_url = "http://user:{URL_PASSWORD}@MODEL"
[service.models."openai:gone"]
base_url = "http://user:{URL_PASSWORD}@127.0.0.1:1/v1"
api_key = "{MODEL_KEY}"
"""


class Watched:
    """A service whose every word, and every answer, is kept to be searched.

    Attributes:
        answers: All that came over HTTP.
        key: Of its client.
    """

    def __init__(self, served: Served) -> None:
        self.served, self.model, self.client = served, served.model, served.client
        self.answers: list[str] = []
        self.key = served.key["Authorization"].removeprefix("Bearer ")
        self.client.headers.update(served.key)
        self.client.event_hooks = {"response": [self._keep]}

    def search(self, path: str = "/v1/search", **more: Any) -> httpx.Response:
        """Ask for a search."""
        return self.client.post(path, json={**PHYSICIST, "query": QUERY, **more})

    def _keep(self, response: httpx.Response) -> None:
        response.read()
        self.answers.append(f"{response.headers}\n{response.text}")


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory, postgres_server: str) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("PLACEcanary")
    (folder / "prompts" / "refine").mkdir(parents=True)
    (folder / "prompts" / "refine" / "v8.yaml").write_text("PLACEcanary: [")
    more = {"FAIRQR_PROMPTS_DIR": str(folder / "prompts"), "OPENAI_API_KEY": OTHER_KEY}
    with new_database(postgres_server) as url:
        more["FAIRQR_SERVICE_DATABASE"] = url
        with a_service(folder, "--require-keys", settings=SETTINGS, environment=more) as served:
            yield Watched(served)


def tells_the_key(asked: Asked) -> Answer:
    """Refuse a key as some servers do, by repeating it."""
    given = asked.headers.get("authorization", "none")
    return failure(401, f"Incorrect API key provided: {given}.", "invalid_api_key", x_key=given)


def test_nothing_secret_comes_out_of_a_service(watched: Watched) -> None:
    """By answers, streams, runs, logs, traces, figures, or what is kept of a run."""
    service, client = watched, watched.client
    assert service.search().status_code == 200
    for behaviour in (tells_the_key, failure(400, f"It is {MODEL_KEY}.")):
        service.model.does(behaviour)
        for number, model in enumerate(("openai:fake", "openai:guarded")):
            asked = {"query": f"{QUERY} {number}", "max_iterations": 1, "ask": "always"}
            found = service.search(model=model, **asked)
            assert found.json()["stop_reason"] == "model_failed"
        asked = {"question": QUERY, "corpus": "people", "model": "openai:fake", "keep": True}
        assert client.post("/v1/answer", json=asked).status_code == 502  # it says what failed
        with client.stream("POST", "/v1/answer/stream", json=asked) as response:
            assert [*events_of(response)][-1][1] == "error"
    soon = {"budget": {"seconds": 1}, "model": "openai:gone", "ask": "always"}
    assert service.search(**soon).json()["stop_reason"] in ("model_failed", "budget")
    service.model.does(answers_all)
    service.search(model="openai:elsewhere", query=f"{QUERY} elsewhere")
    service.search(base_url="http://user:CANARYof-the-request@evil.example/")
    broken = service.search(prompts={"refine": "v8"})
    assert "refine/v8" in broken.json()["detail"]
    assert (broken.status_code, broken.json()["type"]) == (422, "urn:fairqr:error:prompt")
    for number in range(20):
        client.in_background({**PHYSICIST, "k": 10 + number})
    for path in ("/v1/runs", "/v1/models", "/v1/prompts", "/v1/indexes", "/v1/me", "/openapi.json"):
        client.get(path)
    for run in client.get("/v1/runs").json()["runs"]:
        client.get(f"/v1/runs/{run['id']}")
    rules = run_command(service.served.variables, "keys", "create", "ruler", "--scope", "admin")
    assert client.get("/metrics", headers={"Authorization": f"Bearer {rules.strip()}"}).is_success
    wrong = f"{service.key[:-4]}aaaa"
    assert client.get("/v1/me", headers={"Authorization": f"Bearer {wrong}"}).status_code == 401
    for path in (f"/v1/me?key={service.key}", f"/v1/me?access_token={service.key}"):
        assert httpx.get(f"{client.base_url}{path}").status_code == 401

    secrets = [MODEL_KEY, OTHER_KEY, URL_PASSWORD, service.key, wrong, rules.strip(), "p%40ss"]
    secrets += ["p@ss:w/rd"]
    over_http = "\n".join(service.answers)
    assert QUERY in over_http  # what is to be found is found
    for secret in [*secrets, "PLACEcanary"]:
        assert secret not in over_http, secret
    traces = [*(service.served.folder / "traces").glob("*.jsonl")]
    assert len(traces) > 10
    said = service.served.process.said.decode(errors="replace")
    recorded = "\n".join(trace.read_text() for trace in traces)
    for secret in [*secrets, QUERY, "laboratory", "PLACEcanary"]:
        assert secret not in recorded, secret
        assert secret == "PLACEcanary" or secret not in said, secret
    shown = [
        run_command(service.served.variables, "config", "show"),
        run_command(service.served.variables, "config", "show", "--json"),
        run_command(service.served.variables, "keys", "list"),
        run_command(service.served.variables, "keys", "list", "--json"),
        *(file.read_text(errors="replace") for file in _files(service.served.folder / "cache")),
    ]
    for secret in secrets:
        assert all(secret not in text for text in shown), secret


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_the_key_goes_to_its_own_address_alone(watched: Watched) -> None:
    service = watched
    service.model.does(answers_all)
    service.search(query=f"{QUERY} own", max_iterations=1)
    own = {asked.headers["authorization"] for asked in service.model.asked}
    service.model.does(answers_all)
    service.search(query=f"{QUERY} other", max_iterations=1, model="openai:elsewhere")
    assert own == {f"Bearer {MODEL_KEY}"}
    assert {asked.path for asked in service.model.asked} == {"/v1/other/chat/completions"}
    for asked in service.model.asked:
        assert MODEL_KEY not in json.dumps(asked.headers)
        assert OTHER_KEY not in json.dumps(asked.headers)


@pytest.mark.parametrize(
    "name", ["ConfigError", "IndexUnavailableError", "IndexVersionError", "SourceError"]
)
def test_places_and_servers_are_for_the_log_alone(
    caplog: pytest.LogCaptureFixture, name: str
) -> None:
    said = "The index at http://inside.example:9200, in /srv/fairqr/CANARY, is away; correct it."
    document = problem_of(getattr(errors, name)(said))
    assert said in caplog.text
    assert not re.search("CANARY|inside", json.dumps(document))
