"""FA*IR: the best ranking in which every prefix passes a test of fair representation."""

from __future__ import annotations

import asyncio
from collections import deque

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fairqr.base.errors import InputError
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.rerankers.base import Candidates, Reranked, RerankOptions, by_rank
from fairqr.retrieval.rerankers.fa_ir_tables import FairTable, fair_table
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

    def __init__(self, options: FairTopKOptions, engine: SearchEngine | None = None) -> None:
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
            lambda: fair_top_k(kinds, fair_table(length, proportions, alpha), length)
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


def fair_top_k(groups: NDArray[np.intp], table: FairTable, k: int) -> tuple[NDArray[np.intp], int]:
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
    kinds = table.minimum.shape[1] + 1
    queues = [deque(np.flatnonzero(groups == kind).tolist()) for kind in range(kinds)]
    limited = table.limited([len(queue) for queue in queues[1:]])
    counts, failed = np.zeros(kinds, dtype=np.intp), 0
    order = np.empty(k, dtype=np.intp)
    for length in range(1, k + 1):
        # One always fits: a fair ranking passes with probability above 0, so the tests do not
        # contradict each other, and the limited table asks for no document that is not there.
        for _, kind in sorted((queue[0], kind) for kind, queue in enumerate(queues) if queue):
            counts[kind] += 1
            if limited.is_open(counts[1:].tolist(), length):
                break
            counts[kind] -= 1
        order[length - 1] = queues[kind].popleft()
        if not failed and not table.passes_at(counts[1:].tolist(), length):
            failed = length
    return order, failed
