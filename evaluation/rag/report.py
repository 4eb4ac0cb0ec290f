"""The report of a Fair RAG experiment: what its template shows, and its figures."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fairqr.agents.attribution.attributor import judge_in_words
from fairqr.evaluation.experiments.folder import file_name
from fairqr.evaluation.rag import published, summaries
from fairqr.evaluation.rag.measured import OF_GROUPS, MeasuredRag
from fairqr.evaluation.rag.measures import (
    OF_ANSWERS,
    OF_RANKINGS,
    OF_USE,
    PART,
    POLICY,
    Name,
)
from fairqr.evaluation.reports.plots import INK, draw_boxes, draw_lines
from fairqr.evaluation.reports.writer import Figure

if TYPE_CHECKING:
    from pandas import DataFrame

BY_GENERATOR = POLICY[1:]
BY_POLICY = POLICY[2:]

TABLES = {
    "rankings": (BY_POLICY, OF_RANKINGS),
    "answers": (BY_GENERATOR, OF_ANSWERS),
    "use": (BY_GENERATOR, OF_USE),
}
"""The tables of means: what has a row, and the measures."""

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
            name: (disparity, summaries.intervals_of(values, disparity, utility))
            for name, (disparity, _, utility) in summaries.CONVENTIONS.items()
        },
        "tests": published.paired_tests(values),
        "edges": list(itertools.pairwise(summaries.EDGES)),
        "answered": bool((values.generated > 0).any()),
        "judge": judge_in_words(judge),
        "has_use": bool(values[Name.EAR].notna().any()),
        "unfinished": _unfinished(measured),
        "failures": Counter(filter(None, values.failure)).most_common(),
        "costs": summaries.counts_of(values, [*PART, "policy"]),
    }


def _part(measured: MeasuredRag, name: str) -> dict[str, Any]:
    """Return the values that the template shows of one collection."""
    values = measured.values[measured.values.collection == name]
    reasons = measured.reasons.loc[values.index]
    collection = measured.collections[name]
    by_interval = [f"{kind}_interval" for kind in AGAINST]
    figures = ("disparity", "boxes", *AGAINST, *by_interval)
    return {
        "collection": collection,
        "figures": {figure: file_name(figure, collection.title) for figure in figures},
        "means": {
            table: (keys, [*names], summaries.means_of(values, keys, names))
            for table, (keys, names) in TABLES.items()
        },
        "curves": summaries.curves_of(values),
        "curves_by_interval": published.curves_by_interval(values),
        "boxes": published.boxes_of(values),
        "correlations": {
            (x, y): published.correlation_of(values, x, y)
            for x, y in ((Name.EE_R, Name.EU_MAX), (Name.EE_D, Name.EU_MAX))
        },
        "rq1": published.against_fixed(values, BY_POLICY, Name.EE_R),
        "rq2": published.against_fixed(values, ["generator", "policy"], Name.EU_MAX),
        "rq3": published.against_fixed(values, ["generator", "policy"], Name.EAR),
        "undefined": {
            measure: Counter(of_measure.dropna()) for measure, of_measure in reasons.items()
        },
        "groups": _groups(measured, name),
        "counts": summaries.counts_of(values, BY_GENERATOR),
    }


def _groups(measured: MeasuredRag, name: str) -> dict[str, tuple[DataFrame, DataFrame]]:
    """Return the shares of groups and the measures by group of a collection, by attribute."""
    groups = measured.groups[measured.groups.collection == name]
    group_measures = measured.group_measures
    of_collection = group_measures[group_measures.collection == name]
    by_attribute = {}
    for attribute, rows in of_collection.groupby("attribute", sort=False):
        shares = summaries.group_shares(groups[groups.attribute == attribute])
        means = summaries.means_of(rows, BY_GENERATOR, OF_GROUPS)
        by_attribute[str(attribute)] = (shares, means)
    return by_attribute


def _unfinished(measured: MeasuredRag) -> tuple[int, int]:
    """Return how many queries of an interrupted run have no labels, and what else is to do."""
    experiment = measured.manifest.experiment
    labels = measured.labels
    queries = sum(len(collection.queries) for collection in measured.collections.values())
    unlabelled = queries * len(experiment.labellers) - labels.labelled.sum()
    policies = labels.kept.sum() * len(experiment.draws)
    return unlabelled, policies - len(measured.values)


def figures_of(measured: MeasuredRag) -> list[Figure]:
    """Draw the figures of each collection."""
    figures: list[Figure] = []
    for name, values in measured.values.groupby("collection", observed=True):
        title = measured.collections[name].title
        figures += _figure("disparity", title, _by_policy(values), "policy", "EE-D, normalised")
        figures += _boxes(title, values)
        for kind, (x, y, by) in AGAINST.items():
            figures += _figure(kind, title, _against(values, x, y, by), x, y)
            figures += _figure(f"{kind}_interval", title, _by_interval(values, x, y, by), x, y)
    return figures


def _figure(kind: str, title: str, points: DataFrame, x: str, y: str) -> Iterator[Figure]:
    """Yield the plot of points, unless they are the oracle's alone."""
    if points.empty or set(points.line) <= {"oracle"}:
        return
    lines = points.groupby("line", sort=False)
    described = [f"{line}: {', '.join(rows.described)}" for line, rows in lines]
    is_on_one_scale = kind.removesuffix("_interval") in ("use", "share", "normed")
    plot = draw_lines({"": points}, x, y, styles={"oracle": (INK, "*")}, diagonal=is_on_one_scale)
    yield Figure(file_name(kind, title), f"Lines of {y} over {x}: {'; '.join(described)}.", plot)


def _boxes(title: str, values: DataFrame) -> Iterator[Figure]:
    """Yield the distribution of EE-D/k over queries, by α, unless only the oracle was run."""
    rows: dict[str, dict[str, list[float]]] = {}
    for row in published.boxes_of(values).itertuples():
        box = [getattr(row, name) for name in published.QUANTILES]
        rows.setdefault(str(row.retriever), {})[str(row.policy)] = box
    if not rows:
        return
    described = []
    for retriever, by_policy in rows.items():
        medians = [f"{policy} {box[2]:.3f}" for policy, box in by_policy.items()]
        described.append(f"{retriever}: {', '.join(medians)}")
    alt = f"Boxes of EE-D/k by policy; medians: {'; '.join(described)}."
    plot = draw_boxes(rows, "policy", Name.EE_D_K)
    yield Figure(file_name("boxes", title), alt, plot)


def _by_interval(values: DataFrame, x: Name, y: Name, by: str) -> DataFrame:
    """Return the points of one measure against another, by intervals of x."""
    points = published.gathered(values, by, x, y)
    return points.assign(
        line=points[by].astype(str),
        described=[f"({point.x:.3f}, {point.y:.3f})" for point in points.itertuples()],
    )


def _by_policy(values: DataFrame) -> DataFrame:
    """Return the points of disparity by α."""
    retrieved = values[values.kind != "oracle"]
    means = summaries.means_of(retrieved, BY_POLICY, [Name.EE_D]).dropna(subset="mean")
    return means.assign(
        line=means.retriever.astype(str),
        x=means.policy.cat.remove_unused_categories().cat.codes.astype(float),
        y=means["mean"],
        tick=means.policy,
        described=[f"{row.policy} {row.mean:.3f}" for row in means.itertuples()],
    )


def _against(values: DataFrame, x: Name, y: Name, by: str) -> DataFrame:
    """Return the points of one measure against another, over the queries that have both."""
    import pandas as pd

    names = values[by].astype(str).where(values.kind != "oracle", "oracle")
    categories = [*filter(None, values[by].cat.categories), "oracle"]
    order = pd.CategoricalDtype(categories, ordered=True)
    lines = values.assign(line=names.astype(order))
    points = summaries.points_of(lines, ["line", "policy"], x, y).astype({"line": str})
    short = {"deterministic": "fixed", "oracle": ""}
    points["label"] = [short.get(policy, policy.removeprefix("α = ")) for policy in points.policy]
    points["described"] = [
        f"{point.label} ({point.x:.3f}, {point.y:.3f})".strip() for point in points.itertuples()
    ]
    return points
