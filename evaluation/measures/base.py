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
from fairqr.retrieval.fairness.dimension import Dimension

Convention = Literal["trec2022"]
"""A track whose definitions replace the defaults."""

DEEPEST = 1_000_000
GROUPS_NEEDED = "pass groups in Python, or --corpus on the command line"
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
    """The first word of its text."""
    aliases: ClassVar[tuple[str, ...]] = ()
    """Other names that are read."""
    cutoff: ClassVar[bool] = False
    """Whether it needs a cut-off."""
    higher_is_better: ClassVar[bool | None] = True
    """None if neither end is better."""
    best: ClassVar[str] = "1 is best"
    """The best or fair value in words."""
    range: ClassVar[str] = "0 to 1"
    """The values it can have, and their unit."""
    summary: ClassVar[str]
    """A description in one line."""
    example: ClassVar[str]
    """Its usual text."""
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """The values that a parameter can have besides None."""
    set_by_convention: ClassVar[tuple[str, ...]] = ()
    """The parameters that the convention of a track sets, if the measure takes one."""

    k: int | None = None

    def __post_init__(self) -> None:
        if self.k is not None and not (
            isinstance(self.k, int | np.integer) and 1 <= self.k <= DEEPEST
        ):
            raise InputError(
                f"The cut-off of {self.name} must be a whole number from 1 to {DEEPEST:,}, not "
                f"{self.k}."
            )
        if self.k is None and self.cutoff:
            raise InputError(f"{self.name} needs a cut-off; write {self.name}@20.")
        for parameter, choices in self.choices.items():
            value = getattr(self, parameter)
            if value is not None and value not in choices:
                raise InputError(
                    f"{self.name} has no {parameter} '{value}'; choose {' or '.join(choices)}."
                )
        convention = getattr(self, "convention", None)
        for parameter in self.set_by_convention if convention else ():
            if parameter in self.parameters():
                raise InputError(
                    f"{self.name}(convention={convention}) sets the {parameter}; leave it out."
                )

    @property
    def needs(self) -> frozenset[Need]:
        """What it needs besides a run."""
        return frozenset()

    @property
    def counts_missing(self) -> bool:
        """Whether a query missing from the run counts as 0 by default."""
        return False

    @property
    def takes_attribute(self) -> bool:
        """Whether it still needs an attribute."""
        return False

    def with_attribute(self, attribute: str) -> Self:
        """Return the measure for this attribute; unchanged if it needs none or has one."""
        return self

    def for_target(self, rule: TargetRule) -> Self:
        """Return the measure with the policy for the unknown that a target implies."""
        return self

    @property
    def depth(self) -> int:
        """The cut-off of a measure that needs one."""
        if self.k is None:
            raise InputError(f"{self.name} needs a cut-off; write {self.name}@20.")
        return self.k

    def check(self, groups: Groups | None) -> None:
        """Raise if the measure cannot be computed with these groups.

        Raises:
            InputError: Something is missing or wrong.
        """
        if groups is None and Need.GROUPS in self.needs:
            raise InputError(f"{self} needs the groups of the documents; {GROUPS_NEEDED}.")

    def targeted(self, groups: Groups) -> list[Dimension]:
        """Return the dimensions that are compared with the target of the evaluation."""
        return []

    @abstractmethod
    def values(self, batch: Batch) -> Scores:
        """Return the value of each query, or the reason why it has none."""

    def parameters(self) -> dict[str, object]:
        """Return the parameters that differ from their defaults, without the cut-off."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "k" and getattr(self, field.name) != field.default
        }

    def settings(self) -> dict[str, str | int | None]:
        """Return all parameters, defaults included."""
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

    Rankings without a value are left out of the mean; a query has no value if none of its rankings
    has one.
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
        """Return the queries that have no value for any ranking, by position."""
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
    """Write the value of a parameter so that it can be read back; quoted if it is ambiguous."""
    text = repr(value).removesuffix(".0") if isinstance(value, float) else str(value)
    plain = text == text.strip() and text and text.isprintable()
    nested = text.endswith(")") and "(" in text and not _QUOTED & set(text[:-1].replace("(", "", 1))
    product = not _QUOTED & set(text.replace("×", ""))
    if plain and (nested or product):
        return text
    return '"' + text.replace('"', '""') + '"'
