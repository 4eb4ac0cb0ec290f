"""Asking a chat model for a JSON object, with retries, a cache and typed failures.

Models are named as langchain's ``init_chat_model`` names them (``openai:gpt-4o``); ``local:…`` is
the embedded one, behind the same client.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from fairqr.agents.cache import ReplyCache, cache_key
from fairqr.agents.replies import Reply, Status, Usage, parse_object
from fairqr.errors import InputError, ModelError, ModelUnavailableError, one_line
from fairqr.retries import is_used_up, status_of, with_retries
from fairqr.telemetry import Span, span

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage

    from fairqr.prompts.template import PromptTemplate

__all__ = ["ChatModel", "Question"]

Messages = list[dict[str, str]]
JsonSchema = Mapping[str, Any]

_SECRET = re.compile(r"(?i)\b(?:(?:sk|pk|key)[-_]|bearer\s+)[\w*.-]{4,}")
_SECRET_VARIABLE = re.compile(r"(?i)(?:_|^)(?:key|token|secret|password)$")


class Validate(Protocol):
    """Turns a JSON object into the wanted one, or raises ValueError with what is wrong."""

    def __call__(self, value: Mapping[str, Any], /) -> Mapping[str, Any]: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """What to ask.

    Attributes:
        prompt: The template.
        values: Its input variables, fenced where somebody else wrote them.
        schema: The JSON schema of the reply, with bounds on lengths and numbers of items.
        validate: Checks a reply; its result is what is kept.
        temperature: In [0, 2]; the prompt's own where None.
        seed: For repeatable sampling, where the provider supports it.
    """

    prompt: PromptTemplate
    values: Mapping[str, str]
    schema: JsonSchema
    validate: Validate
    temperature: float | None = None
    seed: int | None = None


@dataclasses.dataclass(slots=True)
class _Shared:
    """A question under way, and how many wait for its answer."""

    task: asyncio.Task[Reply]
    waiting: int = 0


class ChatModel:
    """A chat model that answers questions with JSON objects.

    Args:
        name: ``provider:model`` as ``init_chat_model`` takes it, or ``local:smollm2-135m``.
        base_url: Where an OpenAI-compatible server listens; the provider's own where None.
        cache: Where replies are kept; None asks anew each time.
        timeout: Seconds that one request may take.
        attempts: How often a request that can heal is made.
        model_options: More for ``init_chat_model``.

    Raises:
        ModelUnavailableError: The name or the URL is malformed.
        InputError: The timeout is not positive.
    """

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        cache: ReplyCache | None = None,
        timeout: float = 60.0,
        attempts: int = 4,
        **model_options: Any,
    ) -> None:
        provider, _, model = name.partition(":")
        if not (provider and model):
            raise ModelUnavailableError(
                f"The model '{name}' names no provider; write provider:model, such as "
                "openai:gpt-4o or local:smollm2-135m."
            )
        if not timeout > 0:
            raise InputError(
                f"The timeout of a model must be more than 0 seconds, not {timeout:g}."
            )
        self.name = name
        self.provider, self.model = provider, model
        self.base_url = _checked_url(base_url or _configured_url(provider))
        self.timeout = timeout
        self.attempts = attempts
        self._cache = cache
        self._options = model_options
        # HTTP clients belong to an event loop, so each loop has its own.
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, BaseChatModel] = (
            weakref.WeakKeyDictionary()
        )
        self._asking: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Shared]] = (
            weakref.WeakKeyDictionary()
        )
        self._refused: set[str] = set()

    async def start(self) -> None:
        """Make the model ready, so that what is missing is known before any work is done.

        Raises:
            ModelUnavailableError: An extra, the weights, or a key is missing, or no provider is so
                named.
        """
        await self._client()

    async def ask(self, question: Question, deadline: float | None = None) -> Reply:
        """Ask, from the cache if the same was asked before.

        Args:
            question: What to ask.
            deadline: Seconds from now after which to give up.

        Returns:
            A reply whose status says whether it has a value. Equal questions that are asked at the
            same time are asked once, if there is a cache; each gives up at its own deadline.
        """
        if self._cache is None:
            return await self._ask(question, deadline)
        asking = self._asking.setdefault(asyncio.get_running_loop(), {})
        key = self._key(question)
        leads = key not in asking
        if leads:
            asking[key] = _Shared(asyncio.create_task(self._ask_cached(key, question, self._cache)))
        shared = asking[key]
        shared.waiting += 1
        try:
            async with asyncio.timeout(deadline):
                reply = await asyncio.shield(shared.task)
        except TimeoutError:
            usage = Usage(model_calls=1) if leads else Usage()
            return Reply("timeout", message=self._no_answer_within(deadline or 0), usage=usage)
        finally:
            shared.waiting -= 1
            if asking.get(key) is shared and (shared.task.done() or not shared.waiting):
                del asking[key]
            if not shared.waiting and not shared.task.done():
                shared.task.cancel()
                await asyncio.wait([shared.task])
        if leads:
            return reply
        return dataclasses.replace(reply, usage=Usage(cached_calls=int(reply.status == "ok")))

    async def _ask_cached(self, key: str, question: Question, cache: ReplyCache) -> Reply:
        if (stored := await cache.get(key)) is not None:
            try:
                return Reply("ok", question.validate(stored), usage=Usage(cached_calls=1))
            except ValueError:
                pass  # another version of fairqr wrote it, or nobody did
        reply = await self._ask(question, None)
        if reply.status == "ok":
            await cache.put(key, reply.value)
        return reply

    def _key(self, question: Question) -> str:
        return cache_key(
            model=self.name,
            base_url=self.base_url,
            prompt=question.prompt.sha256,
            values=dict(question.values),
            temperature=question.temperature,
            seed=question.seed,
        )

    async def _ask(self, question: Question, deadline: float | None) -> Reply:
        """Ask the model, once more with the error where its reply is not what was asked for."""
        prompt = question.prompt
        usage = Usage()
        with span(
            f"chat {self.model}",
            **{
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": self.provider,
                "gen_ai.request.model": self.model,
                "fairqr.prompt.id": prompt.id,
                "fairqr.prompt.version": prompt.version,
                "fairqr.prompt.sha256": prompt.sha256,
            },
        ) as step:
            messages: Messages = prompt.render(question.values)
            step.content("gen_ai.input.messages", messages)
            reply = Reply("parse_error")
            limit = 2 * self.timeout if deadline is None else min(deadline, 2 * self.timeout)
            try:
                async with asyncio.timeout(limit):
                    for _ in range(2):
                        answer = await self._send(messages, question, step, limit)
                        usage += _usage_of(answer)
                        text = _text_of(answer)
                        step.content("gen_ai.output.messages", text)
                        if _declined(answer):
                            message = f"The model {self.name} declined to answer."
                            reply = Reply("refused", message=message)
                            break
                        try:
                            value = question.validate(parse_object(text))
                            reply = Reply("ok", value)
                            break
                        except ValueError as error:
                            reply = Reply(
                                "parse_error",
                                message=f"The model {self.name} gave no usable reply: {error}.",
                            )
                            messages = [*messages, *_complaint(text, error)]
            except ModelError as error:
                usage += Usage(model_calls=1)
                reply = Reply(error.status, message=str(error))  # type: ignore[arg-type]
            except TimeoutError:
                usage += Usage(model_calls=1)
                reply = Reply("timeout", message=self._no_answer_within(limit))
            step.set("fairqr.status", reply.status)
            step.set("gen_ai.usage.input_tokens", usage.prompt_tokens)
            step.set("gen_ai.usage.output_tokens", usage.completion_tokens)
            return dataclasses.replace(reply, usage=usage)

    async def _send(
        self, messages: Messages, question: Question, step: Span, limit: float
    ) -> AIMessage:
        """Send one request; tried again where that can help, and where ``limit`` leaves the time.

        Raises:
            ModelError: What went wrong for good.
        """
        client = await self._client()
        settings = self._settings(question)

        async def attempt() -> AIMessage:
            async with asyncio.timeout(self.timeout):
                return await client.ainvoke(messages, **settings)

        def on_retry(number: int, error: BaseException) -> None:
            step.event("retry", attempt=number, error=type(error).__name__)

        try:
            return await with_retries(
                attempt, attempts=self.attempts, total=limit, on_retry=on_retry
            )
        except TimeoutError:
            raise ModelError("timeout", self._no_answer_within(self.timeout)) from None
        except Exception as error:
            # Judged by what this request had: another one may have learnt the same meanwhile.
            if refused := _refused_setting(error, settings):
                self._refused.add(refused)
                return await self._send(messages, question, step, limit)
            raise self._explained(error) from None

    def _no_answer_within(self, seconds: float) -> str:
        return f"The model {self.name} did not answer within {max(0.0, seconds):.3g} s."

    def _settings(self, question: Question) -> dict[str, Any]:
        """Return the settings of one request, in the form that the provider takes."""
        defaults = question.prompt.defaults
        temperature = question.temperature
        settings: dict[str, Any] = {
            "temperature": defaults.temperature if temperature is None else temperature,
            "max_tokens": defaults.max_tokens,
        }
        if self._speaks_openai:
            settings["presence_penalty"] = defaults.presence_penalty
            settings["seed"] = self._seed(question)
            settings["extra_body"] = self._response_format(question)
        return {
            name: value
            for name, value in settings.items()
            if value is not None and name not in self._refused
        }

    def _seed(self, question: Question) -> int | None:
        """Return the seed to send; the embedded model has one always, so that runs repeat."""
        return 0 if question.seed is None and self.provider == "local" else question.seed

    def _response_format(self, question: Question) -> dict[str, Any]:
        # Hosted services refuse bounds on texts; the embedded model needs them.
        schema = question.schema if self.provider == "local" else _without_bounds(question.schema)
        return {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "reply", "strict": True, "schema": schema},
            }
        }

    @property
    def _speaks_openai(self) -> bool:
        return self.provider in ("openai", "local", "azure_openai")

    async def _client(self) -> BaseChatModel:
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients[loop] = await self._new_client()
        return self._clients[loop]

    async def _new_client(self) -> BaseChatModel:
        from langchain.chat_models import init_chat_model

        options: dict[str, Any] = {"max_retries": 0, **self._options}
        name = self.name
        if self.base_url:
            options["base_url"] = self.base_url
        if self.provider == "local":
            from fairqr.agents.local import start_local

            server = await start_local(self.model)
            options |= {"base_url": server.base_url, "api_key": server.api_key}
            name = f"openai:{self.model}"
        if self._speaks_openai:
            import openai

            # langchain shares one HTTP client among event loops, which breaks when a loop ends.
            # The embedded model is on loopback, where no proxy leads.
            options["http_async_client"] = openai.DefaultAsyncHttpxClient(
                trust_env=self.provider != "local"
            )
            # Without own socket options langchain leaves proxies alone, and does not warn of them.
            options["http_socket_options"] = ()

        def make() -> BaseChatModel:
            model: BaseChatModel = init_chat_model(name, **options)
            return model

        try:
            return await asyncio.to_thread(make)
        except ImportError as error:
            raise ModelUnavailableError(
                f"The provider of {self.name} is not installed ({one_line(error)})."
            ) from None
        except Exception as error:
            raise ModelUnavailableError(
                f"The model {self.name} cannot be used: {self._redact(error)}"
            ) from None

    def _explained(self, error: BaseException) -> ModelError:
        """Say what an error of the client means, without the key that it may quote."""
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
            kind, what = "invalid_request", f"refused the request ({code}: {self._redact(error)})"
        elif "Connect" in name:
            where = f" at {_shown(self.base_url)}" if self.base_url else ""
            kind, what = "unavailable", f"cannot be reached{where}; check that its server runs"
            if {"ReadError", "RemoteProtocolError"} & set(_causes(error)):
                what = "broke off the connection; try later"
        else:
            kind = "parse_error"
            what = f"answered what is no chat completion ({name}); check the base URL and the model"
        return ModelError(kind, f"The model {self.name} {what}.")

    def _redact(self, error: BaseException) -> str:
        text = str(getattr(error, "message", None) or error)
        text = re.sub(r"^Error code: \d+ - ", "", text)
        for secret in self._secrets():
            text = text.replace(secret, "…")
        return one_line(_SECRET.sub("…", text)).rstrip(".")

    def _secrets(self) -> list[str]:
        """Return all that must never be shown: the key that was given, and those around us."""
        given: Any = self._options.get("api_key")
        given = given.get_secret_value() if hasattr(given, "get_secret_value") else given
        around = [value for name, value in os.environ.items() if _SECRET_VARIABLE.search(name)]
        secrets = [given, *around] if isinstance(given, str) else around
        # A value this short is a placeholder, and would tear words apart.
        return sorted((s for s in secrets if len(s) >= 6), key=len, reverse=True)


def _causes(error: BaseException | None) -> Iterator[str]:
    """Yield the names of the errors that led to this one."""
    while error is not None:
        yield type(error).__name__
        error = error.__cause__ or error.__context__


def _refused_setting(error: BaseException, settings: Mapping[str, Any]) -> str | None:
    """Return the setting that a server does not know, if that is why it refused the request."""
    if status_of(error) not in (400, 404, 422, 501):
        return None
    text, parameter = str(error), getattr(error, "param", None)
    if "extra_body" in settings and ("response_format" in text or "json_schema" in text):
        return "extra_body"
    for name in ("temperature", "seed", "presence_penalty"):
        if name in settings and (parameter == name or f"'{name}'" in text):
            return name
    return None


def _without_bounds(schema: Any) -> Any:
    """Return a JSON schema without bounds on lengths and sizes."""
    if isinstance(schema, Mapping):
        return {
            key: _without_bounds(value)
            for key, value in schema.items()
            if key not in ("minLength", "maxLength", "minItems", "maxItems")
        }
    return schema


def _usage_of(answer: AIMessage) -> Usage:
    counted = answer.usage_metadata
    return Usage(
        model_calls=1,
        prompt_tokens=counted["input_tokens"] if counted else 0,
        completion_tokens=counted["output_tokens"] if counted else 0,
    )


def _declined(answer: AIMessage) -> bool:
    """Tell whether the model, or a filter before it, refused to answer."""
    filtered = answer.response_metadata.get("finish_reason") == "content_filter"
    return filtered or bool(answer.additional_kwargs.get("refusal"))


def _text_of(answer: AIMessage) -> str:
    return answer.text if isinstance(answer.text, str) else str(answer.content)


def _complaint(text: str, error: ValueError) -> Messages:
    return [
        {"role": "assistant", "content": text[:2000]},
        {
            "role": "user",
            "content": f"That cannot be used: {error}. Answer again with only the JSON object.",
        },
    ]


def _configured_url(provider: str) -> str | None:
    """Return the URL that the client of this provider takes from the environment."""
    if provider != "openai":
        return None
    return os.environ.get("OPENAI_API_BASE") or os.environ.get("OPENAI_BASE_URL") or None


def _checked_url(url: str | None) -> str | None:
    if url is None:
        return None
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise ModelUnavailableError(
            "The base URL of the model is not one; write it like http://127.0.0.1:8000/v1."
        )
    return url


def _shown(url: str) -> str:
    """Return a URL without the credentials and parameters that it may carry."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}{parts.path}"
