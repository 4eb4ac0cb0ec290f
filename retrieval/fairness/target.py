"""The target ε*: the distribution of exposure over the groups that a ranking should have."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from pydantic import BaseModel, ConfigDict, model_validator

from fairqr.base.errors import TargetError
from fairqr.retrieval.fairness.exposure import FloatArray, normalise
from fairqr.retrieval.sources.schema import Attribute

Part = Literal["population", "uniform", "corpus", "retrieved", "relevance"]
PARTS: tuple[Part, ...] = get_args(Part)
TOLERANCE = 1e-6


class Target(BaseModel):
    """A mixture of named parts, or explicit shares for an attribute.

    The parts are ``population`` (given in the schema), ``uniform``, ``corpus`` (the share of each
    group in the index), ``retrieved`` (the score-weighted share among the first 500 results of the
    original query, which stands in for relevance at query time) and ``relevance`` (from judgements,
    in evaluation only).

    Attributes:
        parts: The weight of each part; the weights sum to 1.
        shares: For each attribute named here, the shares of its groups, used instead of the parts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    parts: dict[Part, float] = {"retrieved": 0.5, "population": 0.5}
    shares: dict[str, dict[str, float]] = {}

    @model_validator(mode="after")
    def _are_distributions(self) -> Target:
        _check_distribution(self.parts, "the parts of the target")
        for attribute, shares in self.shares.items():
            _check_distribution(shares, f"the target of '{attribute}'")
        return self

    @classmethod
    def parse(cls, texts: str | Sequence[str]) -> Target:
        """Parse targets as written on the command line.

        Args:
            texts: ``retrieved:0.5,population:0.5`` for all attributes, or
                ``gender=female:0.6,male:0.4`` for one.

        Raises:
            TargetError: A part does not exist, a share is negative, or the shares do not sum to 1.
        """
        parts: dict[Part, float] = {}
        shares: dict[str, dict[str, float]] = {}
        for text in [texts] if isinstance(texts, str) else texts:
            attribute, equals, mixture = text.rpartition("=")
            weights = _weights(mixture, text)
            if equals:
                if attribute.strip() in shares:
                    raise TargetError(f"The target of '{attribute.strip()}' is given twice.")
                shares[attribute.strip()] = weights
            elif parts:
                raise TargetError("The parts of the target are given twice; give one mixture only.")
            else:
                for name, weight in weights.items():
                    if name not in PARTS:
                        raise TargetError(
                            f"The target has no part '{name}'; use {', '.join(PARTS)}, "
                            "or write shares of groups, such as gender=female:0.5,male:0.5."
                        )
                    parts[name] = weight
        return cls(parts=parts, shares=shares) if parts else cls(shares=shares)

    def check(self, attributes: Sequence[Attribute]) -> None:
        """Refuse a target that cannot be computed for these attributes.

        The default parts need no population: without one, the retrieved documents alone count.

        Raises:
            TargetError: Shares name an attribute or group that does not exist, or the target needs
                a population that the schema lacks.
        """
        by_name = {attribute.name: attribute for attribute in attributes}
        for name, shares in self.shares.items():
            if name not in by_name:
                raise TargetError(
                    f"The target names the attribute '{name}', which is not measured; "
                    f"measured: {', '.join(by_name)}."
                )
            for group in shares:
                if group not in by_name[name].universe:
                    raise TargetError(
                        f"The target names the group '{group}', which '{name}' does not have; "
                        f"its groups are {', '.join(by_name[name].universe)}."
                    )
        lacking = self.without_population(attributes)
        if lacking and self.parts != DEFAULT_TARGET.parts:
            raise TargetError(
                f"The schema gives no population for '{lacking[0]}'; add one, "
                "or choose a target without it, such as retrieved:0.5,uniform:0.5."
            )

    def without_population(self, attributes: Sequence[Attribute]) -> list[str]:
        """Return the attributes whose population the target needs and the schema lacks."""
        if not self.parts.get("population"):
            return []
        return [a.name for a in attributes if a.name not in self.shares and a.population is None]

    def resolve(
        self, attribute: Attribute, estimates: Mapping[Part, FloatArray] | None = None
    ) -> FloatArray:
        """Return ε* over the attribute's universe; sums to 1.

        Args:
            attribute: The attribute.
            estimates: The distribution of each part that is not in the schema (``corpus``,
                ``retrieved``, ``relevance``). A distribution of all zeros is undefined (no document
                had a label). The other parts share the weight of a part that is undefined or
                missing.

        Raises:
            TargetError: No part of the mixture is defined.
        """
        if attribute.name in self.shares:
            shares = self.shares[attribute.name]
            return np.array([shares.get(group, 0.0) for group in attribute.universe])
        size = len(attribute.universe)
        known = dict(estimates or {})
        if "uniform" in self.parts:
            known["uniform"] = np.full(size, 1 / size)
        population = attribute.population
        if "population" in self.parts and population is not None:
            known["population"] = np.array([population.get(g, 0.0) for g in attribute.universe])
        mixture = np.zeros(size)
        for part, weight in self.parts.items():
            if part in known and weight:
                mixture += weight * normalise(known[part])
        if not mixture.any():
            raise TargetError(
                f"The target of '{attribute.name}' is undefined, because none of the documents it "
                "is estimated from has a label; add a part such as population or uniform."
            )
        return normalise(mixture)

    def in_words(self, attribute: Attribute) -> str:
        """Return how the target of an attribute comes about, as a phrase."""
        if attribute.name in self.shares:
            return "the shares that you gave"
        lacks_population = attribute.population is None
        parts = {
            name: weight
            for name, weight in self.parts.items()
            if weight and not (name == "population" and lacks_population)
        }
        total = sum(parts.values())
        told = [f"{_in_words(weight / total)}{_PARTS[name]}" for name, weight in parts.items()]
        without = "; your source states no population" if len(parts) < len(self.parts) else ""
        return ", ".join(told) + without

    def __str__(self) -> str:
        parts = [",".join(f"{name}:{weight:g}" for name, weight in self.parts.items())]
        for attribute, shares in self.shares.items():
            parts.append(f"{attribute}=" + ",".join(f"{g}:{s:g}" for g, s in shares.items()))
        return " ".join(parts)


_PARTS: dict[Part, str] = {
    "population": "the population in your source",
    "uniform": "the same for all groups",
    "corpus": "what the whole index has",
    "retrieved": "what the results have",
    "relevance": "what the relevant documents have",
}


def _in_words(weight: float) -> str:
    """Return the weight of a part before its name: nothing if it is the only one."""
    if weight == 1:
        return ""
    return "half " if weight == 0.5 else f"{weight:.0%} of "


def _weights(mixture: str, text: str) -> dict[str, float]:
    """Parse ``name:weight,…``; the weights are at least 0 and sum to 1."""
    weights: dict[str, float] = {}
    for item in mixture.split(","):
        name, _, number = item.rpartition(":")
        name = name.strip()
        try:
            weight = float(number)
        except ValueError:
            name = ""
        if not name:
            raise TargetError(
                f"'{text}' is not a target; write retrieved:0.5,population:0.5 "
                "or gender=female:0.5,male:0.5."
            )
        if name in weights:
            raise TargetError(f"The target names '{name}' twice.")
        weights[name] = weight
    try:
        _check_distribution(weights, f"the target '{text}'")
    except ValueError as error:
        sentence = str(error)
        raise TargetError(f"{sentence[0].upper()}{sentence[1:]}.") from None
    return weights


def _check_distribution(weights: Mapping[Any, float], what: str) -> None:
    """Raise ValueError if weights are negative or do not sum to 1."""
    for name, weight in weights.items():
        if not weight >= 0 or math.isinf(weight):
            raise ValueError(f"the share of '{name}' in {what} must be 0 or more, not {weight}")
    if not math.isclose(total := sum(weights.values()), 1, abs_tol=TOLERANCE):
        raise ValueError(f"the shares of {what} must sum to 1, not {total:g}")


def retrieved_distribution(memberships: FloatArray, scores: FloatArray) -> FloatArray:
    """Return the weighted share of each group among retrieved documents.

    A document's weight is its score, such as BM25. If scores cannot be weights (see
    :func:`can_be_weights`), we only use their order, and the weight is 1/rank.

    Args:
        memberships: Shape (n, G), in order of rank.
        scores: Shape (n,).

    Returns:
        Shares that sum to 1, or all zeros if no document has a label, shape (G,).
    """
    values = np.asarray(scores, dtype=np.float64)
    # Divide by the largest, so that the sum of large scores is finite.
    weights = values / values.max() if can_be_weights(values) else 1 / np.arange(1, len(values) + 1)
    return normalise(weights @ memberships)


def can_be_weights(scores: ArrayLike) -> bool:
    """Return whether scores, shape (n,), are finite, not negative, and not all 0.

    Log probabilities and the outputs of many neural models do not qualify.
    """
    values = np.asarray(scores, dtype=np.float64)
    return bool(
        len(values) and np.isfinite(values).all() and values.min() >= 0 and values.max() > 0
    )


DEFAULT_TARGET = Target()
