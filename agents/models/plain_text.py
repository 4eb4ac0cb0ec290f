"""Writes replies as OpenAI does before its client reads them: a text as text.

Some servers send a list of parts where OpenAI's client expects a text, or thoughts in a member that
it drops. A reply of thoughts alone becomes a mark of thoughts that never end, so that it is read as
one that holds its thoughts in the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

ONLY_THOUGHTS = "<think>"
"""The text of a reply that is thoughts alone."""

TEXT_PARTS = ("text", "output_text")
"""The types of the parts of a message that are its text; others are thoughts or pictures."""

THOUGHT_PARTS = ("thinking", "redacted_thinking", "reasoning", "reasoning_content")
"""The types of the parts of a message that are thoughts."""

THOUGHT_MEMBERS = ("reasoning_content", "reasoning", "thinking")
"""The members beside the text of a message that hold thoughts."""

_LAST_EVENT = re.compile(rb"data: ?\[DONE\]\s*$")
_IN_PARTS = re.compile(rb'"content"\s*:\s*\[')
_ANY_MEMBER = "|".join(THOUGHT_MEMBERS)
_ANY_PART = "|".join(THOUGHT_PARTS)
_THOUGHTS = re.compile(rf'"(?:{_ANY_MEMBER})"\s*:\s*"[^"]|"type"\s*:\s*"(?:{_ANY_PART})"'.encode())


@dataclass(slots=True)
class StreamEnd:
    """How the stream of a reply ended.

    Attributes:
        is_marked: Whether its last event says that nothing follows. Some gateways send this alone,
            and no reason why the reply ended.
        has_thoughts: Whether thoughts came beside the text.
    """

    is_marked: bool = False
    has_thoughts: bool = False


def text_of_parts(content: Any) -> str:
    """Return the text of a message's content; parts that are thoughts, or no text, do not count."""
    if isinstance(content, Mapping):  # the object that was asked for
        return json.dumps(content)
    if not isinstance(content, list):
        return str(content or "")
    texts = [part if isinstance(part, str) else _text_of_part(part) for part in content]
    return "".join(texts)


def _text_of_part(part: Any) -> str:
    is_text = isinstance(part, Mapping) and part.get("type") in TEXT_PARTS
    return str(part.get("text") or "") if is_text else ""


def holds_thoughts(content: Any, members: Mapping[str, Any]) -> bool:
    """Return whether thoughts stand among the parts of a message, or in a member beside them."""
    parts = content if isinstance(content, list) else []
    kinds = {part.get("type") for part in parts if isinstance(part, Mapping)}
    return not kinds.isdisjoint(THOUGHT_PARTS) or any(map(members.get, THOUGHT_MEMBERS))


def plain_reply(body: Any) -> Any:
    """Return a reply, as JSON data, with plain messages; what is none stays as it is."""
    return _with_choices(body, _plain_choice)


def _with_choices(body: Any, make_plain: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Any:
    choices = body.get("choices") if isinstance(body, Mapping) else None
    if not isinstance(choices, list):
        return body
    plain = [make_plain(choice) if isinstance(choice, Mapping) else choice for choice in choices]
    return {**body, "choices": plain}


def _plain_choice(choice: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a choice with a plain message, which may stand where other routes have it."""
    message = choice.get("message") or choice.get("delta")
    if message is None and isinstance(choice.get("text"), str):
        message = {"content": choice["text"]}
    if not isinstance(message, Mapping):
        return choice
    content = message.get("content")
    text = text_of_parts(content)
    is_answer = bool(text.strip() or message.get("refusal") or message.get("tool_calls"))
    if not is_answer and holds_thoughts(content, message):
        text = ONLY_THOUGHTS
    plain = {**message, "role": message.get("role") or "assistant"}
    if content is not None or text:
        plain["content"] = text
    if isinstance(message.get("tool_calls"), list):
        plain["tool_calls"] = [_plain_call(call) for call in message["tool_calls"]]
    return {**choice, "message": plain}


def _plain_call(call: Any) -> Any:
    """Return the call of a function with its arguments as text, which some servers give as JSON."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), Mapping):
        return call
    return {**call, "function": {**function, "arguments": json.dumps(function["arguments"])}}


def _plain_change(choice: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a choice of a stream with the text of its change as text."""
    delta = choice.get("delta")
    if not isinstance(delta, Mapping) or not isinstance(delta.get("content"), list):
        return choice
    return {**choice, "delta": {**delta, "content": text_of_parts(delta["content"])}}


async def plain_events(pieces: AsyncIterator[bytes], end: StreamEnd) -> AsyncIterator[bytes]:
    """Yield the lines of a stream with plain texts, and note how it ends."""
    held: list[bytes] = []
    async for piece in pieces:
        held.append(piece)
        if b"\n" not in piece and b"\r" not in piece:
            continue
        lines = b"".join(held).splitlines(keepends=True)
        is_whole = lines[-1].endswith((b"\n", b"\r"))
        held = [] if is_whole else [lines.pop()]
        yield b"".join([_plain_line(line, end) for line in lines])
    if held:
        yield _plain_line(b"".join(held), end)


def _plain_line(line: bytes, end: StreamEnd) -> bytes:
    """Return a line of a stream with a plain text, and note what it says."""
    if not line.strip():
        return line
    end.is_marked = _LAST_EVENT.match(line) is not None
    in_parts = _IN_PARTS.search(line)
    end.has_thoughts = end.has_thoughts or _THOUGHTS.search(line) is not None
    if in_parts and line.startswith(b"data:"):
        with suppress(ValueError, RecursionError):
            body = _with_choices(json.loads(line.removeprefix(b"data:")), _plain_change)
            return b"data: " + json.dumps(body).encode() + b"\n"
    return line
