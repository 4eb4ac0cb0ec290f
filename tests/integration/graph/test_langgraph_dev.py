"""``langgraph.json`` works: the development server serves the graph through its HTTP API."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.patience import PATIENCE
from tests.servers.local_model import ENCODER, linked
from tests.servers.model_server import write_people
from tests.servers.page_service import started

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, pulled_minilm: Path) -> Iterator[str]:
    """Serve people, with MiniLM."""
    folder = tmp_path_factory.mktemp("langgraph-dev")
    linked(ENCODER, pulled_minilm, folder / "cache")
    command = [Path(sys.executable).with_name("langgraph"), "dev", "--no-browser", "--no-reload"]
    variables = {"LANGGRAPH_CLI_NO_ANALYTICS": "1", "LANGSMITH_TRACING": "false"}
    variables["FAIRQR_CORPUS"] = str(write_people(folder / "people"))
    with started(folder, command, "/ok", **variables) as url:
        yield url


def search(server: str, **asked: Any) -> Any:
    """Search through the HTTP API, and return the last state."""
    request = {"assistant_id": "search", "input": {"query": "physicist"}, **asked}
    return httpx.post(f"{server}/runs/wait", json=request, timeout=PATIENCE).json()


@pytest.mark.promise("graph")
def test_the_graph_runs_through_the_http_api(server: str) -> None:
    """`langgraph dev` serves the graphs.

    A run with a context gives the search result; a second one on the cached graph too.
    """
    for attribute in ("gender", "continent"):
        result = search(server, context={"attributes": [attribute], "k": 10})["result"]
        assert result["attributes"] == [attribute]
        assert len(result["ranking"]) == 10
        assert result["divergence"] < result["baseline"]["divergence"]


def test_a_method_has_its_own_retriever(server: str) -> None:
    """As everywhere: words and vectors once MiniLM is pulled, and words for the paper's loop."""
    for method, retriever in (("fairqr", "hybrid-pool:minilm"), ("fair-qr", "bm25")):
        answer = search(server, context={"method": method, "k": 5})
        assert "result" in answer, answer
        assert answer["result"]["retriever"] == retriever


@pytest.mark.promise("graph")
@pytest.mark.parametrize(
    ("asked", "kind", "sentence"),
    [
        ({"input": {"query": "  "}}, "QueryError", "The query is empty; write what to search for."),
        ({"context": {"target": "magic:1"}}, "TargetError", "The target has no part 'magic'"),
        ({"context": {"attributes": ["age"]}}, "UnknownAttributeError", "no attribute 'age'"),
        # The server itself would drop it silently.
        ({"context": {"atributes": ["gender"]}}, "InputError", "did you mean 'attributes'?"),
    ],
)
def test_an_error_says_what_is_wrong(
    server: str, asked: dict[str, Any], kind: str, sentence: str
) -> None:
    """An error in `langgraph dev` says what is wrong.

    The server hides the messages of errors that are of no built-in class.
    """
    error = search(server, **asked)["__error__"]
    assert error["error"] == kind
    assert sentence in error["message"]


SEARCH = {"prepare", "retrieve", "measure", "choose_group", "refine", "review", "rerank"}
NODES = {
    "search": SEARCH,
    "answer": {"prepare", "retrieve", "sample", "generate", "attribute", "summarize"},
    "probe": {"prepare", "retrieve", "draw", "ask", "compare"},
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
