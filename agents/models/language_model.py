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

    def record(self, kind: str, messages: Messages, **more: Any) -> None:
        """Record messages in the form of ``gen_ai.input.messages``, or of the output."""
        said = [
            {"role": it["role"], "parts": [{"type": "text", "content": it["content"]}], **more}
            for it in messages
        ]
        self.step.content(f"gen_ai.{kind}.messages", said)


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
        model, prompt = self.name.partition(":")[2], question.prompt
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": self.operation,
            "gen_ai.request.model": model,
            "gen_ai.prompt.name": prompt.id,
            "gen_ai.prompt.version": prompt.version,
            "fairqr.prompt.sha256": prompt.sha256,
            **self._attributes(question, relay),
        }
        stated = {key: value for key, value in attributes.items() if value is not None}
        async with self._turn():
            began = time.perf_counter()
            with span(f"{self.operation} {model}", kind=self.kind, **stated) as step:
                exchange, value, message, status = Exchange(step), dict[str, Any](), "", "ok"
                try:
                    value = dict(await self._converse(question, relay, exchange))
                except ModelError as error:
                    status, message = error.status, str(error)
                except ValueError as error:
                    status = "parse_error"
                    message = f"The model {self.name} gave no usable reply: {error}."
                if message:
                    step.fail(status)
                usage = exchange.usage
                step.set("fairqr.status", status)
                step.set("gen_ai.usage.input_tokens", usage.prompt_tokens)
                step.set("gen_ai.usage.output_tokens", usage.completion_tokens)
            took = (time.perf_counter() - began) * 1000
        return Reply(cast("Status", status), value, message, usage), took

    def _late(self, seconds: float, tries: int = 1) -> ModelError:
        return ModelError("timeout", replies.no_answer_within(self.name, seconds, tries))

    def _unsupported(self) -> ModelError:
        said = f"The model {self.name} does not give the probabilities of its tokens."
        return ModelError("unsupported", said)

    async def budget(self, prompt: PromptTemplate, room: int, question: int) -> PromptBudget:
        """Return the room of a prompt that answers, as far as the model is known.

        Args:
            prompt: The prompt.
            room: The most tokens of the whole prompt.
            question: The most tokens of the question in it.
        """
        if (context := self.context_tokens) is not None:
            room = min(room, int(SAFE_SHARE * (context - prompt.defaults.max_tokens)))
        return PromptBudget(room, question)

    def temperature_of(self, asked: float | None) -> float | None:
        """Return the temperature of replies if ``asked`` is requested; None if it is unknown."""
        return asked

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
        around, leads = surroundings(), False
        key = cache_key(**await self._identity(), **question.key)
        cache, place = self._cache, key
        if cache is None:
            cache, place = around.cache or ReplyCache(), f"{key} {self._owner}"
        if around.only_kept and not self.replies_are_recorded:
            kept = _read((await cache.get_many([place])).get(place), question)
            return kept or Reply("unsupported", message=f"No reply of {self.name} is kept.")

        async def lead() -> Reply:
            nonlocal leads
            leads = True
            if (kept := _read((await cache.get_many([place])).get(place), question)) is not None:
                return kept
            reply, milliseconds = await self._ask(question, relay)
            if reply.status == "ok":
                tokens = reply.usage.prompt_tokens + reply.usage.completion_tokens
                cost = {"tokens": tokens, "milliseconds": round(milliseconds, 1)}
                await cache.put_many({place: {"reply": reply.value, **cost}})
            return reply

        async def once() -> Reply:
            late = Reply("timeout", message=replies.no_answer_within(self.name, deadline or 0))
            if deadline is not None and deadline <= 0:
                return late
            try:
                async with asyncio.timeout(deadline):
                    reply = await cache.share(place, lead)
            except TimeoutError:
                return replace(late, usage=Usage(model_calls=int(leads)))
            finally:
                if relay is not None:
                    relay.stop()  # others may wait for the rest of the same text
            # The first caller is charged for the cost.
            joined = Usage(cached_calls=int(reply.status == "ok"))
            return reply if leads else replace(reply, usage=joined)

        journal = around.journal
        try:
            return await (once() if journal is None else journal.once(key, question.check, once))
        finally:
            around.answered()


def _read(kept: Mapping[str, Any] | None, question: Question) -> Reply | None:
    """Return a kept reply, or None if another version of fairqr or another program wrote it."""
    if kept is None:
        return None
    try:
        tokens, milliseconds = int(kept["tokens"]), float(kept["milliseconds"])
        usage = Usage(0, 1, cached_tokens=tokens, cached_milliseconds=milliseconds)
        return Reply("ok", question.check(kept["reply"]), usage=usage)
    except (KeyError, TypeError, ValueError):
        return None
