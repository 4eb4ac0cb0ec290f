"""Every example of docs/how-to/use-from-python.md runs as it stands there.

A server on this machine plays the model.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import ToolMessage

from fairqr import SearchResult
from tests.integration.model_server import (
    Answer,
    Asked,
    ModelServer,
    clean_environment,
    completion,
    model_server,
    says,
    stream,
    write_people,
)

__all__ = ["clean_environment", "model_server"]

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "use-from-python.md"
EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def sections() -> dict[str, str]:
    """Return the code of each section; all other lines of the page are empty in it."""
    page = PAGE.read_text(encoding="utf-8")
    starts = [(match.start(), match[1]) for match in re.finditer(r"^## (.*)$", page, re.MULTILINE)]
    code: dict[str, str] = {}
    for example in EXAMPLE.finditer(page):
        title = [name for start, name in starts if start < example.start()][-1]
        before = code.get(title, "")
        lines = page.count("\n", 0, example.start(1)) - before.count("\n")
        code[title] = before + "\n" * lines + example[1]
    return code


def model(asked: Asked) -> Answer:
    """Call a tool if there is one, refine if a schema is asked for, and answer otherwise."""
    last = asked.body["messages"][-1]
    if asked.body.get("stream"):
        return stream(["Marie ", "Curie."])
    if asked.wants_schema:
        return says({"keywords": ["woman"], "topic": ["physics"]})
    if "tools" in asked.body and last["role"] != "tool":
        function = {"name": "fair_search", "arguments": json.dumps({"query": "physicist", "k": 4})}
        call = {"id": "1", "type": "function", "function": function}
        return completion({"content": None, "tool_calls": [call]}, "tool_calls")
    return says("Marie Curie.")


def an_agent(names: dict[str, Any]) -> None:
    messages = names["state"]["messages"]
    (message,) = [each for each in messages if isinstance(each, ToolMessage)]
    result = SearchResult.model_validate(message.artifact)
    assert len(result.ranking) == 4
    assert result.attributes == ["gender"]
    assert result.divergence is not None
    assert result.baseline.divergence is not None
    assert result.divergence < result.baseline.divergence
    assert message.text.startswith(f"1. {result.ranking[0].title} [gender: ")
    assert messages[-1].text == "Marie Curie."


def a_chain(names: dict[str, Any]) -> None:
    assert names["reply"].text == "Marie Curie."


def a_re_ranker(names: dict[str, Any]) -> None:
    sexes = [document.metadata["sex"] for document in names["kept"]]
    assert len(sexes) == 6
    assert sexes.count("f") >= 2


def a_vector_store(names: dict[str, Any]) -> None:
    assert names["result"].retriever == "langchain:InMemoryVectorStore"
    assert names["result"].ranking[0].title
    assert names["state"]["result"]["retriever"].startswith(
        "hybrid-pool:DeterministicFakeEmbedding"
    )
    assert len(names["state"]["result"]["ranking"]) == 5


def a_search(names: dict[str, Any]) -> None:
    result = SearchResult.model_validate(names["state"]["result"])
    assert len(result.ranking) == names["context"].k
    assert result.iterations[1].refinements
    assert not result.warnings


def a_subgraph(names: dict[str, Any]) -> None:
    steps = names["steps"]
    assert steps[:3] == ["greet", "begin", "measure"]
    assert steps[-2:] == ["rerank", "look_up"]
    assert names["state"]["greeting"] == "Hello Ada"
    assert len(names["state"]["result"]["ranking"]) == 5


def a_stream(names: dict[str, Any]) -> None:
    assert "".join(names["pieces"]) == "Marie Curie."


def a_step(names: dict[str, Any]) -> None:
    assert "Round 0 knows 410 documents." in names["state"]["result"]["warnings"]


def a_refiner(names: dict[str, Any]) -> None:
    a_search(names)
    assert names["state"]["result"]["model"] == "thesaurus"


def a_person(names: dict[str, Any]) -> None:
    result = SearchResult.model_validate(names["state"]["result"])
    queries = {query for each in result.iterations[1:] for query in each.queries}
    assert queries == {"physicist chemist"}


def blocking(names: dict[str, Any]) -> None:
    ids = [place.id for place in names["result"].ranking]
    assert [document.id for document in names["documents"]] == ids
    assert names["text"].startswith("1. ")


CHECKS: dict[str, Callable[[dict[str, Any]], None]] = {
    "A tool for an agent": an_agent,
    "A retriever for a chain": a_chain,
    "A re-ranker for your retriever": a_re_ranker,
    "Your vector store": a_vector_store,
    "The graphs": a_search,
    "A graph in your graph": a_subgraph,
    "What happens meanwhile": a_stream,
    "A step of your own": a_step,
    "A refiner of your own": a_refiner,
    "A person in the loop": a_person,
    "Without async": blocking,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of indexes, so that the corpus is indexed once."""
    return tmp_path_factory.mktemp("data")


def test_each_section_with_an_example_is_checked() -> None:
    assert list(sections()) == list(CHECKS)


@pytest.mark.parametrize("title", CHECKS)
async def test_an_example_runs(
    title: str,
    data: Path,
    clean_environment: Path,
    model_server: ModelServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAIRQR_DATA_DIR", str(data))
    monkeypatch.setenv("OPENAI_BASE_URL", model_server.base_url)
    monkeypatch.chdir(clean_environment)
    people = write_people(clean_environment / "people")
    model_server.does(model)
    records = [json.loads(line) for line in people.read_text().splitlines()]
    names: dict[str, Any] = {
        "__name__": __name__,
        "embeddings": DeterministicFakeEmbedding(size=8),
        "documents": [
            Document(it["text"], metadata={"sex": it["gender"], "name": it["title"]})
            for it in records
        ],
    }
    code = compile(
        sections()[title], PAGE, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
    )
    running = eval(code, names)
    if inspect.isawaitable(running):
        await running
    CHECKS[title](names)
