"""Makes a text safe to send to a server or to pass to a tokenizer."""

from __future__ import annotations


def sendable(text: str) -> str:
    """Replace each lone surrogate, which JSON can carry and UTF-8 cannot, by ``?``."""
    return text.encode("utf-8", "replace").decode()
