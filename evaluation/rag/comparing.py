"""Compares the policies of a retriever: tests between α, slope and area, five intervals.

All tests are paired randomisation tests over queries. The tests of a table are one family for Holm.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fairqr.agents.statistics import corrected_by_holm, paired_randomisation, stream, too_few
from fairqr.evaluation.rag.measures import Name

if TYPE_CHECKING:
    from pandas import DataFrame, Series

LEVEL = 0.05
"""A difference holds if its corrected p value is at most this."""

EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""The ends of the intervals of normalised EE-D; each includes its lower end."""

FIXED = 1e-9
"""A normalised EE-D that is nearer to 1 than this belongs to a fixed ranking."""

CONVENTIONS = {
    "bounds": (Name.EE_D, Name.EE_R),
    "fair-rag": (Name.EE_D_K, Name.EE_R_FAIR_RAG),
}
"""EE-D and EE-R, normalised by what can be reached, and as "Towards Fair RAG" does."""


def _family(
    values: DataFrame, keys: Sequence[str], samples: Mapping[tuple[object, ...], Series]
) -> DataFrame:
    """Test whether means are 0, as one family for Holm.

    Args:
        values: The rows that the samples come from; they decide the order of names.
        keys: The names of the values that identify a sample.
        samples: A value for each query.

    Returns:
        The keys, the mean ``difference``, over how many ``queries`` it is, ``p`` as corrected, the
        number of ``tests`` in the family, whether the difference ``holds``, and whether it could:
        ``too_few`` if no values of this number of queries would hold in this family.
    """
    import pandas as pd

    rows = []
    for key, sample in samples.items():
        # Rounding alone makes no difference.
        cleaned = np.where(np.abs(sample) > FIXED, sample, 0.0)
        tested = paired_randomisation(cleaned, stream(0, "\n".join(map(str, key))))
        rows.append((*key, sample.mean(), len(sample), tested))
    found = pd.DataFrame(rows, columns=[*keys, "difference", "queries", "p"])
    found["tests"] = sum(row[-1] is not None for row in rows)
    found["p"] = np.array(corrected_by_holm([row[-1] for row in rows]), dtype=np.float64)
    found["holds"] = found.p <= LEVEL
    found["too_few"] = [
        too_few(row.queries, LEVEL / max(1, row.tests)) and not row.holds
        for row in found.itertuples()
    ]
    return found.astype({name: values[name].dtype for name in keys if name in values})


def _by_query(values: DataFrame, keys: Sequence[str], name: str) -> Series:
    """Return the value of each query that has one: the mean over its rows with one."""
    return values.groupby([*keys, "query"], observed=True)[name].mean().dropna()


def differences_of(values: DataFrame, name: Name = Name.EE_D) -> DataFrame:
    """Test each two α of every retriever against each other; generators are averaged by query.

    Args:
        values: The rows of one collection.
        name: The measure.

    Returns:
        The tests of ``other`` less ``one``, by ``retriever``.
    """
    samples: dict[tuple[object, ...], Series] = {}
    random = values[values.kind == "plackett-luce"]
    for retriever, own in random.groupby("retriever", observed=True):
        by_policy = _by_query(own, ["policy"], name).unstack("policy")
        for one, other in itertools.combinations(by_policy, 2):
            samples[retriever, one, other] = (by_policy[other] - by_policy[one]).dropna()
    return _family(values, ["retriever", "one", "other"], samples)


def points_of(values: DataFrame, keys: Sequence[str], x: Name, y: Name) -> DataFrame:
    """Return the means of two measures over the queries that have both.

    Args:
        values: The rows of one collection.
        keys: The columns to group by.
        x: One measure.
        y: The other one.

    Returns:
        The keys, ``x`` and ``y``.
    """
    by_query = values.groupby([*keys, "query"], observed=True)[[x, y]].mean().dropna()
    found = by_query.groupby(level=list(keys), observed=True).mean()
    return found.set_axis(["x", "y"], axis=1).reset_index()


def curves_of(values: DataFrame) -> DataFrame:
    """Return EE-R as a function of EE-D over the policies of each retriever.

    Args:
        values: The rows of one collection.

    Returns:
        By ``retriever`` and ``normalisation``, what :func:`curve_of` returns.
    """
    import pandas as pd

    return pd.DataFrame(
        {"retriever": retriever, "normalisation": name, **curve_of(points.x, points.y)}
        for retriever, own in values[values.kind != "oracle"].groupby("retriever", observed=True)
        for name, (x, y) in CONVENTIONS.items()
        for points in [points_of(own, ["policy"], x, y)]
    )


def curve_of(x: Sequence[float], y: Sequence[float]) -> dict[str, float]:
    """Return slope and area of points, as in Table 1 of "Towards Fair RAG".

    Points with the same x are averaged for the area. The paper says neither over which range its
    areas are nor how its lines are fitted (reconstructed).

    Returns:
        The ``slope`` of the least-squares line, the ``area`` under the points joined in order of x
        (trapezoids), over the range from ``low`` to ``high`` that there is, the ``height``, which
        is the area by the width of that range, and the number of ``points``. Areas over different
        ranges cannot be compared, heights can. NaN if all x are the same, or there are no points.
    """
    across, upward = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    slope = area = height = low = high = np.nan
    if len(across):
        low, high = float(across.min()), float(across.max())
    if high - low > FIXED:
        centred = across - across.mean()
        slope = float(centred @ (upward - upward.mean()) / (centred @ centred))
        distinct, places = np.unique(across, return_inverse=True)
        heights = np.bincount(places, upward) / np.bincount(places)
        area = float((np.diff(distinct) * (heights[1:] + heights[:-1]) / 2).sum())
        height = area / (high - low)
    return {
        "slope": slope,
        "area": area,
        "height": height,
        "low": low,
        "high": high,
        "points": len(across),
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

    keys = ["collection", "generator", "retriever"]
    samples: dict[tuple[object, ...], Series] = {}
    rows = []
    for key, own in values[values.kind != "oracle"].groupby(keys, observed=True):
        baseline = _by_query(own[own.kind == "deterministic"], [], utility)
        pairs = own[own.kind == "plackett-luce"]
        difference = pairs[utility] - pairs["query"].map(baseline).astype(float)
        known = difference.notna() & pairs[disparity].notna()
        fixed = known & (pairs[disparity] >= 1 - FIXED)
        # Rounding can leave −1e−17 for a uniform policy.
        places = np.floor(pairs[disparity].round(12) * (len(EDGES) - 1)).clip(0, len(EDGES) - 2)
        for place in range(len(EDGES) - 1):
            inside = difference[known & ~fixed & (places == place)]
            samples[*key, place] = inside.groupby(pairs["query"]).mean()
            rows.append((len(inside), baseline.mean(), len(baseline), fixed.sum(), (~known).sum()))
    names = ["pairs", "deterministic", "deterministic_queries", "fixed", "left_out"]
    return _family(values, [*keys, "interval"], samples).join(pd.DataFrame(rows, columns=names))
