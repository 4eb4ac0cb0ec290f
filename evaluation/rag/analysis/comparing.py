"""What policies of one retriever say together: tests between α, slope and area, five intervals.

All tests are paired randomisation tests over queries, corrected by Holm over the rows of their
table.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fairqr.base.statistics import corrected_by_holm, paired_randomisation, stream
from fairqr.evaluation.rag.analysis.frames import QUERY, by_query
from fairqr.evaluation.rag.analysis.names import Name

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = [
    "EDGES",
    "LEVEL",
    "Curve",
    "compare_policies",
    "curve_of",
    "excess_tests",
    "interval_table",
]

LEVEL = 0.05
"""A difference holds if its corrected p value is at most this."""

EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Of the intervals of normalised EE-D; each takes its lower end in, and not its upper one."""

FIXED = 1e-9
"""A normalised EE-D that is nearer to 1 is that of a fixed ranking; rounding makes no interval."""


def _tested(differences: Sequence[float], name: str) -> float | None:
    """Return the p value of the randomisation test of these differences, one for each query."""
    found = paired_randomisation(differences, stream(0, name))
    return found.p if found else None


def _corrected(rows: list[dict[str, Any]], columns: Sequence[str]) -> DataFrame:
    """Return the rows with their p values corrected by Holm for all of them."""
    import pandas as pd

    frame = pd.DataFrame(rows, columns=[*columns, "p"])
    p_values = [None if p is None or np.isnan(p) else float(p) for p in frame.p]
    frame["p_corrected"] = [np.nan if p is None else p for p in corrected_by_holm(p_values)]
    frame["holds"] = frame.p_corrected <= LEVEL
    return frame


def compare_policies(cells: DataFrame, name: Name) -> DataFrame:
    """Test each two α of every retriever against each other; generators are averaged by query.

    Args:
        cells: Of one collection.
        name: The measure.

    Returns:
        ``retriever``, ``one``, ``other``, the mean ``difference`` of other − one, over how many
        ``queries``, ``p``, ``p_corrected`` and ``holds``.
    """
    rows: list[dict[str, Any]] = []
    random = cells[cells.kind == "plackett-luce"]
    for retriever, mine in random.groupby("retriever", observed=True):
        values = {
            policy: by_query(found, name) for policy, found in mine.groupby("policy", observed=True)
        }
        for one, other in itertools.combinations(values, 2):
            differences = (values[other] - values[one]).dropna()
            rows.append(
                {
                    "retriever": retriever,
                    "one": one,
                    "other": other,
                    "difference": differences.mean(),
                    "queries": len(differences),
                    "p": _tested(differences.to_numpy(), f"{retriever}\n{one}\n{other}\n{name}"),
                }
            )
    return _corrected(rows, ["retriever", "one", "other", "difference", "queries"])


def excess_tests(cells: DataFrame) -> DataFrame:
    """Test whether what is used is more concentrated than what is shown, for every α.

    Args:
        cells: Of one collection.

    Returns:
        ``generator``, ``retriever``, ``policy``, the mean ``excess``, over how many ``queries``,
        ``p``, ``p_corrected`` and ``holds``.
    """
    rows: list[dict[str, Any]] = []
    keys = ["generator", "retriever", "policy"]
    random = cells[cells.kind == "plackett-luce"]
    for key, found in random.groupby(keys, observed=True):
        values = by_query(found, Name.SHARE_EXCESS)
        # Differences by rounding alone are none.
        values = values.where(values.abs() > FIXED, 0.0)
        rows.append(
            {
                **dict(zip(keys, key, strict=True)),
                "excess": values.mean(),
                "queries": len(values),
                "p": _tested(values.to_numpy(), "\n".join(map(str, key))),
            }
        )
    return _corrected(rows, [*keys, "excess", "queries"])


@dataclass(frozen=True, slots=True)
class Curve:
    """A measure against another over the policies of a retriever.

    Attributes:
        slope: Of the least-squares line of y on x; None where all x are the same.
        area: Under the points joined in order of x (trapezoids), over the range of x there is;
            None where all x are the same.
        low, high: That range. Areas over different ranges cannot be compared: see ``height``.
        points: How many policies it is over.
    """

    slope: float | None
    area: float | None
    low: float
    high: float
    points: int

    @property
    def height(self) -> float | None:
        """The area by the width of the range: the mean of y."""
        return None if self.area is None else self.area / (self.high - self.low)


def curve_of(points: Sequence[tuple[float, float]]) -> Curve | None:
    """Return slope and area of points (x, y), as in Table 1 of "Towards Fair RAG".

    Points with the same x are averaged for the area. The paper says neither over which range its
    areas are nor how its lines are fitted (reconstructed).

    Returns:
        None without points.
    """
    if not points:
        return None
    x, y = np.array(sorted(points)).T
    low, high = float(x[0]), float(x[-1])
    if high - low <= FIXED:
        return Curve(None, None, low, high, len(points))
    centred = x - x.mean()
    slope = float(centred @ (y - y.mean()) / (centred @ centred))
    distinct, places = np.unique(x, return_inverse=True)
    heights = np.bincount(places, y) / np.bincount(places)
    area = float((np.diff(distinct) * (heights[1:] + heights[:-1]) / 2).sum())
    return Curve(slope, area, low, high, len(points))


def interval_table(cells: DataFrame, disparity: Name, utility: Name) -> tuple[DataFrame, DataFrame]:
    """Return the five-interval table (Table 2 of "Towards Fair RAG").

    Random rankings are compared with the deterministic one, by how uneven their exposure is. The
    pairs of one query, its policies and seeds in an interval, are averaged first, since they are
    not independent.

    Args:
        cells: All policies.
        disparity: Of which normalisation EE-D is.
        utility: Which utility is compared.

    Returns:
        For each collection, generator, retriever and ``interval`` of :data:`EDGES`, the mean
        ``difference`` of utility from the deterministic ranking's, over how many ``pairs`` and
        ``queries``, ``p``, ``p_corrected`` and ``holds``. And for each collection, generator and
        retriever, the ``deterministic`` utility and over how many ``queries`` it is; how many
        pairs are ``fixed``: all their rankings were the same, so that EE-D is 1; and how many are
        ``left_out``: without EE-D, without utility, or without that of the deterministic ranking.
    """
    import pandas as pd

    keys = ["collection", "generator", "retriever"]
    rows: list[dict[str, Any]] = []
    outside = []
    for key, mine in cells[cells.retriever != ""].groupby(keys, observed=True):
        named = dict(zip(keys, key, strict=True))
        baseline = by_query(mine[mine.kind == "deterministic"], utility)
        pairs = mine[mine.kind == "plackett-luce"].set_index(QUERY)
        difference = pairs[utility] - baseline.reindex(pairs.index)
        known = difference.notna() & pairs[disparity].notna()
        fixed = known & (pairs[disparity] >= 1 - FIXED)
        inside = known & ~fixed
        # Rounding can leave −1e−17 for a uniform policy.
        places = (pairs[disparity][inside].round(12) * (len(EDGES) - 1)).astype(int)
        places = places.clip(0, len(EDGES) - 2)
        for place in range(len(EDGES) - 1):
            own = difference[inside][places == place]
            by = own.groupby(level=QUERY, sort=False, observed=True).mean()
            rows.append(
                {
                    **named,
                    "interval": place,
                    "difference": by.mean(),
                    "pairs": len(own),
                    "queries": len(by),
                    "p": _tested(by.to_numpy(), "\n".join((*map(str, key), str(place)))),
                }
            )
        outside.append(
            {
                **named,
                "deterministic": baseline.mean(),
                "queries": len(baseline),
                "fixed": int(fixed.sum()),
                "left_out": int((~known).sum()),
            }
        )
    columns = [*keys, "interval", "difference", "pairs", "queries"]
    return _corrected(rows, columns), pd.DataFrame(outside)
