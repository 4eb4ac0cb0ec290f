"""A ranking: document ids with scores, in a repeatable order; and the fusion of several."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairqr.retrieval.fairness.exposure import FloatArray

RRF_K = 60


def best_positions(
    ids: Sequence[str], scores: ArrayLike, *, descending: bool = False
) -> NDArray[np.intp]:
    """Return the positions of documents from best to worst; ties in order of id.

    Args:
        ids: The documents, each once.
        scores: One score for each document.
        descending: Break ties by the greatest id first.
    """
    values = np.asarray(scores, dtype=np.float64)
    best = np.argsort(-values) if (values[1:] > values[:-1]).any() else np.arange(len(values))
    same = values[best[1:]] == values[best[:-1]]
    ties = zip(best[:-1][same].tolist(), best[1:][same].tolist(), strict=True)
    # Comparing strings is slow, and ties are often in order already: their neighbours tell.
    if any((ids[one] < ids[other]) == descending for one, other in ties):
        keys = list(zip((values if descending else -values).tolist(), ids, strict=True))
        best = np.array(sorted(best.tolist(), key=keys.__getitem__, reverse=descending))
    return best


@dataclass(frozen=True, slots=True)
class Ranking:
    """Documents from best to worst.

    Attributes:
        ids: Distinct document ids.
        scores: One score for each document, never increasing. Ties are in order of id.
    """

    ids: Sequence[str]
    scores: Sequence[float]

    @classmethod
    def of(cls, scores: Mapping[str, float] | Iterable[tuple[str, float]]) -> Ranking:
        """Sort documents by score, and ties by id."""
        known = scores if isinstance(scores, Mapping) else dict(scores)
        ids, values = list(known), list(known.values())
        order = best_positions(ids, values).tolist()
        return cls([ids[place] for place in order], [values[place] for place in order])

    def __len__(self) -> int:
        return len(self.ids)

    def top(self, n: int) -> Ranking:
        """Return the first n documents."""
        return Ranking(self.ids[:n], self.scores[:n])

    def picked(self, ids: Sequence[str]) -> Ranking:
        """Return some of the documents in another order, each with its score."""
        score = dict(zip(self.ids, self.scores, strict=True))
        return Ranking(list(ids), [score[id_] for id_ in ids])

    def without(self, ids: Collection[str]) -> Ranking:
        """Return the documents that are not among these, in the same order."""
        pairs = zip(self.ids, self.scores, strict=True)
        left = [(id_, score) for id_, score in pairs if id_ not in ids]
        return Ranking([id_ for id_, _ in left], [score for _, score in left])


def reciprocal_rank_fusion(
    rankings: Sequence[Ranking],
    weights: Sequence[float] | None = None,
    k: int = RRF_K,
    *,
    shares: Sequence[FloatArray | None] | None = None,
) -> Ranking:
    """Fuse rankings: score(d) = Σ_i w_i·s_i(d) / (k + rank_i(d)).

    With all s_i(d) = 1 this is the fusion of Cormack, Clarke & Büttcher (2009).

    Args:
        rankings: The rankings. A document that a ranking lacks gets nothing from it.
        weights: One for each ranking; 1 by default.
        k: Large values make the first ranks weigh less.
        shares: For each ranking of n documents, the share of its weight that each one gets, shape
            (n,), in [0, 1]; None means all of it. A document that gets nothing at all is left out.
    """
    scores: dict[str, float] = {}
    weights = weights or [1.0] * len(rankings)
    for ranking, weight, own in zip(
        rankings, weights, shares or [None] * len(rankings), strict=True
    ):
        parts = np.ones(len(ranking)) if own is None else own
        gains = weight * parts / (k + np.arange(1, len(ranking) + 1))
        for id_, gain in zip(ranking.ids, gains.tolist(), strict=True):
            if gain:
                scores[id_] = scores.get(id_, 0.0) + gain
    return Ranking.of(scores)
