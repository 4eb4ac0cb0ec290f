"""The one owner of retries, for model and index clients alike.

The clients' own retries are switched off. Tried again is what can heal: an unreachable or slow
server, an answer 429, 502, 503, 504 or another 5xx (but 501, which is a no for good); never an
answer such as 400 or 401, and never a quota that is used up.
"""

from __future__ import annotations

import asyncio
import email.utils
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import tenacity

__all__ = ["can_heal", "is_used_up", "retry_after", "with_retries"]

T = TypeVar("T")

# By name, so that this module imports none of the clients.
_CONNECTION_ERRORS = frozenset(
    {
        "APIConnectionError",
        "APITimeoutError",
        "ConnectError",
        "ConnectTimeout",
        "ConnectionError",
        "ConnectionTimeout",
        "ReadError",
        "ReadTimeout",
        "RemoteProtocolError",
    }
)


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status that an error of a client carries, if it carries one."""
    for holder in (error, getattr(error, "meta", None), getattr(error, "response", None)):
        for name in ("status_code", "status"):
            status = getattr(holder, name, None)
            if isinstance(status, int):
                return status
    return None


def is_used_up(error: BaseException) -> bool:
    """Tell whether a quota is used up, which waiting does not mend."""
    return "insufficient_quota" in (getattr(error, "code", None), getattr(error, "type", None))


def can_heal(error: BaseException) -> bool:
    """Tell whether the same request may succeed later."""
    status = status_of(error)
    if status is not None:
        if status == 429:
            return not is_used_up(error)
        return status == 408 or (status >= 500 and status != 501)
    if isinstance(error, TimeoutError):
        return True
    return any(kind.__name__ in _CONNECTION_ERRORS for kind in type(error).__mro__)


def retry_after(error: BaseException) -> float | None:
    """Return the seconds that the server asked to wait (the header Retry-After), if it did."""
    for holder in (getattr(error, "response", None), getattr(error, "meta", None)):
        headers: Any = getattr(holder, "headers", None)
        if headers is None:
            continue
        asked = headers.get("retry-after")
        if not isinstance(asked, str):
            continue
        try:
            return max(0.0, float(asked))
        except ValueError:
            pass
        try:  # the other form that HTTP allows
            return max(0.0, email.utils.parsedate_to_datetime(asked).timestamp() - time.time())
        except (ValueError, OverflowError):
            continue
    return None


async def with_retries(
    call: Callable[[], Awaitable[T]],
    *,
    attempts: int = 4,
    longest_wait: float = 30.0,
    total: float = float("inf"),
    on_retry: Callable[[int, BaseException], None] | None = None,
) -> T:
    """Await ``call()``, again where it failed with an error that can heal.

    Waits as long as the server asks, else 0.5 s, 1 s, 2 s … with jitter; a server that asks for
    more than ``longest_wait`` seconds is not waited for.

    Args:
        call: Makes a new attempt each time.
        attempts: How many at the most.
        longest_wait: In seconds, for one wait.
        total: In seconds; an attempt that would begin later than this is not waited for.
        on_retry: Told the number of the attempt that failed, and its error, before each wait.

    Raises:
        Exception: The error of the last attempt.
    """
    backoff = tenacity.wait_exponential_jitter(multiplier=0.5, max=8, jitter=0.25)

    def wait(state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked = retry_after(error) if error else None
        return backoff(state) if asked is None else asked

    def worth_it(error: BaseException) -> bool:
        return can_heal(error) and (retry_after(error) or 0.0) <= longest_wait

    def tell(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if on_retry and error:
            on_retry(state.attempt_number, error)

    retrying = tenacity.AsyncRetrying(
        stop=tenacity.stop_after_attempt(attempts) | tenacity.stop_before_delay(total),
        wait=wait,
        retry=tenacity.retry_if_exception(worth_it),
        before_sleep=tell,
        sleep=asyncio.sleep,
        reraise=True,
    )
    return await retrying(call)
