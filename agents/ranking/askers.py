"""Who a ranking is for, and how that is said to a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from fairqr.prompts.template import fence

__all__ = ["Asker", "before_those_who_ask", "group_of"]

Asker = Literal["neutral", "unprotected", "protected"]
"""For whom a model ranks: nobody in particular, or members of one of the two groups."""

MAX_CHARACTERS = 100


def group_of(asker: str, words: Sequence[str]) -> str:
    """Return the word for those who ask; empty for nobody in particular.

    Args:
        asker: An :data:`Asker`.
        words: What the protected side and the other one are called.
    """
    return {"protected": words[0], "unprotected": words[1]}.get(asker, "")


def before_those_who_ask(group: str) -> str:
    """Return what stands in a prompt before those who ask: the word and a space, or nothing."""
    word = fence(group, MAX_CHARACTERS)
    return f"{word} " if word else ""
