"""A language model that says which of two documents is more relevant (PRP, Qin et al. 2024)."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import replace
from typing import Literal

from fairqr.agents.question import Question
from fairqr.agents.ranking.item_ranker import Cost, RankItem, Shown, before_those_who_ask
from fairqr.agents.ranking.model import RankingModel, asked_once
from fairqr.agents.ranking.pairwise_reply import (
    LABELS,
    Comparison,
    Position,
    Preference,
    parse_preference,
)
from fairqr.agents.replies import Choice, TextReply, Usage
from fairqr.base.errors import InputError, one_line
from fairqr.base.loops import PerLoop, run_together
from fairqr.prompts.budget import estimated_tokens
from fairqr.prompts.template import PromptTemplate, fence

__all__ = [
    "FLOOR",
    "LEAST_MASS",
    "By",
    "Comparison",
    "PairwiseJudge",
    "Preference",
]

By = Literal["probabilities", "reply"]
"""Whether the probabilities of the labels are weighed, or a reply is read."""

FLOOR = 1e-6
"""The least probability of a label: one that is not among the likeliest tokens is told as 0."""

LEAST_MASS = 0.1
"""Where the labels have less probability together, the model would say something else."""


class PairwiseJudge:
    """Asks a model which of two documents is more relevant.

    Where the model turns out not to tell probabilities, its replies are read from then on; the
    first question is asked alone, so that this is learnt once.

    Args:
        model: What is asked.
        prompt: The template ``pairwise``.
        by: How it is asked, if the model can.
        shown: What it reads of a document.
        length: At most so many characters of it.

    Raises:
        InputError: The length is below 1, or there is no such way to ask.
    """

    def __init__(
        self,
        model: RankingModel,
        prompt: PromptTemplate,
        *,
        by: By = "probabilities",
        shown: Shown = "title_text",
        length: int = 2000,
    ) -> None:
        if by not in ("probabilities", "reply"):
            raise InputError(f"A pair is judged by probabilities or by reply, not by '{by}'.")
        if length < 1:
            raise InputError(f"At least 1 character of a document must be shown, not {length}.")
        self.model = asked_once(model)
        self.prompt = prompt
        self.wanted = by
        self._shown = shown
        self._length = length
        self._unsupported = False
        self._known = False
        self._first: PerLoop[asyncio.Lock] = PerLoop()

    @property
    def asks_by(self) -> By:
        """How the model is really asked, as far as is known."""
        if self._unsupported or not self.model.gives_probabilities:
            return "reply"
        return self.wanted

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a user should know, whole sentences."""
        if self.asks_by == self.wanted:
            return ()
        return (
            f"The model {self.model.name} does not tell the probabilities of its tokens; its "
            "replies were read.",
        )

    async def start(self) -> None:
        """Make the model ready.

        Raises:
            ModelUnavailableError: Something is missing.
        """
        await self.model.start("choice" if self.asks_by == "probabilities" else "text")

    def cost(self, query: str, one: RankItem, other: RankItem, *, group: str = "") -> Cost:
        """Return what :meth:`compare` costs: a question for each order.

        The first of all may take another, which finds out that a model tells no probabilities.
        """
        written = 1 if self.asks_by == "probabilities" else self.prompt.defaults.max_tokens
        values = self.values(query, one, other, group)
        read = sum(estimated_tokens(it["content"]) for it in self.prompt.render(values))
        return Cost(calls=2, tokens=2 * (read + written))

    def tokens(self, item: RankItem) -> int:
        """Return how many tokens of a document are shown, roughly."""
        return estimated_tokens(self._text(item))

    def values(
        self, query: str, first: RankItem, second: RankItem, group: str = ""
    ) -> dict[str, str]:
        """Return what the prompt is filled with, all of it fenced.

        Arguments are those of :meth:`prefer`.
        """
        return {
            "group": before_those_who_ask(group),
            "query": fence(query),
            "first": self._text(first),
            "second": self._text(second),
        }

    async def compare(
        self,
        query: str,
        one: RankItem,
        other: RankItem,
        *,
        group: str = "",
        deadline: float | None = None,
    ) -> Comparison:
        """Ask with either document first, both at once.

        Arguments and errors are those of :meth:`prefer`.
        """
        one_first, other_first = await run_together(
            self.prefer(query, *pair, group=group, deadline=deadline)
            for pair in ((one, other), (other, one))
        )
        return Comparison(one_first, other_first)

    async def prefer(
        self,
        query: str,
        first: RankItem,
        second: RankItem,
        *,
        group: str = "",
        deadline: float | None = None,
    ) -> Preference:
        """Ask in one order; never raises for what a model does wrong.

        Args:
            query: As the user wrote it.
            first: The document that stands first.
            second: The other.
            group: Who asks, such as ``female``; empty for nobody in particular.
            deadline: Seconds from now after which to give up.

        Raises:
            ModelUnavailableError: As :meth:`start` raises it.
        """
        question = Question(self.prompt, self.values(query, first, second, group))
        until = None if deadline is None else time.monotonic() + deadline
        usage = Usage()
        if self.asks_by == "probabilities":
            choice = await self._weigh(question, until)
            if choice.status != "unsupported":
                return self._weighed(choice)
            usage = choice.usage
        reply = await self.model.write(question, _left(until))
        return self._read(reply, usage + reply.usage)

    async def _weigh(self, question: Question, until: float | None) -> Choice:
        """Weigh the labels; the first question is waited for by the others."""
        if not self._known:
            async with self._first.setdefault(asyncio.Lock()):
                if not self._known:
                    choice = await self.model.weigh(question, LABELS, _left(until))
                    self._known = True
                    self._unsupported = choice.status == "unsupported"
                    return choice
        if self.asks_by == "reply":  # as the first one learnt meanwhile
            return Choice("unsupported")
        choice = await self.model.weigh(question, LABELS, _left(until))
        self._unsupported |= choice.status == "unsupported"
        return choice

    def _weighed(self, choice: Choice) -> Preference:
        if choice.status == "parse_error" and choice.usage.prompt_tokens:
            # Neither label is among the likeliest tokens.
            return Preference("neither", message=choice.message, usage=choice.usage)
        if choice.status != "ok":
            return _failed(choice)
        if choice.mass < LEAST_MASS:
            message = (
                f"The model {self.model.name} would begin with {' or '.join(LABELS)} with a "
                f"probability of {choice.mass:.2g} only."
            )
            return Preference("neither", mass=choice.mass, message=message, usage=choice.usage)
        first, second = (max(choice.probabilities[label], FLOOR) for label in LABELS)
        odds = math.log(first) - math.log(second)
        if not odds:
            message = f"Both documents are as probable for the model {self.model.name}."
            return Preference("tie", None, 0.0, choice.mass, message, choice.usage)
        position: Position = "first" if odds > 0 else "second"
        return Preference("ok", position, odds, choice.mass, usage=choice.usage)

    def _read(self, reply: TextReply, usage: Usage) -> Preference:
        if reply.status != "ok":
            return _failed(replace(reply, usage=usage))
        read = parse_preference(reply.text)
        if read == "first" or read == "second":
            return Preference("ok", read, usage=usage)
        message = f"The model {self.model.name} answered '{one_line(reply.text, 100)}'."
        return Preference(read, message=message, usage=usage)

    def _text(self, item: RankItem) -> str:
        if self._shown == "title_text" and item.title and item.text:
            return fence(f"{item.title}: {item.text}", self._length)
        return fence(item.shown(self._shown), self._length)


def _failed(reply: Choice | TextReply) -> Preference:
    """Return the failure of a model; what is no reply of a model at all says nothing of it."""
    status = "unavailable" if reply.status == "parse_error" else reply.status
    return Preference(status, message=reply.message, usage=reply.usage)


def _left(until: float | None) -> float | None:
    """Return the seconds until a moment; negative after it."""
    return None if until is None else until - time.monotonic()
