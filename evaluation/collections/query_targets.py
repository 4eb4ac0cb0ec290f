"""The target of each topic of a collection, from its judgements.

Where a function takes memberships with the unknown, the unknown mass is their last column, so that
each row sums to 1: shape (n, G+1) for an attribute of G groups. What is computed over several
attributes is flattened with the groups of the last attribute varying fastest, as in
:func:`fairqr.retrieval.fairness.exposure.intersection`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
from numpy.typing import ArrayLike

from fairqr.base.errors import TargetError
from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.collections.labels import Groups
from fairqr.evaluation.scores import Reason
from fairqr.retrieval.fairness.dimension import TIMES, Dimension
from fairqr.retrieval.fairness.exposure import FloatArray, intersection, normalise
from fairqr.retrieval.fairness.target import Part, Target

TrecRule = Literal["trec2022"]
TargetRule = Target | TrecRule

DEFAULT_TARGET = Target(parts={"relevance": 0.5, "population": 0.5})
ESTIMATED: tuple[Part, ...] = ("retrieved", "merit")
"""The parts that a search estimates, having no judgements."""

AT_ONCE = 4096
"""How many documents' products of memberships are held at a time."""


def as_target(
    target: TargetRule | str | Sequence[str], default: Target = DEFAULT_TARGET
) -> TargetRule:
    """Read the target of an evaluation.

    Args:
        target: ``trec2022`` for the track's own; or what
            :meth:`fairqr.retrieval.fairness.target.Target.parse` reads, of the parts ``relevance``,
            ``population``, ``uniform`` and ``corpus``.
        default: The mixture for attributes that the target does not name.

    Raises:
        TargetError: It is not a target, or has a part that is only available during a search.
    """
    if not isinstance(target, Target):
        texts = [target] if isinstance(target, str) else [*target]
        if [text.strip() for text in texts] == ["trec2022"]:
            return "trec2022"
        target = Target.parse(texts)
    if "parts" not in target.model_fields_set:
        target = Target(parts=default.parts, shares=target.shares)
    estimated = [part for part in ESTIMATED if target.parts.get(part)]
    if estimated:
        raise TargetError(
            f"The target part '{estimated[0]}' is an estimate that a search makes of relevance; "
            "an evaluation has judgements, so write relevance instead."
        )
    return target


@dataclass(frozen=True, slots=True)
class QueryTargets:
    """The targets of a collection's topics.

    Attributes:
        dimension: What they are over; ``dimension.groups`` names the entries of each vector.
        targets: For each topic, shape (G,), sums to 1; topics without a target are left out.
    """

    dimension: Dimension
    targets: Mapping[str, FloatArray]


def query_targets(
    collection: Collection,
    groups: Groups,
    attribute: str,
    target: str | Target | None = None,
) -> QueryTargets:
    """Return the target of each topic, from the labels of its relevant documents.

    Relevant documents that the collection lacks do not count. The unknown is a group with
    ``trec2022``, and otherwise as the schema says.

    Args:
        collection: With topics and judgements.
        groups: At least of its relevant documents.
        attribute: Its name, or several joined by ``×`` for their product.
        target: As :func:`as_target` reads it; defaults to the collection's own.

    Raises:
        TargetError: The target is wrong, or needs a population that the schema lacks.
        UnknownAttributeError: The schema lacks the attribute.
    """
    rule = as_target(collection.about.target if target is None else target)
    dimension = groups.dimension(attribute, None if isinstance(rule, Target) else "group")
    check_target(rule, [dimension])
    targets = {}
    for topic in collection.topics:
        relevant = groups.known(collection.relevant(topic.id))
        resolved = resolve_target(dimension, rule, groups, relevant)
        if not isinstance(resolved, Reason):
            targets[topic.id] = resolved
    return QueryTargets(dimension, targets)


def check_target(rule: TargetRule, dimensions: Sequence[Dimension]) -> None:
    """Raise if a mixture of target parts cannot be computed for these dimensions.

    Raises:
        TargetError: It asks for a population that the schema lacks, or names an attribute or a
            group that does not exist.
    """
    if not isinstance(rule, Target) or not dimensions:
        return
    attributes = [dimension.attribute for dimension in dimensions]
    without = rule.without_population(attributes)
    if without:
        name = without[0]
        advice = "add one"
        if TIMES in name:
            advice += ", measure no combinations (intersections=false)"
        raise TargetError(
            f"The schema gives no population for '{name}'; {advice}, or choose a target without "
            "it, such as relevance:0.5,uniform:0.5 ('judge' in an experiment)."
        )
    rule.check(attributes)


def resolve_target(
    dimension: Dimension, rule: TargetRule, groups: Groups, relevant: Sequence[str]
) -> FloatArray | Reason:
    """Return the target of one topic over the groups of a dimension, or why it has none.

    A topic has none if the rule asks for the relevant documents' groups and all of these are
    unknown. Relevant documents without labels do not count.

    Args:
        dimension: Its attributes say whether the unknown is a group.
        rule: The target.
        groups: At least of the relevant documents.
        relevant: The relevant documents.

    Returns:
        Shape (G,), sums to 1.

    Raises:
        TargetError: The rule needs the shares of the corpus, which are not known.
    """
    parts: Mapping[Part, float] = {"relevance": 1.0}
    if isinstance(rule, Target):
        parts = {} if dimension.name in rule.shares else rule.parts
    estimates: dict[Part, FloatArray] = {}
    if parts.get("relevance"):
        if not relevant:
            return Reason.NO_RELEVANT
        ids = groups.known(relevant)
        if not isinstance(rule, Target):
            target = _trec_target(dimension, groups, ids)
            return target if target.any() else Reason.NO_TARGET
        members = [
            groups.memberships(factor.name, ids, factor.unknown) for factor in dimension.factors
        ]
        estimates["relevance"] = mean_membership(members)
        if not estimates["relevance"].any():
            return Reason.NO_TARGET
    if parts.get("corpus"):
        estimates["corpus"] = groups.corpus_shares(dimension)
    return cast(Target, rule).resolve(dimension, estimates)


def _trec_target(dimension: Dimension, groups: Groups, ids: Sequence[str]) -> FloatArray:
    """Return the target of the track over the groups of a dimension, with the unknown or not."""
    populations: list[FloatArray | None] = []
    memberships = []
    for factor in dimension.factors:
        population: FloatArray | None = None
        if factor.population:
            sizes = [factor.population.get(group, 0.0) for group in factor.groups]
            population = normalise(sizes)
        populations.append(population)
        memberships.append(groups.memberships(factor.name, ids, "group"))
    whole = trec_target(memberships, populations)
    has_unknown = len(dimension.groups) == whole.size
    if has_unknown:
        return whole.ravel()
    without_unknown = (slice(-1),) * whole.ndim
    return normalise(whole[without_unknown].ravel())


def mean_membership(memberships: Sequence[ArrayLike]) -> FloatArray:
    """Return the mean over documents of their memberships in the product of several attributes.

    Args:
        memberships: For each attribute, shape (n, G_a), with or without the unknown.

    Returns:
        Shape (Π G_a,); all zeros where there are no documents.
    """
    arrays = [np.asarray(members, dtype=np.float64) for members in memberships]
    count = len(arrays[0])
    total = np.zeros(math.prod(array.shape[1] for array in arrays))
    for start in range(0, count, AT_ONCE):
        products = intersection([array[start : start + AT_ONCE] for array in arrays])
        total += np.ones(len(products)) @ products
    return total / max(1, count)


def trec_target(
    memberships: Sequence[ArrayLike], populations: Sequence[ArrayLike | None]
) -> FloatArray:
    """Return the target of TREC's Fair Ranking Track for one topic.

    Let t be the mean membership of the relevant documents in the product of the attributes, each
    with its unknown. The cells fall into blocks by which of the attributes with a population are
    known. In each block half the mass stays as it is, and half is shared by the product of the
    populations of the block's known attributes. What is unknown in all of them stays. For one
    attribute, ε*_g = ½ t_g + ½ (1 − t_unknown)·population_g and ε*_unknown = t_unknown.

    Attributes without a population keep the shares that they have in t: with the groups of the
    others if a relevant document is there, and else in all.

    Source: the track's published evaluation code for 2022, Task1Alignment and Task2Alignment
    (github.com/fair-trec/trec2022-fair-public).

    Args:
        memberships: For each attribute those of the relevant documents, shape (n, G_a + 1); the
            unknown is last.
        populations: The shares of the known groups, for each attribute, shape (G_a,), summing to 1;
            or None.

    Returns:
        Shape (G_1 + 1, G_2 + 1, …), sums to 1; all zeros where there are no documents.
    """
    shape = [np.asarray(members).shape[1] for members in memberships]
    mean = mean_membership(memberships).reshape(shape)
    mixed = [axis for axis, population in enumerate(populations) if population is not None]
    as_is = tuple(set(range(len(shape))) - set(mixed))
    if not mean.any():
        return mean
    has_documents = mean.sum(as_is, keepdims=True) > 0
    spread = np.where(has_documents, mean, mean.sum(tuple(mixed), keepdims=True))
    spread /= spread.sum(as_is, keepdims=True)
    target = mean.copy()
    for known in itertools.product((True, False), repeat=len(mixed)):
        if not any(known):
            continue
        block = [slice(None)] * len(shape)
        factors = [np.ones(1)] * len(shape)
        for axis, is_known in zip(mixed, known, strict=True):
            block[axis] = slice(-1) if is_known else slice(-1, None)
            if is_known:
                factors[axis] = np.asarray(populations[axis], dtype=np.float64)
        cells = tuple(block)
        background = functools.reduce(np.multiply.outer, factors) * spread[cells]
        target[cells] = (mean[cells] + mean[cells].sum() * background) / 2
    return target
