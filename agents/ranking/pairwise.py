"""A language model that says which of two documents is more relevant (PRP, Qin et al. 2024)."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import replace
from typing import Literal

from fairqr.agents.models.question import Question
from fairqr.agents.models.replies import Choice, TextReply, Usage
from fairqr.agents.ranking.item_ranker import Cost, RankItem, Shown, before_those_who_ask
from fairqr.agents.ranking.model import RankingModel, asked_once
from fairqr.agents.ranking.pairwise_reply import (
    LABELS,
    Comparison,
    Position,
    Preference,
    parse_preference,
)
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
"""How the judge decides: by the probabilities of the labels, or by reading a reply."""

FLOOR = 1e-6
"""The least probability of a label, since a label that is not among the likeliest tokens gets 0."""

LEAST_MASS = 0.1
"""Below this total probability of the labels, the model would say something else."""


class PairwiseJudge:
    """Asks a model which of two documents is more relevant.

    If the model turns out not to give probabilities, its replies are read from then on. The first
    question is asked alone, so that this is learnt only once.

    Args:
        model: The language model.
        prompt: The template ``pairwise``.
        by: How to ask, if the model can.
        shown: What the model reads of a document.
        length: The most characters of a document that are shown.

    Raises:
        InputError: The length is below 1, or ``by`` is unknown.
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
        """How the model is really asked, as far as we know."""
        if self._unsupported or not self.model.gives_probabilities:
            return "reply"
        return self.wanted

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for users."""
        if self.asks_by == self.wanted:
            return ()
        return (
            f"The model {self.model.name} does not give the probabilities of its tokens; its "
            "replies were read instead.",
        )

    async def start(self) -> None:
        """Start the model.

        Raises:
            ModelUnavailableError: Something is missing.
        """
        await self.model.start("choice" if self.asks_by == "probabilities" else "text")

    def cost(self, query: str, one: RankItem, other: RankItem, *, group: str = "") -> Cost:
        """Return the cost of :meth:`compare`: a question for each order.

        The first comparison may need one more, if the model turns out to give no probabilities.
        """
        written = 1 if self.asks_by == "probabilities" else self.prompt.defaults.max_tokens
        values = self.values(query, one, other, group)
        read = sum(estimated_tokens(it["content"]) for it in self.prompt.render(values))
        return Cost(calls=2, tokens=2 * (read + written))

    def tokens(self, item: RankItem) -> int:
        """Return the estimated number of tokens that are shown of a document."""
        return estimated_tokens(self._text(item))

    def values(
        self, query: str, first: RankItem, second: RankItem, group: str = ""
    ) -> dict[str, str]:
        """Return the fenced values of the prompt; the arguments are those of :meth:`prefer`."""
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
        """Ask in both orders at the same time.

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
        """Ask in one order; errors of a model never raise.

        Args:
            query: The query as the user wrote it.
            first: The document that comes first.
            second: The other document.
            group: The word for the asker, such as ``female``; empty for a neutral one.
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
        """Ask for the probabilities of the labels; other questions wait for the first one."""
        if not self._known:
            async with self._first.setdefault(asyncio.Lock()):
                if not self._known:
                    choice = await self.model.weigh(question, LABELS, _left(until))
                    self._known = True
                    self._unsupported = choice.status == "unsupported"
                    return choice
        if self.asks_by == "reply":  # the first question showed this meanwhile
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
    """Return the failure of a model; a malformed response of a server counts as unavailable."""
    status = "unavailable" if reply.status == "parse_error" else reply.status
    return Preference(status, message=reply.message, usage=reply.usage)


def _left(until: float | None) -> float | None:
    """Return the seconds until a moment; negative after it."""
    return None if until is None else until - time.monotonic()
