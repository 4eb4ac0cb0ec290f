"""The middleware that makes the retriever tools of LangChain's agents fair."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document as Passage
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.retrievers import BaseRetriever
from langchain_core.tools import BaseTool, create_retriever_tool, tool

from fairqr import FairRetrieval, FairSearch, audit, search_tool
from fairqr.base.telemetry import record_to
from fairqr.evaluation.audit.lists import SeenSearches
from fairqr.graph.service.proxy.log import as_run
from fairqr.parts import GivenPassages
from fairqr.retrieval.engines.engine import SearchEngine
from tests.patience import until
from tests.servers.model_server import write_people
from tests.unit.test_parts import Agent, engine, own_indexes

__all__ = ["engine", "own_indexes"]


PASSAGES = [
    Passage(f"Text {number} of a physicist.", id=f"p{number:02}", metadata={"title": f"T{number}"})
    for number in (1, 2, 4, 5, 7, 8, 10, 11, 0, 3, 6, 9)
]
"""Eight men and then four women, by their ids in the source."""


class Around(BaseRetriever):
    """Passes on what another retriever finds, from the last to the first."""

    inner: BaseRetriever

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Passage]:
        return self.inner.invoke(query, {"callbacks": run_manager.get_child()})[::-1]


def retriever_tool(retriever: BaseRetriever | None = None, **options: Any) -> BaseTool:
    found = retriever or GivenPassages(passages=PASSAGES)
    return create_retriever_tool(found, "find", "Finds people.", **options)


def agent_with(fair: FairRetrieval, *tools: BaseTool, **arguments: Any) -> Any:
    """Return an agent that calls its first tool once."""
    given = arguments or {"query": "physicist"}
    call = {"name": tools[0].name, "args": given, "id": "1", "type": "tool_call"}
    model = Agent(messages=iter([AIMessage("", tool_calls=[call]), AIMessage("Done.")]))
    return create_agent(model, tools, middleware=[fair])


ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "Who?"}]}


def told_by(state: dict[str, Any]) -> ToolMessage:
    (message,) = [it for it in state["messages"] if isinstance(it, ToolMessage)]
    return message


def women_among(passages: list[Passage], k: int = 6) -> int:
    return sum(int(str(it.id)[1:]) % 3 == 0 for it in passages[:k])


@pytest.mark.promise("command")
@pytest.mark.parametrize("form", ["content", "content_and_artifact"])
@pytest.mark.parametrize("blocking", [False, True])
async def test_one_line_makes_retriever_tools_fair(
    engine: SearchEngine, form: Any, *, blocking: bool
) -> None:
    """One line makes the retriever tools of LangChain's agents fair.

    Those that bring documents and those that only bring texts, with and without async.
    """
    fair = FairRetrieval(engine, attribute="gender", k=6, target="population:1")
    agent = agent_with(fair, retriever_tool(response_format=form))
    told = told_by(agent.invoke(ASKED) if blocking else await agent.ainvoke(ASKED))
    assert women_among(PASSAGES) == 0
    assert women_among(told.artifact) >= 2
    assert sorted(it.id for it in told.artifact) == sorted(it.id for it in PASSAGES)
    first, *lines = str(told.content).splitlines()
    assert first == "<passages>"
    for rank, (passage, line) in enumerate(zip(told.artifact, lines, strict=False), start=1):
        gender = "female" if women_among([passage]) else "male"
        title = passage.metadata["title"]
        assert line == f"{rank}. {title} [gender: {gender}] {passage.page_content}"
    assert lines[-1].startswith("Exposure by gender: female 0% to ")
    assert PASSAGES[0].id == "p01", "the retriever's own list is as it was"


async def test_texts_are_whole_and_cannot_close_the_tags(engine: SearchEngine) -> None:
    long = "word " * 500 + "</passages> the end"
    passages = [Passage(long, id=it.id) for it in PASSAGES]
    fair = FairRetrieval(engine, attribute="gender")
    told = told_by(
        await agent_with(fair, retriever_tool(GivenPassages(passages=passages))).ainvoke(ASKED)
    )
    lines = str(told.content).splitlines()
    assert all(line.endswith("‹/passages› the end") for line in lines[1:13])
    assert lines.count("</passages>") == 1


async def test_labels_in_the_metadata_come_before_those_of_the_source(tmp_path: Path) -> None:
    source = {
        "name": "people",
        "engine": "tantivy",
        "documents": str(write_people(tmp_path)),
        "attributes": {"gender": {"field": "gender", "groups": ["female", "male"]}},
    }
    passages = [Passage(f"Text {number}", metadata={"gender": "male"}) for number in range(8)]
    passages += [
        Passage(f"Text {number}", metadata={"gender": "female"}) for number in range(8, 12)
    ]
    async with FairSearch.open(source, "feedback") as search:
        fair = FairRetrieval(search, k=6, target="uniform:1")
        agent = agent_with(fair, retriever_tool(GivenPassages(passages=passages)))
        told = told_by(await agent.ainvoke(ASKED))
    assert sum(it.metadata["gender"] == "female" for it in told.artifact[:6]) >= 2


async def test_only_the_list_that_the_tool_got_counts(engine: SearchEngine) -> None:
    """A retriever may use another inside."""
    fair = FairRetrieval(engine, attribute="gender", k=6, order="engine")
    around = Around(inner=GivenPassages(passages=PASSAGES))
    told = told_by(await agent_with(fair, retriever_tool(around)).ainvoke(ASKED))
    men = [it.id for it in told.artifact if not women_among([it])]
    assert men == [it.id for it in PASSAGES[::-1] if not women_among([it])]


@tool
def summary(query: str) -> str:
    """Say how many people there are."""
    return f"There are {len(GivenPassages(passages=PASSAGES).invoke(query))}."


@tool
def failing(query: str) -> str:
    """Find nobody."""
    return str(GivenPassages(passages=[]).invoke(query))


@pytest.mark.promise("command")
@pytest.mark.parametrize(("other", "said"), [(summary, "There are 12."), (failing, "[]")])
async def test_what_other_tools_say_stays_as_it_is(
    engine: SearchEngine, other: BaseTool, said: str
) -> None:
    """The middleware leaves what other tools say as it is."""
    told = told_by(await agent_with(FairRetrieval(engine), other).ainvoke(ASKED))
    assert (told.content, told.artifact) == (said, None)


async def test_it_shares_its_words_with_the_search_tool(engine: SearchEngine) -> None:
    own = search_tool(engine, "feedback")
    fair = FairRetrieval(engine, attribute="gender")
    agent = agent_with(fair, own, query="physicist", attributes=["gender"])
    told = told_by(await agent.ainvoke(ASKED))
    assert isinstance(told.artifact, dict), "what is fair already is left alone"
    by_retriever = told_by(await agent_with(fair, retriever_tool()).ainvoke(ASKED))
    for message in (told, by_retriever):
        lines = str(message.content).splitlines()
        assert lines[0] == "<passages>"
        assert "</passages>" in lines
        assert any(line.startswith("Exposure by gender: female ") for line in lines)


async def test_a_list_without_labels_keeps_its_order_and_says_so(engine: SearchEngine) -> None:
    passages = [Passage(f"Text {number}") for number in range(3)]
    agent = agent_with(FairRetrieval(engine), retriever_tool(GivenPassages(passages=passages)))
    with pytest.warns(UserWarning, match="The order of a list was kept: No document has a label"):
        told = told_by(await agent.ainvoke(ASKED))
    assert told.content == "Text 0\n\nText 1\n\nText 2"


@pytest.mark.promise("command")
async def test_each_list_has_a_span_and_is_logged_for_audits(
    engine: SearchEngine, tmp_path: Path
) -> None:
    """Each list that the middleware makes fair has a span and stands in a log that audits read."""
    log = tmp_path / "log"
    fair = FairRetrieval(engine, attribute="gender", k=6, log=log, log_words=True)
    with record_to(tmp_path / "trace.jsonl"):
        await agent_with(fair, retriever_tool()).ainvoke(ASKED)
    spans = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    (rerank,) = [it for it in spans if it["name"] == "fairqr.rerank"]
    assert {it["attributes"]["gen_ai.evaluation.name"] for it in rerank["events"]} == {
        "fairness",
        "relevance",
    }
    until(lambda: (log / "log.jsonl").exists())
    run = tmp_path / "run"
    run.mkdir()
    logged = as_run([log], run)
    seen = SeenSearches.model_validate(logged.seen)
    found = await audit(run / "source.yaml", run / "queries.jsonl", k=6, depth=12, seen=seen)
    assert found.queries.queries[0].text == "physicist"
    assert "<table>" in found._repr_html_()
    by_group = {it.group: it.exposure.value for it in found.figures.groups}
    (both,) = seen.lists
    assert by_group["female"] == pytest.approx(both.fair["gender: female"])
    assert both.engine["gender: female"] == 0
