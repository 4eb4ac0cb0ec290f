"""Running the graph step by step, leaving it, and going on."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from fairqr.agents.models.replies import Reply, Usage
from fairqr.graph.answer.builder import build_answer_graph
from fairqr.graph.answer.context import answer_context
from fairqr.graph.search.builder import build_search_graph
from fairqr.graph.search.context import Context, make_context
from fairqr.graph.stream import Step, run_graph
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.sources.catalog import Catalog
from tests.unit.graph.kept import Kept

SEARCH = make_context(attributes=["gender"], k=6, ask="always", patience=5)


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[SearchEngine]:
    """Forty men and twenty women in science."""
    (tmp_path / "schema.yaml").write_text(
        "attributes:\n"
        "  gender: {field: g, groups: [female, male], population: {female: 0.5, male: 0.5}}\n"
    )
    documents = [
        {"id": f"m{i:02}", "title": "Man", "text": "science " * 3 + f"work {i}", "g": "male"}
        for i in range(40)
    ] + [
        {"id": f"w{i:02}", "title": "Woman", "text": f"science scholar {i} more", "g": "female"}
        for i in range(20)
    ]
    path = tmp_path / "people.jsonl"
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    engine = await Catalog(tmp_path / "data").resolve(str(path))
    yield engine
    await engine.aclose()


async def told(
    graph: Any,
    context: Context = SEARCH,
    *,
    steps: int | None = None,
    kept: Kept | None = None,
) -> list[Step]:
    """What is told until the end, or for so many steps, all of which are kept."""
    found: list[Step] = []
    journal = kept.journal() if kept else None
    async with aclosing(run_graph(graph, "science", context, journal=journal)) as events:
        async for event in events:
            if isinstance(event, Step):
                found.append(event)
                if kept:
                    kept.add(event)
            if len(found) == steps:
                break
    return found


def result_of(steps: list[Step]) -> dict[str, Any]:
    result: dict[str, Any] = next(s for s in reversed(steps) if s.name == "rerank").update["result"]
    return {**result, "usage": {**result["usage"], "milliseconds": 0}}


def plain(steps: list[Step]) -> Any:
    """What clients are told, who do not tell tuples from lists."""
    return json.loads(json.dumps([step.update for step in steps]))


async def test_wherever_it_is_left_it_goes_on_and_comes_to_the_same(engine: SearchEngine) -> None:
    graph = build_search_graph(engine, "feedback")
    whole = await told(graph, kept=Kept())
    assert [step.name for step in whole][:4] == ["begin", "measure", "choose_group", "refine"]
    assert len({step.id for step in whole}) == len(whole)
    for number in range(1, len(whole) + 1):
        kept = Kept()
        first = await told(graph, kept=kept, steps=number)
        again = await told(graph, kept=kept)
        assert plain(again[:number]) == plain(first)  # milliseconds and all
        assert [step.id for step in again[:number]] == [step.id for step in first]
        assert [step.name for step in again] == [step.name for step in whole]
        assert result_of(again) == result_of(whole)


async def test_a_run_that_was_over_tells_the_same_once_more(engine: SearchEngine) -> None:
    graph, kept = build_search_graph(engine, "feedback"), Kept()
    whole = await told(graph, kept=kept)
    await engine.aclose()  # nothing is done any more
    assert plain(await told(graph, kept=kept)) == plain(whole)


async def test_without_a_journal_the_same_is_told(engine: SearchEngine) -> None:
    graph = build_search_graph(engine, "feedback")
    bare, kept = await told(graph), await told(graph, kept=Kept())
    assert [step.name for step in bare] == [step.name for step in kept]
    assert result_of(bare) == result_of(kept)
    # LangGraph's own marks are not told: they would not become JSON.
    json.dumps([step.update for step in bare])


class Slow:
    """Answers, but for one ranking waits until it may; counts what it is asked."""

    name = "slow"

    def __init__(self) -> None:
        self.asked = 0
        self.go = asyncio.Event()

    async def start(self) -> None: ...

    async def generate(self, request: Any, deadline: Any = None, on_token: Any = None) -> Any:

        self.asked += 1
        if self.asked == 3:
            await self.go.wait()
        return Reply("ok", {"text": f"From {request.sources[0]['title']}."})


async def test_answers_that_there_are_when_it_is_left_are_not_asked_for_again(
    engine: SearchEngine,
) -> None:
    context = answer_context(k=6, samples=4, alpha=0, documents=4, seed=1)
    slow, kept = Slow(), Kept()
    graph = build_answer_graph(engine, "feedback", generator=slow)
    first: list[Step] = []

    async def left() -> None:
        events = run_graph(graph, "science", context, journal=kept.journal())
        async with aclosing(events):
            async for event in events:
                assert isinstance(event, Step)
                first.append(event)
                kept.add(event)

    task = asyncio.create_task(left())
    names: list[str] = []
    while names.count("generate") < 3:
        assert not task.done()
        await asyncio.sleep(0.01)
        names = [step.name for step in first]
    task.cancel()
    await asyncio.wait({task})
    assert slow.asked == 4
    rest = await told(graph, context, kept=kept)
    assert slow.asked == 5
    ids = [step.id for step in first + rest if step.name == "generate"]
    assert len(set(ids)) == 4
    assert len(ids) == 7  # those that had ended are told again, by the same ids
    assert rest[-1].name == "summarise"
    answers = rest[-1].update["answer"]["answers"]
    assert [answer["status"] for answer in answers] == ["ok"] * 4


async def test_an_hour_in_which_it_did_not_run_is_none_of_its_time(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the budget of seconds would be spent when it goes on."""
    context = make_context(**{**SEARCH.model_dump(), "budget": {"seconds": 60}})
    graph, kept, ahead = build_search_graph(engine, "feedback"), Kept(), 0.0
    whole = await told(graph, context)
    for clock in ("time", "perf_counter", "monotonic"):
        real = getattr(time, clock)
        monkeypatch.setattr(time, clock, lambda real=real: real() + ahead)
    await told(graph, context, kept=kept, steps=3)
    ahead = 3600
    await told(graph, context, kept=kept, steps=5)
    ahead = 7200
    rest = await told(graph, context, kept=kept)
    assert result_of(rest) == result_of(whole)
    milliseconds = rest[-1].update["result"]["usage"]["milliseconds"]
    assert 0 < milliseconds < 60_000


async def test_a_run_whose_index_was_built_again_starts_over_with_its_replies(
    engine: SearchEngine,
) -> None:
    graph, kept = build_search_graph(engine, "feedback"), Kept()
    first = await told(graph, kept=kept, steps=3)
    kept.version = "rebuilt"
    again = await told(graph, kept=kept)
    assert [step.name for step in again[:3]] == [step.name for step in first]
    assert not {step.id for step in again} & {step.id for step in first}
    assert result_of(await told(graph, kept=kept)) == result_of(again)


class TestJournal:
    async def test_what_was_asked_twice_is_kept_twice_and_what_may_heal_is_not_kept(self) -> None:
        kept = Kept()
        replies = iter(
            [
                Reply("ok", {"text": "one"}, usage=Usage(model_calls=2)),
                Reply("timeout", message="too slow"),
                Reply("ok", {"text": "three"}),
            ]
        )
        asked: list[str] = []

        async def ask() -> Reply:
            asked.append("asked")
            return next(replies)

        async def all_three() -> list[Reply]:
            journal = kept.journal()
            return [await journal.once("same", dict, ask) for _ in range(3)]

        first = await all_three()
        replies = iter([Reply("ok", {"text": "two"})])
        again = await all_three()
        assert len(asked) == 4
        assert [again[0], again[2]] == [first[0], first[2]]
        assert again[1].value == {"text": "two"}
