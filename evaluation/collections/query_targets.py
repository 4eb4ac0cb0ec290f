"""The target of each topic of a collection, from its judgements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from fairqr.base.errors import InputError, TargetError, one_line
from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.collections.labels import Labels, UnknownPolicy, schema_with_unknown
from fairqr.evaluation.collections.targets import (
    known_cells,
    mean_membership,
    trec_target,
    work_needed_exposure,
)
from fairqr.evaluation.scores import Reason, Undefined
from fairqr.retrieval.fairness.dimension import TIMES, Dimension
from fairqr.retrieval.fairness.exposure import TREC, Discount, FloatArray, normalise
from fairqr.retrieval.fairness.target import Part, Target

TrecRule = Literal["trec2021", "trec2022"]
TREC_RULES: tuple[TrecRule, ...] = get_args(TrecRule)
TargetRule = Target | TrecRule

DEFAULT_TARGET = Target(parts={"relevance": 0.5, "population": 0.5})
WORK_LEVELS = ("Stub", "Start", "C", "B", "GA", "FA")
"""Wikipedia's classes of quality, from the one that needs most work."""


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
    if not isinstance(target, str | Target):
        if not isinstance(target, Sequence) or {type(text) for text in target} != {str}:
            raise TargetError(
                f"A target cannot be {one_line(repr(target), 60)}; write it as text, such as "
                "relevance:0.5,uniform:0.5."
            )
        target = target[0] if len(target) == 1 else Target.parse(target)
    if isinstance(target, str):
        for rule in TREC_RULES:
            if target.strip() == rule:
                return rule
        target = Target.parse(target)
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
    labels: Labels,
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
        labels: At least of its relevant documents.
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
    dimension = Dimension.named(collection.corpus.schema, attribute)
    if unknown is None and rule == "trec2022":
        unknown = "group"
    elif unknown is None and rule == "trec2021":
        unknown = "group" if len(dimension.factors) > 1 else "exclude"
    if unknown is not None:
        schema = schema_with_unknown(collection.corpus.schema, unknown)
        dimension = Dimension.named(schema, attribute)
    check_target(rule, [dimension])
    targets: dict[str, FloatArray] = {}
    undefined: dict[str, str] = {}
    for topic in collection.topics:
        relevant = [id_ for id_ in collection.relevant(topic.id) if id_ in labels]
        of_topic = None if weights is None else weights.get(topic.id, {})
        found = resolve_target(dimension, rule, labels, relevant, of_topic)
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
    labels: Labels,
    relevant: Sequence[str],
    weights: Mapping[str, float] | None = None,
    corpus_shares: Callable[[Dimension], FloatArray] | None = None,
) -> FloatArray | Undefined:
    """Return the target of one topic over the groups of a dimension, or why it has none.

    A topic has none if the rule asks for the relevant documents' groups and all of these are
    unknown. Relevant documents without labels do not count.

    Args:
        dimension: Its attributes say whether the unknown is a group.
        rule: The target.
        labels: At least of the relevant documents.
        relevant: The relevant documents.
        weights: By document, at least 0; one without a weight does not count. By default all count
            alike.
        corpus_shares: Gives the part ``corpus`` of a dimension.

    Returns:
        Shape (G,), sums to 1.

    Raises:
        TargetError: The rule needs a population that the schema lacks, or the corpus.
    """
    named = isinstance(rule, Target) and dimension.name in rule.shares
    by_relevance = not isinstance(rule, Target) or (not named and rule.parts.get("relevance", 0))
    ids = labels.known(relevant if weights is None else filter(weights.get, relevant))
    by_id = None if weights is None else np.array([weights[id_] for id_ in ids])
    if by_relevance and not relevant:
        return Undefined(Reason.NO_RELEVANT)
    if not isinstance(rule, Target):
        found = _trec_target(dimension, rule, labels, ids, by_id)
        return found if found.any() else Undefined(Reason.NO_TARGET)
    estimates: dict[Part, FloatArray] = {}
    if by_relevance:
        members = [labels.memberships(a.name, ids, a.unknown) for a in dimension.factors]
        estimates["relevance"] = mean_membership(members, by_id)
        if not estimates["relevance"].any():
            return Undefined(Reason.NO_TARGET)
    if not named and rule.parts.get("corpus"):
        if corpus_shares is None:
            raise TargetError("The target part 'corpus' is not known here; choose another part.")
        estimates["corpus"] = corpus_shares(dimension)
    return rule.resolve(dimension.attribute, estimates)


def _trec_target(
    dimension: Dimension,
    rule: TrecRule,
    labels: Labels,
    ids: Sequence[str],
    weights: FloatArray | None,
) -> FloatArray:
    populations = []
    for attribute in dimension.factors:
        if attribute.population is None:
            raise TargetError(
                f"The target {rule} needs the population of '{attribute.name}'; "
                "add it to the schema."
            )
        shares = np.array([attribute.population.get(group, 0.0) for group in attribute.groups])
        populations.append(normalise(shares))
    memberships = [labels.memberships(a.name, ids, "group") for a in dimension.factors]
    whole = trec_target(memberships, populations, weights=weights, fully_unknown=rule == "trec2022")
    if len(dimension.groups) == len(whole):
        return whole
    if any(attribute.unknown == "group" for attribute in dimension.factors):
        raise InputError("The attributes of a product must treat the unknown alike.")
    return normalise(whole[known_cells([members.shape[1] for members in memberships])])


def work_weights(
    collection: Collection, labels: Labels, discount: Discount = TREC
) -> dict[str, dict[str, float]]:
    """Return the weights of task 2: the exposure that each relevant document should get.

    Args:
        collection: From ``trec-fair-2021`` or ``trec-fair-2022``, whose documents have a
            ``quality``.
        labels: Read with ``fields=("quality",)``.
        discount: The weight of each rank.

    Returns:
        By topic and document. A document without a class of quality has no weight.

    Raises:
        InputError: The labels were read without the field.
    """
    if "quality" not in labels.fields:
        raise InputError(
            "The weights of task 2 need the field 'quality'; "
            "scan the corpus with fields=('quality',)."
        )
    level = {name: position for position, name in enumerate(WORK_LEVELS)}
    weights: dict[str, dict[str, float]] = {}
    for topic in collection.topics:
        levels = {
            id_: level[quality]
            for id_ in collection.relevant(topic.id)
            if id_ in labels and (quality := labels.fields["quality"][labels.rows[id_]]) in level
        }
        exposures = work_needed_exposure(list(levels.values()), discount)
        weights[topic.id] = dict(zip(levels, exposures.tolist(), strict=True))
    return weights
