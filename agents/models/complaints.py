"""What a provider says when it refuses a request, read from whichever shape it says it in.

A server states its reason as ``error.message``, as a text ``error``, in a list ``detail`` with a
``loc``, as a problem document, in JSON inside a text, or as a page in HTML. Everything that decides
by such a reason reads it here.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from fairqr.base.errors import one_line
from fairqr.base.retries import status_of

REASON_KEYS = (
    *("error", "errors", "choices", "message", "msg"),
    *("detail", "details", "description", "reason", "title"),
    *("error_message", "error_description", "errormessage", "metadata", "raw", "innererror"),
    *("fieldviolations", "invalid-params", "invalid_params", "base_resp", "status_msg"),
)
"""The members that hold a reason, or something with a reason inside."""

PLACE_KEYS = ("param", "parameter", "loc", "field", "path", "pointer", "name")
"""The members that name the parameter that a reason is about."""

CODE_KEYS = ("code", "type", "status", "error_type")
"""The members that say of which kind an error is."""

INVENTED_STATUS = "fairqr.invented_status"
"""The extension of a response that is an error, though it came with status 200 and states none."""

NOT_READY = 503
"""The status that we give to an error without one."""

FIRST_ERROR = 400
LAST_ERROR = 599

DEEPEST = 8
"""How deep we look into the body of a response."""

MOST_REASONS = 3
LONGEST_BODY = 100_000

LENGTH_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens", "max_new_tokens")

FEATURES: Mapping[str, tuple[str, ...]] = {
    "temperature": ("temperature",),
    "seed": ("seed", "random_seed"),
    "presence_penalty": ("presence_penalty",),
    "response_format": (
        *("response_format", "json_schema", "response_schema", "structured_output"),
        *("generate_json", "json_validate"),
        *("structured_outputs", "json_object", "json_mode", "guided_json", "grammar"),
    ),
    "stream_options": ("stream_options", "include_usage"),
    "stream": ("stream", "streaming"),
    "logprobs": ("logprobs", "top_logprobs", "log_probs"),
    "max_completion_tokens": LENGTH_LIMITS,
    "max_tokens": LENGTH_LIMITS,
    "system": (
        *("system_message", "system_messages", "system_instruction", "system_instructions"),
        *("system_prompt", "developer_message", "developer_instruction", "role", "roles"),
    ),
}
"""What a request may do that some servers do not know, and the words by which they say so."""

_SECRET = re.compile(r"(?i)\b(?:(?:sk|pk|key)[-_]|bearer\s+)[\w*.-]{4,}")
_SECRET_VARIABLE = re.compile(r"(?i)(?:_|^)(?:key|token|secret|password)$")
_FILTER_CODE = re.compile(r"content_?(filter|policy|inspection)|data_?inspection|responsible_?ai")
_FILTER_WORDS = re.compile(
    r"(?i)\b(content|input|prompt|output)\b.{0,60}"
    r"\b(flagged|moderat\w+|inappropriate|risk|filter(ed)?|(content|usage|management) policy)\b"
)
_CONTEXT = re.compile(
    r"context_(length|limit|size|window)|(prompt|input|request)_((is|was)_)?too_(large|long)"
    r"|too_many_(input_|prompt_)?tokens|(prompt|input)_(length|tokens)_(exceed|is_too)"
)
_NUMBER = re.compile(r"(?<![\w.])\d{2,7}(?![\w.]*\w)")
_SMALL_NUMBER = re.compile(r"(?<![\w.])\d{1,2}(?![\w]|\.\d)")
_OF_THE_PROMPT = re.compile(
    r"(?i)(\d{1,7})\s+(?:tokens?\s+)?(?:input|prompt|in (?:the |your )?(?:messages|prompt|input))"
)
_OF_THE_REPLY = re.compile(
    r"(?i)\d\s+(?:tokens?\s+)?(?:output|completion|(?:in|for) (?:the |your )?(?:completion|output))"
)

UNKNOWN_FEATURE = frozenset({400, 404, 405, 415, 422, 500, 501})
"""The statuses of servers that do not know a parameter. llama.cpp answers 500 to a role."""

MAY_FILTER = frozenset({400, 403, 422, 451, 500})
"""The statuses of requests that a filter refused."""


@dataclass(frozen=True, slots=True)
class Complaint:
    """What a provider said about a request that failed.

    Attributes:
        status: The status of HTTP, or the one that stands in the body of a response with status
            200; None if there is neither.
        reason: The provider's own words, on one line; empty if it gave none. It may quote a key.
        codes: Its codes and types of errors, in lower case.
        places: The parameters that it names as such, with dots between the parts of a path.
    """

    status: int | None = None
    reason: str = ""
    codes: frozenset[str] = frozenset()
    places: tuple[str, ...] = ()

    @property
    def is_about_quota(self) -> bool:
        """Whether a quota is used up, so that waiting does not help."""
        return any("quota" in code or "billing" in code for code in self.codes)

    @property
    def is_about_content(self) -> bool:
        """Whether a filter of the provider refused what the request says."""
        if self.status not in (None, *MAY_FILTER):
            return False
        has_code = any(_FILTER_CODE.search(code) for code in self.codes)
        return has_code or bool(_FILTER_WORDS.search(self.reason))

    @property
    def is_about_context(self) -> bool:
        """Whether a prompt is too long for the model."""
        texts = (self.reason, *self.codes)
        return any(_CONTEXT.search(_snake(text)) for text in texts)

    def without_keys(self, api_key: Any) -> Complaint:
        """Return the complaint without the keys that it may quote; see :func:`without_keys`."""
        places = tuple(without_keys(path, api_key) for path in self.places)
        return replace(self, reason=without_keys(self.reason, api_key), places=places)

    def refused(self, features: Sequence[str]) -> str | None:
        """Return which of the features of a request the server does not know, if it says so.

        A parameter that is named as such counts more than one that the reason mentions.

        Args:
            features: Names of :data:`FEATURES` that the request used.
        """
        if self.is_about_content:
            return None
        features = self._refusable(features)
        named = "_".join(map(_snake, self.places))
        code = "_".join(map(_snake, sorted(self.codes)))
        for text in (named, _snake(self.reason), code):
            feature = _first_mentioned(features, _bounded(text))
            if feature is not None:
                return feature
        if self.counts_prompt_and_reply:
            return next((name for name in features if FEATURES[name] == LENGTH_LIMITS), None)
        return None

    def _refusable(self, features: Sequence[str]) -> list[str]:
        """Return which of some features a server may refuse with this status."""
        if self.status == 403:  # some answer that if a model may not give probabilities
            return [feature for feature in features if feature == "logprobs"]
        if self.status == 500:  # it may tell of a stream that broke
            return [feature for feature in features if feature != "stream"]
        return list(features) if self.status in UNKNOWN_FEATURE else []

    @property
    def counts_prompt_and_reply(self) -> bool:
        """Whether it tells how many tokens both have, which are too many together."""
        return self.prompt_tokens is not None and bool(_OF_THE_REPLY.search(self.reason))

    def lower_limit(self, tokens: int) -> int | None:
        """Return how many tokens a reply may have, if a server finds the limit too large.

        It states the largest limit, or how much prompt and reply may have together and how long the
        prompt was.

        Args:
            tokens: The limit that was asked for.
        """
        numbers = [int(text) for text in _NUMBER.findall(self.reason)]
        prompt = self.prompt_tokens
        if prompt is None:
            limits = [number for number in numbers if number < tokens]
        else:
            limits_of_both = [number for number in numbers if number not in (prompt, tokens)]
            rests = [number - prompt for number in limits_of_both or [tokens]]
            limits = [rest for rest in rests if 0 < rest < tokens]
        return max(limits, default=None)

    def fewer_candidates(self, requested: int) -> int | None:
        """Return how many of the likeliest tokens a server gives, if it finds a number too large.

        Some state it as a number: 5 in "must be between 0 and 5".
        """
        numbers = [int(text) for text in _SMALL_NUMBER.findall(self.reason)]
        return max((number for number in numbers if 1 < number < requested), default=None)

    @property
    def prompt_tokens(self) -> int | None:
        """How many tokens the prompt had, if the reason says so."""
        match = _OF_THE_PROMPT.search(self.reason)
        return int(match[1]) if match else None


class PassingError(Exception):
    """An error that came inside a stream, before its text, and may pass if it is asked again.

    Attributes:
        body: What the server said.
        status_code: The status of HTTP that it states, or that of a server that is not ready.
        has_invented_status: Whether it states none.
    """

    def __init__(self, error: BaseException, complaint: Complaint) -> None:
        super().__init__(str(error))
        self.body = getattr(error, "body", None)
        self.status_code = complaint.status or NOT_READY
        self.has_invented_status = complaint.status is None


def _first_mentioned(features: Sequence[str], text: str) -> str | None:
    """Return the feature that a text mentions first; None if it mentions none of them.

    A server that lists what it knows names what it does not know first.
    """
    position_of = {}
    for feature in features:
        positions = [text.find(_bounded(word)) for word in FEATURES[feature]]
        mentions = [position for position in positions if position >= 0]
        if mentions:
            position_of[feature] = min(mentions)
    return min(position_of, key=position_of.__getitem__, default=None)


def read_complaint(error: BaseException) -> Complaint:
    """Return what a provider said in the error of a client; it may quote a key.

    The body of the response counts, as the client's own text holds only a part of it.
    """
    body = _body_of(error)
    reasons = [*islice(_reasons(body), MOST_REASONS)]
    reason = one_line("; ".join(dict.fromkeys(reasons)), LONGEST_BODY).rstrip(". ")
    return Complaint(_status_of(error, body), reason, _codes_of(error, body), _paths(error, body))


def _codes_of(error: BaseException, body: Any) -> frozenset[str]:
    """Return the codes and types of an error, in lower case."""
    codes = [*_members(body, CODE_KEYS)]
    codes += [getattr(error, "code", None), getattr(error, "type", None)]
    return frozenset(code.lower() for code in codes if isinstance(code, str))


def _paths(error: BaseException, body: Any) -> tuple[str, ...]:
    """Return the parameters that an error names as such."""
    paths = []
    for stated in [*_members(body, PLACE_KEYS), getattr(error, "param", None)]:
        path = ".".join(re.findall(r"\w+", _as_path(stated)))
        if path:
            paths.append(path)
    return tuple(paths)


def _status_of(error: BaseException, body: Any) -> int | None:
    """Return the status of a response, or that in its body if it came with status 200."""
    status = status_of(error)
    is_stated = status is not None and status >= FIRST_ERROR
    if is_stated and not has_invented_status(error):
        return status
    return status_in(body)


def status_in(body: Any) -> int | None:
    """Return the status of HTTP that the body of a response states."""
    for value in _members(body, ("code", "status", "status_code", "http_status")):
        number = _whole_number(value)
        if number is not None and FIRST_ERROR <= number <= LAST_ERROR:
            return number
    return None


def _whole_number(value: Any) -> int | None:
    """Return a whole number, which may be written as text; None for everything else."""
    if isinstance(value, str):
        is_number = value.isascii() and value.isdigit()
        return int(value) if is_number else None
    return value if isinstance(value, int) else None


def is_error(body: Any) -> bool:
    """Return whether a body that came with status 200 tells of an error, and of no completion."""
    if isinstance(body, list) and len(body) == 1:
        body = body[0]
    if not isinstance(body, Mapping):
        return False
    choices = body.get("choices")
    if isinstance(choices, list) and choices:
        return all(map(_is_failed_choice, choices))
    return any(_reasons(body))


def _is_failed_choice(choice: Any) -> bool:
    """Return whether one of several replies is an error."""
    return isinstance(choice, Mapping) and bool(choice.get("error"))


def _body_of(error: BaseException) -> Any:
    """Return the body of a response as data or text; the text of the error if there is none."""
    body = getattr(error, "body", None)
    if body:
        return _decoded(body)
    response = getattr(error, "response", None)
    text = ""
    if response is not None:
        with suppress(Exception):  # it may have been streamed, or be of any library
            text = str(response.text)
    return _decoded(text or str(getattr(error, "message", None) or error))


def _decoded(content: Any) -> Any:
    """Return the data in a text that is JSON, or that quotes JSON; everything else as it is."""
    if isinstance(content, bytes):
        content = content.decode(errors="replace")
    if not isinstance(content, str):
        return content
    text = content[:LONGEST_BODY].strip()
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    begin = re.search(r"[{\[](?=\s*[\"{])", text)
    if begin:
        with suppress(ValueError, RecursionError):
            data, end = json.JSONDecoder().raw_decode(text, begin.start())
            # Words after it belong to a sentence that quotes JSON, such as an example of an input.
            is_at_end = not text[end:].strip(" \n.'\"")
            if is_at_end:
                return data
    return text


def _reasons(content: Any, depth: int = 0) -> Iterator[str]:
    """Yield the sentences in the body of an error, the outermost first."""
    if depth > DEEPEST:
        return
    if isinstance(content, str):
        data = _decoded(content)
        if not isinstance(data, str):
            yield from _reasons(data, depth + 1)
        elif _plain(data):
            yield _plain(data)
    elif isinstance(content, Mapping):
        yield from _reasons_in_object(content, depth)
    elif isinstance(content, Sequence) and not isinstance(content, bytes):
        for part in content:
            yield from _reasons(part, depth + 1)


def _reasons_in_object(content: Mapping[Any, Any], depth: int) -> Iterator[str]:
    """Yield the sentences in an object, each with the parameter that the object is about."""
    value_of = {str(key).lower(): value for key, value in content.items()}
    path = _as_path(content.get("loc"))
    for key in REASON_KEYS:
        if key not in value_of:
            continue
        for reason in _reasons(value_of[key], depth + 1):
            yield f"{path}: {reason}" if path else reason


def _members(content: Any, keys: Sequence[str], depth: int = 0) -> Iterator[Any]:
    """Yield the values of all members with these names, wherever they are."""
    if depth > DEEPEST:
        return
    if isinstance(content, str):
        may_be_json = content.lstrip()[:1] in ("{", "[")
        data = _decoded(content) if may_be_json else content
        if not isinstance(data, str):
            yield from _members(data, keys, depth + 1)
    elif isinstance(content, Mapping):
        for key, value in content.items():
            if key in keys:
                yield value
            yield from _members(value, keys, depth + 1)
    elif isinstance(content, list | tuple):
        for part in content:
            yield from _members(part, keys, depth + 1)


def _as_path(path: Any) -> str:
    """Return the place of a parameter as a text such as ``body.seed``."""
    if isinstance(path, str):
        return path
    if isinstance(path, list | tuple):
        return ".".join(str(part) for part in path if isinstance(part, str | int))
    return ""


def _plain(text: str) -> str:
    """Return a text on one line; of a page in HTML, its title or its words."""
    if text.startswith("<"):
        title = re.search(r"(?is)<title[^>]*>(.*?)</title>", text)
        text = title[1] if title else re.sub(r"(?s)<[^>]*>", " ", text)
    text = re.sub(r"^Error code: \d+( - )?", "", text)
    return " ".join(text.split())


def _snake(text: str) -> str:
    """Return a text as words joined by lines: ``presencePenalty`` is ``presence_penalty``."""
    separated = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text)
    return re.sub(r"[\W_]+", "_", separated).strip("_").lower()


def _bounded(words: str) -> str:
    """Return words with a line on each side, so that only whole words are found in them."""
    return f"_{words}_"


def came_inside_stream(error: BaseException) -> bool:
    """Return whether an error was an event of a stream: it has a body, and no status of HTTP."""
    return status_of(error) is None and bool(getattr(error, "body", None))


def has_invented_status(error: BaseException) -> bool:
    """Return whether an error came with status 200, or inside a stream, and states no other."""
    if isinstance(error, PassingError):
        return error.has_invented_status
    extensions = getattr(getattr(error, "response", None), "extensions", None)
    return isinstance(extensions, dict) and bool(extensions.get(INVENTED_STATUS))


def without_keys(text: str, api_key: Any = None) -> str:
    """Return a text on one line, without the keys that it may quote.

    The texts that are never shown are the given key, and the secrets of the environment.
    """
    if hasattr(api_key, "get_secret_value"):
        api_key = api_key.get_secret_value()
    secrets = [value for name, value in os.environ.items() if _SECRET_VARIABLE.search(name)]
    if isinstance(api_key, str):
        secrets.append(api_key)
    for secret in sorted(map(str.strip, secrets), key=len, reverse=True):
        if len(secret) >= 6:  # a shorter value is a placeholder, and replacing it would harm words
            text = text.replace(secret, "…")
    return one_line(_SECRET.sub("…", text)).rstrip(".")
