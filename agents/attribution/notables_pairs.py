"""Labelled pairs from the corpus of notable people, whose facts are known.

A pair is the text about a person, and a sentence that says where somebody was born or what they are
known as. Half of the sentences agree with the text. In the others the country, the occupation or
the person is exchanged. They are easy for a reader, but hard for a method that only counts words:
if the text mentions somebody else's occupation, the wrong sentence uses that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from fairqr.agents.attribution.pairs import LabelledPair
from fairqr.base.errors import InputError
from fairqr.retrieval.sources.corpus import BUILT_IN, find_corpus
from fairqr.retrieval.sources.documents import Document

NOTABLES = "notables"
DEFAULT_PAIRS = 200
NAMES_EXCHANGED = 1 / 3
"""The share of false sentences that name another person."""

T = TypeVar("T")

Kind = Literal["country", "occupation"]

# These names also belong to other places.
_AMBIGUOUS = frozenset({"Georgia", "Jersey"})
_WORDS = json.loads((BUILT_IN[NOTABLES] / "vocabulary.json").read_text(encoding="utf-8"))
_PLACES: dict[str, str] = {
    label: name for label, name in _WORDS["country"].items() if label not in _AMBIGUOUS
}
_NOUNS = {noun: {noun, *job["also"]} for noun, job in _WORDS["occupation"].items()}


class _Statement(NamedTuple):
    kind: Kind
    name: str
    value: str


def notables_pairs(number: int = DEFAULT_PAIRS, seed: int = 0) -> list[LabelledPair]:
    """Make pairs, each about another person; the same seed gives the same pairs.

    Args:
        number: How many pairs to make; those at even places are entailed.
        seed: The seed of the random choice.

    Raises:
        InputError: The number is not positive, or the corpus has too few texts.
    """
    if number < 1:
        raise InputError(f"The number of pairs must be at least 1, not {number}.")
    stream = np.random.default_rng(seed)
    documents = list(find_corpus(BUILT_IN[NOTABLES]).documents())
    if number > len(documents):
        raise InputError(
            f"The corpus only has {len(documents):,} texts; ask for fewer than {number:,} pairs."
        )
    names = [document.title for document in documents]
    pairs: list[LabelledPair] = []
    # Most texts state a fact literally, so few are read in vain.
    for person in stream.permutation(len(documents)):
        if len(pairs) == number:
            break
        document = documents[person]
        if not (statements := _stated(document)):
            continue
        entailed = len(pairs) % 2 == 0
        kind, name, value = _one_of(statements, stream)
        if not entailed:
            if stream.random() < NAMES_EXCHANGED:
                name = _other_name(document, names, stream)
            else:
                value = _other_value(document, kind, value, stream)
        sentence = _sentence(name, kind, value)
        pairs.append(LabelledPair(premise=document.text, hypothesis=sentence, entailed=entailed))
    if len(pairs) < number:
        raise InputError(
            f"The corpus only has {len(pairs):,} texts for pairs; ask for fewer than {number:,}."
        )
    return pairs


def _stated(document: Document) -> list[_Statement]:
    """Return the facts about a person that the text states literally."""
    name, text = re.escape(document.title), document.text
    found: list[_Statement] = []
    country, job = document.fields.get("country"), document.fields.get("occupation")
    if isinstance(country, str) and country in _PLACES:
        # Sentences on "people born in …" count compatriots, or are about others.
        born = rf"\b[Bb]orn in (?:(?!people)[^.])*?\b{re.escape(country)}\b"
        his = rf"(?:{name}|\b[SsHh]e\b)"
        if re.search(rf"{his} was {born}|{name}, {born}|{born}[^.]*?, {name} ", text):
            found.append(_Statement("country", document.title, country))
    if isinstance(job, str) and re.search(
        rf"{name}[^.]*? as an? (?:[\w-]+ ){{0,3}}{re.escape(job)}\b", text
    ):
        found.append(_Statement("occupation", document.title, job))
    return found


def _sentence(name: str, kind: Kind, value: str) -> str:
    if kind == "country":
        return f"{name} was born in {_PLACES[value]}."
    return f"{name} is known as {_WORDS['occupation'][value]['with_article']}."


def _other_name(document: Document, names: Sequence[str], stream: np.random.Generator) -> str:
    """Return the name of somebody whom the text does not mention."""
    while (name := _one_of(names, stream)) in document.text:
        pass
    return name


def _other_value(document: Document, kind: Kind, value: str, stream: np.random.Generator) -> str:
    """Return a country that the text does not mention, or an occupation of somebody else in it."""
    text = document.text
    if kind == "country":
        others = [label for label in _PLACES if not _mentions(text, label)]
        return _one_of(others, stream)
    own = _NOUNS[value]
    others = [noun for noun, names in _NOUNS.items() if not _alike(names, own)]
    mentioned = [noun for noun in others if _mentions(text, noun)]
    return _one_of(mentioned or others, stream)


def _one_of(items: Sequence[T], stream: np.random.Generator) -> T:
    return items[int(stream.integers(len(items)))]


def _alike(names: set[str], own: set[str]) -> bool:
    """Return whether two occupations may be the same, such as footballer and athlete."""
    return bool(names & own) or any(a in b or b in a for a in names for b in own)


def _mentions(text: str, words: str) -> bool:
    return re.search(rf"\b{re.escape(words)}\b", text) is not None
