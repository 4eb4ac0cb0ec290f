"""What a fair re-ranking would show instead, and what it would cost in relevance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fairqr.evaluation.audit.exposures import Answer, Choices
from fairqr.evaluation.estimates import Estimate, ratios, shares
from fairqr.retrieval.fairness.best_ranking import best_ranking
from fairqr.retrieval.fairness.exposure import FloatArray, exposure
from fairqr.retrieval.fairness.objective import Positions, RankingObjective
from fairqr.retrieval.fairness.relevance import relevance_by_rank

Weighted = tuple[float, FloatArray]
"""The weight of a query, and figures of groups."""

WEIGHT = 1.0
"""The weight of fairness of the re-rankings, which is the default of a search."""


@dataclass(frozen=True, slots=True)
class Mending:
    """What fair re-rankings would give, over the queries that were re-ranked.

    Attributes:
        relevance: Their relevance, as a share of today's.
        today: The mean share of the exposure that each group has today, by its name.
        exposure: The same after re-ranking.
    """

    relevance: Estimate
    today: Mapping[str, Estimate]
    exposure: Mapping[str, Estimate]


def rerank(answer: Answer, target: FloatArray, choices: Choices) -> Positions:
    """Return the places in the pool of a fair ranking of as many documents as are shown today.

    By estimated relevance, the whole pool is re-ranked. Judgements only measure the result: a
    re-ranking cannot know them, so it goes by the engine's ranks
    (:func:`fairqr.retrieval.fairness.relevance.relevance_by_rank`).

    Args:
        answer: With known relevance.
        target: ε*, shape (G,).
        choices: What to measure by.
    """
    worth = relevance_by_rank(answer.answered) if answer.is_judged else np.asarray(answer.relevance)
    length = min(choices.k, answer.answered)
    members = answer.members[: len(worth)]
    objective = RankingObjective(worth, [members], [target], length, WEIGHT, choices.discount)
    return best_ranking(objective)


def effect_of(answer: Answer, target: FloatArray, choices: Choices) -> FloatArray | None:
    """Return relevance and exposure of each group, today and after re-ranking, shape (2, 1 + G).

    None if the answer shows nothing relevant, or nothing with a known group.
    """
    weights = choices.discount.weights(min(choices.k, answer.answered))

    def row(ranking: Positions) -> FloatArray:
        relevance = weights @ np.asarray(answer.relevance)[ranking]
        return np.array([relevance, *exposure(answer.members[ranking], choices.discount)])

    today = row(np.arange(len(weights), dtype=np.intp))
    if not today[0] > 0 or not today[1:].any():
        return None
    return np.stack([today, row(rerank(answer, target, choices))])


def mending_of(effects: Sequence[Weighted], groups: Sequence[str]) -> Mending | None:
    """Return the effects over queries, as :func:`effect_of` returns them; None without any."""
    if not effects:
        return None
    weights, held = (np.array(it) for it in zip(*effects, strict=True))
    (relevance,) = ratios(held[:, 1, :1], held[:, 0, :1], weights)
    today, mended = (
        dict(zip(groups, shares(it, np.ones_like(it), weights), strict=True))
        for it in (held[:, 0, 1:], held[:, 1, 1:])
    )
    return Mending(relevance, today, mended)
