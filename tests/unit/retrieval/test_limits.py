"""No server gets more requests at a time, or a second, than its source says."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from fairqr.retrieval.engines.limits import RequestLimits
from tests.patience import PATIENCE


class Server:
    """Counts the requests under way, in all threads."""

    def __init__(self, limits: RequestLimits) -> None:
        self.limits, self.now, self.most, self.answered = limits, 0, 0, 0
        self.lock = threading.Lock()

    async def answer(self) -> None:
        async with self.limits:
            with self.lock:
                self.now += 1
                self.most = max(self.most, self.now)
                self.answered += 1
            try:
                for _ in range(5):
                    await asyncio.sleep(0)
            finally:
                with self.lock:
                    self.now -= 1


@pytest.mark.promise("engines")
def test_the_limit_holds_over_several_event_loops() -> None:
    """No more requests go out at once than the source allows, over several event loops too."""
    server = Server(RequestLimits(2))

    async def many() -> None:
        await asyncio.gather(*(server.answer() for _ in range(200)))

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(asyncio.run, [many() for _ in range(3)], timeout=PATIENCE))
    assert (server.most, server.answered) == (2, 600)


@pytest.mark.promise("engines")
async def test_requests_start_evenly_spaced() -> None:
    """No more requests go out in a second than the source allows."""
    limits, starts = RequestLimits(10, 50), []

    async def note() -> None:
        async with limits:
            starts.append(time.monotonic())

    begin = time.monotonic()
    await asyncio.gather(*(note() for _ in range(8)))
    # A timer of the loop may fire a little early; a busy machine notes any start late.
    assert all(start >= begin + place / 50 - 0.005 for place, start in enumerate(starts))


@pytest.mark.parametrize("steps", range(4))
async def test_a_cancelled_wait_loses_no_place(steps: int) -> None:
    """The wait is cancelled before, while, and after it is given the place."""
    server, held = Server(RequestLimits(1)), asyncio.Event()

    async def hold() -> None:
        async with server.limits:
            await held.wait()

    holding = asyncio.create_task(hold())
    await asyncio.sleep(0)
    waiting = [asyncio.create_task(server.answer()) for _ in range(3)]
    await asyncio.sleep(0)
    held.set()
    for _ in range(steps):
        await asyncio.sleep(0)
    waiting[0].cancel()
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(holding, *waiting, return_exceptions=True)
        await server.answer()
    assert (server.most, server.answered >= 3) == (1, True)
