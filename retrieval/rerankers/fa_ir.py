"""FA*IR: the best ranking in which every prefix passes a test of fair representation.

We model a ranking of k documents as k draws, each of group g with probability p_g. Its prefix of
length i passes the test of a group if the number τ_i of its documents has
BinomCDF(τ_i; i, p_g) > α_c, and the ranking passes if all its prefixes do (Zehlike et al. 2017).

Each group has a test of its own, all with the same α_c. By Boole's inequality, the probability
that a fair ranking fails some test is at most the sum of the tests' failure probabilities, so we
keep that sum at or below α. For one group this is exactly FA*IR. For several groups it is a bound:
a fair ranking fails less often than α, since one ranking may fail several tests and is then counted
more than once.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections import deque

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from fairqr.base.errors import InputError
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.rerankers.base import Candidates, RerankedList, Reranker
from fairqr.retrieval.rerankers.protection import PROTECTED_HELP, choose_protected, group_of_each

IntArray = NDArray[np.intp]

ROUNDING = 1e-11
"""Two probabilities with a smaller relative difference than this count as equal."""


class FairTopK(Reranker):
    """FA*IR, which lifts protected groups until each prefix passes a test (Zehlike et al. 2017).

    With several groups, there is a test of each, bounded by Boole's inequality. A document belongs
    to the group with its largest share; see
    :func:`fairqr.retrieval.rerankers.protection.group_of_each`. The order within a group stays. A
    document only moves up if a prefix would fail without it. The scores are 1/rank.
    """

    protected: str | None = Field(None, description=PROTECTED_HELP)
    proportion: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="p, the share of the protected group (one only); by default its target share.",
    )
    alpha: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="α, the probability that a fair ranking fails the test; larger values require "
        "more protected documents.",
    )

    async def rerank(
        self, engine: SearchEngine, query: str, candidates: Candidates, k: int
    ) -> RerankedList:
        """See :meth:`fairqr.retrieval.rerankers.base.Reranker.rerank`."""
        length = min(k, len(candidates))
        if length == 0:
            return candidates.taken(np.arange(0))
        dimension, groups = choose_protected([candidates], length, self.protected)
        proportions = self._proportions(candidates.targets[dimension][groups])
        group_of_document = group_of_each(candidates.memberships[dimension])
        # 0 is the rest, and i the i-th protected group.
        kinds = (group_of_document[:, None] == groups) @ np.arange(1, len(groups) + 1)

        # This takes a while for many groups or a long ranking.
        table = await asyncio.to_thread(fair_table, length, proportions, self.alpha)
        positions, failed = await asyncio.to_thread(fair_top_k, kinds, table)
        if not failed:
            return candidates.taken(positions)
        warning = f"The first {failed} results fail FA*IR's test; no order of candidates passes it."
        return candidates.taken(positions, (warning,))

    def _proportions(self, targets: FloatArray) -> tuple[float, ...]:
        """Return p of each protected group.

        Args:
            targets: The target share of each of them.

        Raises:
            InputError: ``proportion`` cannot be that of several groups.
        """
        if self.proportion is None:
            return tuple(targets.tolist())
        if len(targets) > 1:
            raise InputError(
                "The option 'proportion' of fa-ir needs one protected group, not "
                f"{len(targets)}; name one with 'protected', or remove 'proportion'."
            )
        return (self.proportion,)


def fair_top_k(groups: IntArray, minimum: IntArray) -> tuple[IntArray, int]:
    """Fill the ranks from the top, each with the best document that still lets the test pass.

    Args:
        groups: The group of each document from best to worst, shape (n,): 0 for the rest, i for the
            i-th protected group of the table.
        minimum: The table for rankings of k ≤ n documents, shape (k, G).

    Returns:
        The positions of k documents in their new order; and the length of the first prefix that
        fails the test, or 0. A prefix fails only if no order of these documents passes; it is then
        as long as possible.
    """
    k, number_of_groups = minimum.shape
    queues = []
    for kind in range(number_of_groups + 1):
        queues.append(deque(np.flatnonzero(groups == kind).tolist()))
    # More documents of a group than there are cannot be placed.
    attainable = np.minimum(minimum, [len(queue) for queue in queues[1:]])

    counts = np.zeros(number_of_groups + 1, dtype=np.intp)
    order = np.empty(k, dtype=np.intp)
    failed = 0
    for rank in range(k):
        # One always fits: a fair ranking passes with probability above 0, so the tests do not
        # contradict each other, and the attainable table asks for no document that is not there.
        best_first = sorted((queue[0], kind) for kind, queue in enumerate(queues) if queue)
        for _, kind in best_first:
            counts[kind] += 1
            # The prefix passes and can be continued to k with every prefix passing if at every
            # later length at most as many documents are missing as ranks are left.
            missing = np.maximum(attainable[rank:] - counts[1:], 0).sum(axis=1)
            if np.all(missing <= np.arange(k - rank)):
                break
            counts[kind] -= 1
        order[rank] = queues[kind].popleft()
        if not failed and np.any(counts[1:] < minimum[rank]):
            failed = rank + 1
    return order, failed


@functools.lru_cache(maxsize=256)
def fair_table(k: int, proportions: tuple[float, ...], alpha: float) -> IntArray:
    """Return the minimum number of documents of each group in each prefix, shape (k, G).

    Each number is at most one more than in the prefix before. The significance is model-adjusted:

    α_c is the largest value at which a random ranking fails with probability at most α. The table,
    and with it this probability, is a step function of α_c that never decreases, so bisection finds
    the last allowed step. It starts from α/(k·G), where all tests together reject with probability
    at most α.

    Args:
        k: The length of the ranking, at least 1.
        proportions: The proportion of each protected group, in [0, 1]; those of a target may sum to
            slightly more than 1.
        alpha: The allowed probability of rejecting a fair ranking, in (0, 1).

    Returns:
        The table. A step that exactly reaches α may be refused because of rounding, as with
        p = 0.95 and α = 0.05.
    """
    total = max(1.0, math.fsum(proportions))
    shares = [proportion / total for proportion in proportions]
    distributions = [cumulative(k, share) for share in shares]

    def table(significance: float) -> tuple[tuple[int, ...], ...]:
        columns = [least_counts(distribution, significance) for distribution in distributions]
        return tuple(tuple(column.tolist()) for column in columns)

    @functools.cache
    def is_allowed(columns: tuple[tuple[int, ...], ...]) -> bool:
        pairs = zip(columns, shares, strict=True)
        return sum(failure_probability(column, share) for column, share in pairs) <= alpha

    allowed = alpha / k / len(shares)
    refused = alpha
    if is_allowed(table(alpha)):
        allowed = alpha
    middle = (allowed + refused) / 2
    # Until no number lies between the two.
    while allowed < middle < refused:
        if is_allowed(table(middle)):
            allowed = middle
        else:
            refused = middle
        middle = (allowed + refused) / 2
    return np.array(table(allowed), dtype=np.intp).T


def cumulative(k: int, proportion: float) -> FloatArray:
    """Return BinomCDF(τ; i, p) of each length i up to k and each τ up to k, shape (k, k + 1)."""
    rows = np.empty((k, k + 1))
    mass = np.zeros(k + 1)
    mass[0] = 1.0
    for row in rows:
        gains = mass[:-1] * proportion
        mass *= 1 - proportion
        mass[1:] += gains
        np.cumsum(mass, out=row)
    return rows


def least_counts(distribution: FloatArray, significance: float) -> IntArray:
    """Return for each prefix the smallest τ with CDF(τ) > α_c, shape (k,)."""
    return np.asarray((distribution <= significance * (1 + ROUNDING)).sum(axis=1))


def failure_probability(least: ArrayLike, proportion: float) -> float:
    """Return the probability that k random draws fail a table at any prefix.

    We carry the distribution of the number of protected draws from prefix to prefix; the part below
    the minimum fails and is removed. So each ranking is counted where it first fails.

    Args:
        least: The minimum of each prefix, shape (k,).
        proportion: p, the probability that a draw is protected.
    """
    minimum = np.asarray(least, dtype=np.intp)
    # A count that has reached the largest minimum can no longer fail, so we need not follow it.
    mass = np.zeros(int(minimum.max(initial=0)) + 1)
    mass[0] = 1.0
    failed = 0.0
    for count in minimum.tolist():
        gains = mass * proportion
        mass *= 1 - proportion
        mass[1:] += gains[:-1]
        if count:
            failed += float(mass[:count].sum())
            mass[:count] = 0.0
    return failed
