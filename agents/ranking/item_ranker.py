"""What every ranker takes and gives: items in an order, and the items in another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from fairqr.agents.replies import Usage
from fairqr.prompts.template import fence

__all__ = [
    "Asker",
    "Cost",
    "ItemRanker",
    "ItemRanking",
    "RankItem",
    "Shown",
    "before_those_who_ask",
    "group_of",
]

Shown = Literal["title", "text", "title_text"]
"""What a ranker reads of an item."""

Asker = Literal["neutral", "unprotected", "protected"]
"""For whom a model ranks: nobody in particular, or members of one of the two groups."""

MAX_ASKER_CHARACTERS = 100


@dataclass(frozen=True, slots=True)
class RankItem:
    """What a ranker may know of a document.

    Attributes:
        id: Unique in a list.
        title: May be empty.
        text: May be empty.
    """

    id: str
    title: str
    text: str

    def shown(self, what: Shown) -> str:
        """Return what a ranker reads; an item that lacks it shows what it has."""
        if what == "title":
            return self.title or self.text
        if what == "text":
            return self.text or self.title
        return "\n".join(part for part in (self.title, self.text) if part)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a ranking, or several, will cost at the most, known before anything is asked.

    Attributes:
        calls: Questions to a language model; 0 for a model that scores by itself.
        tokens: Read and written, roughly.
    """

    calls: int = 0
    tokens: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.calls + other.calls, self.tokens + other.tokens)


@dataclass(frozen=True, slots=True)
class ItemRanking:
    """The items in the order of a ranker.

    Attributes:
        order: Positions in the list that was given, best first; each exactly once.
        asked: How many questions the order rests on: windows, or comparisons in both orders; 0 for
            a model that scores by itself.
        failures: How many of them failed, by status; the order there is as it was before.
        repairs: How often replies were mended, by kind (``missing``, ``duplicate``, ``stranger``),
            in items.
        scores: One for each position of the list that was given, where the ranker gives any.
        usage: What it cost.
        warnings: What a user should know, whole sentences.
        message: Why the last question that failed did, for people; empty where no more is known
            than the status.
    """

    order: tuple[int, ...]
    asked: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    repairs: Mapping[str, int] = field(default_factory=dict)
    scores: tuple[float, ...] | None = None
    usage: Usage = Usage()  # noqa: RUF009 - frozen
    warnings: tuple[str, ...] = ()
    message: str = ""

    @property
    def failed(self) -> bool:
        """Whether no question was answered, so that the order is the one that was given."""
        return self.asked > 0 and sum(self.failures.values()) >= self.asked


class ItemRanker(Protocol):
    """Puts items into an order by their relevance to a query."""

    @property
    def name(self) -> str:
        """What ranks, as it stands in results, e.g. ``listwise(local:smollm2-135m, 20/10)``."""
        ...

    async def start(self) -> None:
        """Make ready.

        Raises:
            ModelUnavailableError: Something is missing.
            PromptError: The prompt cannot be used.
        """
        ...

    def cost(self, query: str, items: Sequence[RankItem], group: str = "") -> Cost:
        """Return what :meth:`rank` will cost at the most; arguments are its own."""
        ...

    async def rank(
        self,
        query: str,
        items: Sequence[RankItem],
        *,
        group: str = "",
        deadline: float | None = None,
    ) -> ItemRanking:
        """Rank the items; never raises for what a model does wrong.

        Args:
            query: As the user wrote it.
            items: In the order that the ranker sees first; it matters to many.
            group: Who asks: what stands before those who ask, such as ``female``, or before the
                query for models that read one document at a time. Empty for nobody in particular.
            deadline: Seconds from now after which nothing more is asked.

        Raises:
            ModelUnavailableError: As :meth:`start` raises it.
            InputError: Not even two items fit into what the model reads at once.
        """
        ...


def group_of(asker: str, words: Sequence[str]) -> str:
    """Return the word for those who ask; empty for nobody in particular.

    Args:
        asker: An :data:`Asker`.
        words: What the protected side and the other one are called.
    """
    return {"protected": words[0], "unprotected": words[1]}.get(asker, "")


def before_those_who_ask(group: str) -> str:
    """Return what stands in a prompt before those who ask: the word and a space, or nothing."""
    word = fence(group, MAX_ASKER_CHARACTERS)
    return f"{word} " if word else ""
