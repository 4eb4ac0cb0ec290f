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
    return "".join(map(_text_of_part, content))


def _text_of_part(part: Any) -> str:
    """Return the text of a part of a message; empty if it is of another type."""
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and part.get("type") in TEXT_PARTS:
        return str(part.get("text") or "")
    return ""


def holds_thoughts(content: Any, members: Mapping[str, Any]) -> bool:
    """Return whether thoughts stand among the parts of a message, or in a member beside them."""
    parts = content if isinstance(content, list) else []
    types = {part.get("type") for part in parts if isinstance(part, Mapping)}
    if not types.isdisjoint(THOUGHT_PARTS):
        return True
    return any(members.get(name) for name in THOUGHT_MEMBERS)


def plain_reply(body: Any) -> Any:
    """Return a reply, as JSON data, with plain messages; other data stays as it is."""
    return _with_choices(body, _plain_choice)


def _with_choices(body: Any, make_plain: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Any:
    """Return a reply with each choice made plain; other data stays as it is."""
    choices = body.get("choices") if isinstance(body, Mapping) else None
    if not isinstance(choices, list):
        return body
    plain = []
    for choice in choices:
        if isinstance(choice, Mapping):
            plain.append(make_plain(choice))
        else:
            plain.append(choice)
    return {**body, "choices": plain}


def _plain_choice(choice: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a choice with a plain message, which may stand where other routes have it."""
    message = choice.get("message") or choice.get("delta")
    if message is None and isinstance(choice.get("text"), str):
        message = {"content": choice["text"]}
    if not isinstance(message, Mapping):
        return choice
    return {**choice, "message": _plain_message(message)}


def _plain_message(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message with a plain text, and plain calls of functions."""
    content = message.get("content")
    text = text_of_parts(content)
    is_answer = bool(text.strip() or message.get("refusal") or message.get("tool_calls"))
    if not is_answer and holds_thoughts(content, message):
        text = ONLY_THOUGHTS

    plain = {**message, "role": message.get("role") or "assistant"}
    if content is not None or text:
        plain["content"] = text
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        plain["tool_calls"] = list(map(_plain_call, calls))
    return plain


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
    pending: list[bytes] = []
    async for piece in pieces:
        pending.append(piece)
        has_line_end = b"\n" in piece or b"\r" in piece
        if not has_line_end:
            continue
        lines = b"".join(pending).splitlines(keepends=True)
        pending = []
        is_whole = lines[-1].endswith((b"\n", b"\r"))
        if not is_whole:
            pending.append(lines.pop())
        yield b"".join([_plain_line(line, end) for line in lines])
    if pending:
        yield _plain_line(b"".join(pending), end)


def _plain_line(line: bytes, end: StreamEnd) -> bytes:
    """Return a line of a stream with a plain text, and note what it says."""
    if not line.strip():
        return line
    end.is_marked = _LAST_EVENT.match(line) is not None
    end.has_thoughts = end.has_thoughts or _THOUGHTS.search(line) is not None
    is_in_parts = _IN_PARTS.search(line) is not None
    if is_in_parts and line.startswith(b"data:"):
        with suppress(ValueError, RecursionError):
            body = _with_choices(json.loads(line.removeprefix(b"data:")), _plain_change)
            return b"data: " + json.dumps(body).encode() + b"\n"
    return line
