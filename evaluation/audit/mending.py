"""What a fair re-ranking would show instead, and what it would cost in relevance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fairqr.evaluation.audit.estimates import Estimate, means, ratios, shares
from fairqr.evaluation.audit.exposures import Answer, Choices
from fairqr.retrieval.divergence import kullback_leibler
from fairqr.retrieval.exposure import FloatArray, exposure
from fairqr.retrieval.objective import Positions, best_ranking
from fairqr.retrieval.relevance import relevance_by_rank

WEIGHTS = (0.25, 0.5, 1.0, 2.0, 4.0, 16.0)
"""The weights of fairness of the curve; see :mod:`fairqr.retrieval.objective`."""

MENDED_WEIGHT = 1.0
"""The weight of fairness of the re-rankings that are shown, which is the default of a search."""


class Mendable(NamedTuple):
    """An answer that can be re-ranked.

    Attributes:
        answer: With known relevance.
        target: ε*, shape (G,).
        weight: Of the query.
    """

    answer: Answer
    target: FloatArray
    weight: float


@dataclass(frozen=True, slots=True)
class Mended:
    """A re-ranking of what is relevant, or shown today.

    Attributes:
        positions: In the pool, best first; at most k.
        divergence: From the target, in nats; NaN where its exposure is undefined.
        relevance: Σ discount · probability of relevance over its ranks.
        exposure: ε, shape (G,); 0 for all if no document has a known group.
    """

    positions: Positions
    divergence: float
    relevance: float
    exposure: FloatArray


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Where fair re-rankings stand on the way to the target.

    Attributes:
        weight: The weight of fairness; None for today's ranking.
        divergence: The mean divergence from the target.
        relevance: The relevance, as a share of today's.
        exposure: The mean share of the exposure of each group, by its name.
    """

    weight: float | None
    divergence: Estimate
    relevance: Estimate
    exposure: Mapping[str, Estimate]


def mended(answer: Answer, target: FloatArray, choices: Choices, weight: float | None) -> Mended:
    """Re-rank an answer, or measure it as it is.

    By estimated relevance, the whole pool is re-ranked. Judgements only measure the result: a
    re-ranking cannot know them, so it goes by the engine's ranks
    (:func:`fairqr.retrieval.relevance.relevance_by_rank`).

    Args:
        answer: With known relevance.
        target: ε*, shape (G,).
        choices: What to measure by.
        weight: The weight of fairness; None leaves the ranking as it is.
    """
    if answer.relevance is None:
        raise ValueError("without relevance there is nothing to re-rank by")
    shown = min(choices.k, answer.answered)
    if weight is None:
        return _measured(answer, target, choices, np.arange(shown, dtype=np.intp))
    if answer.is_judged:
        rows = np.arange(answer.answered, dtype=np.intp)
        worth = relevance_by_rank(len(rows))
    else:
        rows = np.arange(len(answer.relevance), dtype=np.intp)
        worth = answer.relevance
    best = best_ranking(
        worth,
        [answer.members[rows]],
        [target],
        weight=weight,
        discount=choices.discount,
        length=shown,
    )
    return _measured(answer, target, choices, rows[best])


def _measured(answer: Answer, target: FloatArray, choices: Choices, rows: Positions) -> Mended:
    relevance = answer.relevance if answer.relevance is not None else np.zeros(0)
    shares = exposure(answer.members[rows], choices.discount)
    distance = float(kullback_leibler(target, shares)) if shares.any() else np.nan
    weights = choices.discount.weights(len(rows))
    return Mended(rows, distance, float(weights @ relevance[rows]), shares)


def after_mending(points: Iterable[CurvePoint]) -> CurvePoint | None:
    """Return where the re-rankings stand that weigh fairness as a search does by default."""
    return next((point for point in points if point.weight == MENDED_WEIGHT), None)


def curve(answers: Sequence[Mendable], choices: Choices, groups: Sequence[str]) -> list[CurvePoint]:
    """Return what mending costs: today's rankings first, then ever fairer ones.

    Args:
        answers: Of all queries.
        choices: What to measure by.
        groups: Their names.

    Returns:
        Nothing if no answer shows anything relevant with a known group.
    """
    return _points(*_rows(answers, choices), groups)


def _rows(
    answers: Sequence[Mendable], choices: Choices
) -> tuple[dict[float | None, FloatArray], FloatArray]:
    """Return by weight of fairness what each query adds, and the weights of these queries.

    A row is divergence, relevance, today's relevance, and the exposure of each group. Queries that
    show nothing relevant with a known group are left out.
    """
    today = [mended(it.answer, it.target, choices, None) for it in answers]
    kept = [
        (it, now)
        for it, now in zip(answers, today, strict=True)
        if not np.isnan(now.divergence) and now.relevance > 0
    ]
    found: dict[float | None, FloatArray] = {}
    for weight in (None, *WEIGHTS) if kept else ():
        rows = []
        for it, now in kept:
            new = mended(it.answer, it.target, choices, weight)
            rows.append((new.divergence, new.relevance, now.relevance, *new.exposure))
        found[weight] = np.array(rows)
    return found, np.array([it.weight for it, _ in kept])


def _points(
    rows: Mapping[float | None, FloatArray], weights: FloatArray, groups: Sequence[str]
) -> list[CurvePoint]:
    found = []
    for weight, held in rows.items():
        (divergence,) = means(held[:, :1], weights)
        (relevance,) = ratios(held[:, 1:2], held[:, 2:3], weights)
        exposure = shares(held[:, 3:], np.ones_like(held[:, 3:]), weights)
        found.append(
            CurvePoint(
                weight,
                replace(divergence, low=np.maximum(divergence.low, 0.0)),
                relevance,
                dict(zip(groups, exposure, strict=True)),
            )
        )
    return found
