"""Asking a chat model for a JSON object, with retries, a cache and typed failures.

Models are named as langchain's ``init_chat_model`` names them (``openai:gpt-4o``); ``local:…`` is
the embedded one, behind the same client.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from fairqr.agents.cache import ReplyCache, cache_key
from fairqr.agents.replies import Reply, Status, Usage, parse_object
from fairqr.errors import ModelError, ModelUnavailableError, one_line
from fairqr.retries import status_of, with_retries
from fairqr.telemetry import Span, span

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage

    from fairqr.prompts.template import PromptTemplate

__all__ = ["ChatModel", "Question"]

Messages = list[dict[str, str]]
JsonSchema = Mapping[str, Any]

_SECRET = re.compile(r"(?i)\b(?:sk|pk|key|bearer)[-_ ][\w*.-]{4,}")


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


class ChatModel:
    """A chat model that answers questions with JSON objects.

    Args:
        name: ``provider:model`` as ``init_chat_model`` takes it, or ``local:smollm2-135m``.
        base_url: Where an OpenAI-compatible server listens; the provider's own where None.
        cache: Where replies are kept; None asks anew each time.
        timeout: Seconds that one request may take.
        attempts: How often a request that can heal is made.
        model_options: More for ``init_chat_model``.
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
        if ":" not in name:
            raise ModelUnavailableError(
                f"The model '{name}' names no provider; write provider:model, such as "
                "openai:gpt-4o or local:smollm2-135m."
            )
        self.name = name
        self.provider, _, self.model = name.partition(":")
        self.base_url = base_url
        self.timeout = timeout
        self.attempts = attempts
        self._cache = cache
        self._options = model_options
        # HTTP clients belong to an event loop, so each loop has its own.
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, BaseChatModel] = (
            weakref.WeakKeyDictionary()
        )
        self._asking: dict[str, asyncio.Lock] = {}
        self._takes_schema = True

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
            same time are asked once, if there is a cache.
        """
        if self._cache is None:
            return await self._ask(question, deadline)
        key = self._key(question)
        lock = self._asking.setdefault(key, asyncio.Lock())
        try:
            async with lock:
                if (stored := await self._cache.get(key)) is not None:
                    return Reply("ok", stored, usage=Usage(cached_calls=1))
                reply = await self._ask(question, deadline)
                if reply.status == "ok":
                    await self._cache.put(key, reply.value)
                return reply
        finally:
            if not lock.locked():
                self._asking.pop(key, None)

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
            try:
                limit = min(deadline or float("inf"), 2 * self.timeout)
                async with asyncio.timeout(limit):
                    for _ in range(2):
                        answer = await self._send(messages, question, step)
                        usage += _usage_of(answer)
                        text = _text_of(answer)
                        step.content("gen_ai.output.messages", text)
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
                reply = Reply(
                    "timeout", message=f"The model {self.name} did not answer within {limit:g} s."
                )
            step.set("fairqr.status", reply.status)
            step.set("gen_ai.usage.input_tokens", usage.prompt_tokens)
            step.set("gen_ai.usage.output_tokens", usage.completion_tokens)
            return dataclasses.replace(reply, usage=usage)

    async def _send(self, messages: Messages, question: Question, step: Span) -> AIMessage:
        """Send one request; tried again where that can help.

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
            return await with_retries(attempt, attempts=self.attempts, on_retry=on_retry)
        except TimeoutError:
            raise ModelError(
                "timeout", f"The model {self.name} did not answer within {self.timeout:g} s."
            ) from None
        except Exception as error:
            if self._takes_schema and _is_about_schema(error):
                self._takes_schema = False
                return await self._send(messages, question, step)
            raise self._explained(error) from None

    def _settings(self, question: Question) -> dict[str, Any]:
        """Return the settings of one request, in the form that the provider takes."""
        defaults = question.prompt.defaults
        temperature = question.temperature
        settings: dict[str, Any] = {
            "temperature": defaults.temperature if temperature is None else temperature,
            "max_tokens": defaults.max_tokens,
        }
        if not self._speaks_openai:
            return settings
        if question.seed is not None:
            settings["seed"] = question.seed
        if self._takes_schema:
            # Hosted services refuse bounds on texts; the embedded model needs them.
            schema = (
                question.schema if self.provider == "local" else _without_bounds(question.schema)
            )
            settings["extra_body"] = {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "reply", "strict": True, "schema": schema},
                }
            }
        return settings

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
            options["http_async_client"] = openai.DefaultAsyncHttpxClient()
        try:
            return await asyncio.to_thread(init_chat_model, name, **options)
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
        kind: Status
        if code in (401, 403):
            kind, what = "refused", f"refused the API key ({code}); check the key of the provider"
        elif code == 429:
            kind, what = (
                "rate_limited",
                "is asked too often or its quota is used up (429); try later",
            )
        elif code is not None and code >= 500:
            kind, what = "unavailable", f"answers with an error of its own ({code}); try later"
        elif code is not None:
            kind, what = "invalid_request", f"refused the request ({code}: {self._redact(error)})"
        elif "Connection" in type(error).__name__ or "Connect" in type(error).__name__:
            where = f" at {_shown(self.base_url)}" if self.base_url else ""
            kind, what = "unavailable", f"cannot be reached{where}; is its server running?"
        else:
            kind, what = "parse_error", f"answered something unexpected ({type(error).__name__})"
        return ModelError(kind, f"The model {self.name} {what}.")

    def _redact(self, error: BaseException) -> str:
        text = str(getattr(error, "message", None) or error)
        for secret in (self._options.get("api_key"),):
            if isinstance(secret, str) and secret:
                text = text.replace(secret, "…")
        return one_line(_SECRET.sub("…", text)).rstrip(".")


def _is_about_schema(error: BaseException) -> bool:
    """Tell whether a server refused the request because it knows no JSON schema output."""
    text = str(error)
    return status_of(error) in (400, 404, 422, 501) and (
        "response_format" in text or "json_schema" in text
    )


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


def _shown(url: str) -> str:
    """Return a URL without the credentials and parameters that it may carry."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}{parts.path}"
