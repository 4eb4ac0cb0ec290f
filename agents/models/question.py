"""Questions to a chat model: a prompt, its values, and the wanted form of the reply."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from fairqr.prompts.template import PromptTemplate

Messages = list[dict[str, str]]
"""Messages, each with a ``role`` and a ``content``."""

JsonSchema = Mapping[str, Any]

Validate = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Turns a JSON object into the wanted one, or raises ValueError that says what is wrong."""

OnToken = Callable[[str], None]
"""Called with each piece of a text as it is written; it must not raise."""

Wanted = Literal["object", "text", "choice"]
"""The form of a reply: a JSON object, free text, or the probabilities of a few first words."""


def _as_it_is(value: Mapping[str, Any]) -> Mapping[str, Any]:
    return value


@dataclass(frozen=True, slots=True)
class Question:
    """A question to a model.

    Attributes:
        prompt: The template.
        values: The values of its input variables; text from others is fenced.
        schema: The JSON schema of the reply, with bounds on lengths and numbers of items; optional.
        validate: Checks an object; its result is kept.
        temperature: In [0, 2]; defaults to the prompt's own.
        seed: For repeatable sampling, if the provider supports it.
        may_ask_again: Whether to ask once more if the reply is not the wanted object.
        max_tokens: The longest reply; defaults to the prompt's own limit.
    """

    prompt: PromptTemplate
    values: Mapping[str, str]
    schema: JsonSchema | None = None
    validate: Validate = _as_it_is
    temperature: float | None = None
    seed: int | None = None
    may_ask_again: bool = True
    max_tokens: int | None = None

    @property
    def reply_tokens(self) -> int:
        """How many tokens a reply may have."""
        return self.max_tokens or self.prompt.defaults.max_tokens
