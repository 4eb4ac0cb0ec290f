"""What a fair re-ranking would show instead, and what it would cost in relevance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairqr.evaluation.audit.estimates import Estimate, jackknifed, within
from fairqr.evaluation.audit.exposures import LIKELY, Answer, Choices
from fairqr.retrieval.divergence import kullback_leibler
from fairqr.retrieval.exposure import FloatArray, exposure
from fairqr.retrieval.relevance import relevance_by_rank
from fairqr.retrieval.relevance_aware import Positions, most_relevant

__all__ = ["STEPS", "CurvePoint", "Mended", "curve", "mended"]

STEPS = (1.0, 0.5, 0.25, 0.1, 0.0)
"""How much of today's divergence may remain; at 1 a ranking is at most as far from its target as
today's."""


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
        step: How much of each query's divergence of today may remain; None for today's ranking.
        divergence: The mean divergence from the target.
        relevance: The relevance, as a share of today's.
        exposure: The mean share of the exposure of each group.
    """

    step: float | None
    divergence: Estimate
    relevance: Estimate
    exposure: tuple[Estimate, ...]


def mended(answer: Answer, target: FloatArray, choices: Choices, step: float | None) -> Mended:
    """Re-rank an answer, or measure it as it is.

    By estimated relevance, the documents that are more likely relevant than not are re-ranked,
    together with those that are shown today. Judgements only measure the result: a re-ranking
    cannot know them, so it goes by the engine's ranks
    (:func:`fairqr.retrieval.relevance.relevance_by_rank`).

    Args:
        answer: With known relevance.
        target: ε*, shape (G,).
        choices: What to measure by.
        step: How much of today's divergence may remain; None leaves the ranking as it is.
    """
    if answer.relevance is None:
        raise ValueError("without relevance there is nothing to re-rank by")
    shown = min(choices.k, answer.answered)
    today = np.arange(shown, dtype=np.intp)
    if step is None:
        return _measured(answer, target, choices, today)
    if answer.is_judged:
        rows = np.arange(answer.answered, dtype=np.intp)
        worth = relevance_by_rank(answer.answered)
    else:
        rows = np.union1d(today, np.flatnonzero(answer.relevance >= LIKELY))
        worth = answer.relevance[rows]
    now = _measured(answer, target, choices, today).divergence
    best = most_relevant(
        worth,
        [answer.members[rows]],
        [target],
        tolerance=0.0 if np.isnan(now) else step * now,
        divergence=kullback_leibler,
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


def curve(
    answers: Sequence[Answer],
    targets: Sequence[FloatArray],
    weights: Sequence[float],
    choices: Choices,
) -> list[CurvePoint]:
    """Return what mending costs: today's rankings first, then ever fairer ones.

    Args:
        answers: With known relevance.
        targets: ε* of each, shape (G,) each.
        weights: Of each query.
        choices: What to measure by.

    Returns:
        Nothing if no answer shows anything relevant with a known group.
    """
    today = [mended(a, t, choices, None) for a, t in zip(answers, targets, strict=True)]
    kept = [i for i, it in enumerate(today) if not np.isnan(it.divergence) and it.relevance > 0]
    if not kept:
        return []
    by = np.array([weights[i] for i in kept])
    points = []
    for step in (None, *STEPS):
        found = [mended(answers[i], targets[i], choices, step) for i in kept]
        parts = np.array(
            [
                (1.0, it.divergence, it.relevance, today[i].relevance, *it.exposure)
                for i, it in zip(kept, found, strict=True)
            ]
        )
        (divergence,) = jackknifed(parts, by, lambda t: t[..., 1:2] / t[..., :1])
        (relevance,) = jackknifed(parts, by, lambda t: t[..., 2:3] / t[..., 3:4])
        exposures = jackknifed(parts, by, lambda t: t[..., 4:] / t[..., :1])
        points.append(
            CurvePoint(
                step,
                within(divergence, 0.0, np.inf),
                within(relevance, 0.0, np.inf),
                tuple(within(it, 0.0, 1.0) for it in exposures),
            )
        )
    return points
