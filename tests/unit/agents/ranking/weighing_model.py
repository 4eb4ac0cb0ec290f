"""A language model in this process that weighs two documents by a function, or writes a reply."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

from fairqr.agents.models.question import OnToken, Question, Wanted
from fairqr.agents.models.replies import Choice, TextReply, Usage
from fairqr.base.errors import ModelUnavailableError


class WeighingModel:
    """Answers at once, and counts what it is asked.

    Args:
        odds: Of the texts of the first document and the second; the log-odds of the first.
        reply: What it writes of them.
        mass: The probability of both labels together.
        gives_probabilities: Whether it is known that it does not tell them.
        unsupported: Turns out not to tell probabilities when it is asked.
        choice: What it answers instead, when it is to weigh.
        text: What it answers instead, when it is to write.
        missing: It cannot be started.
    """

    name = "test:weighing"

    def __init__(
        self,
        odds: Callable[[str, str], float] = lambda first, second: 0.0,
        *,
        reply: Callable[[str, str], str] = lambda first, second: "A",
        mass: float = 0.9,
        gives_probabilities: bool = True,
        unsupported: bool = False,
        choice: Choice | None = None,
        text: TextReply | None = None,
        missing: bool = False,
    ) -> None:
        self._odds, self._reply, self._mass = odds, reply, mass
        self.gives_probabilities = gives_probabilities
        self._unsupported, self._choice, self._text = unsupported, choice, text
        self._missing = missing
        self.asked: list[tuple[str, dict[str, str], float | None]] = []
        self.started: list[Wanted] = []
        self.at_once = self.most_at_once = 0

    async def start(self, wanted: Wanted = "object") -> None:
        self.started.append(wanted)

    async def write(
        self,
        question: Question,
        deadline: float | None = None,
        on_token: OnToken | None = None,
    ) -> TextReply:
        first, second = await self._take("write", question, deadline)
        return self._text or TextReply("ok", self._reply(first, second), usage=Usage(1))

    async def weigh(
        self,
        question: Question,
        labels: Sequence[str] = ("Yes", "No"),
        deadline: float | None = None,
    ) -> Choice:
        first, second = await self._take("weigh", question, deadline)
        if self._unsupported:
            return Choice("unsupported", message="No.", usage=Usage(1))
        if self._choice:
            return self._choice
        share = 1 / (1 + math.exp(-self._odds(first, second)))
        shares = dict(zip(labels, (share, 1 - share), strict=True))
        return Choice("ok", shares, self._mass, usage=Usage(1))

    async def _take(self, how: str, question: Question, deadline: float | None) -> tuple[str, str]:
        if self._missing:
            raise ModelUnavailableError("The model is not there.")
        self.asked.append((how, dict(question.values), deadline))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        for _ in range(40):  # others may begin
            await asyncio.sleep(0)
        self.at_once -= 1
        return question.values["first"], question.values["second"]
