"""What providers accept, and their clients."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from fairqr.agents.models.complaints import (
    INVENTED_STATUS,
    NOT_READY,
    is_error,
    status_in,
    without_keys,
)
from fairqr.agents.models.demands import Demand, merged
from fairqr.agents.models.local import start_local
from fairqr.agents.models.plain_text import StreamEnd, plain_events, plain_reply
from fairqr.agents.models.replies import RECORDED, Messages, Question, say_only_refines
from fairqr.base.errors import ModelUnavailableError, nearest_names, one_line
from fairqr.base.settings import is_web_address, text_of
from fairqr.base.weights import WEIGHTS

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

SPEAK_OPENAI = ("openai", "local", "azure_openai")
"""The providers that are used through OpenAI's client."""

PROVIDERS = (
    *SPEAK_OPENAI,
    "anthropic",
    "bedrock",
    "causal",
    "cohere",
    "deepseek",
    "google_genai",
    "google_vertexai",
    "groq",
    "huggingface",
    "mistralai",
    "ollama",
    "openrouter",
    "recorded",
    "seq2seq",
    "together",
    "xai",
)
"""Providers that a misspelt one may mean; LangChain knows more."""

EMBEDDED = [weights.full_name for weights in WEIGHTS.values() if weights.kind == "language model"]

WITHOUT_PROVIDER = frozenset(["feedback", *EMBEDDED])
"""Names that one without a provider may mean."""

ADVICE = "write provider:model, such as openai:gpt-4o or local:smollm2-135m."

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

MOST_CANDIDATES = 10
"""How many of the likeliest tokens a choice asks for; OpenAI gives up to 20, others fewer."""

LIMITS = ("max_completion_tokens", "max_tokens")
"""The features of a request that bound its reply."""

ROUTE = "/chat/completions"
"""The path that OpenAI's client adds to an address."""

OK = 200

NEUTRAL_OPTIONS = frozenset(
    {"callbacks", "max_retries", "metadata", "rate_limiter", "tags", "timeout", "verbose"}
)
"""Options of a client that change no reply."""

ADDRESS_ENDINGS = ("_BASE", "_ENDPOINT", "_HOST", "_URL", "_VERSION")
"""The endings of variables that state a server's address or the version of its API."""

# They describe how the body of a response was sent, before it was decoded.
_OF_THE_BODY = ("content-encoding", "content-length", "transfer-encoding")

_BOUNDS = ("minLength", "maxLength", "minItems", "maxItems")


_stream_end: ContextVar[StreamEnd | None] = ContextVar("fairqr_stream_end", default=None)


@contextmanager
def noting_stream_end() -> Iterator[StreamEnd]:
    """Return where our HTTP client notes how the stream that is read inside ends."""
    end = StreamEnd()
    token = _stream_end.set(end)
    try:
        yield end
    finally:
        _stream_end.reset(token)


def split_name(name: str) -> tuple[str, str]:
    """Return the provider, and the provider's name of the model.

    Raises:
        ModelUnavailableError: One of them is missing, or the name is that of a recorded model.
    """
    provider, _, model = name.partition(":")
    if provider == RECORDED:
        raise ModelUnavailableError(say_only_refines(name))
    if not (provider and model):
        hint = nearest_names(name, WITHOUT_PROVIDER - {name})
        raise ModelUnavailableError(f"The model '{name}' names no provider; {hint or ADVICE}")
    return provider, model


def _say_unknown_provider(name: str) -> str:
    """Return a sentence about a model whose provider nobody knows."""
    provider, _ = split_name(name)
    hint = nearest_names(provider, PROVIDERS)
    return f"The model {name} cannot be used: nobody knows this provider; {hint or ADVICE}"


def base_url_for(provider: str, url: str | None) -> str | None:
    """Return the given URL, or else the configured one; None means the provider's own.

    Raises:
        ModelUnavailableError: It is not a URL. The message does not show it, since it may contain a
            secret.
    """
    if not url and provider == "openai":
        # Otherwise OpenAI's client would take the variables, and we would not know the address.
        variables = os.environ.get("OPENAI_API_BASE") or os.environ.get("OPENAI_BASE_URL")
        url = text_of("base_url") or variables
    if not url:
        return None
    if not is_web_address(url):
        raise ModelUnavailableError(
            "The base URL of the model is not a URL; write it like http://127.0.0.1:8000/v1."
        )
    if "?" in url and provider not in SPEAK_OPENAI:
        raise ModelUnavailableError(
            f"The base URL of the model has a query, which {provider} cannot use; leave it out."
        )
    return _without_route(url.strip())


def _without_route(url: str) -> str:
    """Return an address without the path of chat completions, which the client adds itself."""
    address, mark, query = url.partition("?")
    address_alone = address.rstrip("/")
    if not address_alone.endswith(ROUTE):
        return url
    return f"{address_alone.removesuffix(ROUTE)}{mark}{query}"


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
    relevant = {}
    for option, value in options.items():
        if option not in NEUTRAL_OPTIONS and not option.endswith("api_key"):
            relevant[option] = value
    return {
        "model": name,
        "base_url": base_url,
        "environment": _addresses_in_environment(name.partition(":")[0]),
        "options": json.loads(json.dumps(relevant, default=lambda _: uuid.uuid4().hex)),
    }


def _addresses_in_environment(provider: str) -> dict[str, str]:
    """Return the variables that may say where the server of a provider is."""
    if provider in ("openai", "local"):  # for these, we set the address
        return {}
    prefixes = tuple(part.removesuffix("AI") or part for part in provider.upper().split("_"))
    return {
        variable: value
        for variable, value in os.environ.items()
        if variable.startswith(prefixes) and variable.endswith(ADDRESS_ENDINGS)
    }


def parameters_for(question: Question, tokens: int, left_out: Collection[str]) -> dict[str, Any]:
    """Return the parameters of a request that every provider takes.

    Args:
        question: What is asked.
        tokens: How many tokens the reply may have.
        left_out: The features that the server does not know; see
            :data:`fairqr.agents.models.complaints.FEATURES`.
    """
    parameters: dict[str, Any] = {}
    if "temperature" not in left_out:
        parameters["temperature"] = question.used_temperature
    if "max_completion_tokens" not in left_out:
        parameters["max_tokens"] = tokens
    return parameters


def parameters_of_openai(
    question: Question,
    tokens: int,
    left_out: Collection[str],
    *,
    candidates: int,
    is_local: bool,
    streams: bool,
) -> dict[str, Any]:
    """Return the parameters of a request to a server that speaks OpenAI's language.

    Args:
        question: What is asked.
        tokens: How many tokens the reply may have.
        left_out: As for :func:`parameters_for`.
        candidates: How many of the likeliest first tokens a choice asks for.
        is_local: Whether the server is the embedded model.
        streams: Whether the reply should come piece by piece.
    """
    parameters = parameters_for(question, tokens, left_out)
    # Without it, LangChain streams replies when somebody reads LangGraph's stream `messages`.
    parameters["stream"] = streams
    if streams and "stream_options" not in left_out:
        parameters["stream_usage"] = True
    if "presence_penalty" not in left_out:
        parameters["presence_penalty"] = question.prompt.defaults.presence_penalty
    if "seed" not in left_out:
        # The embedded model always has a seed, so that runs repeat.
        parameters["seed"] = 0 if is_local and question.seed is None else question.seed
    if question.wanted == "choice":
        parameters |= {"logprobs": True, "top_logprobs": candidates}
    extra_body = _extra_body(question, tokens, left_out, is_local=is_local)
    if extra_body:
        parameters["extra_body"] = extra_body
    return {name: value for name, value in parameters.items() if value is not None}


def _extra_body(
    question: Question, tokens: int, left_out: Collection[str], *, is_local: bool
) -> dict[str, Any]:
    """Return the members of a request that LangChain's client has no parameter for."""
    members: dict[str, Any] = {}
    if "max_completion_tokens" in left_out and "max_tokens" not in left_out:
        # LangChain gives the limit its newer name, which the server does not know.
        members["max_tokens"] = tokens
    if question.wanted != "object":
        if is_local:
            # See fairqr.agents.models.local: a reply must not depend on what was asked before.
            members["cache_prompt"] = False
    elif question.schema and "response_format" not in left_out:
        # Hosted services refuse bounds on texts; the embedded model needs them.
        schema = question.schema if is_local else without_bounds(question.schema)
        strict = {"name": "reply", "strict": True, "schema": schema}
        members["response_format"] = {"type": "json_schema", "json_schema": strict}
    return members


def features_of(parameters: Mapping[str, Any], messages: Messages) -> list[str]:
    """Return what a request does that some servers do not know, as names of ``FEATURES``."""
    extra = parameters.get("extra_body", {})
    used = {
        "temperature": "temperature" in parameters,
        "seed": "seed" in parameters,
        "presence_penalty": "presence_penalty" in parameters,
        "response_format": "response_format" in extra,
        "stream_options": "stream_usage" in parameters,
        "stream": parameters.get("stream", False),
        "logprobs": "logprobs" in parameters,
        "max_completion_tokens": "max_tokens" in parameters,
        "max_tokens": "max_tokens" in extra,
        "system": any(message["role"] == "system" for message in messages),
    }
    return [feature for feature, is_used in used.items() if is_used]


def without_settings_of(client: BaseChatModel, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a request, but those that a client's own settings state."""
    stated = members_set_by(client)
    if stated.keys() & LIMITS:
        stated |= dict.fromkeys(LIMITS)
    if "stream_options" in stated:
        stated["stream_usage"] = None
    others = _without(stated, parameters)
    extra_body = others.pop("extra_body", None)
    if extra_body:
        others["extra_body"] = _without(stated, extra_body)
    return others


def _without(names: Collection[str], members: Mapping[str, Any]) -> dict[str, Any]:
    """Return members without those of some names."""
    return {name: value for name, value in members.items() if name not in names}


def with_members(
    client: BaseChatModel, parameters: Mapping[str, Any], demands: Iterable[Demand]
) -> dict[str, Any]:
    """Return the parameters of a request with what its server demands, and the client's own.

    LangChain's client would forget its own members if it were given ours.
    """
    members: dict[str, Any] = {}
    for demand in demands:
        members = merged(members, demand.members)
    members = merged(members, parameters.get("extra_body", {}))
    members = merged(members, getattr(client, "extra_body", None) or {})
    if not members:
        return dict(parameters)
    return {**parameters, "extra_body": members}


def members_set_by(client: BaseChatModel) -> dict[str, Any]:
    """Return the members of a request's body that a client's own settings state, by name."""
    named = getattr(client, "model_kwargs", None) or {}
    return merged(named, getattr(client, "extra_body", None) or {})


def without_system_role(messages: Messages) -> Messages:
    """Return the messages with the instruction at the beginning of the user's first message."""
    instructions = [message["content"] for message in messages if message["role"] == "system"]
    others = [dict(message) for message in messages if message["role"] != "system"]
    for message in others:
        if message["role"] == "user":
            message["content"] = "\n\n".join([*instructions, message["content"]])
            return others
    return [{"role": "user", "content": "\n\n".join(instructions)}, *others]


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
    langchain_name = name
    client_options = _options_of_client(provider, base_url, options)
    if provider == "local":
        server = await start_local(model, reading=reading)
        client_options |= {"base_url": server.base_url, "api_key": server.api_key}
        langchain_name = f"openai:{model}"

    def make() -> BaseChatModel:
        from langchain.chat_models import init_chat_model

        if provider in SPEAK_OPENAI:
            # LangChain shares one HTTP client among event loops, which breaks when a loop ends.
            # The embedded model is on loopback, which proxies do not reach.
            client_options["http_async_client"] = _http_client(trust_env=provider != "local")
            # With empty socket options, LangChain ignores proxies and does not warn about them.
            client_options["http_socket_options"] = ()
        client: BaseChatModel = init_chat_model(langchain_name, **client_options)
        if "extra_body" in options and not takes_extra_body(client):
            raise ValueError("extra_body is for servers that speak OpenAI's language")
        return client

    try:
        return await asyncio.to_thread(make)
    except Exception as error:
        is_unknown = type(error) is ValueError  # not what a client says of its options
        if is_unknown and provider not in PROVIDERS:
            raise ModelUnavailableError(_say_unknown_provider(name)) from None
        message = str(getattr(error, "message", None) or error)
        reason = without_keys(message, options.get("api_key"))
        raise ModelUnavailableError(f"The model {name} cannot be used: {reason}") from None


def _options_of_client(
    provider: str, base_url: str | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options of a client, with its key and its address where we set them."""
    client_options = {"max_retries": 0, **options}
    key = trimmed_key(provider)
    if key:
        client_options.setdefault("api_key", key)
    if base_url:
        address, _, query = base_url.partition("?")
        client_options["base_url"] = address
        if query:  # such as Azure's api-version
            client_options["default_query"] = dict(parse_qsl(query, keep_blank_values=True))
        # A user's own server mostly needs no key, but the client does.
        if provider == "openai" and not os.environ.get("OPENAI_API_KEY"):
            client_options.setdefault("api_key", "none")
    return client_options


def require_provider(name: str) -> None:
    """Check that a provider exists and its package is installed, without its key.

    Args:
        name: ``provider:model``.

    Raises:
        ModelUnavailableError: There is no such provider, or its package is not installed.
    """
    provider, _ = split_name(name)
    if provider in SPEAK_OPENAI:
        return
    from langchain.chat_models import init_chat_model

    try:
        init_chat_model(name, api_key="none")
    except ImportError as error:
        reason = one_line(error, 200)
        raise ModelUnavailableError(f"The model {name} cannot be used: {reason}") from None
    except ValueError:
        raise ModelUnavailableError(_say_unknown_provider(name)) from None
    except Exception:
        # Some clients miss more than their key, which may come before the first request.
        return


def takes_extra_body(client: BaseChatModel) -> bool:
    """Return whether a client sends ``extra_body``, which others ignore without a word."""
    named = getattr(client, "model_kwargs", None) or {}
    return hasattr(client, "extra_body") or "extra_body" in named


def trimmed_key(provider: str) -> str:
    """Return the key of a provider if its variable ends in white space, as mounted secrets do.

    Raises:
        ModelUnavailableError: There is white space inside it.
    """
    whole = provider.upper()
    company = whole.partition("_")[0]
    names = (whole, company, company.removesuffix("AI"))  # such as MISTRAL of mistralai
    variables = [f"{name}_API_KEY" for name in names]
    variable = next((name for name in variables if name in os.environ), variables[0])
    key = os.environ.get(variable, "")
    if len(key.split()) > 1:
        raise ModelUnavailableError(f"{variable} has a space or a line break inside; set it again.")
    return "" if key == key.strip() else key.strip()


def _http_client(*, trust_env: bool) -> Any:
    """Return a client that follows no redirects, and gives errors as errors, without the key.

    A redirect could send the documents in a request to a server that nobody configured. Some
    servers send errors with status 200. And other code sees an error response as it came:
    LangChain's callbacks record it, and so does LangSmith.

    Args:
        trust_env: Whether to use proxies and certificates of the environment.

    Returns:
        An ``AsyncClient`` of httpx, or of the library that the installed ``openai`` uses instead.
    """
    import openai

    base: Any = openai.DefaultAsyncHttpxClient

    class Client(base):  # type: ignore[misc]
        async def send(self, request: Any, **options: Any) -> Any:
            response = await _as_openai_answers(await super().send(request, **options))
            end = _stream_end.get()
            if end is not None:
                response = await _as_stream(response)
                read = response.aiter_bytes
                response.aiter_bytes = lambda *sizes: plain_events(read(*sizes), end)
            return await _without_key(response, request)

    return Client(trust_env=trust_env, follow_redirects=False)


async def _without_key(response: Any, request: Any) -> Any:
    """Return a response without the key of its request, which an error may quote."""
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
    return type(response)(
        response.status_code,
        headers=headers,
        content=content,
        request=request,
        extensions=response.extensions,
    )


async def _as_stream(response: Any) -> Any:
    """Return a response; a whole reply becomes a stream of one piece.

    Some servers do not stream, though they are asked to.
    """
    if response.status_code != OK or "json" not in response.headers.get("content-type", ""):
        return response
    body: Any = None
    with suppress(ValueError, RecursionError):
        body = json.loads(await response.aread())
    choices = body.get("choices") if isinstance(body, Mapping) else None
    if not isinstance(choices, list):
        return response
    pieces = []
    for choice in choices:
        if isinstance(choice, Mapping):
            pieces.append({**choice, "delta": choice.get("message")})
    chunk = {**body, "object": "chat.completion.chunk", "choices": pieces}
    return type(response)(
        OK,
        headers={"content-type": "text/event-stream"},
        content=f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode(),
        request=response.request,
    )


async def _as_openai_answers(response: Any) -> Any:
    """Return a response as OpenAI would give it.

    An error that has status 200 gets the status it states. Where it states none, that of a server
    that is not ready, and a mark that it is invented. The text of a reply becomes plain.
    """
    kind = response.headers.get("content-type", "")
    if response.status_code != OK or "json" not in kind:
        return response
    content = await response.aread()
    body: Any = None
    with suppress(ValueError, RecursionError):
        body = json.loads(content)
    if is_error(body):
        status = status_in(body)
        return type(response)(
            status or NOT_READY,  # so that it is asked again
            headers={"content-type": kind},
            content=content,
            request=response.request,
            extensions={} if status else {INVENTED_STATUS: True},
        )
    plain = plain_reply(body)
    if plain == body:
        return response
    headers = {name: value for name, value in response.headers.items() if name not in _OF_THE_BODY}
    content = json.dumps(plain).encode()
    return type(response)(OK, headers=headers, content=content, request=response.request)
