"""What providers accept: names, addresses, and the parameters of requests in their own form."""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Mapping
from typing import Any

from fairqr.agents.models.question import JsonSchema, Question, Wanted
from fairqr.base.errors import ModelUnavailableError
from fairqr.base.retries import status_of
from fairqr.base.settings import is_web_address, text_of

TOP_TOKENS = 10
"""How many of the likeliest tokens we ask for; OpenAI gives up to 20, others fewer."""

REFUSALS = (400, 404, 422, 501)
"""The statuses of servers that do not know a parameter."""

NEUTRAL_OPTIONS = frozenset(
    {"callbacks", "max_retries", "metadata", "rate_limiter", "tags", "timeout", "verbose"}
)
"""Options of a client that change no reply."""

ADDRESS_ENDINGS = ("_BASE", "_ENDPOINT", "_HOST", "_URL", "_VERSION")
"""The endings of variables that state a server's address or the version of its API."""


def split_name(name: str) -> tuple[str, str]:
    """Return the provider, and the provider's name of the model.

    Raises:
        ModelUnavailableError: One of them is missing.
    """
    provider, _, model = name.partition(":")
    if not (provider and model):
        raise ModelUnavailableError(
            f"The model '{name}' names no provider; write provider:model, such as "
            "openai:gpt-4o or local:smollm2-135m."
        )
    return provider, model


def speaks_openai(provider: str) -> bool:
    """Return whether the provider is used through OpenAI's client."""
    return provider in ("openai", "local", "azure_openai")


def base_url_for(provider: str, given: str | None) -> str | None:
    """Return the given URL, or else the configured one; None means the provider's own.

    Raises:
        ModelUnavailableError: It is not a URL. The message does not show it, since it may contain a
            secret.
    """
    url = given or _configured_url(provider)
    if url is None:
        return None
    if not is_web_address(url):
        raise ModelUnavailableError(
            "The base URL of the model is not a URL; write it like http://127.0.0.1:8000/v1."
        )
    return url


def _configured_url(provider: str) -> str | None:
    """Return the URL of the settings, or else the one that the provider's client would use."""
    if provider != "openai":
        return None
    if configured := text_of("base_url"):
        return configured
    return os.environ.get("OPENAI_API_BASE") or os.environ.get("OPENAI_BASE_URL") or None


def variables_of(provider: str) -> dict[str, str]:
    """Return the environment variables from which a provider's client reads its address.

    They are found by their names, such as ``ANTHROPIC_BASE_URL`` or ``OLLAMA_HOST``. The result is
    empty for providers for which we set the address.
    """
    if provider in ("openai", "local"):
        return {}
    prefixes = tuple(part.removesuffix("AI") or part for part in provider.upper().split("_"))
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(prefixes) and name.endswith(ADDRESS_ENDINGS)
    }


def options_as_data(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a client that can change its replies, as JSON data without API keys.

    An option that is not data, such as an HTTP client, becomes a new random text, because we cannot
    compare two of them.
    """
    return {
        name: _as_data(value)
        for name, value in options.items()
        if name not in NEUTRAL_OPTIONS and not name.endswith("api_key")
    }


def _as_data(value: object) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(name): _as_data(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_data(item) for item in value]
    return uuid.uuid4().hex


def parameters_for(
    provider: str,
    question: Question,
    wanted: Wanted = "object",
    *,
    stream: bool = False,
    without: Collection[str] = (),
) -> dict[str, Any]:
    """Return the parameters of a request, in the form that the provider accepts.

    Args:
        provider: As :func:`split_name` returns it.
        question: What is asked.
        wanted: What kind of reply is wanted.
        stream: Whether the reply should come piece by piece.
        without: The names of parameters that the server is known to refuse.
    """
    defaults = question.prompt.defaults
    temperature = question.temperature
    parameters: dict[str, Any] = {
        "temperature": defaults.temperature if temperature is None else temperature,
        # A choice only needs the first token.
        "max_tokens": 1 if wanted == "choice" else question.reply_tokens,
    }
    if speaks_openai(provider):
        local = provider == "local"
        parameters["presence_penalty"] = defaults.presence_penalty
        # The embedded model always has a seed, so that runs repeat.
        parameters["seed"] = 0 if local and question.seed is None else question.seed
        if wanted == "object" and question.schema is not None:
            # Hosted services refuse bounds on texts; the embedded model needs them.
            schema = question.schema if local else _without_bounds(question.schema)
            parameters["extra_body"] = {"response_format": _response_format(schema)}
        elif wanted != "object" and local:
            # See fairqr.agents.models.local: a reply must not depend on what was asked before.
            parameters["extra_body"] = {"cache_prompt": False}
        if wanted == "choice":
            parameters |= {"logprobs": True, "top_logprobs": TOP_TOKENS}
        if stream:
            parameters["stream_usage"] = True
    return {
        name: value
        for name, value in parameters.items()
        if value is not None and name not in without
    }


def refused_parameter(error: BaseException, parameters: Mapping[str, Any]) -> str | None:
    """Return the unknown parameter, if that is why a server refused the request.

    Args:
        error: The error that ended the request.
        parameters: The parameters of the request.
    """
    status = status_of(error)
    text = str(error)
    # Some servers answer 403 if a model may not give probabilities.
    if "logprobs" in parameters and status in (*REFUSALS, 403) and "logprobs" in text:
        return "logprobs"
    if status not in REFUSALS:
        return None
    if "extra_body" in parameters and ("response_format" in text or "json_schema" in text):
        return "extra_body"
    if "stream_usage" in parameters and "stream_options" in text:
        return "stream_usage"
    for name in ("temperature", "seed", "presence_penalty"):
        if name in parameters and (getattr(error, "param", None) == name or f"'{name}'" in text):
            return name
    return None


def _response_format(schema: JsonSchema) -> dict[str, Any]:
    return {
        "type": "json_schema",
        "json_schema": {"name": "reply", "strict": True, "schema": schema},
    }


def _without_bounds(schema: Any) -> Any:
    """Return a JSON schema without bounds on lengths and sizes."""
    if isinstance(schema, Mapping):
        return {
            key: _without_bounds(value)
            for key, value in schema.items()
            if key not in ("minLength", "maxLength", "minItems", "maxItems")
        }
    return schema
