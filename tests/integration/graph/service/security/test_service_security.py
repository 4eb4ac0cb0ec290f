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
OTHER_WEIGHTS = {"ranking": {"weights": "/etc/passwd"}, "final_step": "none"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("attacked")
    (folder / "prompts").mkdir()
    settings = 'traffic.rate = ""\nlimits.model_calls = 20\n'
    settings += 'attributors = ["overlap", "llm"]'
    environment = {"FAIRQR_PROMPTS_DIR": str(folder / "prompts")}
    with a_service(folder, settings=settings, environment=environment) as running:
        yield running


def refused(service: Served, path: str = "/v1/search", **fields: Any) -> tuple[int, str]:
    """Ask for what is to be refused; return the status and the last part of the problem's type."""
    usual = PLAIN if path == "/v1/search" else {"corpus": "people"}
    body = {**usual, **fields}
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
    lines = [f"{line} HTTP/1.1", *headers]
    if not any(header.lower().startswith("host:") for header in headers):
        lines.insert(1, f"Host: {service.client.base_url.host}")
    return "\r\n".join([*lines, "", ""])


def nested_options(levels: int) -> bytes:
    """Return a body whose options are objects within objects."""
    return b'{"query":"x","options":' + b'{"a":' * levels + b"1" + b"}" * (levels + 1)


class TestNames:
    """What a request names is looked up in lists; nothing of it becomes a path or an address."""

    @pytest.mark.promise("service")
    @pytest.mark.parametrize(
        "name",
        [
            "../people",
            "/etc/passwd",
            "people/../people",
            "..",
            ".",
            "..%2fpeople",
            "people*",
            "*",
            "people\\..\\people",
            pytest.param("a" * 5000, id="long"),
            "PEOPLE",
            "people,notables",
            "",
            " ",
            "\u2025/people",
        ],
    )
    def test_an_index_is_no_path(self, service: Served, name: str) -> None:
        """The name of an index in a request is never a path."""
        assert refused(service, corpus=name) == (404, "index-not-found")

    @pytest.mark.promise("service")
    @pytest.mark.parametrize(
        "versions",
        [
            {"refine": "../v1"},
            {"refine": "/etc/passwd"},
            {"refine": "*"},
            {"refine": "v1\n"},
            {"refine": "..\\v1"},
            {"../refine": "v1"},
            {"x" * 5000: "v1"},
        ],
        ids=["up", "root", "pattern", "line end", "backslash", "name", "long name"],
    )
    def test_a_prompt_is_no_path(self, service: Served, versions: dict[str, str]) -> None:
        """The name of a prompt in a request is never a path."""
        assert refused(service, prompts=versions) == (422, "prompt")

    @pytest.mark.promise("service")
    @pytest.mark.parametrize(
        "fields",
        [
            {"model": "causal:/etc/passwd"},
            {"model": "seq2seq:/etc/passwd"},
            {"model": "local:../../etc/passwd"},
            {"model": "monot5"},
            {"model": "transformers:gpt2"},
            {"model": "huggingface:gpt2"},
            {"model": "x" * 100_000},
            {"model": "openai:other"},
            {"model": "openai:fak?"},
            {"model": "openai:*"},
            {"model": "openai:fake "},
            {"model": "OPENAI:fake"},
            {"method": "monot5"},
            {"method": "monobert"},
            {"method": "deltr"},
            {"method": "dlf"},
            {"rerank": "monot5", **OTHER_WEIGHTS},
            {"rerank": "listwise", **OTHER_WEIGHTS},
            {"final_step": "dlf"},
        ],
        ids=lambda fields: " ".join(map(str, fields.values()))[:30],
    )
    def test_no_model_is_loaded_that_is_not_offered(
        self, service: Served, fields: dict[str, Any]
    ) -> None:
        """No model is loaded that is not offered, whatever a request names."""
        assert refused(service, **fields) == (403, "not-allowed")

    @pytest.mark.parametrize("judge", ["nli:/etc/passwd", "nli", "llm:openai:other"])
    def test_no_judge_is_loaded_that_is_not_offered(self, service: Served, judge: str) -> None:
        fields = {"question": "physicist", "attributor": judge}
        assert refused(service, "/v1/answer", **fields) == (403, "not-allowed")

    @pytest.mark.promise("service")
    @pytest.mark.parametrize(
        "fields",
        [
            {"final_step": "mmr", "options": {"weights": "/etc/passwd"}},
            {"retriever": "dense:/etc/passwd"},
        ],
        ids=["weights", "encoder"],
    )
    def test_no_option_names_a_file(self, service: Served, fields: dict[str, Any]) -> None:
        """No option of a request names a file."""
        assert refused(service, **fields) == (422, "input")

    @pytest.mark.parametrize(
        "path",
        [
            "/page/../index.html",
            "/page/..%2f..%2fapp.py",
            "/page/..%5c..%5capp.py",
            "/page/%00",
            "/page/index.html%00.js",
            "/page/%2e%2e/app.py",
            "/page//etc/passwd",
            "/page/__init__.py",
            "/page/.",
            "/page/vendor",
            "/page/vendor/",
            "/page/%c0%ae%c0%ae/app.py",
            "//v1/runs",
            "/v1//runs",
            "/V1/runs",
            "/v1/runs/",
            "/page/file:///etc/passwd",
        ],
    )
    def test_only_files_of_the_page_are_sent(self, service: Served, path: str) -> None:
        answer = exchanged(service, head(service, f"GET {path}", "Connection: close"))
        assert answer.startswith(b"HTTP/1.1 404")


class TestServers:
    """Only configured servers are asked, whatever a request or a server says."""

    @pytest.mark.promise("service")
    @pytest.mark.parametrize("name", ["base_url", "url", "model.base_url"])
    def test_no_other_server_can_be_named(self, service: Served, name: str) -> None:
        """Only configured servers are asked; a request can name no other."""
        fields = {"model": "openai:fake", name: "http://169.254.169.254/latest"}
        assert refused(service, **fields) == (422, "input")

    @pytest.mark.promise("service")
    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    def test_a_server_cannot_send_it_to_another_one(
        self, service: Served, model_server: ModelServer, status: int
    ) -> None:
        """A model server cannot redirect the service to another server."""
        place = f"{model_server.base_url}/chat/completions"
        service.model.does(Answer(status, b"{}", {"Location": place}))
        request = {**PHYSICIST, "query": f"physicist sent {status}"}
        answer = service.client.post("/v1/search", json=request)

        assert answer.json()["stop_reason"] == "model_failed"
        assert service.model.asked
        assert not model_server.asked


class TestBodies:
    """What is no request is refused at once, and briefly; see test_service_security_bodies.py."""

    @pytest.mark.promise("service")
    @pytest.mark.parametrize(
        ("body", "status"),
        [
            pytest.param(b"", 400, id="empty"),
            # It says that it is gzip; nothing is unpacked.
            pytest.param(b"\x1f\x8b\x08\x00" + b"\x00" * 1000, 400, id="gzip"),
            pytest.param(nested_options(900), 400, id="very deep"),
            pytest.param(nested_options(60), 422, id="deep"),
            pytest.param(b'{"query":"x","k":NaN}', 400, id="nan"),
            pytest.param(b'{"query":"x","k":1e999}', 400, id="overflow"),
            pytest.param(b'{"query":"x","k":-Infinity}', 400, id="infinity"),
            pytest.param(b'{"k":' + b"9" * 5000 + b"}", 400, id="digits"),
            pytest.param(b'{"query":"\\ud800"}', 400, id="half a pair"),
            pytest.param(b'{"\\u0000":1}', 400, id="nul"),
            pytest.param(b"\xff\xfe", 400, id="utf-16"),
            pytest.param(b"x" * 1_000_001, 413, id="large"),
        ],
    )
    def test_a_body_that_is_no_request_is_refused_briefly(
        self, service: Served, body: bytes, status: int
    ) -> None:
        """A body that is no request, or too large, is refused at once and briefly."""
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
        ids=["plain", "escaped", "nested", "in a list"],
    )
    @pytest.mark.parametrize(
        "path",
        [
            "/v1/search",
            "/v1/search/stream",
            "/v1/answer",
            "/v1/probe",
            "/v1/runs",
            "/v1/audits",
            "/v1/rerank",
            "/mcp",
        ],
    )
    def test_a_body_with_a_name_twice_is_refused(
        self, service: Served, body: bytes, path: str
    ) -> None:
        headers = {"Content-Type": "application/json"}
        answer = service.client.post(path, content=body, headers=headers)
        assert answer.status_code == 422
        assert "has a name twice" in answer.json()["detail"]

    def test_two_objects_may_have_the_same_name(self, service: Served) -> None:
        request = {
            **PLAIN,
            "query": 'a:"b":\\',
            "prompts": {"query": "v1"},
            "budget": {"tokens": 9},
        }
        answer = service.client.post("/v1/search", json=request)

        assert "twice" not in answer.text


class TestCosts:
    """No request spends more on models than the limits allow, whatever it is called."""

    @pytest.mark.promise("service")
    @pytest.mark.parametrize(
        ("kind", "fields"),
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
        ids=[
            "samples",
            "judge",
            "hypothesis",
            "pairs of documents",
            "windows",
            "windows of a probe",
            "calls",
            "tokens",
        ],
    )
    def test_what_may_cost_too_much_is_not_begun(
        self, service: Served, kind: str, fields: dict[str, Any]
    ) -> None:
        """A request that may cost more than the limits allow is refused before a model is asked."""
        service.model.does(answers_all)
        needed: dict[str, dict[str, Any]] = {
            "search": PHYSICIST,
            "answer": {"question": "physicist", "corpus": "people"},
            "probe": {"query": "physicist", "attribute": "gender", "protected": "female"},
        }
        answer = service.client.post(f"/v1/{kind}", json={**needed[kind], **fields})

        assert answer.status_code == 422
        assert answer.json()["type"].rpartition(":")[2] in ("over-limit", "input")
        assert not service.model.asked

    def test_the_loop_stops_at_the_limit(self, service: Served) -> None:
        service.model.does(answers_all)
        rounds = {"max_iterations": 10, "fairness_weight": 0, "patience": 10, "groups": "most"}
        for number in range(3):
            request = {**PHYSICIST, **rounds, "query": f"physicist {number}", "temperature": 1}
            usage = service.client.post("/v1/search", json=request).json()["usage"]
            assert usage["model_calls"] <= 20


class TestOtherPages:
    """Without keys, a page on the web gets nothing of what is open on loopback."""

    @pytest.mark.promise("service")
    @pytest.mark.parametrize(
        "host",
        [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "localhost@evil",
            "0.0.0.0",
            "127.1",
            "2130706433",
            "[::ffff:1.2.3.4]",
            "",
            "localhost, evil.example",
        ],
    )
    @pytest.mark.parametrize("path", ["/v1/runs", "/metrics", "/"])
    def test_another_name_of_this_machine_opens_nothing(
        self, service: Served, host: str, path: str
    ) -> None:
        """A name that somebody points at this machine opens nothing of a service that is open on
        loopback.
        """
        request = head(service, f"GET {path}", f"Host: {host}", "Connection: close")
        assert exchanged(service, request).startswith((b"HTTP/1.1 403", b"HTTP/1.1 400"))

    @pytest.mark.promise("service")
    @pytest.mark.parametrize(
        "kind",
        [
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=x",
            "",
            "text/plain; application/json",
            "text/plain, application/json",
        ],
    )
    @pytest.mark.parametrize(
        ("origin", "status"),
        [({}, 415), ({"Origin": "http://evil.example"}, 403)],
        ids=["no origin", "other origin"],
    )
    def test_what_a_form_can_send_is_refused(
        self, service: Served, kind: str, origin: dict[str, str], status: int
    ) -> None:
        """What a form on another page can send is refused."""
        headers = {"Content-Type": kind, **origin}
        answer = service.client.post("/v1/search", content=json.dumps(PLAIN), headers=headers)
        assert answer.status_code == status

    @pytest.mark.promise("service")
    @pytest.mark.parametrize(
        "origin",
        ["http://evil.example", "null", "", "http://localhost:1", "https://127.0.0.1.evil.example"],
    )
    @pytest.mark.parametrize(
        ("method", "path", "body"),
        [
            ("POST", "/v1/search", PLAIN),
            ("OPTIONS", "/v1/search", None),
            ("POST", "/openai/v1/chat/completions", {}),
            ("POST", "/mcp", {}),
            ("GET", "/v1/me", None),
        ],
        ids=["search", "preflight", "openai", "mcp", "me"],
    )
    def test_a_request_of_another_page_is_refused(
        self, service: Served, origin: str, method: str, path: str, body: dict[str, Any] | None
    ) -> None:
        """A page of another origin gets nothing of the service."""
        headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        answer = service.client.request(method, path, json=body, headers=headers)
        assert answer.status_code == 403
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"

    def test_our_own_page_may_ask(self, service: Served) -> None:
        own = {"Origin": service.url.rstrip("/")}
        assert service.client.get("/v1/me", headers=own).status_code == 200


class TestOthersRuns:
    """To one key, the runs of another are as if there were none."""

    @pytest.fixture
    def runs(self, service: Served, request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
        """The paths of two runs of one key: one is under way, the other is over."""
        _, key = a_key(service.variables, "mine", "admin")
        gate = threading.Event()
        service.model.does(says({"keywords": ["woman"]}, gate=gate))
        query = f"physicist {request.node.name}"  # to which no reply is remembered
        live = service.client.in_background({**PHYSICIST, "query": query}, headers=key)
        over = service.client.in_background(PLAIN, headers=key)
        service.model.wait_for(1)
        assert service.client.ended(over, headers=key)["status"] == "done"
        yield {"live": live, "over": over}
        gate.set()
        assert service.client.ended(live, headers=key)["status"] == "done"
        service.model.does(answers_all)

    @pytest.mark.promise("service")
    def test_another_keys_run_is_as_none(self, service: Served, runs: dict[str, str]) -> None:
        """Another key's run is the same 404 as one that never was."""

        def answer_to(headers: dict[str, str], method: str, path: str) -> tuple[int, str]:
            answer = service.client.request(method, path, headers=headers)
            return answer.status_code, answer.text.replace(path.split("/")[3], "ID")

        _, others = a_key(service.variables, "others", "admin")
        for headers in (others, {}):
            for end, method in (("", "GET"), ("", "DELETE"), ("/events", "GET")):
                none = answer_to(headers, method, f"/v1/runs/{'0' * 32}{end}")
                assert none[0] == 404
                assert answer_to(headers, method, runs["live"] + end) == none
                assert answer_to(headers, method, runs["over"] + end) == none

    def test_another_keys_runs_are_not_listed(self, service: Served, runs: dict[str, str]) -> None:
        _, others = a_key(service.variables, "others", "admin")
        ids = {path.split("/")[3] for path in runs.values()}
        for headers in (others, {}):
            listed = service.client.get("/v1/runs?limit=200", headers=headers).json()["runs"]
            assert not ids & {run["id"] for run in listed}


@pytest.mark.promise("service")
def test_under_overload_it_refuses_at_once_and_keeps_its_word(tmp_path: Path) -> None:
    """Under overload the service refuses at once, with 503 and when to come back, and does all that
    it accepted.

    Forty ask at the same time, where two are served and six wait.
    """
    settings = 'concurrency = 2\ntraffic.queue = 6\ntraffic.rate = ""\ntraffic.live = 100'
    with a_service(tmp_path, settings=settings) as service:
        service.model.does(lambda asked: says({"keywords": ["woman"]}, drip=0.001))
        service.client.post("/v1/search", json={**PHYSICIST, "query": "physicist first"})
        start = threading.Barrier(40)

        def ask(number: int) -> tuple[httpx.Response, float]:
            request = {**PHYSICIST, "query": f"physicist {number}"}
            with httpx.Client(base_url=service.url, timeout=PATIENCE, trust_env=False) as client:
                start.wait()
                started = time.monotonic()
                return client.post("/v1/search", json=request), time.monotonic() - started

        with ThreadPoolExecutor(40) as pool:
            answers = [*pool.map(ask, range(40))]
        served = [seconds for answer, seconds in answers if answer.status_code == 200]
        refusals = [(seconds, answer) for answer, seconds in answers if answer.status_code == 503]

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
