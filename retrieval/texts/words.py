"""The words of a text, in every script.

A word is a run of letters, combining marks and digits. Python's ``re`` does not count marks as
parts of words, so it would cut Hindi or Thai words at their vowels. Joiners inside a word belong to
it, as in Persian. In scripts without spaces between words, such as Thai or Chinese, words compare
by all pairs of neighbouring characters (:func:`segmented`), as in Lucene's ``cjk_bigram``: what is
sought is found inside a longer run, whichever words a reader would see there.

Indexes of ours analyze English as Elasticsearch's ``english`` analyzer does: words are split as
Unicode's standard tokenizer does, lowercased, freed of stop words, and stemmed. The stop words are
tantivy's English set, which is Lucene's. We use the Porter 2 stemmer, Elasticsearch uses Porter 1;
on real text the two give nearly the same rankings.
"""

from __future__ import annotations

import functools
import re
import threading
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

# Loaded when first used: no command needs it for its help.
if TYPE_CHECKING:
    import tantivy

ANALYZER_NAME = "fairqr_english"
"""The name of our analyzer in the schemas of indexes."""

# A token is a run of letters, marks, digits and underscores; an apostrophe, full stop or middle dot
# joins letters, a full stop or comma joins digits.
WORD = (
    r"(?:[\p{L}\p{M}_]+|\p{N}+)"
    r"(?:['’.·]\p{L}[\p{L}\p{M}\p{N}_]*|[.,]\p{N}+|[\p{L}\p{M}\p{N}_]+)*"
)

# The range holds the two zero-width joiners.
_WORD = r"[\p{L}\p{N}](?:[\x{200c}-\x{200d}]*[\p{L}\p{M}\p{N}])*"
_JOINED = rf"{_WORD}(?:['’.-]{_WORD})*"

# Thai to Myanmar, Khmer, radicals, signs of repetition, kana and Bopomofo, and Han in its blocks.
_UNSPACED = re.compile(
    "["
    "\u0e00-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005\u3007\u3040-\u312f\u31a0-\u31bf"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
    "]+"
)

# Radicals, ligatures and forms of letters, and digits and letters of full and half width. Signs
# such as ½, ™ and the full-width comma are not among them: they would join the words beside them.
_LETTER_FORMS = re.compile(
    "[\u2f00-\u2fdf\ufb00-\ufdff\ufe70-\ufefc\uff10-\uff19\uff21-\uff3a\uff41-\uff5a\uff66-\uffdc]+"
)


def sendable(text: str) -> str:
    """Replace each lone surrogate, which JSON can carry and UTF-8 cannot, by ``?``."""
    return text.encode("utf-8", "replace").decode()


@functools.cache
def _analyzer(pattern: str, english: bool, thread: int) -> tantivy.TextAnalyzer:
    """Make an analyzer for one thread, which takes a millisecond; each is kept, with about 0.1 MB.

    tantivy refuses one that another thread is inside of. On Python 3.11 the GIL does not prevent
    that: the list of words is made inside, so garbage may be collected there, and other threads go
    on meanwhile.
    """
    from tantivy import Filter, TextAnalyzerBuilder, Tokenizer

    builder = TextAnalyzerBuilder(Tokenizer.regex(pattern))
    if english:
        builder = builder.filter(Filter.lowercase()).filter(Filter.stopword("english"))
        builder = builder.filter(Filter.stemmer("english"))
    return builder.build()


def _finder(pattern: str) -> tantivy.TextAnalyzer:
    """Return this thread's analyzer that finds a pattern and changes nothing."""
    return _analyzer(pattern, False, threading.get_ident())


def composed(text: str) -> str:
    """Return a text in Unicode's form NFC, where "é" is one character however it was typed.

    Other forms of the same letters, such as ``Ａ`` and ``ﬁ``, become plain ones, as in NFKC.
    """
    plain = _LETTER_FORMS.sub(lambda run: unicodedata.normalize("NFKC", run[0]), text)
    return unicodedata.normalize("NFC", plain)


def words_in(text: str) -> list[str]:
    """Return the words of a text as they are written, in order and with repeats."""
    return _finder(_WORD).analyze(sendable(text))


def folded_words(text: str) -> list[str]:
    """Return the words of a text without case and in one Unicode form, so that they compare.

    This is Unicode's canonical caseless matching. Runs without spaces are in pairs of characters.
    """
    return words_in(segmented(_folded(text)))


def folded_runs(text: str) -> list[str]:
    """Return the folded words of a text, but each run without spaces as one word."""
    return words_in(_folded(text))


def segmented(text: str, *, letters: bool = False) -> str:
    """Return a text with each run of a script without spaces as pairs of its characters.

    A pair is two neighbouring letters with their marks; a letter alone stays alone.

    Args:
        text: The text.
        letters: Whether each letter of a pair stands alone, too, as in what is indexed.
    """
    if text.isascii():
        return text
    return _UNSPACED.sub(lambda run: _in_pairs(run[0], letters=letters), text)


def _in_pairs(run: str, *, letters: bool) -> str:
    """Return a run as pairs with a space around each; signs that are no letters stand apart."""
    words: list[str] = []
    for stretch in _stretches(run):
        pairs = [first + second for first, second in pairwise(stretch)]
        words += pairs or stretch
        if letters and pairs:
            words += stretch
    return f" {' '.join(words)} "


def _stretches(run: str) -> list[list[str]]:
    """Return the letters of a run, each with its marks, cut where a sign is no letter."""
    stretches: list[list[str]] = [[]]
    for character in run:
        kind = unicodedata.category(character)[0]
        if kind == "M" and stretches[-1]:
            stretches[-1][-1] += character
        elif kind in "LM":
            stretches[-1].append(character)
        else:
            stretches += [[character], []]
    return stretches


def _folded(text: str) -> str:
    """Return a text without case and in one Unicode form."""
    return composed(unicodedata.normalize("NFD", text).casefold())


def phrase_parts(text: str) -> list[str]:
    """Return the words of a text, where words such as ``O'Neill`` or ``sci-fi`` stay one."""
    return _finder(_JOINED).analyze(sendable(text))


def holders_of(names: Collection[str], texts: Mapping[str, str]) -> set[str]:
    """Return the ids of the texts that hold one of the names whole: its words one after another.

    Args:
        names: The names, in any case.
        texts: The texts by id.
    """
    return set().union(*holders_by_name(names, texts).values())


def holders_by_name(names: Collection[str], texts: Mapping[str, str]) -> dict[str, set[str]]:
    """Return the ids of the texts that hold each name whole; see :func:`holders_of`."""
    holders: dict[str, set[str]] = {name: set() for name in names}
    words_of_names = {}
    for name in names:
        words = folded_words(name)
        if words:
            words_of_names[name] = words

    for id_, text in texts.items():
        # To cut a text into words takes long, and most texts hold none of the names.
        folded = _folded(text)
        likely_names = [
            name for name, words in words_of_names.items() if all(word in folded for word in words)
        ]
        if not likely_names:
            continue
        line = _in_a_row(folded_words(text))
        for name in likely_names:
            if _in_a_row(words_of_names[name]) in line:
                holders[name].add(id_)
    return holders


def _in_a_row(words: Iterable[str]) -> str:
    """Return words with a space around each."""
    return f" {' '.join(words)} "


def english_analyzer() -> tantivy.TextAnalyzer:
    """Return this thread's analyzer; register it with each index."""
    return _analyzer(WORD, True, threading.get_ident())


def query_terms(text: str) -> list[str]:
    """Return the terms by which an index of ours is searched for a text."""
    return english_analyzer().analyze(segmented(composed(sendable(text))))


def document_terms(text: str) -> list[str]:
    """Return the terms that an index of ours has for a document, in order and with repeats."""
    return english_analyzer().analyze(indexed_text(text))


def indexed_text(text: str) -> str:
    """Return the text of a document as an index of ours reads it."""
    return segmented(composed(sendable(text)), letters=True)


def terms_of(text: str) -> list[str]:
    """Return the stems of a text's words, in order and with repeats; stop words are left out."""
    return [term for term in map(term_of, folded_words(text)) if term]


@functools.lru_cache(maxsize=1 << 17)
def term_of(word: str) -> str:
    """Return a word's stem, or an empty string for a stop word; cached, since words repeat."""
    return "".join(english_analyzer().analyze(word))
