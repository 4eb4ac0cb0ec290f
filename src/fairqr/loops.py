"""What belongs to an event loop and cannot leave it: HTTP clients, tasks under way."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

__all__ = ["PerLoop"]

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
