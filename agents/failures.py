"""What an error of a model's client means, in a sentence that holds no secret."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from fairqr.agents.replies import Status
from fairqr.base.errors import ModelError, one_line
from fairqr.base.retries import is_used_up, status_of

__all__ = ["BrokenStreamError", "no_answer_within", "redacted", "translated"]

_SECRET = re.compile(r"(?i)\b(?:(?:sk|pk|key)[-_]|bearer\s+)[\w*.-]{4,}")
_BROKEN = frozenset({"ReadError", "RemoteProtocolError", "BrokenStreamError"})
_SECRET_VARIABLE = re.compile(r"(?i)(?:_|^)(?:key|token|secret|password)$")


class BrokenStreamError(ConnectionError):
    """A stream ended before the model said that it was done."""


def no_answer_within(model: str, seconds: float) -> str:
    """Return the sentence about a model that took longer than it had."""
    if seconds <= 0:
        return f"No time was left to ask the model {model}."
    return f"The model {model} did not answer within {seconds:.3g} s."


def translated(
    error: BaseException,
    model: str,
    *,
    base_url: str | None = None,
    api_key: Any = None,
    is_given: bool = False,
) -> ModelError:
    """Return the typed error that says what an error of the client means.

    Args:
        error: Which ended the request for good.
        model: The name to call the model by.
        base_url: Where its server was looked for, if not at the provider's own address.
        api_key: What was given to the client, a text or a ``SecretStr``; it is not shown.
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
        kind, what = "rate_limited", "is asked too often (429); try later"
    elif code == 408 or (code is None and "Timeout" in name):
        kind, what = "timeout", "did not answer in time; try later"
    elif code is not None and code >= 500:
        kind, what = "unavailable", f"answers with an error of its own ({code}); try later"
    elif code is not None and code >= 400:
        kind = "invalid_request"
        what = f"refused the request ({code}: {redacted(error, api_key)})"
    elif name in _BROKEN or ("Connect" in name and _BROKEN & set(_causes(error))):
        kind, what = "unavailable", "broke off the connection; try later"
    elif "Connect" in name:
        where = f" at {_shown(base_url)}" if base_url else ""
        kind, what = "unavailable", f"cannot be reached{where}; check that its server runs"
    elif is_given:
        # Its text is not shown: it may hold a secret of the client that we do not know of.
        kind, what = "parse_error", f"failed with {name}; call the chat model itself to see why"
    else:
        kind = "parse_error"
        what = f"answered what is no chat completion ({name}); check the base URL and the model"
    return ModelError(kind, f"The model {model} {what}.")


def redacted(error: BaseException, api_key: Any = None) -> str:
    """Return what an error says, on one line and without the keys that it may quote."""
    text = str(getattr(error, "message", None) or error)
    text = re.sub(r"^Error code: \d+ - ", "", text)
    for secret in _secrets(api_key):
        text = text.replace(secret, "…")
    return one_line(_SECRET.sub("…", text)).rstrip(".")


def _secrets(api_key: Any) -> list[str]:
    """Return all that must never be shown: the key that was given, and those around us."""
    given = api_key.get_secret_value() if hasattr(api_key, "get_secret_value") else api_key
    secrets = [value for name, value in os.environ.items() if _SECRET_VARIABLE.search(name)]
    if isinstance(given, str):
        secrets.append(given)
    # A value this short is a placeholder, and would tear words apart.
    return sorted((secret for secret in secrets if len(secret) >= 6), key=len, reverse=True)


def _causes(error: BaseException | None) -> Iterator[str]:
    """Yield the names of the errors that led to this one."""
    while error is not None:
        yield type(error).__name__
        error = error.__cause__ or error.__context__


def _shown(url: str) -> str:
    """Return a URL without the credentials and parameters that it may carry."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}{parts.path}"
