"""The forms that a reply may have: how each is read from an answer, kept and asked for again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fairqr.agents.answer import Answer
from fairqr.agents.question import Question, Wanted
from fairqr.agents.replies import parse_object

__all__ = ["ChoiceForm", "Form", "ObjectForm", "TextForm"]


class Form(Protocol):
    """A form of replies; what is read is a JSON object in each."""

    @property
    def wanted(self) -> Wanted:
        """What is asked for."""
        ...

    @property
    def may_ask_again(self) -> bool:
        """Whether a reply that cannot be read is complained about, once."""
        ...

    @property
    def key(self) -> Mapping[str, Any]:
        """What tells equal questions in this form from those in another."""
        ...

    def read(self, answer: Answer) -> Mapping[str, Any]:
        """Return the object that an answer holds; raises ValueError with what is wrong."""
        ...

    def check(self, kept: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an object that was kept; raises KeyError, TypeError or ValueError where wrong."""
        ...


@dataclass(frozen=True, slots=True)
class ObjectForm:
    """A JSON object that the question checks."""

    question: Question
    wanted: Wanted = "object"

    @property
    def may_ask_again(self) -> bool:
        """As the question says."""
        return self.question.may_ask_again

    @property
    def key(self) -> Mapping[str, Any]:
        """The name of the form, and the schema; models follow the order of its fields."""
        return {"form": "object", "schema": json.dumps(self.question.schema)}

    def read(self, answer: Answer) -> Mapping[str, Any]:
        """Parse and check."""
        return self.question.validate(parse_object(answer.text))

    def check(self, kept: Mapping[str, Any]) -> Mapping[str, Any]:
        """Check what was kept like a reply."""
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
        """Take the text as it is; an empty one is a reply too."""
        return {"text": answer.text.strip()}

    def check(self, kept: Mapping[str, Any]) -> Mapping[str, Any]:
        """Check that it is a text."""
        return {"text": str(kept["text"])}


@dataclass(frozen=True, slots=True)
class ChoiceForm:
    """``probabilities`` of the labels, and their ``mass`` together.

    Attributes:
        labels: Words that a reply may begin with; no two alike but for their case.
    """

    labels: Sequence[str]
    wanted: Wanted = "choice"
    may_ask_again: bool = False

    def __post_init__(self) -> None:
        if len(self.labels) < 2 or len({_plain(label) for label in self.labels}) < len(self.labels):
            raise ValueError("a choice is between two labels or more, each another word")

    @property
    def key(self) -> Mapping[str, Any]:
        """The labels."""
        return {"form": "choice", "labels": list(self.labels)}

    def read(self, answer: Answer) -> Mapping[str, Any]:
        """Sum the tokens of each label, with a space before them or in another case too."""
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
        """Check that there is a probability for each label."""
        shares = {label: float(kept["probabilities"][label]) for label in self.labels}
        return {"probabilities": shares, "mass": float(kept["mass"])}


def _plain(token: str) -> str:
    """Return a token without the space before it, as tokenizers write it, in lower case."""
    return token.strip(" \t\r\n\u2581\u0120").casefold()
