"""Explains errors of model clients in sentences that contain no secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from fairqr.agents.models.replies import Status
from fairqr.base.errors import ModelError, one_line
from fairqr.base.retries import is_used_up, status_of

_SECRET = re.compile(r"(?i)\b(?:(?:sk|pk|key)[-_]|bearer\s+)[\w*.-]{4,}")
_BROKEN = frozenset({"ReadError", "RemoteProtocolError", "BrokenStreamError"})
_SECRET_VARIABLE = re.compile(r"(?i)(?:_|^)(?:key|token|secret|password)$")


def no_answer_within(model: str, seconds: float) -> str:
    """Return the sentence about a model that exceeded its time."""
    if seconds <= 0:
        return f"No time was left to ask the model {model}."
    return f"The model {model} did not answer within {seconds:.3g} s."


def no_probabilities(model: str) -> str:
    """Return the sentence about a model that does not give the probabilities of its tokens."""
    return f"The model {model} does not give the probabilities of its tokens."


def translated(
    error: BaseException, model: str, base_url: str | None, api_key: Any, is_given: bool
) -> ModelError:
    """Return our typed error for an error of a client.

    Args:
        error: The error that ended the request for good.
        model: The name of the model, for the message.
        base_url: The address of its server, if not the provider's own.
        api_key: The client's key, a text or a ``SecretStr``; it is never shown.
        is_given: Whether the client is the caller's own.
    """
    code = status_of(error)
    name = type(error).__name__
    kind: Status
    if code in (401, 403):
        kind, what = "refused", f"refused the API key ({code}); check the key of the provider"
    elif code == 429 and is_used_up(error):
        kind, what = "rate_limited", "has no quota left (429); check the plan of the account"
    elif code == 429:
        kind, what = "rate_limited", "gets too many requests (429); try later"
    elif code == 408 or (code is None and "Timeout" in name):
        kind, what = "timeout", "did not answer in time; try later"
    elif code is not None and code >= 500:
        kind, what = "unavailable", f"reported an internal error ({code}); try later"
    elif code is not None and code >= 400:
        kind = "invalid_request"
        what = f"refused the request ({code}: {redacted(error, api_key)})"
    elif name in _BROKEN or ("Connect" in name and _BROKEN & set(_causes(error))):
        kind, what = "unavailable", "broke off the connection; try later"
    elif "Connect" in name:
        where = f" at {_shown(base_url)}" if base_url else ""
        kind, what = "unavailable", f"cannot be reached{where}; check that its server runs"
    elif is_given:
        # We do not show its text, which may contain a secret of the client.
        kind, what = "parse_error", f"failed with {name}; call the chat model itself to see why"
    else:
        kind = "parse_error"
        what = f"did not send a chat completion ({name}); check the base URL and the model"
    return ModelError(kind, f"The model {model} {what}.")


def redacted(error: BaseException, api_key: Any = None) -> str:
    """Return the text of an error on one line, without the keys that it may quote.

    The texts that are never shown are the given key, and the secrets of the environment.
    """
    text = str(getattr(error, "message", None) or error)
    text = re.sub(r"^Error code: \d+ - ", "", text)
    given = api_key.get_secret_value() if hasattr(api_key, "get_secret_value") else api_key
    secrets = [value for name, value in os.environ.items() if _SECRET_VARIABLE.search(name)]
    if isinstance(given, str):
        secrets.append(given)
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= 6:  # a shorter value is a placeholder, and replacing it would harm words
            text = text.replace(secret, "…")
    return one_line(_SECRET.sub("…", text)).rstrip(".")


def _causes(error: BaseException | None) -> Iterator[str]:
    """Yield the names of the errors that led to this one."""
    while error is not None:
        yield type(error).__name__
        error = error.__cause__ or error.__context__


def _shown(url: str) -> str:
    """Return a URL without credentials and parameters."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}{parts.path}"
