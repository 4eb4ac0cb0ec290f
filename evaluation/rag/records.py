"""What a Fair RAG experiment keeps: one line for each policy on each query."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["AnswerRecord", "LabelRecord", "Policy", "PolicyRecord"]

Policy = Literal["deterministic", "plackett-luce", "oracle"]
"""The retriever's one ranking; samples of it at an α; or useful documents first, in random order
otherwise, which no retriever can do."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class LabelRecord(_Part):
    """Which documents of a query's pool help a generator.

    Attributes:
        query: Its id.
        without: The utility of the answer that saw no document; None where the generator failed.
        gains: By the id of a document the utility of the answer that saw it alone, less
            ``without``; None where the generator failed. Useful are those above 0.
        failures: How many answers failed, by status.
        model_calls, tokens, milliseconds: What it cost, cached replies as when they were made.
    """

    query: str
    without: float | None
    gains: dict[str, float | None]
    failures: dict[str, int] = {}
    model_calls: int = 0
    tokens: int = 0
    milliseconds: float = 0.0


class AnswerRecord(_Part):
    """What was generated from one ranking, and what it used.

    Attributes:
        ranking: The first k, as positions in the pool.
        times: How many of the generated samples had this ranking.
        status: Of the generation; ``ok`` or why there is no answer.
        text: The answer; empty unless ``ok``.
        utility: None unless ``ok`` or ``empty``, which is worth 0.
        used: For each document of the ranking whether the answer used it; None where it could not
            be judged.
    """

    ranking: tuple[int, ...]
    times: int = Field(ge=1)
    status: str
    text: str = ""
    utility: float | None = None
    used: tuple[bool | None, ...] = ()


class PolicyRecord(_Part):
    """A policy on one query.

    Attributes:
        collection, generator, retriever, policy, alpha, seed, query: Which one. The retriever is
            empty for the oracle, and α is there for ``plackett-luce`` alone.
        pool: The ids of the documents; positions below are places in it.
        useful: The positions of those that are useful to this generator.
        k: How many documents the generator reads.
        samples: The rankings that were drawn, each cut at min(k, n); one for ``deterministic``.
        answers: For the distinct rankings among the first samples, those that were generated from.
        model_calls, tokens, milliseconds: What the answers and their attribution cost; a ranking
            that another policy had before costs nothing again.
        failure: Why there is nothing; empty if there is.
    """

    collection: str
    generator: str
    retriever: str
    policy: Policy
    alpha: float | None
    seed: int
    query: str
    pool: tuple[str, ...] = ()
    useful: tuple[int, ...] = ()
    k: int = Field(ge=1)
    samples: tuple[tuple[int, ...], ...] = ()
    answers: tuple[AnswerRecord, ...] = ()
    model_calls: int = 0
    tokens: int = 0
    milliseconds: float = 0.0
    failure: str = ""

    @model_validator(mode="after")
    def _fits_its_pool(self) -> PolicyRecord:
        places, length = range(len(self.pool)), min(self.k, len(self.pool))
        if not _are_distinct(self.useful, places):
            raise ValueError("'useful' has what is no place in the pool, or one twice")
        for ranking in self._rankings():
            if len(ranking) != length or not _are_distinct(ranking, places):
                raise ValueError(f"a ranking is not made of {length} places in the pool")
        if any(len(answer.used) not in (0, length) for answer in self.answers):
            raise ValueError("an answer has verdicts of other documents than its ranking's")
        return self

    def _rankings(self) -> Iterator[tuple[int, ...]]:
        yield from self.samples
        yield from (answer.ranking for answer in self.answers)

    @property
    def key(self) -> tuple[str, str, str, str, float | None, int, str]:
        """What tells it from the others."""
        return (
            self.collection,
            self.generator,
            self.retriever,
            self.policy,
            self.alpha,
            self.seed,
            self.query,
        )


def _are_distinct(positions: tuple[int, ...], places: range) -> bool:
    return len(set(positions)) == len(positions) and all(place in places for place in positions)
