"""How unequally useful documents are exposed and used, and where the inequality comes from.

Useful documents have equal merit, so they should get the same. Over the m useful documents U of a
query, y_i being what document i gets on average over samples, the inequality is

    V(y) = Σ_{i∈U} (y_i − ȳ)² = Σ y_i² − (Σ y_i)²/m,

0 where all get the same. From N samples it is estimated without bias, from pairs s ≠ t:

    V = (1/(N(N−1))) Σ_{s≠t} [⟨y_s, y_t⟩ − (Σ_i y_si)(Σ_i y_ti)/m],

which can be below 0 by chance.

For what answers use, y_s = u_s, the useful documents that answer s used, V splits exactly into
three parts (this project's own; the paper has none). Let x_s be the useful documents that answer s
read, and ρ the share of them that is used, over the query's answers: its square is estimated as
Σ |u_s||u_t| / Σ |x_s||x_t| over pairs of different rankings. Where one ranking alone shows useful
documents there are no such pairs, and no split.

* retrieval: ρ²·V(x). What is left if each useful document that is read were used equally often.
* picking: the rest over pairs with different rankings. Do answers to different rankings come back
  to the same documents, more than these were shown? On average 0 if every useful document that is
  read is used with the same chance.
* repetition: the rest over pairs with one ranking. An answer that is served again uses the same
  documents again, whoever is the cause.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fairqr.evaluation.scores import Reason, Score, Undefined
from fairqr.retrieval.exposure import FloatArray

__all__ = ["Inequality", "most_unequal", "use_inequality", "useful_inequality"]


ROOM = 1e-12
"""Less is rounding."""


@dataclass(frozen=True, slots=True)
class Inequality:
    """Where the inequality of use among useful documents comes from; the parts sum to the total.

    Attributes:
        total: V of what answers use, in [0, m/4] but for chance; 0 is fair.
        retrieval: What unequal exposure alone would leave.
        picking: What the generator adds by coming back to the same documents.
        repetition: What comes from the same answer being served again.
    """

    total: float
    retrieval: float
    picking: float
    repetition: float


def most_unequal(n: int, m: int, k: int) -> float:
    """Return the greatest inequality of exposure among m useful of n documents when k are read.

    A fixed ranking that always shows j of them has j − j²/m, and V is convex over the mixtures of
    rankings, so that the greatest is that of a fixed one.
    """
    k = min(k, n)
    shown = np.arange(max(0, k - (n - m)), min(k, m) + 1)
    return float((shown - shown**2 / m).max()) if m else 0.0


def useful_inequality(samples: ArrayLike, useful: ArrayLike, *, fixed: bool = False) -> Score:
    """Return the inequality of exposure among useful documents, by the greatest possible.

    0 where useful documents are equally exposed, 1 where some are always shown and others never;
    the unbiased estimate can be a little below 0.

    Args:
        samples: Shape (N, k): positions.
        useful: Shape (n,).
        fixed: The policy has one ranking, which is no sample of several.

    Returns:
        Undefined for fewer than two useful documents, where every ranking shows as many of them
        as all others and none can be left out, and for a single sample of a random policy.
    """
    ranked, labels = np.asarray(samples, dtype=np.intp), np.asarray(useful, dtype=bool)
    m = int(labels.sum())
    if m < 2:
        return Undefined(Reason.FEW_RELEVANT if m else Reason.NO_RELEVANT)
    most = most_unequal(labels.size, m, ranked.shape[1])
    if most <= 0:
        return Undefined(Reason.NO_ROOM)
    rows = _rows(ranked, np.ones(ranked.shape), labels)
    if fixed:
        mean = rows.mean(axis=0)
        return float(mean @ mean - mean.sum() ** 2 / m) / most
    if len(rows) < 2:
        return Undefined(Reason.ONE_RANKING)
    return _inequality(rows, np.ones(len(rows)), m) / most


def use_inequality(
    rankings: ArrayLike,
    times: ArrayLike,
    attributed: ArrayLike,
    judged: ArrayLike,
    useful: ArrayLike,
) -> Inequality | Undefined:
    """Split the inequality of what answers use among useful documents; see the module.

    A document without a verdict counts as not read by that answer.

    Args:
        rankings: Shape (A, k): distinct rankings.
        times: Shape (A,): how often each was drawn.
        attributed: Shape (A, k).
        judged: Shape (A, k).
        useful: Shape (n,).

    Returns:
        Undefined for fewer than two useful documents, two samples, without any verdict, and where
        useful documents are read in one ranking alone.
    """
    ranked, labels = np.asarray(rankings, dtype=np.intp), np.asarray(useful, dtype=bool)
    weights = np.asarray(times, dtype=np.float64)
    known = np.asarray(judged, dtype=bool)
    m = int(labels.sum())
    if m < 2:
        return Undefined(Reason.FEW_RELEVANT if m else Reason.NO_RELEVANT)
    if weights.sum() < 2:
        return Undefined(Reason.ONE_RANKING)
    if not known.any():
        return Undefined(Reason.NO_VERDICT)
    read = _rows(ranked, known.astype(np.float64), labels)
    used = _rows(ranked, (np.asarray(attributed, dtype=bool) & known).astype(np.float64), labels)
    total = _inequality(used, weights, m)
    rate = _squared_rate(read, used, weights)
    if rate is None:
        return Undefined(Reason.ONE_RANKING)
    retrieval = rate * _inequality(read, weights, m)
    again = weights * (weights - 1)
    rest = _own(used, m) - rate * _own(read, m)
    repetition = float(again @ rest) / float(weights.sum() * (weights.sum() - 1))
    return Inequality(total, retrieval, total - retrieval - repetition, repetition)


def _squared_rate(read: FloatArray, used: FloatArray, times: FloatArray) -> float | None:
    """Return ρ², the square of the share of the useful documents read that was used.

    None where one ranking alone has useful documents: the square of its rate would be too large on
    average. 0 where none has any.
    """
    over, under = (_different(rows.sum(axis=1), times) for rows in (used, read))
    if under > 0:
        return over / under
    return None if read.any() else 0.0


def _different(sums: FloatArray, times: FloatArray) -> float:
    """Return Σ over ordered pairs of different rankings of the product of what they have."""
    weighted = times * sums
    found = float(weighted.sum() ** 2 - (weighted**2).sum())
    return found if found > ROOM else 0.0


def _own(rows: FloatArray, m: int) -> FloatArray:
    """Return what each ranking, paired with itself, adds to V."""
    return np.asarray((rows**2).sum(axis=1) - rows.sum(axis=1) ** 2 / m)


def _rows(ranked: np.ndarray, gained: FloatArray, labels: np.ndarray) -> FloatArray:
    """Return what each useful document gains in each ranking, shape (A, m)."""
    rows = np.zeros((len(ranked), labels.size))
    np.put_along_axis(rows, ranked, gained, axis=1)
    return rows[:, labels]


def _inequality(rows: FloatArray, times: FloatArray, m: int) -> float:
    """Return the unbiased V of rows that were drawn so many times."""
    sums = rows.sum(axis=1)
    return _pairs(rows, times) - _pairs(sums[:, None], times) / m


def _pairs(rows: FloatArray, times: FloatArray) -> float:
    """Return the mean of ⟨y_s, y_t⟩ over pairs of different draws."""
    count = float(times.sum())
    mean = times @ rows
    own = float(times @ (rows**2).sum(axis=1))
    return (float(mean @ mean) - own) / (count * (count - 1))
