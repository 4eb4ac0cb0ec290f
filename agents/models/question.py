"""Questions to a model, and the forms in which their answers are read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from fairqr.agents.models.replies import Usage, parse_object
from fairqr.prompts.template import PromptTemplate

Messages = list[dict[str, str]]
"""Messages, each with a ``role`` and a ``content``."""

JsonSchema = Mapping[str, Any]

Validate = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Turns a JSON object into the wanted one, or raises ValueError that says what is wrong."""

OnToken = Callable[[str], None]
"""Called with each piece of a text as it is written; it must not raise."""

Wanted = Literal["object", "text", "choice"]
"""The form of a reply: a JSON object, free text, or the probabilities of a few first words."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question to a model.

    Attributes:
        prompt: The template.
        values: The values of its input variables; text from others is fenced.
        schema: The JSON schema of the reply, with bounds on lengths and numbers of items; optional.
        validate: Checks an object; its result is kept.
        temperature: In [0, 2]; defaults to the prompt's own.
        seed: For repeatable sampling, if the provider supports it.
        may_ask_again: Whether to ask once more if the reply is not the wanted object.
        max_tokens: The longest reply; defaults to the prompt's own limit.
    """

    prompt: PromptTemplate
    values: Mapping[str, str]
    schema: JsonSchema | None = None
    validate: Validate = dict
    temperature: float | None = None
    seed: int | None = None
    may_ask_again: bool = True
    max_tokens: int | None = None

    @property
    def reply_tokens(self) -> int:
        """How many tokens a reply may have."""
        return self.max_tokens or self.prompt.defaults.max_tokens

    @property
    def used_temperature(self) -> float:
        """The temperature to ask at."""
        return self.prompt.defaults.temperature if self.temperature is None else self.temperature


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model answered to one request.

    Attributes:
        text: The text as it came.
        declined: Whether the model, or a filter before it, refused to answer.
        usage: What the request cost.
        first_tokens: The likeliest first tokens with their probabilities; None if the server did
            not give them.
    """

    text: str
    declined: bool
    usage: Usage
    first_tokens: list[tuple[str, float]] | None = None


@dataclass(frozen=True, slots=True)
class ObjectForm:
    """A JSON object, checked by the question's ``validate``."""

    question: Question
    wanted: ClassVar[Wanted] = "object"

    @property
    def key(self) -> dict[str, Any]:
        """The form's name and the schema, unsorted: models follow the order of its fields."""
        return {"form": "object", "schema": json.dumps(self.question.schema)}

    def read(self, answer: Answer) -> Mapping[str, Any]:
        """Return the object in an answer; raises ValueError that says what is wrong."""
        return self.question.validate(parse_object(answer.text))

    def check(self, kept: Mapping[str, Any]) -> Mapping[str, Any]:
        """Check a kept object like a new one."""
        return self.question.validate(kept)


@dataclass(frozen=True, slots=True)
class TextForm:
    """``text``: what the model wrote, without white space around it."""

    wanted: ClassVar[Wanted] = "text"

    @property
    def key(self) -> dict[str, Any]:
        """The name of the form."""
        return {"form": "text"}

    def read(self, answer: Answer) -> Mapping[str, Any]:
        """Return the text; an empty text is a reply, too."""
        return {"text": answer.text.strip()}

    def check(self, kept: Mapping[str, Any]) -> Mapping[str, Any]:
        """Check that it is a text; raises KeyError if not."""
        return {"text": str(kept["text"])}


@dataclass(frozen=True, slots=True)
class ChoiceForm:
    """``probabilities`` of the labels, and their total ``mass``.

    Attributes:
        labels: Words that a reply may begin with, distinct regardless of their case.

    Raises:
        ValueError: There are fewer than two labels, or two of them are the same.
    """

    labels: Sequence[str]
    wanted: ClassVar[Wanted] = "choice"

    def __post_init__(self) -> None:
        if len(self.labels) < 2 or len({_plain(label) for label in self.labels}) < len(self.labels):
            raise ValueError("a choice needs at least two labels, all different")

    @property
    def key(self) -> dict[str, Any]:
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


Form = ObjectForm | TextForm | ChoiceForm
"""A form of replies. Every form is read into a JSON object."""


def _plain(token: str) -> str:
    """Return a token in lower case, without the space that tokenizers mark before it."""
    return token.strip(" \t\r\n\u2581\u0120").casefold()
