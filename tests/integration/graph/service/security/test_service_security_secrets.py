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
        self.served = served
        self.model = served.model
        self.client = served.client
        self.answers: list[str] = []
        self.key = served.key["Authorization"].removeprefix("Bearer ")
        self.client.headers.update(served.key)
        self.client.event_hooks = {"response": [self._keep]}

    def search(self, **fields: Any) -> httpx.Response:
        """Ask for a search."""
        return self.client.post("/v1/search", json={**PHYSICIST, "query": QUERY, **fields})

    def _keep(self, response: httpx.Response) -> None:
        response.read()
        self.answers.append(f"{response.headers}\n{response.text}")


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory, postgres_server: str) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("PLACEcanary")
    (folder / "prompts" / "refine").mkdir(parents=True)
    (folder / "prompts" / "refine" / "v8.yaml").write_text("PLACEcanary: [")
    environment = {"FAIRQR_PROMPTS_DIR": str(folder / "prompts"), "OPENAI_API_KEY": OTHER_KEY}
    with new_database(postgres_server) as url:
        environment["FAIRQR_SERVICE_DATABASE"] = url
        with a_service(
            folder, "--require-keys", settings=SETTINGS, environment=environment
        ) as served:
            yield Watched(served)


def repeat_the_key(asked: Asked) -> Answer:
    """Refuse a key as some servers do, by repeating it."""
    key = asked.headers.get("authorization", "none")
    return failure(401, f"Incorrect API key provided: {key}.", "invalid_api_key", x_key=key)


def ask_models_that_fail(service: Watched) -> None:
    """Ask models that repeat their keys, or whose servers are away."""
    client = service.client
    answer = {"question": QUERY, "corpus": "people", "model": "openai:fake", "keep": True}
    for behaviour in (repeat_the_key, failure(400, f"It is {MODEL_KEY}.")):
        service.model.does(behaviour)
        for number, model in enumerate(("openai:fake", "openai:guarded")):
            fields = {"query": f"{QUERY} {number}", "max_iterations": 1, "ask": "always"}
            result = service.search(model=model, **fields).json()
            assert result["stop_reason"] == "model_failed"
        assert client.post("/v1/answer", json=answer).status_code == 502  # it says what failed
        with client.stream("POST", "/v1/answer/stream", json=answer) as response:
            assert [*events_of(response)][-1][1] == "error"
    soon = {"budget": {"seconds": 1}, "model": "openai:gone", "ask": "always"}
    assert service.search(**soon).json()["stop_reason"] in ("model_failed", "budget")


def ask_for_what_is_refused(service: Watched) -> None:
    service.model.does(answers_all)
    service.search(model="openai:elsewhere", query=f"{QUERY} elsewhere")
    service.search(base_url="http://user:CANARYof-the-request@evil.example/")
    broken = service.search(prompts={"refine": "v8"})
    assert broken.status_code == 422
    assert broken.json()["type"] == "urn:fairqr:error:prompt"
    assert "refine/v8" in broken.json()["detail"]


def read_all_there_is(service: Watched) -> None:
    """Begin runs, and read them and all lists."""
    client = service.client
    for number in range(20):
        client.in_background({**PHYSICIST, "k": 10 + number})
    for path in ("/v1/runs", "/v1/models", "/v1/prompts", "/v1/indexes", "/v1/me", "/openapi.json"):
        client.get(path)
    for run in client.get("/v1/runs").json()["runs"]:
        client.get(f"/v1/runs/{run['id']}")


def try_keys(service: Watched) -> list[str]:
    """Use the key of an admin, a wrong one, and the right one in the wrong place; return two."""
    client = service.client
    variables = service.served.variables
    admin = run_command(variables, "keys", "create", "admin", "--scope", "admin").strip()
    assert client.get("/metrics", headers={"Authorization": f"Bearer {admin}"}).is_success
    wrong = f"{service.key[:-4]}aaaa"
    assert client.get("/v1/me", headers={"Authorization": f"Bearer {wrong}"}).status_code == 401
    for name in ("key", "access_token"):
        in_address = httpx.get(f"{client.base_url}/v1/me?{name}={service.key}")
        assert in_address.status_code == 401
    return [admin, wrong]


def secrets_in(text: str, secrets: list[str]) -> list[str]:
    return [secret for secret in secrets if secret in text]


@pytest.mark.promise("service")
def test_nothing_secret_comes_out_of_a_service(watched: Watched) -> None:
    """No key and no password comes out of a service by answers, streams, runs, logs, traces,
    metrics or commands, and no content of runs by logs and traces.
    """
    served = watched.served
    assert watched.search().status_code == 200

    ask_models_that_fail(watched)
    ask_for_what_is_refused(watched)
    read_all_there_is(watched)
    keys = try_keys(watched)
    secrets = [MODEL_KEY, OTHER_KEY, URL_PASSWORD, watched.key, *keys, "p%40ss", "p@ss:w/rd"]
    content = [QUERY, "laboratory"]

    over_http = "\n".join(watched.answers)
    assert QUERY in over_http  # what is to be found is found
    assert secrets_in(over_http, [*secrets, "PLACEcanary"]) == []

    traces = [*(served.folder / "traces").glob("*.jsonl")]
    recorded = "\n".join(trace.read_text() for trace in traces)
    assert len(traces) > 10
    assert secrets_in(recorded, [*secrets, *content, "PLACEcanary"]) == []

    log = served.process.said.decode(errors="replace")
    assert secrets_in(log, [*secrets, *content]) == []

    for command in (("config", "show"), ("keys", "list")):
        for options in ((), ("--json",)):
            printed = run_command(served.variables, *command, *options)
            assert secrets_in(printed, secrets) == []
    for file in _files(served.folder / "cache"):
        assert secrets_in(file.read_text(errors="replace"), secrets) == []


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.promise("service")
def test_the_key_goes_to_its_own_address_alone(watched: Watched) -> None:
    """The key of a model goes to the address of its entry alone."""
    model = watched.model
    model.does(answers_all)
    watched.search(query=f"{QUERY} own", max_iterations=1)
    sent = {asked.headers["authorization"] for asked in model.asked}

    assert sent == {f"Bearer {MODEL_KEY}"}

    model.does(answers_all)
    watched.search(query=f"{QUERY} other", max_iterations=1, model="openai:elsewhere")
    assert {asked.path for asked in model.asked} == {"/v1/other/chat/completions"}
    for asked in model.asked:
        assert secrets_in(json.dumps(asked.headers), [MODEL_KEY, OTHER_KEY]) == []


@pytest.mark.promise("service")
@pytest.mark.parametrize(
    "name", ["ConfigError", "IndexUnavailableError", "IndexVersionError", "SourceError"]
)
def test_places_and_servers_are_for_the_log_alone(
    caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """Places of files and addresses of servers are for the log alone, and in no answer."""
    sentence = (
        "The index at http://inside.example:9200, in /srv/fairqr/CANARY, is away; correct it."
    )
    document = problem_of(getattr(errors, name)(sentence))
    assert sentence in caplog.text
    assert not re.search("CANARY|inside", json.dumps(document))
