"""What a ranking may not do, however high its J: a cap of exposure, and equal chance.

Neither is a part of F. The fair step obeys them: of two rankings, it takes the one that breaks them
less, and only then the one of higher J.

**Cap.** No group of an attribute has more than the share c of its exposure, ε_g ≤ c. It is the
upper bound of Celis, Straszak & Vishnoi (2018, arXiv:1704.06840), for exposure in place of counts.
While ranks are filled, e_g ≤ c·(T + R) holds, where e_g is what the group has, T what all groups of
the attribute have, and R what the discounts of the remaining ranks add up to.

**Equal chance** (Rastogi & Joachims 2024, arXiv:2309.01610): each prefix of the ranking has the
same share of the expected relevance of every group,

    n_g(prefix) / n_g        n_g = Σ_i p_i·m_ig over the pool, n_g(prefix) over the prefix.

So a group whose relevance is less certain, and whose p is therefore lower, is not passed over: its
share counts, not its p. As documents are whole, shares differ. Let s_g be the largest p_i·m_ig/n_g
of a document. For two groups, the paper's algorithm keeps the difference within (s_g + s_h) / 2. We
ask that of each two groups of an attribute, in every prefix:

    n_g(prefix)/n_g − n_h(prefix)/n_h ≤ (s_g + s_h) / 2.

With one attribute and whole memberships, there is such a ranking of any length: take next a
document of the group whose share and half of what the document would add to it are the lowest
together. (If g is taken, its share plus half its step is at most that of h, so g comes to lie above
h by at most half of both steps.) Groups without expected relevance do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairqr.retrieval.fairness.exposure import FloatArray, groups_held

EXACT = 1e-9
"""A limit that is exceeded by less counts as obeyed, as sums are rounded."""


class Chances(NamedTuple):
    """What the groups of an attribute expect of a pool.

    Attributes:
        expected: The expected relevance of each group, 1 where there is none, shape (G,).
        step: The most that one document adds to a group's share of it; infinite where there is
            none, so that no other group is too far from it; shape (G,).
    """

    expected: FloatArray
    step: FloatArray

    @classmethod
    def of(cls, members: FloatArray, relevance: FloatArray) -> Chances:
        """Return those of documents, given their memberships, shape (n, G), and their p, (n,)."""
        of_documents = relevance[:, None] * members
        expected = of_documents.sum(axis=0)
        has_any = expected > 0
        most = of_documents.max(axis=0, initial=0.0)
        step = np.divide(most, expected, out=np.full(len(expected), np.inf), where=has_any)
        return cls(np.where(has_any, expected, 1.0), step)

    def with_absent_as_one(self, is_present: NDArray[np.bool_]) -> Chances:
        """Return the same with all groups that are not present as one, the last.

        None of them gets anything, so the one with the smallest step stands for all.
        """
        least = self.step[~is_present].min(initial=np.inf)
        return Chances(
            np.append(self.expected[is_present], 1.0), np.append(self.step[is_present], least)
        )


@dataclass(frozen=True)
class Limits:
    """What rankings of a pool may not do.

    Attributes:
        caps: The highest share of exposure of a group, by attribute, in (0, 1]; None for no cap.
            Attributes beyond these have no limits.
        equal_chance: Whether all groups of these attributes have equal chance.
        uncapped: By attribute which groups no cap concerns, since they stand for many, each of
            shape (G_a,); by default none.
        chances: What the groups of these attributes expect of a larger pool, from which the
            documents are; by default what they expect of these documents.
    """

    caps: Sequence[float | None]
    equal_chance: bool = False
    uncapped: Sequence[NDArray[np.bool_]] = ()
    chances: Sequence[Chances] | None = None


class LimitedPool:
    """The limits of a pool's rankings, and by how much they are broken.

    Args:
        limits: The limits.
        memberships: Of the documents in all attributes, each of shape (n, G_a).
        relevance: p of each document, shape (n,).
    """

    def __init__(
        self, limits: Limits, memberships: Sequence[FloatArray], relevance: FloatArray
    ) -> None:
        ends = np.cumsum([members.shape[1] for members in memberships]).tolist()
        starts = [0, *ends[:-1]]
        self._columns = [slice(*pair) for pair in zip(starts, ends, strict=True)]
        self._columns = self._columns[: len(limits.caps)]
        self._limits = limits
        self._caps = limits.caps
        self.equal_chance = limits.equal_chance
        limited = memberships[: len(limits.caps)]
        no_group = [np.zeros(members.shape[1], dtype=bool) for members in limited]
        self.uncapped = limits.uncapped or no_group
        self.chances = limits.chances or [Chances.of(members, relevance) for members in limited]

    def of_some(self, are_present: Sequence[NDArray[np.bool_]]) -> Limits:
        """Return these limits for some of the documents, whose absent groups are one, the last.

        Args:
            are_present: By attribute which groups these documents have, each of shape (G_a,).
        """
        parts = list(zip(self.chances, self.uncapped, are_present, strict=False))
        return replace(
            self._limits,
            chances=[chances.with_absent_as_one(present) for chances, _, present in parts],
            uncapped=[np.append(uncapped[present], True) for _, uncapped, present in parts],
        )

    def over_caps(self, given: FloatArray) -> FloatArray:
        """Return by how much of all exposure groups are above their caps, summed.

        Args:
            given: What each group gets from rankings, shape (G, …), not normalised.
        """
        over = np.zeros(given.shape[1:])
        parts = zip(self._columns, self._caps, self.uncapped, strict=True)
        for columns, cap, uncapped in parts:
            if cap is not None:
                total = given[columns].sum(axis=0)
                shares = given[columns][~uncapped] / np.where(total > EXACT, total, 1.0)
                over += np.where(shares > cap + EXACT, shares - cap, 0.0).sum(axis=0)
        return over

    def unequal_chance(self, members: FloatArray, relevance: FloatArray) -> FloatArray:
        """Return by how much chances differ too much, summed over the prefixes of rankings.

        Args:
            members: The memberships of the documents in rank order, shape (…, length, G).
            relevance: p of the same, shape (…, length).
        """
        unequal = np.zeros(relevance.shape[:-1])
        if not self.equal_chance:
            return unequal
        for columns, (expected, step) in zip(self._columns, self.chances, strict=True):
            added = relevance[..., None] * members[..., columns] / expected
            shares = added.cumsum(axis=-2)
            apart = (shares - step / 2).max(axis=-1) - (shares + step / 2).min(axis=-1)
            unequal += np.where(apart > EXACT, apart, 0.0).sum(axis=-1)
        return unequal

    def tally(self, patterns: FloatArray, discounts: FloatArray, count: int) -> Tally:
        """Return a tally of rankings that are filled side by side.

        Args:
            patterns: Memberships to choose from, shape (P, G).
            discounts: Of each rank, shape (length,).
            count: How many rankings are filled.
        """
        parts = []
        every = zip(self._columns, self._caps, self.uncapped, self.chances, strict=True)
        for columns, cap, uncapped, (expected, step) in every:
            own = patterns[:, columns]
            groups, shares = groups_held(own)
            part = _TalliedAttribute(own, groups, shares, cap, ~uncapped, expected, step)
            parts.append(part)
        return Tally(parts, discounts, count, equal_chance=self.equal_chance)


class _TalliedAttribute(NamedTuple):
    """An attribute of the patterns that a ranking is filled with.

    Attributes:
        members: Shape (P, G_a).
        groups: The groups of each pattern, the largest share first, shape (P, K).
        shares: Their shares in it, shape (P, K).
        cap: The highest share of exposure of a group; None for no cap.
        is_capped: Which groups it concerns, shape (G_a,).
        expected: The expected relevance of each group, 1 where there is none, shape (G_a,).
        step: The most that one document adds to a group's share of it, shape (G_a,).
    """

    members: FloatArray
    groups: NDArray[np.intp]
    shares: FloatArray
    cap: float | None
    is_capped: NDArray[np.bool_]
    expected: FloatArray
    step: FloatArray


class Tally:
    """What rankings have given so far, to see which choice at the next rank breaks a limit."""

    def __init__(
        self,
        attributes: Sequence[_TalliedAttribute],
        discounts: FloatArray,
        count: int,
        *,
        equal_chance: bool,
    ) -> None:
        self._attributes = attributes
        self._equal_chance = equal_chance
        self._discounts = discounts
        self._sum = float(discounts.sum()) or 1.0
        # What the ranks after each one have to give.
        self._rest = self._sum - discounts.cumsum()
        self._given = [np.zeros((count, one.members.shape[1])) for one in attributes]
        self._chances = [np.zeros((count, one.members.shape[1])) for one in attributes]

    def broken(self, rank: int, relevance: FloatArray) -> FloatArray:
        """Return by how much each pattern at this rank would break the limits, shape (count, P).

        Args:
            rank: Counted from 0.
            relevance: p of the next document of each pattern, shape (count, P).
        """
        broken = np.zeros(relevance.shape)
        for one, given, chances in zip(self._attributes, self._given, self._chances, strict=True):
            if one.cap is not None:
                weight = self._discounts[rank]
                own = given[:, one.groups] + weight * one.shares
                own_capped = (own * one.is_capped[one.groups]).max(axis=-1)
                now_capped = (given * one.is_capped).max(axis=1, keepdims=True)
                highest = np.maximum(own_capped, now_capped)
                total = given.sum(axis=1, keepdims=True) + weight * one.members.sum(axis=1)
                most = one.cap * (total + self._rest[rank])
                broken += np.maximum(0.0, highest - most) / self._sum
            if self._equal_chance:
                added = relevance[..., None] * one.shares / one.expected[one.groups]
                own = (chances[:, one.groups] + added - one.step[one.groups] / 2).max(axis=-1)
                highest = np.maximum(own, (chances - one.step / 2).max(axis=1, keepdims=True))
                lowest = (chances + one.step / 2).min(axis=1, keepdims=True)
                broken += np.maximum(0.0, highest - lowest)
        return np.where(broken > EXACT, broken, 0.0)

    def place(self, rank: int, chosen: NDArray[np.intp], relevance: FloatArray) -> None:
        """Note the pattern at this rank of each ranking, and p of its document, both (count,)."""
        for one, given, chances in zip(self._attributes, self._given, self._chances, strict=True):
            members = one.members[chosen]
            given += self._discounts[rank] * members
            chances += relevance[:, None] * members / one.expected
