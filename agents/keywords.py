"""Cleans the keywords that a model proposes."""

from __future__ import annotations

from collections.abc import Iterable

from fairqr.retrieval.texts.words import folded_words, phrase_parts

MAX_KEYWORDS = 8
MAX_CHARACTERS = 40
MAX_WORDS = 4
# How many keywords of a reply we look at.
MAX_CANDIDATES = 1000


def clean_keywords(
    candidates: Iterable[object],
    *,
    known: Iterable[str] = (),
    limit: int = MAX_KEYWORDS,
) -> list[str]:
    """Return at most ``limit`` usable keywords, in their order.

    A keyword has 1 to 4 words and at most 40 characters. Punctuation is dropped. So are words that
    occur in ``known`` or earlier among the keywords, since repeating a word changes its weight but
    not its meaning. ``sci-fi`` repeats ``sci`` and ``fi``. In scripts without spaces a word counts
    as new even if it is a part of a longer run, since many engines do not find it by that run.

    Args:
        candidates: What the model proposed; anything that is not text is dropped.
        known: Texts with the words that are already in the query, in any case.
        limit: How many keywords to keep.
    """
    seen = {part for text in known for part in folded_words(text)}
    kept: list[str] = []
    for position, candidate in enumerate(candidates):
        if position >= MAX_CANDIDATES or len(kept) >= limit:
            break
        if not isinstance(candidate, str) or len(candidate) > MAX_CHARACTERS:
            continue
        words = phrase_parts(candidate)
        if not words or len(words) > MAX_WORDS:
            continue
        new: list[str] = []
        taken: set[str] = set()
        for word in words:
            parts = set(folded_words(word))
            if not parts <= seen | taken:
                new.append(word)
                taken |= parts
        if not any(character.isalpha() for word in new for character in word):
            continue
        kept.append(" ".join(new))
        seen |= taken
    return kept
