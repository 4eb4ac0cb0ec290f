"""What providers accept and what their errors mean; no sentence contains a secret."""

from __future__ import annotations

import asyncio
import json
import os
import re
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fairqr.agents.models.local import start_local
from fairqr.agents.models.replies import RECORDED, Question, Status, say_only_refines
from fairqr.base.errors import ModelError, ModelUnavailableError, one_line
from fairqr.base.retries import is_used_up, status_of
from fairqr.base.secrets import without_secrets
from fairqr.base.settings import is_web_address, text_of

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

SPEAK_OPENAI = ("openai", "local", "azure_openai")
"""The providers that are used through OpenAI's client."""

CONVENTIONAL = {
    "azure_ai": "azure.ai.inference",
    "azure_openai": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "bedrock_converse": "aws.bedrock",
    "anthropic_bedrock": "aws.bedrock",
    "google_anthropic_vertex": "gcp.vertex_ai",
    "google_genai": "gcp.gemini",
    "google_vertexai": "gcp.vertex_ai",
    "ibm": "ibm.watsonx.ai",
    "mistralai": "mistral_ai",
    "xai": "x_ai",
}
"""The names of providers in OpenTelemetry's conventions, if LangChain has other ones."""

FIRST_TOKEN = {"max_tokens": 1, "logprobs": True, "top_logprobs": 10}
"""What a choice needs; OpenAI gives up to 20 of the likeliest tokens, others fewer."""

REFUSALS = (400, 404, 422, 501)
"""The statuses of servers that do not know a parameter."""

NEUTRAL_OPTIONS = frozenset(
    {"callbacks", "max_retries", "metadata", "rate_limiter", "tags", "timeout", "verbose"}
)
"""Options of a client that change no reply."""

ADDRESS_ENDINGS = ("_BASE", "_ENDPOINT", "_HOST", "_URL", "_VERSION")
"""The endings of variables that state a server's address or the version of its API."""

# They describe how the body of a response was sent, before it was decoded.
_OF_THE_BODY = ("content-encoding", "content-length", "transfer-encoding")

_SECRET = re.compile(r"(?i)\b(?:(?:sk|pk|key)[-_]|bearer\s+)[\w*.-]{4,}")
_SECRET_VARIABLE = re.compile(r"(?i)(?:_|^)(?:key|token|secret|password)$")

_BOUNDS = ("minLength", "maxLength", "minItems", "maxItems")


def split_name(name: str) -> tuple[str, str]:
    """Return the provider, and the provider's name of the model.

    Raises:
        ModelUnavailableError: One of them is missing, or the name is that of a recorded model.
    """
    provider, _, model = name.partition(":")
    if provider == RECORDED:
        raise ModelUnavailableError(say_only_refines(name))
    if not (provider and model):
        raise ModelUnavailableError(
            f"The model '{name}' names no provider; write provider:model, such as "
            "openai:gpt-4o or local:smollm2-135m."
        )
    return provider, model


def base_url_for(provider: str, given: str | None) -> str | None:
    """Return the given URL, or else the configured one; None means the provider's own.

    Raises:
        ModelUnavailableError: It is not a URL. The message does not show it, since it may contain a
            secret.
    """
    url = given
    if not url and provider == "openai":
        # Otherwise OpenAI's client would take the variables, and we would not know the address.
        variables = os.environ.get("OPENAI_API_BASE") or os.environ.get("OPENAI_BASE_URL")
        url = text_of("base_url") or variables
    if url and not is_web_address(url):
        raise ModelUnavailableError(
            "The base URL of the model is not a URL; write it like http://127.0.0.1:8000/v1."
        )
    return url or None


def described(name: str, base_url: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything about a model that can change its replies, as JSON data without API keys.

    The address of a server may stand in variables that only its client knows; we find them by their
    names, such as ``ANTHROPIC_BASE_URL`` or ``OLLAMA_HOST``. An option that is not data, such as an
    HTTP client, becomes a new random text, because we cannot compare two of them.

    Args:
        name: ``provider:model``.
        base_url: As :func:`base_url_for` returns it.
        options: More for ``init_chat_model``.
    """
    provider, variables = name.partition(":")[0], dict[str, str]()
    if provider not in ("openai", "local"):  # for these, we set the address
        prefixes = tuple(part.removesuffix("AI") or part for part in provider.upper().split("_"))
        variables = {
            key: value
            for key, value in os.environ.items()
            if key.startswith(prefixes) and key.endswith(ADDRESS_ENDINGS)
        }
    known = {
        key: value
        for key, value in options.items()
        if key not in NEUTRAL_OPTIONS and not key.endswith("api_key")
    }
    known = json.loads(json.dumps(known, default=lambda _: uuid.uuid4().hex))
    return {"model": name, "base_url": base_url, "environment": variables, "options": known}


def parameters_for(question: Question) -> dict[str, Any]:
    """Return the parameters of a request that every provider takes."""
    return {"temperature": question.used_temperature, "max_tokens": question.reply_tokens}


def parameters_of_openai(question: Question, is_local: bool, *, streams: bool) -> dict[str, Any]:
    """Return the parameters of a request to a server that speaks OpenAI's language.

    Args:
        question: What is asked.
        is_local: Whether the server is the embedded model.
        streams: Whether the reply should come piece by piece.
    """
    # Otherwise LangChain streams replies when somebody reads LangGraph's stream `messages`.
    parameters = parameters_for(question) | (
        {"stream_usage": True} if streams else {"stream": False}
    )
    parameters["presence_penalty"] = question.prompt.defaults.presence_penalty
    # The embedded model always has a seed, so that runs repeat.
    parameters["seed"] = 0 if is_local and question.seed is None else question.seed
    if question.wanted == "object" and question.schema is not None:
        # Hosted services refuse bounds on texts; the embedded model needs them.
        schema = question.schema if is_local else without_bounds(question.schema)
        strict = {"name": "reply", "strict": True, "schema": schema}
        form = {"type": "json_schema", "json_schema": strict}
        parameters["extra_body"] = {"response_format": form}
    elif question.wanted != "object" and is_local:
        # See fairqr.agents.models.local: a reply must not depend on what was asked before.
        parameters["extra_body"] = {"cache_prompt": False}
    return {key: value for key, value in parameters.items() if value is not None}


def refused_parameter(error: BaseException, parameters: Mapping[str, Any]) -> str | None:
    """Return the unknown parameter, if that is why a server refused the request.

    Args:
        error: The error that ended the request.
        parameters: The parameters of the request.
    """
    status, text = status_of(error), str(error)
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


def without_bounds(schema: Any) -> Any:
    """Return a JSON schema without bounds on lengths and sizes."""
    if not isinstance(schema, Mapping):
        return schema
    return {key: without_bounds(value) for key, value in schema.items() if key not in _BOUNDS}


async def open_client(
    name: str, base_url: str | None, options: Mapping[str, Any], reading: bool
) -> BaseChatModel:
    """Return a new client of LangChain, which does not retry.

    Args:
        name: ``provider:model``.
        base_url: As :func:`base_url_for` returns it.
        options: More for ``init_chat_model``.
        reading: The mode of the embedded model; see :mod:`fairqr.agents.models.local`.

    Raises:
        ModelUnavailableError: An extra, the weights or a key is missing, or the provider does not
            exist.
    """
    provider, model = split_name(name)
    named, chosen = name, {"max_retries": 0, **options}
    if base_url:
        chosen["base_url"] = base_url
        # A user's own server mostly needs no key, but the client does.
        if provider == "openai" and not os.environ.get("OPENAI_API_KEY"):
            chosen.setdefault("api_key", "none")
    if provider == "local":
        server = await start_local(model, reading=reading)
        chosen |= {"base_url": server.base_url, "api_key": server.api_key}
        named = f"openai:{model}"

    def make() -> BaseChatModel:
        from langchain.chat_models import init_chat_model

        if provider in SPEAK_OPENAI:
            # LangChain shares one HTTP client among event loops, which breaks when a loop ends.
            # The embedded model is on loopback, which proxies do not reach.
            chosen["http_async_client"] = _http_client(trust_env=provider != "local")
            # With empty socket options, LangChain ignores proxies and does not warn about them.
            chosen["http_socket_options"] = ()
        client: BaseChatModel = init_chat_model(named, **chosen)
        return client

    try:
        return await asyncio.to_thread(make)
    except Exception as error:
        why = redacted(error, options.get("api_key"))
        raise ModelUnavailableError(f"The model {name} cannot be used: {why}") from None


def _http_client(*, trust_env: bool) -> Any:
    """Return a client that follows no redirects, and removes the key from error responses.

    A redirect could send the documents in a request to a server that nobody configured. And other
    code sees an error response as it came: LangChain's callbacks record it, and so does LangSmith.

    Args:
        trust_env: Whether to use proxies and certificates of the environment.

    Returns:
        An ``AsyncClient`` of httpx, or of the library that the installed ``openai`` uses instead.
    """
    import openai

    base: Any = openai.DefaultAsyncHttpxClient

    class Client(base):  # type: ignore[misc]
        async def send(self, request: Any, **options: Any) -> Any:
            response = await super().send(request, **options)
            key = request.headers.get("api-key") or request.headers.get("authorization") or ""
            key = key.removeprefix("Bearer ").strip()
            if response.status_code < 400 or len(key) < 6:  # a shorter one is a placeholder
                return response
            content = (await response.aread()).replace(key.encode(), "…".encode())
            headers = [
                (name, value.replace(key, "..."))
                for name, value in response.headers.multi_items()
                if name not in _OF_THE_BODY
            ]
            more = {"request": request, "extensions": response.extensions}
            return type(response)(response.status_code, headers=headers, content=content, **more)

    return Client(trust_env=trust_env, follow_redirects=False)


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
        kind, what = "denied", f"refused the API key ({code}); check the key of the provider"
    elif code == 429 and is_used_up(error):
        kind, what = "rate_limited", "has no quota left (429); check the plan of the account"
    elif code == 429:
        kind, what = "rate_limited", "gets too many requests (429); try later"
    elif code == 408 or (code is None and "Timeout" in name):
        kind, what = "timeout", "did not answer in time; try later"
    elif code is not None and code >= 500:
        kind, what = "unavailable", f"reported an internal error ({code}); try later"
    elif code is not None and code >= 400:
        kind = "unavailable" if code == 404 else "invalid_request"
        what = f"refused the request ({code}: {redacted(error, api_key)})"
    elif "Connect" in name or name in ("ReadError", "RemoteProtocolError"):
        kind, where = "unavailable", f" at {without_secrets(base_url)}" if base_url else ""
        what = f"cannot be reached{where}, or broke off the connection; check that its server runs"
    elif is_given:
        # We do not show its text, which may contain a secret of the client.
        kind, what = "unavailable", f"failed with {name}; call the chat model itself to see why"
    else:
        kind = "unavailable"
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
