"""What a probe writes down: one ranking, or one pair that was asked about in both orders."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, ConfigDict

from fairqr.agents.ranking.item_ranker import Asker
from fairqr.agents.replies import Usage

__all__ = ["PairRecord", "RankingRecord", "Spent", "spent_of", "total_spent"]

PASSING = frozenset({"rate_limited", "timeout", "unavailable"})
"""The statuses of failures that say nothing of a model; what failed so is asked again when a run
goes on."""


class Spent(BaseModel):
    """What asking cost; what the cache answered counts as when it was first asked.

    Attributes:
        model_calls: Requests.
        tokens: Read and written.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model_calls: int = 0
    tokens: int = 0


class RankingRecord(BaseModel):
    """How a ranker put the items of a query.

    Attributes:
        collection: The name of the probe collection.
        ranker: As the experiment names it.
        window: ``size/step`` for listwise rankers; empty for others.
        asker: For whom.
        query: Of the collection.
        order: Positions in the query's items, best first; each once.
        asked: Questions that the order rests on; see
            :class:`fairqr.agents.ranking.item_ranker.ItemRanking`.
        failures: By status.
        repairs: By kind, in items.
        warnings: What a reader should know, whole sentences.
        spent: What it cost.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    collection: str
    ranker: str
    window: str = ""
    asker: Asker = "neutral"
    query: str
    order: tuple[int, ...]
    asked: int = 0
    failures: dict[str, int] = {}
    repairs: dict[str, int] = {}
    warnings: tuple[str, ...] = ()
    spent: Spent = Spent()

    @property
    def key(self) -> tuple[str, ...]:
        """What tells records apart."""
        return (self.collection, self.ranker, self.window, self.asker, self.query)

    @property
    def failed(self) -> bool:
        """Whether no question was answered; such a ranking counts in no measure."""
        return self.asked > 0 and sum(self.failures.values()) >= self.asked

    @property
    def is_final(self) -> bool:
        """Whether asking again would be no use; replies that were kept cost nothing then."""
        return not PASSING & self.failures.keys()


class PairRecord(BaseModel):
    """What a model said of a pair, asked once with each item first.

    Attributes:
        collection: The name of the probe collection.
        model: As the experiment names it.
        query: Of the collection.
        kind: Whether both items are relevant or both are not; ``relevance`` for a relevant item
            (which then stands as ``protected``) and an irrelevant one of the same group.
        protected: The id of the protected item.
        unprotected: The id of the other.
        protected_first: What was preferred where the protected item stood first: ``protected``,
            ``unprotected``, or the status of what failed.
        unprotected_first: The same where the other stood first.
        log_odds: For both orders ln P(first label) − ln P(second label), where the model was
            weighed; None where it was asked for a reply or failed.
        spent: What it cost.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    collection: str
    model: str
    query: str
    kind: Literal["relevant", "irrelevant", "relevance"]
    protected: str
    unprotected: str
    protected_first: str
    unprotected_first: str
    log_odds: tuple[float | None, float | None] = (None, None)
    spent: Spent = Spent()

    @property
    def key(self) -> tuple[str, ...]:
        """What tells records apart."""
        return (
            self.collection,
            self.model,
            self.query,
            self.kind,
            self.protected,
            self.unprotected,
        )

    @property
    def is_final(self) -> bool:
        """Whether asking again would be no use."""
        return not PASSING & {self.protected_first, self.unprotected_first}


def spent_of(usage: Usage) -> Spent:
    """Return what asking cost, cached replies as when they were made."""
    return Spent(
        model_calls=usage.model_calls + usage.cached_calls,
        tokens=usage.prompt_tokens + usage.completion_tokens + usage.cached_tokens,
    )


def total_spent(each: Iterable[Spent]) -> Spent:
    """Add up what several cost."""
    calls = tokens = 0
    for one in each:
        calls, tokens = calls + one.model_calls, tokens + one.tokens
    return Spent(model_calls=calls, tokens=tokens)
