"""A model's answer to one request, taken from its client's message."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairqr.agents.models.replies import Usage

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage

# Any other word may be free text of the server, which we must not record.
FINISH_REASONS = ("stop", "length", "content_filter", "end_turn", "max_tokens", "stop_sequence")


@dataclass(frozen=True, slots=True)
class Answer:
    """A model's answer to one request.

    Attributes:
        text: The text as it came.
        declined: Whether the model, or a filter before it, refused to answer.
        usage: What the request cost.
        first_tokens: The likeliest first tokens with their probabilities; None if the server did
            not give them.
        finish_reason: Why the reply ended, if the server gives a known reason.
        model, id: The model that replied, and the reply's id, if the server states them.
    """

    text: str
    declined: bool
    usage: Usage
    first_tokens: list[tuple[str, float]] | None = None
    finish_reason: str | None = None
    model: str | None = None
    id: str | None = None


def answer_of(message: AIMessage) -> Answer:
    """Return the answer in a message of LangChain."""
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
    """Return a server's text, cut so that it can be recorded."""
    return value[:200] if isinstance(value, str) and value else None


def has_structured_output(client: BaseChatModel) -> bool:
    """Return whether a model can give objects, by tools or in its own way."""
    from langchain_core.language_models import BaseChatModel

    own = type(client)
    return (
        own.with_structured_output is not BaseChatModel.with_structured_output
        or own.bind_tools is not BaseChatModel.bind_tools
    )


def message_of(structured: Mapping[str, Any]) -> AIMessage:
    """Return the message of a structured output; if it was parsed, its text is the object."""
    message: AIMessage = structured["raw"]
    if structured["parsed"] is None:
        return message
    return message.model_copy(update={"content": json.dumps(structured["parsed"])})


def _first_tokens(logprobs: Any) -> list[tuple[str, float]] | None:
    """Return the candidates for the first token with probabilities, or None if not stated."""
    try:
        content = logprobs["content"]
        if content == []:
            return []  # the reply has no token
        pairs = [(str(it["token"]), float(it["logprob"])) for it in content[0]["top_logprobs"]]
    except (KeyError, IndexError, TypeError, ValueError):
        return None
    # Some servers send logarithms above 0.
    probable = [
        (token, math.exp(min(0.0, value))) for token, value in pairs if not math.isnan(value)
    ]
    return probable or None
