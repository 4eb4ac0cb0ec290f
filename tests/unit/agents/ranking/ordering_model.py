"""A model that can be asked to rank, in this process: it orders passages by a number in them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fairqr.agents.models.question import OnToken, Question, Wanted
from fairqr.agents.models.replies import Choice, TextReply, Usage
from fairqr.agents.ranking.item_ranker import RankItem

_PASSAGE = re.compile(r"^\[(\d+)\] Article (\d+)", re.MULTILINE)


def articles(order: Sequence[int], words: int = 5) -> list[RankItem]:
    """Return one item for each number; the smaller, the more relevant."""
    return [RankItem(f"a{it}", f"Article {it}", "It tells. " * words) for it in order]


def order_of(passages: str) -> list[int]:
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
        self.started: list[Wanted] = []

    async def start(self, wanted: Wanted = "object") -> None:
        self.started.append(wanted)

    async def write(
        self,
        question: Question,
        deadline: float | None = None,
        on_token: OnToken | None = None,
    ) -> TextReply:
        self.asked.append(question)
        order = order_of(question.values["passages"])
        return TextReply("ok", " > ".join(f"[{it}]" for it in order), usage=Usage(1, 0, 50, 5))

    async def weigh(
        self,
        question: Question,
        labels: Sequence[str] = ("Yes", "No"),
        deadline: float | None = None,
    ) -> Choice:
        return Choice("unsupported")
