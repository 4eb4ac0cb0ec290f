"""What a run cost: as it stands in the state, and as results report it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

from pydantic import BaseModel, ConfigDict

# Before Python 3.12 pydantic makes no JSON schema of typing's own; Studio's forms are made of it.
from typing_extensions import TypedDict

from fairqr.agents.replies import Usage

__all__ = ["UsageRecord", "UsageReport", "longest", "usage_of", "usage_record"]


class UsageRecord(TypedDict):
    """What models cost so far."""

    model_calls: int
    cached_calls: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cached_milliseconds: float


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


def usage_record(usage: Usage) -> UsageRecord:
    """Return a usage as plain data."""
    return cast("UsageRecord", dataclasses.asdict(usage))


def usage_of(result: Mapping[str, Any]) -> Usage:
    """Return what models cost for a result, the object of one of the graphs' result classes."""
    return Usage(**{key: value for key, value in result["usage"].items() if key != "milliseconds"})


def longest(one: float, other: float) -> float:
    """Return the greater: steps run side by side, and each says how long the run has taken."""
    return max(one, other)
