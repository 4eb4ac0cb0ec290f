"""Labelled pairs from the corpus of notable people, whose facts are known.

A pair is the text on a person, and a sentence on where somebody was born or what somebody is known
as. Half of the sentences are what the text says. In the others the country, the occupation or the
person is exchanged, so that the text does not say them. They are easy for whoever reads, and hard
for whoever only counts words: an occupation is exchanged for one that the text mentions of somebody
else, where it does so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from fairqr.agents.attribution.pairs import LabelledPair
from fairqr.base.errors import InputError
from fairqr.retrieval.corpus import BUILT_IN, find_corpus
from fairqr.retrieval.documents import Document

__all__ = ["DEFAULT_PAIRS", "NOTABLES", "notables_pairs"]

NOTABLES = "notables"
DEFAULT_PAIRS = 200
NAMES_EXCHANGED = 1 / 3
"""The share of the false sentences that are about somebody else."""

T = TypeVar("T")

Kind = Literal["country", "occupation"]

# Their names are also those of other places.
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
    """Make pairs, each from another person; the same seed gives the same ones.

    Args:
        number: How many; those at even places are entailed.
        seed: Of the choice.

    Raises:
        InputError: The number is not positive, or the corpus has too few texts.
    """
    if number < 1:
        raise InputError(f"The number of pairs must be at least 1, not {number}.")
    stream = np.random.default_rng(seed)
    documents = list(find_corpus(BUILT_IN[NOTABLES]).documents())
    if number > len(documents):
        raise InputError(
            f"The corpus has {len(documents):,} texts, which are too few for {number:,} pairs."
        )
    names = [document.title for document in documents]
    pairs: list[LabelledPair] = []
    # Most texts say a fact in so many words, so that few are looked at in vain.
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
        raise InputError(f"The corpus has {len(pairs):,} texts for pairs, not {number:,}.")
    return pairs


def _stated(document: Document) -> list[_Statement]:
    """Return the facts on a person that the text says in so many words."""
    name, text = re.escape(document.title), document.text
    found: list[_Statement] = []
    country, job = document.fields.get("country"), document.fields.get("occupation")
    if isinstance(country, str) and country in _PLACES:
        # "people" are born where compatriots are counted, or it is the birth of others.
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
    """Return the name of somebody of whom the text says nothing."""
    while (name := _one_of(names, stream)) in document.text:
        pass
    return name


def _other_value(document: Document, kind: Kind, value: str, stream: np.random.Generator) -> str:
    """Return a country that the text does not mention, or an occupation that it says of others."""
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
    """Return whether one occupation may be the other, such as a footballer and an athlete."""
    return bool(names & own) or any(a in b or b in a for a in names for b in own)


def _mentions(text: str, words: str) -> bool:
    return re.search(rf"\b{re.escape(words)}\b", text) is not None
