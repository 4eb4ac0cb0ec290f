"""What belongs to an event loop, such as HTTP clients, and tasks that run in it together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, Generic, TypeVar

__all__ = ["PerLoop", "run_together"]

T = TypeVar("T")


class PerLoop(Generic[T]):
    """One value per event loop; those of closed loops are dropped when another loop comes.

    A weak dictionary would keep them for ever, since clients and tasks refer to their loop. All
    methods concern the running loop, and may be called in several threads.
    """

    def __init__(self) -> None:
        self._values: dict[asyncio.AbstractEventLoop, T] = {}

    def get(self) -> T | None:
        """Return the value of the running loop, if it has one."""
        return self._values.get(asyncio.get_running_loop())

    def setdefault(self, value: T) -> T:
        """Return the value of the running loop, which becomes ``value`` where there is none."""
        loop = asyncio.get_running_loop()
        if loop not in self._values:
            for ended in [other for other in list(self._values) if other.is_closed()]:
                self._values.pop(ended, None)
        return self._values.setdefault(loop, value)

    def pop(self) -> T | None:
        """Forget the value of the running loop, and return it, if it has one."""
        return self._values.pop(asyncio.get_running_loop(), None)


async def run_together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines at the same time, and return their results in order.

    Raises:
        BaseException: The first error. The other coroutines are cancelled and have ended by then.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in work]
    except BaseExceptionGroup as errors:
        first = errors.exceptions[0]
        raise first from first.__cause__
    return [task.result() for task in tasks]
