"""Asks a chat model for an object, a text or a choice, with a cache and typed failures.

Models have the names of LangChain's ``init_chat_model`` (``openai:gpt-4o``); ``local:…`` is the
embedded model, behind the same client.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from fairqr.agents.models.cache import ReplyCache, cache_key
from fairqr.agents.models.endpoint import Endpoint
from fairqr.agents.models.failures import no_answer_within
from fairqr.agents.models.forms import Form, ObjectForm
from fairqr.agents.models.language_model import LanguageModel
from fairqr.agents.models.question import Messages, Question, Wanted
from fairqr.agents.models.replies import Choice, Reply, Usage, failed
from fairqr.agents.models.spans import input_messages, model_span, outcome, output_messages
from fairqr.agents.models.streaming import TokenRelay
from fairqr.base.errors import ModelError
from fairqr.base.telemetry import Span

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel


class ChatModel(LanguageModel):
    """A chat model that answers questions.

    The embedded model answers one question after the other. The time limit of a request starts at
    its turn.

    Args:
        name: ``provider:model`` as ``init_chat_model`` takes it, or ``local:smollm2-135m``.
        base_url: The address of an OpenAI-compatible server; defaults to the provider's own.
        cache: Where to keep replies; optional.
        timeout: Seconds that one request may take.
        attempts: How many attempts a request has if its error may be temporary.
        client: A chat model of LangChain to ask, instead of one opened by its name; see :meth:`of`.
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
        client: BaseChatModel | None = None,
        **model_options: Any,
    ) -> None:
        super().__init__(name, cache)
        self._endpoint = Endpoint(
            name,
            base_url=base_url,
            timeout=timeout,
            attempts=attempts,
            options=model_options,
            given=client,
        )

    @classmethod
    def of(cls, client: BaseChatModel) -> ChatModel:
        """Return a chat model that asks one of LangChain's, with its own settings and callbacks.

        Its replies are not cached, since we do not know what they depend on. Only the client itself
        retries requests.
        """
        known = client._get_ls_params()
        provider = known.get("ls_provider") or client._llm_type
        model = known.get("ls_model_name") or type(client).__name__
        return cls(f"{provider}:{model}", attempts=1, client=client)

    @property
    def base_url(self) -> str | None:
        """The address of its server; None means the provider's own."""
        return self._endpoint.base_url

    @property
    def context_tokens(self) -> int | None:
        """How many tokens the embedded model reads and writes together."""
        if self._endpoint.provider != "local":
            return None
        from fairqr.agents.models.local import CONTEXT_TOKENS

        return CONTEXT_TOKENS

    @property
    def fingerprint(self) -> str:
        """A hash of everything about the model that can change a reply."""
        return cache_key(**self._endpoint.identity)

    @property
    def gives_probabilities(self) -> bool:
        """Whether :meth:`weigh` can work, as far as is known."""
        return self._endpoint.gives_probabilities

    def temperature_of(self, asked: float | None) -> float | None:
        """Return the temperature of replies if ``asked`` is requested; None if it is unknown.

        A chat model that the caller gave keeps its own temperature.
        """
        return self._endpoint.temperature(asked)

    async def start(self, wanted: Wanted = "object") -> None:
        """Start the model, so that missing parts are found before any work is done.

        Args:
            wanted: What it will be asked for.

        Raises:
            ModelUnavailableError: An extra, the weights or a key is missing, or the provider does
                not exist.
        """
        await self._endpoint.client(wanted)

    async def check(self) -> None:
        """Check that nothing is missing, without starting the embedded model."""
        await self._endpoint.check()

    async def ask(self, question: Question, deadline: float | None = None) -> Reply:
        """Ask for a JSON object; an equal earlier question is answered from the cache.

        Args:
            question: What to ask.
            deadline: Seconds from now after which to give up.

        Returns:
            A reply; its status says whether it has a value.

        Raises:
            ModelUnavailableError: As :meth:`start` raises it.
        """
        return await self._reply(question, ObjectForm(question), deadline)

    async def weigh(
        self,
        question: Question,
        labels: Sequence[str] = ("Yes", "No"),
        deadline: float | None = None,
    ) -> Choice:
        """Ask for the probabilities of labels; see :meth:`LanguageModel.weigh`.

        We look at the ten likeliest first tokens. A label that is not among them gets 0.
        """
        if not self._endpoint.gives_probabilities:
            return Choice("unsupported", message=str(self._endpoint.no_probabilities()))
        return await super().weigh(question, labels, deadline)

    async def _identity(self) -> Mapping[str, Any]:
        return self._endpoint.identity

    async def _ask(
        self, question: Question, form: Form, deadline: float | None, relay: TokenRelay | None
    ) -> tuple[Reply, float]:
        """Wait for our turn, and ask; the wait counts towards the deadline.

        From its turn on, the model has at most twice the timeout of a request.
        """
        endpoint, arrived = self._endpoint, time.perf_counter()
        longest = 2 * endpoint.timeout
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(deadline):
                    await stack.enter_async_context(endpoint.turn())
            except TimeoutError:
                message = no_answer_within(self.name, deadline or 0)
                return Reply("timeout", message=message), 0.0
            began = time.perf_counter()
            left = longest if deadline is None else deadline - (began - arrived)
            with model_span(
                "chat",
                endpoint.provider,
                endpoint.model,
                question.prompt,
                base_url=endpoint.base_url,
                stream=True if relay else None,
                **endpoint.requested(question, form.wanted),
            ) as step:
                step.set("gen_ai.output.type", "json" if form.wanted == "object" else "text")
                reply = await _converse(endpoint, question, form, step, min(longest, left), relay)
                outcome(step, reply.status, reply.usage)
            return reply, (time.perf_counter() - began) * 1000


async def _converse(
    endpoint: Endpoint,
    question: Question,
    form: Form,
    step: Span,
    limit: float,
    relay: TokenRelay | None,
) -> Reply:
    """Ask; if the reply has the wrong form, ask once more and quote the error."""

    def on_retry(number: int, error: BaseException) -> None:
        kind = type(error).__name__
        step.event("fairqr.retry", **{"fairqr.attempt": number, "error.type": kind})

    messages: Messages = question.prompt.render(question.values)
    usage = Usage()
    wrong = ""
    try:
        async with asyncio.timeout(limit):
            for _ in range(2 if form.may_ask_again else 1):
                step.content("gen_ai.input.messages", input_messages(messages))
                asked = time.perf_counter()
                answer = await endpoint.send(
                    messages,
                    question,
                    form.wanted,
                    limit=limit,
                    on_retry=on_retry,
                    relay=relay,
                )
                usage += answer.usage
                if answer.finish_reason:
                    step.set("gen_ai.response.finish_reasons", [answer.finish_reason])
                if answer.model:
                    step.set("gen_ai.response.model", answer.model)
                if answer.id:
                    step.set("gen_ai.response.id", answer.id)
                if relay is not None and relay.began_at is not None:
                    seconds = relay.began_at - asked
                    step.set("gen_ai.response.time_to_first_chunk", seconds)
                reason = answer.finish_reason
                step.content("gen_ai.output.messages", output_messages(answer.text, reason))
                if answer.declined:
                    message = f"The model {endpoint.name} declined to answer."
                    return Reply("refused", message=message, usage=usage)
                try:
                    return Reply("ok", form.read(answer), usage=usage)
                except ValueError as error:
                    wrong = str(error)
                    messages = [*messages, *_complaint(answer.text, wrong)]
                    step.event("fairqr.unusable_reply")
    except ModelError as error:
        usage += Usage(model_calls=1)
        return failed(error, usage)
    except TimeoutError:
        usage += Usage(model_calls=1)
        return Reply("timeout", message=no_answer_within(endpoint.name, limit), usage=usage)
    message = f"The model {endpoint.name} gave no usable reply: {wrong}."
    return Reply("parse_error", message=message, usage=usage)


def _complaint(text: str, wrong: str) -> Messages:
    return [
        {"role": "assistant", "content": text[:2000]},
        {
            "role": "user",
            "content": f"That cannot be used: {wrong}. Answer again with only the JSON object.",
        },
    ]
