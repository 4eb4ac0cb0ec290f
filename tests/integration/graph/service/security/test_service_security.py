"""An attacker who may send what he likes: files, servers, models and runs that are not his."""

from __future__ import annotations

import contextlib
import json
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.patience import PATIENCE
from tests.servers.model_server import Answer, ModelServer, says
from tests.servers.service_client import PHYSICIST, Served, a_key, a_service, answers_all

PLAIN = {**PHYSICIST, "model": "feedback"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("attacked")
    (folder / "prompts").mkdir()
    settings = 'traffic.rate = ""\nlimits.model_calls = 20\n'
    settings += 'attributors = ["overlap", "llm"]'
    more = {"FAIRQR_PROMPTS_DIR": str(folder / "prompts")}
    with a_service(folder, settings=settings, environment=more) as running:
        yield running


def refused(service: Served, path: str = "/v1/search", **asked: Any) -> tuple[int, str]:
    """Ask for what is to be refused; return the status and the last part of the problem's type."""
    body = {**PLAIN, **asked} if path == "/v1/search" else {"corpus": "people", **asked}
    answer = service.client.post(path, json=body)
    assert "root:" not in answer.text
    return answer.status_code, answer.json()["type"].rpartition(":")[2]


def exchanged(service: Served, sent: bytes | str, seconds: float = 10) -> bytes:
    """Send bytes as they are, and return all that comes until the server ends the connection."""
    base = service.client.base_url
    received = b""
    with socket.create_connection((base.host, base.port or 80), timeout=seconds) as connection:
        connection.sendall(sent.encode() if isinstance(sent, str) else sent)
        with contextlib.suppress(ConnectionResetError):
            while piece := connection.recv(65536):
                received += piece
    return received


def head(service: Served, line: str, *headers: str) -> str:
    """Return the first bytes of a request to this server."""
    base = service.client.base_url
    named = [] if any(h.lower().startswith("host:") for h in headers) else [f"Host: {base.host}"]
    return "\r\n".join([f"{line} HTTP/1.1", *named, *headers, "", ""])


class TestNames:
    """What a request names is looked up in lists; nothing of it becomes a path or an address."""

    @pytest.mark.parametrize(
        "name",
        [
            *("../people", "/etc/passwd", "people/../people", "..", ".", "..%2fpeople", "people*"),
            *("*", "people\\..\\people", "a" * 5000, "PEOPLE", "people,notables", "", " "),
            "\u2025/people",
        ],
    )
    def test_an_index_is_no_path(self, service: Served, name: str) -> None:
        assert refused(service, corpus=name) == (404, "index-not-found")

    @pytest.mark.parametrize(
        "versions",
        [
            *({"refine": name} for name in ("../v1", "/etc/passwd", "*", "v1\n", "..\\v1")),
            *({"../refine": "v1"}, {"x" * 5000: "v1"}),
        ],
    )
    def test_a_prompt_is_no_path(self, service: Served, versions: dict[str, str]) -> None:
        assert refused(service, prompts=versions) == (422, "prompt")

    @pytest.mark.parametrize(
        ("name", "values"),
        [
            ("model", ["causal:/etc/passwd", "seq2seq:/etc/passwd", "local:../../etc/passwd"]),
            ("model", ["monot5", "transformers:gpt2", "huggingface:gpt2", "x" * 100_000]),
            ("model", ["openai:other", "openai:fak?", "openai:*", "openai:fake ", "OPENAI:fake"]),
            ("method", ["monot5", "monobert", "deltr", "dlf"]),
            ("rerank", ["monot5", "listwise"]),
            ("final_step", ["dlf"]),
            ("attributor", ["nli:/etc/passwd", "nli", "llm:openai:other"]),
        ],
    )
    def test_no_model_is_loaded_that_is_not_offered(
        self, service: Served, name: str, values: list[str]
    ) -> None:
        for value in values:
            asked: dict[str, Any] = {name: value}
            if name == "rerank":
                asked |= {"ranking": {"weights": "/etc/passwd"}, "final_step": "none"}
            path = "/v1/search"
            if name == "attributor":
                path, asked["question"] = "/v1/answer", "physicist"
            assert refused(service, path, **asked) == (403, "not-allowed"), value

    def test_no_option_names_a_file(self, service: Served) -> None:
        for asked in (
            {"final_step": "mmr", "options": {"weights": "/etc/passwd"}},
            {"retriever": "dense:/etc/passwd"},
        ):
            assert refused(service, **asked) == (422, "input")

    @pytest.mark.parametrize(
        "path",
        [
            *("/page/../index.html", "/page/..%2f..%2fapp.py", "/page/..%5c..%5capp.py"),
            *("/page/%00", "/page/index.html%00.js", "/page/%2e%2e/app.py", "/page//etc/passwd"),
            *("/page/__init__.py", "/page/.", "/page/vendor", "/page/vendor/"),
            *("/page/%c0%ae%c0%ae/app.py", "//v1/runs", "/v1//runs", "/V1/runs", "/v1/runs/"),
            "/page/file:///etc/passwd",
        ],
    )
    def test_only_files_of_the_page_are_sent(self, service: Served, path: str) -> None:
        answer = exchanged(service, head(service, f"GET {path}", "Connection: close"))
        assert answer.startswith(b"HTTP/1.1 404")


class TestServers:
    """Only configured servers are asked, whatever a request or a server says."""

    def test_no_other_server_can_be_named(self, service: Served) -> None:
        for name in ("base_url", "url", "model.base_url"):
            asked = {"model": "openai:fake", name: "http://169.254.169.254/latest"}
            assert refused(service, **asked) == (422, "input")

    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    def test_a_server_cannot_send_it_to_another_one(
        self, service: Served, model_server: ModelServer, status: int
    ) -> None:
        place = f"{model_server.base_url}/chat/completions"
        service.model.does(Answer(status, b"{}", {"Location": place}))
        asked = {**PHYSICIST, "query": f"physicist sent {status}"}
        answer = service.client.post("/v1/search", json=asked)
        assert answer.json()["stop_reason"] == "model_failed"
        assert service.model.asked
        assert not model_server.asked


class TestBodies:
    """What is no request is refused at once, and briefly; see test_service_security_bodies.py."""

    @pytest.mark.parametrize(
        ("body", "status"),
        [
            (b"", 400),
            (b"\x1f\x8b\x08\x00" + b"\x00" * 1000, 400),  # said to be gzip; nothing is unpacked
            (b'{"query":"x","options":' + b'{"a":' * 900 + b"1" + b"}" * 901, 400),
            (b'{"query":"x","options":' + b'{"a":' * 60 + b"1" + b"}" * 61, 422),
            *((b'{"query":"x","k":%b}' % it, 400) for it in (b"NaN", b"1e999", b"-Infinity")),
            (b'{"k":' + b"9" * 5000 + b"}", 400),
            *((it, 400) for it in (b'{"query":"\\ud800"}', b'{"\\u0000":1}', b"\xff\xfe")),
            (b"x" * 1_000_001, 413),
        ],
        ids=lambda value: str(value[:30]) if isinstance(value, bytes) else None,
    )
    def test_a_body_that_is_none(self, service: Served, body: bytes, status: int) -> None:
        headers = {"Content-Type": "application/json"}
        answer = service.client.post("/v1/search", content=body, headers=headers)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        assert len(answer.content) < 5000  # what was sent is not sent back

    @pytest.mark.parametrize(
        "body",
        [
            b'{"query": "a", "query": "b"}',
            b'{"query": "a", "qu\\u0065ry": "b"}',
            b'{"query": "a", "budget": {"tokens": 1, "tokens": 10}}',
            b'{"query": "a:\\\\", "prompts": [{"x": 1, "": [], "x": {}}]}',
        ],
    )
    @pytest.mark.parametrize(
        "path",
        [
            *("/v1/search", "/v1/search/stream", "/v1/answer", "/v1/probe", "/v1/runs"),
            *("/v1/audits", "/v1/rerank", "/mcp"),
        ],
    )
    def test_a_name_that_is_there_twice(self, service: Served, body: bytes, path: str) -> None:
        headers = {"Content-Type": "application/json"}
        answer = service.client.post(path, content=body, headers=headers)
        assert answer.status_code == 422
        assert "has a name twice" in answer.json()["detail"]

    def test_the_same_name_in_two_objects(self, service: Served) -> None:
        told = {**PLAIN, "query": 'a:"b":\\', "prompts": {"query": "v1"}, "budget": {"tokens": 9}}
        answer = service.client.post("/v1/search", json=told)
        assert "twice" not in answer.text


class TestCosts:
    """No request spends more on models than the limits allow, whatever it is called."""

    @pytest.mark.parametrize(
        ("kind", "asked"),
        [
            ("answer", {"samples": 21, "documents": 1}),
            ("answer", {"samples": 2, "documents": 10, "attributor": "llm"}),
            ("answer", {"hypothesis": "x" * 3000 + "{answer}"}),
            ("search", {"k": 50, "method": "pairwise"}),
            ("search", {"k": 50, "method": "listwise", "ranking": {"window": 2, "step": 1}}),
            ("probe", {"k": 50, "kinds": ["listwise"], "window": 2, "step": 1}),
            ("search", {"budget": {"model_calls": 21}}),
            ("search", {"budget": {"tokens": 10**12}}),
        ],
    )
    def test_what_may_cost_too_much_is_not_begun(
        self, service: Served, kind: str, asked: dict[str, Any]
    ) -> None:
        service.model.does(answers_all)
        needed = {
            "search": PHYSICIST,
            "answer": {"question": "physicist", "corpus": "people"},
            "probe": {"query": "physicist", "attribute": "gender", "protected": "female"},
        }
        answer = service.client.post(f"/v1/{kind}", json={**needed[kind], **asked})
        assert answer.status_code == 422
        assert answer.json()["type"].rpartition(":")[2] in ("over-limit", "input")
        assert not service.model.asked

    def test_the_loop_stops_at_the_limit(self, service: Served) -> None:
        service.model.does(answers_all)
        rounds = {"max_iterations": 10, "fairness_weight": 0, "patience": 10, "groups": "most"}
        for number in range(3):
            asked = {**PHYSICIST, **rounds, "query": f"physicist {number}", "temperature": 1}
            usage = service.client.post("/v1/search", json=asked).json()["usage"]
            assert usage["model_calls"] <= 20


class TestOtherPages:
    """Without keys, a page on the web gets nothing of what is open on loopback."""

    @pytest.mark.parametrize(
        "host",
        [
            *("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "localhost@evil"),
            *("0.0.0.0", "127.1", "2130706433", "[::ffff:1.2.3.4]", "", "localhost, evil.example"),
        ],
    )
    def test_a_name_that_was_pointed_here(self, service: Served, host: str) -> None:
        for path in ("/v1/runs", "/metrics", "/"):
            request = head(service, f"GET {path}", f"Host: {host}", "Connection: close")
            assert exchanged(service, request).startswith((b"HTTP/1.1 403", b"HTTP/1.1 400"))

    @pytest.mark.parametrize(
        "kind",
        [
            *("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"),
            *("", "text/plain; application/json", "text/plain, application/json"),
        ],
    )
    def test_what_a_form_can_send(self, service: Served, kind: str) -> None:
        for origin, status in (({}, 415), ({"Origin": "http://evil.example"}, 403)):
            headers = {"Content-Type": kind, **origin}
            answer = service.client.post("/v1/search", content=json.dumps(PLAIN), headers=headers)
            assert answer.status_code == status

    @pytest.mark.parametrize(
        "origin",
        ["http://evil.example", "null", "", "http://localhost:1", "https://127.0.0.1.evil.example"],
    )
    def test_a_request_of_another_page(self, service: Served, origin: str) -> None:
        headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        for method, path, body in (
            ("POST", "/v1/search", PLAIN),
            ("OPTIONS", "/v1/search", None),
            ("POST", "/openai/v1/chat/completions", {}),
            ("POST", "/mcp", {}),
            ("GET", "/v1/me", None),
        ):
            answer = service.client.request(method, path, json=body, headers=headers)
            assert answer.status_code == 403
            assert not [name for name in answer.headers if name.startswith("access-control")]
            assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        own = {"Origin": service.url.rstrip("/")}
        assert service.client.get("/v1/me", headers=own).status_code == 200


class TestOthersRuns:
    """To one key, the runs of another are as if there were none."""

    def test_all_that_can_be_asked_of_them(self, service: Served) -> None:
        (_, mine), (_, theirs) = (
            a_key(service.variables, name, "admin") for name in ("mine", "theirs")
        )
        nobody = dict[str, str]()
        gate = threading.Event()
        service.model.does(says({"keywords": ["woman"]}, gate=gate))
        places = live, over = [
            service.client.in_background(it, headers=mine)
            for it in ({**PHYSICIST, "query": "physicist of mine"}, PLAIN)
        ]
        service.model.wait_for(1)
        assert service.client.ended(over, headers=mine)["status"] == "done"

        def seen(headers: dict[str, str], method: str, place: str) -> tuple[int, str]:
            answer = service.client.request(method, place, headers=headers)
            return answer.status_code, answer.text.replace(place.split("/")[3], "ID")

        for headers in (theirs, nobody):
            for end, method in (("", "GET"), ("", "DELETE"), ("/events", "GET")):
                none = seen(headers, method, f"/v1/runs/{'0' * 32}{end}")
                assert none[0] == 404
                assert seen(headers, method, live + end) == none
                assert seen(headers, method, over + end) == none
            listed = service.client.get("/v1/runs?limit=200", headers=headers).json()["runs"]
            assert not {run["id"] for run in listed} & {place.split("/")[3] for place in places}
        gate.set()
        assert service.client.ended(live, headers=mine)["status"] == "done"
        service.model.does(answers_all)


def test_under_overload_it_says_no_at_once_and_keeps_its_word(tmp_path: Path) -> None:
    """Forty ask at the same time, where two are served and six wait."""
    settings = 'concurrency = 2\ntraffic.queue = 6\ntraffic.rate = ""\ntraffic.live = 100'
    with a_service(tmp_path, settings=settings) as service:
        service.model.does(lambda asked: says({"keywords": ["woman"]}, drip=0.001))
        service.client.post("/v1/search", json={**PHYSICIST, "query": "physicist first"})
        start = threading.Barrier(40)

        def ask(number: int) -> tuple[httpx.Response, float]:
            asked = {**PHYSICIST, "query": f"physicist {number}"}
            with httpx.Client(base_url=service.url, timeout=PATIENCE, trust_env=False) as client:
                start.wait()
                started = time.monotonic()
                return client.post("/v1/search", json=asked), time.monotonic() - started

        with ThreadPoolExecutor(40) as pool:
            answers = [*pool.map(ask, range(40))]
        served = [seconds for answer, seconds in answers if answer.status_code == 200]
        refusals = [(seconds, it) for it, seconds in answers if it.status_code == 503]
        assert len(served) + len(refusals) == 40
        assert len(served) >= 6
        assert len(refusals) >= 20
        for _, answer in refusals:
            assert answer.json()["type"] == "urn:fairqr:error:busy"
            assert int(answer.headers["retry-after"]) >= 1
        # All forty come in one burst, so the first refusals wait for the burst to be read.
        assert statistics.median(seconds for seconds, _ in refusals) < max(served)
        figures = service.client.get("/metrics").text
        done = f'fairqr_runs_finished_total{{kind="search",status="done"}} {len(served) + 1}.0'
        assert done in figures
        assert 'fairqr_ephemeral_runs{status="queued"} 0.0' in figures
