"""What a model answered to one request, taken from its client's message."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairqr.agents.replies import Usage

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage

__all__ = ["Answer", "answer_of", "has_structured_output", "message_of"]

# Any other word may be the server's own text, which is nothing to be recorded.
FINISH_REASONS = ("stop", "length", "content_filter", "end_turn", "max_tokens", "stop_sequence")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model answered to one request.

    Attributes:
        text: As it came.
        declined: Whether the model, or a filter before it, refused to answer.
        usage: What the request cost.
        first_tokens: The probabilities of the likeliest tokens that it could have begun with, as
            far as they were asked for; None where the server gave none.
        finish_reason: Why the reply ended, where the server says it in a known word.
        model, id: Which model replied, and the reply's id, where the server says so.
    """

    text: str
    declined: bool
    usage: Usage
    first_tokens: list[tuple[str, float]] | None = None
    finish_reason: str | None = None
    model: str | None = None
    id: str | None = None


def answer_of(message: AIMessage) -> Answer:
    """Return what a message of langchain says."""
    metadata = message.response_metadata
    reason = metadata.get("finish_reason") or metadata.get("stop_reason")
    counted = message.usage_metadata
    return Answer(
        text=message.text if isinstance(message.text, str) else str(message.content),
        declined=reason == "content_filter" or bool(message.additional_kwargs.get("refusal")),
        usage=Usage(
            model_calls=1,
            prompt_tokens=counted["input_tokens"] if counted else 0,
            completion_tokens=counted["output_tokens"] if counted else 0,
        ),
        first_tokens=_first_tokens(metadata.get("logprobs")),
        finish_reason=reason if reason in FINISH_REASONS else None,
        model=_short(metadata.get("model_name")),
        id=_short(metadata.get("id")),
    )


def _short(value: object) -> str | None:
    """Return a text of a server that is short enough to be recorded."""
    return value[:200] if isinstance(value, str) and value else None


def has_structured_output(client: BaseChatModel) -> bool:
    """Return whether a model has a way to give objects, by tools or by its own."""
    from langchain_core.language_models import BaseChatModel

    own = type(client)
    return (
        own.with_structured_output is not BaseChatModel.with_structured_output
        or own.bind_tools is not BaseChatModel.bind_tools
    )


def message_of(structured: Mapping[str, Any]) -> AIMessage:
    """Return the message of a structured output, with the object as its text if it was parsed."""
    message: AIMessage = structured["raw"]
    if structured["parsed"] is None:
        return message
    return message.model_copy(update={"content": json.dumps(structured["parsed"])})


def _first_tokens(logprobs: Any) -> list[tuple[str, float]] | None:
    """Return what the first token could have been, with probabilities; None where nobody says."""
    try:
        content = logprobs["content"]
        if content == []:
            return []  # the reply has no token
        pairs = [(str(it["token"]), float(it["logprob"])) for it in content[0]["top_logprobs"]]
    except (KeyError, IndexError, TypeError, ValueError):
        return None
    # Not every server keeps to numbers up to 0.
    probable = [
        (token, math.exp(min(0.0, value))) for token, value in pairs if not math.isnan(value)
    ]
    return probable or None
