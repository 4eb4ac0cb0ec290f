"""What belongs to an event loop goes with it."""

from __future__ import annotations

import asyncio
import gc
import weakref

from fairqr.loops import PerLoop


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
