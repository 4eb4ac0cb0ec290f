"""What the command and the façade got wrong once: streams left early, engines opened twice."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import threading
from contextlib import aclosing, closing
from pathlib import Path

import pytest

from fairqr import FairSearch, StepData
from fairqr.api import open_engine
from fairqr.base.telemetry import current_span, record_to
from fairqr.retrieval.engines.engine import SearchEngine
from tests.integration.model_server import Command
from tests.patience import PATIENCE

pytestmark = pytest.mark.usefixtures("clean_environment")

PLAIN = ("--model", "feedback", "--attribute", "gender")


@pytest.mark.parametrize("lines", [0, 1, 4])
def test_a_reader_that_leaves_is_not_told(command: Command, lines: int) -> None:
    """As `| head -1` does, at once or in the middle."""
    child = command.start("search", "physicist", "--corpus", "notables", *PLAIN)
    assert child.stdout is not None
    assert child.stderr is not None
    for _ in range(lines):
        assert child.stdout.readline()
    child.stdout.close()
    said = child.stderr.read().splitlines()
    child.stderr.close()
    assert child.wait(timeout=PATIENCE) in (0, 1)
    # Where an index is made first, it says every ten seconds how far it is.
    assert [line for line in said if not line.startswith("preparing ")] == []


async def test_a_stream_that_is_left_leaves_nothing(
    people: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No task, no complaint of a context that cannot be detached, and a whole record."""
    # A client that another test left open closes itself in a task once it is garbage, which fails.
    gc.collect()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others, return_exceptions=True)
    complaints: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    caplog.set_level(logging.WARNING)
    caplog.clear()
    engine = await open_engine(str(people))
    search = FairSearch(engine, "feedback")
    before = asyncio.all_tasks()
    with record_to(tmp_path / "run.jsonl"):
        async with aclosing(search.stream("physicist", attribute="gender", k=5)) as steps:
            async for step in steps:
                if isinstance(step, StepData) and step.step == "measure":
                    break
    assert asyncio.all_tasks() == before
    spans = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert spans[-1]["name"] == "invoke_workflow fairqr"
    assert spans[-1]["status"] == "CancelledError"

    # Not closed either: the event loop does it, in a task of its own, after the record.
    with record_to(tmp_path / "other.jsonl"):
        async for step in search.stream("physicist", attribute="gender", k=5):
            if isinstance(step, StepData) and step.step == "begin":
                break
    del step
    gc.collect()
    async with asyncio.timeout(PATIENCE):
        while asyncio.all_tasks() != before:
            await asyncio.sleep(0.01)
    gc.collect()
    await asyncio.sleep(0)
    await engine.aclose()
    assert complaints == []
    assert caplog.records == []


async def test_a_step_sees_no_span_of_the_search_and_steps_come_on_demand(people: Path) -> None:
    """What the caller does between two steps is not part of the search, which waits for it."""
    engine = await open_engine(str(people))
    search = FairSearch(engine, "feedback")
    outside = current_span().id
    stream = search.stream("physicist", attribute="gender", k=5)
    names = []
    async for step in stream:
        assert current_span().attributes == {}
        names.append(step.step if isinstance(step, StepData) else type(step).__name__)
    assert names[0] == "begin"
    assert names[-2:] == ["rerank", "SearchResult"]
    assert outside
    await engine.aclose()


async def test_a_search_that_is_cancelled_ends(people: Path) -> None:
    """With its tasks, and as cancelled."""
    engine = await open_engine(str(people))
    before = asyncio.all_tasks()
    for turns in range(1, 12):
        search = FairSearch(engine, "feedback")
        task = asyncio.create_task(search.search("physicist", attribute="gender", k=5))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == before
    await engine.aclose()


@pytest.fixture
def openings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the indexes that were opened."""
    opened: list[str] = []

    async def counted(corpus: str, **_: object) -> SearchEngine:
        opened.append(corpus)
        await asyncio.sleep(0.05)
        if len(opened) == 1 and corpus == "broken-at-first":
            raise OSError("broken")
        return await open_engine("notables" if corpus == "broken-at-first" else corpus)

    monkeypatch.setattr("fairqr.api.open_engine", counted)
    return opened


def test_several_searches_at_once_open_the_index_once(openings: list[str]) -> None:
    """On the caller's loops and on our own."""
    found: list[str] = []

    def blocking() -> None:
        found.append(search.sync.search("physicist", attribute="gender", k=5).corpus)

    async def several() -> None:
        for result in await asyncio.gather(
            *(search.search("physicist", attribute="gender", k=5) for _ in range(4))
        ):
            found.append(result.corpus)

    search = FairSearch("notables", "feedback")
    with closing(search.sync):
        threads = [threading.Thread(target=blocking) for _ in range(3)]
        threads += [threading.Thread(target=lambda: asyncio.run(several())) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == ["notables"] * 11
    assert openings == ["notables"]


async def test_who_waits_for_an_index_opens_it_where_the_first_failed(openings: list[str]) -> None:
    """Or was cancelled."""
    search = FairSearch("broken-at-first", "feedback")
    async with aclosing(search):
        waiting = [
            asyncio.create_task(search.search("physicist", attribute="gender", k=5))
            for _ in range(4)
        ]
        await asyncio.sleep(0.01)
        waiting[3].cancel()
        first, *others, last = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(first, OSError)
    assert not any(isinstance(other, BaseException) for other in others)
    assert isinstance(last, asyncio.CancelledError)
    assert len(openings) == 2
