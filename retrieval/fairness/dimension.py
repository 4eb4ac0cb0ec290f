"""A dimension of fairness: one attribute, or the product of several."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.sources.schema import OTHER, Attribute, Schema

TIMES = "×"


@dataclass(frozen=True, slots=True)
class Dimension:
    """What exposure is measured over.

    Attributes:
        attribute: The attribute, or the product as one attribute: its groups have names such as
            ``female × Europe``, and its population is the product of the populations (as if the
            attributes were independent).
        factors: The attributes of the schema that it combines.
    """

    attribute: Attribute
    factors: tuple[Attribute, ...]

    @property
    def name(self) -> str:
        """The attribute's name; ``gender×continent`` for a product."""
        return self.attribute.name

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups, in the order of all vectors over them."""
        return self.attribute.universe

    @classmethod
    def named(cls, schema: Schema, name: str) -> Dimension:
        """Return the dimension with this name, a product if the name contains ``×`` or ``*``.

        Raises:
            UnknownAttributeError: The schema lacks an attribute.
        """
        return cls._of(tuple(schema.attribute(part) for part in factors_of(name)))

    @classmethod
    def _of(cls, factors: tuple[Attribute, ...]) -> Dimension:
        return cls(factors[0] if len(factors) == 1 else _product(factors), factors)

    def parts_of(self, group: str) -> list[str]:
        """Return the groups of the attributes that a group is made of."""
        return group.split(f" {TIMES} ") if len(self.factors) > 1 else [group]

    def is_named(self, group: str) -> bool:
        """Whether a group's name says what it is, as ``other`` of an open attribute does not."""
        pairs = zip(self.factors, self.parts_of(group), strict=True)
        return not any(factor.is_found and part == OTHER for factor, part in pairs)

    @property
    def is_open(self) -> bool:
        """Whether it has groups only once a search finds them."""
        return any(factor.open for factor in self.factors)

    def with_groups(self, found: Mapping[str, Sequence[str]]) -> Dimension:
        """Return the dimension with the groups that were found for its open attributes."""
        factors = tuple(
            factor.with_groups(found[factor.name]) if factor.open else factor
            for factor in self.factors
        )
        return Dimension._of(factors)

    def with_groups_of(self, names: Iterable[str]) -> Dimension:
        """Return the dimension with the groups of its open attributes that these are made of.

        Args:
            names: Groups of the dimension, as a result names them.
        """
        if not self.is_open:
            return self
        rows = [self.parts_of(name) for name in names]
        found = {
            factor.name: list(dict.fromkeys(row[place] for row in rows))
            for place, factor in enumerate(self.factors)
        }
        return self.with_groups(found)

    @property
    def confusion(self) -> FloatArray | None:
        """P(label | group), shape (G, G), as if attributes were confused independently.

        None if the labels of all attributes count as right.
        """
        if all(factor.confusion is None for factor in self.factors):
            return None
        return _kron(rows / rows.sum(axis=1, keepdims=True) for rows in self.counted)

    @property
    def counted(self) -> list[FloatArray]:
        """By attribute, how many checked documents of each group have each label, shape (G, G).

        Rows that sum to 1 are shares, which count as exact.
        """
        counted = []
        for factor in self.factors:
            rows = factor.confusion or {it: {it: 1.0} for it in factor.universe}
            counted.append(np.array([factor.ordered(rows[one]) for one in factor.universe]))
        return counted

    def independent_shares(self, shares: Mapping[str, FloatArray]) -> FloatArray:
        """Return the shares the groups would have if the attributes were independent, shape (G,).

        Args:
            shares: For each attribute, the shares of its groups in the whole corpus.
        """
        return _kron(shares[factor.name] for factor in self.factors)


def factors_of(name: str) -> list[str]:
    """Return the attributes in a name; ``a×b`` and ``a*b`` are products."""
    return name.replace("*", TIMES).split(TIMES)


def _kron(parts: Iterable[FloatArray]) -> FloatArray:
    """Return the Kronecker product, in which the last part varies fastest."""
    return functools.reduce(lambda one, other: np.asarray(np.kron(one, other)), parts)


def _product(factors: Sequence[Attribute]) -> Attribute:
    name = TIMES.join(factor.name for factor in factors)
    if any(factor.open for factor in factors):
        return Attribute.model_construct(name=name, field="", groups=(), open=True)
    every = itertools.product(*(factor.universe for factor in factors))
    groups = tuple(f" {TIMES} ".join(combination) for combination in every)
    population: dict[str, float] | None = None
    if all(factor.population for factor in factors):
        shares = _kron(np.array(f.ordered(f.population or {})) for f in factors)
        population = dict(zip(groups, shares.tolist(), strict=True))
    # We do not check it again: the checks are for what users write.
    return Attribute.model_construct(
        name=name,
        field="",
        groups=groups,
        population=population,
        unknown="exclude",
    )


def dimensions_of(
    schema: Schema, attributes: Sequence[str], *, intersect: bool = False
) -> list[Dimension]:
    """Return what to measure: each attribute, or their product if ``intersect``.

    Args:
        schema: The schema of the corpus.
        attributes: Names of attributes; if empty, all attributes of the schema.
        intersect: Measure the product as one dimension.

    Raises:
        UnknownAttributeError: The schema lacks an attribute.
    """
    names = list(dict.fromkeys(attributes)) or list(schema.attributes)
    return [Dimension.named(schema, name) for name in ([TIMES.join(names)] if intersect else names)]
