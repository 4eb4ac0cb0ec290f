"""FA*IR: the best ranking in which every prefix passes a test of fair representation."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fairqr.base.errors import InputError
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.rerankers.base import Candidates, Reranked, RerankOptions, by_rank
from fairqr.retrieval.rerankers.group_tables import GroupTables, group_tables
from fairqr.retrieval.rerankers.protection import (
    PROTECTED_HELP,
    choose_protected,
    group_of_each,
)


class FairTopKOptions(RerankOptions):
    """Options of FA*IR."""

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


class FairTopKReranker:
    """FA*IR (Zehlike et al. 2017); with several groups, a test of each with a joint bound.

    A document belongs to the group with its largest share; see
    :func:`fairqr.retrieval.rerankers.protection.group_of_each`. The order within a group stays. A
    document only moves up if a prefix would fail without it. The scores are 1/rank.
    """

    name = "fa-ir"

    def __init__(self, options: FairTopKOptions) -> None:
        self._options = options

    async def rerank(self, query: str, candidates: Candidates, k: int) -> Reranked:
        """See :meth:`fairqr.retrieval.rerankers.base.Reranker.rerank`."""
        length = min(k, len(candidates))
        if length == 0:
            return Reranked(by_rank([]))
        protected = choose_protected([candidates], length, self._options.protected)
        groups = list(protected.groups)
        proportions = tuple(candidates.targets[protected.dimension][groups].tolist())
        if self._options.proportion is not None:
            if len(groups) > 1:
                raise InputError(
                    "The option 'proportion' of fa-ir needs one protected group, not "
                    f"{len(groups)}; name one with 'protected', or remove 'proportion'."
                )
            proportions = (self._options.proportion,)
        belongs = group_of_each(candidates.memberships[protected.dimension])
        # 0 is the rest, and i the i-th protected group.
        kinds = np.zeros(len(candidates), dtype=np.intp)
        for kind, group in enumerate(groups, start=1):
            kinds[belongs == group] = kind
        alpha = self._options.alpha
        # This takes a while for many groups or a long ranking.
        positions, failed = await asyncio.to_thread(
            lambda: fair_top_k(kinds, fair_top_k_table(length, proportions, alpha), length)
        )
        warnings: tuple[str, ...] = ()
        if failed:
            left = np.delete(kinds, positions[:failed])
            names = [candidates.groups[protected.dimension][group] for group in groups]
            lacking = [name for kind, name in enumerate(names, start=1) if kind not in left]
            why = f", because there are too few of {', '.join(lacking)}" if lacking else ""
            warnings = (
                f"The first {failed} results fail FA*IR's test. No order of the "
                f"{len(candidates)} candidates passes it{why}.",
            )
        return Reranked(by_rank(candidates.ranking.reordered(positions.tolist())), warnings)


def fair_top_k_table(k: int, proportions: Sequence[float], alpha: float) -> GroupTables:
    """Return the test of FA*IR with the model-adjusted significance.

    For one group it is the binomial test, which a fair ranking fails with a probability that is α
    or just below. For several groups it is a binomial test for each. Boole's inequality bounds the
    probability that a fair ranking fails any of them by α; the probability itself is lower.

    Args:
        k: The length of the ranking.
        proportions: The proportion of each protected group, in [0, 1], with a sum of at most 1.
        alpha: The significance, in (0, 1).
    """
    # The shares of a target may sum to slightly more than 1.
    total = max(1.0, math.fsum(proportions))
    shares = tuple(proportion / total for proportion in proportions)
    return group_tables(k, shares, alpha)


def fair_top_k(
    groups: NDArray[np.intp], table: GroupTables, k: int
) -> tuple[NDArray[np.intp], int]:
    """Fill the ranks from the top, each with the best document that still lets the test pass.

    Args:
        groups: The group of each document from best to worst, shape (n,): 0 for the rest, i for the
            i-th protected group of the table.
        table: The table for rankings of k documents.
        k: At most n.

    Returns:
        The positions of k documents in their new order; and the length of the first prefix that
        fails the test, or 0. A prefix fails only if no order of these documents passes; it is then
        as long as possible.
    """
    kinds = len(table.proportions) + 1
    queues = [deque(np.flatnonzero(groups == kind).tolist()) for kind in range(kinds)]
    openings = table.openings(tuple(map(len, queues)))
    counts = (0,) * (kinds - 1)
    order = np.empty(k, dtype=np.intp)
    failed = 0
    for length in range(1, k + 1):
        heads = sorted((queue[0], kind) for kind, queue in enumerate(queues) if queue)
        options = [(position, kind, _with(counts, kind)) for position, kind in heads]
        # There is always one: a fair ranking passes with probability above 0, so the tests do not
        # contradict each other, and the openings ask for no document that is not there.
        position, kind, counts = next(o for o in options if openings.is_open(o[2], length))
        queues[kind].popleft()
        order[length - 1] = position
        if not failed and not table.passes_at(counts, length):
            failed = length
    return order, failed


def _with(counts: tuple[int, ...], kind: int) -> tuple[int, ...]:
    """Return the counts after a document of this kind."""
    return tuple(count + (group == kind) for group, count in enumerate(counts, start=1))


def build(options: FairTopKOptions, engine: SearchEngine) -> FairTopKReranker:
    """Return the re-ranker."""
    return FairTopKReranker(options)
