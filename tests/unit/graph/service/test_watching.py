"""What was shown is looked at when no client waits for a list."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fairqr.graph.service.proxy.messages import Answered, MeasureShown, Rerank
from fairqr.graph.service.proxy.pages import PassingPage, ShownReply
from fairqr.graph.service.proxy.seen import Seen
from fairqr.graph.service.proxy.settings import ProxiedIndex, ProxySettings
from fairqr.graph.service.proxy.watching import Watcher
from fairqr.graph.service.proxy.worker import Worker

PAGE = PassingPage("people", 0, "slow", start=0, size=10, words="", key="a", fair=True)
SHOWN = ShownReply(b'{"hits": {"hits": [{"_id": "1"}]}}', "")


class HeldWorker(Worker):
    """Keeps what it is asked, until it is told to answer.

    Attributes:
        looks: What it is asked and has not answered.
    """

    def __init__(self) -> None:
        super().__init__(Path(), "people", lambda texts: None)
        self.looks: list[asyncio.Future[Answered]] = []

    async def _answer(self, question: Rerank | MeasureShown) -> Answered:
        self.looks.append(asyncio.get_running_loop().create_future())
        return await self.looks[-1]

    def answer(self) -> None:
        figures: dict[str, Any] = {"exposure": {}}
        self.looks.pop().set_result(Answered("", figures, 0.0, []))


@pytest.fixture
async def worker() -> HeldWorker:
    return HeldWorker()


@pytest.fixture
async def watcher(worker: HeldWorker) -> AsyncIterator[Watcher]:
    indexes = {"people": ProxiedIndex(source=Path())}
    settings = ProxySettings(cluster="http://localhost:9200", indexes=indexes)
    watcher = Watcher({"people": worker}, Seen(settings))
    keeping = asyncio.create_task(watcher.keep())
    yield watcher
    keeping.cancel()
    with suppress(asyncio.CancelledError):
        await keeping


async def settle() -> None:
    """Wait until whatever can go on has done so."""
    for _ in range(20):
        await asyncio.sleep(0.01)


async def test_nothing_is_looked_at_while_a_client_waits_for_a_list(
    worker: HeldWorker, watcher: Watcher
) -> None:
    with worker.expecting():
        with worker.expecting():
            watcher.page(PAGE, SHOWN)
        await settle()
        assert not worker.looks
    await settle()

    assert len(worker.looks) == 1


async def test_what_was_got_ready_waits_as_well(worker: HeldWorker, watcher: Watcher) -> None:
    """A list may be expected by the time the worker is to be asked."""
    for _ in range(3):
        watcher.page(PAGE, SHOWN)
    await settle()
    assert len(worker.looks) == 1  # of many that wait

    with worker.expecting():
        worker.answer()
        await settle()
        assert not worker.looks
    await settle()

    assert len(worker.looks) == 1
