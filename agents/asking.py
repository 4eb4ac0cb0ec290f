"""Replies that are kept, and equal questions at the same time that are asked once.

Whatever asks: a server, or a model in this process.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from fairqr.agents.cache import ReplyCache
from fairqr.agents.failures import no_answer_within
from fairqr.agents.forms import Form
from fairqr.agents.journal import current_journal
from fairqr.agents.replies import Choice, Reply, TextReply, Usage
from fairqr.agents.sharing import Sharing
from fairqr.agents.streaming import Telling

__all__ = ["Ask", "Asking", "calling_after_replies", "choice_of", "text_of"]

Ask = Callable[[float | None], Coroutine[Any, Any, tuple[Reply, float]]]
"""Asks within so many seconds, and returns the reply and the milliseconds that the model took."""


_after_reply: ContextVar[Callable[[], None] | None] = ContextVar("fairqr_reply", default=None)


@contextmanager
def calling_after_replies(call: Callable[[], None]) -> Iterator[None]:
    """Call a function after each reply of a model to a question that is asked inside."""
    token = _after_reply.set(call)
    try:
        yield
    finally:
        _after_reply.reset(token)


class Asking:
    """Puts questions to one model.

    Args:
        name: Of the model.
        cache: Where replies are kept; None asks each time.
    """

    def __init__(self, name: str, cache: ReplyCache | None) -> None:
        self._name = name
        self._cache = cache
        self._sharing = Sharing()

    async def reply(
        self,
        key: Callable[[], str],
        form: Form,
        ask: Ask,
        deadline: float | None,
        telling: Telling | None = None,
    ) -> Reply:
        """Take a reply from the run's journal or the cache, join those who ask the same, or ask.

        Args:
            key: Returns the same for equal questions; called where replies are kept.
            form: What is wanted back.
            ask: Asks the model.
            deadline: Seconds from now after which to give up; others may go on to wait.
            telling: Told by ``ask``; stopped here where who asked has left.
        """
        if (journal := current_journal()) is None:
            reply = await self._asked(key, form, ask, deadline, telling)
        else:
            reply = await journal.once(
                key(), form.check, lambda: self._asked(key, form, ask, deadline, telling)
            )
        if (call := _after_reply.get()) is not None:
            call()
        return reply

    async def _asked(
        self,
        key: Callable[[], str],
        form: Form,
        ask: Ask,
        deadline: float | None,
        telling: Telling | None,
    ) -> Reply:
        if (cache := self._cache) is None:
            reply, _ = await ask(deadline)
            return reply
        known = key()
        joined = self._sharing.join(known, lambda: _ask_cached(known, form, cache, ask))
        async with joined as (task, leads):
            try:
                async with asyncio.timeout(deadline):
                    reply = await asyncio.shield(task)
            except TimeoutError:
                usage = Usage(model_calls=1) if leads else Usage()
                message = no_answer_within(self._name, deadline or 0)
                return Reply("timeout", message=message, usage=usage)
            finally:
                if telling is not None and not task.done():
                    telling.stop()
        if leads:
            return reply
        # What it cost stands with the one who asked first.
        return dataclasses.replace(reply, usage=Usage(cached_calls=int(reply.status == "ok")))


async def _ask_cached(key: str, form: Form, cache: ReplyCache, ask: Ask) -> Reply:
    if (stored := await cache.get(key)) is not None:
        try:
            usage = Usage(
                cached_calls=1,
                cached_tokens=int(stored["tokens"]),
                cached_milliseconds=float(stored["milliseconds"]),
            )
            return Reply("ok", form.check(stored["reply"]), usage=usage)
        except (KeyError, TypeError, ValueError):
            pass  # another version of fairqr wrote it, or nobody did
    reply, milliseconds = await ask(None)
    if reply.status == "ok":
        cost = {
            "tokens": reply.usage.prompt_tokens + reply.usage.completion_tokens,
            "milliseconds": round(milliseconds, 1),
        }
        await cache.put(key, {"reply": reply.value, **cost})
    return reply


def text_of(reply: Reply, name: str, telling: Telling | None = None) -> TextReply:
    """Return the text that a reply in :class:`TextForm` holds.

    Args:
        reply: From a model.
        name: Of the model.
        telling: Told the whole text where it came at once.
    """
    if reply.status != "ok":
        return TextReply(reply.status, message=reply.message, usage=reply.usage)
    text: str = reply.value["text"]
    if not text:
        message = f"The model {name} answered with nothing."
        return TextReply("empty", message=message, usage=reply.usage)
    if telling and not telling.begun:
        telling.tell(text)
    return TextReply("ok", text, usage=reply.usage)


def choice_of(reply: Reply) -> Choice:
    """Return the probabilities that a reply in :class:`ChoiceForm` holds."""
    if reply.status != "ok":
        return Choice(reply.status, message=reply.message, usage=reply.usage)
    return Choice("ok", **reply.value, usage=reply.usage)
