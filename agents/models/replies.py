"""Replies of models: each is a typed reply or a typed failure, never a guess."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from typing import Any, Literal

Status = Literal[
    "ok",
    "parse_error",  # the reply has the wrong form; for JSON, we ask twice
    "refused",  # the provider or the model declined, or the key is wrong
    "rate_limited",  # 429, and waiting was too long or did not help
    "timeout",  # no answer in time
    "unavailable",  # no connection, or repeated 5xx
    "invalid_request",  # 400, 404 and the like: asking again cannot help
    "unsupported",  # the provider or the model does not offer what we need
]

MAX_REPLY_CHARACTERS = 1_000_000
MAX_BEGINNINGS = 1000

_OBJECT = re.compile(r'\{(?=[ \t\r\n]*["}])')


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
        return Usage(*(mine + more for mine, more in pairs))


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one question.

    Attributes:
        status: ``ok``, or why there is no value.
        value: The JSON object; empty unless ``ok``.
        message: A sentence that says why it failed, without keys; empty if ``ok``.
        usage: What it cost, failed attempts included.
    """

    status: Status
    value: Mapping[str, Any] = field(default_factory=dict)
    message: str = ""
    usage: Usage = Usage()


TextStatus = Literal[Status, "empty"]
"""``empty``: the model answered with nothing or white space. For the others, see :data:`Status`."""


@dataclass(frozen=True, slots=True)
class TextReply:
    """A text that a model wrote.

    Attributes:
        status: ``ok``, or why there is no text. A text that was cut at the limit of tokens is
            ``ok``.
        text: The text without white space around it; empty unless ``ok``.
        message: A sentence that says why there is no text, without keys; empty if ``ok``.
        usage: What it cost, failed attempts included.
    """

    status: TextStatus
    text: str = ""
    message: str = ""
    usage: Usage = Usage()


@dataclass(frozen=True, slots=True)
class Choice:
    """The probabilities of a few words that a reply may begin with.

    Attributes:
        status: ``ok``, or why there are no probabilities. With ``unsupported``, the provider gives
            none, and the question must be asked in another way.
        probabilities: The probability of each label; they sum to 1. Empty unless ``ok``.
        mass: The total probability of all labels among all possible replies, in (0, 1]. A small
            value means that the model did not understand the question. 0 unless ``ok``.
        message: A sentence that says why there are none, without keys; empty if ``ok``.
        usage: What it cost, failed attempts included.
    """

    status: Status
    probabilities: Mapping[str, float] = field(default_factory=dict)
    mass: float = 0.0
    message: str = ""
    usage: Usage = Usage()


def parse_object(text: str) -> dict[str, Any]:
    """Return the first JSON object in a reply, which may be inside prose or a code fence.

    Raises:
        ValueError: The reply contains no complete object.
    """
    decoder = json.JSONDecoder()
    text = text[:MAX_REPLY_CHARACTERS]
    effort = 0
    # In a hostile reply, every brace could start a long and useless search.
    for begin in itertools.islice(_OBJECT.finditer(text), MAX_BEGINNINGS):
        try:
            value: dict[str, Any] = decoder.raw_decode(text, begin.start())[0]
            return value
        except RecursionError:
            break
        except json.JSONDecodeError as error:
            effort += error.pos - begin.start()
        except ValueError:  # an integer of thousands of digits
            effort += len(text) - begin.start()
        if effort > MAX_REPLY_CHARACTERS:
            break
    raise ValueError("the reply holds no whole JSON object")
