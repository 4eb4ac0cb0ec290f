"""How long to wait before a request is tried again, as servers say it."""

from __future__ import annotations

import json

import httpx
import pytest

from fairqr.base.retries import retry_after

RETRY_INFO = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "12s"}
EXHAUSTED = {"code": 429, "status": "RESOURCE_EXHAUSTED", "details": [RETRY_INFO]}


def refusal(body: object, **headers: str) -> httpx.HTTPStatusError:
    """Return the error of a client whose server answered with 429."""
    request = httpx.Request("POST", "http://localhost/v1/chat/completions")
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    text = body if isinstance(body, str) else json.dumps(body)
    response = httpx.Response(429, text=text, headers=named, request=request)
    return httpx.HTTPStatusError("429", request=request, response=response)


@pytest.mark.parametrize(
    ("body", "seconds"),
    [
        ([{"error": EXHAUSTED}], 12),
        ({"error": {"message": json.dumps({"error": EXHAUSTED})}}, 12),
        ({"error": {"details": [{"retryDelay": "3.250s"}]}}, 3.25),
        ({"error": {"metadata": {"retry_after_seconds": 7}}}, 7),
        ({"retry_after": 1.5}, 1.5),
        ({"retryAfterMs": 250}, 0.25),
        ({"message": "Please retry in 3.2s."}, 3.2),
        ({"error": {"message": "Rate limit reached. Please try again in 1.5s. Visit us."}}, 1.5),
        ({"error": {"message": "Please try again in 6m0.5s."}}, 360.5),
        ("Please try again in 854ms.", 0.854),
        ({"message": "Please retry after 12 seconds."}, 12),
        ({"detail": "Slow down: wait at least 1 minute 5 seconds"}, 65),
    ],
)
def test_a_wait_in_the_body_counts_like_the_header(body: object, seconds: float) -> None:
    assert retry_after(refusal(body)) == pytest.approx(seconds)


def test_the_header_counts_before_the_body() -> None:
    assert retry_after(refusal({"retry_after": 9}, retry_after="2")) == 2


@pytest.mark.parametrize(
    "body",
    [
        "",
        {"error": {"message": "Rate limit reached: 12s of audio, 5 requests per 20 s."}},
        {"message": "Please try again in a moment."},
        {"message": "We will retry 3 times; try again in 2 attempts."},
        {"retry_after": 1764454184},
        {"retryDelay": None},
    ],
)
def test_a_body_without_a_wait_asks_for_none(body: object) -> None:
    assert retry_after(refusal(body)) is None


def test_a_body_that_was_not_read_asks_for_none() -> None:
    request = httpx.Request("POST", "http://localhost")
    response = httpx.Response(429, stream=httpx.ByteStream(b"retry in 2s"), request=request)

    error = httpx.HTTPStatusError("429", request=request, response=response)

    assert retry_after(error) is None
