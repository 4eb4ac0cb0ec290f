"""``langgraph.json`` works: the development server serves the graph through its HTTP API."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.local_model import ENCODER, linked
from tests.integration.model_server import write_people
from tests.patience import PATIENCE
from tests.ports import free_port

ROOT = Path(__file__).parents[3]


@contextlib.contextmanager
def served(tmp_path: Path, **more: str) -> Iterator[str]:
    """Start the server on a free port, wait until it answers, and end it."""
    port = free_port()
    environment = os.environ | {
        "FAIRQR_DATA_DIR": str(tmp_path / "data"),
        "FAIRQR_CACHE_DIR": str(tmp_path / "cache"),
        "FAIRQR_MODEL": "feedback",
        "LANGGRAPH_CLI_NO_ANALYTICS": "1",
        "LANGSMITH_TRACING": "false",
        **more,
    }
    command = [Path(sys.executable).with_name("langgraph"), "dev", "--no-browser", "--no-reload"]
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=output,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                if httpx.get(f"{url}/ok", timeout=5).is_success:
                    break
            except httpx.TransportError:
                pass
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"langgraph dev did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(PATIENCE)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve notables."""
    with served(tmp_path_factory.mktemp("langgraph-dev")) as url:
        yield url


def test_the_graph_runs_through_the_http_api(server: str) -> None:
    """A run with a context gives the search result; a second one on the cached graph too."""
    for attribute in ("gender", "continent"):
        answer = httpx.post(
            f"{server}/runs/wait",
            json={
                "assistant_id": "search",
                "input": {"query": "physicist"},
                "context": {"attributes": [attribute], "k": 10},
            },
            timeout=PATIENCE,
        )
        result = answer.json()["result"]
        assert result["attributes"] == [attribute]
        assert len(result["ranking"]) == 10
        assert result["divergence"] < result["baseline"]["divergence"]


@pytest.mark.model
def test_a_method_has_its_own_retriever(tmp_path: Path, pulled_minilm: Path) -> None:
    """As everywhere: words and vectors once MiniLM is pulled, and words for the paper's loop."""
    linked(ENCODER, pulled_minilm, tmp_path / "cache")
    retrievers = []
    with served(tmp_path, FAIRQR_CORPUS=write_people(tmp_path)) as url:
        for method in ("fairqr", "fair-qr"):
            request = {
                "assistant_id": "search",
                "input": {"query": "physicist"},
                "context": {"method": method, "k": 5},
            }
            answer = httpx.post(f"{url}/runs/wait", json=request, timeout=PATIENCE).json()
            assert "result" in answer, answer
            retrievers.append(answer["result"]["retriever"])
    assert retrievers == ["hybrid-pool:minilm", "bm25"]


@pytest.mark.parametrize(
    ("asked", "kind", "sentence"),
    [
        ({"input": {"query": "  "}}, "QueryError", "The query is empty; write what to search for."),
        ({"context": {"method": "magic"}}, "InputError", "'fairqr', 'fair-qr', 'plain'"),
        ({"context": {"target": "magic:1"}}, "TargetError", "The target has no part 'magic'"),
        ({"context": {"attributes": ["age"]}}, "UnknownAttributeError", "no attribute 'age'"),
        # The server itself would drop it silently.
        ({"context": {"atributes": ["gender"]}}, "InputError", "did you mean 'attributes'?"),
    ],
)
def test_an_error_says_what_is_wrong(
    server: str, asked: dict[str, Any], kind: str, sentence: str
) -> None:
    """The server hides the messages of errors that are of no built-in class."""
    request = {"assistant_id": "search", "input": {"query": "physicist"}, **asked}
    error = httpx.post(f"{server}/runs/wait", json=request, timeout=PATIENCE).json()["__error__"]
    assert error["error"] == kind
    assert sentence in error["message"]


SEARCH = {"begin", "retrieve", "measure", "refine", "rerank"}
NODES = {
    "search": SEARCH,
    "answer": {"prepare", "search", "sample", "generate", "collect", "attribute", "summarise"},
    "probe": {"prepare", "search", "plan", "probe", "conclude"},
}


def test_studio_is_told_what_it_shows(server: str) -> None:
    """Each graph's steps and the way between them, its input, and what its context may say."""
    found = httpx.post(f"{server}/assistants/search", json={}, timeout=PATIENCE).json()
    assistants = {it["graph_id"]: f"{server}/assistants/{it['assistant_id']}" for it in found}
    assert assistants.keys() == NODES.keys()
    for name, about in assistants.items():
        nodes = {it["id"] for it in httpx.get(f"{about}/graph", timeout=PATIENCE).json()["nodes"]}
        assert nodes == {"__start__", "__end__"} | NODES[name]
        schemas = httpx.get(f"{about}/schemas", timeout=PATIENCE).json()
        assert list(schemas["input_schema"]["properties"]) == ["query"]
        asked = set(schemas["context_schema"]["properties"])
        assert {"attributes", "k", "method", "target", "prompts"} <= asked
        assert asked & {"answer", "probe"} == ({name} - {"search"})


def test_its_steps_can_be_streamed(server: str) -> None:
    request = {
        "assistant_id": "search",
        "input": {"query": "chemist"},
        "context": {"attributes": ["gender"], "ask": "always"},
        "stream_mode": "updates",
    }
    with httpx.stream("POST", f"{server}/runs/stream", json=request, timeout=PATIENCE) as answer:
        text = "".join(answer.iter_text())
    for node in SEARCH:
        assert f'"{node}"' in text
