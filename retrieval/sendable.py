"""Makes a text fit to be sent to a server, or to be read by a tokenizer."""

from __future__ import annotations

__all__ = ["sendable"]


def sendable(text: str) -> str:
    """Replace each half of a surrogate pair, which JSON can carry and UTF-8 cannot, by ``?``."""
    return text.encode("utf-8", "replace").decode()
