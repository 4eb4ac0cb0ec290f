"""The base of all language models, which ensures that no question is asked twice."""

from __future__ import annotations

import asyncio
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fairqr.agents.models.cache import ReplyCache, cache_key, surroundings
from fairqr.agents.models.failures import no_answer_within, no_probabilities
from fairqr.agents.models.question import ChoiceForm, Form, OnToken, Question, TextForm, Wanted
from fairqr.agents.models.replies import Choice, Reply, TextReply, Usage
from fairqr.prompts.budget import SAFE_SHARE, Budget
from fairqr.prompts.template import PromptTemplate


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

    def __init__(self, name: str, cache: ReplyCache | None) -> None:
        self.name = name
        self._cache = cache
        # Two models of callers may have the same class and name.
        self._owner = uuid.uuid4().hex

    @property
    @abstractmethod
    def gives_probabilities(self) -> bool:
        """Whether :meth:`weigh` can work, as far as we know."""

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

    @abstractmethod
    async def _ask(
        self, question: Question, form: Form, relay: TokenRelay | None
    ) -> tuple[Reply, float]:
        """Ask the model; return the reply, and the milliseconds that the model took.

        The call is cancelled when its deadline, or that of the last who waits for it, has passed.
        """

    async def budget(self, prompt: PromptTemplate, room: int, question: int) -> Budget:
        """Return the room of a prompt that answers, as far as the model is known.

        Args:
            prompt: The prompt.
            room: The most tokens of the whole prompt.
            question: The most tokens of the question in it.
        """
        if (context := self.context_tokens) is not None:
            room = min(room, int(SAFE_SHARE * (context - prompt.defaults.max_tokens)))
        return Budget(room, question)

    def temperature_of(self, asked: float | None) -> float | None:
        """Return the temperature of replies if ``asked`` is requested; None if it is unknown."""
        return asked

    async def write(
        self, question: Question, deadline: float | None = None, on_token: OnToken | None = None
    ) -> TextReply:
        """Ask for a text.

        Args:
            question: What to ask; its schema and ``validate`` are ignored.
            deadline: Seconds from now after which to give up.
            on_token: Gets each piece as it comes, or the whole text if it comes at once.
                A text that breaks off after its first piece is a failure and is not retried.

        Returns:
            A reply; its status says whether it has a text.

        Raises:
            ModelUnavailableError: Something is missing that the model needs.
        """
        relay = TokenRelay(on_token) if on_token else None
        reply = await self._reply(question, TextForm(), deadline, relay)
        text, status = reply.value.get("text", ""), reply.status
        if status == "ok" and not text:
            message = f"The model {self.name} gave an empty answer."
            return TextReply("empty", message=message, usage=reply.usage)
        if on_token and relay and relay.began_at is None and text:
            on_token(text)
        return TextReply(status, text, reply.message, reply.usage)

    async def weigh(
        self,
        question: Question,
        labels: Sequence[str] = ("Yes", "No"),
        deadline: float | None = None,
    ) -> Choice:
        """Ask for the probabilities that the reply begins with each of a few words.

        P(label) is divided by the sum over the labels.

        Args:
            question: What to ask; its schema and ``validate`` are ignored.
            labels: Short words, each a single token of the model.
            deadline: Seconds from now after which to give up.

        Returns:
            A choice; its status says whether there are probabilities.

        Raises:
            ModelUnavailableError: Something is missing that the model needs.
            ValueError: There are fewer than two labels, or two labels differ only in case.
        """
        if not self.gives_probabilities:
            return Choice("unsupported", message=no_probabilities(self.name))
        reply = await self._reply(question, ChoiceForm(tuple(labels)), deadline, None)
        return Choice(reply.status, **reply.value, message=reply.message, usage=reply.usage)

    async def _reply(
        self,
        question: Question,
        form: Form,
        deadline: float | None,
        relay: TokenRelay | None = None,
    ) -> Reply:
        """Return a reply from the run's journal or a cache, join a call in flight, or ask."""
        around, leads = surroundings(), False
        key = cache_key(
            **await self._identity(),
            prompt=question.prompt.sha256,
            values=dict(question.values),
            temperature=question.temperature,
            seed=question.seed,
            max_tokens=question.reply_tokens,
            **form.key,
        )
        cache, place = self._cache, key
        if cache is None:
            cache, place = around.cache or ReplyCache(), f"{key} {self._owner}"

        async def ask() -> Reply:
            nonlocal leads
            leads = True
            if (kept := _read((await cache.get_many([place])).get(place), form)) is not None:
                return kept
            reply, milliseconds = await self._ask(question, form, relay)
            if reply.status == "ok":
                tokens = reply.usage.prompt_tokens + reply.usage.completion_tokens
                cost = {"tokens": tokens, "milliseconds": round(milliseconds, 1)}
                await cache.put_many({place: {"reply": reply.value, **cost}})
            return reply

        async def once() -> Reply:
            try:
                async with asyncio.timeout(deadline):
                    reply = await cache.share(place, ask)
            except TimeoutError:
                message = no_answer_within(self.name, deadline or 0)
                return Reply("timeout", message=message, usage=Usage(model_calls=int(leads)))
            finally:
                if relay is not None:
                    relay.stop()  # others may wait for the rest of the same text
            # The first caller is charged for the cost.
            joined = Usage(cached_calls=int(reply.status == "ok"))
            return reply if leads else replace(reply, usage=joined)

        journal = around.journal
        reply = await (once() if journal is None else journal.once(key, form.check, once))
        if around.on_reply is not None:
            around.on_reply()
        return reply


def _read(kept: Mapping[str, Any] | None, form: Form) -> Reply | None:
    """Return a kept reply, or None if another version of fairqr or another program wrote it."""
    if kept is None:
        return None
    try:
        tokens, milliseconds = int(kept["tokens"]), float(kept["milliseconds"])
        usage = Usage(0, 1, cached_tokens=tokens, cached_milliseconds=milliseconds)
        return Reply("ok", form.check(kept["reply"]), usage=usage)
    except (KeyError, TypeError, ValueError):
        return None
