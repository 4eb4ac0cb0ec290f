"""The report of a Fair RAG experiment: what its template shows, and its figures."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fairqr.evaluation.experiments.folder import file_name
from fairqr.evaluation.rag import measures
from fairqr.evaluation.rag.measures import PART, POLICY, MeasuredRag, Name
from fairqr.evaluation.reports.plots import INK, draw_lines
from fairqr.evaluation.reports.writer import Figure

if TYPE_CHECKING:
    from pandas import DataFrame

BY_GENERATOR, BY_POLICY = POLICY[1:], POLICY[2:]
AGAINST = {
    "relevance": (Name.EE_D, Name.EE_R, "retriever"),
    "utility_by_relevance": (Name.EE_R, Name.EU_MAX, "generator"),
    "utility_by_disparity": (Name.EE_D, Name.EU_MAX, "generator"),
    "rate_by_disparity": (Name.EE_D, Name.EAR, "generator"),
    "rate_by_relevance": (Name.EE_R, Name.EAR, "generator"),
    "use": (Name.EE_D_K_ANSWERED, Name.EAE_D_K, "generator"),
    "share": (Name.EE_D_K_ANSWERED, Name.SHARE, "generator"),
}
"""The plots of one measure against another: x, y, and what has a line."""


def values_of(measured: MeasuredRag) -> dict[str, Any]:
    """Return the values that the template shows."""
    values = measured.values
    drawn = values[values.drawn > 0].groupby("collection", observed=False)
    return {
        "axes": AGAINST,
        "asked": drawn["query"].nunique(),
        "parts": [_part(measured, name) for name in values.collection.unique()],
        "intervals": {
            name: (disparity, measures.intervals_of(values, disparity, utility))
            for name, (disparity, _, utility) in measures.CONVENTIONS.items()
        },
        "edges": list(itertools.pairwise(measures.EDGES)),
        "has_use": bool(values[Name.EAR].notna().any()),
        "unfinished": _unfinished(measured),
        "failures": Counter(filter(None, values.failure)).most_common(),
        "costs": measures.counts_of(values, [*PART, "policy"]),
    }


def _part(measured: MeasuredRag, name: str) -> dict[str, Any]:
    """Return the values that the template shows of one collection."""
    values, groups, group_measures = (
        found[found.collection == name]
        for found in (measured.values, measured.groups, measured.group_measures)
    )
    collection, reasons = measured.collections[name], measured.reasons.loc[values.index]
    parts = {"rankings": BY_POLICY, "answers": BY_GENERATOR, "use": BY_GENERATOR}
    return {
        "collection": collection,
        "figures": {it: file_name(it, collection.title) for it in ("disparity", *AGAINST)},
        "means": {
            name: (keys, names, measures.means_of(values, keys, names))
            for (name, keys), names in zip(parts.items(), measures.KINDS, strict=True)
        },
        "curves": measures.curves_of(values),
        "undefined": {it: Counter(own.dropna()) for it, own in reasons.items()},
        "groups": {
            it: (
                measures.group_shares(groups[groups.attribute == it]),
                measures.means_of(own, BY_GENERATOR, measures.OF_GROUPS),
            )
            for it, own in group_measures.groupby("attribute", sort=False)
        },
        "counts": measures.counts_of(values, BY_GENERATOR),
    }


def _unfinished(measured: MeasuredRag) -> tuple[int, int]:
    """Return how many queries of an interrupted run have no labels, and what else is to do."""
    experiment, labels = measured.manifest.experiment, measured.labels
    queries = sum(len(it.queries) for it in measured.collections.values())
    unlabelled = queries * len(experiment.generators) - labels.labelled.sum()
    return unlabelled, labels.kept.sum() * len(experiment.draws) - len(measured.values)


def figures_of(measured: MeasuredRag) -> list[Figure]:
    """Draw the figures of each collection."""
    drawn: list[Figure] = []
    for name, values in measured.values.groupby("collection", observed=True):
        title = measured.collections[name].title
        drawn += _figure("disparity", title, _by_policy(values), "policy", "EE-D, normalised")
        for kind, (x, y, by) in AGAINST.items():
            drawn += _figure(kind, title, _against(values, x, y, by), x, y)
    return drawn


def _figure(kind: str, title: str, points: DataFrame, x: str, y: str) -> Iterator[Figure]:
    """Yield the plot of points, unless they are the oracle's alone."""
    if set(points.line) <= {"oracle"}:
        return
    described = "; ".join(
        f"{line}: " + ", ".join(own.told) for line, own in points.groupby("line", sort=False)
    )
    plot = draw_lines(
        {"": points}, x, y, styles={"oracle": (INK, "*")}, diagonal=kind in ("use", "share")
    )
    yield Figure(file_name(kind, title), f"Lines of {y} over {x}: {described}.", plot)


def _by_policy(values: DataFrame) -> DataFrame:
    """Return the points of disparity by α."""
    retrieved = values[values.kind != "oracle"]
    means = measures.means_of(retrieved, BY_POLICY, [Name.EE_D]).dropna(subset="mean")
    return means.assign(
        line=means.retriever.astype(str),
        x=means.policy.cat.remove_unused_categories().cat.codes.astype(float),
        y=means["mean"],
        tick=means.policy,
        told=[f"{row.policy} {row.mean:.3f}" for row in means.itertuples()],
    )


def _against(values: DataFrame, x: Name, y: Name, by: str) -> DataFrame:
    """Return the points of one measure against another, over the queries that have both."""
    import pandas as pd

    names = values[by].astype(str).where(values.kind != "oracle", "oracle")
    order = pd.CategoricalDtype([*filter(None, values[by].cat.categories), "oracle"], ordered=True)
    lines = values.assign(line=names.astype(order))
    points = measures.points_of(lines, ["line", "policy"], x, y).astype({"line": str})
    short = {"deterministic": "fixed", "oracle": ""}
    points["label"] = [short.get(it, it.removeprefix("α = ")) for it in points.policy]
    points["told"] = [f"{it.label} ({it.x:.3f}, {it.y:.3f})".strip() for it in points.itertuples()]
    return points
