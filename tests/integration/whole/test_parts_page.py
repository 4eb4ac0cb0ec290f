"""Every example of docs/how-to/use-from-python.md runs as it stands there.

A server on this machine plays the model.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding

from tests.servers.model_server import (
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
EXAMPLE = r"(?ms)^```python\n(.*?)^```$"


def sections() -> dict[str, str]:
    """Return the code of each section that has any."""
    found = re.findall(r"(?ms)^## (.*?)\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"))
    code = {title: "\n".join(re.findall(EXAMPLE, text)) for title, text in found}
    return {title: examples for title, examples in code.items() if examples}


def model(asked: Asked) -> Answer:
    """Call a tool if there is one, refine if a schema is asked for, and answer otherwise."""
    last = asked.body["messages"][-1]
    if asked.body.get("stream"):
        return stream(["Marie ", "Curie."])
    if asked.wants_schema:
        return says({"keywords": ["woman"], "topic": ["physics"]})
    if "tools" in asked.body and last["role"] != "tool":
        name = asked.body["tools"][0]["function"]["name"]
        function = {"name": name, "arguments": json.dumps({"query": "physicist", "k": 4})}
        call = {"id": "1", "type": "function", "function": function}
        return completion({"content": None, "tool_calls": [call]}, "tool_calls")
    return says("Marie Curie.")


CHECKS = {
    "A tool for an agent": [
        "state['messages'][-1].text == 'Marie Curie.'",
        "len(state['messages'][-2].artifact['ranking']) == 4",
    ],
    "Retriever tools of an agent": [
        "state['messages'][-1].text == 'Marie Curie.'",
        "len(state['messages'][-2].artifact) == 30",
        "'Exposure by gender: female ' in state['messages'][-2].content",
    ],
    "A retriever for a chain": ["reply.text == 'Marie Curie.'"],
    "A re-ranker for your retriever": [
        "len(kept) == 6",
        "[document.metadata['sex'] for document in kept].count('f') >= 2",
    ],
    "Your vector store": [
        "result.retriever == 'langchain:InMemoryVectorStore'",
        "state['result']['retriever'].startswith('hybrid-pool:DeterministicFakeEmbedding')",
        "len(result.ranking[0].title) > 0 and len(state['result']['ranking']) == 5",
    ],
    "The graphs": [
        "len(state['result']['ranking']) == context.k",
        "state['result']['iterations'][1]['refinements'] and not state['result']['warnings']",
    ],
    "A graph in your graph": [
        "steps[:3] == ['greet', 'prepare', 'retrieve'] and steps[-2:] == ['rerank', 'look_up']",
        "state['greeting'] == 'Hello Ada' and len(state['result']['ranking']) == 5",
    ],
    "What happens meanwhile": ["''.join(pieces) == 'Marie Curie.'"],
    "A step of your own": ["'Round 0 knows 410 documents.' in state['result']['warnings']"],
    "A refiner of your own": ["state['result']['model'] == 'thesaurus'"],
    "A person in the loop": [
        "{query for it in state['result']['iterations'][1:] for query in it['queries']} "
        "== {'physicist physics', 'physicist physics chemist'}"
    ],
    "Without async": [
        "[it.id for it in documents] == [it.id for it in result.ranking]",
        "text.startswith('<passages>')",
    ],
}
"""By section of the page, what is true of the names of its example once it has run."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of indexes, so that the corpus is indexed once."""
    return tmp_path_factory.mktemp("data")


def test_each_section_with_an_example_is_checked() -> None:
    assert list(sections()) == list(CHECKS)


@pytest.mark.promise("command")
@pytest.mark.parametrize("title", CHECKS)
async def test_an_example_runs(
    title: str,
    data: Path,
    clean_environment: Path,
    model_server: ModelServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every Python example of the page on parts runs."""
    monkeypatch.setenv("FAIRQR_DATA_DIR", str(data))
    monkeypatch.setenv("OPENAI_BASE_URL", model_server.base_url)
    monkeypatch.chdir(clean_environment)
    model_server.does(model)
    records = write_people(clean_environment / "people").read_text().splitlines()
    names: dict[str, Any] = {
        "__name__": __name__,
        "embeddings": DeterministicFakeEmbedding(size=8),
        "documents": [
            Document(it["text"], metadata={"sex": it["gender"], "name": it["title"]})
            for it in map(json.loads, records)
        ],
    }
    code = compile(
        sections()[title], PAGE, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
    )
    running = eval(code, names)
    if inspect.isawaitable(running):
        await running
    for check in CHECKS[title]:
        assert eval(check, names), check
