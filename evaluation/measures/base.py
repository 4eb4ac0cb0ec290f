"""What all measures have in common."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Literal, Self

import numpy as np

from fairqr.base.errors import InputError
from fairqr.evaluation.batch import Batch
from fairqr.evaluation.collections.labels import Groups
from fairqr.evaluation.collections.query_targets import TargetRule
from fairqr.evaluation.scores import Reason, Score, Scores, Undefined
from fairqr.retrieval.dimension import Dimension

__all__ = ["Convention", "Measure", "Need", "QueryMeasure", "RankingMeasure", "value_text"]

Convention = Literal["trec2022"]
"""Whose definitions are taken, where they differ from the defaults."""

DEEPEST = 1_000_000
_QUOTED = frozenset(',()="@*×')


class Need(StrEnum):
    """What a measure needs besides a run."""

    QRELS = "qrels"
    GROUPS = "groups"
    TARGET = "target"
    SAMPLES = "samples"


@dataclass(frozen=True, kw_only=True)
class Measure(ABC):
    """A measure with its parameters.

    ``str(measure)`` is its text, such as ``AWRF@20(attribute=gender)``, which
    :func:`fairqr.evaluation.measures.text.parse_measure` reads back. Parameters that have their
    default are left out of it.

    Attributes:
        k: The cut-off; None for the whole list.
    """

    name: ClassVar[str]
    """How the text begins."""
    aliases: ClassVar[tuple[str, ...]] = ()
    """What else it may begin with."""
    cutoff: ClassVar[bool] = False
    """Whether it must have a k."""
    higher_is_better: ClassVar[bool | None] = True
    """None where neither end is better."""
    best: ClassVar[str] = "1 is best"
    """Which value is best or fair, for people."""
    range: ClassVar[str] = "0 to 1"
    """The values it can have, and their unit."""
    summary: ClassVar[str]
    """What it is, in one line."""
    example: ClassVar[str]
    """How it is usually written."""
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """The values that a parameter can have besides None."""

    k: int | None = None

    def __post_init__(self) -> None:
        if self.k is not None and not 1 <= self.k <= DEEPEST:
            raise InputError(
                f"The cut-off of {self.name} must be at least 1 and at most {DEEPEST:,}, "
                f"not {self.k}."
            )
        if self.k is None and self.cutoff:
            raise InputError(f"{self.name} needs a cut-off; write {self.name}@20.")
        for parameter, choices in self.choices.items():
            value = getattr(self, parameter)
            if value is not None and value not in choices:
                raise InputError(
                    f"{self.name} has no {parameter} '{value}'; choose {' or '.join(choices)}."
                )

    @property
    def needs(self) -> frozenset[Need]:
        """What it needs besides a run."""
        return frozenset()

    @property
    def counts_missing(self) -> bool:
        """Whether a query that the run lacks counts as 0, where nothing else is asked for."""
        return False

    @property
    def takes_attribute(self) -> bool:
        """Whether the attribute to be fair about is still to be named."""
        return False

    def with_attribute(self, attribute: str) -> Self:
        """Return the measure for this attribute; unchanged where it needs none or has one."""
        return self

    def for_target(self, rule: TargetRule) -> Self:
        """Return the measure with the policy for the unknown that a target goes with."""
        return self

    @property
    def depth(self) -> int:
        """The cut-off of a measure that has to have one."""
        if self.k is None:
            raise InputError(f"{self.name} needs a cut-off; write {self.name}@20.")
        return self.k

    def check(self, groups: Groups | None) -> None:
        """Raise where the measure cannot be computed with these groups.

        Raises:
            InputError: Something is missing or does not fit.
        """
        if groups is None and Need.GROUPS in self.needs:
            raise InputError(
                f"{self} needs the groups of the documents; name them with --documents or --corpus."
            )

    def targeted(self, groups: Groups) -> list[Dimension]:
        """Return what is held against the target of the evaluation."""
        return []

    @abstractmethod
    def values(self, batch: Batch) -> Scores:
        """Return for each query its value, or the reason why there is none."""

    def parameters(self) -> dict[str, object]:
        """Return the parameters that differ from their defaults, the cut-off aside."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "k" and getattr(self, field.name) != field.default
        }

    def settings(self) -> dict[str, str | int | None]:
        """Return all parameters, those that have their default included."""
        return {
            field.name: value if value is None or isinstance(value, int) else str(value)
            for field in dataclasses.fields(self)
            for value in [getattr(self, field.name)]
        }

    def __str__(self) -> str:
        cutoff = "" if self.k is None else f"@{self.k}"
        listed = ",".join(f"{n}={value_text(v)}" for n, v in self.parameters().items())
        return self.name + cutoff + (f"({listed})" if listed else "")


class RankingMeasure(Measure):
    """A measure of one ranking; of several rankings of a query it is the mean over them.

    Rankings without a value are left out of that mean; the query has none only if no ranking has.
    """

    def values(self, batch: Batch) -> Scores:
        """Return the mean over the rankings of each query, or the reason why there is none."""
        own = self.of_rankings(batch)
        size, known = len(batch.queries), ~np.isnan(own.values)
        counts = np.bincount(batch.owner[known], minlength=size)
        sums = np.bincount(batch.owner[known], own.values[known], size)
        means = np.divide(sums, counts, out=np.full(size, np.nan), where=counts > 0)
        why = dict.fromkeys(batch.missing(), Undefined(Reason.MISSING))
        for query in np.flatnonzero(counts == 0).tolist():
            if query not in why:
                why[query] = own.why[batch.of_query(query).start]
        return Scores(means, why).without(self.why_undefined(batch))

    def why_undefined(self, batch: Batch) -> Mapping[int, Undefined]:
        """Return which queries have no value whatever is ranked, by position."""
        return {}

    @abstractmethod
    def of_rankings(self, batch: Batch) -> Scores:
        """Return the value of each ranking."""


class QueryMeasure(Measure):
    """A measure of all rankings of a query together."""

    def values(self, batch: Batch) -> Scores:
        """Return the value of each query that has rankings."""
        missing = set(batch.missing())
        return Scores.of(
            [
                Undefined(Reason.MISSING) if query in missing else self.of_query(batch, query)
                for query in range(len(batch.queries))
            ]
        )

    @abstractmethod
    def of_query(self, batch: Batch, query: int) -> Score:
        """Return the value of the query at this position."""


def value_text(value: object) -> str:
    """Write the value of a parameter so that it is read back; quoted where it could mislead."""
    text = repr(value).removesuffix(".0") if isinstance(value, float) else str(value)
    plain = text == text.strip() and text and text.isprintable()
    nested = text.endswith(")") and "(" in text and not _QUOTED & set(text[:-1].replace("(", "", 1))
    product = not _QUOTED & set(text.replace("×", ""))
    if plain and (nested or product):
        return text
    return '"' + text.replace('"', '""') + '"'
