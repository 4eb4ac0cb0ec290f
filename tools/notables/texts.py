"""Puts sentences together to one text per person."""

from __future__ import annotations

from notables import sentences
from notables.collection import Collection
from notables.facts import Person
from notables.grammar import sentence
from notables.sentences import BODY, Maker
from notables.sketch import Sketch

MAX_WORDS = 180


def _order(s: Sketch) -> list[Maker]:
    """All makers in a weighted random order: the heavier ones tend to come first."""
    keys = [(s.random.random() ** (1 / weight), maker) for maker, weight in BODY]
    keys.sort(key=lambda pair: pair[0], reverse=True)
    return [maker for _, maker in keys]


def _length(s: Sketch) -> int:
    """The number of words to aim at; there is more to say of those read in many languages."""
    fame = min(40, s.person.languages // 4)
    return int(s.random.triangular(36, 130, 60)) + fame


def write(person: Person, people: Collection) -> str:
    """The text about a person."""
    s = Sketch.of(person, people)
    aim = _length(s)
    lines = [sentence(sentences.opening(s))]
    makers = _order(s)
    if "born in" not in lines[0].lower():
        makers.insert(0, sentences.birth)
    if s.explicit:
        makers.insert(s.random.randrange(4), sentences.gender)
    if s.random.random() < 0.3:
        makers.insert(s.random.randrange(3, 8), sentences.saying)
    makers += [sentences.saying, sentences.words, sentences.craft, sentences.languages]
    for maker in makers:
        count = sum(len(line.split()) for line in lines)
        made = maker(s)
        if not made or count + len(made.split()) > MAX_WORDS:
            continue
        line = sentence(made)
        if line not in lines:
            lines.append(line)
        if count + len(made.split()) >= aim:
            break
    return " ".join(lines)
