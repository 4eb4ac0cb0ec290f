"""The service as a program meets it: requests, streams, runs, and what goes wrong."""

from __future__ import annotations

import json
import re
import socket
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairqr.api import FairSearch
from fairqr.graph.search.result import SearchResult
from fairqr.graph.stream import StepData
from tests.patience import until
from tests.servers.model_server import says
from tests.servers.page_service import events_of
from tests.servers.service_client import (
    PHYSICIST,
    Served,
    answers_all,
    index_people,
    service_of_a_module,
)
from tests.unit.graph.corpora import write_corpus

service = service_of_a_module(
    *("--corpus", "notables", "--corpus", "zoo*"),
    settings='traces = "traces"\ncorpora = ["people", "notables"]\ntraffic.rate = ""\n'
    "limits.k = 50\nlimits.body_bytes = 20_000",
)


@pytest.fixture(autouse=True)
def _model_that_answers(service: Served) -> None:
    service.model.does(answers_all)


@pytest.mark.promise("service")
def test_a_search_gives_what_the_python_api_gives(
    service: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search over HTTP gives what the Python API gives."""
    request = {**PHYSICIST, "model": "feedback", "target": ["gender=female:0.5,male:0.5"]}
    answer = service.client.post("/v1/search", json=request)
    assert answer.status_code == 200

    over_http = SearchResult.model_validate(answer.json())
    monkeypatch.setenv("FAIRQR_DATA_DIR", service.variables["FAIRQR_DATA_DIR"])
    monkeypatch.setenv("FAIRQR_CONFIG", "/dev/null")
    with FairSearch.open("people", "feedback") as fair:
        context: Any = {
            name: request[name] for name in ("attributes", "k", "ask", "groups", "target")
        }
        in_python = fair.search("physicist", **context)

    without_time = {"usage": {"milliseconds"}}
    assert over_http.model_dump(exclude=without_time) == in_python.model_dump(exclude=without_time)


def test_a_kept_search_is_stored_with_its_request(service: Served) -> None:
    request = {**PHYSICIST, "model": "feedback", "target": ["gender=female:0.5,male:0.5"]}
    kept = service.client.post("/v1/search", json={**request, "keep": True})
    run = service.client.get(kept.headers["location"]).json()

    assert run["result"] == kept.json()
    assert run["request"]["max_iterations"] == 5


@pytest.fixture(scope="module")
def pages(service: Served) -> list[dict[str, Any]]:
    """All pages of a search, and the empty one behind them."""
    service.model.does(answers_all)
    first = service.client.post("/v1/search", json=PAGED).json()
    answers = [first]
    for page in range(2, first["pages"] + 2):
        answer = service.client.post("/v1/search", json={**PAGED, "page": page})
        assert answer.status_code == 200
        answers.append(answer.json())
    return answers


PAGED = {**PHYSICIST, "query": "physicist of pages", "k": 5}


@pytest.mark.promise("objective")
def test_pages_that_follow_each_other_are_one_list(pages: list[dict[str, Any]]) -> None:
    """Pages of a search over HTTP are one list: it is complete, no document stands twice, ranks go
    on, and the page behind the last one is empty.
    """
    number = pages[0]["pages"]
    ids = [document["id"] for page in pages for document in page["ranking"]]
    ranks = [document["rank"] for page in pages for document in page["ranking"]]

    assert number > 2
    assert [page["page"] for page in pages] == [*range(1, number + 2)]
    assert len(set(ids)) == len(ids) > 5 * (number - 1)
    assert ranks == [*range(1, len(ids) + 1)]
    assert pages[-1]["ranking"] == []


def test_a_model_is_asked_for_the_first_page_alone(pages: list[dict[str, Any]]) -> None:
    first, *others = pages
    assert first["usage"]["model_calls"] > 0
    assert {page["usage"]["model_calls"] for page in others} == {0}
    assert all(page["iterations"] == first["iterations"] for page in others)


def test_a_page_can_be_kept(service: Served, pages: list[dict[str, Any]]) -> None:
    kept = service.client.post("/v1/search", json={**PAGED, "page": 2, "keep": True})
    assert kept.json()["ranking"] == pages[1]["ranking"]


def test_only_a_search_has_pages(service: Served) -> None:
    refused = service.client.post("/v1/answer", json={"question": "Who?", "page": 2})
    assert refused.status_code == 422
    assert "only a search has pages" in refused.json()["detail"]


@pytest.mark.promise("service")
def test_of_a_run_that_is_not_kept_nothing_is_stored(service: Served) -> None:
    """Of an ephemeral run nothing is stored: neither its query nor what the model was asked is in
    any file of the service.
    """
    before = service.client.get("/v1/runs").json()
    word = "zanzibar"
    request = {**PHYSICIST, "query": f"physicist {word}"}
    answer = service.client.post("/v1/search", json=request)

    assert answer.json()["usage"]["model_calls"] > 0

    again = service.client.post("/v1/search", json=request)
    assert again.json()["usage"]["model_calls"] == 0  # the process remembers the replies

    id_ = answer.headers["x-request-id"]
    assert "location" not in answer.headers
    assert service.client.get(f"/v1/runs/{id_}").status_code == 404
    assert service.client.get("/v1/runs").json() == before

    files = [file for file in service.folder.rglob("*") if file.is_file()]
    assert any(file.name == "runs.sqlite" for file in files)
    for file in files:
        assert word.encode() not in file.read_bytes(), file


def examples_of(description: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the example of each path that takes a body, but for runs of all kinds."""
    examples = {}
    for path, operations in description["paths"].items():
        if "post" not in operations or path == "/v1/runs":
            continue
        body = operations["post"]["requestBody"]["content"]["application/json"]["schema"]
        name = body["$ref"].rpartition("/")[2]
        examples[path] = description["components"]["schemas"][name]["example"]
    return examples


def test_every_example_of_the_description_works(service: Served) -> None:
    background = []
    for path, example in examples_of(service.client.get("/openapi.json").json()).items():
        answer = service.client.post(path, json={**example, "corpus": "notables"})
        assert answer.status_code == (202 if path == "/v1/audits" else 200), answer.text
        assert "event: error" not in answer.text

        if path == "/v1/audits":
            background.append(answer.headers["location"])
        elif (kind := path.split("/")[2]) in ("search", "answer", "probe"):
            background.append(service.client.in_background(example, kind))

    assert len(background) == 7
    assert {service.client.ended(location)["status"] for location in background} == {"done"}


EventOfRun = tuple[int, str, dict[str, Any]]


@pytest.fixture(scope="module")
def kept_stream(service: Served) -> tuple[str, list[EventOfRun]]:
    """The path and the events of a kept run that was read as a stream."""
    service.model.does(answers_all)
    request = {**PHYSICIST, "keep": True}
    with service.client.stream("POST", "/v1/search/stream", json=request) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        location = response.headers["location"]
        return location, [event for event in events_of(response) if event[1]]


def test_a_stream_tells_each_step(kept_stream: tuple[str, list[EventOfRun]]) -> None:
    _, events = kept_stream
    assert events[0][1] == "run"
    assert {name for _, name, _ in events[1:-1]} == {"step"}

    steps = [data for _, name, data in events if name == "step"]
    for step in steps:  # what the API describes, and no more
        StepData.model_validate(step)
    assert [step["step"] for step in steps[:2]] == ["prepare", "retrieve"]

    rounds = [step["round"]["index"] for step in steps if step["step"] == "measure"]
    assert rounds == [*range(len(rounds))]


@pytest.mark.promise("service")
def test_a_stream_ends_once_with_the_result(
    service: Served, kept_stream: tuple[str, list[EventOfRun]]
) -> None:
    """The events of a run are numbered without gaps, and its end, with the result, has
    one number.
    """
    location, events = kept_stream
    assert [number for number, _, _ in events] == [*range(1, len(events) + 1)]

    last_step = events[-2][2]
    assert last_step["step"] == "rerank"
    assert "result" not in last_step, "it comes once"
    assert events[-1][1] == "end"
    assert events[-1][2]["result"] == service.client.get(location).json()["result"]


@pytest.mark.promise("service")
@pytest.mark.parametrize("last", ["3", "", "the end", "2147483647"])
def test_a_stream_goes_on_where_it_was_left(
    service: Served, kept_stream: tuple[str, list[EventOfRun]], last: str
) -> None:
    """A stream goes on after a lost connection where it was left, and tells no event twice."""
    location, events = kept_stream
    rests = {"3": events[3:], "": events, "the end": events[-1:], "2147483647": events[-1:]}
    number = str(events[-1][0]) if last == "the end" else last
    headers = {"Last-Event-ID": number}
    with service.client.stream("GET", f"{location}/events", headers=headers) as response:
        assert [event for event in events_of(response) if event[1]] == rests[last]


@pytest.mark.promise("service")
def test_a_request_that_is_sent_again_begins_no_second_run(service: Served) -> None:
    """A request with an `Idempotency-Key` that is sent again begins no second run; another request
    under the same key is refused.
    """

    def begin(name: str, **changes: Any) -> httpx.Response:
        run = {"kind": "search", "request": {**PHYSICIST, "ask": "never", **changes}}
        return service.client.post("/v1/runs", json=run, headers={"Idempotency-Key": name})

    first = begin("one").raise_for_status()
    service.client.ended(first.headers["location"])
    again = begin("one").raise_for_status()

    assert again.headers["location"] == first.headers["location"]
    assert begin("two").headers["location"] != first.headers["location"]

    other = begin("one", k=3)
    assert other.status_code == 422, other.text
    assert "another request" in other.json()["detail"]
    assert begin("").status_code == 422


def test_a_kept_search_that_is_sent_again_is_the_same_run(service: Served) -> None:
    """As a run that was asked for in the background; its first answer was lost on the way."""
    request = {**PHYSICIST, "ask": "never", "keep": True}
    headers = {"Idempotency-Key": "kept"}
    locations = {
        service.client.post("/v1/search", json=request, headers=headers).headers["location"]
        for _ in range(3)
    }
    sent: Any = {"json": request, "headers": headers}
    with service.client.stream("POST", "/v1/search/stream", **sent) as response:
        locations.add(response.headers["location"])

    assert len(locations) == 1


@pytest.mark.parametrize("path", ["0" * 101, "0/events", "0" * 101 + "/events"])
def test_ids_and_events_that_cannot_be_are_refused(service: Served, path: str) -> None:
    headers = {"Last-Event-ID": "x"} if path.startswith("0/") else {}
    assert service.client.get(f"/v1/runs/{path}", headers=headers).status_code == 422


def test_whatever_a_model_writes_can_be_told_and_kept(service: Served) -> None:
    service.model.does(says("Curie \x00 \ud800 \u2028 \r\nevent: end\n\n"))
    request = {"question": "Which physicist wrote this?", "corpus": "people", "keep": True}
    answer = service.client.post("/v1/answer", json=request)

    assert answer.status_code == 200, answer.text

    location = answer.headers["location"]
    assert service.client.get(location).json()["result"] == answer.json()

    with service.client.stream("GET", f"{location}/events") as response:
        events = [*events_of(response)]
    assert [name for _, name, _ in events].count("end") == 1
    assert events[-1][2]["result"] == answer.json()


WRONG_REQUESTS: list[tuple[str, dict[str, Any], int, str]] = [
    ("search", {}, 422, "input"),
    ("search", {"query": "   "}, 422, "query"),
    ("search", {"query": "x", "nonsense": 1}, 422, "input"),
    ("search", {"query": "x" * 30_000}, 413, "over-limit"),
    ("search", {"query": "x", "k": 51}, 422, "over-limit"),
    ("probe", {"query": "x", "attribute": "g", "protected": "f", "pairs": 500}, 422, "over-limit"),
    ("search", {"query": "x", "attributes": ["shoe size"]}, 422, "unknown-attribute"),
    ("search", {"query": "x", "target": "gender=female:1e308,male:1e308"}, 422, "target"),
    ("search", {"query": "man", "method": "pairwise", "budget": {"model_calls": 1}}, 422, "budget"),
    ("search", {"query": "x", "corpus": "other"}, 403, "not-allowed"),
    ("search", {"query": "x", "method": "listwise", "model": "feedback"}, 422, "input"),
    ("answer", {"question": "x", "model": "feedback"}, 422, "input"),
    ("audits", {"queries": []}, 422, "input"),
    ("audits", {"queries": ["x"], "k": 51}, 422, "over-limit"),
    ("audits", {"queries": ["x"], "attributes": ["colour"]}, 422, "unknown-attribute"),
    ("audits", {"queries": ["x"], "folder": "/tmp/elsewhere"}, 422, "input"),
    ("audits", {"queries": ["x"], "corpus": "/etc/passwd"}, 404, "index-not-found"),
]


@pytest.mark.promise("service")
@pytest.mark.parametrize(("kind", "request_", "status", "slug"), WRONG_REQUESTS)
def test_what_is_wrong_is_a_problem_in_one_sentence(
    service: Served, kind: str, request_: dict[str, Any], status: int, slug: str
) -> None:
    """A wrong request is a problem document whose `type` says what is wrong, in one sentence."""
    answer = service.client.post(f"/v1/{kind}", json=request_)
    assert answer.status_code == status, answer.text
    assert answer.json()["status"] == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"] == f"urn:fairqr:error:{slug}"
    assert answer.json()["detail"].endswith(".")
    assert len(answer.text) < 1500

    if slug == "over-limit":
        assert answer.json()["limit"] in answer.json()["detail"]


def _ended(service: Served, status: str) -> int:
    """Return how many searches ended so."""
    name = f'fairqr_runs_finished_total{{kind="search",status="{status}"}}'
    lines = service.client.get("/metrics").text.splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith(name))


def search_and_leave(service: Served, path: str, request: dict[str, Any]) -> None:
    """Send a request and close the connection while its run is under way."""
    if path.endswith("stream"):
        with service.client.stream("POST", path, json=request) as response:
            assert any(name == "step" for _, name, _ in events_of(response))
        return
    base = service.client.base_url
    body = json.dumps(request)
    head = f"POST {path} HTTP/1.1\r\nHost: {base.host}:{base.port}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((base.host, base.port or 80)) as client:
        client.sendall((head + body).encode())
        service.model.wait_for(1)


@pytest.fixture
def gate(service: Served) -> threading.Event:
    """Lets a model that waits reply."""
    gate = threading.Event()
    service.model.does(says({"keywords": ["woman"]}, gate=gate))
    return gate


@pytest.mark.promise("service")
@pytest.mark.parametrize("path", ["/v1/search", "/v1/search/stream"], ids=["answer", "stream"])
def test_a_client_that_goes_takes_its_run_with_it(
    service: Served, gate: threading.Event, path: str
) -> None:
    """An ephemeral run ends when its client goes."""
    cancelled = _ended(service, "cancelled")
    search_and_leave(service, path, {**PHYSICIST, "query": f"physicist {path}", "keep": False})
    until(lambda: _ended(service, "cancelled") == cancelled + 1)
    gate.set()


@pytest.mark.promise("service")
@pytest.mark.parametrize("path", ["/v1/search", "/v1/search/stream"], ids=["answer", "stream"])
def test_a_kept_run_goes_on_without_its_client(
    service: Served, gate: threading.Event, path: str
) -> None:
    """A kept run goes on when its client goes."""
    query = f"physicist {path} kept"
    search_and_leave(service, path, {**PHYSICIST, "query": query, "keep": True})
    gate.set()
    run = service.newest()

    assert run["query"] == query
    assert service.client.ended(f"/v1/runs/{run['id']}")["status"] == "done"


def test_runs_in_the_background_are_listed_cancelled_and_removed(
    service: Served, gate: threading.Event
) -> None:
    location = service.client.in_background({**PHYSICIST, "query": "physicist later"})
    service.model.wait_for(1)
    live = service.client.get("/v1/runs", params={"status": "running"}).json()["runs"]

    assert [f"/v1/runs/{run['id']}" for run in live] == [location]
    assert service.client.delete(location).status_code == 204

    name, data = service.client.events(location)[-1]
    assert (name, data["type"]) == ("error", "urn:fairqr:error:cancelled")
    assert service.client.ended(location)["status"] == "cancelled"
    assert service.client.delete(location).status_code == 204
    assert service.client.get(location).status_code == 404

    gate.set()


def test_an_index_that_is_made_again_needs_no_restart(service: Served, tmp_path: Path) -> None:
    def titles(corpus: str) -> list[str]:
        request = {"query": "zoologist", "corpus": corpus, "k": 1, "model": "feedback"}
        answer = service.client.post("/v1/search", json={**request, "method": "baseline"})
        assert answer.status_code == 200, answer.text
        return [document["title"] for document in answer.json()["ranking"]]

    for name in ("Ada", "Grace"):
        document = {"id": "1", "title": name, "text": "zoologist", "g": "female"}
        index_people(service.variables, write_corpus(tmp_path, [document]), "zoologists")
        assert titles("zoologists") == [name]


def test_indexes_models_and_methods_are_described(service: Served) -> None:
    people, notables, *_ = service.client.get("/v1/indexes").json()["indexes"]
    assert (people["name"], people["documents"]) == ("people", 60)
    assert notables["name"] == "notables"
    assert people["attributes"]["gender"]["groups"] == ["female", "male"]

    offered = service.client.get("/v1/models").json()
    assert offered["models"][0] == {"name": "openai:fake", "default": True}
    assert [entry["default"] for entry in offered["retrievers"]].count(True) == 1

    usual: dict[str, str] = {}
    for entry in offered["methods"]:
        usual |= dict.fromkeys(entry["default_for"], entry["name"])
    assert usual == {"search": "fairqr", "answer": "baseline", "probe": "baseline"}
    assert not {"deltr", "monot5"} & {entry["name"] for entry in offered["methods"]}


@pytest.mark.promise("service")
def test_figures_name_routes_and_never_paths(service: Served) -> None:
    """Metrics name routes and never paths, so no id and no word of a request comes out of them."""
    service.client.post("/v1/search", json=PHYSICIST)
    service.client.get("/v1/runs/very-private-id")
    service.client.get("/nowhere/very-private")
    text = service.client.get("/metrics").text

    assert "very-private" not in text
    assert 'route="/v1/runs/{id}",status="404"' in text

    names = {*re.findall(r"^fairqr_(\w+)", text, re.MULTILINE)}
    assert names >= {"http_request_seconds_bucket", "http_problems_total", "runs_finished_total"}
    assert names >= {"runs", "model_calls_total", "tokens_total", "divergence_nats_count"}


@pytest.mark.promise("service")
def test_the_page_has_a_policy_and_is_not_sent_twice(service: Served) -> None:
    """The page comes with a policy by which it can load nothing but its own files."""
    page = service.client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"

    again = service.client.get("/", headers={"If-None-Match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_a_part_of_a_file_can_be_asked_for(service: Served) -> None:
    answer = service.client.get("/page/app.js", headers={"Range": "bytes=0-3"})
    assert answer.status_code == 206
    assert len(answer.content) == 4


@pytest.mark.parametrize(
    ("range_", "status"),
    [("bytes=99999999-", 416), ("bytes=3-2", 400), ("lines=1", 400)],
    ids=["beyond the end", "backwards", "lines"],
)
def test_a_part_that_a_file_does_not_have_is_a_problem(
    service: Served, range_: str, status: int
) -> None:
    answer = service.client.get("/page/app.js", headers={"Range": range_})
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == status
    assert ("content-range" in answer.headers) == (status == 416)
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.promise("service")
def test_each_run_is_recorded_without_content(service: Served) -> None:
    """Traces of runs hold no content of theirs and are for their owner alone."""
    answer = service.client.post("/v1/search", json={**PHYSICIST, "query": "physicist canary"})
    folder = service.folder / "traces"
    trace = (folder / f"{answer.headers['x-request-id']}.jsonl").read_text()

    assert "invoke_workflow" in trace
    assert "canary" not in trace
    assert folder.stat().st_mode & 0o077 == 0


def test_a_run_that_cannot_be_recorded_is_done_all_the_same(service: Served) -> None:
    """The disk may be full, or the folder gone."""
    folder = service.folder / "traces"
    aside = service.folder / "aside"
    folder.rename(aside)
    folder.touch()
    try:
        assert service.client.post("/v1/search", json=PHYSICIST).status_code == 200
    finally:
        folder.unlink()
        aside.rename(folder)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("HEAD", "/v1/runs", "GET, POST"),
        ("PUT", f"/v1/runs/{'0' * 32}", "DELETE, GET"),
        ("GET", "/v1/search", "POST"),
        ("POST", "/page/app.js", "GET, HEAD"),
        ("DELETE", "/", "GET, HEAD"),
        ("POST", "/readyz", "GET"),
    ],
)
def test_a_refused_method_names_those_of_all_routes(
    service: Served, method: str, path: str, allowed: str
) -> None:
    answer = service.client.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
