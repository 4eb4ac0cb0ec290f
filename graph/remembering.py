"""A language model that is never asked the same twice within a run, whether it has a cache or not.

The lists of two rounds share most of their documents, and so many comparisons and some windows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from fairqr.agents.cache import cache_key
from fairqr.agents.question import OnToken, Question, Wanted
from fairqr.agents.ranking.model import RankingModel
from fairqr.agents.replies import Choice, TextReply, Usage

__all__ = ["Remembering"]


class Remembering:
    """Asks a model, and keeps what it replied for as long as this object lives.

    Failures are not kept. Equal questions at the same time are the model's own matter.

    Args:
        model: What is asked.
    """

    def __init__(self, model: RankingModel) -> None:
        self._model = model
        self._texts: dict[str, TextReply] = {}
        self._choices: dict[str, Choice] = {}

    @property
    def name(self) -> str:
        """The model's."""
        return self._model.name

    @property
    def gives_probabilities(self) -> bool:
        """Whether :meth:`weigh` can work, as far as is known."""
        return self._model.gives_probabilities

    @property
    def context_tokens(self) -> int | None:
        """What the model reads and writes at once, where it says so."""
        found: int | None = getattr(self._model, "context_tokens", None)
        return found

    async def start(self, wanted: Wanted = "object") -> None:
        """Make the model ready."""
        await self._model.start(wanted)

    async def write(
        self,
        question: Question,
        deadline: float | None = None,
        on_token: OnToken | None = None,
    ) -> TextReply:
        """Ask for a text; see :meth:`fairqr.agents.chat.ChatModel.write`."""
        key = _key(question)
        if (known := self._texts.get(key)) is not None:
            if on_token is not None:
                on_token(known.text)
            return dataclasses.replace(known, usage=_from_memory(known.usage))
        reply = await self._model.write(question, deadline, on_token)
        if reply.status == "ok":
            self._texts[key] = reply
        return reply

    async def weigh(
        self,
        question: Question,
        labels: Sequence[str] = ("Yes", "No"),
        deadline: float | None = None,
    ) -> Choice:
        """Ask how probable labels are; see :meth:`fairqr.agents.chat.ChatModel.weigh`."""
        key = _key(question, labels=list(labels))
        if (known := self._choices.get(key)) is not None:
            return dataclasses.replace(known, usage=_from_memory(known.usage))
        choice = await self._model.weigh(question, labels, deadline)
        if choice.status == "ok":
            self._choices[key] = choice
        return choice


def _key(question: Question, **more: Any) -> str:
    return cache_key(
        prompt=question.prompt.sha256,
        values=dict(question.values),
        temperature=question.temperature,
        seed=question.seed,
        max_tokens=question.max_tokens,
        **more,
    )


def _from_memory(usage: Usage) -> Usage:
    """Return what a reply costs that is given once more; what it cost at first is counted there."""
    return Usage(cached_calls=max(1, usage.model_calls + usage.cached_calls))
