"""The arithmetic over sampled rankings and their answers (Kim & Diaz 2024, "Towards Fair RAG")."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairqr.graph.answer.result import RankingAnswer
from fairqr.retrieval.exposure import FloatArray

__all__ = ["attribution_rate", "group_shares", "mean_exposure"]


def mean_exposure(
    answers: Sequence[RankingAnswer], ids: Sequence[str], *, used: bool = False
) -> FloatArray:
    """Return the expected exposure of documents to a machine user, or the attributed exposure.

    ε_i = (1/N) Σ_s MU(rank_s(i)), where MU is 1 for what the generator reads and 0 for the rest;
    attributed, the term of a sample counts only where its answer used the document (reconstructed
    from the paper, whose formula was illegible where it was read).

    Args:
        answers: What was read, and used, with the number of samples of each; at least one.
        ids: The documents of the pool, n of them, among which are all that were read.
        used: Count only what was used; a missing verdict counts as not used.

    Returns:
        Shape (n,), each in [0, 1]. Exposure sums to the number of documents read.
    """
    place = {id_: position for position, id_ in enumerate(ids)}
    total = np.zeros(len(ids))
    for answer in answers:
        counted = answer.used if used else [True] * len(answer.ids)
        for id_, counts in zip(answer.ids, counted, strict=True):
            total[place[id_]] += answer.samples if counts else 0
    return total / sum(answer.samples for answer in answers)


def attribution_rate(judged: Sequence[RankingAnswer]) -> float | None:
    """Return EAR: the mean over samples of the share of the documents read that were used.

    Args:
        judged: Answers with at least one verdict each. Documents without one are left out of the
            share of their answer.

    Returns:
        In [0, 1]; None where there is no answer.
    """
    if not judged:
        return None
    total = 0.0
    for answer in judged:
        known = [used for used in answer.used if used is not None]
        total += answer.samples * sum(known) / len(known)
    return total / sum(answer.samples for answer in judged)


def group_shares(
    members: FloatArray, exposure: FloatArray
) -> tuple[FloatArray | None, float | None]:
    """Return the groups' shares of the exposure with a label, (G,), and the share without one.

    Args:
        members: The share of each group in each document, shape (n, G); rows sum to at most 1.
        exposure: Of each document, shape (n,), at least 0.

    Returns:
        Shares that sum to 1, None where no document with a label has exposure; and the share of
        all exposure without a label, in [0, 1], None where there is no exposure.
    """
    mass = exposure @ members
    known, total = float(mass.sum()), float(exposure.sum())
    if total == 0:
        return None, None
    unknown = min(1.0, max(0.0, 1 - known / total))
    return (mass / known if known > 0 else None), unknown
