"""The target of each topic of a collection, from its judgements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from fairqr.base.errors import InputError, TargetError
from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.collections.labels import Labels, UnknownPolicy, schema_with_unknown
from fairqr.evaluation.collections.targets import (
    known_cells,
    mean_membership,
    trec_target,
    work_needed_exposure,
)
from fairqr.retrieval.dimension import Dimension
from fairqr.retrieval.exposure import TREC, Discount, FloatArray, normalise
from fairqr.retrieval.target import Target

__all__ = [
    "QueryTargets",
    "TrecRule",
    "parse_target",
    "query_targets",
    "resolve_target",
    "work_weights",
]

TrecRule = Literal["trec2021", "trec2022"]
TREC_RULES: tuple[TrecRule, ...] = get_args(TrecRule)
WORK_LEVELS = ("Stub", "Start", "C", "B", "GA", "FA")
"""Wikipedia's classes of quality, from the one that needs most work."""


def parse_target(text: str) -> Target | TrecRule:
    """Read a target of evaluation.

    Args:
        text: ``trec2022`` or ``trec2021``, the track's own, or what
            :meth:`fairqr.retrieval.target.Target.parse` reads, such as
            ``relevance:0.5,population:0.5``.

    Raises:
        TargetError: It is none of these, or has a part that is known at query time only.
    """
    for rule in TREC_RULES:
        if text.strip() == rule:
            return rule
    target = Target.parse(text)
    for part in ("retrieved", "corpus"):
        if target.parts.get(part):
            raise TargetError(
                f"The target of an evaluation has no part '{part}'; choose among relevance, "
                f"population and uniform, or one of {', '.join(TREC_RULES)}."
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
    """

    dimension: Dimension
    rule: str
    targets: Mapping[str, FloatArray] = field(default_factory=dict)
    undefined: Mapping[str, str] = field(default_factory=dict)


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
        target: What :func:`parse_target` reads; the collection's own where None.
        unknown: Whether the unknown is a group. Where None: with ``trec2022`` it is, with
            ``trec2021`` it is in products only, otherwise as the schema says.
        weights: By topic and document, for targets that do not count all relevant documents alike;
            a document without a weight does not count. See :func:`work_weights`.

    Raises:
        TargetError: The target is wrong, or needs a population that the schema lacks.
        UnknownAttributeError: The schema lacks the attribute.
    """
    wanted = collection.about.target if target is None else target
    rule = parse_target(wanted) if isinstance(wanted, str) else wanted
    dimension = Dimension.named(collection.corpus.schema, attribute)
    if unknown is None and rule == "trec2022":
        unknown = "group"
    elif unknown is None and rule == "trec2021":
        unknown = "group" if len(dimension.factors) > 1 else "exclude"
    if unknown is not None:
        schema = schema_with_unknown(collection.corpus.schema, unknown)
        dimension = Dimension.named(schema, attribute)
    if isinstance(rule, Target):
        rule.check([dimension.attribute])
    targets: dict[str, FloatArray] = {}
    undefined: dict[str, str] = {}
    for topic in collection.topics:
        ids = [id_ for id_ in collection.relevant(topic.id) if id_ in labels]
        counts = None
        if weights is not None:
            of_topic = weights.get(topic.id, {})
            ids = [id_ for id_ in ids if of_topic.get(id_)]
            counts = np.array([of_topic[id_] for id_ in ids])
        if not ids:
            undefined[topic.id] = "no_relevant_document"
            continue
        found = resolve_target(dimension, rule, labels, ids, counts)
        if found.any():
            targets[topic.id] = found
        else:
            undefined[topic.id] = "no_known_group"
    return QueryTargets(dimension, str(wanted), targets, undefined)


def resolve_target(
    dimension: Dimension,
    rule: Target | TrecRule,
    labels: Labels,
    ids: Sequence[str],
    weights: FloatArray | None = None,
) -> FloatArray:
    """Return the target of one topic over the groups of a dimension.

    Args:
        dimension: Its attributes say whether the unknown is a group.
        rule: The target.
        labels: At least of the documents.
        ids: The relevant documents.
        weights: Of them, shape (len(ids),).

    Returns:
        Shape (G,), sums to 1; all zeros where only groups that are left out have any mass.

    Raises:
        TargetError: The rule needs a population that the schema lacks.
    """
    if isinstance(rule, Target):
        relevance = mean_membership(
            [labels.memberships(a.name, ids, a.unknown) for a in dimension.factors], weights
        )
        return rule.resolve(dimension.attribute, {"relevance": relevance})
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
