"""Our error for the failure of a model: what its provider said, and what helps."""

from __future__ import annotations

import re
from typing import Any

from fairqr.agents.models.complaints import Complaint, has_invented_status, without_keys
from fairqr.agents.models.replies import Status
from fairqr.base.errors import ModelError, one_line
from fairqr.base.retries import is_used_up
from fairqr.base.secrets import without_secrets

Failure = tuple[Status, str]
"""The kind of a failure, and what the model did, with what helps."""

_KEY_WORDS = re.compile(r"(?i)\b(key|token|credentials?|auth\w*|permissions?|scopes?)\b")

_ACCOUNT_WORDS = re.compile(r"(?i)\b(polic(y|ies)|privacy|settings?|accounts?|allowed|agreement)\b")

_QUOTA_WORDS = re.compile(r"(?i)\b(credits?|credit balance|quota|billing|insufficient balance)\b")

_API_KEY = re.compile(r"(?i)\bapi[ _-]?key")

_NO_MODEL = re.compile(
    r"(?i)\bmodel\b.{0,60}\bnot (exist|found)\b|\b(invalid|unknown|valid|no such) model\b"
)

_VERSION = re.compile(r"/v\d")


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
    reason = one_line(without_keys(complaint.reason, api_key))
    status = complaint.status
    is_from_a_server = status is not None or _is_from_a_server(error)
    failure: Failure
    if complaint.is_about_content and is_from_a_server:
        cause = f"{status}: {reason}" if status else reason
        failure = "refused", f"declined to answer ({cause})"
    elif status is not None:
        is_about_quota = complaint.is_about_quota or is_used_up(error)
        failure = _with_status(status, reason, address, is_about_quota)
    elif reason and is_from_a_server:
        hint = _hint_of(address)
        remedy = f"check the base URL{hint} or try later" if hint else "try later"
        failure = "unavailable", f"reported an error ({reason}); {remedy}"
    else:
        failure = _without_status(type(error).__name__, address, is_given)
    kind, problem = failure
    if kind == "invalid_request":
        problem += _remedy_of_refusal(complaint, settable)
    return ModelError(kind, f"The model {model} {problem}.")


def _is_from_a_server(error: BaseException) -> bool:
    """Return whether a server said what is wrong: in a body, or in the middle of a stream."""
    return has_invented_status(error) or bool(getattr(error, "body", None))


def _with_status(status: int, reason: str, address: str, is_about_quota: bool) -> Failure:
    """Return the kind of a failure, and what the model did, with what helps."""
    cause = f"({status}: {reason})" if reason else f"({status})"
    lacks_quota = status in (400, 403) and _QUOTA_WORDS.search(reason) is not None
    waits_for_quota = status == 429 and is_about_quota
    if status == 402 or lacks_quota or waits_for_quota:
        return "rate_limited", f"has no quota left {cause}; check the plan of the account"
    if status in (400, 422):
        return _with_wrong_request(reason, cause)
    if status in (401, 403):
        return _without_permission(status, reason, cause)
    if status == 429:
        return "rate_limited", f"gets too many requests {cause}; try later"
    if status == 408:
        return "timeout", "did not answer in time; try later"
    if status >= 500:
        return "unavailable", f"reported an error {cause}; try later"
    if status == 404 and _ACCOUNT_WORDS.search(reason):
        return "denied", f"is not open to this account {cause}; check the settings of the account"
    if status in (404, 405):
        return "unavailable", f"was not found {cause}; {_remedy_of_404(reason, address)}"
    return "invalid_request", f"refused the request {cause}"


def _without_permission(status: int, reason: str, cause: str) -> Failure:
    """Return the failure of a request that was not allowed; mostly its key is wrong."""
    is_about_key = status == 401 or not reason or _KEY_WORDS.search(reason)
    if is_about_key:
        return "denied", f"refused the API key {cause}; check the key of the provider"
    return "denied", f"does not allow this request {cause}; ask the provider"


def _with_wrong_request(reason: str, cause: str) -> Failure:
    """Return the failure of a request that is said to be wrong; perhaps its key or model is."""
    if _API_KEY.search(reason):
        return "denied", f"refused the API key {cause}; check the key of the provider"
    if _NO_MODEL.search(reason):
        return "unavailable", f"was not found {cause}; check its name"
    return "invalid_request", f"refused the request {cause}"


def _remedy_of_refusal(complaint: Complaint, settable: str | None) -> str:
    """Return what helps if a request was refused; empty if nothing is known to."""
    if complaint.is_about_context:
        return (
            "; let it read fewer documents, lower input_tokens for answers, or use a model with a "
            "larger window"
        )
    return f"; extra_body can set {settable}" if settable else ""


def _without_status(name: str, address: str, is_given: bool) -> Failure:
    """Return the kind of a failure without a response, by the name of its error."""
    if "Timeout" in name:
        return "timeout", "did not answer in time; try later"
    if "Connect" in name or name in ("ReadError", "RemoteProtocolError"):
        location = f" at {address}" if address else ""
        problem = f"cannot be reached{location}, or broke off the connection"
        return "unavailable", f"{problem}; check that its server runs"
    if is_given:
        # We do not show its text, which may contain a secret of the client.
        return "unavailable", f"failed with {name}; call the chat model itself to see why"
    hint = _hint_of(address)
    return (
        "unavailable",
        f"did not send a chat completion; check the base URL{hint} and the model",
    )


def _remedy_of_404(reason: str, address: str) -> str:
    """Return what helps if a server has no such model, or no such path."""
    if re.search(r"(?i)\b(model|deployment|engine)\b", reason):
        return "check its name"
    return f"check the base URL{_hint_of(address)} and the model's name"


def _hint_of(address: str) -> str:
    """Return what a base URL probably lacks."""
    if address and not _VERSION.search(address):
        return ", which mostly ends in /v1,"
    return ""
