"""What a run is asked to do: the context of the graph, checked at the edge and never changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from fairqr.agents.ranking.open import RankerName
from fairqr.base.errors import InputError, first_problem
from fairqr.graph.search.ranking_context import READS, RankingSettings
from fairqr.retrieval.divergence import DEFAULT_SMOOTHING, DEFAULT_THRESHOLD, Direction
from fairqr.retrieval.exposure import Discount
from fairqr.retrieval.rerank import RRF_K
from fairqr.retrieval.target import DEFAULT_TARGET, Target

__all__ = [
    "METHODS",
    "Budget",
    "Context",
    "FinalStep",
    "Method",
    "Strategy",
    "WrittenTarget",
    "checked_context",
    "make_context",
]

Method = Literal[
    "fairqr",
    "fair-qr",
    "plain",
    "mmr",
    "fa-ir",
    "deltr",
    "dlf",
    "listwise",
    "pairwise",
    "monot5",
    "monobert",
]
Pool = Literal["last", "union", "per_group"]
Order = Literal["original_query", "fusion", "none"]
Rerank = Literal[Order, RankerName]
Groups = Literal["most", "lacking", "all"]
FinalStep = Literal["exposure-aware", "mmr", "fa-ir", "deltr", "dlf", "none"]
"""A re-ranker of :mod:`fairqr.retrieval.rerankers`, or ``none``."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """How a method refines, what it re-ranks, and how.

    Attributes:
        about: One line for people.
        refines: Whether it refines the query at all. One that does never returns a ranking that is
            farther from the target than the plain retrieval; a baseline returns what it returns.
        groups: Asked about in one round: the ``most`` under-represented group, those ``lacking``
            exposure, or ``all``, since each answer has words of the topic too. Queries are refined
            toward those alone that lack exposure.
        pool: Which documents are re-ranked: what the ``last`` refined queries retrieved, the
            ``union`` of all that was retrieved, or the best of each group's refined query
            (``per_group``).
        rerank: By the ``original_query`` (the paper), by ``fusion`` of all rankings, or ``none``.
        ranker: A model that then re-ranks by the original query the best of these documents; one
            of :data:`fairqr.agents.ranking.open.RANKERS`, or None.
        reads: How many of them it reads; the others keep their places below.
        final_step: The re-ranker that then puts the first k together.
        evidence: Whether a keyword needs evidence in the index: that it is of the query's topic, or
            of the group. It then adds to the scores of what the query finds, and finds nothing by
            itself; others are dropped. Otherwise all keywords are added to the query.
        depth: How many documents each query retrieves; k where None.
    """

    about: str
    refines: bool = False
    groups: Groups = "all"
    pool: Pool = "union"
    rerank: Order = "none"
    ranker: RankerName | None = None
    reads: int = 0
    final_step: FinalStep = "none"
    evidence: bool = False
    depth: int | None = 200


METHODS: dict[Method, Strategy] = {
    "fairqr": Strategy(
        "the default: asks about all groups at once, refines toward those that lack exposure, "
        "fuses the rankings, and fills the ranks toward the target",
        refines=True,
        rerank="fusion",
        final_step="exposure-aware",
        evidence=True,
    ),
    # A pool that also held the original top k would be the original ranking again, so it is k deep.
    "fair-qr": Strategy(
        "the loop of Chen & Fang (2025): refines for the most under-represented group, and "
        "re-ranks what the last query retrieved by the original query",
        refines=True,
        groups="most",
        pool="last",
        rerank="original_query",
        depth=None,
    ),
    "plain": Strategy("the retriever's own ranking, and nothing else"),
    "mmr": Strategy("maximal marginal relevance (Carbonell & Goldstein 1998)", final_step="mmr"),
    "fa-ir": Strategy("FA*IR (Zehlike et al. 2017, 2022)", final_step="fa-ir"),
    "deltr": Strategy("DELTR (Zehlike & Castillo 2020)", final_step="deltr"),
    "dlf": Strategy("DLF (Chen & Fang 2023)", final_step="dlf"),
    "listwise": Strategy(
        "plain retrieval, whose first 100 documents a language model re-ranks by sliding windows "
        "(RankGPT, Sun et al. 2023); then the exposure-aware step",
        ranker="listwise",
        final_step="exposure-aware",
    ),
    "pairwise": Strategy(
        "the same with the first 20 documents and a language model that compares two at a time, "
        "in both orders (PRP, Qin et al. 2024)",
        ranker="pairwise",
        final_step="exposure-aware",
    ),
    "monot5": Strategy(
        "the same with the first 100 documents and monoT5 (Nogueira et al. 2020)",
        ranker="monot5",
        final_step="exposure-aware",
    ),
    "monobert": Strategy(
        "the same with the first 100 documents and monoBERT (Nogueira & Cho 2019)",
        ranker="monobert",
        final_step="exposure-aware",
    ),
}


class Budget(BaseModel):
    """What one run may spend on models. The loop stops, with its best so far, when it is spent."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model_calls: int | None = Field(None, ge=0)
    tokens: int | None = Field(None, ge=0)
    seconds: float | None = Field(None, gt=0)


def _parse_discount(value: object) -> object:
    return Discount.parse(value) if isinstance(value, str) else value


def _parse_target(value: object) -> object:
    if isinstance(value, str) or (
        isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
    ):
        return Target.parse(value)
    return value


WrittenTarget = Annotated[Target, BeforeValidator(_parse_target)]
"""A target, which may be given as a text or as several texts."""


class Context(BaseModel):
    """What a run is asked to do.

    Attributes:
        attributes: Which attributes to measure and mend; all of the schema where empty.
        intersect: Measure the product of the attributes as one attribute.
        target: ε*, by parts or by shares.
        k: How many results to show, and how deep exposure is measured.
        method: One of :data:`METHODS`.
        depth, pool, rerank, final_step, evidence, groups: Instead of the method's own; see
            :class:`Strategy`. A ranker may be named as ``rerank``: it re-ranks the order that the
            method has by itself. With a ranker, ``depth`` is also how many documents that reads.
        ranking: How a ranker works.
        options: Of the final step; see :mod:`fairqr.retrieval.rerankers`.
        discount: The weight of each rank.
        threshold: Stop when the divergence (nats) is at or below it.
        direction: Of the Kullback–Leibler divergence.
        smoothing: Of both distributions in it.
        patience: Stop when the divergence did not decrease for so many rounds.
        max_iterations: Rounds of refinement at the most.
        max_groups: Groups asked about in one round at the most; those that lack most.
        rrf_k: Of reciprocal rank fusion.
        prompts: The version of each prompt by id, e.g. ``{"refine": "v2"}``.
        temperature: Of refinement; the prompt's own where None.
        seed: Of refinement, where the model supports one, and of the rankings that are sampled to
            answer from; drawn, and reported, where None.
        budget: What models may cost; the loop stops when it is spent.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    attributes: tuple[str, ...] = ()
    intersect: bool = False
    target: WrittenTarget = DEFAULT_TARGET
    k: int = Field(20, ge=1, le=10_000)
    method: Method = "fairqr"
    depth: int | None = Field(None, ge=1, le=100_000)
    pool: Pool | None = None
    rerank: Rerank | None = None
    final_step: FinalStep | None = None
    ranking: RankingSettings = RankingSettings()
    options: dict[str, Any] = {}
    evidence: bool | None = None
    groups: Groups | None = None
    discount: Annotated[Discount, BeforeValidator(_parse_discount)] = Discount()
    threshold: float = Field(DEFAULT_THRESHOLD, ge=0)
    direction: Direction = "target_exposure"
    # Without any, or with next to none, an absent group would be infinitely far, and rounds could
    # not be compared.
    smoothing: float = Field(DEFAULT_SMOOTHING, ge=1e-12, lt=1)
    patience: int = Field(1, ge=1)
    max_iterations: int = Field(5, ge=0, le=100)
    max_groups: int = Field(4, ge=1)
    rrf_k: int = Field(RRF_K, ge=0)
    prompts: dict[str, str] = {}
    temperature: float | None = Field(None, ge=0, le=2)
    seed: int | None = None
    budget: Budget = Budget()

    @model_validator(mode="after")
    def _depth_reaches_k(self) -> Context:
        if self.depth is not None and self.depth < self.k:
            raise ValueError(f"depth is {self.depth}, but k is {self.k}; retrieve at least as many")
        return self

    @model_validator(mode="after")
    def _ranking_is_for_a_ranker(self) -> Context:
        if self.ranking != RankingSettings() and self.strategy.ranker is None:
            raise ValueError(
                "ranking says how a model re-ranks, and none does here; leave it out, or name a "
                f"ranker as method or rerank: {', '.join(READS)}"
            )
        return self

    @cached_property
    def strategy(self) -> Strategy:
        """The method's strategy, with what this context says instead."""
        own = METHODS[self.method]
        order, ranker = self._reranked_by(own)
        reads = (self.ranking.depth or self.depth or READS[ranker]) if ranker else 0
        return dataclasses.replace(
            own,
            groups=self.groups or own.groups,
            pool=self.pool or own.pool,
            rerank=order,
            ranker=ranker,
            reads=reads,
            final_step=self.final_step or own.final_step,
            evidence=own.evidence if self.evidence is None else self.evidence,
            depth=max(self.depth or own.depth or self.k, self.k, self.ranking.depth or 0),
        )

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy, with other values where ``update`` gives them."""
        copy = super().model_copy(update=update, deep=deep)
        copy.__dict__.pop("strategy", None)  # computed from the old values
        return copy

    def _reranked_by(self, own: Strategy) -> tuple[Order, RankerName | None]:
        """Return the order before a ranker, and the ranker."""
        if self.rerank is None:
            return own.rerank, own.ranker
        if self.rerank in READS:
            return own.rerank, self.rerank  # type: ignore[return-value]
        return self.rerank, None  # type: ignore[return-value]

    @property
    def rounds(self) -> int:
        """How many rounds of refinement there may be; none for a method that does not refine."""
        return self.max_iterations if self.strategy.refines else 0


C = TypeVar("C", bound=Context)


def make_context(**values: object) -> Context:
    """Check the values of a search's context; see :func:`checked_context`."""
    return checked_context(Context, values)


def checked_context(kind: type[C], values: Mapping[str, object]) -> C:
    """Check the values of a context; those that are None count as not given.

    Args:
        kind: Of the context.
        values: By the names of its fields. ``attribute`` is one attribute or several, instead of
            ``attributes``.

    Raises:
        InputError: One is wrong; the message names it and what is allowed.
    """
    given = {name: value for name, value in values.items() if value is not None}
    if (attribute := given.pop("attribute", None)) is not None:
        given["attributes"] = [attribute] if isinstance(attribute, str) else attribute
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        where, reason = first_problem(error)
        named = f"The parameter '{where}' is wrong" if where else "The parameters do not fit"
        raise InputError(f"{named}: {reason}.") from None
