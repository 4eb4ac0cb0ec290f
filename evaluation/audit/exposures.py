"""What one answer of an engine shows of each group, what it should show, and what it could show.

Pure arithmetic over the documents of one query's pool: first those that the engine answered, in
order of rank, then further ones that may be relevant.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from fairqr.retrieval.dimension import Dimension
from fairqr.retrieval.exposure import LOG2, Discount, FloatArray, normalise
from fairqr.retrieval.objective import attainable
from fairqr.retrieval.objective import supply as supply_of
from fairqr.retrieval.relevance import LIKELY
from fairqr.retrieval.target import Part, Target

ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Choices:
    """What an audit measures by.

    Attributes:
        k: How many ranks count.
        discount: The weight of each rank.
        target: ε*; its part ``relevance`` is the share of each group among the relevant documents.
        corpus_shares: For the target's part ``corpus``, by dimension.
    """

    k: int = 20
    discount: Discount = LOG2
    target: Target = field(default_factory=lambda: Target(parts={"relevance": 1.0}))
    corpus_shares: dict[str, FloatArray] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The relevant documents of an answer.

    Attributes:
        counted: The relevance of each document of the pool that counts for shares of groups, 0 for
            the others, shape (P,).
        by_group: Σ counted · membership, shape (G,).
        unlabelled: How many have no label.
        share: Of each group; None if no candidate has a known group.
        likely: The memberships of the documents that are more likely relevant than not.
    """

    counted: FloatArray
    by_group: FloatArray
    unlabelled: float
    share: FloatArray | None
    likely: FloatArray


@dataclass(frozen=True)
class Answer:
    """What an engine answered to one query, with what else it might have shown.

    Attributes:
        members: The share of each group in each document of the pool, shape (P, G); what a row
            lacks to 1 is unknown.
        answered: How many documents of the pool the engine answered; they come first, by rank.
        relevance: The probability that each is relevant, in [0, 1], shape (P,); 0 or 1 where it was
            judged. None if nothing is known.
        is_judged: Whether relevance was judged, so that no re-ranking could know it.
        level: Documents less likely than this do not count for the target, nor as candidates: of
            some groups the pool has more of these than of others. If it is :data:`LIKELY` or more,
            there are more relevant documents than the pool has.
    """

    members: FloatArray
    answered: int
    relevance: FloatArray | None
    is_judged: bool = False
    level: float = 0.0

    @cached_property
    def unlabelled(self) -> FloatArray:
        """The unknown share of each document, shape (P,)."""
        return np.asarray(np.maximum(1 - self.members.sum(axis=1), 0.0))

    @property
    def is_saturated(self) -> bool:
        """Whether there are more relevant documents than were looked at."""
        return self.level >= LIKELY

    @cached_property
    def candidates(self) -> Candidates | None:
        """The relevant documents; None if they are not known, or not all of them."""
        if self.relevance is None or self.is_saturated:
            return None
        counted = np.where(self.relevance >= self.level, self.relevance, 0.0)
        by_group = counted @ self.members
        return Candidates(
            counted,
            by_group,
            float(counted @ self.unlabelled),
            normalise(by_group) if by_group.any() else None,
            self.members[self.relevance >= LIKELY],
        )


@dataclass(frozen=True, slots=True)
class Shown:
    """The figures of one answer, each of shape (G,); NaN where one is undefined.

    Attributes:
        exposure: ε: the share of the exposure in the first k ranks that documents of each group
            got, of what went to documents with a known group. Undefined if none has one.
        target: ε*. Undefined if it needs relevant documents and there are none with a known group.
        supply: ε^s: the exposure in the ranking nearest to the target that the relevant documents
            could give. It is the target where each group could reach it. Undefined without a
            target or a relevant document.
        exposure_low: The exposure if no unlabelled document belonged to the group.
        exposure_high: The same if all of them did.
        supply_low: The most that relevant documents could give to the group alone, if no unlabelled
            one belonged to it; the supply where all of them have labels.
        target_low: The target if no unlabelled relevant document belonged to the group.
        target_high: The same if all of them did.
        attention: Σ discount · membership over the first k ranks, not normalised.
        count: Σ membership over the first k ranks.
        selected: The relevant documents among the first k; all of them where relevance is not
            known, or the pool lacks relevant documents.
        candidates: The relevant documents of the pool; where relevance is not known, what was
            answered, if that is more than k documents. Otherwise, and where the pool lacks relevant
            documents, undefined.
        unknown: The share of the exposure that went to documents without a label; one number.
        unlabelled: How many candidates have no label; one number.
    """

    exposure: FloatArray
    target: FloatArray
    supply: FloatArray
    exposure_low: FloatArray
    exposure_high: FloatArray
    supply_low: FloatArray
    target_low: FloatArray
    target_high: FloatArray
    attention: FloatArray
    count: FloatArray
    selected: FloatArray
    candidates: FloatArray
    unknown: float
    unlabelled: float


def shown_by(answer: Answer, dimension: Dimension, choices: Choices) -> Shown:
    """Measure one answer.

    Args:
        answer: With memberships in the groups of the dimension.
        dimension: The groups.
        choices: What to measure by.
    """
    undefined = np.full(len(dimension.groups), np.nan)
    shown = min(choices.k, answer.answered)
    top, relevant = answer.members[:shown], answer.candidates
    weights = choices.discount.weights(shown)
    given, total = weights @ top, float(weights.sum())
    unknown = float(weights @ answer.unlabelled[:shown])
    known = float(given.sum())
    count = top.sum(axis=0)

    supply = least = low = high = undefined
    share = None if relevant is None else relevant.share
    target = _target(dimension, choices, share)
    if target is None:
        target = undefined
    else:
        low = high = target
        weight = _weight_of_relevance(dimension, choices)
        if relevant is not None and share is not None and weight:
            due, all_due = relevant.by_group, relevant.counted.sum()
            low = target + weight * (due / all_due - share)
            high = target + weight * ((due + relevant.unlabelled) / all_due - share)
        if relevant is not None and len(relevant.likely):
            supply = supply_of(relevant.likely, target, choices.discount, choices.k)
            is_labelled = relevant.likely.sum() >= len(relevant.likely) - ROUNDING
            least = (
                supply if is_labelled else attainable(relevant.likely, choices.discount, choices.k)
            )

    selected, candidates, without_label = count, undefined, np.nan
    if relevant is not None:
        selected, candidates = relevant.counted[:shown] @ top, relevant.by_group
        without_label = relevant.unlabelled
    elif answer.relevance is None and answer.answered > choices.k:
        candidates = answer.members[: answer.answered].sum(axis=0)
        without_label = float(answer.unlabelled[: answer.answered].sum())
    return Shown(
        exposure=given / known if known > ROUNDING else undefined,
        target=target,
        supply=supply,
        exposure_low=given / total if shown else undefined,
        exposure_high=(given + unknown) / total if shown else undefined,
        supply_low=least,
        target_low=low,
        target_high=high,
        attention=given,
        count=count,
        selected=selected,
        candidates=candidates,
        unknown=unknown / total if shown else np.nan,
        unlabelled=without_label,
    )


def _weight_of_relevance(dimension: Dimension, choices: Choices) -> float:
    if dimension.name in choices.target.shares:
        return 0.0
    return choices.target.parts.get("relevance", 0.0)


def _target(dimension: Dimension, choices: Choices, share: FloatArray | None) -> FloatArray | None:
    """Return ε*; None if it needs the groups of relevant documents and none is known."""
    weight = _weight_of_relevance(dimension, choices)
    if weight and (share is None or len(choices.target.parts) == 1):
        return share
    estimates: dict[Part, FloatArray] = {}
    if share is not None:
        estimates["relevance"] = share
    if dimension.name in choices.corpus_shares:
        estimates["corpus"] = choices.corpus_shares[dimension.name]
    return choices.target.resolve(dimension.attribute, estimates)
