"""Prompts of the tests' own."""

from __future__ import annotations

from typing import Any

from fairqr.prompts.template import PromptTemplate


def a_prompt(content: str, *names: str, **options: Any) -> PromptTemplate:
    """Return a prompt of one message with these placeholders.

    Args:
        content: Of the message.
        names: Of the placeholders.
        more: Other fields.
    """
    fields = {"id": "refine", "version": "v1", "description": "", "input_variables": names}
    messages = [{"role": "user", "content": content}]
    return PromptTemplate.model_validate(fields | {"messages": messages} | options)
