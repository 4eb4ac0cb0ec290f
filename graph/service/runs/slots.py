"""The slots for runs of a process."""

from __future__ import annotations

import asyncio


class Slots:
    """Slots for runs of both kinds, first come, first served.

    Args:
        number: The number of slots.

    Attributes:
        closed: Whether no more slots are given out.
    """

    def __init__(self, number: int) -> None:
        self._free = asyncio.Semaphore(number)
        self.closed = False

    async def take(self) -> bool:
        """Wait for a slot; return False if the service is stopping.

        Call :meth:`give_back` when the run is over.
        """
        await self._free.acquire()
        if self.closed:  # pass the slot on, so that all waiting callers see it
            self._free.release()
        return not self.closed

    def give_back(self) -> None:
        """Free a slot."""
        self._free.release()

    def close(self) -> None:
        """Give out no more slots; waiting callers return at once."""
        self.closed = True
        self._free.release()
