"""English analysis for the tantivy index, the same as Elasticsearch's ``english`` analyzer.

Words are split as Unicode's standard tokenizer does, lowercased, freed of stop words, and stemmed.
The stop words are Lucene's default English set. We use the Porter 2 stemmer, Elasticsearch uses
Porter 1; on real text the two give nearly the same rankings.
"""

from __future__ import annotations

import functools

import tantivy

from fairqr.retrieval.texts.words import folded_words

ANALYZER_NAME = "fairqr_english"

# A token is a run of letters, marks, digits and underscores; an apostrophe, full stop or middle dot
# joins letters, a full stop or comma joins digits.
WORD = (
    r"(?:[\p{L}\p{M}_]+|\p{N}+)"
    r"(?:['’.·]\p{L}[\p{L}\p{M}\p{N}_]*|[.,]\p{N}+|[\p{L}\p{M}\p{N}_]+)*"
)
STOP_WORDS = """
a an and are as at be but by for if in into is it no not of on or such
that the their then there these they this to was will with
""".split()  # noqa: SIM905 - a list of 33 quoted words is harder to read


@functools.cache
def english_analyzer() -> tantivy.TextAnalyzer:
    """Return the analyzer, which takes a millisecond to make; register it with each index."""
    return (
        tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.regex(WORD))
        .filter(tantivy.Filter.lowercase())
        .filter(tantivy.Filter.custom_stopword(STOP_WORDS))
        .filter(tantivy.Filter.stemmer("english"))
        .build()
    )


def terms_of(text: str) -> list[str]:
    """Return the stems of a text's words, in order and with repeats; stop words are left out."""
    return [term for word in folded_words(text) if (term := term_of(word))]


@functools.lru_cache(maxsize=1 << 17)
def term_of(word: str) -> str:
    """Return a word's stem, or an empty string for a stop word; cached, since words repeat."""
    return "".join(english_analyzer().analyze(word))
