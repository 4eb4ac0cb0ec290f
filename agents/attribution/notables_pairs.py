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
from typing import TypeVar

import numpy as np

from fairqr.agents.attribution.checking import LabelledPair
from fairqr.base.errors import InputError
from fairqr.retrieval.sources.corpus import BUILT_IN, find_corpus
from fairqr.retrieval.sources.documents import Document

T = TypeVar("T")

NAMES_EXCHANGED = 1 / 3
"""The share of false sentences that name another person."""

# These names also belong to other places.
_AMBIGUOUS = frozenset({"Georgia", "Jersey"})
_WORDS = json.loads((BUILT_IN["notables"] / "vocabulary.json").read_text(encoding="utf-8"))
_PLACES: dict[str, str] = {
    label: name for label, name in _WORDS["country"].items() if label not in _AMBIGUOUS
}
_NOUNS = {noun: {noun, *job["also"]} for noun, job in _WORDS["occupation"].items()}


def notables_pairs(number: int = 200, seed: int = 0) -> list[LabelledPair]:
    """Make pairs, each about another person; the same seed gives the same pairs.

    Args:
        number: How many pairs to make, at least 1; those at even places are entailed.
        seed: The seed of the random choice.

    Raises:
        InputError: The corpus has too few texts.
    """
    stream = np.random.default_rng(seed)
    documents = list(find_corpus(BUILT_IN["notables"]).documents())
    names = [document.title for document in documents]
    pairs: list[LabelledPair] = []
    # Most texts state a fact literally, so few are read in vain.
    for document in map(documents.__getitem__, stream.permutation(len(documents)).tolist()):
        if len(pairs) == number:
            break
        if not (statements := _stated(document)):
            continue
        name, is_entailed = document.title, len(pairs) % 2 == 0
        is_place, value = _one_of(statements, stream)
        if not is_entailed and stream.random() < NAMES_EXCHANGED:
            while name in document.text:
                name = _one_of(names, stream)
        elif not is_entailed:
            value = _one_of(_others(document.text, value, is_place=is_place), stream)
        known_as = "" if is_place else _WORDS["occupation"][value]["with_article"]
        said = f"was born in {_PLACES[value]}" if is_place else f"is known as {known_as}"
        pair = {"premise": document.text, "hypothesis": f"{name} {said}.", "entailed": is_entailed}
        pairs.append(LabelledPair.model_validate(pair))
    if len(pairs) < number:
        raise InputError(f"There are only {len(pairs):,} pairs; ask for fewer than {number:,}.")
    return pairs


def _stated(document: Document) -> list[tuple[bool, str]]:
    """Return the facts about a person that the text states literally.

    Each is a country of birth (True) or an occupation (False), and its name.
    """
    name, text = re.escape(document.title), document.text
    found: list[tuple[bool, str]] = []
    country, job = document.fields.get("country"), document.fields.get("occupation")
    if isinstance(country, str) and country in _PLACES:
        # Sentences on "people born in …" count compatriots, or are about others.
        born = rf"\b[Bb]orn in (?:(?!people)[^.])*?\b{re.escape(country)}\b"
        his = rf"(?:{name}|\b[SsHh]e\b)"
        if re.search(rf"{his} was {born}|{name}, {born}|{born}[^.]*?, {name} ", text):
            found.append((True, country))
    if isinstance(job, str) and re.search(
        rf"{name}[^.]*? as an? (?:[\w-]+ ){{0,3}}{re.escape(job)}\b", text
    ):
        found.append((False, job))
    return found


def _others(text: str, value: str, *, is_place: bool) -> list[str]:
    """Return countries that the text does not mention, or occupations of others in it.

    Two occupations may be the same, such as footballer and athlete; if the text mentions no other,
    any counts.
    """
    mentioned = {it for it in (_PLACES if is_place else _NOUNS) if _mentions(text, it)}
    if is_place:
        return [label for label in _PLACES if label not in mentioned]
    own = _NOUNS[value]
    others = [
        noun
        for noun, names in _NOUNS.items()
        if not any(a in b or b in a for a in names for b in own)
    ]
    return [noun for noun in others if noun in mentioned] or others


def _mentions(text: str, words: str) -> bool:
    return re.search(rf"\b{re.escape(words)}\b", text) is not None


def _one_of(items: Sequence[T], stream: np.random.Generator) -> T:
    return items[int(stream.integers(len(items)))]
