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
from dataclasses import dataclass, field
from typing import Literal, cast, get_args

import numpy as np
from numpy.typing import ArrayLike

from fairqr.base.errors import InputError, TargetError, one_line
from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.collections.labels import Groups, UnknownPolicy
from fairqr.evaluation.scores import Reason, Undefined
from fairqr.retrieval.fairness.dimension import TIMES, Dimension, factors_of
from fairqr.retrieval.fairness.exposure import TREC, Discount, FloatArray, intersection, normalise
from fairqr.retrieval.fairness.target import Part, Target

TrecRule = Literal["trec2021", "trec2022"]
TargetRule = Target | TrecRule

DEFAULT_TARGET = Target(parts={"relevance": 0.5, "population": 0.5})
WORK_LEVELS = ("Stub", "Start", "C", "B", "GA", "FA")
"""Wikipedia's classes of quality, from the one that needs most work."""
AT_ONCE = 4096
"""How many documents' products of memberships are held at a time."""


def as_target(
    target: TargetRule | str | Sequence[str], default: Target = DEFAULT_TARGET
) -> TargetRule:
    """Read the target of an evaluation.

    Args:
        target: ``trec2022`` or ``trec2021`` for the track's own; or what
            :meth:`fairqr.retrieval.fairness.target.Target.parse` reads, of the parts ``relevance``,
            ``population``, ``uniform`` and ``corpus``.
        default: The mixture for attributes that the target does not name.

    Raises:
        TargetError: It is not a target, or has a part that is only available during a search.
    """
    if not isinstance(target, Target):
        texts = [target] if isinstance(target, str) else target
        if not isinstance(texts, Sequence) or {type(text) for text in texts} != {str}:
            raise TargetError(
                f"A target cannot be {one_line(repr(target), 60)}; write it as text, such as "
                "relevance:0.5,uniform:0.5."
            )
        if len(texts) == 1 and texts[0].strip() in get_args(TrecRule):
            return cast(TrecRule, texts[0].strip())
        target = Target.parse(texts)
    if "parts" not in target.model_fields_set:
        target = Target(parts=default.parts, shares=target.shares)
    if target.parts.get("retrieved"):
        raise TargetError(
            "The target part 'retrieved' is an estimate that a search makes of relevance; "
            "an evaluation has judgements, so write relevance instead."
        )
    return target


@dataclass(frozen=True, slots=True)
class QueryTargets:
    """The targets of a collection's topics.

    Attributes:
        dimension: What they are over; ``dimension.groups`` names the entries of each vector.
        rule: The target as it was asked for.
        targets: By topic, shape (G,), sums to 1.
        undefined: By topic without a target, why it has none.

    Raises:
        TargetError: A vector is no distribution over the groups.
    """

    dimension: Dimension
    rule: str
    targets: Mapping[str, FloatArray] = field(default_factory=dict)
    undefined: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        size = len(self.dimension.groups)
        for topic, target in self.targets.items():
            shares = np.asarray(target)
            is_whole = shares.shape == (size,) and np.isclose(shares.sum(), 1)
            if not is_whole or not (shares >= 0).all():
                raise TargetError(
                    f"The target of '{one_line(topic)}' must have a share of 0 or more for each of "
                    f"{', '.join(self.dimension.groups)}, with a sum of 1, not {target}."
                )


def query_targets(
    collection: Collection,
    groups: Groups,
    attribute: str,
    target: str | Target | None = None,
    *,
    unknown: UnknownPolicy | None = None,
    weights: Mapping[str, Mapping[str, float]] | None = None,
) -> QueryTargets:
    """Return the target of each topic, from the labels of its relevant documents.

    Relevant documents that the collection lacks do not count.

    Args:
        collection: With topics and judgements.
        groups: At least of its relevant documents.
        attribute: Its name, or several joined by ``×`` for their product.
        target: As :func:`as_target` reads it; defaults to the collection's own.
        unknown: Whether the unknown is a group. By default it is with ``trec2022``, with
            ``trec2021`` in products only, and otherwise as the schema says.
        weights: By topic and document, for targets that do not count all relevant documents alike;
            a document without a weight does not count. See :func:`work_weights`.

    Raises:
        TargetError: The target is wrong, or needs a population that the schema lacks.
        UnknownAttributeError: The schema lacks the attribute.
    """
    wanted = collection.about.target if target is None else target
    rule = as_target(wanted)
    if unknown is None and not isinstance(rule, Target):
        is_group = rule == "trec2022" or len(factors_of(attribute)) > 1
        unknown = "group" if is_group else "exclude"
    dimension = groups.dimension(attribute, unknown)
    check_target(rule, [dimension])
    targets: dict[str, FloatArray] = {}
    undefined: dict[str, str] = {}
    for topic in collection.topics:
        of_topic = None if weights is None else weights.get(topic.id, {})
        relevant = groups.known(collection.relevant(topic.id))
        found = resolve_target(dimension, rule, groups, relevant, of_topic)
        if isinstance(found, Undefined):
            undefined[topic.id] = str(found.reason)
        else:
            targets[topic.id] = found
    return QueryTargets(dimension, str(wanted), targets, undefined)


def check_target(rule: TargetRule, dimensions: Sequence[Dimension]) -> None:
    """Raise if a mixture of target parts cannot be computed for these dimensions.

    Raises:
        TargetError: It asks for a population that the schema lacks, or names an attribute or a
            group that does not exist.
    """
    if isinstance(rule, Target) and dimensions:
        attributes = [dimension.attribute for dimension in dimensions]
        if lacking := rule.without_population(attributes):
            more = ", measure no combinations (intersections=false)" * (TIMES in lacking[0])
            raise TargetError(
                f"The schema gives no population for '{lacking[0]}'; add one{more}, or choose a "
                "target without it, such as relevance:0.5,uniform:0.5."
            )
        rule.check(attributes)


def resolve_target(
    dimension: Dimension,
    rule: TargetRule,
    groups: Groups,
    relevant: Sequence[str],
    weights: Mapping[str, float] | None = None,
) -> FloatArray | Undefined:
    """Return the target of one topic over the groups of a dimension, or why it has none.

    A topic has none if the rule asks for the relevant documents' groups and all of these are
    unknown. Relevant documents without labels do not count.

    Args:
        dimension: Its attributes say whether the unknown is a group.
        rule: The target.
        groups: At least of the relevant documents.
        relevant: The relevant documents.
        weights: By document, at least 0; one without a weight does not count. By default all count
            alike.

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
            return Undefined(Reason.NO_RELEVANT)
        ids = groups.known(relevant if weights is None else filter(weights.get, relevant))
        by_id = None if weights is None else np.array([weights[id_] for id_ in ids])
        if not isinstance(rule, Target):
            found = _trec_target(dimension, rule, groups, ids, by_id)
            return found if found.any() else Undefined(Reason.NO_TARGET)
        members = [groups.memberships(a.name, ids, a.unknown) for a in dimension.factors]
        estimates["relevance"] = mean_membership(members, by_id)
        if not estimates["relevance"].any():
            return Undefined(Reason.NO_TARGET)
    if parts.get("corpus"):
        estimates["corpus"] = groups.corpus_shares(dimension)
    return cast(Target, rule).resolve(dimension.attribute, estimates)


def _trec_target(
    dimension: Dimension, rule: TrecRule, groups: Groups, ids: list[str], weights: FloatArray | None
) -> FloatArray:
    populations = [
        normalise([it.population.get(group, 0.0) for group in it.groups]) if it.population else None
        for it in dimension.factors
    ]
    memberships = [groups.memberships(a.name, ids, "group") for a in dimension.factors]
    whole = trec_target(memberships, populations, weights=weights, fully_unknown=rule == "trec2022")
    if len(dimension.groups) == whole.size:
        return whole.ravel()
    if any(attribute.unknown == "group" for attribute in dimension.factors):
        raise InputError("The attributes of a product must treat the unknown alike.")
    return normalise(whole[(slice(-1),) * whole.ndim].ravel())


def mean_membership(
    memberships: Sequence[ArrayLike], weights: ArrayLike | None = None
) -> FloatArray:
    """Return the mean over documents of their memberships in the product of several attributes.

    Args:
        memberships: For each attribute, shape (n, G_a), with or without the unknown.
        weights: The weight of each document, shape (n,), at least 0; all equal by default.

    Returns:
        Shape (Π G_a,); all zeros where there are no documents or no weight.
    """
    arrays = [np.asarray(members, dtype=np.float64) for members in memberships]
    weight = np.ones(len(arrays[0])) if weights is None else np.asarray(weights, dtype=np.float64)
    total = np.zeros(math.prod(array.shape[1] for array in arrays))
    for start in range(0, len(weight), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        total += weight[part] @ intersection([array[part] for array in arrays])
    return total / weight.sum() if weight.any() else total


def trec_target(
    memberships: Sequence[ArrayLike],
    populations: Sequence[ArrayLike | None],
    *,
    weights: ArrayLike | None = None,
    fully_unknown: bool = True,
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
        weights: The weight of each document, shape (n,). Task 2 takes :func:`work_needed_exposure`.
        fully_unknown: Whether the cell that is unknown in all attributes keeps its mass, as in
            2022. In 2021 that mass was taken out and the rest normalised.

    Returns:
        Shape (G_1 + 1, G_2 + 1, …), sums to 1; all zeros where there are no documents, or nothing
        is left.
    """
    shape = [np.asarray(members).shape[1] for members in memberships]
    mean = mean_membership(memberships, weights).reshape(shape)
    mixed = [axis for axis, population in enumerate(populations) if population is not None]
    as_is = tuple(set(range(len(shape))) - set(mixed))
    if not mean.any():
        return mean
    there = mean.sum(as_is, keepdims=True) > 0
    spread = np.where(there, mean, mean.sum(tuple(mixed), keepdims=True))
    spread /= spread.sum(as_is, keepdims=True)
    target = mean.copy()
    for known in itertools.product((True, False), repeat=len(mixed)):
        if not any(known):
            continue
        block, factors = [slice(None)] * len(shape), [np.ones(1)] * len(shape)
        for axis, is_known in zip(mixed, known, strict=True):
            block[axis] = slice(-1) if is_known else slice(-1, None)
            if is_known:
                factors[axis] = np.asarray(populations[axis], dtype=np.float64)
        cells = tuple(block)
        background = functools.reduce(np.multiply.outer, factors) * spread[cells]
        target[cells] = (mean[cells] + mean[cells].sum() * background) / 2
    if not fully_unknown:
        target[(-1,) * len(shape)] = 0
        return normalise(target.ravel()).reshape(shape)
    return target


def work_needed_exposure(levels: Sequence[int], discount: Discount) -> FloatArray:
    """Return the exposure that each relevant document should get in task 2 of the track.

    The ideal ranking has the relevant documents in order of how much work they need, those that
    need most first; documents of one level share the exposure of the level's ranks. Source: as for
    :func:`trec_target`.

    Args:
        levels: For each relevant document of a topic; the lowest level needs most work.
        discount: The weight of each rank; the track's is ``trec``.

    Returns:
        Shape (n,), in units of the discount; in all the sum of d(r) over ranks 1 to n.
    """
    _, level, counts = np.unique(levels, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    weights = discount.weights(len(level))
    means = [weights[end - n : end].mean() for n, end in zip(counts, ends, strict=True)]
    return np.array(means)[level]


def work_weights(
    collection: Collection, groups: Groups, discount: Discount = TREC
) -> dict[str, dict[str, float]]:
    """Return the weights of task 2: the exposure that each relevant document should get.

    Args:
        collection: From ``trec-fair-2021`` or ``trec-fair-2022``, whose documents have a
            ``quality``.
        groups: Read with ``fields=("quality",)``.
        discount: The weight of each rank.

    Returns:
        By topic and document. A document without a class of quality has no weight.

    Raises:
        InputError: The labels were read without the field.
    """
    if "quality" not in groups.fields:
        raise InputError(
            "The weights of task 2 need the field 'quality'; "
            "scan the corpus with fields=('quality',)."
        )
    qualities = dict(zip(groups.rows, groups.fields["quality"], strict=True))
    weights: dict[str, dict[str, float]] = {}
    for topic in collection.topics:
        relevant = ((id_, qualities.get(id_)) for id_ in collection.relevant(topic.id))
        levels = {id_: WORK_LEVELS.index(it) for id_, it in relevant if it in WORK_LEVELS}
        exposures = work_needed_exposure(list(levels.values()), discount)
        weights[topic.id] = dict(zip(levels, exposures.tolist(), strict=True))
    return weights
