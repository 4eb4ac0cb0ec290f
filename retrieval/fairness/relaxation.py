"""The J that no ranking exceeds, and what exposure costs: a relaxation of the best ranking.

Let e be the exposure of each document: the discount of its rank, or its expectation where rankings
are drawn at random. All e that can be reached form a polytope, the permutahedron of the discounts
(Kletti, Renders & Loiseau 2022, arXiv:2202.03237). The relevance V and the exposures g of the
groups are linear in e, and J depends on e through them alone. So we look for the highest point of

    f(x) = log V + w·log F(g)        x = (V, g)

over the image of that polytope. Where every document has a label, f is concave: JS is convex in the
exposures, and the logarithm is increasing and concave. So is the soft minimum, which F may be in
place of the mean over attributes: what follows holds for both, with ∂F/∂F_a in place of the share
of an attribute in the mean.

**Bound.** The tangent of a concave f at any x lies above f. With its gradient c, no ranking has a
log J above f(x) + max over rankings s of c·(s − x). This maximum takes one sort, of the documents
by their worth c·(p, memberships) (Do & Usunier 2022, arXiv:2204.06521). We move x upward and find
another bound, until the lowest is as near to f as one asks.

**Steps.** Each step multiplies e by exp(rate · worth), document by document, and projects the
result onto the permutahedron, to the nearest e by relative entropy: mirror ascent (Beck & Teboulle
2003). That projection is an isotonic regression of the discounts divided by e, weighted by e (Lim &
Wright 2016). Entropy fits f, whose curvature in a group's exposure grows like its inverse, too. So
a few dozen steps suffice for hundreds of groups, for which Frank–Wolfe would take thousands. Steps
have momentum (Tseng 2008): one that is taken far ahead, at a rate that grows, is averaged with the
steps before, and f is looked at between the two. That halves the steps where there are many.

**Documents.** A ranking gives no group less, and has no less relevance, if it takes the first
documents of each pattern of memberships. So we only look at as many of each as there are ranks.

**Whole ranks.** f also counts mixtures of rankings. In a single one, a group has no exposure, or at
least l_g, what its least member gives it at the last rank. A tangent of F_a = 1 − Σ φ_g(s_g) lies
above it by the Bregman divergences D_g(s, x) = φ_g(s) − φ_g(x) − φ_g'(x)·(s − x). These are convex
in s. So for a group to which x gives less than l_g, whatever a ranking does, it loses at least the
lesser of D_g(0, x) and D_g(l_g, x); and log J is lower than its bound by w·∂F/∂F_a·Σ D_g / F. With
20 groups in 20 ranks, that is most of what a list seems to lack. We count it for attributes of
which all documents have labels.

**Missing labels.** The exposure of a group is its share of what the labelled documents get, T. If T
differs between rankings, f is not concave. Then we bound the rankings in which the labelled
documents of each attribute get as much as in a given one, t: among those, T·F(g/T)/t is F, and it
is concave for all g, as the perspective of a concave function. We add the multiplier
−w·F_a/(F·t)·∂F/∂F_a times T − t, which is 0 for these rankings, and which a ranking of the best T
would need.

**Prefixes.** Where the fairness of several prefixes counts (``spread``), what a document is worth
differs by rank, since fewer prefixes count further down. The best ranking is then an assignment of
documents to ranks and not one sort. We leave spread out: f, its bound and its prices are those of
the whole ranking alone.

**Prices.** The gradient at the optimum says what exposure is worth there: λ_g = ∂(w·log F)/∂g. A
document of relevance p and memberships m is worth p/V + λ·m, and the optimum mixes documents of
equal worth. They are dual variables, as those of constraints on exposure in Singh & Joachims
(2018), and tell how much relevance the last point of exposure costs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fairqr.retrieval.fairness.exposure import FloatArray, distinct_rows, groups_held, normalise
from fairqr.retrieval.fairness.objective import (
    DIGITS,
    LEAST,
    Positions,
    RankingObjective,
    soft_least,
    times_log,
)

TOLERANCE = 5e-4
"""How far log J of the optimum may be from its bound when we stop: half of a tenth of a percent."""
MOST_STEPS = 100
"""The most steps for a bound, which holds after any number of them."""
FIRST_RATE = 8.0
"""The rate of the first step. A step after which f is lower is taken back, and halves it."""
RATE_GROWTH = 1.05
"""By how much a step after which f is higher multiplies the rate."""
FROM_LIST = 0.97
"""How much the ranking to be bounded counts in the first e; in the rest, all documents are equal,
since no document without exposure would ever get any."""
LEAST_EXPOSURE = 1e-300
"""The least exposure of a document before it is projected, so that quotients by it are finite."""
TINY = 1e-300
"""The least share that has a logarithm: the slope of JS at an exposure of 0 is infinite."""
POINT = 0.01
"""A point of exposure: one percent of it all."""


@dataclass(frozen=True)
class Relaxation:
    """The highest point of the relaxed problem, to within the tolerance.

    Attributes:
        bound: No ranking of these documents has a J above it; in [0, 1]. Where labels are missing,
            that is said of those rankings in which the labelled documents of each attribute get
            the same exposure.
        bound_of_mixtures: The same for mixtures of rankings, whose exposures are expectations.
        relevance: V of the optimum.
        relevance_price: What p of a document, as a share of the highest p, adds to log J there, for
            each unit of exposure.
        exposures: g of each attribute there, shape (G_a,), as shares of the sum of discounts.
        prices: λ of each attribute, shape (G_a,): what exposure of the group adds to log J there,
            for each unit.
    """

    bound: float
    bound_of_mixtures: float
    relevance: float
    relevance_price: float
    exposures: list[FloatArray]
    prices: list[FloatArray]

    def cost_of_a_point(self) -> list[FloatArray]:
        """Return what one more point of exposure costs of V, for the groups of each attribute.

        The optimum gives up this share of relevance for the group's next hundredth of exposure,
        which comes from all others in proportion. It is negative where a group has more than its
        target.
        """
        costs = []
        for exposure, price in zip(self.exposures, self.prices, strict=True):
            labelled = exposure.sum()
            # Of a group that has all, as if it had all but a point.
            others = np.maximum(labelled - exposure, POINT * labelled)
            costs.append(self.relevance * POINT * labelled**2 * price / np.maximum(others, LEAST))
        return costs


def relax(
    objective: RankingObjective,
    ranked: Sequence[int] | Positions,
    order: Positions | None = None,
    tolerance: float = TOLERANCE,
    most_steps: int = MOST_STEPS,
) -> Relaxation:
    """Return the highest point of the relaxed problem, and a bound of J.

    Args:
        objective: The pool, the targets, and how many ranks to fill. Its spread is left out.
        ranked: The ranking to be bounded, as positions, of at least one rank. Where labels are
            missing, the bound is one of rankings that give the labelled documents as much exposure
            as it does.
        order: All positions in the order in which documents of the same memberships may be taken;
            the bound is then one of these rankings. By default any order.
        tolerance: How far the optimum's log J may be from the bound.
        most_steps: After so many steps we stop all the same.

    Raises:
        ValueError: The ranking is empty, or does not fill the ranks that there are documents for.
    """
    length = min(objective.length, len(objective.relevance))
    if not 0 < len(ranked) == length:
        raise ValueError(f"A ranking of {length} ranks is bounded, not of {len(ranked)}.")
    polytope = _Permutahedron(objective, np.asarray(ranked, dtype=np.intp), order)
    value = _Value(objective, polytope.point(polytope.of_ranked))

    def tangent_at(exposures: FloatArray) -> _Tangent:
        x = polytope.point(exposures)
        at = value.at(x)
        worth = polytope.worth(at.gradient)
        bound = at.value + polytope.highest(worth) - float(at.gradient @ x)
        return _Tangent(exposures, x, at, worth, bound)

    start = FROM_LIST * polytope.of_ranked + (1 - FROM_LIST) / len(polytope.of_ranked)
    now = best = tangent_at(start)
    bound = now.bound
    rate = FIRST_RATE
    # Tseng's θ, z and x.
    momentum = 1.0
    ahead = average = start
    for _ in range(most_steps):
        if bound <= best.at.value + tolerance:
            break
        ahead = polytope.nearest(ahead * np.exp(rate / momentum * (now.worth - now.worth.max())))
        average = average + momentum * (ahead - average)
        momentum = 2 / (1 + np.sqrt(1 + 4 / momentum**2))
        now = tangent_at(average + momentum * (ahead - average))
        bound = min(bound, now.bound)
        if now.at.value >= best.at.value:
            best = now
            rate *= RATE_GROWTH
        else:
            now = best
            ahead = average = best.exposures
            momentum = 1.0
            rate /= 2
    # Both hold for every ranking, so the lower one does. The tangent at another x may be lower than
    # that at the highest one, for which we know what whole ranks lose.
    of_whole_ranks = best.bound - value.lost_to_whole_ranks(best.x, polytope.least)
    ends = np.cumsum([1, *map(len, objective.targets)])
    relevance = float(best.x[0])
    return Relaxation(
        bound=_bound_of_j(min(bound, of_whole_ranks)),
        bound_of_mixtures=_bound_of_j(bound),
        relevance=relevance,
        relevance_price=value.weight_of_relevance / (max(relevance, LEAST) * polytope.most),
        exposures=np.split(best.x, ends)[1:-1],
        prices=np.split(best.at.prices, ends)[1:-1],
    )


class _Tangent(NamedTuple):
    """The tangent of f where documents have certain exposures.

    Attributes:
        exposures: e of each document, shape (n,).
        x: The point that they lead to, shape (1 + G,).
        at: f there.
        worth: What exposure of each document adds to f there, for each unit, shape (n,).
        bound: The highest that the tangent is for any ranking; so f of none is above it.
    """

    exposures: FloatArray
    x: FloatArray
    at: _Point
    worth: FloatArray
    bound: float


def _bound_of_j(logarithm: float) -> float:
    """Return the bound of J, given that of log J; rounding in J does not exceed it."""
    rounded_up = float(np.exp(min(logarithm, 0.0))) + 10.0**-DIGITS
    return min(1.0, rounded_up)


class _Permutahedron:
    """What rankings of the pool can reach: exposures e of documents, and points x = (V, g).

    Exposures are shares of the discounts' sum. The documents are those that a best ranking may
    need, and those of the ranking to be bounded: n of them.

    Attributes:
        length: How many ranks there are.
        most: The highest Σ e·p.
        of_ranked: e of the ranking to be bounded, shape (n,).
        least: The least exposure in x of a group that a ranking exposes at all, shape (1 + G,); 0
            for V, and where documents lack labels of its attribute.
    """

    def __init__(
        self, objective: RankingObjective, ranked: Positions, order: Positions | None
    ) -> None:
        relevance = objective.relative
        members = np.concatenate(objective.memberships, axis=1, dtype=np.float64)
        by_relevance = np.argsort(-relevance, kind="stable")
        self.length = len(ranked)
        weights = objective.discount.weights(self.length)
        self._weights = weights / (weights.sum() or 1.0)
        self.most = float(self._weights @ relevance[by_relevance[: self.length]]) or 1.0
        patterns = distinct_rows(members)[1]
        taken = _by_pattern(patterns, by_relevance if order is None else order, self.length)
        if order is not None:
            relevance = _attainable_relevance(relevance, taken)
        needed = np.union1d(np.concatenate(taken), ranked)
        self.of_ranked = np.zeros(len(needed))
        self.of_ranked[np.searchsorted(needed, ranked)] = self._weights
        self._relevance = relevance[needed] / self.most
        self._number_of_groups = members.shape[1]
        self._groups, self._shares = groups_held(members[needed])
        self.least = self._weights[-1] * np.append(0.0, _least_shares(objective.memberships))

    def point(self, exposures: FloatArray) -> FloatArray:
        """Return x where documents have these exposures, shape (1 + G,)."""
        of_groups = np.bincount(
            self._groups.ravel(),
            (exposures[:, None] * self._shares).ravel(),
            self._number_of_groups,
        )
        return np.append(exposures @ self._relevance, of_groups)

    def worth(self, gradient: FloatArray) -> FloatArray:
        """Return what exposure of each document adds to f, for each unit, shape (n,)."""
        of_groups = (gradient[1:][self._groups] * self._shares).sum(axis=1)
        return np.asarray(gradient[0] * self._relevance + of_groups)

    def highest(self, worth: FloatArray) -> float:
        """Return the highest Σ e·worth of any ranking: of the documents that are worth most."""
        kept = np.partition(worth, len(worth) - self.length)[-self.length :]
        return float(self._weights @ np.sort(kept)[::-1])

    def nearest(self, exposures: FloatArray) -> FloatArray:
        """Return the e of the permutahedron nearest to positive numbers, by relative entropy."""
        nearest = np.maximum(exposures, LEAST_EXPOSURE)
        is_ranked = np.zeros(len(nearest), dtype=bool)
        is_ranked[np.argpartition(-nearest, self.length - 1)[: self.length]] = True
        ranked = np.flatnonzero(is_ranked)
        ranked = ranked[np.argsort(-nearest[ranked])]
        # The documents below the last rank share one factor, since all their discounts are 0.
        rest = max(float(nearest[~is_ranked].sum()), LEAST_EXPOSURE)
        sizes = np.append(nearest[ranked], rest)
        quotients = np.append(self._weights, 0.0) / sizes
        factors = -_falling(-quotients, sizes)
        nearest[ranked] *= factors[:-1]
        nearest[~is_ranked] *= factors[-1]
        return nearest


def _least_shares(memberships: Sequence[FloatArray]) -> FloatArray:
    """Return the least share above 0 of each group in a document, shape (G,).

    It is 0 for groups without documents, and where some documents lack labels of the attribute.
    """
    found = []
    for members in memberships:
        least = np.where(members > 0, members, np.inf).min(axis=0)
        is_labelled = (np.abs(members.sum(axis=1) - 1) < 10**-DIGITS).all()
        found.append(np.where(np.isfinite(least) & is_labelled, least, 0.0))
    return np.concatenate(found)


def _by_pattern(patterns: Positions, order: Positions, most: int) -> list[Positions]:
    """Return the first documents of each pattern in an order, at most so many of each."""
    by_pattern = order[np.argsort(patterns[order], kind="stable")]
    starts = np.flatnonzero(np.diff(patterns[by_pattern], prepend=-1))
    return [documents[:most] for documents in np.split(by_pattern, starts[1:])]


def _attainable_relevance(relevance: FloatArray, taken: Sequence[Positions]) -> FloatArray:
    """Return a relevance that falls along a given order, and bounds V from above.

    Documents with the same memberships are taken in the given order. We replace their relevance by
    its non-increasing regression (pool adjacent violators): in each block that it levels, a prefix
    has at most the block's mean, so no discounts that fall along the order make more of the true
    relevance than of this one.

    Args:
        relevance: Of all documents.
        taken: The documents of each pattern, in the order in which they are taken.
    """
    levelled = np.array(relevance)
    for documents in taken:
        levelled[documents] = _falling(relevance[documents], np.ones(len(documents)))
    return levelled


def _falling(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the non-increasing sequence nearest to the values by weighted squares.

    Args:
        values: Shape (n,).
        weights: Of the values, positive, shape (n,).
    """
    means: list[float] = []
    masses: list[float] = []
    sizes: list[int] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        mean = value
        mass = weight
        size = 1
        while means and means[-1] < mean:
            earlier = means.pop()
            heavier = masses.pop() + mass
            mean += (earlier - mean) * (heavier - mass) / heavier
            mass = heavier
            size += sizes.pop()
        means.append(mean)
        masses.append(mass)
        sizes.append(size)
    return np.repeat(means, sizes)


class _Fairness:
    """F of one attribute, as a function of its groups' exposures g.

    Attributes:
        columns: Where its groups stand in x.
        labelled: t, what its labelled documents get in the rankings that are bounded.
    """

    def __init__(self, columns: slice, target: FloatArray, labelled: float) -> None:
        self.columns = columns
        self.labelled = labelled
        self._target = target

    def at(self, x: FloatArray) -> tuple[float, FloatArray]:
        """Return T·F(g/T)/t at a point x, and its gradient in g, T held constant, shape (G_a,)."""
        given = x[self.columns]
        shares = normalise(given)
        middle = (shares + self._target) / 2
        ratio = _log2_ratio(shares, middle)
        of_target = self._target * _log2_ratio(self._target, middle)
        fair = 1 - float((of_target + shares * ratio).sum()) / 2
        slopes = -ratio / 2
        gradient = np.asarray((slopes - shares @ slopes) / self.labelled)
        return float(given.sum()) / self.labelled * fair, gradient

    def lost_to_whole_ranks(self, x: FloatArray, least: FloatArray) -> float:
        """Return how far, at least, F of a single ranking lies below its tangent at a point x.

        Args:
            x: The point, in which all documents have labels where some group has a least exposure.
            least: The least exposure in x of a group that has any, shape (1 + G,).
        """
        given = x[self.columns]
        is_small = (given > 0) & (given < least[self.columns])
        shares = given[is_small]
        target = self._target[is_small]

        def loss(other: FloatArray) -> FloatArray:
            slopes = _log2_ratio(shares, (shares + target) / 2) / 2
            rise = _of_divergence(other, target) - _of_divergence(shares, target)
            return rise - slopes * (other - shares)

        lost = np.minimum(loss(np.zeros(len(shares))), loss(least[self.columns][is_small]))
        return max(0.0, float(lost.sum()))


class _Point(NamedTuple):
    """f at one point x.

    Attributes:
        value: f itself.
        gradient: Its gradient, shape (1 + G,).
        prices: What exposure adds to w·log F with T held constant, shape (1 + G,).
    """

    value: float
    gradient: FloatArray
    prices: FloatArray


class _Combined:
    """F of all attributes, given F_a of each: their mean, or the soft minimum.

    Args:
        shares: How much each counts in the mean; they sum to 1.
        sharpness: β of the soft minimum; 0 for the mean.
    """

    def __init__(self, shares: Sequence[float], sharpness: float) -> None:
        self._shares = np.array(shares, dtype=np.float64)
        self._sharpness = sharpness

    def fairness(self, values: FloatArray) -> float:
        """Return F: at least LEAST, and 1 without any attribute."""
        if not len(values):
            return 1.0
        if self._sharpness:
            return max(float(soft_least(values, self._sharpness)), LEAST)
        return max(float(self._shares @ values), LEAST)

    def slopes(self, values: FloatArray) -> FloatArray:
        """Return ∂F/∂F_a of each attribute, which sum to 1: its share, or by how low it is."""
        if not self._sharpness or not len(values):
            return self._shares
        terms = np.exp(-self._sharpness * (values - values.min()))
        return np.asarray(terms / terms.sum())


class _Value:
    """f on the rankings that are bounded, with its gradient, as a concave function of any x.

    Args:
        objective: What makes a ranking good.
        own: The x of a ranking; those bounded give the labelled documents as much as it does.
    """

    def __init__(self, objective: RankingObjective, own: FloatArray) -> None:
        is_finite = bool(np.isfinite(objective.power))
        self.weight_of_relevance = 1.0 if is_finite else 0.0
        self._weight = objective.power if is_finite else 1.0
        ends = np.cumsum([1, *map(len, objective.targets)]).tolist()
        parts = zip(itertools.pairwise(ends), objective.targets, objective.shares, strict=True)
        defined = [
            (slice(*columns), np.asarray(target, dtype=np.float64), share)
            for columns, target, share in parts
            # An attribute without exposure counts in no mean.
            if share > 0 and own[slice(*columns)].sum() > 10**-DIGITS
        ]
        total = sum(share for _, _, share in defined)
        self._combined = _Combined([it / total for _, _, it in defined], objective.sharpness)
        self._attributes = [
            _Fairness(columns, target, labelled=float(own[columns].sum()))
            for columns, target, _ in defined
        ]
        # The rankings that are bounded give each attribute's labelled documents as much as this
        # one, so these terms are 0 for them; see "Missing labels".
        values = np.array([one.at(own)[0] for one in self._attributes])
        of_fairness = self._weight / self._combined.fairness(values)
        slopes = self._combined.slopes(values)
        self._multipliers = np.zeros(len(own))
        for one, value, slope in zip(self._attributes, values, slopes, strict=True):
            self._multipliers[one.columns] = -of_fairness * slope * value / one.labelled
        self._offset = float(self._multipliers @ own)

    def at(self, x: FloatArray) -> _Point:
        """Return f at a point x, shape (1 + G,), with its gradient."""
        found = [one.at(x) for one in self._attributes]
        values = np.array([value for value, _ in found])
        fair = self._combined.fairness(values)
        of_fairness = self._weight / fair
        prices = np.zeros(len(x))
        of_labelled = np.zeros(len(x))
        parts = zip(self._attributes, found, self._combined.slopes(values), strict=True)
        for one, (value, in_groups), slope in parts:
            prices[one.columns] = of_fairness * slope * in_groups
            labelled = float(x[one.columns].sum()) or 1.0
            of_labelled[one.columns] = of_fairness * slope * value / labelled
        gradient = prices + of_labelled + self._multipliers
        relevance = max(float(x[0]), LEAST)
        gradient[0] = self.weight_of_relevance / relevance
        logarithm = self.weight_of_relevance * np.log(relevance) + self._weight * np.log(fair)
        return _Point(logarithm + float(x @ self._multipliers) - self._offset, gradient, prices)

    def lost_to_whole_ranks(self, x: FloatArray, least: FloatArray) -> float:
        """Return how far, at least, log J of a single ranking lies below f's tangent at x.

        Args:
            x: The point, shape (1 + G,).
            least: The least exposure of a group that has any, shape (1 + G,).
        """
        values = np.array([one.at(x)[0] for one in self._attributes])
        lost = np.array([one.lost_to_whole_ranks(x, least) for one in self._attributes])
        of_fairness = self._weight / self._combined.fairness(values)
        return of_fairness * float(self._combined.slopes(values) @ lost)


def _log2_ratio(shares: FloatArray, others: FloatArray) -> FloatArray:
    """Return log2 of the quotient of shares, a share of 0 counting as the least."""
    return np.asarray(np.log2(np.maximum(shares, TINY) / np.maximum(others, TINY)))


def _of_divergence(shares: FloatArray, target: FloatArray) -> FloatArray:
    """Return what each group adds to JS, in bits, but for what only depends on its target."""
    return np.asarray(times_log(shares) / 2 - times_log((shares + target) / 2))
