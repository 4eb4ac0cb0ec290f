"""What a message of LangChain's says: its text, its end, and what it cost."""

from __future__ import annotations

import json
import math
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
    step = exchange.step
    reason = str(metadata.get("finish_reason") or metadata.get("stop_reason") or "").lower()
    reason = reason.partition(":")[0]  # such as content_filter: SAFETY
    # Some servers say it with each piece of a stream, and the pieces are joined.
    reason = next((it for it in FINISH_REASONS if reason == it * max(1, reason.count(it))), "")
    written = written_text(message)
    text = without_thoughts(written)
    if wanted == "object" and not text.strip():
        text = _called_with(message)
    if reason:
        step.set("gen_ai.response.finish_reasons", [reason])
    for name, said in (("model", metadata.get("model_name")), ("id", metadata.get("id"))):
        if said and isinstance(said, str):
            step.set(f"gen_ai.response.{name}", said[:200])
    answer = [{"role": "assistant", "content": text}]
    exchange.record("output", answer, finish_reason=reason or "unknown")
    has_thoughts = holds_thoughts(message.content, message.additional_kwargs)
    usage = Usage()
    thinking_tokens = 0
    if counted := message.usage_metadata:
        usage = Usage(0, 0, counted["input_tokens"], counted["output_tokens"])
        thinking_tokens = (counted.get("output_token_details") or {}).get("reasoning") or 0
    return Completion(
        text,
        usage,
        declined=reason in FILTERED or bool(message.additional_kwargs.get("refusal")),
        is_cut=reason in CUT,
        thought=has_thoughts or thinking_tokens > 0 or len(text) < len(written),
        first_tokens=_first_tokens(metadata.get("logprobs")),
    )


def written_text(message: AIMessage) -> str:
    """Return the text of a message; parts that are thoughts, or no text, do not count."""
    return text_of_parts(message.content)


def _called_with(message: AIMessage) -> str:
    """Return what a model wanted to call a function with, in place of writing it."""
    for call in message.tool_calls:
        return json.dumps(call["args"])
    for invalid in message.invalid_tool_calls:
        return invalid["args"] or ""
    called = message.additional_kwargs.get("function_call") or {}
    return str(called.get("arguments") or "")


def _first_tokens(logprobs: Any) -> list[tuple[str, float]] | None:
    """Return the candidates for the first token with probabilities, or None if not stated."""
    try:
        content = logprobs["content"]
        if content == []:
            return []  # the reply has no token
        found = [
            (str(it["token"]), float(it["logprob"]))
            for it in content[0]["top_logprobs"]
            if it["logprob"] is not None  # minus infinity, which JSON lacks
        ]
    except (KeyError, IndexError, TypeError, ValueError):
        return None
    # Some servers send logarithms above 0.
    return [(token, math.exp(min(value, 0.0))) for token, value in found] or None
