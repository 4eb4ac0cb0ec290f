"""A prompt: messages with placeholders, read from a YAML file and checked when it is read."""

from __future__ import annotations

import hashlib
import re
import string
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, ValidationError, model_validator

from fairqr.base.errors import PromptError, first_problem
from fairqr.base.yaml_file import parse_yaml

# Anything that a model may read as a tag, and so as the end of the data it was given: not only our
# own tags, but also half a tag or a tag with attributes.
_TAG = re.compile(r"<(?=\s*/?\s*[^\W\d])([^<>]*)(>?)")
# Invisible characters that a model still reads, so that they can hide texts.
_SELECTORS = re.compile(r"[\U000e0100-\U000e01ef]")

LARGEST = 200_000
"""The largest size of a prompt's file, in bytes."""


class PromptReference(BaseModel, frozen=True, extra="forbid"):
    """Identifies the prompt that a result came from."""

    id: str
    version: str
    sha256: str


class Message(BaseModel, frozen=True, extra="forbid"):
    """One message of a prompt; its text may contain placeholders such as ``{query}``."""

    role: Literal["system", "user", "assistant"]
    content: str


class Defaults(BaseModel, frozen=True, extra="forbid"):
    """The model settings that a prompt was written for; the caller's own settings win."""

    temperature: float = Field(0.3, ge=0, le=2)
    max_tokens: int = Field(256, ge=1, le=100_000)
    presence_penalty: float | None = Field(None, ge=-2, le=2)


class PromptTemplate(BaseModel, frozen=True, extra="forbid"):
    """A version of a prompt. A published version never changes; every change is a new version.

    Attributes:
        id: What the prompt is for, e.g. ``refine``.
        version: ``v1``, ``v2``, …
        description: One line for users.
        messages: In the order they are sent.
        item: Optional; how the prompt shows one document, e.g. ``{title}: {text}``. An item that is
            too long is cut at its end.
        joiner: What stands between two items.
        cut: The field of the item that is cut instead of the item's end; optional.
        split: A regular expression; the question is cut in two at the end of its first match, so
            that documents can stand inside it. The messages have its parts as ``head`` and
            ``tail``. Without a match, ``head`` is empty.
        without: The messages if there are no documents; by default the same, with no document.
        source: Who published the words of the prompt; empty for our own.
        input_variables: The names of all placeholders in the messages.
        output: The fields that the reply must have.
        defaults: Settings to call the model with.
        sha256: The hash of the file; every trace and result states it.
    """

    id: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    version: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")
    description: str
    messages: tuple[Message, ...] = Field(min_length=1)
    item: str | None = None
    joiner: str = "\n"
    cut: str | None = None
    split: re.Pattern[str] | None = None
    without: tuple[Message, ...] = ()
    source: str = ""
    input_variables: tuple[str, ...]
    output: tuple[str, ...] = ()
    defaults: Defaults = Defaults()
    sha256: str = ""

    @model_validator(mode="after")
    def _placeholders_are_declared(self) -> PromptTemplate:
        used = _placeholders_in(self.messages)
        if used != set(self.input_variables):
            names = ", ".join(sorted(used))
            raise ValueError(f"input_variables must be [{names}], as in messages")
        if not _placeholders_in(self.without) <= {"question"}:
            raise ValueError("messages without documents may only have the placeholder question")
        if self.cut is not None and self.cut not in self.item_variables:
            raise ValueError(f"the item has no placeholder '{self.cut}' to cut")
        if self.item is not None:
            is_one_line = self.item.splitlines() == [self.item]
            if not _placeholders(self.item) or not is_one_line:
                raise ValueError("an item must be one line with a placeholder")
        return self

    @property
    def name(self) -> str:
        """``id/version``, for messages."""
        return f"{self.id}/{self.version}"

    @property
    def item_variables(self) -> tuple[str, ...]:
        """The sorted names of the placeholders of ``item``; empty without an item."""
        if not self.item:
            return ()
        return tuple(sorted(_placeholders(self.item)))

    @property
    def alone(self) -> PromptTemplate:
        """The prompt that asks without any document."""
        if not self.without:
            return self
        return self.model_copy(update={"messages": self.without, "split": None})

    @property
    def reference(self) -> PromptReference:
        """Identifies this prompt in results and traces."""
        return PromptReference(id=self.id, version=self.version, sha256=self.sha256)

    def render(self, values: Mapping[str, str]) -> list[dict[str, str]]:
        """Return the messages with every placeholder replaced.

        Args:
            values: A text for each input variable. Pass text from users or documents through
                :func:`fence` first.
        """
        if self.split is not None:
            question = values["question"]
            match = self.split.search(question)
            end = match.end() if match else 0
            values = {**values, "head": question[:end], "tail": question[end:]}
        # Only plain names are placeholders, and braces inside the values stay as they are.
        rendered = []
        for message in self.messages:
            content = message.content.format_map(values)
            rendered.append({"role": message.role, "content": content})
        return rendered

    def render_item(self, values: Mapping[str, str]) -> str:
        """Return the item of one document.

        Args:
            values: A text for each of ``item_variables``, passed through :func:`fence`. Further
                texts are ignored.
        """
        return (self.item or "").format_map(values)


def _placeholders_in(messages: Iterable[Message]) -> set[str]:
    """Return the names of all placeholders in messages."""
    names: set[str] = set()
    for message in messages:
        names |= _placeholders(message.content)
    return names


def _placeholders(text: str) -> set[str]:
    """Return the names of all placeholders; anything but a plain name is an error."""
    try:
        parts = list(string.Formatter().parse(text))
    except ValueError as error:
        raise ValueError(f"a brace is not closed or doubled ({error})") from None
    names = set()
    for _, name, spec, conversion in parts:
        if name is None:
            continue
        is_plain = name.isidentifier() and not spec and not conversion
        if not is_plain:
            raise ValueError(f"'{{{name}}}' is not a plain placeholder; double a literal brace")
        names.add(name)
    return names


def fence(text: str, limit: int = 2000) -> str:
    """Return a text from users or documents, made safe between tags such as ``<query>``.

    Tags in the text lose their angle brackets, invisible and control characters are dropped, runs
    of white space become one space, and the text is cut to ``limit`` characters.
    """
    visible = "".join(map(_visible, _SELECTORS.sub("", text)))
    one_line = " ".join(visible.split())
    neutral = _TAG.sub(_without_brackets, one_line)
    if len(neutral) <= limit:
        return neutral
    return neutral[: limit - 1] + "…"


def _without_brackets(tag: re.Match[str]) -> str:
    """Return a tag with other brackets; half a tag has no second one."""
    end = "›" if tag[2] else ""
    return f"‹{tag[1]}{end}"


def _visible(character: str) -> str:
    """Return the character; a space for a control character, nothing for an invisible one."""
    category = unicodedata.category(character)
    if category in ("Cc", "Zl", "Zp"):
        return " "
    # Format characters, such as overrides of the text direction, and half surrogate pairs.
    if category in ("Cf", "Cs"):
        return ""
    return character


def load_template(path: Path) -> PromptTemplate:
    """Read a prompt from a file, whose folder and name are its id and version.

    Raises:
        PromptError: The file is missing, is not YAML, or is not a prompt; the message says what is
            wrong.
    """
    try:
        # A pipe is no file, and reading it would block.
        is_small = path.is_file() and path.stat().st_size <= LARGEST
        content = path.read_bytes() if is_small else b""
    except OSError as error:
        raise PromptError(f"The prompt {path} cannot be read: {error.strerror}.") from None
    if not is_small:
        raise PromptError(
            f"The prompt {path} is not a file of at most {LARGEST:,} bytes; put one there."
        )
    data = parse_yaml(content, path, "prompt", PromptError)
    if isinstance(data, dict):
        # A copy under another name is another prompt, whatever it says of itself.
        data |= {"id": path.parent.name, "version": path.stem}
        data["sha256"] = hashlib.sha256(content).hexdigest()
    try:
        return PromptTemplate.model_validate(data)
    except ValidationError as error:
        location, reason = first_problem(error)
        position = f" at {location}" if location else ""
        raise PromptError(f"The prompt {path} is wrong{position}: {reason}.") from None
