"""The endpoint of a chat model: its client, retries, and the parameters that its server refuses."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fairqr.agents.models.answer import Answer, answer_of, has_structured_output, message_of
from fairqr.agents.models.failures import no_answer_within, redacted, translated
from fairqr.agents.models.provider import (
    base_url_for,
    options_as_data,
    parameters_for,
    refused_parameter,
    speaks_openai,
    split_name,
    variables_of,
)
from fairqr.agents.models.question import Messages, Question, Wanted
from fairqr.agents.models.streaming import UNSTREAMED, InterruptedStreamError, TokenRelay, streamed
from fairqr.base.errors import InputError, ModelError, ModelUnavailableError, one_line
from fairqr.base.loops import PerLoop
from fairqr.base.retries import with_retries

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.runnables import Runnable


class Endpoint:
    """A model at its provider, behind one client per event loop.

    Args:
        name: ``provider:model`` as ``init_chat_model`` takes it, or ``local:smollm2-135m``.
        base_url: The address of an OpenAI-compatible server; defaults to the provider's own.
        timeout: Seconds that one request may take.
        attempts: How many attempts a request has if its error may be temporary.
        options: More for ``init_chat_model``.
        given: A chat model of LangChain to ask, instead of one opened by its name. Its own settings
            count, so our requests state neither temperature nor length.

    Raises:
        ModelUnavailableError: The name or the URL is malformed.
        InputError: The timeout is not positive.

    Attributes:
        identity: Everything about the model that can change a reply: its name, its address and its
            options, as JSON data without API keys. An address or a header may contain a secret, so
            only show a hash of this.
    """

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None,
        timeout: float,
        attempts: int,
        options: Mapping[str, Any],
        given: BaseChatModel | None = None,
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
        self._given = given
        self.identity: Mapping[str, Any] = {
            "model": name,
            "base_url": self.base_url,
            "environment": variables_of(self.provider),
            "options": options_as_data(options),
        }
        # The embedded model has a server for short prompts and one for long ones.
        self._clients: dict[bool, PerLoop[BaseChatModel]] = {False: PerLoop(), True: PerLoop()}
        self._refused: set[str] = set()

    @property
    def gives_probabilities(self) -> bool:
        """Whether tokens may come with their probabilities, as far as we know."""
        return self._speaks_openai and "logprobs" not in self._refused

    @property
    def _speaks_openai(self) -> bool:
        if self._given is None:
            return speaks_openai(self.provider)
        return hasattr(self._given, "openai_api_base")  # OpenAI's client, with any server

    def temperature(self, asked: float | None) -> float | None:
        """Return the temperature of replies, or None if it is unknown.

        Args:
            asked: The temperature of a question. A client that the caller gave ignores it.
        """
        if self._given is None:
            return asked
        own: float | None = self._given._get_ls_params().get("ls_temperature")
        return own

    def requested(self, question: Question, wanted: Wanted) -> dict[str, Any]:
        """Return the parameters that a request states, for its span; None if it does not state one.

        Args:
            question: What is asked.
            wanted: What kind of reply is wanted.
        """
        temperature, is_own = question.temperature, self._given is None
        if temperature is None:
            temperature = question.prompt.defaults.temperature
        tokens = 1 if wanted == "choice" else question.reply_tokens
        return {
            "temperature": self.temperature(temperature),
            "max_tokens": tokens if is_own or wanted == "choice" else None,
            "seed": question.seed if is_own or self._speaks_openai else None,
        }

    async def client(self, wanted: Wanted = "object") -> BaseChatModel:
        """Return the client of the running event loop, opened on first use.

        Args:
            wanted: What will be asked for.

        Raises:
            ModelUnavailableError: An extra, the weights or a key is missing, or the provider does
                not exist.
        """
        if self._given is not None:
            return self._given
        reading = self.provider == "local" and wanted != "object"
        clients = self._clients[reading]
        return clients.get() or clients.setdefault(await self._new_client(reading))

    async def check(self) -> None:
        """Check that nothing is missing, without starting the embedded model or its client.

        Raises:
            ModelUnavailableError: As :meth:`client` raises it.
        """
        if self._given is None and self.provider == "local":
            from fairqr.agents.models.local import check_local

            check_local(self.model)
        else:
            await self.client()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until the model is free: the embedded one answers one question at a time."""
        if self.provider != "local":
            yield
            return
        from fairqr.agents.models.local import local_turn

        async with local_turn():
            yield

    async def send(
        self,
        messages: Messages,
        question: Question,
        wanted: Wanted = "object",
        *,
        limit: float,
        on_retry: Callable[[int, BaseException], None],
        relay: TokenRelay | None = None,
    ) -> Answer:
        """Send one request. Retry it if that can help, and without parameters the server refuses.

        Args:
            messages: The rendered question, and perhaps the complaint about a first reply.
            question: States the parameters of the request.
            wanted: What kind of reply is wanted.
            limit: In seconds; no attempt starts later than this.
            on_retry: Called with the number of the failed attempt, and its error.
            relay: Gets each piece as it comes. After the first piece, nothing is retried.

        Raises:
            ModelError: The request failed for good.
            ModelUnavailableError: There is no client; see :meth:`client`.
        """
        client = await self.client(wanted)
        if wanted == "choice" and not self.gives_probabilities:
            raise self.no_probabilities()  # another request learnt this while we waited
        parameters = self._parameters(question, wanted, stream=relay is not None)
        if relay is None and self._speaks_openai:
            # Otherwise LangChain streams replies when somebody reads LangGraph's stream `messages`.
            parameters["stream"] = False
        structured = self._structured(client, question, wanted)

        async def attempt() -> AIMessage:
            try:
                async with asyncio.timeout(self.timeout):
                    if structured is not None:
                        return message_of(await structured.ainvoke(messages, UNSTREAMED))
                    if relay is None:
                        return await client.ainvoke(messages, UNSTREAMED, **parameters)
                    return await streamed(
                        client,
                        messages,
                        parameters,
                        relay,
                        must_end=self._speaks_openai,
                    )
            except Exception as error:
                if relay is not None and relay.has_begun:
                    raise InterruptedStreamError(error) from error
                raise

        try:
            message = await with_retries(
                attempt, attempts=self.attempts, total=limit, on_retry=on_retry
            )
        except Exception as failed:
            error = failed.cause if isinstance(failed, InterruptedStreamError) else failed
            if isinstance(error, TimeoutError):
                raise ModelError("timeout", no_answer_within(self.name, self.timeout)) from None
            # Look at this request's parameters: another request may have learnt the same meanwhile.
            refused = refused_parameter(error, parameters)
            if refused is None:
                raise translated(
                    error,
                    self.name,
                    base_url=self.base_url,
                    api_key=self._options.get("api_key"),
                    is_given=self._given is not None and not self._speaks_openai,
                ) from None
        else:
            answer = answer_of(message)
            if wanted == "choice" and answer.first_tokens is None and not answer.declined:
                if not answer.text.strip("\ufffd"):
                    # Some servers give no probabilities for a token that is half a character. The
                    # next question may get them.
                    return dataclasses.replace(answer, first_tokens=[])
                self._refused.add("logprobs")
                raise self.no_probabilities()
            return answer
        # From now on, the parameter is left out.
        self._refused.add(refused)
        if refused == "logprobs":
            raise self.no_probabilities()
        return await self.send(
            messages, question, wanted, limit=limit, on_retry=on_retry, relay=relay
        )

    def _parameters(self, question: Question, wanted: Wanted, *, stream: bool) -> dict[str, Any]:
        """Return the parameters of a request; a client from the caller has its own settings."""
        if self._given is None:
            return parameters_for(
                self.provider, question, wanted, stream=stream, without=self._refused
            )
        if not self._speaks_openai:
            return {}
        left_out = {"temperature", "presence_penalty", "max_tokens", *self._refused}
        if wanted == "choice":
            left_out.remove("max_tokens")
        return parameters_for("openai", question, wanted, stream=stream, without=left_out)

    def _structured(
        self, client: BaseChatModel, question: Question, wanted: Wanted
    ) -> Runnable[Any, Any] | None:
        """Return a client that gives objects of the question's schema, if that is possible."""
        if self._given is None or self._speaks_openai or wanted != "object":
            return None
        if question.schema is None or not has_structured_output(client):
            return None
        schema = {"title": "reply", "description": "The reply.", **question.schema}
        return client.with_structured_output(schema, include_raw=True)

    def no_probabilities(self) -> ModelError:
        """Return the error of a model that does not give the probabilities of tokens."""
        return ModelError(
            "unsupported", f"The model {self.name} does not give the probabilities of its tokens."
        )

    async def _new_client(self, reading: bool) -> BaseChatModel:
        from langchain.chat_models import init_chat_model

        options: dict[str, Any] = {"max_retries": 0, **self._options}
        name = self.name
        if self.base_url:
            options["base_url"] = self.base_url
            # A user's own server mostly needs no key, but the client does.
            if self.provider == "openai" and not os.environ.get("OPENAI_API_KEY"):
                options.setdefault("api_key", "none")
        if self.provider == "local":
            from fairqr.agents.models.local import start_local

            server = await start_local(self.model, reading=reading)
            options |= {"base_url": server.base_url, "api_key": server.api_key}
            name = f"openai:{self.model}"
        if speaks_openai(self.provider):
            from fairqr.agents.models.http_client import new_http_client

            # LangChain shares one HTTP client among event loops, which breaks when a loop ends.
            # The embedded model is on loopback, which proxies do not reach.
            options["http_async_client"] = new_http_client(trust_env=self.provider != "local")
            # With empty socket options, LangChain ignores proxies and does not warn about them.
            options["http_socket_options"] = ()

        def make() -> BaseChatModel:
            model: BaseChatModel = init_chat_model(name, **options)
            return model

        try:
            return await asyncio.to_thread(make)
        except ImportError as error:
            raise ModelUnavailableError(
                f"The provider of {self.name} is not installed ({one_line(error)}); install its "
                "package for LangChain."
            ) from None
        except Exception as error:
            why = redacted(error, self._options.get("api_key"))
            raise ModelUnavailableError(f"The model {self.name} cannot be used: {why}") from None
