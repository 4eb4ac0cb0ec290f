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

from fairqr.agents.models.replies import Status
from fairqr.base.errors import ModelError, one_line
from fairqr.base.retries import is_used_up, status_of
from fairqr.base.secrets import without_secrets

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

INVENTED_STATUS = "fairqr.invented_status"
"""The extension of a response that is an error, though it came with status 200 and states none."""

NOT_READY = 503
FIRST_ERROR = 400
LAST_ERROR = 599

DEEPEST = 8
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
_KEY_WORDS = re.compile(r"(?i)\b(key|token|credentials?|auth\w*|permissions?|scopes?)\b")
_ACCOUNT_WORDS = re.compile(r"(?i)\b(polic(y|ies)|privacy|settings?|accounts?|allowed|agreement)\b")
_FILTER_CODE = re.compile(r"content_?(filter|policy|inspection)|data_?inspection|responsible_?ai")
_FILTER_WORDS = re.compile(
    r"(?i)\b(content|input|prompt|output)\b.{0,60}"
    r"\b(flagged|moderat\w+|inappropriate|risk|filter(ed)?|(content|usage|management) policy)\b"
)
_QUOTA_WORDS = re.compile(r"(?i)\b(credits?|credit balance|quota|billing|insufficient balance)\b")
_API_KEY = re.compile(r"(?i)\bapi[ _-]?key")
_NO_MODEL = re.compile(
    r"(?i)\bmodel\b.{0,60}\bnot (exist|found)\b|\b(invalid|unknown|valid|no such) model\b"
)
_CONTEXT = re.compile(
    r"context_(length|limit|size|window)|(prompt|input|request)_((is|was)_)?too_(large|long)"
    r"|too_many_(input_|prompt_)?tokens|(prompt|input)_(length|tokens)_(exceed|is_too)"
)
_VERSION = re.compile(r"/v\d")

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
        places = tuple(without_keys(place, api_key) for place in self.places)
        return replace(self, reason=without_keys(self.reason, api_key), places=places)

    def refused(self, features: Sequence[str]) -> str | None:
        """Return which of the features of a request the server does not know, if it says so.

        A parameter that is named as such counts more than one that the reason mentions.

        Args:
            features: Names of :data:`FEATURES` that the request used.
        """
        if self.is_about_content:
            return None
        if self.status == 403:  # some answer that if a model may not give probabilities
            features = [feature for feature in features if feature == "logprobs"]
        elif self.status not in UNKNOWN_FEATURE:
            return None
        if self.status == 500:  # it may tell of a stream that broke
            features = [feature for feature in features if feature != "stream"]
        named = "_".join(map(_snake, self.places))
        code = "_".join(map(_snake, sorted(self.codes)))
        for text in map(_bounded, (named, _snake(self.reason), code)):
            # A server that lists what it knows names what it does not know first.
            places = {feature: _place_of(FEATURES[feature], text) for feature in features}
            told = [feature for feature, place in places.items() if place is not None]
            if told:
                return min(told, key=lambda feature: places[feature] or 0)
        if self.counts_prompt_and_reply:
            return next((it for it in features if FEATURES[it] == LENGTH_LIMITS), None)
        return None

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
        numbers = [int(it) for it in _NUMBER.findall(self.reason)]
        prompt = self.prompt_tokens
        if prompt is None:
            return max((it for it in numbers if it < tokens), default=None)
        others = [it for it in numbers if it not in (prompt, tokens)]
        rest = [it - prompt for it in others or [tokens]]
        return max((it for it in rest if 0 < it < tokens), default=None)

    def fewer_candidates(self, asked: int) -> int | None:
        """Return how many of the likeliest tokens a server gives, if it finds ``asked`` too many.

        Some state it as a number: 5 in "must be between 0 and 5".
        """
        numbers = [int(it) for it in _SMALL_NUMBER.findall(self.reason)]
        return max((it for it in numbers if 1 < it < asked), default=None)

    @property
    def prompt_tokens(self) -> int | None:
        """How many tokens the prompt had, if the reason says so."""
        stated = _OF_THE_PROMPT.search(self.reason)
        return int(stated[1]) if stated else None


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


def _place_of(words: Sequence[str], text: str) -> int | None:
    """Return where the first of some words stands in a text."""
    found = [place for word in words if (place := text.find(_bounded(word))) >= 0]
    return min(found, default=None)


def read_complaint(error: BaseException) -> Complaint:
    """Return what a provider said in the error of a client; it may quote a key.

    The body of the response counts, as the client's own text holds only a part of it.
    """
    body = _body_of(error)
    said = [*islice(_reasons(body), MOST_REASONS)]
    reason = one_line("; ".join(dict.fromkeys(said)), LONGEST_BODY).rstrip(". ")
    codes = {str(code).lower() for code in _members(body, CODE_KEYS) if isinstance(code, str)}
    for name in ("code", "type"):
        if isinstance(code := getattr(error, name, None), str):
            codes.add(code.lower())
    places = [*_members(body, PLACE_KEYS), getattr(error, "param", None)]
    paths = [".".join(re.findall(r"\w+", _as_path(place))) for place in places]
    status = status_of(error)
    is_stated = status is not None and status >= FIRST_ERROR and not _has_invented_status(error)
    if not is_stated:  # an answer with status 200 that is none
        status = status_in(body)
    return Complaint(status, reason, frozenset(codes), tuple(path for path in paths if path))


def status_in(body: Any) -> int | None:
    """Return the status of HTTP that the body of a response states."""
    for value in _members(body, ("code", "status", "status_code", "http_status")):
        is_number = isinstance(value, str) and value.isascii() and value.isdigit()
        number = int(value) if is_number else value
        if isinstance(number, int) and FIRST_ERROR <= number <= LAST_ERROR:
            return number
    return None


def is_error(body: Any) -> bool:
    """Return whether a body that came with status 200 tells of an error, and of no completion."""
    said = body[0] if isinstance(body, list) and len(body) == 1 else body
    if not isinstance(said, Mapping):
        return False
    choices = said.get("choices")
    if isinstance(choices, list) and choices:
        return all(isinstance(it, Mapping) and bool(it.get("error")) for it in choices)
    return next(_reasons(said), "") != ""


def _body_of(error: BaseException) -> Any:
    """Return the body of a response as data or text; the text of the error if there is none."""
    body = getattr(error, "body", None)
    if body:
        return _decoded(body)
    response = getattr(error, "response", None)
    text = ""
    with suppress(Exception):  # it may have been streamed, or be of any library
        text = str(response.text) if response is not None else ""
    return _decoded(text or str(getattr(error, "message", None) or error))


def _decoded(said: Any) -> Any:
    """Return the data in a text that is JSON, or that quotes JSON; everything else as it is."""
    if isinstance(said, bytes):
        said = said.decode(errors="replace")
    if not isinstance(said, str):
        return said
    text = said[:LONGEST_BODY].strip()
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    if begin := re.search(r"[{\[](?=\s*[\"{])", text):
        with suppress(ValueError, RecursionError):
            data, end = json.JSONDecoder().raw_decode(text, begin.start())
            # Words after it belong to a sentence that quotes JSON, such as an example of an input.
            if not text[end:].strip(" \n.'\""):
                return data
    return text


def _reasons(said: Any, depth: int = 0) -> Iterator[str]:
    """Yield the sentences in the body of an error, the outermost first."""
    if depth > DEEPEST:
        return
    if isinstance(said, str):
        data = _decoded(said)
        if isinstance(data, str):
            if text := _plain(data):
                yield text
        else:
            yield from _reasons(data, depth + 1)
    elif isinstance(said, Mapping):
        by_name = {str(key).lower(): value for key, value in said.items()}
        inner = (
            reason
            for key in REASON_KEYS
            if key in by_name
            for reason in _reasons(by_name[key], depth + 1)
        )
        where = _as_path(said.get("loc"))
        yield from (f"{where}: {reason}" if where else reason for reason in inner)
    elif isinstance(said, Sequence) and not isinstance(said, bytes):
        for part in said:
            yield from _reasons(part, depth + 1)


def _members(said: Any, keys: Sequence[str], depth: int = 0) -> Iterator[Any]:
    """Yield the values of all members with these names, wherever they are."""
    if depth > DEEPEST:
        return
    if isinstance(said, str):
        data = _decoded(said) if said.lstrip()[:1] in ("{", "[") else said
        if not isinstance(data, str):
            yield from _members(data, keys, depth + 1)
    elif isinstance(said, Mapping):
        for key, value in said.items():
            if key in keys:
                yield value
            yield from _members(value, keys, depth + 1)
    elif isinstance(said, list | tuple):
        for part in said:
            yield from _members(part, keys, depth + 1)


def _as_path(place: Any) -> str:
    """Return the place of a parameter as a text such as ``body.seed``."""
    if isinstance(place, str):
        return place
    if isinstance(place, list | tuple):
        return ".".join(str(part) for part in place if isinstance(part, str | int))
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
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text)
    return re.sub(r"[\W_]+", "_", apart).strip("_").lower()


def _bounded(words: str) -> str:
    return f"_{words}_"


def translated(
    error: BaseException,
    complaint: Complaint,
    model: str,
    *,
    base_url: str | None,
    api_key: Any,
    is_given: bool,
    settable: str | None = None,
) -> ModelError:
    """Return our typed error for an error of a client: what the provider said, and what helps.

    Args:
        error: The error that ended the request for good.
        complaint: What :func:`read_complaint` reads in it.
        model: The name of the model, for the message.
        base_url: The address of its server, if not the provider's own.
        api_key: The client's key, a text or a ``SecretStr``; it is never shown.
        is_given: Whether the client is the caller's own.
        settable: The parameter that the complaint is about, if the setting ``extra_body`` sets it.
    """
    address = without_secrets(base_url) if base_url else ""
    said = one_line(without_keys(complaint.reason, api_key))
    kind: Status
    told = f"{complaint.status}: {said}" if complaint.status else said
    is_from_a_server = complaint.status is not None or _is_from_a_server(error)
    if complaint.is_about_content and is_from_a_server:
        kind = "refused"
        what = f"declined to answer ({told})"
    elif complaint.status is None and said and is_from_a_server:
        kind = "unavailable"
        hint = _hint_of(address)
        remedy = f"check the base URL{hint} or try later" if hint else "try later"
        what = f"reported an error ({said}); {remedy}"
    elif complaint.status is None:
        kind, what = _without_status(type(error).__name__, address, is_given)
    else:
        is_about_quota = complaint.is_about_quota or is_used_up(error)
        kind, what = _with_status(complaint.status, said, address, is_about_quota)
        if kind == "invalid_request":
            what += _remedy_of_refusal(complaint, settable)
    return ModelError(kind, f"The model {model} {what}.")


def came_inside_stream(error: BaseException) -> bool:
    """Return whether an error was an event of a stream: it has a body, and no status of HTTP."""
    return status_of(error) is None and bool(getattr(error, "body", None))


def _is_from_a_server(error: BaseException) -> bool:
    """Return whether a server said what is wrong: in a body, or in the middle of a stream."""
    return _has_invented_status(error) or bool(getattr(error, "body", None))


def _has_invented_status(error: BaseException) -> bool:
    if isinstance(error, PassingError):
        return error.has_invented_status
    extensions = getattr(getattr(error, "response", None), "extensions", None)
    return isinstance(extensions, dict) and bool(extensions.get(INVENTED_STATUS))


def _with_status(status: int, said: str, address: str, is_about_quota: bool) -> tuple[Status, str]:
    """Return the kind of a failure, and what the model did, with what helps."""
    told = f"({status}: {said})" if said else f"({status})"
    lacks_quota = status in (400, 403) and _QUOTA_WORDS.search(said) is not None
    if status == 402 or lacks_quota or (status == 429 and is_about_quota):
        return "rate_limited", f"has no quota left {told}; check the plan of the account"
    if status in (400, 422):
        return _with_wrong_request(said, told)
    if status in (401, 403):
        is_about_key = status == 401 or not said or _KEY_WORDS.search(said)
        if is_about_key:
            return "denied", f"refused the API key {told}; check the key of the provider"
        return "denied", f"does not allow this request {told}; ask the provider"
    if status == 429:
        return "rate_limited", f"gets too many requests {told}; try later"
    if status == 408:
        return "timeout", "did not answer in time; try later"
    if status >= 500:
        return "unavailable", f"reported an error {told}; try later"
    if status == 404 and _ACCOUNT_WORDS.search(said):
        return "denied", f"is not open to this account {told}; check the settings of the account"
    if status in (404, 405):
        return "unavailable", f"was not found {told}; {_remedy_of_404(said, address)}"
    return "invalid_request", f"refused the request {told}"


def _with_wrong_request(said: str, told: str) -> tuple[Status, str]:
    """Return the same for a request that is said to be wrong; perhaps its key or model is."""
    if _API_KEY.search(said):
        return "denied", f"refused the API key {told}; check the key of the provider"
    if _NO_MODEL.search(said):
        return "unavailable", f"was not found {told}; check its name"
    return "invalid_request", f"refused the request {told}"


def _remedy_of_refusal(complaint: Complaint, settable: str | None) -> str:
    """Return what helps if a request was refused; empty if nothing is known to."""
    if complaint.is_about_context:
        return (
            "; let it read fewer documents, lower input_tokens for answers, or use a model with a "
            "larger window"
        )
    return f"; extra_body can set {settable}" if settable else ""


def _without_status(name: str, address: str, is_given: bool) -> tuple[Status, str]:
    """Return the kind of a failure without a response, by the name of its error."""
    if "Timeout" in name:
        return "timeout", "did not answer in time; try later"
    if "Connect" in name or name in ("ReadError", "RemoteProtocolError"):
        where = f" at {address}" if address else ""
        return (
            "unavailable",
            f"cannot be reached{where}, or broke off the connection; check that its server runs",
        )
    if is_given:
        # We do not show its text, which may contain a secret of the client.
        return "unavailable", f"failed with {name}; call the chat model itself to see why"
    hint = _hint_of(address)
    return (
        "unavailable",
        f"did not send a chat completion; check the base URL{hint} and the model",
    )


def _remedy_of_404(said: str, address: str) -> str:
    """Return what helps if a server has no such model, or no such path."""
    if re.search(r"(?i)\b(model|deployment|engine)\b", said):
        return "check its name"
    return f"check the base URL{_hint_of(address)} and the model's name"


def _hint_of(address: str) -> str:
    """Return what a base URL probably lacks."""
    return ", which mostly ends in /v1," if address and not _VERSION.search(address) else ""


def without_keys(text: str, api_key: Any = None) -> str:
    """Return a text on one line, without the keys that it may quote.

    The texts that are never shown are the given key, and the secrets of the environment.
    """
    given = api_key.get_secret_value() if hasattr(api_key, "get_secret_value") else api_key
    secrets = [value for name, value in os.environ.items() if _SECRET_VARIABLE.search(name)]
    if isinstance(given, str):
        secrets.append(given)
    for secret in sorted(map(str.strip, secrets), key=len, reverse=True):
        if len(secret) >= 6:  # a shorter value is a placeholder, and replacing it would harm words
            text = text.replace(secret, "…")
    return one_line(_SECRET.sub("…", text)).rstrip(".")
