"""The report of a Fair RAG experiment: what its template shows, and its figures."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fairqr.agents.attribution.attributor import judge_in_words
from fairqr.evaluation.experiments.folder import file_name
from fairqr.evaluation.rag import measures, published
from fairqr.evaluation.rag.measures import PART, POLICY, MeasuredRag, Name
from fairqr.evaluation.reports.plots import INK, draw_boxes, draw_lines
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
    "normed": (Name.EE_D_K_ANSWERED, Name.EAE_D_NORMED, "generator"),
}
"""The plots of one measure against another: x, y, and what has a line."""


def values_of(measured: MeasuredRag) -> dict[str, Any]:
    """Return the values that the template shows."""
    values = measured.values
    judge = measured.manifest.attributor or "nothing"
    drawn = values[values.drawn > 0].groupby("collection", observed=False)
    return {
        "axes": AGAINST,
        "asked": drawn["query"].nunique(),
        "parts": [_part(measured, name) for name in values.collection.unique()],
        "intervals": {
            name: (disparity, measures.intervals_of(values, disparity, utility))
            for name, (disparity, _, utility) in measures.CONVENTIONS.items()
        },
        "tests": published.paired_tests(values),
        "edges": list(itertools.pairwise(measures.EDGES)),
        "answered": bool((values.generated > 0).any()),
        "judge": judge_in_words(judge),
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
        "figures": {
            it: file_name(it, collection.title)
            for it in ("disparity", "boxes", *AGAINST, *(f"{kind}_interval" for kind in AGAINST))
        },
        "means": {
            name: (keys, names, measures.means_of(values, keys, names))
            for (name, keys), names in zip(parts.items(), measures.KINDS, strict=True)
        },
        "curves": measures.curves_of(values),
        "curves_by_interval": published.curves_by_interval(values),
        "boxes": published.boxes_of(values),
        "correlations": {
            (x, y): published.correlation_of(values, x, y)
            for x, y in ((Name.EE_R, Name.EU_MAX), (Name.EE_D, Name.EU_MAX))
        },
        "rq1": published.against_fixed(values, BY_POLICY, Name.EE_R),
        "rq2": published.against_fixed(values, ["generator", "policy"], Name.EU_MAX),
        "rq3": published.against_fixed(values, ["generator", "policy"], Name.EAR),
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
    unlabelled = queries * len(experiment.labellers) - labels.labelled.sum()
    return unlabelled, labels.kept.sum() * len(experiment.draws) - len(measured.values)


def figures_of(measured: MeasuredRag) -> list[Figure]:
    """Draw the figures of each collection."""
    drawn: list[Figure] = []
    for name, values in measured.values.groupby("collection", observed=True):
        title = measured.collections[name].title
        drawn += _figure("disparity", title, _by_policy(values), "policy", "EE-D, normalised")
        drawn += _boxes(title, values)
        for kind, (x, y, by) in AGAINST.items():
            drawn += _figure(kind, title, _against(values, x, y, by), x, y)
            drawn += _figure(f"{kind}_interval", title, _by_interval(values, x, y, by), x, y)
    return drawn


def _figure(kind: str, title: str, points: DataFrame, x: str, y: str) -> Iterator[Figure]:
    """Yield the plot of points, unless they are the oracle's alone."""
    if points.empty or set(points.line) <= {"oracle"}:
        return
    described = "; ".join(
        f"{line}: " + ", ".join(own.told) for line, own in points.groupby("line", sort=False)
    )
    plot = draw_lines(
        {"": points},
        x,
        y,
        styles={"oracle": (INK, "*")},
        diagonal=kind.removesuffix("_interval") in ("use", "share", "normed"),
    )
    yield Figure(file_name(kind, title), f"Lines of {y} over {x}: {described}.", plot)


def _boxes(title: str, values: DataFrame) -> Iterator[Figure]:
    """Yield the distribution of EE-D/k over queries, by α, unless only the oracle was run."""
    rows: dict[str, dict[str, list[float]]] = {}
    for row in published.boxes_of(values).itertuples():
        box = [getattr(row, name) for name in published.QUANTILES]
        rows.setdefault(str(row.retriever), {})[str(row.policy)] = box
    if not rows:
        return
    words = "; ".join(
        f"{retriever}: " + ", ".join(f"{policy} {box[2]:.3f}" for policy, box in own.items())
        for retriever, own in rows.items()
    )
    plot = draw_boxes(rows, "policy", Name.EE_D_K)
    yield Figure(file_name("boxes", title), f"Boxes of EE-D/k by policy; medians: {words}.", plot)


def _by_interval(values: DataFrame, x: Name, y: Name, by: str) -> DataFrame:
    """Return the points of one measure against another, by intervals of x."""
    points = published.gathered(values, by, x, y)
    return points.assign(
        line=points[by].astype(str),
        told=[f"({it.x:.3f}, {it.y:.3f})" for it in points.itertuples()],
    )


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
