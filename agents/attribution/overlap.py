"""Attribution by shared words: a fast baseline without a model."""

from __future__ import annotations

from collections.abc import Sequence

from fairqr.agents.attribution.attributor import AttributorName, Entailment, Pair, without_words
from fairqr.retrieval.texts.words import folded_words

DEFAULT_THRESHOLD = 0.7
"""The share of the answer's content words from which a document counts as used. One of two words is
too few, and so are two of three, since answers are often names."""

_STOP_WORDS = frozenset(
    """a about after all also am an and any are as at be been being both but by can could did do
    does for from had has have he her hers him his how i if in into is it its may me might more most
    must my no nor not of on one or our ours over she should so some such than that the their theirs
    them then there these they this those to too under up us was we were what when where which while
    who whom whose why will with would you your yours""".split()  # noqa: SIM905 - quoted words are harder to read
)


class OverlapAttributor:
    """Judges by the share of the answer's content words that the document contains.

    It works offline, but only sees words. It misses paraphrases, and it is wrong about negations
    and about who did what to whom. A long document contains more words by chance. In languages
    without spaces between words it is almost blind.

    Args:
        name: Its threshold is in (0, 1] and defaults to 0.7.
    """

    def __init__(self, name: AttributorName) -> None:
        self.name = str(name)
        self._threshold = name.threshold or DEFAULT_THRESHOLD
        self.identity = f"overlap threshold={self._threshold:g}"

    async def start(self) -> None:
        """Do nothing; this attributor needs no preparation."""

    async def judge(self, pairs: Sequence[Pair]) -> list[Entailment]:
        """Compare the words of each pair."""
        return [self._verdict(pair) for pair in pairs]

    def _verdict(self, pair: Pair) -> Entailment:
        """Return the verdict on a pair, by the share of the answer's words in the document."""
        empty = without_words(pair)
        if empty:
            return empty
        answer_words = content_words(pair.hypothesis)
        document_words = frozenset(map(_singular, folded_words(pair.premise)))
        score = len(answer_words & document_words) / len(answer_words)
        return Entailment("ok", score >= self._threshold, score)


def content_words(text: str) -> frozenset[str]:
    """Return the words of a text in lower case, without stop words and plural endings.

    A text that consists of stop words keeps them.
    """
    words = folded_words(text)
    content = list(filter(_is_content, words))
    return frozenset(map(_singular, content or words))


def _is_content(word: str) -> bool:
    """Return whether a word is a number, or neither a stop word nor a single letter."""
    return word.isdigit() or (len(word) > 1 and word not in _STOP_WORDS)


def _singular(word: str) -> str:
    """Drop the ending of an English plural; rough, but the same for both texts."""
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    is_plural = word.endswith("s") and word[-2:-1] not in ("s", "u", "i")
    return word[:-1] if len(word) > 3 and is_plural else word
