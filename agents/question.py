"""What a chat model is asked: a prompt, its values, and what is wanted back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from fairqr.prompts.template import PromptTemplate

__all__ = ["JsonSchema", "Messages", "OnToken", "Question", "Validate", "Wanted"]

Messages = list[dict[str, str]]
"""Each with a ``role`` and its ``content``."""

JsonSchema = Mapping[str, Any]

Validate = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Turns a JSON object into the wanted one, or raises ValueError with what is wrong."""

OnToken = Callable[[str], None]
"""Told each piece of a text as it is written; it must not raise."""

Wanted = Literal["object", "text", "choice"]
"""A JSON object, free text, or the probabilities of a few words to begin with."""


def _as_it_is(value: Mapping[str, Any]) -> Mapping[str, Any]:
    return value


@dataclass(frozen=True, slots=True)
class Question:
    """What to ask.

    Attributes:
        prompt: The template.
        values: Its input variables, fenced where somebody else wrote them.
        schema: The JSON schema of the reply, with bounds on lengths and numbers of items; None
            where any object will do, or where no object is wanted.
        validate: Checks an object; its result is what is kept.
        temperature: In [0, 2]; the prompt's own where None.
        seed: For repeatable sampling, where the provider supports it.
        may_ask_again: Whether to ask once more where a reply is not the object that was asked for.
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
