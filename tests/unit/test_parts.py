"""A tool, a retriever and a re-ranker for other people's agents and chains."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.documents import Document as Passage
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableLambda, RunnablePassthrough

from fairqr import (
    AnswerContext,
    AnswerSettings,
    Context,
    FairReranker,
    FairSearch,
    SearchResult,
    open_engine,
    search_tool,
)
from fairqr.agents.generation import Generation
from fairqr.base.errors import InputError
from fairqr.retrieval.engines.engine import SearchEngine
from tests.integration.model_server import write_people

PLAIN = Context(attributes=("gender",), k=5, max_iterations=0)


@pytest.fixture
async def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SearchEngine]:
    monkeypatch.setenv("FAIRQR_DATA_DIR", str(tmp_path / "data"))
    engine = await open_engine(write_people(tmp_path))
    yield engine
    await engine.aclose()


class Agent(GenericFakeChatModel):
    """A model that calls the tool as it was told to."""

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self


async def test_an_agent_searches_fairly_and_answers(engine: SearchEngine) -> None:
    arguments = {"query": "physicist", "attributes": ["gender"], "k": 4}
    call = {"name": "fair_search", "args": arguments, "id": "1", "type": "tool_call"}
    model = Agent(messages=iter([AIMessage("", tool_calls=[call]), AIMessage("Done.")]))
    tool = search_tool(engine, "feedback", context=PLAIN)
    agent = create_agent(model, [tool])
    state = await agent.ainvoke({"messages": [{"role": "user", "content": "Who?"}]})
    (told,) = [message for message in state["messages"] if isinstance(message, ToolMessage)]
    result = SearchResult.model_validate(told.artifact)
    assert [place.rank for place in result.ranking] == [1, 2, 3, 4]
    lines = str(told.content).splitlines()
    for place, line in zip(result.ranking, lines, strict=False):
        assert line.startswith(f"{place.rank}. {place.title} [gender: ")
    assert "Exposure by gender: " in told.content
    assert len(told.content) < 2000
    assert state["messages"][-1].content == "Done."


def test_what_a_model_gets_wrong_is_told_to_it(tmp_path: Path) -> None:
    with FairSearch.open(str(write_people(tmp_path)), "feedback") as search:
        tool = search_tool(search)
        call = {"query": "physicist", "attributes": ["age"], "k": 3}
        told = tool.invoke({"name": tool.name, "args": call, "id": "1", "type": "tool_call"})
        assert told.status == "error"
        assert "age" in told.content
        fine = {**call, "attributes": ["gender"]}
        assert tool.invoke(fine).startswith("1. ")


async def test_a_chain_reads_from_the_retriever(engine: SearchEngine) -> None:
    search = FairSearch(engine, "feedback")
    retriever = search.as_retriever(PLAIN)

    def joined(passages: list[Passage]) -> str:
        return "\n".join(passage.page_content for passage in passages)

    chain = {"context": retriever | joined, "question": RunnablePassthrough()} | RunnableLambda(
        lambda given: f"{given['question']}: {given['context']}"
    )
    text = await chain.ainvoke("physicist")
    passages = await retriever.ainvoke("physicist")
    result = await search.search("physicist", PLAIN)
    assert [passage.id for passage in passages] == [place.id for place in result.ranking]
    assert all(passage.page_content in text for passage in passages)
    assert all(passage.page_content for passage in passages)
    assert passages[0].metadata["groups"] == result.ranking[0].groups
    await search.aclose()


def test_the_synchronous_retriever_is_the_same(tmp_path: Path) -> None:
    with FairSearch.open(str(write_people(tmp_path)), "feedback") as search:
        retriever = search.as_retriever(k=3, attribute="gender", method="plain")
        assert [passage.metadata["rank"] for passage in retriever.invoke("physicist")] == [1, 2, 3]
        with pytest.raises(InputError, match="'k' is given beside a context"):
            search.as_retriever(PLAIN, k=3)


LABELS = {
    "attributes": {
        "sex": {
            "field": "sex",
            "groups": ["woman", "man"],
            "population": {"woman": 0.5, "man": 0.5},
        }
    }
}


async def test_what_another_retriever_found_is_re_ranked() -> None:
    """Toward the target, in the given order inside each group."""
    found = [
        Passage(f"text {at}", metadata={"sex": "man" if at < 8 else "woman", "at": at})
        for at in range(12)
    ]
    reranker = FairReranker(labels=LABELS, context=Context(k=6, target="population:1"))
    kept = await reranker.acompress_documents(found, "anything")
    assert kept == reranker.compress_documents(found, "anything")
    assert len(kept) == 6
    assert all(passage in found for passage in kept)
    women = [passage.metadata["at"] for passage in kept if passage.metadata["sex"] == "woman"]
    men = [passage.metadata["at"] for passage in kept if passage.metadata["sex"] == "man"]
    assert len(women) >= 2
    assert women == sorted(women)
    assert men == sorted(men)
    assert await reranker.acompress_documents([], "anything") == []


async def test_each_kind_of_run_takes_its_context_as_one_object(engine: SearchEngine) -> None:
    """Or its values one by one, but not both."""

    class Echo:
        name = "echo"

        async def start(self) -> None: ...

        async def generate(self, request: Any, deadline: Any = None, on_token: Any = None) -> Any:
            return Generation("ok", request.sources[0]["title"])

    search = FairSearch(engine, "feedback", generator=Echo(), attributor=None)
    context = AnswerContext(attributes=("gender",), k=4, seed=1, answer=AnswerSettings(samples=3))
    whole = await search.answer("physicist", context)
    parts = await search.answer("physicist", attribute="gender", k=4, seed=1, samples=3)
    assert whole.model_dump(exclude={"usage"}) == parts.model_dump(exclude={"usage"})
    with pytest.raises(InputError, match="'samples' is given beside a context"):
        await search.answer("physicist", context, samples=3)
    with pytest.raises(InputError, match=r"'probe\.attribute' is wrong"):
        await search.probe("physicist")
