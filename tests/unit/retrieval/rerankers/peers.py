"""Two fair re-rankers that others published, to stand beside ours: DetConstSort, and an LP policy.

No library that is still maintained has them. Scipy solves the programme of the latter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from fairqr.retrieval.fairness.divergence import jensen_shannon
from fairqr.retrieval.fairness.exposure import FloatArray, distinct_rows, normalise
from fairqr.retrieval.fairness.objective import Positions, RankingObjective
from fairqr.retrieval.rerankers.base import Candidates
from fairqr.retrieval.rerankers.fair import relevance_probabilities

ROUNDING = 1e-9
PENALTY = 1_000.0
"""What a deviation from the target costs in the programme, so that it is as small as it can be."""


def det_const_sort(
    relevance: FloatArray, groups: Positions, target: FloatArray, k: int
) -> Positions:
    """Return the ranking of DetConstSort (Geyik, Ambler & Kenthapadi 2019, arXiv:1905.01989).

    The first n ranks have at least ⌊n·target⌋ documents of each group, for any n, if it has them. A
    document is taken when its group may wait no longer, and then moves up past less relevant ones,
    as far as their groups may wait.

    Args:
        relevance: Of each document, shape (n,).
        groups: The group of each document, shape (n,).
        target: The share of each group, shape (G,), sums to 1.
        k: How many ranks to fill.

    Returns:
        Positions of documents, shape (k,), or (n,) if there are fewer.
    """
    by_relevance = np.argsort(-relevance, kind="stable")
    waiting = [[*by_relevance[groups[by_relevance] == group]] for group in range(len(target))]
    length = min(k, sum(len(waiting[group]) for group in np.flatnonzero(target)))
    ranked: list[int] = []
    latest: list[int] = []  # for each document, the last rank at which it may stand
    taken = np.zeros(len(target))
    rank = 0
    while len(ranked) < length:
        rank += 1
        least = np.floor(rank * target + ROUNDING)
        due = [group for group in np.flatnonzero(taken < least) if waiting[group]]
        for group in sorted(due, key=lambda group_: -relevance[waiting[group_][0]]):
            ranked.append(waiting[group].pop(0))
            latest.append(rank)
            taken[group] += 1
            _move_up(ranked, latest, relevance)
    return np.array(ranked[:length], dtype=np.intp)


def _move_up(ranked: list[int], latest: list[int], relevance: FloatArray) -> None:
    """Move the last document up past less relevant ones that may stand one rank lower."""
    place = len(ranked) - 1
    while place > 0 and latest[place - 1] > place:
        if relevance[ranked[place - 1]] >= relevance[ranked[place]]:
            return
        for each in (ranked, latest):
            each[place - 1], each[place] = each[place], each[place - 1]
        place -= 1


def lp_policy(candidates: Candidates, k: int) -> FloatArray:
    """Return the expected exposure of each document by the policy of Singh & Joachims (2018).

    Among the distributions over rankings it is the one of the highest expected relevance in which
    the expected exposure of each group is its target share, or as near to it as any can be (in the
    sum of absolute differences). A linear programme over the probability of each document at each
    rank (arXiv:1802.07281), which HiGHS solves.

    Args:
        candidates: The documents, all with labels, and the targets of one or more attributes.
        k: How many ranks there are to fill.

    Returns:
        Shape (n,); it sums to the sum of the discounts.
    """
    discounts = candidates.discount.weights(k)
    relevance = relevance_probabilities(candidates)
    chosen = _most_relevant_of_each_pattern(candidates.memberships, relevance, k)
    count = len(chosen)
    deviations = np.concatenate(
        [
            members[chosen] - target
            for members, target in zip(candidates.memberships, candidates.targets, strict=True)
        ],
        axis=1,
    )
    # P of document by rank, row by row; then what each group has too much, and too little.
    of_documents = sparse.kron(sparse.eye(count), np.ones((1, k)))
    of_ranks = sparse.kron(np.ones((1, count)), sparse.eye(k))
    of_groups = sparse.kron(deviations.T, discounts[None, :])
    slack = sparse.eye(deviations.shape[1])
    gains = np.kron(relevance[chosen], discounts)
    solution = linprog(
        np.concatenate([-gains, np.full(2 * slack.shape[0], PENALTY)]),
        A_ub=sparse.hstack([of_documents, sparse.csr_array((count, 2 * slack.shape[0]))]),
        b_ub=np.ones(count),
        A_eq=sparse.block_array([[of_ranks, None, None], [of_groups, -slack, slack]]),
        b_eq=np.concatenate([np.ones(k), np.zeros(slack.shape[0])]),
        method="highs",
    )
    if solution.x is None:
        raise ValueError(f"The programme has no solution: {solution.message}")
    exposures = np.zeros(len(candidates))
    exposures[chosen] = solution.x[: count * k].reshape(count, k) @ discounts
    return exposures


def value_of(objective: RankingObjective, exposures: FloatArray) -> float:
    """Return J, at a weight of 1, of expected exposures of documents, shape (n,)."""
    discounts = objective.discount.weights(objective.length)
    most = discounts @ np.sort(objective.probabilities)[::-1][: objective.length]
    fairness = [
        1 - jensen_shannon(target, normalise(exposures @ members), unit="bits")
        for members, target in zip(objective.memberships, objective.targets, strict=True)
    ]
    return float(exposures @ objective.probabilities / most * np.mean(fairness))


def _most_relevant_of_each_pattern(
    memberships: Sequence[FloatArray], relevance: FloatArray, k: int
) -> Positions:
    """Return the k most relevant documents of each pattern of memberships, which suffice.

    In any ranking with another, a document of its pattern is not in it and is as relevant or more;
    in its place it changes no exposure of a group.
    """
    patterns = distinct_rows(np.concatenate(memberships, axis=1))[1]
    order = np.lexsort((-relevance, patterns))
    starts = np.searchsorted(patterns[order], patterns[order])
    return order[np.arange(len(order)) - starts < k]
