"""Models in this process that rank by a number in each text, or weigh texts by a function."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from fairqr.agents.models.replies import OnToken, Question, Reply, Usage, Wanted
from fairqr.agents.ranking.rankers import RankItem

_PASSAGE = re.compile(r"^\[(\d+)\] Article (\d+)", re.MULTILINE)


def articles(order: Sequence[int], words: int = 5) -> list[RankItem]:
    """Return one item for each number; the smaller, the more relevant."""
    return [RankItem(f"a{it}", f"Article {it}", "It tells. " * words) for it in order]


def right_order(passages: str) -> list[int]:
    """Return the identifiers of passages as lines, the smallest article first."""
    found = [(int(article), int(number)) for number, article in _PASSAGE.findall(passages)]
    return [number for _, number in sorted(found)]


class OrderingModel:
    """Answers each question with the right order of its passages, and keeps the questions."""

    name = "own:ordering"
    gives_probabilities = False

    def __init__(self, context_tokens: int | None = None) -> None:
        self.context_tokens = context_tokens
        self.asked: list[Question] = []

    async def start(self, wanted: Wanted = "object") -> None:
        """Nothing is needed."""

    async def write(
        self, question: Question, deadline: float | None = None, on_token: OnToken | None = None
    ) -> Reply:
        self.asked.append(question)
        order = right_order(question.values["passages"])
        text = " > ".join(f"[{it}]" for it in order)
        return Reply("ok", {"text": text}, usage=Usage(1, 0, 50, 5))


class WeighingModel:
    """Weighs two documents by a function of their texts, or writes a reply.

    Args:
        odds: The log-odds of the first text.
        reply: What it writes of them.
        mass: The probability of both labels together.
        unsupported: Whether it turns out not to give probabilities.
        answer: A choice or a text to answer instead.
    """

    name = "test:weighing"
    context_tokens: int | None = None

    def __init__(
        self,
        odds: Callable[[str, str], float] = lambda first, second: 0.0,
        *,
        reply: str = "A",
        mass: float = 0.9,
        unsupported: bool = False,
        answer: Any = None,
    ) -> None:
        self._odds, self._reply, self._mass = odds, reply, mass
        self._unsupported, self._answer = unsupported, answer
        self.gives_probabilities = True
        self.asked: list[tuple[str, dict[str, str], float | None]] = []
        self.at_once = self.most_at_once = 0

    async def start(self, wanted: Wanted = "object") -> None:
        """Nothing is needed."""

    async def write(
        self, question: Question, deadline: float | None = None, on_token: OnToken | None = None
    ) -> Any:
        await self._take("write", question, deadline)
        return self._answer or Reply("ok", {"text": self._reply}, usage=Usage(1))

    async def weigh(
        self, question: Question, labels: Sequence[str], deadline: float | None = None
    ) -> Any:
        first, second = await self._take("weigh", question, deadline)
        if self._unsupported:
            self.gives_probabilities = False
            return Reply("unsupported", message="No.", usage=Usage(1))
        share = 1 / (1 + math.exp(-self._odds(first, second)))
        shares = dict(zip(labels, (share, 1 - share), strict=True))
        value = {"probabilities": shares, "mass": self._mass}
        return self._answer or Reply("ok", value, usage=Usage(1))

    async def _take(self, how: str, question: Question, deadline: float | None) -> tuple[str, str]:
        self.asked.append((how, dict(question.values), deadline))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        for _ in range(40):  # others may begin
            await asyncio.sleep(0)
        self.at_once -= 1
        return question.values["first"], question.values["second"]
