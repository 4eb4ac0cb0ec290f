"""Answers and probes are drawn by LangGraph as they run, and can be stopped and changed there."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Overwrite

from fairqr import (
    AnswerContext,
    ProbeContext,
    ProbeSettings,
    build_answer_graph,
    build_probe_graph,
    build_search_graph,
)
from fairqr.base.errors import InputError
from fairqr.graph.answer.context import AnswerSettings
from fairqr.retrieval.engines.engine import SearchEngine
from tests.unit.agents.ranking.fakes import Planted
from tests.unit.graph.corpora import write_corpus
from tests.unit.graph.test_answering import KnownAttributor, KnownGenerator

METHOD = Path(__file__).parents[3] / "docs" / "explanation" / "method.md"
QUESTION = {"query": "science"}
THREAD: Any = {"configurable": {"thread_id": "one"}}
ANSWERED = AnswerContext(
    attributes=("gender",), k=6, seed=1, answer=AnswerSettings(samples=30, alpha=0, documents=2)
)
PROBED = ProbeContext(attributes=("gender",), k=12, probe=ProbeSettings(attribute="gender"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve people in science; every third is a woman."""
    documents = [
        {"id": f"p{i:02}", "title": f"Person-{i}", "text": "science " * (13 - i)}
        | {"g": "male" if i % 3 else "female"}
        for i in range(12)
    ]
    return write_corpus(tmp_path_factory.mktemp("corpus"), documents)


def arrows(graph: Any) -> set[tuple[str, str]]:
    return {(edge.source, edge.target) for edge in graph.get_graph().edges}


@pytest.mark.promise("service")
def test_the_arrows_are_those_of_the_papers(engine: SearchEngine) -> None:
    """Answers and probes are graphs as drawn, with the arrows of the papers."""
    shared = {
        ("__start__", "prepare"),
        ("prepare", "retrieve"),
    }
    answers = {
        ("retrieve", "sample"),
        ("sample", "generate"),
        ("generate", "attribute"),
        ("attribute", "summarize"),
        ("summarize", "__end__"),
    }
    probes = {
        ("retrieve", "draw"),
        ("draw", "ask"),
        ("draw", "compare"),
        ("ask", "compare"),
        ("compare", "__end__"),
    }
    judged = build_answer_graph(engine, generator=KnownGenerator(), attributor=KnownAttributor())
    assert arrows(judged) == shared | answers
    assert arrows(build_probe_graph(engine, Planted(likes_nobody))) == shared | probes
    judged_by_nobody = build_answer_graph(engine, generator=KnownGenerator())
    assert ("generate", "summarize") in arrows(judged_by_nobody)


def likes_nobody(title: str, position: int, group: str) -> float:
    return 0.0


@pytest.mark.promise("service")
async def test_each_ranking_is_answered_by_its_own_task(
    engine: SearchEngine,
) -> None:
    """Each ranking and each part of an answer is a task of its own, side by side."""
    generator = KnownGenerator()
    graph = build_answer_graph(engine, generator=generator, attributor=KnownAttributor())
    told = [
        name
        async for update in graph.astream(QUESTION, context=ANSWERED, stream_mode="updates")
        for name in update
    ]
    count = len(generator.asked)
    assert count > 10
    assert told == [
        *("prepare", "retrieve", "sample"),
        *["generate"] * count,
        *("attribute", "summarize"),
    ]
    assert 1 < generator.most_at_once <= 8
    one_by_one = build_answer_graph(engine, generator=KnownGenerator(), concurrency=1)
    state = await one_by_one.ainvoke(QUESTION, context=ANSWERED)
    assert len(state["answer"]["answers"]) == count


async def test_each_part_of_a_probe_is_a_task_of_its_own(engine: SearchEngine) -> None:
    graph = build_probe_graph(engine, Planted(likes_nobody), context=PROBED)
    told = [
        name async for update in graph.astream(QUESTION, stream_mode="updates") for name in update
    ]
    # Four pairs are one part, and each of three personas has a list.
    assert told == ["prepare", "retrieve", "draw", *["ask"] * 4, "compare"]


@pytest.mark.promise("service")
async def test_a_person_changes_an_answer_before_it_is_judged(
    engine: SearchEngine,
) -> None:
    """A person can stand between answering and judging, and change an answer."""
    generator = KnownGenerator()
    attributor = KnownAttributor()
    graph = build_answer_graph(
        engine, generator=generator, attributor=attributor, checkpointer=InMemorySaver()
    )
    stop: Any = {"interrupt_before": ["attribute"]}
    waiting = await graph.ainvoke(QUESTION, THREAD, context=ANSWERED, **stop)
    answers = (await graph.aget_state(THREAD)).values["answers"]
    assert "answer" not in waiting or waiting["answer"] is None
    assert not attributor.asked
    asked = len(generator.asked)
    assert len(answers) == asked
    answers[0]["text"] = "What a person wrote."
    await graph.aupdate_state(THREAD, {"answers": Overwrite(answers)}, as_node="generate")
    state = await graph.ainvoke(None, THREAD, context=ANSWERED)
    assert state["answer"]["answers"][0]["text"] == "What a person wrote."
    assert "What a person wrote." in {pair.hypothesis for pair in attributor.asked}
    assert len(generator.asked) == asked  # nothing was answered again
    # The thread is used again, and nothing of the first run is left in the second.
    again = await graph.ainvoke(QUESTION, THREAD, context=ANSWERED)
    assert len(again["answer"]["answers"]) == asked
    assert "What a person wrote." not in {it["text"] for it in again["answer"]["answers"]}


@pytest.mark.parametrize("wrong", ["text", {"text": "no ids"}])
async def test_what_is_no_answer_is_refused_in_a_sentence(
    engine: SearchEngine, wrong: object
) -> None:
    graph = build_answer_graph(
        engine,
        generator=KnownGenerator(),
        attributor=KnownAttributor(),
        checkpointer=InMemorySaver(),
    )
    await graph.ainvoke(QUESTION, THREAD, context=ANSWERED, interrupt_before=["attribute"])
    await graph.aupdate_state(THREAD, {"answers": Overwrite([wrong])}, as_node="generate")
    with pytest.raises(InputError, match="answers in the state"):
        await graph.ainvoke(None, THREAD, context=ANSWERED)


@pytest.mark.promise("service")
async def test_a_node_can_stand_between_answering_and_judging(engine: SearchEngine) -> None:
    """Another's node can stand between answering and judging."""

    def shout(state: Any) -> dict[str, Any]:
        louder = [{**answer, "text": answer["text"].upper()} for answer in state["answers"]]
        return {"answers": Overwrite(louder)}

    attributor = KnownAttributor()
    builder = build_answer_graph(
        engine, generator=KnownGenerator(), attributor=attributor, context=ANSWERED
    ).builder
    builder.add_node("shout", shout)
    builder.edges.remove(("generate", "attribute"))
    builder.add_edge("generate", "shout")
    builder.add_edge("shout", "attribute")
    state = await builder.compile().ainvoke(QUESTION)
    texts = {answer["text"] for answer in state["answer"]["answers"]}
    assert all(text.isupper() for text in texts)
    assert texts == {pair.hypothesis for pair in attributor.asked}


# LangGraph drops the coroutines of tasks that had not begun.
@pytest.mark.filterwarnings("ignore:coroutine 'arun_with_retry' was never awaited")
async def test_a_task_that_fails_does_not_make_others_ask_again(engine: SearchEngine) -> None:
    """What the others have answered is in the checkpoint when the run goes on."""
    failures = iter([True])

    class FailsOnce(KnownGenerator):
        async def generate(self, *given: Any) -> Any:
            if len(self.asked) == 5 and next(failures, False):
                await asyncio.sleep(0.05)
                raise ConnectionError("the cable was pulled")
            return await super().generate(*given)

    generator = FailsOnce()
    graph = build_answer_graph(
        engine, generator=generator, concurrency=1, checkpointer=InMemorySaver()
    )
    with pytest.raises(ConnectionError):
        await graph.ainvoke(QUESTION, THREAD, context=ANSWERED)
    state = await graph.ainvoke(None, THREAD, context=ANSWERED)
    assert len(generator.asked) == len(state["answer"]["answers"])


def drawings(page: Path) -> list[str]:
    """What a page has LangGraph draw."""
    return re.findall(r"^```mermaid\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def test_the_method_page_has_the_graphs_as_langgraph_draws_them(engine: SearchEngine) -> None:
    """``FAIRQR_RECORD=1`` puts the new drawings in the place of the old."""
    made = (
        build_search_graph(engine),
        build_answer_graph(engine, generator=KnownGenerator(), attributor=KnownAttributor()),
        build_probe_graph(engine, Planted(likes_nobody)),
    )
    drawn = [graph.get_graph().draw_mermaid(with_styles=False) for graph in made]
    if os.environ.get("FAIRQR_RECORD"):
        text = METHOD.read_text("utf-8")
        for old, new in zip(drawings(METHOD), drawn, strict=True):
            text = text.replace(old, new)
        METHOD.write_text(text, "utf-8")
    assert drawings(METHOD) == drawn
