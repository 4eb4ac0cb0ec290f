"""What "Towards Fair RAG" shows beside means: distributions, intervals, t tests and correlations.

The paper gathers the runs of all α, and draws its lines over intervals of disparity. A reader of
its values needs the same; the means of policies, which we prefer, give other slopes and areas.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from fairqr.agents.statistics import corrected_by_holm, stream
from fairqr.base.extras import library
from fairqr.evaluation.rag.measures import FIXED, POLICY, Name
from fairqr.evaluation.rag.summaries import (
    CELLS,
    CONVENTIONS,
    EDGES,
    curve_of,
    interval_of,
    means_of,
)

if TYPE_CHECKING:
    from pandas import DataFrame

QUANTILES = {"q05": 0.05, "q25": 0.25, "median": 0.5, "q75": 0.75, "q95": 0.95}
"""The ends of a box with its whiskers, as shares of the queries below."""

RESAMPLES = 2000
"""How many samples of queries the interval of a correlation is made of."""


def boxes_of(values: DataFrame) -> DataFrame:
    """Return the distribution over queries of EE-D/k at each policy, as in figure 3.

    Args:
        values: The rows of one collection.

    Returns:
        By ``retriever`` and ``policy`` the :data:`QUANTILES` of the queries, each averaged over
        seeds and generators, and the number of ``queries``.
    """
    import pandas as pd

    drawn = values[values.kind != "oracle"]
    by_query = drawn.groupby([*POLICY[2:], "query"], observed=True)[Name.EE_D_K].mean().dropna()
    by_policy = by_query.groupby(level=POLICY[2:], observed=True)
    # One by one: all at once have no columns where no policy but the oracle was run.
    quantiles = {name: by_policy.quantile(share) for name, share in QUANTILES.items()}
    return pd.DataFrame(quantiles | {"queries": by_policy.size()}).reset_index()


def gathered(values: DataFrame, by: str, x: Name, y: Name) -> DataFrame:
    """Return the runs of all policies, joined by intervals of x, as in figures 4 and 5.

    Args:
        values: The rows of one collection; the oracle's are left out.
        by: The column that names a line.
        x: Its values are sorted into the intervals of :data:`EDGES`; those of fixed rankings,
            which are 1, stand behind the last.
        y: The other measure.

    Returns:
        By line and interval the means ``x`` and ``y`` over the ``runs`` in it: a query under a
        policy and a seed.
    """
    runs = values[values.kind != "oracle"].dropna(subset=[x, y])
    interval = interval_of(runs[x]).where(runs[x] < 1 - FIXED, CELLS)
    by_interval = runs.assign(place=interval).groupby([by, "place"], observed=True)
    return by_interval.agg(x=(x, "mean"), y=(y, "mean"), runs=(y, "size")).reset_index()


def curves_by_interval(values: DataFrame) -> DataFrame:
    """Return slope and area of EE-R over EE-D from 0 to 1, by intervals, as table 1 may have them.

    The runs of an interval are one point. Points are interpolated at 0, .2, …, 1, and are held
    constant outside their range (reconstructed).

    Args:
        values: The rows of one collection.
    """
    import pandas as pd

    rows = []
    for normalisation, (x, y, _) in CONVENTIONS.items():
        points = gathered(values, "retriever", x, y)
        for retriever, of_retriever in points.groupby("retriever", observed=True):
            heights = np.interp(EDGES, of_retriever.x, of_retriever.y)
            curve = curve_of(pd.DataFrame({"x": EDGES, "y": heights}))
            row = {"retriever": retriever, "normalisation": normalisation, **curve}
            row["points"] = len(of_retriever)
            row["runs"] = of_retriever.runs.sum()
            rows.append(row)
    return pd.DataFrame(rows)


def paired_tests(values: DataFrame) -> DataFrame:
    """Return the paired t tests over queries of EE-D/k between values of α.

    The difference is there by construction where scores differ: a larger α makes rankings less
    random. The paper reports that it is significant in all of its 84 conditions.

    Returns:
        By ``collection``, ``generator``, ``retriever``, and the policies ``lower`` and ``higher``
        the mean ``difference``, Student's ``t`` over ``queries``, its ``p``, and that corrected by
        Holm for the whole table, ``holm``.
    """
    import pandas as pd

    stats = library("scipy.stats", "A t test")
    keys = POLICY[:3]
    rows: list[dict[str, Any]] = []
    random = values[values.kind == "plackett-luce"]
    for key, policies in random.groupby(keys, observed=True):
        disparities = policies.groupby(["query", "policy"], observed=True)[Name.EE_D_K].mean()
        by_query = disparities.unstack()
        for lower, higher in itertools.combinations(by_query.columns, 2):
            differences = (by_query[higher] - by_query[lower]).dropna()
            row = {
                **dict(zip(keys, key, strict=True)),
                "lower": lower,
                "higher": higher,
                "difference": differences.mean(),
                "t": np.nan,
                "queries": len(differences),
                "p": None,
            }
            # Rounding alone makes no spread.
            if len(differences) > 1 and differences.std() > FIXED:
                test = stats.ttest_1samp(differences, 0.0)
                row["t"] = test.statistic
                row["p"] = float(test.pvalue)
            rows.append(row)
    holm = corrected_by_holm([row["p"] for row in rows])
    columns = [*keys, "lower", "higher", "difference", "t", "queries", "p"]
    table = pd.DataFrame(rows, columns=columns)
    return table.assign(p=table.p.astype(float), holm=np.array(holm, dtype=np.float64))


def against_fixed(values: DataFrame, keys: list[str], measure: Name) -> DataFrame:
    """Return a measure of random rankings less that of the retriever's one ranking, over queries.

    Args:
        values: The rows of one collection.
        keys: The columns to group by; ``policy`` among them.
        measure: The measure; queries without it under either are left out.

    Returns:
        The keys, the ``mean`` difference with the ends ``low`` and ``high`` of its 95 % interval,
        and over how many ``queries`` it is; empty if there are none.
    """
    ids = [*POLICY[:3], "query"]
    deterministic = values[values.kind == "deterministic"]
    fixed = deterministic.groupby(ids, observed=True)[measure].mean()
    random = values[values.kind == "plackett-luce"].dropna(subset=[measure])
    pairs = random.join(fixed.rename("fixed"), on=ids).dropna(subset=["fixed"])
    differences = pairs.assign(**{measure: pairs[measure] - pairs["fixed"]})
    return means_of(differences, keys, [measure]).dropna(subset=["mean"])


def correlation_of(values: DataFrame, x: Name, y: Name) -> dict[str, float]:
    """Return Pearson's correlation of two measures over all runs, with a 95 % interval.

    The runs of a query depend on each other, so the interval is a bootstrap over queries.

    Args:
        values: The rows of one collection; the oracle's are left out.
        x: One measure.
        y: The other one.

    Returns:
        The correlation ``r``, the ends ``low`` and ``high``, and the number of ``runs`` and
        ``queries``. NaN if a measure does not vary, or there are fewer than six queries.
    """
    runs = values[values.kind != "oracle"].dropna(subset=[x, y])
    named = runs.assign(xx=runs[x] ** 2, yy=runs[y] ** 2, xy=runs[x] * runs[y], one=1.0)
    sums = named.groupby("query")[["one", x, y, "xx", "yy", "xy"]].sum().to_numpy()
    counts: dict[str, float] = {"runs": len(runs), "queries": len(sums)}
    if len(sums) < 6:
        return {"r": np.nan, "low": np.nan, "high": np.nan, **counts}
    random = stream(0, f"{x}, {y}")
    drawn = random.integers(len(sums), size=(RESAMPLES, len(sums)))
    correlations = _pearson(sums[drawn].sum(axis=1))
    low = np.nan
    high = np.nan
    if np.isfinite(correlations).any():
        low, high = np.nanquantile(correlations, [0.025, 0.975])
    return {"r": float(_pearson(sums.sum(axis=0))), "low": low, "high": high, **counts}


def _pearson(sums: Any) -> Any:
    """Return the correlation from sums of 1, x, y, x², y² and xy, shape (…, 6)."""
    n, x, y, xx, yy, xy = np.moveaxis(np.asarray(sums, dtype=np.float64), -1, 0)
    spread = (n * xx - x**2) * (n * yy - y**2)
    varies = spread > FIXED
    root = np.sqrt(np.where(varies, spread, 1.0))
    return np.where(varies, (n * xy - x * y) / root, np.nan)
