"""What a run cost, as results tell it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["UsageReport"]


class UsageReport(BaseModel):
    """What a search, an answer or a probe cost.

    Attributes:
        model_calls: Requests to models.
        cached_calls: Requests that the cache answered.
        prompt_tokens, completion_tokens: Of the requests to models.
        cached_tokens: What the replies from the cache cost when they were first asked for.
        cached_milliseconds: How long the models took for them then, one after the other.
        milliseconds: From the first step to the last.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model_calls: int
    cached_calls: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    cached_milliseconds: float = 0.0
    milliseconds: float
