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


def search(server: str, **changes: Any) -> Any:
    """Search through the HTTP API, and return the last state."""
    request = {"assistant_id": "search", "input": {"query": "physicist"}, **changes}
    return httpx.post(f"{server}/runs/wait", json=request, timeout=PATIENCE).json()


@pytest.mark.promise("graph")
@pytest.mark.parametrize("attribute", ["gender", "continent"])
def test_the_graph_runs_through_the_http_api(server: str, attribute: str) -> None:
    """`langgraph dev` serves the graphs.

    A run with a context gives the search result; a second one on the cached graph too.
    """
    result = search(server, context={"attributes": [attribute], "k": 10})["result"]

    assert result["attributes"] == [attribute]
    assert len(result["ranking"]) == 10
    assert result["divergence"] < result["baseline"]["divergence"]


@pytest.mark.parametrize(
    ("method", "retriever"), [("fairqr", "hybrid-pool:minilm"), ("fair-qr", "bm25")]
)
def test_a_method_has_its_own_retriever(server: str, method: str, retriever: str) -> None:
    """As everywhere: words and vectors once MiniLM is pulled, and words for the paper's loop."""
    answer = search(server, context={"method": method, "k": 5})

    assert "result" in answer, answer
    assert answer["result"]["retriever"] == retriever


@pytest.mark.promise("graph")
@pytest.mark.parametrize(
    ("changes", "kind", "sentence"),
    [
        ({"input": {"query": "  "}}, "QueryError", "The query is empty; write what to search for."),
        ({"context": {"target": "magic:1"}}, "TargetError", "The target has no part 'magic'"),
        ({"context": {"attributes": ["age"]}}, "UnknownAttributeError", "no attribute 'age'"),
        # The server itself would drop it silently.
        ({"context": {"atributes": ["gender"]}}, "InputError", "did you mean 'attributes'?"),
    ],
    ids=["query", "target", "attribute", "typo"],
)
def test_an_error_says_what_is_wrong(
    server: str, changes: dict[str, Any], kind: str, sentence: str
) -> None:
    """An error in `langgraph dev` says what is wrong.

    The server hides the messages of errors that are of no built-in class.
    """
    error = search(server, **changes)["__error__"]
    assert error["error"] == kind
    assert sentence in error["message"]


SEARCH = {"prepare", "retrieve", "measure", "choose_group", "refine", "review", "rerank"}
NODES = {
    "search": SEARCH,
    "answer": {"prepare", "retrieve", "sample", "generate", "attribute", "summarize"},
    "probe": {"prepare", "retrieve", "draw", "ask", "compare"},
}


@pytest.mark.parametrize("name", NODES)
def test_studio_is_told_what_it_shows(server: str, name: str) -> None:
    """Each graph's steps and the way between them, its input, and what its context may say."""
    assistants = httpx.post(f"{server}/assistants/search", json={}, timeout=PATIENCE).json()
    ids = {assistant["graph_id"]: assistant["assistant_id"] for assistant in assistants}
    assert ids.keys() == NODES.keys()

    url = f"{server}/assistants/{ids[name]}"
    drawing = httpx.get(f"{url}/graph", timeout=PATIENCE).json()
    assert {node["id"] for node in drawing["nodes"]} == {"__start__", "__end__"} | NODES[name]
    schemas = httpx.get(f"{url}/schemas", timeout=PATIENCE).json()
    assert list(schemas["input_schema"]["properties"]) == ["query"]
    options = set(schemas["context_schema"]["properties"])
    assert {"attributes", "k", "method", "target", "prompts"} <= options
    assert options & {"answer", "probe"} == {name} - {"search"}
