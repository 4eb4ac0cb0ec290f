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


def test_a_search_gives_what_the_python_api_gives(
    service: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {**PHYSICIST, "model": "feedback", "target": ["gender=female:0.5,male:0.5"]}
    answer = service.client.post("/v1/search", json=asked)
    assert answer.status_code == 200
    found = SearchResult.model_validate(answer.json())
    monkeypatch.setenv("FAIRQR_DATA_DIR", service.variables["FAIRQR_DATA_DIR"])
    monkeypatch.setenv("FAIRQR_CONFIG", "/dev/null")
    with FairSearch.open("people", "feedback") as fair:
        context = {name: asked[name] for name in ("attributes", "k", "ask", "groups", "target")}
        own = fair.search("physicist", **context)
    without_time = {"usage": {"milliseconds"}}
    assert found.model_dump(exclude=without_time) == own.model_dump(exclude=without_time)
    kept = service.client.post("/v1/search", json={**asked, "keep": True})
    run = service.client.get(kept.headers["location"]).json()
    assert run["result"] == kept.json()
    assert run["request"]["max_iterations"] == 5


def test_pages_that_follow_each_other_are_one_list(service: Served) -> None:
    """With a model, which is asked for the first page alone; the last page says the list ends."""
    asked = {**PHYSICIST, "query": "physicist of pages", "k": 5}
    first = service.client.post("/v1/search", json=asked).json()
    assert first["pages"] > 2
    pages = [first]
    for page in range(2, first["pages"] + 2):
        answer = service.client.post("/v1/search", json={**asked, "page": page})
        assert answer.status_code == 200
        pages.append(answer.json())
    assert [result["page"] for result in pages] == [*range(1, first["pages"] + 2)]
    ids = [place["id"] for result in pages for place in result["ranking"]]
    ranks = [place["rank"] for result in pages for place in result["ranking"]]
    assert len(set(ids)) == len(ids) > 5 * (first["pages"] - 1)
    assert ranks == [*range(1, len(ids) + 1)]
    assert first["usage"]["model_calls"] > 0
    assert {result["usage"]["model_calls"] for result in pages[1:]} == {0}
    assert {json.dumps(result["iterations"]) for result in pages} == {
        json.dumps(first["iterations"])
    }
    assert pages[-1]["ranking"] == []
    kept = service.client.post("/v1/search", json={**asked, "page": 2, "keep": True})
    assert kept.json()["ranking"] == pages[1]["ranking"]
    refused = service.client.post("/v1/answer", json={"question": "Who?", "page": 2})
    assert refused.status_code == 422
    assert "only a search has pages" in refused.json()["detail"]


def test_of_a_run_that_is_not_kept_nothing_is_stored(service: Served) -> None:
    """Neither its query nor what the model was asked, in no file of the service."""
    before = service.client.get("/v1/runs").json()
    word = "zanzibar"
    asked = {**PHYSICIST, "query": f"physicist {word}"}
    answer = service.client.post("/v1/search", json=asked)
    assert answer.json()["usage"]["model_calls"] > 0
    again = service.client.post("/v1/search", json=asked)
    assert again.json()["usage"]["model_calls"] == 0  # the process remembers the replies
    id_ = answer.headers["x-request-id"]
    assert "location" not in answer.headers
    assert service.client.get(f"/v1/runs/{id_}").status_code == 404
    assert service.client.get("/v1/runs").json() == before
    files = [file for file in service.folder.rglob("*") if file.is_file()]
    assert any(file.name == "runs.sqlite" for file in files)
    for file in files:
        assert word.encode() not in file.read_bytes(), file


def test_every_example_of_the_description_works(service: Served) -> None:
    document = service.client.get("/openapi.json").json()
    background = []
    for path, operations in document["paths"].items():
        if "post" not in operations or path == "/v1/runs":
            continue
        body = operations["post"]["requestBody"]["content"]["application/json"]["schema"]
        example = document["components"]["schemas"][body["$ref"].rpartition("/")[2]]["example"]
        answer = service.client.post(path, json={**example, "corpus": "notables"})
        assert answer.status_code == (202 if path == "/v1/audits" else 200), answer.text
        assert "event: error" not in answer.text
        if path == "/v1/audits":
            background.append(answer.headers["location"])
        elif (kind := path.split("/")[2]) in ("search", "answer", "probe"):
            background.append(service.client.in_background(example, kind))
    assert len(background) == 7
    assert {service.client.ended(place)["status"] for place in background} == {"done"}


def test_a_stream_tells_each_step_and_goes_on_where_it_was_left(service: Served) -> None:
    asked = {**PHYSICIST, "keep": True}
    with service.client.stream("POST", "/v1/search/stream", json=asked) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        place = response.headers["location"]
        told = [event for event in events_of(response) if event[1]]
    assert [number for number, _, _ in told] == [*range(1, len(told) + 1)]
    assert told[0][1] == "run"
    assert {name for _, name, _ in told[1:-1]} == {"step"}
    steps = [data for _, name, data in told if name == "step"]
    for step in steps:  # what the API describes, and no more
        StepData.model_validate(step)
    assert [step["step"] for step in steps[:2]] == ["prepare", "retrieve"]
    rounds = [step["round"]["index"] for step in steps if step["step"] == "measure"]
    assert rounds == [*range(len(rounds))]
    assert (steps[-1]["step"], "result" in steps[-1]) == ("rerank", False), "it comes once"
    assert told[-1][1] == "end"
    assert told[-1][2]["result"] == service.client.get(place).json()["result"]
    last = str(told[-1][0])
    for known, rest in (("3", told[3:]), ("", told), (last, told[-1:]), ("2147483647", told[-1:])):
        again = {"Last-Event-ID": known}
        with service.client.stream("GET", f"{place}/events", headers=again) as response:
            assert [event for event in events_of(response) if event[1]] == rest


def test_a_request_that_is_sent_again_begins_no_second_run(service: Served) -> None:
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
    asked = {**PHYSICIST, "ask": "never", "keep": True}
    named = {"Idempotency-Key": "kept"}
    places = {
        service.client.post("/v1/search", json=asked, headers=named).headers["location"]
        for _ in range(3)
    }
    with service.client.stream("POST", "/v1/search/stream", json=asked, headers=named) as response:
        places.add(response.headers["location"])
    assert len(places) == 1


@pytest.mark.parametrize("path", ["0" * 101, "0/events", "0" * 101 + "/events"])
def test_ids_and_events_that_cannot_be_are_refused(service: Served, path: str) -> None:
    headers = {"Last-Event-ID": "x"} if path.startswith("0/") else {}
    assert service.client.get(f"/v1/runs/{path}", headers=headers).status_code == 422


def test_whatever_a_model_writes_can_be_told_and_kept(service: Served) -> None:
    service.model.does(says("Curie \x00 \ud800 \u2028 \r\nevent: end\n\n"))
    asked = {"question": "Which physicist wrote this?", "corpus": "people", "keep": True}
    answer = service.client.post("/v1/answer", json=asked)
    assert answer.status_code == 200, answer.text
    place = answer.headers["location"]
    assert service.client.get(place).json()["result"] == answer.json()
    with service.client.stream("GET", f"{place}/events") as response:
        told = [*events_of(response)]
    assert [name for _, name, _ in told].count("end") == 1
    assert told[-1][2]["result"] == answer.json()


WRONG: list[tuple[str, dict[str, Any], int, str]] = [
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


@pytest.mark.parametrize(("kind", "asked", "status", "slug"), WRONG)
def test_what_is_wrong_is_a_problem_in_one_sentence(
    service: Served, kind: str, asked: dict[str, Any], status: int, slug: str
) -> None:
    answer = service.client.post(f"/v1/{kind}", json=asked)
    assert (answer.status_code, answer.json()["status"]) == (status, status), answer.text
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


@pytest.mark.parametrize("path", ["/v1/search", "/v1/search/stream"])
@pytest.mark.parametrize("keep", [False, True])
def test_a_client_that_goes_takes_its_run_with_it_unless_it_is_kept(
    service: Served, path: str, keep: bool
) -> None:
    gate = threading.Event()
    service.model.does(says({"keywords": ["woman"]}, gate=gate))
    asked = {**PHYSICIST, "query": f"physicist {path} {keep}", "keep": keep}
    cancelled = _ended(service, "cancelled")
    if path.endswith("stream"):
        with service.client.stream("POST", path, json=asked) as response:
            assert any(name == "step" for _, name, _ in events_of(response))
    else:
        base, body = service.client.base_url, json.dumps(asked)
        head = f"POST {path} HTTP/1.1\r\nHost: {base.host}:{base.port}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection((base.host, base.port or 80)) as client:
            client.sendall((head + body).encode())
            service.model.wait_for(1)
    if not keep:
        until(lambda: _ended(service, "cancelled") == cancelled + 1)
    gate.set()
    if keep:
        run = service.newest()
        assert run["query"] == asked["query"]
        assert service.client.ended(f"/v1/runs/{run['id']}")["status"] == "done"


def test_runs_in_the_background_are_listed_followed_cancelled_and_removed(service: Served) -> None:
    gate = threading.Event()
    service.model.does(says({"keywords": ["woman"]}, gate=gate))
    place = service.client.in_background({**PHYSICIST, "query": "physicist later"})
    service.model.wait_for(1)
    live = service.client.get("/v1/runs", params={"status": "running"}).json()["runs"]
    assert [f"/v1/runs/{run['id']}" for run in live] == [place]
    assert service.client.delete(place).status_code == 204
    name, data = service.client.events(place)[-1]
    assert (name, data["type"]) == ("error", "urn:fairqr:error:cancelled")
    assert service.client.ended(place)["status"] == "cancelled"
    assert service.client.delete(place).status_code == 204
    assert service.client.get(place).status_code == 404
    gate.set()


def test_an_index_that_is_made_again_is_searched_without_a_restart(
    service: Served, tmp_path: Path
) -> None:
    def titles(corpus: str) -> list[str]:
        asked = {"query": "zoologist", "corpus": corpus, "k": 1, "model": "feedback"}
        answer = service.client.post("/v1/search", json={**asked, "method": "baseline"})
        assert answer.status_code == 200, answer.text
        return [document["title"] for document in answer.json()["ranking"]]

    for name in ("Ada", "Grace"):
        document = {"id": "1", "title": name, "text": "zoologist", "g": "female"}
        index_people(service.variables, write_corpus(tmp_path, [document]), "zoologists")
        assert titles("zoologists") == [name]


def test_what_is_offered(service: Served) -> None:
    people, notables, *_ = service.client.get("/v1/indexes").json()["indexes"]
    assert (people["name"], people["documents"], notables["name"]) == ("people", 60, "notables")
    assert people["attributes"]["gender"]["groups"] == ["female", "male"]
    offered = service.client.get("/v1/models").json()
    assert offered["models"][0] == {"name": "openai:fake", "default": True}
    assert [it["default"] for it in offered["retrievers"]].count(True) == 1
    usual = {kind: it["name"] for it in offered["methods"] for kind in it["default_for"]}
    assert usual == {"search": "fairqr", "answer": "baseline", "probe": "baseline"}
    assert not {"deltr", "monot5"} & {it["name"] for it in offered["methods"]}


def test_figures_name_routes_and_never_paths(service: Served) -> None:
    service.client.post("/v1/search", json=PHYSICIST)
    service.client.get("/v1/runs/very-private-id")
    service.client.get("/nowhere/very-private")
    text = service.client.get("/metrics").text
    assert "very-private" not in text
    assert 'route="/v1/runs/{id}",status="404"' in text
    told = {*re.findall(r"^fairqr_(\w+)", text, re.MULTILINE)}
    assert told >= {"http_request_seconds_bucket", "http_problems_total", "runs_finished_total"}
    assert told >= {"runs", "model_calls_total", "tokens_total", "divergence_nats_count"}


def test_the_page_and_its_files(service: Served) -> None:
    page = service.client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"
    again = service.client.get("/", headers={"If-None-Match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    ("range_", "status"),
    [("bytes=99999999-", 416), ("bytes=3-2", 400), ("lines=1", 400), ("bytes=0-3", 206)],
)
def test_a_part_that_a_file_does_not_have_is_a_problem(
    service: Served, range_: str, status: int
) -> None:
    answer = service.client.get("/page/app.js", headers={"Range": range_})
    assert answer.status_code == status
    if status == 206:
        assert len(answer.content) == 4
        return
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == status
    assert ("content-range" in answer.headers) == (status == 416)
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_each_run_is_recorded_without_content_or_else_done_all_the_same(service: Served) -> None:
    """The disk may be full, or the folder gone."""
    answer = service.client.post("/v1/search", json={**PHYSICIST, "query": "physicist canary"})
    folder, aside = service.folder / "traces", service.folder / "aside"
    trace = (folder / f"{answer.headers['x-request-id']}.jsonl").read_text()
    assert "invoke_workflow" in trace
    assert "canary" not in trace
    assert folder.stat().st_mode & 0o077 == 0
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
