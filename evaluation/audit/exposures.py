"""What one answer of an engine shows of each group, what it should show, and what it could show.

Pure arithmetic over the documents of one query's pool: first those that the engine answered, in
order of rank, then further ones that may be relevant. Then what a fair re-ranking would show
instead, and what it would cost in relevance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fairqr.evaluation.estimates import Estimate, ratios, shares
from fairqr.retrieval.fairness.best_ranking import (
    attainable_exposure,
    best_ranking,
    highest_exposure,
)
from fairqr.retrieval.fairness.confusion import by_group
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.exposure import LOG2, Discount, FloatArray, exposure, normalise
from fairqr.retrieval.fairness.objective import Positions, RankingObjective
from fairqr.retrieval.fairness.relaxation import relax
from fairqr.retrieval.fairness.relevance import LIKELY, relevance_by_rank
from fairqr.retrieval.fairness.target import Part, Target

ROUNDING = 1e-9
FAIRNESS = 1.0
"""The weight of fairness of the re-rankings, which is the default of a search."""

Weighted = tuple[float, FloatArray]
"""The weight of a query, and figures of groups."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What an audit measures by.

    Attributes:
        k: How many ranks count.
        discount: The weight of each rank.
        target: ε*; its part ``relevance`` is the share of each group among the relevant documents.
        corpus_shares: For the target's part ``corpus``, by dimension.
        relevance: What says which documents are relevant. Unless it is ``unknown``, a query of
            which that is not known has no candidates.
    """

    k: int = 20
    discount: Discount = LOG2
    target: Target = field(default_factory=lambda: Target(parts={"relevance": 1.0}))
    corpus_shares: dict[str, FloatArray] = field(default_factory=dict)
    relevance: str = "unknown"

    def weight_of_relevance(self, dimension: Dimension) -> float:
        """Return the weight of relevance in the target of a dimension, in [0, 1]."""
        if dimension.name in self.target.shares:
            return 0.0
        return self.target.parts.get("relevance", 0.0)


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
        even: The target's part ``uniform``, shape (G,), where groups are those that were found;
            None where the dimension lists them.
        level: Documents less likely than this do not count for the target, nor as candidates: of
            some groups the pool has more of these than of others. If it is :data:`LIKELY` or more,
            there are more relevant documents than the pool has.
    """

    members: FloatArray
    answered: int
    relevance: FloatArray | None
    is_judged: bool = False
    level: float = 0.0
    even: FloatArray | None = None

    @cached_property
    def unlabelled(self) -> FloatArray:
        """The unknown share of each document, shape (P,)."""
        return np.asarray(np.maximum(1 - self.members.sum(axis=1), 0.0))

    @cached_property
    def counted(self) -> FloatArray | None:
        """The relevance of each document that counts for shares of groups, 0 for others.

        None if it is not known which documents are relevant, or not all of them were looked at.
        """
        if self.relevance is None or self.level >= LIKELY:
            return None
        return np.where(self.relevance >= self.level, self.relevance, 0.0)

    @cached_property
    def share_of_relevant(self) -> FloatArray | None:
        """The share of each group among the relevant documents with a label, shape (G,)."""
        relevant = None if self.counted is None else self.counted @ self.members
        return None if relevant is None or not relevant.any() else normalise(relevant)


class AnswerFigures(NamedTuple):
    """The figures of one answer, each of shape (G,); NaN where one is undefined.

    Attributes:
        exposure: ε: the share of the exposure in the first k ranks that documents of each group
            got, of what went to documents with a known group. Undefined if none has one.
        target: ε*. Undefined if it needs relevant documents and there are none with a known group.
        attainable: ε^s: the exposure in the ranking nearest to the target that the relevant
            documents could give. It is the target where each group could reach it. Undefined
            without a target or a relevant document, and where labels may be wrong and the target
            does not go by them alone: it is not linear in them.
        exposure_low: The exposure if no unlabelled document belonged to the group.
        exposure_high: The same if all of them did.
        attainable_low: The most that relevant documents could give to the group alone, if no
            unlabelled one belonged to it; the attainable exposure where all of them have labels.
        target_low: The target if no unlabelled relevant document belonged to the group.
        target_high: The same if all of them did.
        shown: Σ membership over the first k ranks.
        selected: The relevant documents among the first k; all of them where relevance is not
            known, or the pool lacks relevant documents.
        candidates: The relevant documents of the pool; where relevance is not known, what was
            answered, if that is more than k documents. Otherwise, and where the pool lacks relevant
            documents, undefined.
        ndcg: By judgements, the gain of the group's relevant documents in the first k ranks as a
            share of the most that they could have; 0 without any.
        has_relevant: By judgements, 1 if the group has a relevant document, and else 0.
        unknown: The share of the exposure that went to documents without a label; the same for all.
        unlabelled: How many candidates have no label; the same for all.
        saturated: 1 if there are more relevant documents than were looked at, and else 0; the same
            for all.
    """

    exposure: FloatArray
    target: FloatArray
    attainable: FloatArray
    exposure_low: FloatArray
    exposure_high: FloatArray
    attainable_low: FloatArray
    target_low: FloatArray
    target_high: FloatArray
    shown: FloatArray
    selected: FloatArray
    candidates: FloatArray
    ndcg: FloatArray
    has_relevant: FloatArray
    unknown: FloatArray
    unlabelled: FloatArray
    saturated: FloatArray


def measure_answer(answer: Answer, dimension: Dimension, choices: Choices) -> AnswerFigures:
    """Measure one answer.

    Args:
        answer: With memberships in the groups of the dimension.
        dimension: The groups.
        choices: What to measure by.
    """
    size = len(dimension.groups)
    undefined = np.full(size, np.nan)
    shown = min(choices.k, answer.answered)
    top = answer.members[:shown]
    weights = choices.discount.weights(shown)
    total = float(weights.sum())
    of_groups = weights @ top
    of_known = float(of_groups.sum())
    of_unknown = float(weights @ answer.unlabelled[:shown])
    target = target_of(answer, dimension, choices)
    targets = _targets(answer, dimension, choices, target)
    attainable, attainable_alone = _attainable(answer, dimension, choices, target)
    candidates = _candidates(answer, size, choices)
    ndcg, has_relevant = _gains(answer, size, choices)
    return AnswerFigures(
        exposure=of_groups / of_known if of_known > ROUNDING else undefined,
        target=targets.value,
        attainable=attainable,
        exposure_low=of_groups / total if shown else undefined,
        exposure_high=(of_groups + of_unknown) / total if shown else undefined,
        attainable_low=attainable_alone,
        target_low=targets.low,
        target_high=targets.high,
        shown=top.sum(axis=0),
        selected=candidates.selected,
        candidates=candidates.members,
        ndcg=ndcg,
        has_relevant=has_relevant,
        unknown=np.full(size, of_unknown / total if shown else np.nan),
        unlabelled=np.full(size, candidates.unlabelled),
        saturated=np.full(size, float(answer.level >= LIKELY)),
    )


class _Targets(NamedTuple):
    """The target of one answer, and what it could be with the missing labels, shape (G,) each."""

    value: FloatArray
    low: FloatArray
    high: FloatArray


def _targets(
    answer: Answer, dimension: Dimension, choices: Choices, target: FloatArray | None
) -> _Targets:
    """Return ε* with the ends that missing labels leave open; NaN where it is not known."""
    if target is None:
        undefined = np.full(len(dimension.groups), np.nan)
        return _Targets(undefined, undefined, undefined)
    weight = choices.weight_of_relevance(dimension)
    share = answer.share_of_relevant
    if answer.counted is None or share is None or not weight:
        return _Targets(target, target, target)
    total = answer.counted.sum()
    of_groups = answer.counted @ answer.members
    of_unlabelled = float(answer.counted @ answer.unlabelled)
    low = target + weight * (of_groups / total - share)
    high = target + weight * ((of_groups + of_unlabelled) / total - share)
    return _Targets(target, low, high)


def _attainable(
    answer: Answer, dimension: Dimension, choices: Choices, target: FloatArray | None
) -> tuple[FloatArray, FloatArray]:
    """Return what relevant documents could give, on the way to the target and to each group alone.

    Both are NaN where that is not known; see :class:`AnswerFigures`.
    """
    undefined = np.full(len(dimension.groups), np.nan)
    if answer.counted is None or target is None:
        return undefined, undefined
    likely = answer.members[answer.counted >= LIKELY]
    goes_by_labels = choices.weight_of_relevance(dimension) == 1
    has_right_labels = dimension.confusion is None
    if not len(likely) or not (has_right_labels or goes_by_labels):
        return undefined, undefined
    attainable = undefined
    if likely.any():  # Without any label it is attainable for nobody.
        attainable = attainable_exposure(likely, target, choices.discount, choices.k)
    is_labelled = likely.sum() >= len(likely) - ROUNDING
    if is_labelled:
        return attainable, attainable
    return attainable, highest_exposure(likely, choices.discount, choices.k)


class _Candidates(NamedTuple):
    """The documents of one answer that might be shown.

    Attributes:
        selected: How many of each group are shown, shape (G,).
        members: How many of each group there are, shape (G,).
        unlabelled: How many have no label.
    """

    selected: FloatArray
    members: FloatArray
    unlabelled: float


def _candidates(answer: Answer, size: int, choices: Choices) -> _Candidates:
    """Count candidates: relevant documents, or all that was answered if nothing is relevant."""
    shown = min(choices.k, answer.answered)
    top = answer.members[:shown]
    counted = answer.counted
    if counted is not None:
        return _Candidates(
            selected=counted[:shown] @ top,
            members=counted @ answer.members,
            unlabelled=float(counted @ answer.unlabelled),
        )
    members = np.full(size, np.nan)
    unlabelled = np.nan
    has_no_relevance = choices.relevance == "unknown" and answer.relevance is None
    if has_no_relevance and answer.answered > choices.k:
        members = answer.members[: answer.answered].sum(axis=0)
        unlabelled = float(answer.unlabelled[: answer.answered].sum())
    return _Candidates(top.sum(axis=0), members, unlabelled)


def _gains(answer: Answer, size: int, choices: Choices) -> tuple[FloatArray, FloatArray]:
    """Return NDCG of each group, and whether it has a relevant document; NaN without judgements."""
    counted = answer.counted
    if counted is None or not answer.is_judged:
        undefined = np.full(size, np.nan)
        return undefined, undefined
    shown = min(choices.k, answer.answered)
    weights = choices.discount.weights(shown)
    by_group = counted[:, None] * answer.members
    highest_first = np.sort(by_group, axis=0)[::-1]
    best = highest_first[: choices.k]
    most = choices.discount.weights(len(best)) @ best
    gains = (weights * counted[:shown]) @ answer.members[:shown]
    ndcg = gains / np.where(most > 0, most, 1.0)
    return ndcg, (most > 0).astype(float)


def target_of(answer: Answer, dimension: Dimension, choices: Choices) -> FloatArray | None:
    """Return ε*; None if it needs the groups of relevant documents and none is known.

    Args:
        answer: With memberships in the groups of the dimension.
        dimension: The groups.
        choices: What the audit measures by.
    """
    share = answer.share_of_relevant
    weight = choices.weight_of_relevance(dimension)
    is_relevance_alone = len(choices.target.parts) == 1
    if weight and (share is None or is_relevance_alone):
        return share
    confusion = dimension.confusion
    corpus = choices.corpus_shares.get(dimension.name)
    parts: dict[Part, FloatArray] = {}
    if share is not None:
        parts["relevance"] = by_group(share, confusion)
    if corpus is not None:
        parts["corpus"] = by_group(corpus, confusion)
    if answer.even is not None:
        parts["uniform"] = answer.even
    target = choices.target.resolve(dimension, parts)
    # All figures of an answer are by label, and populations are by group.
    return target if confusion is None else target @ confusion


@dataclass(frozen=True, slots=True)
class FairRerankings:
    """What fair re-rankings would give, over the queries that were re-ranked.

    Attributes:
        relevance_kept: Their relevance, as a share of today's.
        exposure_today: The mean share of the exposure that each group has today, by its name.
        exposure_if_reranked: The same after re-ranking.
        below_best: By what share of it the objective of the re-rankings is below the highest that
            any order of the same documents has, at most
            (:mod:`fairqr.retrieval.fairness.relaxation`).
    """

    relevance_kept: Estimate
    exposure_today: Mapping[str, Estimate]
    exposure_if_reranked: Mapping[str, Estimate]
    below_best: Estimate


class Effect(NamedTuple):
    """What the fair re-ranking of one answer would give.

    Attributes:
        figures: Relevance and the exposure of each group, today and after, shape (2, 1 + G).
        below_best: See :class:`FairRerankings`.
    """

    figures: FloatArray
    below_best: float


def rerank(answer: Answer, target: FloatArray, choices: Choices) -> Positions:
    """Return the positions in the pool of a fair ranking as long as what is shown today.

    Args:
        answer: With known relevance.
        target: ε*, shape (G,).
        choices: What to measure by.
    """
    return best_ranking(_objective(answer, target, choices))


def _objective(answer: Answer, target: FloatArray, choices: Choices) -> RankingObjective:
    """Return what makes a re-ranking of an answer good.

    By estimated relevance, the whole pool is re-ranked. Judgements only measure the result: a
    re-ranking cannot know them, so it goes by the engine's ranks
    (:func:`fairqr.retrieval.fairness.relevance.relevance_by_rank`).
    """
    worth = np.asarray(answer.relevance)
    if answer.is_judged:
        worth = relevance_by_rank(answer.answered)
    members = answer.members[: len(worth)]
    length = min(choices.k, answer.answered)
    return RankingObjective(worth, [members], [target], length, FAIRNESS, choices.discount)


def effect_of(answer: Answer, target: FloatArray, choices: Choices) -> Effect | None:
    """Return relevance and the exposure of each group, today and after re-ranking.

    None if the answer shows nothing relevant, or nothing with a known group.
    """
    shown = min(choices.k, answer.answered)
    weights = choices.discount.weights(shown)

    def figures(ranking: Positions) -> FloatArray:
        relevance = weights @ np.asarray(answer.relevance)[ranking]
        of_groups = exposure(answer.members[ranking], choices.discount)
        return np.array([relevance, *of_groups])

    today = figures(np.arange(shown, dtype=np.intp))
    relevance_today = today[0]
    exposure_today = today[1:]
    if not relevance_today > 0 or not exposure_today.any():
        return None
    objective = _objective(answer, target, choices)
    ranked = best_ranking(objective)
    bound = relax(objective, ranked).bound
    below_best = max(0.0, 1 - objective.quality(ranked).value / bound)
    return Effect(np.stack([today, figures(ranked)]), below_best)


def reranking_of(effects: Sequence[tuple[float, Effect]], groups: Sequence[str]) -> FairRerankings:
    """Return the effects over queries, each with the weight of its query."""
    weights = np.array([weight for weight, _ in effects])
    figures = np.array([effect.figures for _, effect in effects])
    below = np.array([[effect.below_best] for _, effect in effects])
    relevance = figures[:, :, :1]
    exposures = figures[:, :, 1:]
    (relevance_kept,) = ratios(relevance[:, 1], relevance[:, 0], weights)
    (below_best,) = ratios(below, np.ones_like(below), weights)
    whole = np.ones((len(weights), len(groups)))
    today = shares(exposures[:, 0], whole, weights)
    after = shares(exposures[:, 1], whole, weights)
    return FairRerankings(
        relevance_kept=relevance_kept,
        exposure_today=dict(zip(groups, today, strict=True)),
        exposure_if_reranked=dict(zip(groups, after, strict=True)),
        below_best=below_best,
    )
