"""What the command and the façade got wrong once: streams left early, engines opened twice."""

from __future__ import annotations

import asyncio
import gc
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import pytest

from fairqr import FairSearch, StepData
from fairqr.api import open_engine
from fairqr.base.telemetry import current_span, record_to
from fairqr.retrieval.engines.engine import SearchEngine
from tests.patience import PATIENCE
from tests.servers.model_server import Command

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
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    caplog.clear()
    engine = await open_engine(str(people))
    search = FairSearch(engine, "feedback")
    before = asyncio.all_tasks()
    with record_to(tmp_path / "run.jsonl"):
        async with aclosing(search.stream("physicist", attribute="gender", k=5)) as steps:
            async for step in steps:
                # What the caller does between two steps is not part of the search.
                assert current_span().attributes == {}
                if isinstance(step, StepData) and step.step == "measure":
                    break
    assert asyncio.all_tasks() == before
    spans = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert spans[-1]["name"] == "invoke_workflow fairqr"
    assert spans[-1]["status"] == "CancelledError"

    # Not closed either: the event loop does it, in a task of its own, after the record.
    with record_to(tmp_path / "other.jsonl"):
        async for step in search.stream("physicist", attribute="gender", k=5):
            if isinstance(step, StepData) and step.step == "prepare":
                break
    del step
    gc.collect()
    async with asyncio.timeout(PATIENCE):
        while asyncio.all_tasks() != before:
            await asyncio.sleep(0.01)
    gc.collect()
    for turns in range(1, 12):
        task = asyncio.create_task(search.search("physicist", attribute="gender", k=5))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == before
    await engine.aclose()
    assert complaints == []
    assert caplog.records == []


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
    asked: Any = {"attribute": "gender", "k": 5}
    search = FairSearch("notables", "feedback")

    def blocking() -> list[str]:
        return [search.sync.search("physicist", **asked).corpus]

    async def several() -> list[str]:
        searches = (search.search("physicist", **asked) for _ in range(4))
        return [result.corpus for result in await asyncio.gather(*searches)]

    with closing(search.sync), ThreadPoolExecutor() as threads:
        asking = [threads.submit(blocking) for _ in range(3)]
        asking += [threads.submit(asyncio.run, several()) for _ in range(2)]
        found = [corpus for it in asking for corpus in it.result()]
    assert found == ["notables"] * 11
    assert openings == ["notables"]


async def test_who_waits_for_an_index_opens_it_where_the_first_failed(openings: list[str]) -> None:
    """Or was cancelled."""
    async with aclosing(FairSearch("broken-at-first", "feedback")) as search:
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
