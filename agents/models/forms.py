"""The forms of replies: how to read each from an answer, and how to check a cached one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fairqr.agents.models.answer import Answer
from fairqr.agents.models.question import Question, Wanted
from fairqr.agents.models.replies import parse_object


class Form(Protocol):
    """A form of replies. Every form is read into a JSON object."""

    @property
    def wanted(self) -> Wanted:
        """The kind of reply to ask for."""
        ...

    @property
    def may_ask_again(self) -> bool:
        """Whether to ask once more, with a complaint, if the reply cannot be read."""
        ...

    @property
    def key(self) -> Mapping[str, Any]:
        """Distinguishes equal questions of different forms in the cache."""
        ...

    def read(self, answer: Answer) -> Mapping[str, Any]:
        """Return the object in an answer; raises ValueError that says what is wrong."""
        ...

    def check(self, kept: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an object from a cache; raises KeyError, TypeError or ValueError if wrong."""
        ...


@dataclass(frozen=True, slots=True)
class ObjectForm:
    """A JSON object, checked by the question's ``validate``."""

    question: Question
    wanted: Wanted = "object"

    @property
    def may_ask_again(self) -> bool:
        """The question's own setting."""
        return self.question.may_ask_again

    @property
    def key(self) -> Mapping[str, Any]:
        """The form's name and the schema, unsorted: models follow the order of its fields."""
        return {"form": "object", "schema": json.dumps(self.question.schema)}

    def read(self, answer: Answer) -> Mapping[str, Any]:
        """Parse and check the answer."""
        return self.question.validate(parse_object(answer.text))

    def check(self, kept: Mapping[str, Any]) -> Mapping[str, Any]:
        """Check the cached object like a reply."""
        return self.question.validate(kept)


@dataclass(frozen=True, slots=True)
class TextForm:
    """``text``: what the model wrote, without white space around it."""

    wanted: Wanted = "text"
    may_ask_again: bool = False

    @property
    def key(self) -> Mapping[str, Any]:
        """The name of the form."""
        return {"form": "text"}

    def read(self, answer: Answer) -> Mapping[str, Any]:
        """Return the text; an empty text is a reply, too."""
        return {"text": answer.text.strip()}

    def check(self, kept: Mapping[str, Any]) -> Mapping[str, Any]:
        """Check that it is a text."""
        return {"text": str(kept["text"])}


@dataclass(frozen=True, slots=True)
class ChoiceForm:
    """``probabilities`` of the labels, and their total ``mass``.

    Attributes:
        labels: Words that a reply may begin with, distinct regardless of their case.
    """

    labels: Sequence[str]
    wanted: Wanted = "choice"
    may_ask_again: bool = False

    def __post_init__(self) -> None:
        if len(self.labels) < 2 or len({_plain(label) for label in self.labels}) < len(self.labels):
            raise ValueError("a choice needs at least two labels, all different")

    @property
    def key(self) -> Mapping[str, Any]:
        """The labels."""
        return {"form": "choice", "labels": list(self.labels)}

    def read(self, answer: Answer) -> Mapping[str, Any]:
        """Sum the tokens of each label, including those in other cases or after a space."""
        masses = dict.fromkeys(map(_plain, self.labels), 0.0)
        for token, probability in answer.first_tokens or ():
            if (word := _plain(token)) in masses:
                masses[word] += probability
        mass = sum(masses.values())
        if not mass > 0:
            raise ValueError(f"it would begin with none of {', '.join(self.labels)}")
        shares = {label: masses[_plain(label)] / mass for label in self.labels}
        return {"probabilities": shares, "mass": min(1.0, mass)}

    def check(self, kept: Mapping[str, Any]) -> Mapping[str, Any]:
        """Check that each label has a probability."""
        shares = {label: float(kept["probabilities"][label]) for label in self.labels}
        return {"probabilities": shares, "mass": float(kept["mass"])}


def _plain(token: str) -> str:
    """Return a token in lower case, without the space that tokenizers mark before it."""
    return token.strip(" \t\r\n\u2581\u0120").casefold()
