"""The product of measures, such as nDCG × AWRF, query by query."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from fairqr.base.errors import InputError
from fairqr.evaluation.batch import Batch
from fairqr.evaluation.collections.labels import Groups
from fairqr.evaluation.collections.query_targets import TargetRule
from fairqr.evaluation.measures.base import Measure, Need, RankingMeasure
from fairqr.evaluation.scores import Scores, Undefined
from fairqr.retrieval.fairness.dimension import TIMES, Dimension


@dataclass(frozen=True, kw_only=True)
class Product(RankingMeasure):
    """The product of two or more measures of a ranking, for each query; its mean is taken after.

    ``nDCG@20×AWRF@20`` is the measure of task 1 of TREC Fair and of FAIR-QR. It has no value if
    a factor has none. If a query missing from the run counts as 0 for a factor, the product is 0.

    Attributes:
        factors: Measures whose higher values are better.
    """

    name: ClassVar[str] = "×"
    best = "the high end is best"
    range = "0 to 1 where its factors are"
    summary = "the product of measures, query by query, such as nDCG@20×AWRF@20"
    example = "nDCG@20×AWRF@20(attribute=gender)"

    factors: tuple[Measure, ...] = ()

    def __post_init__(self) -> None:
        if len(self.factors) < 2:
            raise InputError("A product needs at least two measures; write nDCG@20×AWRF@20.")
        for factor in self.factors:
            if not isinstance(factor, RankingMeasure) or not factor.higher_is_better:
                raise InputError(
                    f"{factor} cannot be a factor: a product is of measures of one ranking "
                    "that are better the higher they are, such as nDCG@20 and AWRF@20."
                )

    @property
    def counts_missing(self) -> bool:
        """Whether a query missing from the run counts as 0, as for one of the factors."""
        return any(factor.counts_missing for factor in self.factors)

    @property
    def needs(self) -> frozenset[Need]:
        """What any factor needs."""
        return frozenset().union(*(factor.needs for factor in self.factors))

    @property
    def takes_attribute(self) -> bool:
        """Whether a factor still needs an attribute."""
        return any(factor.takes_attribute for factor in self.factors)

    def with_attribute(self, attribute: str) -> Self:
        """Return the product with this attribute in the factors that need one."""
        return replace(self, factors=tuple(f.with_attribute(attribute) for f in self.factors))

    def for_target(self, rule: TargetRule) -> Self:
        """Return the product with the policy that a target implies in its factors."""
        return replace(self, factors=tuple(f.for_target(rule) for f in self.factors))

    def check(self, groups: Groups | None) -> None:
        """Raise if a factor cannot be computed."""
        for factor in self.factors:
            factor.check(groups)

    def targeted(self, groups: Groups) -> list[Dimension]:
        """Return the dimensions that any factor compares with the target."""
        return [dimension for factor in self.factors for dimension in factor.targeted(groups)]

    def why_undefined(self, batch: Batch) -> Mapping[int, Undefined]:
        """Return why a factor has no value; the first factor's reason takes precedence."""
        why: dict[int, Undefined] = {}
        for factor in reversed(self._rankings()):
            why.update(factor.why_undefined(batch))
        return why

    def of_rankings(self, batch: Batch) -> Scores:
        """Return the product for each ranking."""
        scores = [factor.of_rankings(batch) for factor in self._rankings()]
        why: dict[int, Undefined] = {}
        for own in reversed(scores):
            why.update(own.why)
        return Scores(np.prod([own.values for own in scores], axis=0), why)

    def settings(self) -> dict[str, str | int | None]:
        """Return the factors."""
        return {"factors": str(self)}

    def _rankings(self) -> list[RankingMeasure]:
        return [factor for factor in self.factors if isinstance(factor, RankingMeasure)]

    def __str__(self) -> str:
        return TIMES.join(map(str, self.factors))


def factors(measures: Iterable[Measure]) -> Iterator[Measure]:
    """Yield measures, and the factors of products in place of these."""
    for measure in measures:
        yield from measure.factors if isinstance(measure, Product) else (measure,)
