"""Pairs that need no judge: an answer or a document without a word."""

from __future__ import annotations

from fairqr.agents.attribution.base import Pair, Verdict

__all__ = ["without_words"]


def without_words(pair: Pair) -> Verdict | None:
    """Return the verdict on a pair that has nothing to judge, or None.

    Text without a letter or a digit has no words: nothing follows from it, and it claims nothing.
    """
    if not any(map(str.isalnum, pair.hypothesis)):
        return Verdict("empty_answer", message="The answer has no words.")
    if not any(map(str.isalnum, pair.premise)):
        return Verdict("empty_document", message="The document has no words.")
    return None
