"""The base of all language models, which ensures that no question is asked twice."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from fairqr.agents.models.cache import ReplyCache, cache_key, current_memory
from fairqr.agents.models.failures import no_answer_within
from fairqr.agents.models.forms import ChoiceForm, Form, TextForm
from fairqr.agents.models.journal import current_journal
from fairqr.agents.models.question import OnToken, Question, Wanted
from fairqr.agents.models.replies import Choice, Reply, TextReply, Usage
from fairqr.agents.models.streaming import TokenRelay

Ask = Callable[[float | None], Coroutine[Any, Any, tuple[Reply, float]]]
"""Asks within a number of seconds, and returns the reply and the model's milliseconds."""

_after_reply: ContextVar[Callable[[], None] | None] = ContextVar("fairqr_reply", default=None)


@contextmanager
def calling_after_replies(call: Callable[[], None]) -> Iterator[None]:
    """Call a function after each reply to a question that is asked inside."""
    token = _after_reply.set(call)
    try:
        yield
    finally:
        _after_reply.reset(token)


class LanguageModel(ABC):
    """A model that writes texts, and gives probabilities for the first word of a reply.

    Replies are kept in the cache. Without a cache, a model still gets no question twice within a
    step of a graph; see :func:`fairqr.agents.models.cache.remembering`. Equal questions at the
    same time share one request, and each caller gives up at its own deadline.

    Args:
        name: The name for results.
        cache: Where to keep replies; optional.
    """

    _states_deadline = False
    """Whether the model gets the first caller's deadline; otherwise its call is cancelled then."""

    def __init__(self, name: str, cache: ReplyCache | None) -> None:
        self.name = name
        self._cache = cache
        # Two models of callers may have the same class and name.
        self._owner = uuid.uuid4().hex

    @property
    @abstractmethod
    def gives_probabilities(self) -> bool:
        """Whether :meth:`weigh` can work, as far as we know."""

    @abstractmethod
    async def start(self, wanted: Wanted = "object") -> None:
        """Make the model ready for what it will be asked for.

        Raises:
            ModelUnavailableError: Something is missing that the model needs.
        """

    async def check(self) -> None:
        """Check that nothing is missing, without an expensive start.

        Raises:
            ModelUnavailableError: Something is missing that the model needs.
        """
        await self.start()

    @property
    def context_tokens(self) -> int | None:
        """How many tokens the model reads and writes together, if known."""
        return None

    @abstractmethod
    async def _identity(self) -> Mapping[str, Any]:
        """Return everything about the model that can change a reply, as JSON data."""

    @abstractmethod
    async def _ask(
        self, question: Question, form: Form, deadline: float | None, relay: TokenRelay | None
    ) -> tuple[Reply, float]:
        """Ask the model; return the reply, and the milliseconds that the model took."""

    async def write(
        self,
        question: Question,
        deadline: float | None = None,
        on_token: OnToken | None = None,
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
        return text_of(reply, self.name, relay)

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
        reply = await self._reply(question, ChoiceForm(tuple(labels)), deadline)
        if reply.status != "ok":
            return Choice(reply.status, message=reply.message, usage=reply.usage)
        return Choice("ok", **reply.value, usage=reply.usage)

    async def _reply(
        self,
        question: Question,
        form: Form,
        deadline: float | None,
        relay: TokenRelay | None = None,
    ) -> Reply:
        async def key() -> str:
            return cache_key(
                **await self._identity(),
                prompt=question.prompt.sha256,
                values=dict(question.values),
                temperature=question.temperature,
                seed=question.seed,
                max_tokens=question.reply_tokens,
                **form.key,
            )

        def ask(left: float | None) -> Coroutine[Any, Any, tuple[Reply, float]]:
            left = deadline if self._states_deadline else left
            return self._ask(question, form, left, relay)

        return await ask_once(self.name, self._cache, key, form, ask, deadline, relay, self._owner)


async def ask_once(
    name: str,
    cache: ReplyCache | None,
    key: Callable[[], Awaitable[str]],
    form: Form,
    ask: Ask,
    deadline: float | None,
    relay: TokenRelay | None = None,
    owner: str = "",
) -> Reply:
    """Return a reply from the run's journal or a cache, join a call in flight, or ask.

    Args:
        name: The name of the model.
        cache: Where to keep replies; defaults to the memory of the running step.
        key: Returns the same key for equal questions; called if replies are kept.
        form: The form of the reply.
        ask: Asks the model.
        deadline: Seconds from now after which to give up; other callers may go on waiting.
        relay: Gets the pieces from ``ask``; it is stopped if the caller leaves.
        owner: Distinguishes models in the memory of a step.
    """
    journal, kept = current_journal(), cache or current_memory()
    known = "" if journal is None and kept is None else await key()
    kept_as = known if cache else f"{known} {owner}"

    async def asked() -> Reply:
        if kept is None:
            return (await ask(deadline))[0]
        return await _shared(name, kept, kept_as, form, ask, deadline, relay)

    reply = await (asked() if journal is None else journal.once(known, form.check, asked))
    if (call := _after_reply.get()) is not None:
        call()
    return reply


async def _shared(
    name: str,
    cache: ReplyCache,
    key: str,
    form: Form,
    ask: Ask,
    deadline: float | None,
    relay: TokenRelay | None,
) -> Reply:
    async with cache.join(key, lambda: _cached(cache, key, form, ask)) as (task, leads):
        try:
            async with asyncio.timeout(deadline):
                reply = await asyncio.shield(task)
        except TimeoutError:
            usage = Usage(model_calls=1) if leads else Usage()
            message = no_answer_within(name, deadline or 0)
            return Reply("timeout", message=message, usage=usage)
        finally:
            if relay is not None and not task.done():
                relay.stop()
    if leads:
        return reply
    # The first caller is charged for the cost.
    return dataclasses.replace(reply, usage=Usage(cached_calls=int(reply.status == "ok")))


async def _cached(cache: ReplyCache, key: str, form: Form, ask: Ask) -> Reply:
    if (stored := await cache.get(key)) is not None:
        try:
            usage = Usage(
                cached_calls=1,
                cached_tokens=int(stored["tokens"]),
                cached_milliseconds=float(stored["milliseconds"]),
            )
            return Reply("ok", form.check(stored["reply"]), usage=usage)
        except (KeyError, TypeError, ValueError):
            pass  # another version of fairqr, or another program, wrote it
    reply, milliseconds = await ask(None)
    if reply.status == "ok":
        cost = {
            "tokens": reply.usage.prompt_tokens + reply.usage.completion_tokens,
            "milliseconds": round(milliseconds, 1),
        }
        await cache.put(key, {"reply": reply.value, **cost})
    return reply


def text_of(reply: Reply, name: str, relay: TokenRelay | None = None) -> TextReply:
    """Return the text in a reply of :class:`TextForm`.

    Args:
        reply: The reply of a model.
        name: The name of the model.
        relay: Gets the whole text if it came at once; optional.
    """
    if reply.status != "ok":
        return TextReply(reply.status, message=reply.message, usage=reply.usage)
    text: str = reply.value["text"]
    if not text:
        message = f"The model {name} gave an empty answer."
        return TextReply("empty", message=message, usage=reply.usage)
    if relay and not relay.has_begun:
        relay.send(text)
    return TextReply("ok", text, usage=reply.usage)
