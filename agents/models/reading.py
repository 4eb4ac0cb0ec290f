"""Reads the text of a reply: without thoughts, and as the object that it means.

Models wrap their answer in prose, code fences, lists and other objects, think aloud before it, and
write JSON as people do, with single quotes and comments. What means only one thing is read; what
means nothing is told, so that the model can be asked again.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import json_repair

MAX_REPLY_CHARACTERS = 1_000_000
"""How much of a reply we read."""

MAX_BEGINNINGS = 20
"""In a hostile reply, every bracket could start a long and useless search."""

LONGEST_REPAIRED = 50_000
"""The longest text with mistakes that is read."""

DEEPEST = 4
"""How many objects may stand around the one that is meant."""

_OBJECT = re.compile(r'\{(?=[ \t\r\n]*["}])')
_LIST = re.compile(r"(?:\s|`{3}\w*)*\[")
"""A list counts only where the reply begins with it: inside prose it is a reference or a remark,
and inside an object with mistakes a part."""

_TAGS = ("think", "thinking", "thought", "thoughts", "reasoning", "seed:think")
_ANY_TAG = "|".join(_TAGS)
_OTHER_MARKS = ("[think]", "◁think▷", "<|start_thinking|>", "<|channel|>analysis")

THOUGHTS = (*(f"<{tag}>" for tag in _TAGS), *_OTHER_MARKS)
"""The marks before thoughts, in lower case; those of tags may have attributes."""

_ANY_OTHER_MARK = "|".join(map(re.escape, _OTHER_MARKS))
_OPENING = re.compile(rf"\s*(?:<(?:{_ANY_TAG})(?:\s[^>]*)?>|{_ANY_OTHER_MARK})", re.IGNORECASE)
_CLOSING = re.compile(
    rf"</(?:{_ANY_TAG})>|\[/think\]|◁/think▷|<\|end_thinking\|>"
    r"|<\|channel\|>\s*final[^<]*(?:<\|constrain\|>\s*\w+\s*)?<\|message\|>",
    re.IGNORECASE,
)
_BARE_OPENING = re.compile(r"\s*analysis")
_BARE_THOUGHTS = re.compile(r"(?s)\s*analysis.*?assistantfinal")
"""Thoughts whose marks a server has taken out, so that only the words inside them are left."""

_BARE_BEGINNING = re.compile(r"\s*analysis(?=[A-Z])")
"""The beginning of such thoughts, which no answer has."""

END_MARKS = (
    *("<|return|>", "<|end|>", "<|im_end|>", "<|eot_id|>", "<|endoftext|>", "<|end_of_text|>"),
    *("</s>", "<eos>", "<end_of_turn>", "<｜end▁of▁sentence｜>"),
)
"""Marks of the end that some servers leave in the text."""

_ANY_END = "|".join(map(re.escape, END_MARKS))
_END = re.compile(rf"(?:\s*(?:{_ANY_END}))+\s*$")

_HALF_MARKS = {mark[:length] for mark in END_MARKS for length in range(1, len(mark))}
_ANY_HALF = "|".join(map(re.escape, sorted(_HALF_MARKS)))
_MAY_END = re.compile(rf"(?:(?:{_ANY_END})\s*)*(?:{_ANY_HALF})?\Z")
"""The end of a text that may be, or become, marks of the end; it may be empty."""

_LONGEST_MARK = 80
"""No mark has more characters, those with attributes included."""

BULLET = re.compile(r"^\s*(?:[-*•·]|\d+[.)])\s+")
_LIST_ENTRY = re.compile(r"[^.!?:{}\[\]<>]{1,40}")
MOST_WORDS = 4
"""The most words of an entry of a plain list."""

FEWEST_ENTRIES = 3
"""With fewer entries, a line with commas may be a sentence."""


def without_thoughts(text: str) -> str:
    """Return what a model answered after it had thought aloud; empty if it never did.

    Some servers leave out the mark before the thoughts, so all before the last mark after them is
    a thought.
    """
    bare_thoughts = _BARE_THOUGHTS.match(text)
    if bare_thoughts:
        text = text[bare_thoughts.end() :]
    marks = [*_CLOSING.finditer(text)]
    answer = text[marks[-1].end() :] if marks else text
    if _OPENING.match(answer) or _BARE_BEGINNING.match(answer):
        return ""
    return _END.sub("", answer)


def hides_thinking(text: str) -> bool:
    """Return whether thoughts stand at the beginning of a text, and no mark before them."""
    return bool(_CLOSING.search(text)) and not _OPENING.match(text)


class ThoughtFilter:
    """Drops thoughts from a text that comes piece by piece.

    Args:
        is_thinking: Whether the text begins with thoughts, though no mark says so.
    """

    def __init__(self, *, is_thinking: bool = False) -> None:
        self._is_thinking = is_thinking
        self._may_begin = not is_thinking
        self._pending = ""

    def feed(self, piece: str) -> str:
        """Return what is to be shown by now."""
        self._pending += piece
        if self._may_begin:
            if self._is_undecided():
                return ""
            self._may_begin = False
        if not self._is_thinking:
            return self._release()
        mark = _CLOSING.search(self._pending)
        if mark:
            self._is_thinking = False
            self._pending = self._pending[mark.end() :]
            return self._release()
        self._pending = self._pending[-_LONGEST_MARK:]
        return ""

    def _is_undecided(self) -> bool:
        """Return whether more has to come before we know whether the text begins with thoughts."""
        bare_thoughts = _BARE_THOUGHTS.match(self._pending)
        if _OPENING.match(self._pending):
            self._is_thinking = True
        elif bare_thoughts:
            self._pending = self._pending[bare_thoughts.end() :]
        elif _BARE_OPENING.match(self._pending) or _may_become_mark(self._pending):
            return True
        return False

    def end(self) -> str:
        """Return what was held back, now that nothing follows."""
        if self._is_thinking or _BARE_BEGINNING.match(self._pending):
            return ""
        return _END.sub("", self._pending)

    def _release(self) -> str:
        """Return what was held back, but for what may be a mark of the end."""
        may_end = _MAY_END.search(self._pending)
        end = may_end.start() if may_end else len(self._pending)
        text = self._pending[:end]
        self._pending = self._pending[end:]
        return text


def _may_become_mark(text: str) -> bool:
    """Return whether a text is the beginning of a mark before thoughts."""
    beginning = text.lstrip().lower()
    if any(mark.startswith(beginning) for mark in (*THOUGHTS, "analysis")):
        return True
    has_attributes = re.match(rf"<(?:{_ANY_TAG})\s[^>]*$", beginning) is not None
    return has_attributes and len(beginning) < _LONGEST_MARK


def read_object(text: str, fields: Sequence[str] = (), main: str = "") -> dict[str, Any]:
    """Return the object that a reply means.

    Args:
        text: The reply, without thoughts.
        fields: The members that it may have; an object without any is only a wrapping.
        main: The member that a list alone stands for; without, a list alone means nothing.

    Raises:
        ValueError: The reply contains no object.
    """
    text = text[:MAX_REPLY_CHARACTERS]
    first_object = None
    for value in itertools.chain(_written(text), _repaired(text)):
        meaning = _meaning(value, fields, main)
        if meaning is None:
            continue
        if not fields or _requested(meaning, fields):
            return meaning
        if first_object is None:
            first_object = meaning
    if first_object is not None:
        return first_object

    entries = listed(text) if main else []
    if entries:
        return {main: entries}
    raise ValueError("the reply holds no whole JSON object")


def _written(text: str) -> Iterator[Any]:
    """Yield the list that a text is, or the objects in it, if they are correct JSON."""
    decoder = json.JSONDecoder()
    list_begin = _LIST.match(text)
    if list_begin:
        with suppress(ValueError, RecursionError):
            yield decoder.raw_decode(text, list_begin.end() - 1)[0]
    position = 0
    for _ in range(MAX_BEGINNINGS):
        begin = _OBJECT.search(text, position)
        if begin is None:
            return
        position = begin.end()
        with suppress(ValueError, RecursionError):
            value, position = decoder.raw_decode(text, begin.start())
            yield value


def _repaired(text: str) -> Iterator[Any]:
    """Yield what a text means that is JSON but for mistakes, if it is that."""
    begin = _LIST.match(text) or re.search(r"\{", text)
    if begin is None or len(text) > LONGEST_REPAIRED:
        return
    start = begin.end() - 1
    end = text.rfind("}" if text[start] == "{" else "]")
    if end > start:  # what was cut may end within a word
        with suppress(ValueError, RecursionError):
            yield json_repair.loads(text[start : end + 1], skip_json_loads=True)


def _meaning(value: Any, fields: Sequence[str], main: str, depth: int = 0) -> dict[str, Any] | None:
    """Return the object that a value means; None if it means no object."""
    if depth > DEEPEST:
        return None
    if isinstance(value, str):
        quoted = next(_written(value), None)
        return _meaning(quoted, fields, main, depth + 1)
    if isinstance(value, list):
        return _meaning_of_list(value, fields, main)
    if isinstance(value, Mapping):
        return _meaning_of_object(value, fields, main, depth)
    return None


def _meaning_of_list(values: list[Any], fields: Sequence[str], main: str) -> dict[str, Any] | None:
    """Return the one object in a list, or an object with the list as its main member."""
    entry = values[0] if len(values) == 1 else None
    if isinstance(entry, Mapping) and _requested(entry, fields):
        return _with_requested_names(entry, fields)
    return {main: values} if main and values else None


def _meaning_of_object(
    value: Mapping[str, Any], fields: Sequence[str], main: str, depth: int
) -> dict[str, Any] | None:
    """Return an object, or the first one inside it that means something if it is a wrapping.

    A schema that the model repeats means nothing.
    """
    if _is_schema(value):
        return None
    if not fields or _requested(value, fields):
        return _with_requested_names(value, fields)
    for member in value.values():
        meaning = _meaning(member, fields, main, depth + 1)
        if meaning is not None:
            return meaning
    return dict(value)


def _is_schema(value: Mapping[str, Any]) -> bool:
    """Return whether an object is a JSON schema of objects, and no object with its members."""
    properties = value.get("properties")
    if value.get("type") != "object" or not isinstance(properties, Mapping):
        return False
    return all(isinstance(schema, Mapping) and "type" in schema for schema in properties.values())


def _with_requested_names(value: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """Return an object with the members that were asked for under their own names, too."""
    members = {str(name): member for name, member in value.items()}
    return members | _requested(value, fields)


def _requested(value: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """Return the members of an object that were asked for, whatever the case of their names."""
    member_of = {str(key).strip().casefold(): member for key, member in value.items()}
    return {field: member_of[field] for field in fields if field in member_of}


def listed(text: str) -> list[str]:
    """Return the entries of a text that is a plain list of short entries; empty for other texts.

    A sentence with commas is no list: entries have few words and no marks of sentences.
    """
    text = text.strip().strip("`").strip()
    lines = [line for line in text.splitlines() if line.strip()]
    are_bullets = len(lines) > 1 and all(map(BULLET.match, lines))
    parts = re.split(r"[,;\n]", text)
    fewest = FEWEST_ENTRIES
    if are_bullets:
        parts = [BULLET.sub("", line) for line in lines]
        fewest = 2
    entries = [part.strip().strip("\"'“”„«»") for part in parts]
    entries = list(filter(None, entries))
    if len(entries) < fewest or not all(map(_is_entry, entries)):
        return []
    return entries


def _is_entry(text: str) -> bool:
    """Return whether a text has few words and no marks of sentences."""
    return bool(_LIST_ENTRY.fullmatch(text)) and len(text.split()) <= MOST_WORDS
