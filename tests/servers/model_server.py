"""A real HTTP server that speaks OpenAI's chat completions, and misbehaves as it is told.

With it come a small corpus to search, and the real command in a process of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fairqr.cli.main import main
from tests.patience import PATIENCE, until

_OUTSIDE = ("FAIRQR_", "OPENAI_", "LANGCHAIN_", "LANGSMITH_", "OTEL_")

_TOKENS = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}

KEY = "sk-test-SECRET-0123456789abcdef"
"""What no output, trace or cache may ever hold."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it arrived; ``at`` is in seconds on the monotonic clock."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    at: float

    @property
    def last_message(self) -> str:
        """What the model is asked in the end, after all examples."""
        return str(self.body["messages"][-1]["content"])

    @property
    def wants_schema(self) -> bool:
        """Whether a JSON schema is asked for."""
        return "response_format" in self.body


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent back, and how.

    Attributes:
        status: Of HTTP.
        body: As it is.
        headers: Besides the length and the type.
        content_type: Of the body.
        cut_after: Bytes of the body after which the connection is closed, before its end.
        drip: Seconds between two bytes of the body.
        never: Nothing is sent at all.
        gate: What to wait for before anything is sent.
        gate_after: Bytes of the body that are sent before that wait.
    """

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    cut_after: int | None = None
    drip: float = 0.0
    never: bool = False
    gate: threading.Event | None = None
    gate_after: int = 0


def stream(
    pieces: Sequence[str], finish_reason: str | None = "stop", *, usage: bool = True, **how: Any
) -> Answer:
    """A text that comes piece by piece, as server-sent events; unless it ends, it was broken off.

    Args:
        pieces: Of the text.
        finish_reason: In the last event but the usage; None for a stream that only stops.
        usage: Whether the tokens are counted in the end.
        how: More for :class:`Answer`.
    """
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "fake"}
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": piece} for piece in pieces]
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    if finish_reason:
        choices.append({"index": 0, "delta": {}, "finish_reason": finish_reason})
    events: list[dict[str, Any]] = [{**base, "choices": [choice]} for choice in choices]
    if usage:
        events.append({**base, "choices": [], "usage": _TOKENS})
    lines = [json.dumps(event) for event in events] + (["[DONE]"] if finish_reason else [])
    body = "".join(f"data: {line}\n\n" for line in lines).encode()
    return Answer(body=body, content_type="text/event-stream", **how)


def scores(tokens: Mapping[str, float], **how: Any) -> Answer:
    """A completion of one token, with the probabilities that it could have had."""
    top = [{"token": token, "logprob": math.log(p), "bytes": None} for token, p in tokens.items()]
    first = {**max(top, key=lambda it: it["logprob"]), "top_logprobs": top}
    answer = completion({"content": first["token"]}, "length")
    body = json.loads(answer.body)
    body["choices"][0]["logprobs"] = {"content": [first], "refusal": None}
    return dataclasses.replace(answer, body=json.dumps(body).encode(), **how)


Behaviour = Answer | Callable[[Asked], Answer]


def completion(message: dict[str, Any], finish_reason: str = "stop", **more: Any) -> Answer:
    """A chat completion with this message."""
    said = {"role": "assistant", **message}
    choice = {"index": 0, "message": said, "finish_reason": finish_reason}
    body: dict[str, Any] = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1}
    body |= {"model": "fake", "choices": [choice], "usage": _TOKENS, **more}
    return Answer(body=json.dumps(body).encode())


def says(content: object, **how: Any) -> Answer:
    """A completion with this text; anything else is written as JSON."""
    text = content if isinstance(content, str) else json.dumps(content)
    return dataclasses.replace(completion({"content": text}), **how)


def failure(
    status: int, message: str = "It went wrong.", code: str | None = None, **headers: str
) -> Answer:
    """An error as OpenAI writes it; ``retry_after="1"`` is the header Retry-After."""
    body = {"error": {"message": message, "type": code, "code": code, "param": None}}
    named = {name.replace("_", "-").title(): value for name, value in headers.items()}
    return Answer(status, json.dumps(body).encode(), named)


class ModelServer:
    """The server; it answers each request by the next of its behaviours, and the last for ever."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self._script: list[Behaviour] = [says({"keywords": ["woman"]})]
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._connections: set[socket.socket] = set()
        handler = type("Handler", (_Handler,), {"owner": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def does(self, *script: Behaviour) -> None:
        """Set the behaviours, and forget what was asked before."""
        with self._lock:
            self._script = list(script)
            self.asked.clear()

    def wait_for(self, number: int, of: subprocess.Popen[str] | None = None) -> None:
        """Wait until so many requests have arrived; the process that sends them has not ended."""

        def arrived() -> bool:
            assert of is None or of.poll() is None, of.communicate()
            return len(self.asked) >= number

        until(arrived)

    def close(self) -> None:
        """End all threads and connections."""
        self._ending.set()
        self._server.shutdown()
        self._thread.join()
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self._server.server_close()  # joins the threads of all requests

    def answer_to(self, asked: Asked) -> Answer:
        with self._lock:
            self.asked.append(asked)
            behaviour = self._script[0] if len(self._script) == 1 else self._script.pop(0)
        return behaviour if isinstance(behaviour, Answer) else behaviour(asked)


class _Server(ThreadingHTTPServer):
    daemon_threads = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep silent: clients that give up are what is tested."""


class _Handler(BaseHTTPRequestHandler):
    owner: ModelServer
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        with self.owner._lock:
            self.owner._connections.add(self.connection)

    def finish(self) -> None:
        with self.owner._lock:
            self.owner._connections.discard(self.connection)
        super().finish()

    def do_POST(self) -> None:
        at = time.monotonic()
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        headers = {name.lower(): value for name, value in self.headers.items()}
        answer = self.owner.answer_to(Asked(self.path, headers, body, at))
        self.close_connection = True
        if answer.gate and not answer.gate_after:
            self._wait_for(answer.gate)
        if answer.never:
            self.owner._ending.wait(PATIENCE)
            return
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Connection", "close")
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if not answer.drip:
            self.wfile.write(answer.body[: answer.gate_after])
            if answer.gate and answer.gate_after:
                self._wait_for(answer.gate)
            self.wfile.write(answer.body[answer.gate_after : answer.cut_after])
            return
        for byte in answer.body:
            if self.owner._ending.wait(answer.drip):
                return
            self.wfile.write(bytes([byte]))

    def do_GET(self) -> None:
        if self.path.endswith("/models"):
            # Asked to learn whether the server is there; no part of what it is to play.
            self.send_error(404)
        else:
            self.do_POST()

    def _wait_for(self, gate: threading.Event) -> None:
        """Wait until it opens, or the server ends."""
        while not gate.wait(0.02) and not self.owner._ending.is_set():
            pass

    def log_message(self, format: str, *args: object) -> None:
        """Keep silent."""


@pytest.fixture
def model_server() -> Iterator[ModelServer]:
    """A server of the test's own."""
    server = ModelServer()
    yield server
    server.close()


def environment(variables: dict[str, str]) -> dict[str, str]:
    """Return these variables and nothing else that is configured outside."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.upper().startswith(_OUTSIDE) and not name.upper().endswith("_PROXY")
    }
    return kept | variables


@pytest.fixture
def clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the test folders of its own and nothing that is configured outside; return tmp_path."""
    for name in os.environ.keys() - environment({}).keys():
        monkeypatch.delenv(name)
    monkeypatch.setenv("FAIRQR_CONFIG", os.devnull)
    monkeypatch.setenv("FAIRQR_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("FAIRQR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


@dataclass(frozen=True, slots=True)
class Run:
    """What a process that has ended left."""

    code: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def result(self) -> dict[str, Any]:
        """The one object on stdout."""
        assert self.stdout.count("\n") == 1, self.stdout
        found = json.loads(self.stdout)
        assert isinstance(found, dict)
        return found

    def complaint(self) -> str:
        """The one sentence of a run that was refused."""
        assert self.code == 2, self
        assert self.stdout == "", self
        assert self.stderr.startswith("fairqr: "), self
        assert self.stderr.count("\n") == 1, self
        assert self.stderr.endswith("\n"), self
        assert "Traceback" not in self.stderr
        return self.stderr.removeprefix("fairqr: ").rstrip("\n")


def _checked(run: Run) -> Run:
    """Return a run, which shows no traceback and no secret."""
    assert "Traceback" not in run.stderr, run.stderr
    assert KEY not in run.stdout + run.stderr
    return run


class Command:
    """Runs the real ``fairqr`` in the environment of the test."""

    executable = str(Path(sys.executable).with_name("fairqr"))

    def __call__(self, *arguments: str | Path, **environment: str | None) -> Run:
        begun = time.monotonic()
        child = self.start(*arguments, **environment)
        try:
            stdout, stderr = child.communicate(timeout=PATIENCE)
        except BaseException:
            child.kill()
            child.communicate()
            raise
        return _checked(Run(child.returncode, stdout, stderr, time.monotonic() - begun))

    def start(self, *arguments: str | Path, **environment: str | None) -> subprocess.Popen[str]:
        changed = {k: v for k, v in {**os.environ, **environment}.items() if v is not None}
        return subprocess.Popen(
            [self.executable, *map(str, arguments)],
            env=changed,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="surrogateescape",
        )


@pytest.fixture
def command(clean_environment: Path) -> Command:
    """The real command."""
    return Command()


class Main:
    """Runs the command in this process, entry point and all: the same, without a start of Python.

    Tests that use ``command`` start it for real.
    """

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd

    def __call__(self, *arguments: str | Path, **environment: str | None) -> Run:
        self._capfd.readouterr()
        begun = time.monotonic()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["fairqr", *map(str, arguments)])
            for name, value in environment.items():
                if value is None:
                    patch.delenv(name, raising=False)
                else:
                    patch.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                main()
        stdout, stderr = self._capfd.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return _checked(Run(code, stdout, stderr, time.monotonic() - begun))


@pytest.fixture
def quick(clean_environment: Path, capfd: pytest.CaptureFixture[str]) -> Main:
    """The command in this process."""
    return Main(capfd)


SCHEMA = """attributes:
  gender: {field: gender, groups: [female, male], population: {female: 0.5, male: 0.5}}
  continent:
    field: continent
    groups: [Asia, Europe, Africa]
    population: {Asia: 0.4, Europe: 0.3, Africa: 0.3}
"""


def write_people(
    folder: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None] | None = None
) -> Path:
    """Write a corpus whose baseline ranking for ``physicist`` shows few women and only Europeans.

    Their texts say the word less often, and have words that a model can propose: woman, she,
    laboratory; Asia, Tokyo; Africa, Cairo.

    Args:
        folder: Where.
        change: Changes each document, or leaves it out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schema.yaml").write_text(SCHEMA)
    lines: list[str] = []
    for number in range(60):
        woman, continent = number % 3 == 0, ("Europe", "Asia", "Africa")[number // 20]
        place = {"Europe": "Berlin", "Asia": "Tokyo in Asia", "Africa": "Cairo in Africa"}
        repeated = 1 if woman else 3
        text = " ".join(["physicist"] * (repeated + (2 if continent == "Europe" else 0)))
        who = "She is a woman with a laboratory" if woman else "He is a man with a workshop"
        document: dict[str, Any] | None = {
            "id": f"p{number:02}",
            "title": f"Person {number}",
            "text": f"A {text}. {who} in {place[continent]}, born in {1900 + number}.",
            "gender": "female" if woman else "male",
            "continent": continent,
        }
        if change and document:
            document = change(document)
        if document is not None:
            lines.append(json.dumps(document))
    path = folder / "documents.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def people(clean_environment: Path) -> Path:
    """The corpus of :func:`write_people`."""
    return write_people(clean_environment / "people")


def search_arguments(server: ModelServer, corpus: Path, *more: str | Path) -> Sequence[str | Path]:
    """A search that asks the server's model for gender, if nothing else is said."""
    usual = ["--model", "openai:fake", "--base-url", server.base_url, "-k", "10"]
    usual += ["--set", "groups=lacking"]
    if "--attribute" not in more:
        usual += ["--attribute", "gender"]
    if "--method" not in more:
        usual += ["--set", "ask=always"]
    return ["search", "physicist", "--corpus", corpus, *usual, *more]
