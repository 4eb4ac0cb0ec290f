"""How many runs a process does at once."""

from __future__ import annotations

import asyncio

from fairqr.base.errors import BusyError

__all__ = ["Slots", "about_to_stop"]

BACK_IN = 5.0
"""Seconds after which a service that ends may be asked again, since others have taken over."""


class Slots:
    """Slots for runs of both kinds; who asks first gets the next one that is free.

    Args:
        number: How many there are.

    Attributes:
        closed: Whether nobody gets one any more.
    """

    def __init__(self, number: int) -> None:
        self._free = asyncio.Semaphore(number)
        self.closed = False

    async def take(self) -> bool:
        """Wait for a slot; return False if there will be none, since the service is about to end.

        Call :meth:`give_back` when the run is over.
        """
        await self._free.acquire()
        if self.closed:  # the next one who waits is told so
            self._free.release()
        return not self.closed

    def give_back(self) -> None:
        """Free a slot that was taken."""
        self._free.release()

    def close(self) -> None:
        """Give nobody a slot any more; those who wait are told at once."""
        self.closed = True
        self._free.release()


def about_to_stop() -> BusyError:
    """Return the error of a run that is asked for while the service ends."""
    return BusyError(
        "The service is about to stop; try again in a moment.", retry_after=BACK_IN, own=False
    )
