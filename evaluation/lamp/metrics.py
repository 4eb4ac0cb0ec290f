"""How good one answer is: the utilities of LaMP's tasks, and naming a right person.

Each is a :class:`fairqr.evaluation.rag.collection.Utility`, and of several golds the best one
counts. Where LaMP's own evaluation takes a label or a rating only if the answer is nothing but
that, these read it out of a sentence too, in the ways that are stated. For an answer that is a bare
label of the task both agree; a number off the scale of ratings counts here as none.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

from fairqr.base.extras import library
from fairqr.evaluation.rag.collection import Utility
from fairqr.retrieval.texts.words import words_in

LOWEST_RATING = 1.0
HIGHEST_RATING = 5.0

_BRACKETED = re.compile(r"\[\s*([12])\s*\]")
_BARE = re.compile(r"(?<![\w.])[12](?!\w|\.\d)")
# An optional sign, digits, optional decimals; not part of a word or of a longer number.
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?!\w|\.\d)")


def citation_label(answer: str) -> str | None:
    """Return ``[1]`` or ``[2]``, whichever an answer to LaMP-1 names; None if neither or both.

    Bracketed numbers decide where there are any, as in ``Reference [2] is about 1 topic``; else
    bare ones do, as in ``2``, ``(2)`` or ``Reference 2.``
    """
    numbers = set(_BRACKETED.findall(answer)) or set(_BARE.findall(answer))
    return f"[{numbers.pop()}]" if len(numbers) == 1 else None


def tag_label(answer: str, labels: Sequence[str]) -> str | None:
    """Return the one label that an answer names; None if it names none or several.

    Case does not matter, and a label may stand in a sentence or in quotes, as whole words. A label
    within a longer one that is named does not count: ``dark comedy`` does not name ``comedy``.
    """
    by_name = {label.casefold(): label for label in sorted(labels, key=len, reverse=True)}
    pattern = rf"(?<!\w)(?:{'|'.join(map(re.escape, by_name))})(?!\w)"
    text = " ".join(answer.casefold().split())
    names = set(re.findall(pattern, text))
    return by_name[names.pop()] if len(names) == 1 else None


def rating_of(answer: str) -> float | None:
    """Return the rating, in [1, 5], that an answer to LaMP-3 gives; None if it gives none.

    It is the answer's only number, as in ``4``, ``4.0`` or ``4 stars``; with several numbers, or
    one off the scale, there is no rating.
    """
    numbers = _NUMBER.findall(answer)
    if len(numbers) != 1:
        return None
    rating = float(numbers[0])
    return rating if LOWEST_RATING <= rating <= HIGHEST_RATING else None


def accuracy(answer: str, golds: Sequence[str], label_of: Callable[[str], str | None]) -> float:
    """Return 1 if the answer names the label of a gold and no other, else 0.

    Args:
        answer: As it was generated.
        golds: What counts as right.
        label_of: Returns the label that a text names.
    """
    label = label_of(answer)
    return float(label is not None and label in map(label_of, golds))


def four_minus_error(answer: str, golds: Sequence[str]) -> float:
    """Return 4 − |rating − gold|: the absolute error of LaMP-3, turned so that more is better.

    An answer without a rating counts as the worse of 1 and 5, as in LaMP's evaluation.
    """
    rating = rating_of(answer)
    ratings = (LOWEST_RATING, HIGHEST_RATING) if rating is None else (rating,)
    errors = []
    for gold in golds:
        errors.append(max(abs(number - float(gold)) for number in ratings))
    return 4.0 - min(errors)


def rouge(answer: str, golds: Sequence[str], kind: str) -> float:
    """Return the F-measure of ROUGE (Lin 2004), by the library ``rouge_score``.

    Without stemming, as in LaMP's evaluation. The library knows the letters a to z and digits
    alone: an answer in another script scores 0.

    Args:
        answer: As it was generated.
        golds: What counts as right.
        kind: ``rougeL``, the longest common subsequence of words, or ``rouge1``, common words.

    Raises:
        InputError: The library is not installed.
    """
    scorer = _scorer(kind)
    return max(float(scorer.score(gold, answer)[kind].fmeasure) for gold in golds)


@functools.cache
def _scorer(kind: str) -> Any:
    module = library("rouge_score.rouge_scorer", "The measure ROUGE", "lamp")
    return module.RougeScorer([kind], use_stemmer=False)


def names_relevant(answer: str, golds: Sequence[str]) -> float:
    """Return 1 if the answer has the full name of a gold as whole words, else 0.

    Case, accents, white space and punctuation do not matter. A name that is part of a longer name
    counts as named, which matters only where people of one collection are called so.
    """
    text = _words(answer)
    return float(any(len(name) > 2 and name in text for name in map(_words, golds)))


@functools.lru_cache(maxsize=65536)
def _words(text: str) -> str:
    """Return the words of a text in lower case without accents, each between single spaces."""
    whole = unicodedata.normalize("NFKD", text.casefold())
    plain = "".join(character for character in whole if not unicodedata.combining(character))
    return f" {' '.join(words_in(plain))} "


FOUR_MINUS_ERROR = Utility("4 − |error|", four_minus_error, 4.0)
ROUGE_L = Utility("ROUGE-L", functools.partial(rouge, kind="rougeL"))
ROUGE_1 = Utility("ROUGE-1", functools.partial(rouge, kind="rouge1"))
NAMES_RELEVANT = Utility("names a right one", names_relevant)


def _rating_label(answer: str) -> str | None:
    rating = rating_of(answer)
    return None if rating is None else f"{rating:g}"


RATING_ACCURACY = Utility("accuracy", functools.partial(accuracy, label_of=_rating_label))
