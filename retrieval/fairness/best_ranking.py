"""The ranking of highest J, the objective of :mod:`fairqr.retrieval.fairness.objective`.

Documents with the same memberships (a *pattern*) differ only in p. Exchanging two of them leaves ε
unchanged, so a ranking takes the documents of each pattern in one order, usually from the most
relevant down. It remains to find a sequence of patterns:

1. Fill the ranks from first to last, each with the pattern of the highest p + λ·deficit. The
   deficit is the exposure that the target has given to its groups so far, minus what they got. This
   is online dual descent on a relaxed problem with step λ. We fill at sixteen prices λ, from 0
   (relevance alone) to one that only considers exposure. Beyond 50 ranks we fill by what documents
   are worth at the optimum of :mod:`fairqr.retrieval.fairness.relaxation` in place of p, and toward
   the exposure that it has in place of the target; where labels are missing, both ways.
2. Improve the best of these by exchanges as long as J grows: swap the patterns of two ranks, or put
   another pattern at a rank. Beyond 100 ranks we make none, so there fairness in prefixes
   (``spread``) only chooses between the filled rankings. With more than 32 groups we only exchange
   patterns that some price fills in: of hundreds, these are a few dozen.

Where there are limits (:mod:`fairqr.retrieval.fairness.limits`), the fill passes over patterns that
would break them, and of two sequences the one that breaks them less is better, whatever its J.

How we search follows from the size of the pool:

* up to EVERY sequences: we look at each of them;
* up to EXCHANGED_RANKS: we fill by p, and exchange in the best of these;
* up to POLISHED_RANKS: we fill by the relaxed optimum, and exchange in the best one;
* longer: we fill by the relaxed optimum.

Ties go to the first position.
``tests/unit/retrieval/test_objective.py`` compares the result with an exhaustive search.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairqr.retrieval.fairness.exposure import (
    Discount,
    FloatArray,
    absent_as_one,
    distinct_rows,
    exposure,
    groups_held,
    normalise,
)
from fairqr.retrieval.fairness.limits import LimitedPool
from fairqr.retrieval.fairness.objective import (
    DIGITS,
    LEAST,
    Positions,
    RankingObjective,
    fairness,
    fairness_of_distances,
)
from fairqr.retrieval.fairness.relaxation import Relaxation, relax
from fairqr.retrieval.fairness.touched_groups import SparseAttribute, Touched

PRICES = np.array([0.0, *np.geomspace(1 / 32, 64, 14), 1e6])
STARTS = 800
"""How many filled rankings we try to improve by exchanges, times the square of their length, as the
work grows: two of 20 ranks, eight of 10. Shorter rankings have more dead ends."""
EVERY = 10_000
"""Up to this many sequences of patterns we look at each of them, and fill none."""
MANY_GROUPS = 32
"""With more groups than these, exchanges are only tried with patterns that some price fills in. In
nine random pools of 500 documents with a label each, of 55 to 194 groups, they lead to the same J
in a tenth of the time; where an order is kept that is not that of relevance, to up to half a
percent less."""
SUMMED_GROUPS = 8
"""With more groups than these, divergences after exchanges follow from the groups they touch; see
:mod:`fairqr.retrieval.fairness.touched_groups`."""
EXCHANGED_RANKS = 50
"""The longest ranking for which we start from several fills by p. In longer ones each rank has
little weight, so filling by the prices of the relaxed optimum comes near the best."""
POLISHED_RANKS = 100
"""Up to this many ranks, exchanges improve the best of the rankings filled so."""
PRICES_WITHIN = 1e-5
"""How near the relaxed optimum of longer rankings comes to the highest log J."""
STEPS_TO_PRICES = 200
"""The most steps toward these prices."""
RELAXED_TIMES = 3
"""How often at most we relax and fill where labels are missing, each time from the best ranking so
far."""
AS_LABELLED = 0.02
"""We stop when a ranking's labelled documents have as much exposure as those of the one before, to
within this share of all."""
MANY_PATTERNS = 500
"""With more patterns than these, longer ones are filled with the patterns of those documents that
are worth most at the relaxed optimum."""
WORTHY = 2
"""How many of these documents there are, times the length."""
PASSED_OVER = 1e6
"""What a pattern that would break a limit is worth less than one that breaks none."""
MOST_EXCHANGES = 40
LEAST_GAIN = 1e-4
"""What an exchange must add to log J; many exchanges would gain less. At a high weight, it is less:
then small steps toward the target count."""

Patterns = NDArray[np.intp]
"""The pattern at each rank; or several such sequences."""


def best_ranking(objective: RankingObjective, order: Positions | None = None) -> Positions:
    """Return the positions of the documents of the ranking of highest J, from the first rank on.

    Args:
        objective: The pool, the targets, and how many ranks to fill.
        order: All positions in the order in which documents of the same pattern are taken; by
            default the order of relevance, ties by position.
    """
    return best_rankings([objective], order)[0]


def best_rankings(
    objectives: Sequence[RankingObjective], order: Positions | None = None
) -> list[Positions]:
    """Return what :func:`best_ranking` does, for objectives that differ in their weight alone.

    Together they take less time: the ranks are filled once, and exchanges are tried side by side.
    """
    pool = _Pool.of(objectives[0], order)
    if len(pool.patterns) < 2 or not pool.length:  # Only the relevance differs.
        return [pool.positions(np.zeros(pool.length, dtype=np.intp))] * len(objectives)
    if len(pool.patterns) ** pool.length <= EVERY:
        every = pool.every()
        return [pool.positions(pool.best(every, one)[0]) for one in objectives]
    if pool.length > EXCHANGED_RANKS:
        return [_filled_by_relaxation(pool, one, order) for one in objectives]
    filled = pool.filled()
    used = np.unique(filled)
    if len(pool.patterns.T) <= MANY_GROUPS or len(used) == len(pool.patterns):
        return _exchanged_fills(pool, filled, objectives)
    rows = pool.documents_of(used)
    fewer = _of_documents(rows, pool, objectives)
    if order is not None:
        order = np.searchsorted(rows, order[np.isin(order, rows)])
    # Patterns are numbered by their first document, so those that are left keep their order.
    of_fewer = np.searchsorted(used, filled)
    rankings = _exchanged_fills(_Pool.of(fewer[0], order), of_fewer, fewer)
    return [rows[positions] for positions in rankings]


def _exchanged_fills(
    pool: _Pool, filled: Patterns, objectives: Sequence[RankingObjective]
) -> list[Positions]:
    """Return the best rankings that exchanges make of filled sequences, shape (m, length)."""
    count = max(2, STARTS // pool.length**2)
    starts = np.concatenate([pool.best(filled, one)[:count] for one in objectives])
    whose = np.repeat(np.arange(len(objectives)), len(starts) // len(objectives))
    ends = _improved(pool, starts, _Weights.of(objectives).take(whose))
    best = _best_of_each(whose, ends.values, ends.relevance)
    return [pool.positions(sequence) for sequence in ends.sequences[best]]


def _of_documents(
    rows: Positions, pool: _Pool, objectives: Sequence[RankingObjective]
) -> list[RankingObjective]:
    """Return the objectives for some of the documents, whose absent groups are one."""
    memberships = []
    targets = []
    are_present = []
    for members, target in zip(objectives[0].memberships, objectives[0].targets, strict=True):
        fewer_members, fewer_targets = absent_as_one(members[rows], target)
        memberships.append(fewer_members)
        targets.append(fewer_targets)
        are_present.append(np.asarray(members[rows].any(axis=0)))
    relevance = np.asarray(objectives[0].relevance)[rows]
    # The chance of a group stays a share of what all its documents are expected to have.
    limits = None if pool.limited is None else pool.limited.of_some(are_present)
    return [
        replace(one, relevance=relevance, memberships=memberships, targets=targets, limits=limits)
        for one in objectives
    ]


def _filled_by_relaxation(
    pool: _Pool, objective: RankingObjective, order: Positions | None
) -> Positions:
    """Return the ranking filled by the prices of the relaxed optimum, if need be exchanged."""
    best = pool.by_relevance
    fills = []
    if pool.lacks_labels:
        # The order of relevance may give labelled documents no exposure at all.
        by_relevance_and_target = pool.filled()
        best = pool.best(by_relevance_and_target, objective)[0]
        fills.append(by_relevance_and_target)
    for _ in range(RELAXED_TIMES):
        # The relaxed optimum is one of rankings that give labelled documents as much exposure as a
        # given one. A better ranking may shift it.
        labelled = pool.labelled(best)
        relaxed = relax(objective, pool.positions(best), order, PRICES_WITHIN, STEPS_TO_PRICES)
        fills.append(pool.filled_by(relaxed))
        best = pool.best(np.concatenate(fills), objective)[0]
        if np.abs(pool.labelled(best) - labelled).max() <= AS_LABELLED:
            break
    if pool.length <= POLISHED_RANKS:
        best = _improved(pool, best[None], _Weights.of([objective])).sequences[0]
    return pool.positions(best)


def keeps_order(
    objective: RankingObjective, ranked: Sequence[int] | Positions, order: Positions
) -> bool:
    """Return whether a ranking takes the documents of each pattern from the first one on.

    Args:
        objective: The pool.
        ranked: The positions of its documents.
        order: All positions of the pool in the order that may be kept.
    """
    rows = np.asarray(ranked, dtype=np.intp)
    members = np.concatenate(objective.memberships, axis=1, dtype=np.float64)
    patterns = distinct_rows(members)[1]
    place_in_pattern = np.empty(len(members), dtype=np.intp)
    place_in_pattern[order] = _earlier(patterns[order])
    return bool((place_in_pattern[rows] == _earlier(patterns[rows])).all())


def falls_in_relevance(objective: RankingObjective, order: Positions) -> bool:
    """Return whether an order puts no document above a more relevant one of the same groups.

    Args:
        objective: The pool.
        order: All its positions.
    """
    members = np.concatenate(objective.memberships, axis=1, dtype=np.float64)
    patterns = distinct_rows(members)[1][order]
    by_pattern = np.argsort(patterns, kind="stable")
    rises = np.diff(objective.probabilities[order][by_pattern]) > 0
    is_same = np.diff(patterns[by_pattern]) == 0
    return not bool((rises & is_same).any())


def highest_exposure(memberships: FloatArray, discount: Discount, length: int) -> FloatArray:
    """Return the most exposure that each group could get alone, shape (G,).

    All its documents stand first, and others fill the remaining ranks.

    Args:
        memberships: The memberships of the documents to rank, shape (n, G).
        discount: The weight of each rank.
        length: How many ranks there are.
    """
    weights = discount.weights(min(length, len(memberships)))
    # Those with the largest share of the group first.
    first = -np.sort(-memberships, axis=0)[: len(weights)]
    return np.asarray(weights @ first / (weights.sum() or 1.0))


def attainable_exposure(
    memberships: FloatArray, target: FloatArray, discount: Discount, length: int
) -> FloatArray:
    """Return the exposure that documents could give to each group, shape (G,).

    That is the target itself where each group could reach its share; that ranks are whole is not
    held against an engine. Otherwise it is the exposure of the ranking that comes nearest to the
    target; if more groups have a target than there are ranks, so that no ranking shows them all,
    it is the nearest that rankings drawn at random come on average. Zeros if no document has a
    label.

    Args:
        memberships: The memberships of the documents that are relevant, shape (n, G).
        target: ε*, shape (G,).
        discount: The weight of each rank.
        length: How many ranks there are.
    """
    if (highest_exposure(memberships, discount, length) >= target - 10**-DIGITS).all():
        return target
    alike = np.ones(len(memberships))
    nearest = RankingObjective(alike, [memberships], [target], length, np.inf, discount)
    ranking = best_ranking(nearest)
    if np.count_nonzero(target) > length and memberships.any():
        return normalise(relax(nearest, ranking).exposures[0])
    return exposure(memberships[ranking], discount)


class _Weights(NamedTuple):
    """The weights of objectives, one for each of m rankings.

    Attributes:
        power: The exponent of F, 1 if it alone counts, shape (m,).
        relevance: The exponent of V, 0 or 1, shape (m,).
        shares: How much each attribute counts in the mean of F, each of shape (m,).
    """

    power: FloatArray
    relevance: FloatArray
    shares: list[FloatArray]

    @classmethod
    def of(cls, objectives: Sequence[RankingObjective]) -> _Weights:
        """Return those of the objectives of m rankings."""
        power = np.array([one.power for one in objectives])
        is_finite = np.isfinite(power)
        shares = np.array([one.shares for one in objectives]).T
        return cls(np.where(is_finite, power, 1.0), is_finite.astype(np.float64), [*shares])

    def take(self, rows: Positions) -> _Weights:
        """Return those of some of the rankings."""
        return _Weights(self.power[rows], self.relevance[rows], [it[rows] for it in self.shares])


class _Improved(NamedTuple):
    """What exchanges lead to.

    Attributes:
        sequences: Of patterns, shape (m, length).
        values: Of these, as :meth:`_Pool.values` returns them, shape (m,).
        relevance: V of these, rounded, shape (m,).
    """

    sequences: Patterns
    values: FloatArray
    relevance: FloatArray


@dataclass(frozen=True)
class _Pool:
    """The documents by pattern; of each pattern, the first that a ranking may need.

    Attributes:
        targets: ε* of each attribute.
        limited: What a ranking may not do, if anything.
        sharpness: β of the soft minimum over attributes; 0 for their mean.
        length: How many ranks there are to fill.
        discounts: The discount of each rank, and 0 for the rank below the last.
        in_prefixes: The same in each prefix whose fairness counts, and 0 below it, shape
            (C, length + 1); the last is the whole ranking.
        weights: The same as shares of the highest Σ d·p; so sums with probabilities are V.
        patterns: The groups of all attributes side by side, shape (P, G).
        available: How many documents each pattern has, at most the length, shape (P,).
        documents: The positions of each pattern's documents as they are taken, shape (P, length).
        relevance: Their relevance, padded with 0, shape (P, length + 2).
        by_relevance: The patterns of the most relevant documents, shape (length,).
        attributes: Where the groups of each attribute stand among those of all.
    """

    targets: Sequence[FloatArray]
    limited: LimitedPool | None
    sharpness: float
    length: int
    discounts: FloatArray
    in_prefixes: FloatArray
    weights: FloatArray
    patterns: FloatArray
    available: Positions
    documents: Positions
    relevance: FloatArray
    by_relevance: Patterns
    attributes: list[slice]

    @classmethod
    def of(cls, objective: RankingObjective, order: Positions | None) -> _Pool:
        """Return the pool of an objective, whose patterns take documents in an order."""
        probabilities = objective.probabilities
        members = np.concatenate(objective.memberships, axis=1, dtype=np.float64)
        by_relevance = np.argsort(-probabilities, kind="stable")
        taken = by_relevance if order is None else order
        length = min(objective.length, len(members))
        best = by_relevance[:length]
        discounts = objective.discount.weights(length)
        most = float((discounts * probabilities[best]).sum())
        with_rest = np.append(discounts, 0.0)
        counts = np.array(objective.prefixes)[:, None]
        patterns, numbers = distinct_rows(members[taken])
        nth = _earlier(numbers)
        needed = nth < length
        places = numbers[needed], nth[needed]
        documents = np.zeros((len(patterns), length), dtype=np.intp)
        documents[places] = taken[needed]
        relevance = np.zeros((len(patterns), length + 2))
        relevance[places] = probabilities[documents[places]]
        ends = np.cumsum([0, *map(len, objective.targets)]).tolist()
        return cls(
            targets=objective.targets,
            limited=objective.limited,
            sharpness=objective.sharpness,
            length=length,
            discounts=with_rest,
            in_prefixes=np.where(np.arange(length + 1) < counts, with_rest, 0.0),
            weights=with_rest / (most or 1.0),
            patterns=patterns,
            available=np.bincount(numbers[needed], minlength=len(patterns)),
            documents=documents,
            relevance=relevance,
            by_relevance=numbers[np.argsort(taken)[best]],
            attributes=[slice(*columns) for columns in itertools.pairwise(ends)],
        )

    def positions(self, sequence: Patterns) -> Positions:
        """Return the documents of a sequence of patterns."""
        return np.asarray(self.documents[sequence, _earlier(sequence)])

    def documents_of(self, patterns: Patterns) -> Positions:
        """Return the documents of some patterns that a ranking may need, in ascending order."""
        is_there = np.arange(self.length) < self.available[patterns, None]
        return np.unique(self.documents[patterns][is_there])

    @property
    def lacks_labels(self) -> bool:
        """Whether some documents have no label, or a part of one, of an attribute."""
        labelled = [self.patterns[:, columns].sum(axis=1) for columns in self.attributes]
        return any(bool((sums < 1 - 10**-DIGITS).any()) for sums in labelled)

    def labelled(self, sequence: Patterns) -> FloatArray:
        """Return what a sequence gives to labelled documents of each attribute, shape (A,).

        They are shares of all exposure; 1 where all documents have labels.
        """
        weights = self.discounts[:-1] / (self.discounts.sum() or 1.0)
        of_groups = weights @ self.patterns[sequence]
        return np.array([of_groups[columns].sum() for columns in self.attributes])

    def every(self) -> Patterns:
        """Return all sequences that there are documents for, shape (m, length)."""
        count = len(self.patterns)
        found = np.indices((count,) * self.length).reshape(self.length, -1).T
        needed = (found[..., None] == np.arange(count)).sum(axis=1)
        return np.asarray(found[(needed <= self.available).all(axis=1)])

    def filled(self) -> Patterns:
        """Return the sequences filled at each price, and by relevance alone, shape (m, length)."""
        target = np.concatenate(self.targets)
        return self._filled(self.relevance[:, :-1], target, self.relevance.max() or 1.0)

    def filled_by(self, relaxed: Relaxation) -> Patterns:
        """Return the same, by the worth of documents at the relaxed optimum, and toward it."""
        toward = np.concatenate([normalise(given) for given in relaxed.exposures])
        of_groups = self.patterns @ np.concatenate(relaxed.prices)
        of_relevance = relaxed.relevance_price * self.relevance[:, :-1]
        # Not the highest worth: the price of a group of which there is too little has no bound.
        scale = of_relevance.max() or np.abs(of_groups).max() or 1.0
        worth = of_relevance + of_groups[:, None]
        worthy = self._worthy(worth)
        if len(worthy) == len(self.patterns):
            return self._filled(worth, toward, scale)
        fewer = replace(
            self,
            patterns=self.patterns[worthy],
            available=self.available[worthy],
            documents=self.documents[worthy],
            relevance=self.relevance[worthy],
            by_relevance=np.searchsorted(worthy, self.by_relevance),
        )
        return worthy[fewer._filled(worth[worthy], toward, scale)]

    def _worthy(self, worth: FloatArray) -> Patterns:
        """Return the patterns of the documents that are worth most, a few times the length.

        Args:
            worth: Of the documents of each pattern, as they are taken, shape (P, length + 1).
        """
        is_there = np.arange(self.length) < self.available[:, None]
        of_documents = worth[:, :-1][is_there]
        count = WORTHY * self.length
        if len(self.patterns) <= MANY_PATTERNS or len(of_documents) <= count:
            return np.arange(len(self.patterns))
        least = np.partition(of_documents, -count)[-count]
        is_worthy = worth[:, 0] >= least
        is_worthy[self.by_relevance] = True
        return np.flatnonzero(is_worthy)

    def _filled(self, worth: FloatArray, toward: FloatArray, scale: float) -> Patterns:
        """Return sequences filled by worth and deficit, at each price, and that by relevance.

        Args:
            worth: Of the documents of each pattern, as they are taken, shape (P, length + 1).
            toward: The exposure that each group should have, shape (G,).
            scale: What counts as much as an exposure of 1 at a price of 1, positive.
        """
        # A document exposes an attribute through its labels; without a label it exposes nothing.
        labelled = [self.patterns[:, columns].sum(axis=1) for columns in self.attributes]
        sizes = [len(own) for own in self.targets]
        deficit_after = (
            toward * np.repeat(np.stack(labelled, axis=1), sizes, axis=1) - self.patterns
        )
        # A price λ as two shares, so that rounding means the same at all prices.
        of_deficit = (PRICES / (1 + PRICES))[:, None]
        of_worth = (1 - of_deficit) / scale
        is_there = np.arange(self.length + 1) < self.available[:, None]
        worth = np.where(is_there, worth, -np.inf)
        rows = np.arange(len(PRICES))
        every = np.arange(len(self.patterns))
        deficit = np.zeros((len(PRICES), len(toward)))
        placed = np.zeros((len(PRICES), len(self.patterns)), dtype=np.intp)
        of_next = np.repeat(worth[None, :, 0], len(PRICES), axis=0)
        sequences = np.zeros((len(PRICES), self.length), dtype=np.intp)
        tally = None
        if self.limited is not None:
            tally = self.limited.tally(self.patterns, self.discounts[:-1], len(PRICES))
        for rank, weight in enumerate(self.discounts[:-1].tolist()):
            of_pattern = self._summed(deficit + weight * toward)
            value = of_worth * of_next + of_deficit * of_pattern
            if tally is not None:
                next_relevance = self.relevance[every, placed]
                broken = tally.broken(rank, next_relevance)
                value -= np.where(broken > 0, PASSED_OVER * (1 + broken), 0.0)
            # Values that are equal but for rounding are equal, on any machine.
            chosen = np.rint(value * 10**DIGITS).argmax(axis=1)
            sequences[:, rank] = chosen
            if tally is not None:
                tally.place(rank, chosen, next_relevance[rows, chosen])
            placed[rows, chosen] += 1
            of_next[rows, chosen] = worth[chosen, placed[rows, chosen]]
            deficit += weight * deficit_after[chosen]
        found = {*map(tuple, sequences.tolist()), tuple(self.by_relevance.tolist())}
        return np.array(sorted(found))

    def _summed(self, of_groups: FloatArray) -> FloatArray:
        """Return Σ share·value over the groups of each pattern, shape (n, P).

        Args:
            of_groups: The values of the groups, shape (n, G).
        """
        if len(of_groups.T) <= MANY_GROUPS:
            return np.asarray(of_groups @ self.patterns.T)
        groups, shares = self._held
        return np.asarray((of_groups.take(groups, axis=1) * shares).sum(axis=-1))

    @functools.cached_property
    def _held(self) -> tuple[Positions, FloatArray]:
        """The groups that each pattern has, and its shares of them; see :func:`groups_held`."""
        return groups_held(self.patterns)

    def relevance_of(self, sequences: Patterns) -> FloatArray:
        """Return V of sequences of shape (…, length), shape (…)."""
        shown = self.relevance[sequences, _earlier(sequences)]
        return np.asarray((self.weights[:-1] * shown).sum(axis=-1))

    def given(self, sequences: Patterns) -> FloatArray:
        """Return what each prefix of sequences of shape (…, length) gives, shape (C·G, …)."""
        members = self.patterns.T[:, sequences]
        return np.concatenate([(own * members).sum(axis=-1) for own in self.in_prefixes[:, :-1]])

    def given_after(self, given: FloatArray, tried: _Exchanges) -> FloatArray:
        """Return what each prefix gives after exchanges, shape (C·G, n).

        Args:
            given: What the prefixes of the sequences give, shape (C·G, m).
            tried: The exchanges.
        """
        rising = self._by_group.take(tried.rising, axis=1)
        more = rising - self._by_group.take(tried.falling, axis=1)
        parts = [(own[tried.upper] - own[tried.lower]) * more for own in self.in_prefixes]
        changes = np.concatenate(parts) if len(parts) > 1 else parts[0]
        return np.asarray(np.maximum(given.take(tried.sequence, axis=1) + changes, 0.0))

    @functools.cached_property
    def _by_group(self) -> FloatArray:
        """The share of each group in each pattern, shape (G, P), in the order they are read in."""
        return np.ascontiguousarray(self.patterns.T)

    def fairness_after(
        self, given: FloatArray, tried: _Exchanges, weights: _Weights
    ) -> tuple[FloatArray, Positions]:
        """Return what :meth:`fairness` does of sequences after exchanges, both of shape (n,).

        Args:
            given: What the prefixes of the sequences give, shape (C·G, m).
            tried: The exchanges.
            weights: The weights of each.
        """
        if len(self.patterns.T) <= SUMMED_GROUPS:
            return self.fairness(self.given_after(given, tried), weights)
        distances = []
        totals = []
        for own, of_prefix in zip(self.in_prefixes, self._by_prefix(given), strict=True):
            gained = own[tried.upper] - own[tried.lower]
            exchanges = Touched(tried.sequence, tried.rising, tried.falling, gained)
            for attribute, columns in zip(self._sparse_attributes, self.attributes, strict=True):
                distance, total = attribute.after(of_prefix[columns], exchanges)
                distances.append(distance)
                totals.append(total)
        shares = weights.shares * len(self.in_prefixes)
        return fairness_of_distances(distances, np.stack(totals), shares, self.sharpness)

    @functools.cached_property
    def _sparse_attributes(self) -> list[SparseAttribute]:
        """The attributes, where they have many groups."""
        return [
            SparseAttribute(self.patterns[:, columns], np.asarray(target))
            for columns, target in zip(self.attributes, self.targets, strict=True)
        ]

    def _by_prefix(self, given: FloatArray) -> list[FloatArray]:
        """Return what each prefix gives, each of shape (G, m)."""
        return np.split(given, len(self.in_prefixes))

    def fairness(self, given: FloatArray, weights: _Weights) -> tuple[FloatArray, Positions]:
        """Return F, and how many attributes have no exposure, both of shape (m,).

        Args:
            given: Exposures of the prefixes of m rankings, shape (C·G, m), not normalised.
            weights: Their weights, or those of one that all have.
        """
        parts = self._by_prefix(given)
        exposures = [part[columns] for part in parts for columns in self.attributes]
        targets = [*self.targets] * len(parts)
        return fairness(exposures, targets, weights.shares * len(parts), self.sharpness)

    def broken(self, sequences: Patterns, given: FloatArray) -> FloatArray:
        """Return by how much sequences break the limits, shape (m,).

        Args:
            sequences: Of patterns, shape (m, length).
            given: What they give, shape (C·G, m).
        """
        if self.limited is None:
            return np.zeros(len(sequences))
        broken = self.limited.over_caps(given[-self.patterns.shape[1] :])
        if self.limited.equal_chance:
            shown = self.relevance[sequences, _earlier(sequences)]
            broken += self.limited.unequal_chance(self.patterns[sequences], shown)
        return broken

    def values(
        self,
        fair: FloatArray,
        undefined: Positions,
        relevance: FloatArray,
        weights: _Weights,
        broken: FloatArray | float = 0.0,
    ) -> FloatArray:
        """Return what to maximise, rounded: log J, or log F if w is infinite.

        Each attribute without exposure makes it lower than any ranking with more attributes has,
        and so does a thousandth by which limits are broken.

        Args:
            fair: F of m rankings, shape (m,).
            undefined: How many attributes of each have no exposure, shape (m,).
            relevance: V of the same rankings, shape (m,).
            weights: Their weights, or those of one that all have.
            broken: By how much they break the limits, shape (m,).
        """
        value = weights.power * np.log(np.maximum(fair, LEAST))
        value += weights.relevance * np.log(np.maximum(relevance, LEAST))
        worst = (weights.power + weights.relevance) * np.log(LEAST)
        return np.asarray((value + worst * (undefined + 1000 * broken)).round(DIGITS))

    def best(self, sequences: Patterns, objective: RankingObjective) -> Patterns:
        """Return sequences of shape (m, length) from the one of the highest value down."""
        relevance = self.relevance_of(sequences)
        weights = _Weights.of([objective])
        given = self.given(sequences)
        fair, undefined = self.fairness(given, weights)
        values = self.values(fair, undefined, relevance, weights, self.broken(sequences, given))
        return sequences[np.lexsort((-relevance.round(DIGITS), -values))]


def _earlier(sequences: Patterns) -> Patterns:
    """Return how many places before each one have the same pattern; both of shape (…, length)."""
    rows = np.atleast_2d(sequences)
    # One flat sequence, in which no two rows share a pattern.
    apart = (rows + np.arange(len(rows))[:, None] * (rows.max(initial=0) + 1)).ravel()
    order, places = np.argsort(apart, kind="stable"), np.arange(len(apart))
    grouped, starts = apart[order], places.copy()
    starts[1:][grouped[1:] == grouped[:-1]] = 0
    earlier = np.empty_like(apart)
    earlier[order] = places - np.maximum.accumulate(starts)
    return np.asarray(earlier.reshape(sequences.shape))


def _improved(pool: _Pool, sequences: Patterns, weights: _Weights) -> _Improved:
    """Improve sequences by exchanges, each time by the best possible one of each.

    Args:
        pool: The documents.
        sequences: Of patterns, shape (m, length).
        weights: The weights of each.
    """
    now = sequences.copy()
    given = pool.given(sequences)
    reached = pool.relevance_of(sequences)
    fair, undefined = pool.fairness(given, weights)
    value = pool.values(fair, undefined, reached, weights, pool.broken(sequences, given))
    relevance = reached.round(DIGITS)
    least = weights.relevance * LEAST_GAIN / (1 + weights.power)
    improving = np.arange(len(now))
    for _ in range(MOST_EXCHANGES):
        tried = _exchanges(pool, now, improving)
        of = tried.sequence
        reached = relevance[of] + tried.gains
        own = weights.take(of)
        fair, undefined = pool.fairness_after(given, tried, own)
        values = pool.values(fair, undefined, reached, own)
        if pool.limited is not None:
            # A sequence that is no better need not be looked at.
            kept = np.flatnonzero(values >= value[of])
            few = tried.take(kept)
            broken = pool.broken(_exchanged(now, few), pool.given_after(given, few))
            values[kept] = pool.values(
                fair[kept], undefined[kept], reached[kept], own.take(kept), broken
            )
        best = _best_of_each(of, values, reached.round(DIGITS))
        improving = of[best]
        better = values[best]
        relevant = reached[best].round(DIGITS)
        gain = better - least[improving] - value[improving]
        is_better = (gain > 0) | ((gain == 0) & (relevant > relevance[improving]))
        if not is_better.any():
            break
        taken = tried.take(best[is_better])
        improving = taken.sequence
        now[improving] = _exchanged(now, taken)
        given[:, improving] = pool.given_after(given, taken)
        value[improving] = better[is_better]
        relevance[improving] = relevant[is_better]
    return _Improved(now, value, relevance)


def _exchanged(sequences: Patterns, tried: _Exchanges) -> Patterns:
    """Return the sequences after exchanges, shape (n, length)."""
    after = sequences[tried.sequence]
    after[np.arange(len(after)), tried.upper] = tried.rising
    inside = np.flatnonzero(tried.lower < sequences.shape[1])
    after[inside, tried.lower[inside]] = tried.falling[inside]
    return after


def _best_of_each(of: Positions, values: FloatArray, relevance: FloatArray) -> Positions:
    """Return the place of the highest value of each owner, of the most relevant if several are.

    Args:
        of: Whose each value is, such as a ranking's, as numbers that ascend.
        values: The values.
        relevance: What decides between equal values; then the first place does.
    """
    first = np.flatnonzero(np.diff(of, prepend=-1))
    sizes = np.diff(np.append(first, len(of)))
    highest = np.repeat(np.maximum.reduceat(values, first), sizes) if len(of) else values
    equal = np.flatnonzero(values == highest)
    by_relevance = equal[np.lexsort((-relevance[equal], of[equal]))]
    return by_relevance[np.diff(of[by_relevance], prepend=-1) > 0]


@functools.lru_cache(maxsize=8)
def _exchanged_ranks(length: int, count: int) -> tuple[Positions, Positions, Patterns]:
    """Return the ranks of exchanges with each pattern outside, then of swaps, and the former."""
    one, other = np.triu_indices(length, 1)
    outside = np.tile(np.arange(count), length)
    upper = np.concatenate([np.repeat(np.arange(length), count), one])
    lower = np.concatenate([np.full(len(outside), length), other])
    return upper, lower, outside


class _Exchanges(NamedTuple):
    """Exchanges in several sequences, each array of shape (n,).

    Attributes:
        sequence: The number of the sequence, ascending.
        upper: The upper rank.
        lower: The lower one; the length stands for outside of the ranking.
        rising: The pattern that comes to the upper rank.
        falling: The pattern that leaves it.
        gains: How much each adds to V.
    """

    sequence: Positions
    upper: Positions
    lower: Positions
    rising: Patterns
    falling: Patterns
    gains: FloatArray

    def take(self, places: Positions) -> _Exchanges:
        """Return some of the exchanges."""
        return _Exchanges(
            self.sequence[places],
            self.upper[places],
            self.lower[places],
            self.rising[places],
            self.falling[places],
            self.gains[places],
        )


def _exchanges(pool: _Pool, sequences: Patterns, numbers: Positions) -> _Exchanges:
    """Return all exchanges that there are documents for, and how much each adds to V.

    The pattern of a rank gives way to another one: to a lower rank's, which takes the first one in
    return, or to one from outside the ranking. Outside counts as the rank below the last, which has
    no weight. Between the two ranks, an exchange also shifts the documents of its patterns by one:
    where a document leaves, the next one of its pattern takes its rank, and so on.

    Args:
        pool: The documents.
        sequences: Of patterns, shape (m, length).
        numbers: Which sequences to look at, ascending.
    """
    now = sequences[numbers]
    length = pool.length
    count = len(pool.patterns)
    rows = np.arange(len(now))[:, None]
    ranks = np.arange(length)
    # How many documents of each pattern stand above each rank.
    above = np.zeros((len(now), length + 1, count), dtype=np.intp)
    np.cumsum(now[..., None] == np.arange(count), axis=1, out=above[:, 1:])

    upper, lower, outside = _exchanged_ranks(length, count)
    swapped = now[:, lower[len(outside) :]]
    every = np.concatenate([np.broadcast_to(outside, (len(now), len(outside))), swapped], axis=1)
    is_left = np.ones(every.shape, dtype=bool)
    is_left[:, : len(outside)] = (above[:, -1] < pool.available)[:, outside]
    row, place = np.nonzero(is_left & (every != now[:, upper]))
    upper = upper[place]
    lower = lower[place]
    rising = every[row, place]
    falling = now[row, upper]

    # What V gains above each rank if the documents of a pattern come one place later, or earlier.
    own = above[rows, ranks, now]
    held = pool.relevance[now, own]
    shifts = np.zeros((2, len(now), length + 1, count))
    shifts[0, rows, ranks + 1, now] = pool.weights[:-1] * (pool.relevance[now, own + 1] - held)
    before = pool.relevance[now, np.maximum(own - 1, 0)]
    shifts[1, rows, ranks + 1, now] = pool.weights[:-1] * (before - held)
    later, earlier = shifts.cumsum(axis=2)
    shown = np.zeros((len(now), length + 1))
    shown[:, :-1] = pool.weights[:-1] * held

    first = pool.relevance[rising, above[row, upper, rising]]
    last = pool.relevance[falling, above[row, lower, falling] - 1]
    gains = pool.weights[upper] * first - shown[row, upper]
    gains += pool.weights[lower] * last - shown[row, lower]
    gains += later[row, lower, rising] - later[row, upper + 1, rising]
    gains += earlier[row, lower, falling] - earlier[row, upper + 1, falling]
    return _Exchanges(numbers[row], upper, lower, rising, falling, gains)
