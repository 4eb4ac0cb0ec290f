"""What a chat model is asked: a prompt, its values, and the JSON object that is wanted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairqr.prompts.template import PromptTemplate

__all__ = ["JsonSchema", "Messages", "Question", "Validate"]

Messages = list[dict[str, str]]
"""Each with a ``role`` and its ``content``."""

JsonSchema = Mapping[str, Any]

Validate = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Turns a JSON object into the wanted one, or raises ValueError with what is wrong."""


@dataclass(frozen=True, slots=True)
class Question:
    """What to ask.

    Attributes:
        prompt: The template.
        values: Its input variables, fenced where somebody else wrote them.
        schema: The JSON schema of the reply, with bounds on lengths and numbers of items.
        validate: Checks a reply; its result is what is kept.
        temperature: In [0, 2]; the prompt's own where None.
        seed: For repeatable sampling, where the provider supports it.
        may_ask_again: Whether to ask once more where the reply is not what was asked for.
    """

    prompt: PromptTemplate
    values: Mapping[str, str]
    schema: JsonSchema
    validate: Validate
    temperature: float | None = None
    seed: int | None = None
    may_ask_again: bool = True
