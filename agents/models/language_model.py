"""The base of all language models, which ensures that no question is asked twice."""

from __future__ import annotations

import asyncio
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any, cast

from fairqr.agents.models import replies
from fairqr.agents.models.cache import ReplyCache, cache_key, surroundings
from fairqr.agents.models.demands import Demand
from fairqr.agents.models.local import local_turn
from fairqr.agents.models.replies import Messages, OnToken, Question, Reply, Status, Usage, Wanted
from fairqr.base.errors import ModelError
from fairqr.base.telemetry import Kind, Span, span
from fairqr.prompts.budget import SAFE_SHARE, PromptBudget
from fairqr.prompts.template import PromptTemplate


@dataclass(slots=True)
class Exchange:
    """A question that is being asked: its span, and what it has cost so far."""

    step: Span
    usage: Usage = Usage()  # noqa: RUF009 - frozen
    tries: int = 0
    most_tokens: int | None = None
    demands: list[Demand] = field(default_factory=list)

    def record(self, kind: str, messages: Messages, **members: Any) -> None:
        """Record messages in the form of ``gen_ai.input.messages``, or of the output."""
        records = []
        for message in messages:
            parts = [{"type": "text", "content": message["content"]}]
            records.append({"role": message["role"], "parts": parts, **members})
        self.step.content(f"gen_ai.{kind}.messages", records)


class TokenRelay:
    """Passes the pieces of one text on, without white space before the first.

    Args:
        on_token: Called with each piece.

    Attributes:
        began_at: When the first piece was passed on, by :func:`time.perf_counter`.
    """

    def __init__(self, on_token: OnToken) -> None:
        self._on_token: OnToken | None = on_token
        self.began_at: float | None = None

    def send(self, piece: str) -> None:
        """Pass a piece on, unless the relay was stopped."""
        if self.began_at is None:
            piece = piece.lstrip()
        if piece and self._on_token is not None:
            self.began_at = self.began_at or time.perf_counter()
            self._on_token(piece)

    def stop(self) -> None:
        """Stop passing pieces on: the caller has left, but others may wait for the same text."""
        self._on_token = None


class LanguageModel(ABC):
    """A model that writes texts, and gives probabilities for the first word of a reply.

    Replies are kept in the cache. Without a cache, a model still gets no question twice within a
    step of a graph; see :func:`fairqr.agents.models.cache.asking_with`. Equal questions at the
    same time share one request, and each caller gives up at its own deadline.

    Args:
        name: The name for results.
        cache: Where to keep replies; optional.
    """

    operation = "chat"
    kind: Kind = "client"
    replies_are_recorded = False
    """Whether all replies are there before they are asked for."""

    def __init__(self, name: str, cache: ReplyCache | None) -> None:
        self.name = name
        self._cache = cache
        # Two models of callers may have the same class and name.
        self._owner = uuid.uuid4().hex

    @property
    @abstractmethod
    def gives_probabilities(self) -> bool:
        """Whether :meth:`choice_probabilities` can work, as far as we know."""

    async def check(self) -> None:
        """Check that nothing is missing, without an expensive start; raises as :meth:`start`."""
        await self.start()

    @property
    def context_tokens(self) -> int | None:
        """How many tokens the model reads and writes together, if known."""
        return None

    @abstractmethod
    async def start(self, wanted: Wanted = "object") -> None:
        """Make the model ready for what it will be asked for.

        Raises:
            ModelUnavailableError: Something is missing that the model needs.
        """

    @abstractmethod
    async def _identity(self) -> Mapping[str, Any]:
        """Return everything about the model that can change a reply, as JSON data."""

    def _turn(self) -> AbstractAsyncContextManager[Any]:
        """Return our turn at the model, which models in this process take together."""
        return local_turn()

    @abstractmethod
    def _attributes(self, question: Question, relay: TokenRelay | None) -> dict[str, Any]:
        """Return attributes for the span of a question; those that are None are left out."""

    @abstractmethod
    async def _converse(
        self, question: Question, relay: TokenRelay | None, exchange: Exchange
    ) -> Mapping[str, Any]:
        """Ask the model, with all attempts, and return the value of the reply.

        Raises:
            ModelError: There is no reply.
            ValueError: The reply cannot be used; it says why.
        """

    async def _ask(self, question: Question, relay: TokenRelay | None) -> tuple[Reply, float]:
        """Ask the model in a span; return the reply, and the milliseconds that the model took.

        The call is cancelled once its own deadline and the deadlines of all who wait have passed.
        """
        model = self.name.partition(":")[2]
        prompt = question.prompt
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": self.operation,
            "gen_ai.request.model": model,
            "gen_ai.prompt.name": prompt.id,
            "gen_ai.prompt.version": prompt.version,
            "fairqr.prompt.sha256": prompt.sha256,
            **self._attributes(question, relay),
        }
        stated = {name: value for name, value in attributes.items() if value is not None}
        async with self._turn():
            start = time.perf_counter()
            with span(f"{self.operation} {model}", kind=self.kind, **stated) as step:
                exchange = Exchange(step)
                reply = await self._reply(question, relay, exchange)
                if reply.message:
                    step.fail(reply.status)
                step.set("fairqr.status", reply.status)
                step.set("gen_ai.usage.input_tokens", reply.usage.prompt_tokens)
                step.set("gen_ai.usage.output_tokens", reply.usage.completion_tokens)
            milliseconds = (time.perf_counter() - start) * 1000
        return reply, milliseconds

    async def _reply(
        self, question: Question, relay: TokenRelay | None, exchange: Exchange
    ) -> Reply:
        """Ask the model; a failure is a reply that says why."""
        try:
            value = dict(await self._converse(question, relay, exchange))
        except ModelError as error:
            return Reply(cast("Status", error.status), {}, str(error), exchange.usage)
        except ValueError as error:
            message = f"The model {self.name} gave no usable reply: {error}."
            return Reply("parse_error", {}, message, exchange.usage)
        return Reply("ok", value, "", exchange.usage)

    def _late(self, seconds: float, tries: int = 1) -> ModelError:
        return ModelError("timeout", replies.no_answer_within(self.name, seconds, tries))

    def _unsupported(self) -> ModelError:
        message = f"The model {self.name} does not give the probabilities of its tokens."
        return ModelError("unsupported", message)

    async def budget(self, prompt: PromptTemplate, room: int, question: int) -> PromptBudget:
        """Return the room of a prompt that answers, as far as the model is known.

        Args:
            prompt: The prompt.
            room: The most tokens of the whole prompt.
            question: The most tokens of the question in it.
        """
        context = self.context_tokens
        if context is not None:
            room = min(room, int(SAFE_SHARE * (context - prompt.defaults.max_tokens)))
        return PromptBudget(room, question)

    def temperature_of(self, requested: float | None) -> float | None:
        """Return the temperature of replies if one is requested; None if it is unknown."""
        return requested

    async def write(
        self, question: Question, deadline: float | None = None, on_token: OnToken | None = None
    ) -> Reply:
        """Ask for a text.

        Args:
            question: What to ask; its schema and ``validate`` are ignored.
            deadline: Seconds from now after which to give up.
            on_token: Gets each piece as it comes, or the whole text if it comes at once.
                A text that breaks off after its first piece is a failure and is not retried.

        Raises:
            ModelUnavailableError: Something is missing that the model needs.
        """
        relay = TokenRelay(on_token) if on_token else None
        reply = await self.ask(replace(question, wanted="text"), deadline, relay)
        if reply.status == "ok" and not reply.text:
            message = f"The model {self.name} gave an empty answer."
            return Reply("empty", message=message, usage=reply.usage)
        if on_token and relay and relay.began_at is None and reply.text:
            on_token(reply.text)
        return reply

    async def choice_probabilities(
        self,
        question: Question,
        labels: Sequence[str] = ("Yes", "No"),
        deadline: float | None = None,
    ) -> Reply:
        """Ask for the probabilities that the reply begins with each of a few words.

        P(label) is divided by the sum over the labels.

        Args:
            question: What to ask; its schema and ``validate`` are ignored.
            labels: Short words, at least two, each a single token of the model.
            deadline: Seconds from now after which to give up.

        Raises:
            ModelUnavailableError: Something is missing that the model needs.
        """
        if not self.gives_probabilities:
            return Reply("unsupported", message=str(self._unsupported()))
        labelled = replace(question, wanted="choice", labels=tuple(labels))
        return await self.ask(labelled, deadline)

    async def ask(
        self, question: Question, deadline: float | None = None, relay: TokenRelay | None = None
    ) -> Reply:
        """Return a reply from the run's journal or a cache, join a call in flight, or ask.

        Args:
            question: What to ask.
            deadline: Seconds from now after which to give up; from 0 down, nothing is asked.
            relay: Gets the pieces of a text.

        Raises:
            ModelUnavailableError: As :meth:`start` raises it.
        """
        context = surroundings()
        key = cache_key(**await self._identity(), **question.key)
        if self._cache is not None:
            entry = _CacheEntry(self._cache, key, question)
        else:
            # Without a cache of its own, a model only shares replies within a step.
            cache = context.cache or ReplyCache()
            entry = _CacheEntry(cache, f"{key} {self._owner}", question)
        if context.only_kept and not self.replies_are_recorded:
            kept = await entry.read()
            return kept or Reply("unsupported", message=f"No reply of {self.name} is kept.")

        async def ask_once() -> Reply:
            return await self._share(entry, deadline, relay)

        try:
            if context.journal is None:
                return await ask_once()
            return await context.journal.once(key, question.check, ask_once)
        finally:
            context.answered()

    async def _share(
        self, entry: _CacheEntry, deadline: float | None, relay: TokenRelay | None
    ) -> Reply:
        """Join a call in flight, or look the reply up, or ask."""
        late = Reply("timeout", message=replies.no_answer_within(self.name, deadline or 0))
        if deadline is not None and deadline <= 0:
            return late
        leads = False

        async def lead() -> Reply:
            nonlocal leads
            leads = True
            kept = await entry.read()
            if kept is not None:
                return kept
            reply, milliseconds = await self._ask(entry.question, relay)
            if reply.status == "ok":
                await entry.write(reply, milliseconds)
            return reply

        try:
            async with asyncio.timeout(deadline):
                reply = await entry.cache.share(entry.key, lead)
        except TimeoutError:
            return replace(late, usage=Usage(model_calls=int(leads)))
        finally:
            if relay is not None:
                relay.stop()  # others may wait for the rest of the same text
        # The first caller is charged for the cost.
        if leads:
            return reply
        return replace(reply, usage=Usage(cached_calls=int(reply.status == "ok")))


@dataclass(frozen=True, slots=True)
class _CacheEntry:
    """Where the reply to a question is kept.

    Attributes:
        cache: The cache.
        key: The key of the question in it.
        question: The question.
    """

    cache: ReplyCache
    key: str
    question: Question

    async def read(self) -> Reply | None:
        """Return the kept reply; None if another version of fairqr or another program wrote it."""
        content = (await self.cache.get_many([self.key])).get(self.key)
        if content is None:
            return None
        try:
            usage = Usage(
                cached_calls=1,
                cached_tokens=int(content["tokens"]),
                cached_milliseconds=float(content["milliseconds"]),
            )
            return Reply("ok", self.question.check(content["reply"]), usage=usage)
        except (KeyError, TypeError, ValueError):
            return None

    async def write(self, reply: Reply, milliseconds: float) -> None:
        """Keep a reply, and what it cost."""
        tokens = reply.usage.prompt_tokens + reply.usage.completion_tokens
        content = {
            "reply": reply.value,
            "tokens": tokens,
            "milliseconds": round(milliseconds, 1),
        }
        await self.cache.put_many({self.key: content})
