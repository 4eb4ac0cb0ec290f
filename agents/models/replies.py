"""Questions to models, and their replies: typed replies or typed failures, never guesses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass, field
from typing import Any, Literal

from fairqr.agents.models.reading import read_object
from fairqr.prompts.template import PromptTemplate

Status = Literal[
    "ok",
    "empty",  # the model answered with nothing or white space, where a text was wanted
    "parse_error",  # the reply has the wrong form; for JSON, we ask twice
    "refused",  # the provider or the model declined
    "denied",  # the key is wrong
    "rate_limited",  # 429, and waiting was too long or did not help
    "timeout",  # no answer in time
    "unavailable",  # no connection, repeated 5xx, no such model, or what answers is no model
    "invalid_request",  # 400 and the like: asking again cannot help
    "unsupported",  # the provider or the model does not offer what we need
]


@dataclass(frozen=True, slots=True)
class Usage:
    """What asking models cost.

    Attributes:
        model_calls: Requests to models. A request that was retried because the server was not ready
            counts once.
        cached_calls: Requests that the cache answered.
        prompt_tokens: As the provider counts them.
        completion_tokens: As the provider counts them.
        cached_tokens: The tokens that cached replies cost when models were first asked.
        cached_milliseconds: How long models took for these replies.
    """

    model_calls: int = 0
    cached_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cached_milliseconds: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Usage(*(first + second for first, second in pairs))


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one question.

    Attributes:
        status: ``ok``, or why there is no value. A text that was cut at the limit of tokens is
            ``ok``. If a provider gives no probabilities, a choice is ``unsupported``.
        value: A JSON object: the one that was asked for, or a ``text``, or the ``probabilities`` of
            the labels and their total ``mass``. Empty unless ``ok``.
        message: A sentence that says why it failed, without keys; empty if ``ok``.
        usage: What it cost, failed attempts included.
    """

    status: Status
    value: Mapping[str, Any] = field(default_factory=dict)
    message: str = ""
    usage: Usage = Usage()

    @property
    def text(self) -> str:
        """The text without white space around it; empty if there is none."""
        return str(self.value.get("text", ""))

    @property
    def probabilities(self) -> Mapping[str, float]:
        """The probability of each label; they sum to 1. Empty if there are none."""
        probabilities: Mapping[str, float] = self.value.get("probabilities", {})
        return probabilities

    @property
    def mass(self) -> float:
        """The total probability of all labels among all possible replies, in [0, 1].

        A small value means that the model did not understand the question.
        """
        return float(self.value.get("mass", 0.0))


Messages = list[dict[str, str]]
"""Messages, each with a ``role`` and a ``content``."""

Validate = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Turns a JSON object into the wanted one, or raises ValueError that says what is wrong."""

OnToken = Callable[[str], None]
"""Called with each piece of a text as it is written; it must not raise."""

Wanted = Literal["object", "text", "choice"]
"""The form of a reply: a JSON object, free text, or the probabilities of a few first words."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What a model answered to one request.

    Attributes:
        text: The text as it came, without thoughts.
        usage: What the request cost.
        declined: Whether the model, or a filter before it, refused to answer.
        is_cut: Whether it ends at the limit of tokens.
        thought: Whether the model thought aloud before it answered.
        first_tokens: The likeliest first tokens with their probabilities; None if the server did
            not give them.
    """

    text: str
    usage: Usage
    declined: bool = False
    is_cut: bool = False
    thought: bool = False
    first_tokens: list[tuple[str, float]] | None = None

    @property
    def ended_early(self) -> bool:
        """Whether the model reached its limit, or stopped, before it began to answer."""
        return not self.text.strip() and (self.is_cut or self.thought)


@dataclass(frozen=True, slots=True)
class Question:
    """A question to a model.

    Attributes:
        prompt: The template.
        values: The values of its input variables; text from others is fenced.
        schema: The JSON schema of an object, with bounds on lengths and numbers of items; optional.
        validate: Checks an object; its result is kept.
        temperature: In [0, 2]; defaults to the prompt's own.
        seed: For repeatable sampling, if the provider supports it.
        may_ask_again: Whether to ask once more if the reply is not the wanted object.
        max_tokens: The longest reply; defaults to the prompt's own limit.
        wanted: The form of the reply.
        labels: Words that a choice is between, distinct regardless of their case.
        fields: The members by which an object is known, so that others are only wrappings; by
            default those of the schema.
        main: The member of an object that a list alone stands for; by default a list alone is no
            reply.
    """

    prompt: PromptTemplate
    values: Mapping[str, str]
    schema: Mapping[str, Any] | None = None
    validate: Validate = dict
    temperature: float | None = None
    seed: int | None = None
    may_ask_again: bool = True
    max_tokens: int | None = None
    wanted: Wanted = "object"
    labels: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    main: str = ""

    @property
    def reply_tokens(self) -> int:
        """How many tokens a reply may have."""
        return self.max_tokens or self.prompt.defaults.max_tokens

    @property
    def used_temperature(self) -> float:
        """The temperature to ask at."""
        if self.temperature is None:
            return self.prompt.defaults.temperature
        return self.temperature

    @property
    def key(self) -> dict[str, Any]:
        """Everything in the question that can change the reply, as JSON data."""
        form: dict[str, Any] = {"form": self.wanted}
        if self.wanted == "object":
            # As a text, since models follow the order of a schema's fields.
            form["schema"] = json.dumps(self.schema)
        elif self.wanted == "choice":
            form["labels"] = list(self.labels)
        return {
            "prompt": self.prompt.sha256,
            "values": dict(self.values),
            "temperature": self.temperature,
            "seed": self.seed,
            "max_tokens": self.reply_tokens,
            **form,
        }

    def read(self, answer: Completion) -> Mapping[str, Any]:
        """Return the value of a reply, or raise ValueError that says what is wrong with it.

        A label has the probability of all its tokens, in any case and after a space.
        """
        if self.wanted == "object":
            fields = self.fields or tuple((self.schema or {}).get("properties", ()))
            return self.validate(read_object(answer.text, fields, self.main))
        if self.wanted == "text":
            return {"text": answer.text.strip()}
        return self._read_choice(answer.first_tokens or ())

    def _read_choice(self, first_tokens: Iterable[tuple[str, float]]) -> Mapping[str, Any]:
        """Return the probabilities of the labels, given those of first tokens."""
        masses = dict.fromkeys(map(_plain, self.labels), 0.0)
        for token, probability in first_tokens:
            word = _plain(token)
            if word in masses:
                masses[word] += probability
        mass = sum(masses.values())
        if not mass > 0:
            raise ValueError(f"it would begin with none of {', '.join(self.labels)}")
        shares = {label: masses[_plain(label)] / mass for label in self.labels}
        return {"probabilities": shares, "mass": min(1.0, mass)}

    def check(self, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a value that was kept; raises ValueError if an object is wrong by now."""
        if self.wanted == "object":
            return self.validate(value)
        return value


def _plain(token: str) -> str:
    """Return a token in lower case, without the space that tokenizers mark before it."""
    return token.strip(" \t\r\n\u2581\u0120").casefold()


def no_answer_within(model: str, seconds: float, tries: int = 1) -> str:
    """Return the sentence about a model that exceeded its time.

    Args:
        model: Its name.
        seconds: How long each try was given.
        tries: How many there were.
    """
    if seconds <= 0:
        return f"No time was left to ask the model {model}."
    times = f", in {tries} tries" if tries > 1 else ""
    return f"The model {model} did not answer within {seconds:.3g} s{times}."


RECORDED = "recorded"
"""The prefix in the names of models that answer from a file of replies."""


def say_only_refines(model: str) -> str:
    """Return the sentence about a recorded model that is asked for something else."""
    return (
        f"The model {model} has recorded replies, so it only refines queries; name a chat model to "
        "answer, rank or judge, such as openai:gpt-4o or local:smollm2-135m."
    )
