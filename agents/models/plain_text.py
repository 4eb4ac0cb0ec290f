"""Writes replies as OpenAI does before its client reads them: a text as text.

Some servers send a list of parts where OpenAI's client expects a text, or thoughts in a member that
it drops. A reply of thoughts alone becomes a mark of thoughts that never end, so that it is read as
one that holds its thoughts in the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
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


def with_plain_texts(body: Any, key: str = "message") -> bool:
    """Make the messages of a reply plain, in place, and return whether any was not.

    Args:
        body: The reply as JSON data.
        key: What a choice calls its message.
    """
    choices = body.get("choices") if isinstance(body, Mapping) else None
    was_plain = True
    for choice in choices if isinstance(choices, list) else []:
        message = choice.get(key) if isinstance(choice, Mapping) else None
        if isinstance(message, dict) and _make_plain(message, marks=key == "message"):
            was_plain = False
    return not was_plain


def _make_plain(message: dict[str, Any], *, marks: bool) -> bool:
    """Make a message plain, and return whether it was not.

    Args:
        message: Of a reply, or a change of one.
        marks: Whether thoughts alone become a mark.
    """
    content = message.get("content")
    text = text_of_parts(content)
    is_answer = bool(text.strip() or message.get("refusal"))
    if marks and not is_answer and holds_thoughts(content, message):
        text = ONLY_THOUGHTS
    if text == content or (content is None and not text):
        return False
    message["content"] = text
    return True


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
            body = json.loads(line.removeprefix(b"data:"))
            if with_plain_texts(body, "delta"):
                return b"data: " + json.dumps(body).encode() + b"\n"
    return line
