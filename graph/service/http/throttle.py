"""How fast may be asked."""

from __future__ import annotations

import time

from limits import parse_many
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter

from fairqr.base.errors import BusyError
from fairqr.graph.service.configuration import Limits

__all__ = ["Throttle"]


class Throttle:
    """Counts the requests of each key, or of each address where there is no key.

    Every process counts for itself.

    Args:
        limits: Of the service.
    """

    def __init__(self, limits: Limits) -> None:
        self._rates = parse_many(limits.rate) if limits.rate else []
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())

    async def count(self, who: str) -> None:
        """Count a request.

        Args:
            who: Asks.

        Raises:
            BusyError: The rate is used up.
        """
        for rate in self._rates:
            if await self._limiter.hit(rate, who):
                continue
            window = await self._limiter.get_window_stats(rate, who)
            raise BusyError(
                f"More than {rate} are asked; wait, and ask less often.",
                retry_after=min(max(1.0, window.reset_time - time.time()), rate.get_expiry()),
                own=True,
            )
