"""Expected exposure of items and of groups over several rankings of one query.

Diaz, Mitra, Ekstrand, Biega & Carterette (2020); the machine user of RAG, its bounds and the
normalisation are those of "Towards Fair RAG" (Kim & Diaz 2024), extended to any discount.

n items, m of them useful, are ranked N times. A user gives rank r the weight d(r), 0 beyond
the cut-off; S = Σ_r d(r) over the n ranks. Exposure is not normalised here: it sums to S.

* ε_i, what item i gets: the mean of d(rank of i) over the rankings.
* ε*_i, the target: what it gets on average over all orders that put the useful items first. With
  D_j = d(1) + … + d(j) that is D_m/m for a useful item and (D_n − D_m)/(n − m) for another.
* EE-D = Σ ε_i² (disparity), EE-R = Σ ε_i·ε*_i (relevance), EE-L = Σ (ε_i − ε*_i)² (loss)
  = EE-D − 2·EE-R + Σ ε*_i².

A ranking that leaves items out counts as though they followed in random order: they share the
weights of the ranks that are left. So every value stays within its bounds.

What can be reached, all weights d not increasing:

* EE-D is least, S²/n, where all items get the same, and most, Σ d², for one fixed ranking (it is
  convex over the mixtures of rankings, whose corners are the fixed ones).
* EE-R is linear, so both ends are fixed rankings, by the rearrangement inequality: useful items
  first, D_m·t1 + (D_n − D_m)·t0, and useful items last, D_{n−m}·t0 + (D_n − D_{n−m})·t1; t1 and t0
  are the targets of useful and of other items.
* EE-L is least, 0, at the target, and most for a fixed ranking with the useful items last, as EE-D
  is the same for all fixed rankings: Σ d² − 2·(least EE-R) + Σ ε*².

With d = 1 up to k these are the bounds of the paper: k²/n to k, and m + (k−m)²/(n−m) if m ≤ k, else
k²/m, down to a·t0 + (k−a)·t1 with a = min(k, n−m).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fairqr.base.errors import InputError
from fairqr.evaluation.scores import Reason, Score
from fairqr.retrieval.fairness.exposure import LOG2, Discount, FloatArray

ROOM = 1e-12
"""Bounds that are closer than this leave no room for a normalised value."""


What = Literal["disparity", "relevance", "loss"]
Normalization = Literal["bounds", "none", "fair-rag"]


class Bounds(NamedTuple):
    """The least and the greatest value that rankings of n items, m useful, can reach.

    Attributes:
        disparity: The bounds of EE-D.
        relevance: The bounds of EE-R.
        loss: The bounds of EE-L.
    """

    disparity: tuple[float, float]
    relevance: tuple[float, float]
    loss: tuple[float, float]


@dataclass(frozen=True, slots=True)
class ExpectedExposure:
    """What N rankings of n items give, not normalised.

    Attributes:
        disparity: EE-D, in [S²/n, Σ d²]; the low end is fair, all items getting the same.
        relevance: EE-R, higher is better: exposure goes where relevance is.
        useful_relevance: EE-R with the useful items alone in the sum, as the code of "Towards Fair
            RAG" has it.
        unbiased_disparity: EE-D without the upward bias of few samples,
            (‖Σ_s x_s‖² − Σ_s ‖x_s‖²)/(N(N−1)) with x_s the exposure of one ranking; None for one
            ranking. Its mean is right, but one value can be below S²/n, and even below 0 where
            rankings leave much out.
        bounds: What can be reached; the greatest EE-R is Σ ε*², too.
        items: n.
        useful: m.
    """

    disparity: float
    relevance: float
    useful_relevance: float
    unbiased_disparity: float | None
    bounds: Bounds
    items: int
    useful: int

    @property
    def loss(self) -> float:
        """EE-L, at least 0; 0 is fair: exposure is exactly the target."""
        # Rounding can leave about −1e-16 where the target is met.
        return max(0.0, self.disparity - 2 * self.relevance + self.bounds.relevance[1])

    def score(
        self, what: What, normalization: Normalization = "bounds", *, unbiased: bool = False
    ) -> Score:
        """Return EE-D, EE-R or EE-L, normalised.

        Args:
            what: Which of them.
            normalization: ``bounds``: (value − least)/(greatest − least) of what rankings of the
                items can reach. ``none``. ``fair-rag``: the numbers of "Towards Fair RAG", where
                both lower bounds are 0, and EE-R sums over the useful items alone, so that it stays
                below 1 where fewer than k are useful.
            unbiased: EE-D, or EE-L, by the unbiased EE-D. It can be below the least value.

        Returns:
            A reason where all rankings get the same value; the unbiased one also for one ranking.
        """
        is_published = normalization == "fair-rag"
        value = getattr(self, what)
        if unbiased and what != "relevance":
            if self.unbiased_disparity is None:
                return Reason.ONE_RANKING
            value += self.unbiased_disparity - self.disparity
        elif is_published and what == "relevance":
            value = self.useful_relevance
        if normalization == "none":
            return float(value)
        reason = self.without_room(what)
        if reason:
            return reason
        low, high = getattr(self.bounds, what)
        least = 0 if is_published else low
        return float((value - least) / (high - least))

    def without_room(self, what: What) -> Reason | None:
        """Return why all rankings get the same value, if they do."""
        low, high = getattr(self.bounds, what)
        if high - low > ROOM * max(1.0, high):
            return None
        if what == "disparity":  # which items are useful changes nothing for it
            return Reason.NO_ROOM
        reasons = {0: Reason.NO_RELEVANT, self.items: Reason.ALL_RELEVANT}
        return reasons.get(self.useful, Reason.NO_ROOM)


def target_exposure(
    n: int, m: int, discount: Discount = LOG2, k: int | None = None
) -> tuple[float, float]:
    """Return the target of a useful item and of any other; 0 for one that does not exist.

    Args:
        n: How many items there are.
        m: How many of them are useful.
        discount: The weight of each rank.
        k: The cut-off, beyond which weights are 0.
    """
    weights = _weights(n, discount, k)
    first = float(weights[:m].sum())
    rest = float(weights[m:].sum())
    useful = first / m if m else 0.0
    other = rest / (n - m) if n > m else 0.0
    return useful, other


def exposure_bounds(n: int, m: int, discount: Discount = LOG2, k: int | None = None) -> Bounds:
    """Return the bounds of all three measures; see the module. Arguments as above."""
    weights = _weights(n, discount, k)
    useful, other = target_exposure(n, m, discount, k)
    total = float(weights.sum())
    squares = float(weights @ weights)
    first = float(weights[:m].sum())
    last = total - float(weights[: n - m].sum())
    highest = first * useful + (total - first) * other
    lowest = last * useful + (total - last) * other
    # The target's own square is the highest EE-R: an optimal ranking reaches both.
    return Bounds(
        disparity=(total**2 / n, squares),
        relevance=(lowest, highest),
        loss=(0.0, squares - 2 * lowest + highest),
    )


def expected_exposure(
    samples: ArrayLike,
    useful: ArrayLike,
    discount: Discount = LOG2,
    k: int | None = None,
) -> ExpectedExposure:
    """Return EE-D, EE-R and EE-L of rankings of items; see the module for the formulas.

    Args:
        samples: Shape (N, r): in each row the positions of distinct items, best first; −1 fills up
            rows that are shorter. Ranks beyond the cut-off may be left out.
        useful: Shape (n,): which items are useful.
        discount: The weight of each rank; ``top_k(k)`` is the machine user of RAG.
        k: The cut-off, beyond which weights are 0.

    Raises:
        InputError: There is no ranking or no item, or a position beyond the items.
    """
    labels = np.asarray(useful, dtype=bool)
    n = labels.size
    m = int(np.count_nonzero(labels))
    ranked = np.asarray(samples)
    has_rankings = ranked.ndim == 2 and len(ranked) > 0
    if not has_rankings or not ((ranked >= -1) & (ranked < n)).all():
        raise InputError(f"Expected exposure needs rankings of items from 0 to {n - 1}.")
    weights = _weights(n, discount, k)
    ranked = ranked[:, : weights.size]
    count = len(ranked)
    is_item = ranked >= 0
    length = is_item.sum(axis=1)
    # What the items left out of a ranking get, each.
    total = weights.sum()
    rest = total - np.concatenate(([0.0], weights.cumsum()))[length]
    share = np.where(length < weights.size, rest / np.maximum(n - length, 1), 0.0)
    exposures = np.repeat(share[:, None], n, axis=1)
    rows, ranks = np.nonzero(is_item)
    exposures[rows, ranked[is_item]] = weights[ranks]

    system = exposures.mean(axis=0)
    wanted_useful, wanted_other = target_exposure(n, m, discount, k)
    to_useful = float(system[labels].sum())
    disparity = float(system @ system)
    unbiased = None
    if count > 1:
        squares = float(np.vdot(exposures, exposures))
        unbiased = (count**2 * disparity - squares) / (count * (count - 1))
    return ExpectedExposure(
        disparity=disparity,
        relevance=to_useful * wanted_useful + (float(total) - to_useful) * wanted_other,
        useful_relevance=to_useful * wanted_useful,
        unbiased_disparity=unbiased,
        bounds=exposure_bounds(n, m, discount, k),
        items=n,
        useful=m,
    )


def _weights(n: int, discount: Discount, k: int | None) -> FloatArray:
    """Return the weights of the ranks up to the cut-off, at most n of them."""
    return discount.weights(n if k is None else min(n, k))
