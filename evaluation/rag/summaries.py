"""What the measures of policies say over queries: means, curves, and tests by disparity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fairqr.agents.statistics import corrected_by_holm, paired_randomisation, stream
from fairqr.evaluation.estimates import means_by
from fairqr.evaluation.rag.measures import FIXED, GROUP_SUMS, POLICY, Name

if TYPE_CHECKING:
    from pandas import DataFrame

AIM = "aim"
"""What group-aware samples aim at; see :func:`fairqr.evaluation.rag.targets.aim_of`."""

SHARES = [*GROUP_SUMS[:4], AIM]

COST = ("model_calls", "tokens", "milliseconds")

LEVEL = 0.05
"""A difference holds if its corrected p value is at most this."""

EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""The ends of the intervals of normalised EE-D; each includes its lower end."""

CELLS = len(EDGES) - 1
"""How many of these intervals there are."""

CONVENTIONS = {
    "bounds": (Name.EE_D, Name.EE_R, Name.EU_MAX),
    "fair-rag": (Name.EE_D_K, Name.EE_R_FAIR_RAG, Name.EU_MAX_FAIR_RAG),
}
"""Disparity, relevance and utility, normalised by what can be reached, and as the paper does."""


def means_of(values: DataFrame, keys: Sequence[str], names: Iterable[str]) -> DataFrame:
    """Return the means over queries of measures, for each combination of keys.

    Args:
        values: Rows with a ``query``, of one collection unless that is among the keys.
        keys: The columns to group by.
        names: The measures.

    Returns:
        The keys, ``measure``, ``mean``, the ends ``low`` and ``high`` of its 95% interval, and over
        how many ``queries`` it is. Missing values are NaN.
    """
    by_query = values.groupby([*keys, "query"], observed=True)[list(names)].mean()
    by_key = by_query.droplevel("query").rename_axis(columns="measure").stack(future_stack=True)
    means = means_by(by_key, "queries").reset_index()
    return means.astype({name: values[name].dtype for name in keys})


def group_shares(groups: DataFrame) -> DataFrame:
    """Return the shares of each group, as means over the queries that have them.

    Args:
        groups: The exposure of each group, of one attribute of one collection.

    Returns:
        By generator, retriever, policy and ``group``: its share of ``exposure``, of the ``target``,
        of the ``useful_exposure``, of the use (``attributed``), and of the ``aim`` of group-aware
        samples, and its attribution ``rate``; and over how many ``queries`` they are,
        ``useful_queries`` and ``used_queries``.
    """
    keys = POLICY[1:]
    sums = groups.groupby([*keys, "query", "group"], observed=True)[[*SHARES, "rate"]].mean()
    shares = in_shares(sums.reset_index(), [*keys, "query"]).drop(columns="query")
    by_group = shares.groupby([*keys, "group"], observed=True)
    counts = by_group[["exposure", "useful_exposure", "attributed"]].count()
    names = ["queries", "useful_queries", "used_queries"]
    return by_group.mean().join(counts.set_axis(names, axis=1)).reset_index()


def in_shares(groups: DataFrame, keys: list[str]) -> DataFrame:
    """Return the exposure of groups as shares of what all groups of the same keys have."""
    totals = groups.groupby(keys, observed=True)[SHARES].transform("sum")
    return groups.assign(**(groups[SHARES] / totals.where(totals > 0)))


def counts_of(values: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the counts behind the values of each policy, and their whole cost.

    ``rows`` are queries and seeds, ``undrawn`` those without any ranking; the others are the sums
    of their columns, ``failed`` by status.
    """
    numbers = ["drawn", "generated", "distinct", "empty", "pairs", "unjudged", *COST]
    by_policy = values.assign(undrawn=values.drawn == 0).groupby(list(keys), observed=True)
    counts = by_policy[["undrawn", *numbers]].sum()
    counts["rows"] = by_policy.size()
    counts["failed"] = by_policy["failed"].agg(lambda failed: sum(failed, Counter()))
    return counts.reset_index()


def points_of(values: DataFrame, keys: Sequence[str], x: Name, y: Name) -> DataFrame:
    """Return the means of two measures, as ``x`` and ``y``, over the queries that have both.

    Args:
        values: The rows of one collection.
        keys: The columns to group by.
        x: One measure.
        y: The other one.
    """
    by_query = values.groupby([*keys, "query"], observed=True)[[x, y]].mean().dropna()
    means = by_query.groupby(level=list(keys), observed=True).mean()
    return means.set_axis(["x", "y"], axis=1).reset_index()


def curves_of(values: DataFrame) -> DataFrame:
    """Return EE-R as a function of EE-D over the policies of each retriever.

    Args:
        values: The rows of one collection.

    Returns:
        By ``retriever`` and ``normalisation``, what :func:`curve_of` returns.
    """
    import pandas as pd

    lines = values[values.kind != "oracle"].groupby("retriever", observed=True)
    rows = []
    for retriever, of_retriever in lines:
        for name, (x, y, _) in CONVENTIONS.items():
            points = points_of(of_retriever, ["policy"], x, y)
            rows.append({"retriever": retriever, "normalisation": name, **curve_of(points)})
    return pd.DataFrame(rows)


def curve_of(points: DataFrame) -> dict[str, float]:
    """Return slope and area of points (``x``, ``y``), as in Table 1 of "Towards Fair RAG".

    Points with the same x are averaged for the area. The paper says neither over which range its
    areas are nor how its lines are fitted (reconstructed).

    Returns:
        The ``slope`` of the least-squares line, the ``area`` under the points joined in order of x
        (trapezoids), over the range from ``low`` to ``high`` that there is, the ``height``, which
        is the area by the width of that range, and the number of ``points``. Areas over different
        ranges cannot be compared, heights can. NaN if all x are the same, or there are no points.
    """
    heights = points.groupby("x").y.mean()
    low = heights.index.min()
    high = heights.index.max()
    slope = np.nan
    area = np.nan
    if high - low > FIXED:
        spread = np.cov(points.x, points.y, bias=True)
        slope = spread[0, 1] / spread[0, 0]
        area = float(np.trapezoid(heights, heights.index))
    return {
        "slope": slope,
        "area": area,
        "height": area / (high - low),
        "low": low,
        "high": high,
        "points": len(points),
    }


def intervals_of(values: DataFrame, disparity: Name, utility: Name) -> DataFrame:
    """Return the five-interval table (Table 2 of "Towards Fair RAG").

    Random rankings are compared with the deterministic one, by how uneven their exposure is. The
    pairs of one query, its policies and seeds in an interval, are averaged first, since they are
    not independent.

    Args:
        values: All policies.
        disparity: Which normalisation of EE-D to use.
        utility: Which utility to compare.

    Returns:
        By ``collection``, ``generator``, ``retriever`` and ``interval`` of :data:`EDGES` the tests
        of the utility less the deterministic ranking's, and the number of ``pairs``; and, the same
        for all intervals, the ``deterministic`` utility and over how many
        ``deterministic_queries`` it is; how many pairs are ``fixed``: all their rankings were the
        same, so that EE-D is 1; and how many are ``left_out``: without EE-D, without utility, or
        without the deterministic ranking's.
    """
    import pandas as pd

    keys = POLICY[:3]
    rows: list[dict[str, Any]] = []
    for key, of_retriever in values[values.kind != "oracle"].groupby(keys, observed=True):
        rows += _intervals(key, of_retriever, disparity, utility)
    table = pd.DataFrame(rows, columns=None if rows else [*keys, "p"])
    corrected = corrected_by_holm([row["p"] for row in rows])
    table["p"] = np.array(corrected, dtype=np.float64)
    table["holds"] = table.p <= LEVEL
    return table.astype({name: values[name].dtype for name in keys})


def _intervals(
    key: tuple[object, ...], values: Any, disparity: Name, utility: Name
) -> Iterator[dict[str, Any]]:
    """Yield the tests of one retriever and generator, interval by interval.

    Args:
        key: The collection, the generator and the retriever.
        values: Their policies, without the oracle.
        disparity: Which normalisation of EE-D to use.
        utility: Which utility to compare.
    """
    deterministic = values[values.kind == "deterministic"]
    fixed = deterministic.groupby("query")[utility].mean().dropna()
    pairs = values[values.kind == "plackett-luce"]
    differences = pairs[utility] - pairs["query"].map(fixed).astype(float)
    is_known = differences.notna() & pairs[disparity].notna()
    is_fixed = is_known & (pairs[disparity] >= 1 - FIXED)
    whole = {
        **dict(zip(POLICY[:3], key, strict=True)),
        "deterministic": fixed.mean(),
        "deterministic_queries": len(fixed),
        "fixed": is_fixed.sum(),
        "left_out": (~is_known).sum(),
    }
    intervals = interval_of(pairs[disparity])
    for interval in range(CELLS):
        inside = differences[is_known & ~is_fixed & (intervals == interval)]
        sample = inside.groupby(pairs["query"]).mean()
        # Rounding alone makes no difference.
        cleaned = np.where(np.abs(sample) > FIXED, sample, 0.0)
        random = stream(0, "\n".join(map(str, [*key, interval])))
        yield {
            **whole,
            "interval": interval,
            "difference": sample.mean(),
            "queries": len(sample),
            "p": paired_randomisation(cleaned, random),
            "pairs": len(inside),
        }


def interval_of(disparities: Any) -> Any:
    """Return in which interval of :data:`EDGES` values are; 1 is in the last one."""
    # Rounding can leave −1e−17 for a uniform policy.
    return np.floor(disparities.round(12) * CELLS).clip(0, CELLS - 1)
