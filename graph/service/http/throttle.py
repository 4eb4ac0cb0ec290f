"""The limit on the rate of requests."""

from __future__ import annotations

import time

from limits import parse_many
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter

from fairqr.base.errors import BusyError
from fairqr.graph.service.configuration import Limits


class Throttle:
    """Counts the requests of each key, or of each address without a key.

    Each process counts on its own.

    Args:
        limits: The limits of the service.
    """

    def __init__(self, limits: Limits) -> None:
        self._rates = parse_many(limits.rate) if limits.rate else []
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())

    async def count(self, who: str) -> None:
        """Count a request.

        Args:
            who: The key or the address.

        Raises:
            BusyError: The rate is exceeded.
        """
        for rate in self._rates:
            if await self._limiter.hit(rate, who):
                continue
            window = await self._limiter.get_window_stats(rate, who)
            raise BusyError(
                f"You exceeded the limit of {rate}; wait, and ask less often.",
                retry_after=min(max(1.0, window.reset_time - time.time()), rate.get_expiry()),
                own=True,
            )
