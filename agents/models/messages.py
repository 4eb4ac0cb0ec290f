"""What a message of LangChain's says: its text, its end, and what it cost."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fairqr.agents.models.language_model import Exchange
from fairqr.agents.models.plain_text import holds_thoughts, text_of_parts
from fairqr.agents.models.reading import without_thoughts
from fairqr.agents.models.replies import Completion, Usage, Wanted

if TYPE_CHECKING:
    from langchain_core.messages import AIMessage

CUT = ("length", "max_tokens", "model_length")
"""Why a reply ended, if that is the limit of tokens."""

FILTERED = (
    *("content_filter", "content_filtered", "guardrail_intervened", "refusal", "sensitive"),
    *("safety", "recitation", "blocklist", "prohibited_content", "spii"),
)
"""Why a reply ended, if that is a filter or the model's own refusal."""

# Any other word may be free text of the server, which we must not record.
FINISH_REASONS = (*CUT, *FILTERED, "stop", "end_turn", "stop_sequence", "tool_calls")


def read_message(message: AIMessage, wanted: Wanted, exchange: Exchange) -> Completion:
    """Return the answer in a message, and record what the server says about it."""
    metadata = message.response_metadata
    reason = _finish_reason(metadata)
    content = written_text(message)
    text = without_thoughts(content)
    if wanted == "object" and not text.strip():
        text = _arguments_of_call(message)

    if reason:
        exchange.step.set("gen_ai.response.finish_reasons", [reason])
    _record_text(exchange, "model", metadata.get("model_name"))
    _record_text(exchange, "id", metadata.get("id"))
    answer = [{"role": "assistant", "content": text}]
    exchange.record("output", answer, finish_reason=reason or "unknown")

    usage = Usage()
    thinking_tokens = 0
    counts = message.usage_metadata
    if counts:
        usage = Usage(0, 0, counts["input_tokens"], counts["output_tokens"])
        thinking_tokens = (counts.get("output_token_details") or {}).get("reasoning") or 0
    has_thoughts = holds_thoughts(message.content, message.additional_kwargs)
    return Completion(
        text,
        usage,
        declined=reason in FILTERED or bool(message.additional_kwargs.get("refusal")),
        is_cut=reason in CUT,
        thought=has_thoughts or thinking_tokens > 0 or len(text) < len(content),
        first_tokens=_first_tokens(metadata.get("logprobs")),
    )


def _finish_reason(metadata: Mapping[str, Any]) -> str:
    """Return why a reply ended; empty if the server does not say it in a word that we know."""
    stated = str(metadata.get("finish_reason") or metadata.get("stop_reason") or "").lower()
    stated = stated.partition(":")[0]  # such as content_filter: SAFETY
    for reason in FINISH_REASONS:
        # Some servers say it with each piece of a stream, and the pieces are joined.
        repeats = max(1, stated.count(reason))
        if stated == reason * repeats:
            return reason
    return ""


def _record_text(exchange: Exchange, name: str, value: Any) -> None:
    """Record what a server says of its response, if it is a text."""
    if value and isinstance(value, str):
        exchange.step.set(f"gen_ai.response.{name}", value[:200])


def written_text(message: AIMessage) -> str:
    """Return the text of a message; parts that are thoughts, or no text, do not count."""
    return text_of_parts(message.content)


def _arguments_of_call(message: AIMessage) -> str:
    """Return what a model wanted to call a function with, in place of writing it."""
    for call in message.tool_calls:
        return json.dumps(call["args"])
    for invalid_call in message.invalid_tool_calls:
        return invalid_call["args"] or ""
    function = message.additional_kwargs.get("function_call") or {}
    return str(function.get("arguments") or "")


def _first_tokens(logprobs: Any) -> list[tuple[str, float]] | None:
    """Return the candidates for the first token with probabilities, or None if not stated."""
    candidates = []
    try:
        content = logprobs["content"]
        if content == []:
            return []  # the reply has no token
        for candidate in content[0]["top_logprobs"]:
            if candidate["logprob"] is None:  # minus infinity, which JSON lacks
                continue
            # Some servers send logarithms above 0.
            logarithm = min(float(candidate["logprob"]), 0.0)
            candidates.append((str(candidate["token"]), math.exp(logarithm)))
    except (KeyError, IndexError, TypeError, ValueError):
        return None
    return candidates or None
