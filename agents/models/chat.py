"""Chat models behind a client of LangChain.

Models have the names of LangChain's ``init_chat_model`` (``openai:gpt-4o``); ``local:…`` is the
embedded model, behind the same client.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from fairqr.agents.models import provider
from fairqr.agents.models.cache import ReplyCache, cache_key
from fairqr.agents.models.complaints import (
    Complaint,
    PassingError,
    came_inside_stream,
    read_complaint,
)
from fairqr.agents.models.demands import MOST_DEMANDS, Demand, demand_in, parameter_in
from fairqr.agents.models.failures import translated
from fairqr.agents.models.language_model import Exchange, LanguageModel, TokenRelay
from fairqr.agents.models.local import CONTEXT_TOKENS, check_local, local_turn
from fairqr.agents.models.messages import read_message, written_text
from fairqr.agents.models.plain_text import ONLY_THOUGHTS
from fairqr.agents.models.reading import ThoughtFilter, hides_thinking
from fairqr.agents.models.replies import Completion, Messages, Question, Usage, Wanted
from fairqr.base.errors import ModelError
from fairqr.base.loops import PerLoop
from fairqr.base.retries import ATTEMPTS, with_retries
from fairqr.base.settings import DEFAULT_TIMEOUT, REASONING_TOKENS
from fairqr.base.telemetry import current_span

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, AIMessageChunk
    from langchain_core.runnables import RunnableConfig
    from tenacity import RetryCallState

LONGEST_TOKEN = 16
"""The most characters of a streamed reply for each token that it may have, since some servers know
no limit."""

UNSTREAMED: RunnableConfig = {"tags": ["nostream"]}
"""Keeps LangGraph from showing the pieces of a reply in its stream ``messages``.

Most replies are objects for the program. An answer is shown there by its own node, in the same way
for a chat model, the cache and other generators.
"""


class ChatModel(LanguageModel):
    """A chat model that answers questions.

    The embedded model answers one question after the other. The time limit of a request starts at
    its turn.

    Args:
        name: ``provider:model`` as ``init_chat_model`` takes it, or ``local:smollm2-135m``.
        base_url: The address of an OpenAI-compatible server; defaults to the provider's own.
        cache: Where to keep replies; optional.
        timeout: Seconds that one request may take.
        reasoning_tokens: How many tokens a model that thinks before it answers may use for that.
        attempts: How many attempts a request has if its error may be temporary.
        client: A chat model of LangChain to ask, instead of one opened by its name; see :meth:`of`.
            Its own settings count, so our requests state neither temperature nor length.
        model_options: More for ``init_chat_model``.

    Attributes:
        fingerprint: A hash of everything about the model that can change a reply.

    Raises:
        ModelUnavailableError: The name or the URL is malformed.
    """

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        cache: ReplyCache | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        reasoning_tokens: int = REASONING_TOKENS,
        attempts: int = ATTEMPTS,
        client: BaseChatModel | None = None,
        **model_options: Any,
    ) -> None:
        super().__init__(name, cache)
        self._provider, self._model = provider.split_name(name)
        self.base_url = provider.base_url_for(self._provider, base_url)
        self._timeout = timeout
        self._reasoning_tokens = reasoning_tokens
        self._most_tokens: int | None = None
        """What its server allows, once that was said."""
        self._candidates = provider.MOST_CANDIDATES
        """How many of the likeliest first tokens it gives, as far as was said."""
        self._thinks = False
        """Whether it was seen to think before it answers."""
        self._hides_thinking = False
        """Whether it was seen to do so without saying where that begins."""
        self._attempts = attempts
        self._given = client
        self._options = model_options
        # The features that the server does not know.
        self._left_out = set[str]()
        # What the server demands besides, by the path of each parameter.
        self._demands: dict[tuple[str, ...], Demand] = {}
        # An address or a header may contain a secret, so only show a hash of this.
        self._described = provider.described(name, self.base_url, model_options)
        self.fingerprint = cache_key(**self._described)
        self._speaks_openai = self._provider in provider.SPEAK_OPENAI
        if client is not None:  # OpenAI's client has this attribute, whatever its server
            self._speaks_openai = hasattr(client, "openai_api_base")
            # It has its own settings.
            self._left_out |= {"temperature", "presence_penalty"}
            self._left_out |= {"max_completion_tokens", "max_tokens"}
        # The embedded model has a server for short prompts and one for long ones.
        self._clients: dict[bool, PerLoop[BaseChatModel]] = {False: PerLoop(), True: PerLoop()}

    @classmethod
    def of(cls, client: BaseChatModel) -> ChatModel:
        """Return a chat model that asks one of LangChain's, with its own settings and callbacks.

        Its replies are not cached, since we do not know what they depend on. Only the client itself
        retries requests.
        """
        parameters = client._get_ls_params()
        maker = parameters.get("ls_provider") or client._llm_type
        model = parameters.get("ls_model_name") or type(client).__name__
        return cls(f"{maker}:{model}", attempts=1, client=client)

    @property
    def context_tokens(self) -> int | None:
        """How many tokens the embedded model reads and writes together."""
        return CONTEXT_TOKENS if self._provider == "local" else None

    @property
    def gives_probabilities(self) -> bool:
        """Whether :meth:`choice_probabilities` can work, as far as is known."""
        return self._speaks_openai and "logprobs" not in self._left_out

    def temperature_of(self, requested: float | None) -> float | None:
        """Return the temperature of replies if one is requested; None if it is unknown.

        A chat model that the caller gave keeps its own temperature.
        """
        if self._given is None:
            return requested
        return self._given._get_ls_params().get("ls_temperature")

    async def start(self, wanted: Wanted = "object") -> None:
        """Start the model, so that missing parts are found before any work is done.

        Args:
            wanted: What it will be asked for.

        Raises:
            ModelUnavailableError: An extra, the weights or a key is missing, or the provider does
                not exist.
        """
        await self._client(wanted)

    async def check(self) -> None:
        """Check that nothing is missing, without starting the embedded model."""
        if self._provider == "local":
            check_local(self._model)
        else:
            await self.start()

    async def _identity(self) -> Mapping[str, Any]:
        return self._described

    def _turn(self) -> AbstractAsyncContextManager[Any]:
        return local_turn() if self._provider == "local" else nullcontext()

    def _attributes(self, question: Question, relay: TokenRelay | None) -> dict[str, Any]:
        parameters = self._parameters(question, relay)
        extra_body = parameters.get("extra_body", {})
        address = urlsplit(self.base_url or "")
        default_port = {"http": 80, "https": 443}.get(address.scheme)
        return {
            "gen_ai.provider.name": provider.CONVENTIONAL.get(self._provider, self._provider),
            "fairqr.model": self.name,
            "gen_ai.request.temperature": self.temperature_of(parameters.get("temperature")),
            "gen_ai.request.max_tokens": parameters.get("max_tokens", extra_body.get("max_tokens")),
            "gen_ai.request.presence_penalty": parameters.get("presence_penalty"),
            "gen_ai.request.seed": parameters.get("seed"),
            "gen_ai.request.stream": True if relay else None,
            "server.address": address.hostname,
            "server.port": address.port or default_port,
        }

    async def _client(self, wanted: Wanted) -> BaseChatModel:
        """Return the client of the running event loop, opened on first use."""
        if self._given is not None:
            return self._given
        reads_long_prompts = self._provider == "local" and wanted != "object"
        clients = self._clients[reads_long_prompts]
        client = clients.get()
        if client:
            return client
        opened = await provider.open_client(
            self.name, self.base_url, self._options, reads_long_prompts
        )
        return clients.setdefault(opened)

    async def _converse(
        self, question: Question, relay: TokenRelay | None, exchange: Exchange
    ) -> Mapping[str, Any]:
        """Ask; if the reply is not the wanted object, ask once more and quote the error."""
        messages: Messages = question.prompt.render(question.values)
        step = exchange.step
        step.set("gen_ai.output.type", "json" if question.wanted == "object" else "text")
        may_ask_again = question.wanted == "object" and question.may_ask_again
        try:
            async with asyncio.timeout(2 * self._timeout):
                while True:
                    answer = await self._answer(messages, question, relay, exchange)
                    if answer is None:
                        continue
                    try:
                        return question.read(answer)
                    except ValueError as error:
                        step.event("fairqr.unusable_reply")
                        if answer.is_cut and question.wanted != "choice":
                            raise ValueError(self._say_cut(question, exchange)) from None
                        if not may_ask_again:
                            raise
                        may_ask_again = False
                        messages = [*messages, *_complaint(answer.text, error)]
        except TimeoutError:
            raise self._late(self._timeout, exchange.tries) from None

    async def _answer(
        self,
        messages: Messages,
        question: Question,
        relay: TokenRelay | None,
        exchange: Exchange,
    ) -> Completion | None:
        """Ask once; None if the model thought for so long that it has to be asked again.

        Raises:
            ModelError: The request failed for good, or the model gives nothing that can be read.
        """
        exchange.record("input", messages)
        exchange.usage += Usage(model_calls=1)
        message = await self._send(messages, question, relay, exchange)
        answer = read_message(message, question.wanted, exchange)
        exchange.usage += answer.usage
        if answer.declined:
            raise ModelError("refused", f"The model {self.name} declined to answer.")

        had_room = self._thinks
        self._learn_thinking(message, answer)
        if question.wanted == "choice":
            self._require_probabilities(answer)
        elif answer.ended_early:
            if had_room or self._given is not None:
                raise ModelError("empty", self._say_too_short(question, exchange, answer))
            self._thinks = True
            return None
        return answer

    def _require_probabilities(self, answer: Completion) -> None:
        """Refuse an answer without the probabilities that a choice needs."""
        # Some servers give no probabilities for a token that is half a character.
        is_half_character = not answer.text.strip("\ufffd")
        if answer.first_tokens is None and not is_half_character:
            self._left_out.add("logprobs")
            raise self._unsupported()

    def _parameters(
        self, question: Question, relay: TokenRelay | None, exchange: Exchange | None = None
    ) -> dict[str, Any]:
        tokens = self._tokens_for(question, exchange)
        if not self._speaks_openai:
            return provider.parameters_for(question, tokens, self._left_out)
        return provider.parameters_of_openai(
            question,
            tokens,
            self._left_out,
            candidates=self._candidates,
            is_local=self._provider == "local",
            streams=relay is not None and "stream" not in self._left_out,
        )

    def _tokens_for(self, question: Question, exchange: Exchange | None = None) -> int:
        """Return how many tokens a reply may have, with what the model thinks before it."""
        if question.wanted == "choice":
            return 1
        tokens = question.reply_tokens
        if self._thinks:
            tokens += self._reasoning_tokens
        limits = [self._most_tokens, None if exchange is None else exchange.most_tokens]
        return min([tokens, *(limit for limit in limits if limit is not None)])

    def _learn_thinking(self, message: AIMessage, answer: Completion) -> None:
        """Note whether the model thinks before it answers, so that it gets room for that."""
        self._thinks = self._thinks or answer.thought
        if hides_thinking(written_text(message)):
            self._hides_thinking = True

    def _learn_refusal(self, feature: str, lower: int | None, exchange: Exchange | None) -> None:
        """Leave a feature out from now on; a number that is too large is lowered.

        Args:
            feature: What was refused.
            lower: What the server allows, if it is a number.
            exchange: The only question that this is for, if it depends on its prompt.
        """
        if feature == "logprobs" and lower is not None:
            self._candidates = lower
        elif feature not in provider.LIMITS or lower is None:
            self._left_out.add(feature)
        elif exchange is None:
            self._most_tokens = lower
        elif exchange.most_tokens is None:
            exchange.most_tokens = lower
        else:  # lowering it once did not help, and each try costs a request
            self._left_out.add(feature)

    def _lower_number(self, feature: str, complaint: Complaint, tokens: int) -> int | None:
        """Return the number that a server allows for a feature, if it says so."""
        if feature == "logprobs":
            return complaint.fewer_candidates(self._candidates)
        return complaint.lower_limit(tokens)

    def _say_too_short(self, question: Question, exchange: Exchange, answer: Completion) -> str:
        """Return the sentence about a reply that ended before it began."""
        if self._given is not None:
            remedy = "raise the limit of the chat model that you gave"
        else:
            remedy = "raise reasoning_tokens, or let it think less"
        tokens = self._tokens_for(question, exchange)
        if answer.is_cut:
            problem = f"reached its limit of {tokens:,} tokens before it answered"
        else:
            problem = f"gave only thoughts and no answer, with a limit of {tokens:,} tokens"
        return f"The model {self.name} {problem}; {remedy}."

    def _say_cut(self, question: Question, exchange: Exchange) -> str:
        """Return why a reply that was cut cannot be used."""
        tokens = self._tokens_for(question, exchange)
        return (
            f"it reached the limit of {tokens:,} tokens; raise max_tokens in the prompt "
            f"{question.prompt.id}"
        )

    async def _send(
        self,
        messages: Messages,
        question: Question,
        relay: TokenRelay | None,
        exchange: Exchange,
    ) -> AIMessage:
        """Send one request. Retry it if that can help, and without what the server does not know.

        Raises:
            ModelError: The request failed for good.
        """
        client = await self._client(question.wanted)
        if "system" in self._left_out:
            messages = provider.without_system_role(messages)
        if question.wanted == "choice" and not self.gives_probabilities:
            raise self._unsupported()
        parameters = self._parameters(question, relay, exchange)
        parameters = provider.without_settings_of(client, parameters)
        features = provider.features_of(parameters, messages)
        demands = [*self._demands.values(), *exchange.demands]
        parameters = provider.with_members(client, parameters, demands)

        async def attempt() -> AIMessage | Exception:
            exchange.tries += 1
            try:
                async with asyncio.timeout(self._timeout):
                    return await self._request(client, messages, question, relay, parameters)
            except Exception as error:
                has_begun = relay is not None and relay.began_at is not None
                return _unless_passing(error, features, has_begun=has_begun)

        try:
            reply = await with_retries(
                attempt,
                attempts=self._attempts,
                total=2 * self._timeout,
                before_wait=_note_retry,
            )
            if isinstance(reply, Exception):
                raise reply
            self._demands |= {demand.path: demand for demand in exchange.demands}
            return reply
        except TimeoutError:
            raise self._late(self._timeout, exchange.tries) from None
        except Exception as error:
            complaint = read_complaint(error)
            if not self._learn(complaint, client, features, question, exchange):
                raise self._our_error(error, complaint) from None
        # Without what the server does not know, or with what it demands.
        return await self._send(messages, question, relay, exchange)

    def _our_error(self, error: Exception, complaint: Complaint) -> ModelError:
        """Return our typed error for an error of the client."""
        api_key = self._options.get("api_key")
        settable = None
        if self._given is None:
            settable = parameter_in(complaint.without_keys(api_key))
        return translated(
            error,
            complaint,
            self.name,
            base_url=self.base_url,
            api_key=api_key,
            is_given=self._is_foreign,
            settable=settable,
        )

    def _learn(
        self,
        complaint: Complaint,
        client: BaseChatModel,
        features: Sequence[str],
        question: Question,
        exchange: Exchange,
    ) -> bool:
        """Learn what to send besides, or to leave out; return False if there is nothing to learn.

        Args:
            complaint: What the server said.
            client: The client.
            features: Those of this request: another one may have learnt the same meanwhile.
            question: What is asked.
            exchange: The question that is being asked.
        """
        demand = self._new_demand(complaint, client, features, exchange)
        if demand:
            exchange.demands.append(demand)
            return True
        refused = complaint.refused(features)
        if refused is None:
            return False
        lower = self._lower_number(refused, complaint, self._tokens_for(question, exchange))
        self._learn_refusal(refused, lower, exchange if complaint.prompt_tokens else None)
        return True

    def _new_demand(
        self,
        complaint: Complaint,
        client: BaseChatModel,
        features: Sequence[str],
        exchange: Exchange,
    ) -> Demand | None:
        """Return what the server demands besides, unless that was tried, or the user set it."""
        demand = demand_in(complaint) if self._speaks_openai else None
        if demand is None or demand.path[0] in features:
            return None
        was_tried = any(demand.path == earlier.path for earlier in exchange.demands)
        if was_tried or len(exchange.demands) == MOST_DEMANDS:
            return None
        is_set = demand.is_stated_in(provider.members_set_by(client))
        return None if is_set else demand

    @property
    def _is_foreign(self) -> bool:
        """Whether the caller gave a client that does not speak OpenAI's language."""
        return self._given is not None and not self._speaks_openai

    async def _request(
        self,
        client: BaseChatModel,
        messages: Messages,
        question: Question,
        relay: TokenRelay | None,
        parameters: Mapping[str, Any],
    ) -> AIMessage:
        """Send one request, and return the whole reply."""
        if relay is not None and "stream" not in self._left_out:
            room = LONGEST_TOKEN * self._tokens_for(question)
            return await self._streamed(client, messages, relay, parameters, room)
        if question.wanted == "object" and question.schema and self._is_foreign:
            return await _structured(client, messages, provider.without_bounds(question.schema))
        return await client.ainvoke(messages, UNSTREAMED, **parameters)

    async def _streamed(
        self,
        client: BaseChatModel,
        messages: Messages,
        relay: TokenRelay,
        parameters: Mapping[str, Any],
        room: int,
    ) -> AIMessage:
        """Pass each piece on as it comes, without thoughts, and return the whole message.

        A reply of more than ``room`` characters is cut.

        Raises:
            ConnectionError: The stream ended early. Servers that speak OpenAI's language say why a
                text ended, or mark the end of the stream; a text with neither is incomplete.
        """
        whole: AIMessageChunk | None = None
        thought_filter = ThoughtFilter(is_thinking=self._hides_thinking)
        with provider.noting_stream_end() as end:
            pieces = client.astream(messages, UNSTREAMED, **parameters)
            async with aclosing(cast("AsyncGenerator[AIMessageChunk]", pieces)) as chunks:
                async for chunk in chunks:
                    whole = chunk if whole is None else whole + chunk
                    if self._speaks_openai and chunk.usage_metadata:
                        # Some servers count in each piece what it was until then.
                        whole.usage_metadata = chunk.usage_metadata
                    room -= len(chunk.text)
                    relay.send(thought_filter.feed(chunk.text))
                    if room < 0:  # the server knows no limit
                        whole.response_metadata["finish_reason"] = "length"
                        break
        relay.send(thought_filter.end())
        if whole is None:
            raise ConnectionError("the stream ended early")
        if end.has_thoughts and not whole.text.strip():
            whole.content = ONLY_THOUGHTS
        has_ended = end.is_marked or bool(whole.response_metadata.get("finish_reason"))
        if self._speaks_openai and not has_ended:
            raise ConnectionError("the stream ended early")
        return whole


def _unless_passing(error: Exception, features: Sequence[str], *, has_begun: bool) -> Exception:
    """Return an error that must end the request; raise any other, so that it may be retried.

    Args:
        error: The error.
        features: What the request did that some servers do not know.
        has_begun: Whether a part of the text was shown.
    """
    complaint = read_complaint(error)
    if has_begun or complaint.refused(features):
        # A text that was half shown must not start again, and the same request would be refused
        # again.
        return error
    if came_inside_stream(error):
        raise PassingError(error, complaint) from None
    raise error


def _note_retry(state: RetryCallState) -> None:
    """Note in the trace that an attempt failed."""
    error = state.outcome and state.outcome.exception()
    attributes = {"fairqr.attempt": state.attempt_number, "error.type": type(error).__name__}
    current_span().event("fairqr.retry", **attributes)


def _complaint(text: str, error: ValueError) -> Messages:
    """Return the messages that tell a model what was wrong with its reply."""
    content = f"That cannot be used: {error}. Answer again with only the JSON object."
    return [{"role": "assistant", "content": text[:2000]}, {"role": "user", "content": content}]


async def _structured(
    client: BaseChatModel, messages: Messages, schema: Mapping[str, Any]
) -> AIMessage:
    """Ask for an object of a schema, by tools or in the client's own way if it can."""
    named_schema = {"title": "reply", "description": "The reply.", **schema}
    try:
        structured = client.with_structured_output(named_schema, include_raw=True)
    except NotImplementedError:
        return await client.ainvoke(messages, UNSTREAMED)
    reply: Any = await structured.ainvoke(messages, UNSTREAMED)
    message: AIMessage = reply["raw"]
    if reply["parsed"] is None:
        return message
    return message.model_copy(update={"content": json.dumps(reply["parsed"])})
