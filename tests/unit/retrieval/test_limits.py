"""No server gets more requests at a time, or a second, than its source says."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from fairqr.retrieval.engines.limits import Limits
from tests.patience import PATIENCE


class Server:
    """Counts the requests under way, in all threads."""

    def __init__(self) -> None:
        self.now = self.most = self.all = 0
        self.lock = threading.Lock()

    async def answer(self) -> None:
        with self.lock:
            self.now, self.all = self.now + 1, self.all + 1
            self.most = max(self.most, self.now)
        try:
            for _ in range(5):
                await asyncio.sleep(0)
        finally:
            with self.lock:
                self.now -= 1


async def ask(limits: Limits, server: Server) -> None:
    async with limits:
        await server.answer()


async def test_requests_wait_for_a_place() -> None:
    limits, server = Limits(3), Server()
    await asyncio.gather(*(ask(limits, server) for _ in range(50)))
    assert (server.most, server.all) == (3, 50)


def test_the_limit_holds_over_several_event_loops() -> None:
    limits, server = Limits(2), Server()

    async def many() -> None:
        await asyncio.gather(*(ask(limits, server) for _ in range(200)))

    threads = [threading.Thread(target=asyncio.run, args=(many(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert (server.most, server.all) == (2, 600)


async def test_places_are_given_in_order() -> None:
    limits, order = Limits(1), []

    async def note(number: int) -> None:
        async with limits:
            order.append(number)
            await asyncio.sleep(0)

    await asyncio.gather(*(note(number) for number in range(20)))
    assert order == list(range(20))


async def test_requests_start_evenly_spaced() -> None:
    limits, starts = Limits(10, 50), []

    async def note() -> None:
        async with limits:
            starts.append(time.monotonic())

    begin = time.monotonic()
    await asyncio.gather(*(note() for _ in range(8)))
    # A timer of the loop may fire a little early; a busy machine notes any start late.
    assert all(start >= begin + place / 50 - 0.005 for place, start in enumerate(starts))


async def test_a_failed_request_gives_its_place_back() -> None:
    limits = Limits(1)
    for _ in range(3):
        with pytest.raises(ValueError, match="broken"):
            async with limits:
                raise ValueError("broken")
    async with asyncio.timeout(PATIENCE):
        await ask(limits, Server())


@pytest.mark.parametrize("steps", range(4))
async def test_a_cancelled_wait_loses_no_place(steps: int) -> None:
    """The wait is cancelled before, while, and after it is given the place."""
    limits, held, server = Limits(1), asyncio.Event(), Server()

    async def hold() -> None:
        async with limits:
            await held.wait()

    holding = asyncio.create_task(hold())
    await asyncio.sleep(0)
    waiting = [asyncio.create_task(ask(limits, server)) for _ in range(3)]
    await asyncio.sleep(0)
    held.set()
    for _ in range(steps):
        await asyncio.sleep(0)
    waiting[0].cancel()
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(holding, *waiting, return_exceptions=True)
        await ask(limits, server)
    assert server.all >= 3
    assert server.most == 1


async def test_a_wait_in_a_loop_that_was_closed_is_passed_over() -> None:
    limits, server = Limits(1), Server()

    def abandoned() -> None:
        loop = asyncio.new_event_loop()
        task = loop.create_task(ask(limits, server))
        loop.run_until_complete(asyncio.sleep(0))
        assert not task.done()
        loop.close()
        task._log_destroy_pending = False  # type: ignore[attr-defined]

    async with limits:
        await asyncio.to_thread(abandoned)
    async with asyncio.timeout(PATIENCE):
        await ask(limits, server)
