"""Equal questions that are asked at the same time are asked once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fairqr.agents.replies import Reply
from fairqr.base.loops import PerLoop

__all__ = ["Sharing"]


@dataclass(slots=True)
class _Shared:
    """A question under way, and how many wait for its answer."""

    task: asyncio.Task[Reply]
    waiting: int = 0


class Sharing:
    """The questions under way, by their keys."""

    def __init__(self) -> None:
        self._asking: PerLoop[dict[str, _Shared]] = PerLoop()

    @asynccontextmanager
    async def join(
        self, key: str, ask: Callable[[], Coroutine[Any, Any, Reply]]
    ) -> AsyncIterator[tuple[asyncio.Task[Reply], bool]]:
        """Give the task of a question, and whether this is the first to ask it.

        Shield the task where you await it: it goes on while anybody waits, and is cancelled when
        the last one leaves.

        Args:
            key: The same for equal questions.
            ask: Asks it; called unless the question is under way in this event loop.
        """
        asking = self._asking.setdefault({})
        leads = key not in asking
        if leads:
            asking[key] = _Shared(asyncio.create_task(ask()))
        shared = asking[key]
        shared.waiting += 1
        try:
            yield shared.task, leads
        finally:
            shared.waiting -= 1
            if asking.get(key) is shared and (shared.task.done() or not shared.waiting):
                del asking[key]
            if not shared.waiting and not shared.task.done():
                shared.task.cancel()
                await asyncio.wait([shared.task])
