"""What an audit is asked to measure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from fairqr.base.errors import TargetError
from fairqr.evaluation.collections.query_targets import as_target
from fairqr.evaluation.experiments.options import Count, Seed
from fairqr.retrieval.fairness.exposure import Discount, DiscountText
from fairqr.retrieval.fairness.target import AUDIT_TARGET, Target


def _target(value: Any) -> object:
    if isinstance(value, Mapping):  # as a manifest has it
        return value
    target = as_target(value, AUDIT_TARGET)
    if isinstance(target, str):
        raise TargetError(f"An audit has no target {target}; write a mixture, such as uniform:1.")
    return target


class AuditSpec(BaseModel, frozen=True, extra="forbid"):
    """What is asked and measured; the same values give the same audit."""

    attributes: tuple[str, ...] = Field((), description="Attributes to measure; defaults to all.")
    intersections: bool = Field(True, description="Measure combinations of two attributes, too.")
    k: Count = Field(20, description="How many results count as shown.")
    depth: Count = Field(100, description="How many to ask for: those after k are not shown.")
    discount: DiscountText = Field(
        Discount(),
        description="Attention by rank: log2, trec, inverse_log, rbp(p), top_k(k) or "
        "weights(1, 0.6, …); --clicks measures it.",
    )
    target: Annotated[Target, BeforeValidator(_target)] = Field(
        AUDIT_TARGET,
        description="The exposure that each group should get: a mixture of relevance, population, "
        "uniform and corpus, or shares of one attribute, such as gender=female:0.5,male:0.5.",
    )
    judge: Literal["relevance", "estimate"] = Field(
        "relevance",
        description="What judgements are for: they say what is relevant; or, if only some queries "
        "have them, how far the estimate of relevance is off.",
    )
    reference: dict[str, str] = Field(
        {},
        description="The group of an attribute that ratios are to, such as "
        "reference.gender=male; by default the one with the highest rate.",
    )
    sample: Count | None = Field(None, description="Queries to draw, by weight; defaults to all.")
    widen: bool = Field(
        True,
        description="Look for candidates of each group by a query of its own, if the engine "
        "can search within a group, and further down if all that was found is likely relevant.",
    )
    rerank: int = Field(100, ge=0, description="For how many queries to make a fair re-ranking.")
    pairs_by: str = Field(
        "engine",
        description="What scores the versions of --pairs: the audited engine, or what reads texts: "
        "bm25, dense[:ENCODER], rerank:URL, monot5 or monobert.",
    )
    failures: float = Field(
        0.1,
        ge=0,
        le=1,
        description="The share of the queries that may fail, or have more relevant documents than "
        "were looked at; above it no verdict is given.",
    )
    rare: float = Field(
        5,
        ge=0,
        description="Queries that were asked less often than this are not printed in the report. "
        "If nothing says how often, all are printed.",
    )
    seed: Seed = Field(0, description="Chooses the sample, and the signs of the tests.")

    @model_validator(mode="after")
    def _looks_deeper_than_k(self) -> AuditSpec:
        if self.depth <= self.k:
            raise ValueError(f"depth is {self.depth} and k is {self.k}; depth must be above k")
        return self
