"""Where a chat model is reached: its client, retries, and what its server is known to refuse."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairqr.agents.failures import no_answer_within, redacted, translated
from fairqr.agents.provider import (
    base_url_for,
    parameters_for,
    refused_parameter,
    speaks_openai,
    split_name,
)
from fairqr.agents.question import Messages, Question
from fairqr.agents.replies import Usage
from fairqr.errors import InputError, ModelError, ModelUnavailableError, one_line
from fairqr.loops import PerLoop
from fairqr.retries import with_retries

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage

__all__ = ["Answer", "Endpoint"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model answered to one request.

    Attributes:
        text: As it came.
        declined: Whether the model, or a filter before it, refused to answer.
        usage: What the request cost.
    """

    text: str
    declined: bool
    usage: Usage


class Endpoint:
    """A model at its provider, behind one client per event loop.

    Args:
        name: ``provider:model`` as ``init_chat_model`` takes it, or ``local:smollm2-135m``.
        base_url: Where an OpenAI-compatible server listens; the provider's own where None.
        timeout: Seconds that one request may take.
        attempts: How often a request that can heal is made.
        options: More for ``init_chat_model``.

    Raises:
        ModelUnavailableError: The name or the URL is malformed.
        InputError: The timeout is not positive.
    """

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None,
        timeout: float,
        attempts: int,
        options: Mapping[str, Any],
    ) -> None:
        self.name = name
        self.provider, self.model = split_name(name)
        if not timeout > 0:
            raise InputError(
                f"The timeout of a model must be more than 0 seconds, not {timeout:g}."
            )
        self.base_url = base_url_for(self.provider, base_url)
        self.timeout = timeout
        self.attempts = attempts
        self._options = options
        self._clients: PerLoop[BaseChatModel] = PerLoop()
        self._refused: set[str] = set()

    async def client(self) -> BaseChatModel:
        """Return the client of the running event loop, opened on first use.

        Raises:
            ModelUnavailableError: An extra, the weights, or a key is missing, or no provider is so
                named.
        """
        return self._clients.get() or self._clients.setdefault(await self._new_client())

    async def send(
        self,
        messages: Messages,
        question: Question,
        *,
        limit: float,
        on_retry: Callable[[int, BaseException], None],
    ) -> Answer:
        """Send one request; again where that can help, and without what the server refuses.

        Args:
            messages: The question, rendered, and perhaps what was wrong with a first reply.
            question: Says which parameters the request has.
            limit: In seconds; an attempt that would begin later than this is not waited for.
            on_retry: Told the number of the attempt that failed, and its error.

        Raises:
            ModelError: What went wrong for good.
            ModelUnavailableError: There is no client; see :meth:`client`.
        """
        client = await self.client()
        parameters = parameters_for(self.provider, question, without=self._refused)

        async def attempt() -> AIMessage:
            async with asyncio.timeout(self.timeout):
                return await client.ainvoke(messages, **parameters)

        try:
            message = await with_retries(
                attempt, attempts=self.attempts, total=limit, on_retry=on_retry
            )
        except TimeoutError:
            raise ModelError("timeout", no_answer_within(self.name, self.timeout)) from None
        except Exception as error:
            # Judged by what this request had: another one may have learnt the same meanwhile.
            refused = refused_parameter(error, parameters)
            if refused is None:
                raise translated(
                    error,
                    self.name,
                    base_url=self.base_url,
                    api_key=self._options.get("api_key"),
                ) from None
        else:
            return _answer(message)
        # Learnt once, and left out from now on.
        self._refused.add(refused)
        return await self.send(messages, question, limit=limit, on_retry=on_retry)

    async def _new_client(self) -> BaseChatModel:
        from langchain.chat_models import init_chat_model

        options: dict[str, Any] = {"max_retries": 0, **self._options}
        name = self.name
        if self.base_url:
            options["base_url"] = self.base_url
            # Servers of one's own mostly want no key, but the client does.
            if self.provider == "openai" and not os.environ.get("OPENAI_API_KEY"):
                options.setdefault("api_key", "none")
        if self.provider == "local":
            from fairqr.agents.local import start_local

            server = await start_local(self.model)
            options |= {"base_url": server.base_url, "api_key": server.api_key}
            name = f"openai:{self.model}"
        if speaks_openai(self.provider):
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
            why = redacted(error, self._options.get("api_key"))
            raise ModelUnavailableError(f"The model {self.name} cannot be used: {why}") from None


def _answer(message: AIMessage) -> Answer:
    filtered = message.response_metadata.get("finish_reason") == "content_filter"
    counted = message.usage_metadata
    return Answer(
        text=message.text if isinstance(message.text, str) else str(message.content),
        declined=filtered or bool(message.additional_kwargs.get("refusal")),
        usage=Usage(
            model_calls=1,
            prompt_tokens=counted["input_tokens"] if counted else 0,
            completion_tokens=counted["output_tokens"] if counted else 0,
        ),
    )
