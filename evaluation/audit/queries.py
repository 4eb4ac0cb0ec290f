"""The queries of an audit: each text once, with how often it is asked."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AuditQuery"]


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """A query of an audit.

    Attributes:
        id: As judgements name it, or a short hash of the text, which is the same in every file.
        text: What is asked, with single spaces.
        weight: How much it counts: the weights of its lines together, or the number of draws in a
            sample.
        lines: How many lines of the input it stands for.
        asks: How often it was asked, as far as its lines say; at least that often in a sample.
    """

    id: str
    text: str
    weight: float = 1.0
    lines: int = 1
    asks: float = 1.0
