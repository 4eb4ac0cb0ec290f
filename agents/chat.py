"""Asking a chat model for a JSON object, with a cache and typed failures.

Models are named as langchain's ``init_chat_model`` names them (``openai:gpt-4o``); ``local:…`` is
the embedded one, behind the same client.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from typing import Any

from fairqr.agents.cache import ReplyCache, cache_key
from fairqr.agents.endpoint import Endpoint
from fairqr.agents.failures import no_answer_within
from fairqr.agents.question import Messages, Question
from fairqr.agents.replies import Reply, Usage, parse_object
from fairqr.agents.sharing import Sharing
from fairqr.errors import ModelError
from fairqr.telemetry import Span, span

__all__ = ["ChatModel"]


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
        self.name = name
        self._endpoint = Endpoint(
            name, base_url=base_url, timeout=timeout, attempts=attempts, options=model_options
        )
        self._cache = cache
        self._sharing = Sharing()

    async def start(self) -> None:
        """Make the model ready, so that what is missing is known before any work is done.

        Raises:
            ModelUnavailableError: An extra, the weights, or a key is missing, or no provider is so
                named.
        """
        await self._endpoint.client()

    async def ask(self, question: Question, deadline: float | None = None) -> Reply:
        """Ask, from the cache if the same was asked before.

        Args:
            question: What to ask.
            deadline: Seconds from now after which to give up.

        Returns:
            A reply whose status says whether it has a value. Equal questions that are asked at the
            same time are asked once, if there is a cache; each gives up at its own deadline.

        Raises:
            ModelUnavailableError: As :meth:`start` raises it.
        """
        if (cache := self._cache) is None:
            return await self._ask(question, deadline)
        key = self._key(question)
        joined = self._sharing.join(key, lambda: self._ask_cached(key, question, cache))
        async with joined as (task, leads):
            try:
                async with asyncio.timeout(deadline):
                    reply = await asyncio.shield(task)
            except TimeoutError:
                usage = Usage(model_calls=1) if leads else Usage()
                message = no_answer_within(self.name, deadline or 0)
                return Reply("timeout", message=message, usage=usage)
        if leads:
            return reply
        # What it cost stands with the one who asked first.
        return dataclasses.replace(reply, usage=Usage(cached_calls=int(reply.status == "ok")))

    async def _ask_cached(self, key: str, question: Question, cache: ReplyCache) -> Reply:
        if (stored := await cache.get(key)) is not None:
            try:
                usage = Usage(
                    cached_calls=1,
                    cached_tokens=int(stored["tokens"]),
                    cached_milliseconds=float(stored["milliseconds"]),
                )
                return Reply("ok", question.validate(stored["reply"]), usage=usage)
            except (KeyError, TypeError, ValueError):
                pass  # another version of fairqr wrote it, or nobody did
        began = time.perf_counter()
        reply = await self._ask(question, None)
        if reply.status == "ok":
            cost = {
                "tokens": reply.usage.prompt_tokens + reply.usage.completion_tokens,
                "milliseconds": round((time.perf_counter() - began) * 1000, 1),
            }
            await cache.put(key, {"reply": reply.value, **cost})
        return reply

    def _key(self, question: Question) -> str:
        return cache_key(
            model=self.name,
            base_url=self._endpoint.base_url,
            prompt=question.prompt.sha256,
            values=dict(question.values),
            temperature=question.temperature,
            seed=question.seed,
        )

    async def _ask(self, question: Question, deadline: float | None) -> Reply:
        """Ask the model within the deadline, and trace that."""
        prompt = question.prompt
        longest = 2 * self._endpoint.timeout
        with span(
            f"chat {self._endpoint.model}",
            **{
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": self._endpoint.provider,
                "gen_ai.request.model": self._endpoint.model,
                "fairqr.prompt.id": prompt.id,
                "fairqr.prompt.version": prompt.version,
                "fairqr.prompt.sha256": prompt.sha256,
            },
        ) as step:
            limit = longest if deadline is None else min(deadline, longest)
            reply = await self._converse(question, step, limit)
            step.set("fairqr.status", reply.status)
            step.set("gen_ai.usage.input_tokens", reply.usage.prompt_tokens)
            step.set("gen_ai.usage.output_tokens", reply.usage.completion_tokens)
            return reply

    async def _converse(self, question: Question, step: Span, limit: float) -> Reply:
        """Ask, once more with the error where the reply is not what was asked for."""

        def on_retry(number: int, error: BaseException) -> None:
            step.event("retry", attempt=number, error=type(error).__name__)

        messages: Messages = question.prompt.render(question.values)
        step.content("gen_ai.input.messages", messages)
        usage = Usage()
        wrong = ""
        try:
            async with asyncio.timeout(limit):
                for _ in range(2 if question.may_ask_again else 1):
                    answer = await self._endpoint.send(
                        messages, question, limit=limit, on_retry=on_retry
                    )
                    usage += answer.usage
                    step.content("gen_ai.output.messages", answer.text)
                    if answer.declined:
                        message = f"The model {self.name} declined to answer."
                        return Reply("refused", message=message, usage=usage)
                    try:
                        value = question.validate(parse_object(answer.text))
                        return Reply("ok", value, usage=usage)
                    except ValueError as error:
                        wrong = str(error)
                        messages = [*messages, *_complaint(answer.text, wrong)]
        except ModelError as error:
            usage += Usage(model_calls=1)
            return Reply(error.status, message=str(error), usage=usage)  # type: ignore[arg-type]
        except TimeoutError:
            usage += Usage(model_calls=1)
            return Reply("timeout", message=no_answer_within(self.name, limit), usage=usage)
        message = f"The model {self.name} gave no usable reply: {wrong}."
        return Reply("parse_error", message=message, usage=usage)


def _complaint(text: str, wrong: str) -> Messages:
    return [
        {"role": "assistant", "content": text[:2000]},
        {
            "role": "user",
            "content": f"That cannot be used: {wrong}. Answer again with only the JSON object.",
        },
    ]
