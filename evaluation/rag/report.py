"""The report of a Fair RAG experiment: what its template shows, and its figures."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fairqr.evaluation.experiments.folder import file_name
from fairqr.evaluation.rag.comparing import (
    EDGES,
    curves_of,
    differences_of,
    intervals_of,
    points_of,
)
from fairqr.evaluation.rag.measures import OF_ANSWERS, OF_RANKINGS, OF_USE, Name
from fairqr.evaluation.rag.measuring import (
    OF_GROUPS,
    MeasuredRag,
    counts_of,
    group_shares,
    means_of,
)
from fairqr.evaluation.rag.store import CollectionEntry
from fairqr.evaluation.reports.plots import INK, draw_lines
from fairqr.evaluation.reports.text import cell, counted, difference, p_value, span, value
from fairqr.evaluation.reports.writer import Figure
from fairqr.evaluation.scores import Reason

if TYPE_CHECKING:
    from pandas import DataFrame

MOST_REASONS = 20
SAME = 1e-9
"""Means that differ by less differ by rounding."""

BY_POLICY = ["retriever", "policy"]
BY_GENERATOR = ["generator", *BY_POLICY]
INTERVALS = {
    "bounds": (Name.EE_D, Name.EU_MAX),
    "fair-rag": (Name.EE_D_K, Name.EU_MAX_FAIR_RAG),
}
"""Disparity and utility of the five-interval tables, by how they are normalised."""

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

DIAGONAL = ("use", "share")


def values_of(measured: MeasuredRag) -> dict[str, Any]:
    """Return the values that the template shows."""
    manifest, values = measured.manifest, measured.values
    drawn = values[values.drawn > 0].groupby("collection", observed=True)["query"].nunique()
    failures = Counter(filter(None, values.failure))
    costs = counts_of(values, ["collection", "generator", "policy"])
    return {
        "title": manifest.experiment.title,
        "about": manifest.experiment.about,
        "manifest": manifest,
        "experiment": manifest.experiment,
        "titles": {entry.name: entry.title for entry in manifest.collections},
        "asked": {entry.name: drawn.get(entry.name, 0) for entry in manifest.collections},
        "parts": [_part(measured, entry) for entry in _measured_entries(measured)],
        "intervals": {name: _intervals(measured, *both) for name, both in INTERVALS.items()},
        "has_use": bool(values[Name.EAR].notna().any()),
        "labels": measured.labels,
        "missing": [*manifest.notes, *measured.warnings, *_unfinished(measured)],
        "failures": failures.most_common(MOST_REASONS),
        "other_failures": max(0, len(failures) - MOST_REASONS),
        "costs": costs,
    }


def _measured_entries(measured: MeasuredRag) -> list[CollectionEntry]:
    names = set(measured.values.collection)
    return [entry for entry in measured.manifest.collections if entry.name in names]


def _part(measured: MeasuredRag, entry: CollectionEntry) -> dict[str, Any]:
    """Return the values that the template shows of one collection."""
    values = measured.values[measured.values.collection == entry.name]
    official = measured.official[measured.official.collection == entry.name]
    groups = measured.groups[measured.groups.collection == entry.name]
    group_measures = measured.group_measures
    differences = differences_of(values)
    return {
        "entry": entry,
        "title": entry.title,
        "falls": list(_falls(values, differences)),
        "wasted": list(_wasted(values)),
        "figures": {name: file_name(name, entry.title) for name in ("disparity", *AGAINST)},
        "axes": {name: axes for name, (*axes, _) in AGAINST.items()},
        "rankings": _means(values, BY_POLICY, OF_RANKINGS),
        "differences": differences,
        "curves": curves_of(values),
        "answers": _means(values, BY_GENERATOR, OF_ANSWERS),
        "official": _official(official),
        "use": _means(values, BY_GENERATOR, OF_USE),
        "constant": _constant(values),
        "undefined": _undefined(measured.reasons.loc[values.index]),
        "groups": [
            {
                "title": f"{entry.title}, {name}",
                "shares": _shares(groups[groups.attribute == name]),
                "measures": _means(
                    group_measures[
                        (group_measures.collection == entry.name)
                        & (group_measures.attribute == name)
                    ],
                    BY_GENERATOR,
                    OF_GROUPS,
                ),
            }
            for name in groups.attribute.unique()
        ],
        "counts": counts_of(values, BY_GENERATOR),
    }


def _falls(values: DataFrame, differences: DataFrame) -> Iterator[dict[str, Any]]:
    """Yield for each retriever how disparity changes with α, from the largest α down."""
    random = values[values.kind == "plackett-luce"]
    means = means_of(random, BY_POLICY, [Name.EE_D]).dropna(subset="mean")
    for retriever, own in means.groupby("retriever", observed=True):
        tests = differences[differences.retriever == retriever]
        rising = own["mean"].tolist()
        if len(rising) > 1:
            yield {
                "retriever": retriever,
                "means": list(zip(own.policy, rising, strict=True))[::-1],
                "falls": rising[-1] > rising[0],
                "always": all(low < high for low, high in itertools.pairwise(rising)),
                "tests": len(tests),
                "holding": int(tests.holds.sum()),
                "too_few": bool(tests.too_few.all()),
            }


def _wasted(values: DataFrame) -> Iterator[dict[str, Any]]:
    """Yield for each retriever how much exposure goes to documents that are not useful."""
    means = means_of(values, BY_POLICY, [Name.NOT_USEFUL]).dropna(subset="mean")
    least = means[means.policy == "oracle"]["mean"].max()
    for retriever, own in means[means.policy != "oracle"].groupby("retriever", observed=True):
        shares = list(zip(own.policy, own["mean"], strict=True))
        yield {"retriever": retriever, "shares": shares, "least": least}


def _means(values: DataFrame, keys: Sequence[str], names: Sequence[str]) -> DataFrame:
    """Return a row of means for each policy, as texts."""
    found = means_of(values, keys, names)
    found["cell"] = [
        cell(value(row.mean), span([row.low, row.high]), f"n={row.queries}")
        for row in found.itertuples()
    ]
    return _wide(found, keys, "measure", list(names))


def _wide(found: DataFrame, keys: Sequence[str], column: str, order: Sequence[Any]) -> DataFrame:
    """Return a row for each combination of keys, with its cells by column."""
    wide = found.pivot(index=list(keys), columns=column, values="cell")[list(order)].reset_index()
    wide.columns.name = None
    # The oracle has no retriever.
    return wide.astype({"retriever": str}).replace({"retriever": {"": "none"}})


def _shares(groups: DataFrame) -> DataFrame:
    """Return the share of exposure of each group, and beside it its other shares."""
    found = group_shares(groups)
    found["cell"] = [
        cell(
            value(row.exposure),
            f"target {value(row.target)}, of useful {value(row.useful_exposure)}, "
            f"of use {value(row.attributed)}, rate {value(row.rate)}",
        )
        for row in found.itertuples()
    ]
    wide = _wide(found, BY_GENERATOR, "group", groups.group.unique())
    over = found.drop_duplicates(BY_GENERATOR)
    wide["queries"] = [
        cell(row.queries, f"of useful {row.useful_queries}, of use {row.used_queries}")
        for row in over.itertuples()
    ]
    return wide


def _official(found: DataFrame) -> DataFrame:
    """Return LaMP's own measures, as texts."""
    own = found.drop(columns="collection").dropna(axis=1, how="all")
    keys = ["generator", "retriever"]
    names = [name for name in own if name not in (*keys, "answers", "failed")]
    own[names] = own[names].map(value)
    return own[[*keys, *names, "answers", "failed"]] if len(own) else own


def _intervals(measured: MeasuredRag, disparity: Name, utility: Name) -> DataFrame:
    found = intervals_of(measured.values, disparity, utility)
    if found.empty:
        return found
    found["cell"] = [
        cell(
            f"{difference(row.difference)}{'*' if row.holds else ''}",
            p_value(row.p, name="p") if row.pairs else "",
            f"n={row.pairs} / {row.queries}",
        )
        for row in found.itertuples()
    ]
    found["deterministic"] = [
        cell(value(row.deterministic), f"n={row.deterministic_queries}")
        for row in found.itertuples()
    ]
    found = found.rename(columns={"fixed": "all the same", "left_out": "without a value"})
    first = ["collection", "generator", "retriever", "deterministic"]
    last = ["all the same", "without a value"]
    places = range(len(EDGES) - 1)
    wide = _wide(found, [*first, *last], "interval", places)[[*first, *places, *last]]
    titles = {entry.name: entry.title for entry in measured.manifest.collections}
    headings = {place: f"{disparity} [{EDGES[place]:g}, {EDGES[place + 1]:g})" for place in places}
    return wide.assign(collection=[titles[name] for name in wide.collection]).rename(
        columns=headings
    )


def _constant(values: DataFrame) -> list[tuple[str, float]]:
    """Return the generators whose attribution rate is the same for every policy, and that rate."""
    rates = means_of(values, BY_GENERATOR, [Name.EAR]).dropna(subset="mean")
    found = rates.groupby("generator", observed=True)["mean"].agg(["min", "max", "size"])
    return [
        (str(row.Index), row.min)
        for row in found.itertuples()
        if row.size > 1 and row.max - row.min <= SAME
    ]


def _undefined(reasons: DataFrame) -> dict[str, str]:
    """Say for each measure how many values are missing, and why; empty if none is."""
    described = {}
    for name, found in reasons.items():
        listed = "; ".join(
            f"{count:,} × {Reason(reason).sentence}"
            for reason, count in found.value_counts().sort_index().items()
        )
        pairs = counted(len(found), "pair")
        described[str(name)] = listed and (
            f"of {pairs} of a policy and a query, {name} has no value for: {listed}"
        )
    return described


def _unfinished(measured: MeasuredRag) -> Iterator[str]:
    """Yield what a run that was interrupted has still to do."""
    experiment = measured.manifest.experiment
    policies = len(experiment.retrievers) * (1 + len(experiment.alphas)) + 1
    each = policies * len(experiment.seeds)
    keys = ["collection", "generator"]
    done = measured.values.groupby(keys, observed=True).size()
    labels = measured.labels.set_index(keys)[["labelled", "kept"]]
    for entry in measured.manifest.collections:
        for generator in experiment.generators:
            key = (entry.name, generator)
            labelled, kept = labels.loc[key] if key in labels.index else (0, 0)
            unlabelled = max(0, len(entry.queries) - labelled)
            missing = max(0, kept * each - done.get(key, 0))
            if unlabelled or missing:
                yield (
                    f"{entry.title}, {generator}: not finished: "
                    f"{counted(unlabelled, 'query', 'queries')} without labels, and "
                    f"{counted(missing, 'policy on a query', 'policies on queries')} still to be "
                    "done; running the experiment again goes on with them. Until then means of "
                    "policies may be over different queries."
                )


def figures_of(measured: MeasuredRag) -> list[Figure]:
    """Draw the figures of each collection."""
    drawn: list[Figure] = []
    for entry in _measured_entries(measured):
        values = measured.values[measured.values.collection == entry.name]
        drawn += _disparity(entry.title, values[values.kind != "oracle"])
        for name in AGAINST:
            drawn += _against(name, entry.title, values)
    return drawn


def _disparity(title: str, values: DataFrame) -> Iterator[Figure]:
    """Yield the plot of disparity by α."""
    means = means_of(values, BY_POLICY, [Name.EE_D]).dropna(subset="mean")
    policies = list(means.policy.cat.remove_unused_categories().cat.categories)
    points = means.rename(columns={"retriever": "line", "mean": "y"}).astype({"line": str})
    points["x"] = [float(policies.index(policy)) for policy in points.policy]
    if points.empty:
        return
    described = "; ".join(
        f"{line}: " + ", ".join(f"{row.policy} {row.y:.3f}" for row in own.itertuples())
        for line, own in points.groupby("line", sort=False)
    )
    yield Figure(
        file_name("disparity", title),
        f"Lines of EE-D by policy: {described}.",
        draw_lines({"": points.assign(tick=points.policy)}, "policy", "EE-D, normalised"),
    )


def _against(name: str, title: str, values: DataFrame) -> Iterator[Figure]:
    """Yield the plot of one measure against another, means over the queries that have both."""
    import pandas as pd

    x, y, by = AGAINST[name]
    names = values[by].astype(str).where(values.kind != "oracle", "oracle")
    order = [*filter(None, values[by].cat.categories), "oracle"]
    lines = values.assign(line=pd.Categorical(names, order, ordered=True))
    points = points_of(lines, ["line", "policy"], x, y).astype({"line": str})
    if points.empty or set(points.line) == {"oracle"}:
        return
    points["label"] = [
        {"deterministic": "fixed", "oracle": ""}.get(policy, policy.removeprefix("α = "))
        for policy in points.policy
    ]
    described = "; ".join(
        f"{line}: "
        + ", ".join(f"{row.label} ({row.x:.3f}, {row.y:.3f})".strip() for row in own.itertuples())
        for line, own in points.groupby("line", sort=False)
    )
    yield Figure(
        file_name(name, title),
        f"Lines of {y} over {x}: {described}.",
        draw_lines({"": points}, x, y, styles={"oracle": (INK, "*")}, diagonal=name in DIAGONAL),
    )
