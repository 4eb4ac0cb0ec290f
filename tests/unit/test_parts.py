"""A tool, a retriever and a re-ranker for other people's agents and chains."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from langchain.agents import create_agent
from langchain_core.documents import Document as Passage
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from fairqr import (
    Context,
    FairReranker,
    FairSearch,
    SearchResult,
    open_engine,
    search_tool,
)
from fairqr.base.errors import IndexNotFoundError, InputError, ModelUnavailableError, QueryError
from fairqr.retrieval.engines.engine import SearchEngine
from tests.servers.model_server import write_people
from tests.unit.graph.corpora import KnownRefiner

PLAIN = Context(attributes=("gender",), k=5, max_iterations=0)


@pytest.fixture(autouse=True)
def own_indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that tests name are indexed beside them, not among the user's indexes."""
    monkeypatch.setenv("FAIRQR_DATA_DIR", str(tmp_path / "data"))


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[SearchEngine]:
    engine = await open_engine(write_people(tmp_path))
    yield engine
    await engine.aclose()


class Agent(GenericFakeChatModel):
    """A model that calls the tool as it was told to."""

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self


@pytest.mark.promise("command")
async def test_an_agent_searches_fairly_and_answers(engine: SearchEngine) -> None:
    """The tool searches fairly in agents of LangChain."""
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
    assert lines[0] == "<passages>", "they are data, and no instructions"
    for place, line in zip(result.ranking, lines[1:], strict=False):
        assert line.startswith(f"{place.rank}. {place.title} [gender: ")
    assert "Exposure by gender: " in told.content
    assert len(told.content) < 2000
    assert state["messages"][-1].content == "Done."


WRONG = [
    ({"query": "physicist", "attributes": ["age"]}, "it has gender, continent"),
    ({"query": " "}, "The query is empty"),
    ({"query": "physicist", "k": 500}, "The argument 'k' is wrong: "),
    ({"k": 5}, "The argument 'query' is wrong: "),
]


@pytest.mark.promise("command")
@pytest.mark.parametrize(("arguments", "reason"), WRONG)
def test_a_model_is_told_what_it_got_wrong(
    tmp_path: Path, arguments: dict[str, Any], reason: str
) -> None:
    """An agent's wrong request comes back to its model as one sentence."""
    with FairSearch.open(str(write_people(tmp_path)), "feedback") as search:
        tool = search_tool(search)
        call = {"name": tool.name, "args": arguments, "id": "1", "type": "tool_call"}
        message = tool.invoke(call)
        assert message.status == "error"
        assert reason in message.content
        assert "\n" not in message.content
        # One name where a list belongs is understood.
        assert (
            tool.invoke({"query": "physicist", "attributes": "gender"}).splitlines()[1][:3] == "1. "
        )


def test_a_model_is_told_that_nothing_matches(tmp_path: Path) -> None:
    """That is a result without passages and figures, not an error."""
    with FairSearch.open(str(write_people(tmp_path)), "feedback") as search:
        tool = search_tool(search)
        message = tool.invoke(
            {"name": tool.name, "args": {"query": "zebra"}, "id": "1", "type": "tool_call"}
        )
        assert message.status == "success"
        assert message.content.startswith("No document of ")
        assert message.content.endswith("matches the query; try other words.")
        assert message.artifact["stop_reason"] == "no_hits"


@pytest.mark.promise("command")
async def test_the_programmer_is_told_what_no_model_can_correct(engine: SearchEngine) -> None:
    """Errors that no model can correct are raised to the programmer."""
    with pytest.raises(IndexNotFoundError, match="no index 'nowhere'"):
        await search_tool("nowhere", "feedback").ainvoke({"query": "physicist"})
    with pytest.raises(ModelUnavailableError):
        await search_tool(engine, "nowhere:x").ainvoke({"query": "physicist"})
    with pytest.raises(InputError, match="leave model out"):
        search_tool(FairSearch(engine), "feedback")


@pytest.mark.promise("command")
async def test_a_chain_reads_from_the_retriever(engine: SearchEngine) -> None:
    """The retriever works in chains of LangChain."""
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
        retriever = search.as_retriever(k=3, attribute="gender", method="baseline")
        assert [passage.metadata["rank"] for passage in retriever.invoke("physicist")] == [1, 2, 3]
        with pytest.raises(InputError, match="'k' is given beside a context"):
            search.as_retriever(PLAIN, k=3)
        with pytest.warns(UserWarning, match="No document of .* matches the query"):
            assert retriever.invoke("zebra") == []
        with pytest.raises(QueryError, match="The query is empty"):
            retriever.invoke(" ")


async def test_a_retriever_passes_warnings_on(engine: SearchEngine) -> None:
    async def fail(request: Any) -> Any:
        raise RuntimeError("out of order")

    context = PLAIN.model_copy(update={"max_iterations": 1, "ask": "always"})
    retriever = FairSearch(engine, KnownRefiner(fail)).as_retriever(context)
    with pytest.warns(UserWarning, match="out of order"):
        assert len(await retriever.ainvoke("physicist")) == 5


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


def test_the_labels_of_a_re_ranker_are_in_the_metadata(tmp_path: Path) -> None:
    file = tmp_path / "labels.yaml"
    file.write_text(yaml.safe_dump(LABELS))
    assert FairReranker(labels=file).labels == FairReranker(labels=LABELS).labels
    with pytest.raises(ValueError, match="'sex' has no field"):
        FairReranker(labels={"attributes": {"sex": {"labels": "sexes.csv", "groups": ["a", "b"]}}})
    with pytest.raises(ValueError, match="this calls no model"):
        FairReranker(labels=LABELS, context=Context(method="listwise"))


def test_a_re_ranker_says_how_far_its_list_is_from_the_best() -> None:
    sexes = ["man", "man", "man", "woman", "man", "woman"]
    found = [Passage(str(place), metadata={"sex": sex}) for place, sex in enumerate(sexes)]
    labels = {"attributes": {"sex": {"field": "sex", "groups": ["woman", "man"]}}}
    reranker = FairReranker(labels=labels, context=Context(k=3, target="uniform:1"))
    result = reranker.rank(found)
    kept = reranker.compress_documents(found, "anything")
    assert [found[int(place.id)] for place in result.ranking] == kept
    assert result.objective.value <= result.objective.bound <= 1
    assert result.objective.price["sex"].keys() == {"woman", "man"}


@pytest.mark.promise("command")
def test_without_a_population_a_re_ranker_says_its_target() -> None:
    """The tool, the retriever and the re-ranker say what their target is where no population does.

    Unless the caller chose a target.
    """
    labels = {"attributes": {"sex": {"field": "sex", "groups": ["woman", "man"]}}}
    found = [Passage("text", metadata={"sex": sex}) for sex in ("man", "man", "woman")]
    with pytest.warns(UserWarning, match="No population is stated for 'sex'") as caught:
        FairReranker(labels=labels).compress_documents(found, "anything")
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="No population")
        chosen = Context(target="uniform:1")
        FairReranker(labels=labels, context=chosen).compress_documents(found, "anything")


@pytest.mark.promise("command")
async def test_a_re_ranker_works_in_a_node_of_a_graph_that_is_kept() -> None:
    """The re-ranker works in graphs of LangGraph, also in those that are kept between runs.

    Neither the context nor the checkpointer of that graph is the re-ranker's.
    """
    found = [Passage("text", metadata={"sex": sex}) for sex in ("man", "man", "woman")]
    reranker = FairReranker(labels=LABELS, context=Context(k=2))

    async def node(state: dict[str, Any]) -> dict[str, Any]:
        kept = await reranker.acompress_documents(found, "anything")
        assert kept == await asyncio.to_thread(reranker.compress_documents, found, "anything")
        return {"sexes": [passage.metadata["sex"] for passage in kept]}

    desk: Any = StateGraph(dict, context_schema=Context)
    desk.add_node("node", node)
    desk.add_edge(START, "node")
    saver = InMemorySaver()
    graph = desk.compile(checkpointer=saver)
    config: Any = {"configurable": {"thread_id": "1"}}
    state = await graph.ainvoke({"sexes": []}, config, context=Context(k=1, target="uniform:1"))
    assert state["sexes"] == ["man", "woman"]
    assert all(not kept.config["configurable"]["checkpoint_ns"] for kept in saver.list(None))
