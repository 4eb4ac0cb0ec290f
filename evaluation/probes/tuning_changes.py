"""What a tuning changed in how a model compares pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fairqr.agents import statistics
from fairqr.agents.ranking.preference import PROTECTED, UNPROTECTED, PairOutcome
from fairqr.evaluation.estimates import LEVEL, estimate
from fairqr.evaluation.probes.collection import GROUP_KINDS
from fairqr.evaluation.probes.measured import Row
from fairqr.retrieval.fairness.exposure import FloatArray

GROUPS: Mapping[str, tuple[str, ...]] = {
    **{kind: (kind,) for kind in GROUP_KINDS},
    "both": GROUP_KINDS,
}
"""The kinds of pairs that are measured, by the kinds of their records."""

Statistic = Callable[[FloatArray], FloatArray]
"""Computes a figure of totals, shape (…, 3): wins of either item, and pairs."""


def changes_of(
    couples: Sequence[Sequence[PairOutcome]], kind: str, random: np.random.Generator
) -> Iterator[Row]:
    """Yield what a tuning changed in pairs of one kind.

    A change has ``pairs``, ``n`` queries, the ``difference`` with ``low`` and ``high``, over
    queries; and ``p``, of a randomisation test over queries. Its ``measure`` is one of these.

    - ``ratio nearer to 1``: of wins in both orders, protected to unprotected. The difference is
      |ln before| − |ln after|, with ½ added to each count (Haldane 1956): above 0 the ratio is
      nearer to 1 after. There is no test if a count is 0. If a tuning makes more items win,
      the ratio before is of few wins, and those that the test draws by swapping are of more, so
      they vary less. The greater p counts, of that test and of the interval.
    - ``consistent``: the share of pairs that either item wins in both orders.
    - ``both orders``, of relevance pairs: the share whose relevant item wins in both orders.

    Args:
        couples: The answers about each pair before and after.
        kind: The kind of the pairs.
        random: Draws for the tests.
    """
    statistics_of_kind: dict[str, Statistic] = {"both orders": _both_orders}
    if kind in GROUPS:
        statistics_of_kind = {"ratio nearer to 1": _nearness, "consistent": _consistent}
    parts = _parts_of(couples)
    for measure, statistic in statistics_of_kind.items():
        row: Row = {"measure": measure, "pairs": len(couples), "n": len(parts)}
        row |= dict.fromkeys(("difference", "low", "high", "p"))
        if couples:
            row |= _change(parts, statistic, random)
        if measure == "ratio nearer to 1":
            if not parts.sum(axis=0).all():
                row |= dict.fromkeys(("low", "high", "p"))
            elif row["low"] is not None:
                row["p"] = max(row["p"], _p_of_interval(row, len(parts) - 1))
        yield row


def _both_orders(totals: FloatArray) -> FloatArray:
    return np.asarray(totals[..., 0] / totals[..., 2])


def _consistent(totals: FloatArray) -> FloatArray:
    return np.asarray((totals[..., 0] + totals[..., 1]) / totals[..., 2])


def _nearness(totals: FloatArray) -> FloatArray:
    ratio = (totals[..., 0] + 0.5) / (totals[..., 1] + 0.5)
    return np.asarray(-np.abs(np.log(ratio)))


def _parts_of(couples: Sequence[Sequence[PairOutcome]]) -> FloatArray:
    """Return what each query adds to the wins of either item and to the pairs, shape (n, 2, 3).

    The second axis is before and after.
    """
    rows = np.unique([before.query for before, _ in couples], return_inverse=True)[1]
    winners = np.array([[outcome.winner for outcome in couple] for couple in couples], object)
    winners = winners.reshape(-1, 2)
    counted = [winners == PROTECTED, winners == UNPROTECTED, np.ones_like(winners, dtype=bool)]
    parts = []
    for is_counted in counted:
        parts.append([np.bincount(rows, column) for column in is_counted.T])
    return np.array(parts).T


def _p_of_interval(row: Row, freedom: int) -> float:
    """Return the p value that goes with an interval of a change."""
    half: Any = (row["high"] - row["low"]) / 2
    errors = abs(row["difference"]) / half * statistics.student_quantile(LEVEL, freedom)
    return 2 * float(statistics.special().stdtr(freedom, -errors))


def _change(parts: FloatArray, statistic: Statistic, random: np.random.Generator) -> Row:
    """Return how a statistic changed, its interval, and p that nothing changed.

    If nothing did, a coin could say in each query which answers were those before.

    Args:
        parts: What each query adds to the totals before and after, shape (n, 2, T).
        statistic: Computes the statistic of totals, shape (…, T).
        random: Tosses the coins.
    """
    queries, *shape = parts.shape

    def changes(totals: FloatArray) -> FloatArray:
        return np.diff(statistic(totals.reshape(*totals.shape[:-1], *shape)))

    flat = parts.reshape(queries, -1)
    totals = flat.sum(axis=0)
    observed = float(changes(totals)[0])
    (interval,) = estimate(flat, np.ones(queries), changes)
    is_exact = queries <= statistics.EXACT_UP_TO
    if is_exact:
        swapped = (np.arange(1 << queries)[:, None] >> np.arange(queries)) & 1
    else:
        swapped = random.integers(0, 2, (statistics.PERMUTATIONS, queries), dtype=np.int8)
    moves = (parts[:, ::-1] - parts).reshape(queries, -1)
    drawn = changes(totals + swapped @ moves)
    # Equal values differ by rounding.
    as_far = np.abs(drawn) >= abs(observed) - 1e-9
    p = as_far.mean() if is_exact else (as_far.sum() + 1) / (as_far.size + 1)
    change: Row = {"difference": observed, "low": None, "high": None, "p": float(p)}
    # Queries that are all alike say nothing about their spread.
    if np.ptp(flat, axis=0).any():
        change["low"] = interval.low
        change["high"] = interval.high
    return change
