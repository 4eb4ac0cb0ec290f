"""A model in this process that prefers one text to another by a function."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

from fairqr.agents.models.replies import OnToken, Question, Reply, Usage, Wanted

Worth = Callable[[str, int, str], float]


class Planted:
    """Prefers the text with the greater worth, and keeps the questions.

    Args:
        worth: Of a text, its position in the prompt, and the word for who asks. Of two texts, the
            difference is their log-odds.
        writes: What it writes instead, if anything.
        answer: What it answers any question with instead.
        mass: The probability of both labels together.
        unsupported: Whether it turns out not to give probabilities.
    """

    name = "planted"

    def __init__(
        self,
        worth: Worth = lambda text, position, group: 0.0,
        *,
        writes: str = "",
        answer: Reply | None = None,
        mass: float = 0.9,
        unsupported: bool = False,
        gives_probabilities: bool = True,
        context_tokens: int | None = None,
    ) -> None:
        self.worth = worth
        self.writes = writes
        self.answer = answer
        self.mass = mass
        self.unsupported = unsupported
        self.gives_probabilities = gives_probabilities
        self.context_tokens = context_tokens
        self.asked: list[Question] = []
        self.asked_by: list[str] = []
        self.deadlines: list[float | None] = []
        self.at_once = self.most_at_once = 0

    async def start(self, wanted: Wanted = "object") -> None:
        """Nothing is needed."""

    async def write(
        self, question: Question, deadline: float | None = None, on_token: OnToken | None = None
    ) -> Reply:
        worths = await self._worths("write", question, deadline)
        order = sorted(range(len(worths)), key=lambda position: -worths[position])
        listed = " > ".join(f"[{position + 1}]" for position in order)
        text = self.writes or (listed if "passages" in question.values else "AB"[order[0]])
        return self.answer or Reply("ok", {"text": text}, usage=Usage(1))

    async def choice_probabilities(
        self, question: Question, labels: Sequence[str] = (), deadline: float | None = None
    ) -> Reply:
        first, second = await self._worths("choice_probabilities", question, deadline)
        if self.unsupported:
            self.gives_probabilities = False
            return Reply("unsupported", message="No.", usage=Usage(1))
        share = 1 / (1 + math.exp(second - first))
        shares = dict(zip(labels, (share, 1 - share), strict=True))
        scored = {"probabilities": shares, "mass": self.mass}
        return self.answer or Reply("ok", scored, usage=Usage(1))

    async def _worths(self, how: str, question: Question, deadline: float | None) -> list[float]:
        self.asked.append(question)
        self.asked_by.append(how)
        self.deadlines.append(deadline)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        for _ in range(40):  # others may begin
            await asyncio.sleep(0)
        self.at_once -= 1
        values = question.values
        pair_texts = [values.get("first", ""), values.get("second", "")]
        texts = values["passages"].splitlines() if "passages" in values else pair_texts
        return [
            self.worth(text, position, values["group"].strip())
            for position, text in enumerate(texts)
        ]
