"""The words of a text, stemmed as the embedded index stems them."""

from __future__ import annotations

import functools
import re

import tantivy

from fairqr.retrieval.analysis import english_analyzer

__all__ = ["terms_of"]

_WORD = re.compile(r"[^\W_]+")


def terms_of(text: str) -> list[str]:
    """Return the stems of a text's words, in order and with repeats; stop words are left out."""
    return [term for word in _WORD.findall(text.lower()) if (term := _term(word))]


@functools.lru_cache(maxsize=1 << 17)
def _term(word: str) -> str:
    """Return a word's stem, or nothing for a stop word. Texts repeat their words, so it is kept."""
    return "".join(_analyzer().analyze(word))


@functools.cache
def _analyzer() -> tantivy.TextAnalyzer:
    return english_analyzer()
