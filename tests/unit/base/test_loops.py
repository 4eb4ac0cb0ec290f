"""What belongs to an event loop goes with it."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import threading
import weakref
from functools import partial

import pytest

from fairqr.base.loops import BackgroundLoop, PerLoop, run_together
from tests.patience import PATIENCE


class Client:
    """Stands for an HTTP client, which refers to its loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()


def test_each_loop_has_its_own_and_closed_loops_are_let_go() -> None:
    clients: PerLoop[Client] = PerLoop()
    seen: list[weakref.ref[Client]] = []

    async def use() -> None:
        first = clients.setdefault(Client())
        assert clients.setdefault(Client()) is first
        assert clients.get() is first
        seen.append(weakref.ref(first))

    for _ in range(4):
        asyncio.run(use())
    gc.collect()
    assert [reference() is None for reference in seen] == [True, True, True, False]


async def test_the_first_error_ends_what_runs_beside_it() -> None:
    ended: list[str] = []

    async def wait(name: str) -> str:
        try:
            await asyncio.sleep(0 if name == "quick" else 60)
        finally:
            ended.append(name)
        return name

    async def fail() -> str:
        await asyncio.sleep(0)
        raise ValueError("first") from KeyError("cause")

    assert await run_together(wait("quick") for _ in range(2)) == ["quick"] * 2
    ended.clear()
    with pytest.raises(ValueError, match="first") as failed:
        await run_together([wait("slow"), fail(), wait("slow")])
    assert ended == ["slow", "slow"]
    assert isinstance(failed.value.__cause__, KeyError)


def test_an_interrupted_wait_cancels_what_it_waits_for(request: pytest.FixtureRequest) -> None:
    """Also when the interrupt comes before the wait: threads that switch often show it."""
    request.addfinalizer(partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-6)
    background = BackgroundLoop()
    delivered = threading.Event()
    ended = threading.Event()

    def interrupt(*_: object) -> None:
        if not delivered.is_set():
            delivered.set()
            raise KeyboardInterrupt

    request.addfinalizer(partial(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT)))
    signal.signal(signal.SIGINT, interrupt)

    async def work() -> None:
        try:
            # Python itself loses a signal that comes just before it blocks on a lock.
            while True:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                await asyncio.sleep(0.05)
        finally:
            ended.set()

    for _ in range(500):
        delivered.clear()
        ended.clear()
        with pytest.raises(KeyboardInterrupt):
            background.run(work())
        assert ended.wait(PATIENCE)
    background.end()
