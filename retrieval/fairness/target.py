"""The target ε*: the distribution of exposure over the groups that a ranking should have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import BaseModel, model_validator

from fairqr.base.errors import TargetError, nearest_names
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.exposure import FloatArray, normalise
from fairqr.retrieval.sources.schema import OTHER, Attribute, check_shares, validated

Part = Literal["population", "uniform", "corpus", "retrieved", "merit", "relevance"]
PARTS: dict[Part, str] = {
    "population": "the population in your source",
    "uniform": "the same for all groups",
    "corpus": "what the whole index has",
    "retrieved": "what the results have",
    "merit": "what the results merit, by how likely each is relevant",
    "relevance": "what the relevant documents have",
}
"""The parts, in words for users."""


class Target(BaseModel, frozen=True, extra="forbid"):
    """A mixture of named parts, or explicit shares for an attribute.

    The parts are ``population`` (given in the schema), ``uniform`` (among the groups found, if an
    attribute is open), ``corpus`` (the share of each group in the index), ``retrieved`` (the
    score-weighted share among the first 500 results of the original query, which stands in for
    relevance at query time), ``merit`` (the share of each group in the sum of their estimated
    probabilities of relevance: exposure by merit, Singh & Joachims 2018; near duplicates share one
    claim, see :mod:`fairqr.retrieval.fairness.claims`) and ``relevance`` (from judgements, in
    evaluation only).

    Attributes:
        parts: The weight of each part; the weights sum to 1.
        shares: For each attribute named here, the shares of its groups, used instead of the parts.
    """

    parts: dict[Part, float] = {"retrieved": 0.5, "population": 0.5}
    shares: dict[str, dict[str, float]] = {}

    @model_validator(mode="after")
    def _are_distributions(self) -> Target:
        check_shares(self.parts, "the target")
        for attribute, shares in self.shares.items():
            check_shares(shares, f"the target of '{attribute}'")
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
        described: dict[str, Any] = {"shares": {}}
        for text in [texts] if isinstance(texts, str) else texts:
            attribute, equals, mixture = text.rpartition("=")
            pairs = [item.rpartition(":") for item in mixture.split(",")]
            weights = {name.strip(): weight for name, _, weight in pairs}
            if not all(weights) or len(weights) < len(pairs):
                raise TargetError(_say_no_target(text))
            if unknown := [name for name in weights if not equals and name not in PARTS]:
                raise TargetError(
                    f"The target has no part '{unknown[0]}'; use {', '.join(PARTS)}, "
                    "or write shares of groups, such as gender=female:0.5,male:0.5."
                )
            held = described["shares"] if equals else described
            name = attribute.strip() if equals else "parts"
            if name in held:
                raise TargetError(f"The target gives {name} twice; give one mixture only.")
            held[name] = weights
        return validated(cls, described, "The target", TargetError)

    def check(self, attributes: Sequence[Attribute]) -> None:
        """Refuse a target that cannot be computed for these attributes.

        The default parts need no population: without one, the retrieved documents alone count.

        Raises:
            TargetError: Shares name an attribute or group that does not exist, or the target needs
                a population that the schema lacks.
        """
        opened = [it.name for it in attributes if it.open and it.name in self.shares]
        if opened:
            raise TargetError(
                f"The groups of '{opened[0]}' are whatever a search finds, so their shares cannot "
                "be given; aim at merit, uniform or retrieved."
            )
        groups = {it.name: it.universe for it in attributes if not it.open}
        for name, shares in self.shares.items():
            if others := [group for group in shares if group not in groups.get(name, ())]:
                measured = "; ".join(f"{it} ({', '.join(own)})" for it, own in groups.items())
                raise TargetError(
                    f"The target names the group '{others[0]}' of '{name}', which is not measured; "
                    f"measured: {measured}."
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
        self, dimension: Dimension, estimates: Mapping[Part, FloatArray] | None = None
    ) -> FloatArray:
        """Return ε* over the groups of a dimension; sums to 1.

        Args:
            dimension: The attribute, or the product of several.
            estimates: The distribution of each part that is not in the schema (``corpus``,
                ``retrieved``, ``merit``, ``relevance``). A distribution of all zeros is undefined
                (no document had a label). The other parts share the weight of a part that is
                undefined or missing.

        Raises:
            TargetError: No part of the mixture is defined.
        """
        attribute = dimension.attribute
        if attribute.name in self.shares:
            return np.array(attribute.ordered(self.shares[attribute.name]))
        mixture = np.zeros(len(attribute.universe))
        known = {"uniform": _uniform(dimension)} | dict(estimates or {})
        if attribute.population is not None:
            known["population"] = np.array(attribute.ordered(attribute.population))
        for part, weight in self.parts.items():
            if part in known and weight:
                mixture += weight * normalise(known[part])
        if not mixture.any():
            raise TargetError(
                f"The target of '{attribute.name}' is undefined, because none of the documents it "
                "is estimated from has a label; add a part such as population or uniform."
            )
        return normalise(mixture)

    def in_words(self, attribute: Attribute, shared: str = "") -> str:
        """Return how the target of an attribute comes about, as a phrase.

        Args:
            attribute: The attribute.
            shared: What :func:`fairqr.retrieval.fairness.claims.say_shared` says.
        """
        if attribute.name in self.shares:
            return "the shares that you gave"
        lacking = {"population"} if attribute.population is None else set()
        parts = {name: w for name, w in self.parts.items() if w and name not in lacking}
        shares = {name: weight / sum(parts.values()) for name, weight in parts.items()}
        remarks = [", ".join(f"{_of(share)}{PARTS[name]}" for name, share in shares.items())]
        if len(parts) < len(self.parts):
            remarks.append("your source states no population")
        if shared:
            remarks.append(shared)
        return "; ".join(remarks)

    def __str__(self) -> str:
        parts = [",".join(f"{name}:{weight:g}" for name, weight in self.parts.items())]
        for attribute, shares in self.shares.items():
            parts.append(f"{attribute}=" + ",".join(f"{g}:{s:g}" for g, s in shares.items()))
        return " ".join(parts)


def _say_no_target(text: str) -> str:
    """Return a sentence about a text that is no target, with the part that may be meant."""
    parts = [f"{part}:1" for part in PARTS]
    hint = "" if "=" in text else nearest_names(f"{text}:1", parts)
    advice = hint or (
        "write each name once, as in retrieved:0.5,population:0.5 or gender=female:0.5,male:0.5."
    )
    return f"'{text}' is not a target; {advice}"


def _uniform(dimension: Dimension) -> FloatArray:
    """Return the same share for all groups, but none for what has no group of its own.

    In a product that is what is ``other`` in any of its attributes.
    """
    of_factors = {it.name: _uniform_of(it) for it in dimension.factors}
    return dimension.independent_shares(of_factors)


def _uniform_of(attribute: Attribute) -> FloatArray:
    groups = attribute.universe
    shares = np.ones(len(groups))
    if attribute.is_found and len(groups) > 1:
        shares[groups.index(OTHER)] = 0.0
    return shares


def _of(share: float) -> str:
    """Return the share of a part before its name: nothing if it is the only one."""
    return {1: "", 0.5: "half "}.get(share, f"{share:.0%} of ")


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
    # Divide by the largest, so that the sum of large scores is finite.
    weights = scores / scores.max() if can_be_weights(scores) else 1 / np.arange(1, len(scores) + 1)
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
"""What a search aims at."""

AUDIT_TARGET = Target(parts={"relevance": 1.0})
"""What an audit aims at: the mildest thing that can be asked of a ranking. A search cannot aim at
it, since it has no judgements."""
