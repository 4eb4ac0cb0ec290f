"""The one place that retries requests, for model clients and index clients alike.

The clients' own retries are switched off. We retry what can succeed later: an unreachable or slow
server, and the statuses 408, 429 and 5xx except 501. We never retry a status such as 400 or 401,
or a quota that is used up.
"""

from __future__ import annotations

import asyncio
import email.utils
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

import tenacity

T = TypeVar("T")

ATTEMPTS = 4
"""How often a request is made at most, if its errors may be temporary."""

# By name, so that this module imports none of the clients.
_CONNECTION_ERROR = re.compile(
    "(API)?(Connect|Connection|Read)(Error|Timeout)|APITimeoutError|RemoteProtocolError"
)

LONGEST_BODY = 10_000
"""How much of what a server says is searched for a time to wait."""

_NUMBER = r"(\d{1,9}(?:\.\d{1,9})?)(?![\d.]*\d)"
_UNIT = r"(ms|milliseconds?|s|sec(?:ond)?s?|m|min(?:ute)?s?|h|hours?)(?![a-z])"
_AMOUNT = re.compile(rf"(?i){_NUMBER}\s*{_UNIT}")
_WAIT_AS_MEMBER = re.compile(
    rf"""(?i)\b(retry[_-]?(?:after|delay|in)[a-z_-]*)[\\"']*\s*[:=]\s*[\\"']*{_NUMBER}(?:{_UNIT})?"""
)
_WAIT_IN_SENTENCE = re.compile(
    r"(?i)\b(?:retry|try again|wait)(?: (?:your|the|request|in|after|for|about|at least))* "
    rf"((?:{_NUMBER}\s*{_UNIT}\s*)+)"
)


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of a client's error, if it has one."""
    for holder in (error, getattr(error, "meta", None), getattr(error, "response", None)):
        for name in ("status_code", "status"):
            status = getattr(holder, name, None)
            if isinstance(status, int):
                return status
    return None


def is_used_up(error: BaseException) -> bool:
    """Return whether a quota is used up; waiting does not help then."""
    return "insufficient_quota" in (getattr(error, "code", None), getattr(error, "type", None))


def can_heal(error: BaseException) -> bool:
    """Return whether the same request may succeed later."""
    status = status_of(error)
    if status is None:
        return _is_of_connection(error)
    is_broken = status >= 500 and status != 501
    is_passing = is_broken or status in (408, 429)
    return is_passing and not is_used_up(error)


def _is_of_connection(error: BaseException) -> bool:
    """Return whether an error says that a server is unreachable or slow."""
    for kind in type(error).__mro__:
        if kind.__name__ == "TimeoutError" or _CONNECTION_ERROR.fullmatch(kind.__name__):
            return True
    return False


def retry_after(error: BaseException) -> float | None:
    """Return how many seconds the server asks us to wait, if it does.

    It says so in the header Retry-After, or else in the body.
    """
    header = _retry_after_header(error)
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", header.strip()):
        return float(header)
    with suppress(ValueError, OverflowError):  # the other form that HTTP allows
        moment = email.utils.parsedate_to_datetime(header).timestamp()
        return max(0.0, moment - time.time())
    return _wait_in(_body_of(error))


def _retry_after_header(error: BaseException) -> str:
    """Return the header Retry-After of a response; empty without it."""
    for holder in (getattr(error, "response", None), getattr(error, "meta", None)):
        headers: Any = getattr(holder, "headers", None) or {}
        if "retry-after" in headers:
            return str(headers["retry-after"])
    return ""


def _body_of(error: BaseException) -> str:
    """Return what the server said, as text."""
    text = ""
    with suppress(Exception):  # it may have been streamed, or be of any library
        text = error.response.text  # type: ignore[attr-defined]
    return str(text or getattr(error, "body", None) or error)[:LONGEST_BODY]


def _wait_in(body: str) -> float | None:
    """Return the seconds in a member such as ``"retryDelay": "12s"``, or in a sentence."""
    member = _WAIT_AS_MEMBER.search(body)
    if member:
        name, number, unit = member.groups()
        unit_of_name = "ms" if name.lower().endswith(("ms", "milliseconds")) else "s"
        return float(number) * _seconds_of(unit or unit_of_name)
    sentence = _WAIT_IN_SENTENCE.search(body)
    if sentence:
        amounts = _AMOUNT.findall(sentence[1])
        return sum(float(number) * _seconds_of(unit) for number, unit in amounts)
    return None


def _seconds_of(unit: str) -> float:
    """Return how many seconds a unit is, such as ``ms`` or ``minutes``."""
    if unit.lower().startswith(("ms", "milli")):
        return 0.001
    return {"s": 1.0, "m": 60.0, "h": 3600.0}[unit[0].lower()]


async def with_retries(
    call: Callable[[], Awaitable[T]],
    *,
    attempts: int = ATTEMPTS,
    longest_wait: float = 30.0,
    total: float = float("inf"),
    before_wait: Callable[[tenacity.RetryCallState], None] | None = None,
) -> T:
    """Await ``call()``, and retry it after errors for which :func:`can_heal` is true.

    We wait as long as the server asks, or else 0.5 s, 1 s, 2 s … with jitter. If the server asks
    for more than ``longest_wait`` seconds, we give up.

    Args:
        call: Makes a new attempt each time.
        attempts: The largest number of attempts.
        longest_wait: In seconds, for one wait.
        total: In seconds; no attempt starts later than this.
        before_wait: Is called before each wait, with the attempt that failed.

    Raises:
        Exception: The error of the last attempt.
    """
    backoff = tenacity.wait_exponential(multiplier=0.5, max=8) + tenacity.wait_random(0, 0.25)

    def error_of(state: tenacity.RetryCallState) -> BaseException:
        return (state.outcome and state.outcome.exception()) or RuntimeError()

    def wait(state: tenacity.RetryCallState) -> float:
        seconds = retry_after(error_of(state))
        return backoff(state) if seconds is None else seconds

    def is_worth_it(error: BaseException) -> bool:
        return can_heal(error) and (retry_after(error) or 0.0) <= longest_wait

    retrying = tenacity.AsyncRetrying(
        stop=tenacity.stop_after_attempt(attempts) | tenacity.stop_before_delay(total),
        wait=wait,
        retry=tenacity.retry_if_exception(is_worth_it),
        before_sleep=before_wait,
        sleep=asyncio.sleep,
        reraise=True,
    )
    return await retrying(call)
