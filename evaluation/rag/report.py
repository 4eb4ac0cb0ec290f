"""The report of a Fair RAG experiment: what its template shows, and its figures."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairqr.evaluation.experiments.folder import file_name
from fairqr.evaluation.rag.analysis.comparing import (
    EDGES,
    Curve,
    compare_policies,
    curve_of,
    excess_tests,
    interval_table,
)
from fairqr.evaluation.rag.analysis.frames import (
    Mean,
    MeasuredRag,
    by_query,
    mean_of,
    undefined,
    values_as_csv,
)
from fairqr.evaluation.rag.analysis.names import ABOUT, Name
from fairqr.evaluation.rag.store import CollectionEntry, RagStore
from fairqr.evaluation.reports.drawing import can_draw
from fairqr.evaluation.reports.series import Point, Series, draw_series
from fairqr.evaluation.reports.tables import cell, frame
from fairqr.evaluation.reports.text import counted, difference, p_value, span, value
from fairqr.evaluation.reports.writer import Figure, write_report
from fairqr.retrieval.schema import UNKNOWN

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["figures_of", "values_of", "write_rag_report"]

MOST_REASONS = 20
SAME = 1e-9
"""Means that differ by less differ by rounding."""

OF_RANKINGS = (
    Name.EE_D,
    Name.EE_D_K,
    Name.EE_D_UNBIASED,
    Name.EE_R,
    Name.EE_R_FAIR_RAG,
    Name.EE_L,
    Name.NOT_USEFUL,
)
OF_ANSWERS = (Name.EU, Name.EU_MAX, Name.EU_MAX_RETRIEVER, Name.EU_MAX_FAIR_RAG)
OF_USE = (
    Name.EAR,
    Name.EE_D_K_ANSWERED,
    Name.EAE_D_K,
    Name.SHARE,
    Name.SHARE_EXCESS,
    Name.USED_NOT_USEFUL,
)
OF_GROUPS = ("EE-D by group", "EE-R by group", "EE-L by group", "EAE-D by group")
BY_POLICY = ["retriever", "policy"]
BY_GENERATOR = ["generator", *BY_POLICY]


def write_rag_report(store: RagStore, measured: MeasuredRag) -> list[Path]:
    """Write the report and ``measures.csv`` into the folder of the run, and return the files.

    Raises:
        InputError: matplotlib is not installed; the reports are then written without plots.
    """
    values = store.write("measures.csv", values_as_csv(measured))
    written = write_report(store.folder, "fair_rag", values_of(measured), figures_of(measured))
    return [*written[:2], values, *written[2:]]


def values_of(measured: MeasuredRag) -> dict[str, Any]:
    """Return what the template shows; its tables are DataFrames of texts."""
    import pandas as pd

    manifest = measured.manifest
    cells = measured.cells
    asked = cells[cells.drawn > 0].groupby("collection", observed=True)["query"].nunique()
    failures = Counter(text for text in cells.failure if text)
    return {
        "title": manifest.experiment.title,
        "about": manifest.experiment.about,
        "manifest": manifest,
        "asked": {entry.name: asked.get(entry.name, 0) for entry in manifest.collections},
        "parts": [_part(measured, entry) for entry in _measured_entries(measured)],
        "intervals": [
            (how, str(utility), str(disparity), _intervals(measured, disparity, utility))
            for how, disparity, utility in (
                ("by what can be reached", Name.EE_D, Name.EU_MAX),
                ("as “Towards Fair RAG” normalises", Name.EE_D_K, Name.EU_MAX_FAIR_RAG),
            )
        ],
        "has_use": bool(cells[str(Name.EAR)].notna().any()),
        "groups": list(_groups(measured)),
        "labels": _labels(measured),
        "missing": [
            *manifest.notes,
            *measured.warnings,
            *_unfinished(measured),
            *(
                f"{entry.title}: left out of the collection: {_listed(entry.left_out)}."
                for entry in manifest.collections
                if entry.left_out
            ),
        ],
        "failures": failures.most_common(MOST_REASONS),
        "other_failures": max(0, len(failures) - MOST_REASONS),
        "costs": _costs(measured),
        "facts": pd.DataFrame(_facts(measured).items(), columns=["", "value"]),
        "measures": pd.DataFrame(
            [(str(name), about.formula, about.range, about.best) for name, about in ABOUT.items()],
            columns=["measure", "what it is", "range", "which end is good"],
        ),
    }


def _measured_entries(measured: MeasuredRag) -> list[CollectionEntry]:
    names = set(measured.cells.collection)
    return [entry for entry in measured.manifest.collections if entry.name in names]


def _title(measured: MeasuredRag, collection: str) -> str:
    titles = {entry.name: entry.title for entry in measured.manifest.collections}
    return titles[collection]


def _part(measured: MeasuredRag, entry: CollectionEntry) -> dict[str, Any]:
    """Return what the template shows of one collection."""
    cells = measured.cells[measured.cells.collection == entry.name]
    reasons = measured.reasons.loc[cells.index]
    excess = excess_tests(cells)
    return {
        "entry": entry,
        "title": entry.title,
        "falls": list(_falls(cells)),
        "wasted": list(_wasted(cells)),
        "concentrated": excess[excess.holds & (excess.excess > 0)],
        "figures": {name: _name(name, entry.title) for name in FIGURES},
        "rankings": _means(cells, OF_RANKINGS, BY_POLICY),
        "differences": _policy_differences(cells),
        "curves": _curves(cells),
        "answers": _means(cells, OF_ANSWERS, BY_GENERATOR),
        "official": _official(measured, entry.name),
        "use": _means(cells, OF_USE, BY_GENERATOR, excess),
        "constant": list(_constant(cells)),
        "undefined": {name: _undefined(reasons, name) for name in Name},
        "counts": _counts(cells),
    }


def _falls(cells: DataFrame) -> Iterator[dict[str, Any]]:
    """Yield for each retriever how disparity changes with α, from the largest α down."""
    random = cells[cells.kind == "plackett-luce"]
    for retriever, mine in random.groupby("retriever", observed=True):
        means = {
            policy: by_query(found, Name.EE_D).mean()
            for policy, found in mine.groupby("policy", observed=True)
        }
        known = {policy: mean for policy, mean in means.items() if mean == mean}
        rising = list(known.values())
        if len(known) > 1:
            yield {
                "retriever": retriever,
                "means": list(reversed(known.items())),
                "falls": rising[-1] > rising[0],
                "always": all(low < high for low, high in itertools.pairwise(rising)),
            }


def _wasted(cells: DataFrame) -> Iterator[dict[str, Any]]:
    """Yield for each retriever how much exposure goes to documents that are not useful."""
    least = mean_of(cells[cells.kind == "oracle"], Name.NOT_USEFUL)
    for retriever, mine in cells[cells.retriever != ""].groupby("retriever", observed=True):
        shares = [
            (policy, mean.mean)
            for policy, found in mine.groupby("policy", observed=True)
            if (mean := mean_of(found, Name.NOT_USEFUL)).queries
        ]
        if shares:
            yield {
                "retriever": retriever,
                "shares": shares,
                "least": least.mean if least.queries else None,
            }


def _row(keys: Sequence[str], key: Sequence[object]) -> dict[str, object]:
    """Return the first columns of a row; the oracle has no retriever."""
    return {name: found or "none" for name, found in zip(keys, key, strict=True)}


def _mean_cell(mean: Mean, *notes: object, signed: bool = False) -> str:
    text = difference(mean.mean) if signed else value(mean.mean)
    return cell(text, span([mean.low, mean.high]), *notes, f"n={mean.queries}")


def _means(
    cells: DataFrame,
    names: Sequence[Name],
    keys: Sequence[str],
    excess: DataFrame | None = None,
) -> DataFrame:
    """Return a row of means for each policy."""
    tested = (
        {}
        if excess is None
        else dict(
            zip(zip(*(excess[name] for name in keys), strict=True), excess.p_corrected, strict=True)
        )
    )
    rows = []
    for key, found in cells.groupby(list(keys), observed=True):
        row: dict[str, object] = _row(keys, key)
        for name in names:
            p = tested.get(key, np.nan) if name is Name.SHARE_EXCESS else np.nan
            notes = [p_value(p, name="p")] if p == p else []
            signed = name is Name.SHARE_EXCESS
            row[str(name)] = _mean_cell(mean_of(found, name), *notes, signed=signed)
        rows.append(row)
    return frame(keys, rows)


def _policy_differences(cells: DataFrame) -> DataFrame:
    rows = [
        {
            "retriever": row.retriever,
            "difference between": f"{row.other} less {row.one}",
            "EE-D": difference(row.difference),
            "queries": row.queries,
            "p": p_value(row.p_corrected),
            "holds": "yes" if row.holds else "no",
        }
        for row in compare_policies(cells, Name.EE_D).itertuples()
    ]
    return frame(["retriever"], rows)


def _curves(cells: DataFrame) -> DataFrame:
    rows = []
    for retriever, mine in cells[cells.retriever != ""].groupby("retriever", observed=True):
        for convention, x, y in (
            ("bounds", Name.EE_D, Name.EE_R),
            ("fair-rag", Name.EE_D_K, Name.EE_R_FAIR_RAG),
        ):
            points = [
                (point.x, point.y)
                for _, found in mine.groupby("policy", observed=True)
                if (point := _point(found, x, y))
            ]
            rows.append(
                {
                    "retriever": retriever,
                    "normalisation": convention,
                    **_curve_cells(curve_of(points)),
                }
            )
    return frame(["retriever"], rows)


def _curve_cells(curve: Curve | None) -> dict[str, str]:
    known = curve or Curve(None, None, np.nan, np.nan, 0)
    return {
        "slope": difference(known.slope),
        "area": value(known.area),
        "mean height": value(known.height),
        "range of EE-D": f"{value(known.low)} to {value(known.high)}" if curve else "–",
        "policies": str(known.points),
    }


def _official(measured: MeasuredRag, collection: str) -> DataFrame:
    """Return the measures that LaMP's own evaluation gives, where it has any."""
    rows = [
        {
            "generator": generator,
            "retriever": retriever,
            **{name: value(score) for name, score in found.values.items()},
            "answers": found.answers,
            "failed": found.failed,
        }
        for (own, generator, retriever), found in measured.official.items()
        if own == collection
    ]
    return frame(["generator"], rows)


def _intervals(measured: MeasuredRag, disparity: Name, utility: Name) -> DataFrame:
    found, outside = interval_table(measured.cells, disparity, utility)
    keys = ["collection", "generator", "retriever"]
    headings = [f"{disparity} [{low:g}, {high:g})" for low, high in itertools.pairwise(EDGES)]
    rows = []
    for own, mine in zip(
        outside.itertuples(), (f for _, f in found.groupby(keys, sort=False)), strict=True
    ):
        cells = [
            cell(
                f"{difference(row.difference)}{'*' if row.holds else ''}",
                p_value(row.p_corrected, name="p") if row.pairs else "",
                f"n={row.pairs} / {row.queries}",
            )
            for row in mine.itertuples()
        ]
        rows.append(
            {
                "collection": _title(measured, own.collection),
                "generator": own.generator,
                "retriever": own.retriever,
                "deterministic": cell(value(own.deterministic), f"n={own.queries}"),
                **dict(zip(headings, cells, strict=True)),
                "all the same": own.fixed,
                "without a value": own.left_out,
            }
        )
    return frame(["collection"], rows)


def _constant(cells: DataFrame) -> Iterator[tuple[str, float]]:
    """Yield the generators whose attribution rate is the same for every policy, and that rate."""
    for generator, mine in cells.groupby("generator", observed=True):
        means = [
            mean.mean
            for _, found in mine.groupby(BY_POLICY, observed=True)
            if (mean := mean_of(found, Name.EAR)).queries
        ]
        if len(means) > 1 and max(means) - min(means) <= SAME:
            yield str(generator), means[0]


def _undefined(reasons: DataFrame, name: Name) -> str:
    """Say how many values of a measure are missing, and why; empty if none is."""
    found = undefined(reasons, name)
    if not found:
        return ""
    told = "; ".join(f"{count:,} × {reason.sentence}" for reason, count in found.items())
    number = counted(len(reasons), "pair")
    return f"of {number} of a policy and a query, {name} has no value for: {told}"


def _groups(measured: MeasuredRag) -> Iterator[dict[str, Any]]:
    """Yield what each attribute of each collection got."""
    for collection, schema in measured.schemas.items():
        own = measured.groups[measured.groups.collection == collection]
        measures = measured.group_measures
        for attribute in schema.attributes.values():
            found = _in_order(measured, own[own.attribute == attribute.name])
            if not found.empty:
                mine = measures[
                    (measures.collection == collection) & (measures.attribute == attribute.name)
                ]
                yield {
                    "title": f"{_title(measured, collection)}, {attribute.name}",
                    "shares": _shares(found, [*attribute.groups, UNKNOWN]),
                    "measures": _group_means(_in_order(measured, mine)),
                }


def _in_order(measured: MeasuredRag, found: DataFrame) -> DataFrame:
    """Return the rows with the categories of the cells, so that tables have one order."""
    kinds = {name: measured.cells[name].dtype for name in BY_GENERATOR}
    return found.astype(kinds)


def _shares(found: DataFrame, groups: Sequence[str]) -> DataFrame:
    """Return the share of exposure of each group, and beside it its other shares."""
    rows = []
    for key, mine in found.groupby(BY_GENERATOR, observed=True):
        shares = {
            name: _mean_shares(mine, name)
            for name in ("exposure", "target", "useful_exposure", "attributed")
        }
        rates = mine.groupby(["query", "group"])["rate"].mean().groupby("group").mean()
        row = _row(BY_GENERATOR, key)
        for group in groups:
            notes = ", ".join(
                f"{label} {value(share)}"
                for label, share in (
                    ("target", shares["target"][0].get(group)),
                    ("of useful", shares["useful_exposure"][0].get(group)),
                    ("of use", shares["attributed"][0].get(group)),
                    ("rate", rates.get(group)),
                )
            )
            row[group] = cell(value(shares["exposure"][0].get(group)), notes)
        over = f"of useful {shares['useful_exposure'][1]}, of use {shares['attributed'][1]}"
        row["queries"] = cell(str(mine["query"].nunique()), over)
        rows.append(row)
    return frame(BY_GENERATOR, rows)


def _mean_shares(found: DataFrame, name: str) -> tuple[Mapping[str, float], int]:
    """Return the mean share of each group over queries, and over how many; seeds come first."""
    sums = found.groupby(["query", "group"])[name].mean().unstack()
    totals = sums.sum(axis=1)
    shares = sums[totals > 0].div(totals[totals > 0], axis=0)
    return shares.mean().to_dict(), len(shares)


def _group_means(found: DataFrame) -> DataFrame:
    rows = [
        {
            **_row(BY_GENERATOR, key),
            **{name: _mean_cell(mean_of(mine, name)) for name in OF_GROUPS},
        }
        for key, mine in found.groupby(BY_GENERATOR, observed=True)
    ]
    return frame(BY_GENERATOR, rows)


def _labels(measured: MeasuredRag) -> DataFrame:
    """Return what the labels of utility are like."""
    rows = []
    for (collection, generator), found in measured.labels.items():
        failed: Counter[str] = Counter()
        for label in measured.label_records[collection, generator]:
            failed.update(label.failures)
        mean = "–" if found.useful_mean is None else f"{found.useful_mean:.2f}"
        sd = "" if found.useful_sd is None else f"sd {found.useful_sd:.2f}"
        rows.append(
            {
                "collection": _title(measured, collection),
                "generator": generator,
                "queries": found.labelled,
                "kept": found.kept,
                "dropped": _listed(found.dropped),
                "documents": f"{found.documents:,}",
                "useful, mean per query": cell(mean, sd, f"{found.useful:,} in all"),
                "share useful": value(found.share),
                "without a label": cell(found.unlabelled, _listed(failed) if failed else ""),
            }
        )
    return frame(["collection"], rows)


def _listed(counts: Mapping[str, int]) -> str:
    told = (f"{count} × {name}" for name, count in sorted(counts.items()))
    return "; ".join(told) or "none"


def _unfinished(measured: MeasuredRag) -> Iterator[str]:
    """Yield what a run that was interrupted has still to do."""
    experiment = measured.manifest.experiment
    policies = len(experiment.retrievers) * (1 + len(experiment.alphas)) + 1
    each = policies * len(experiment.seeds)
    done = measured.cells.groupby(["collection", "generator"], observed=True).size()
    for entry in measured.manifest.collections:
        for generator in experiment.generators:
            labels = measured.labels.get((entry.name, generator))
            labelled, kept = (labels.labelled, labels.kept) if labels else (0, 0)
            unlabelled = max(0, len(entry.queries) - labelled)
            missing = max(0, kept * each - done.get((entry.name, generator), 0))
            if unlabelled or missing:
                yield (
                    f"{entry.title}, {generator}: not finished: "
                    f"{counted(unlabelled, 'query', 'queries')} without labels, and "
                    f"{counted(missing, 'policy on a query', 'policies on queries')} still to be "
                    "done; running the experiment again goes on with them. Until then means of "
                    "policies may be over different queries."
                )


def _counts(cells: DataFrame) -> DataFrame:
    """Return over how many things the numbers of each policy are."""
    rows = []
    for key, found in cells.groupby(BY_GENERATOR, observed=True):
        failed: Counter[str] = Counter()
        for counts in found.failed:
            failed.update(counts)
        rows.append(
            {
                **_row(BY_GENERATOR, key),
                "queries and seeds": f"{len(found):,}",
                "nothing drawn": f"{(found.drawn == 0).sum():,}",
                "rankings drawn": f"{found.drawn.sum():,}",
                "generated from": f"{found.generated.sum():,}",
                "distinct": f"{found.distinct.sum():,}",
                "failed": cell(f"{failed.total():,}", _listed(failed) if failed else ""),
                "empty answers": f"{found.empty_answers.sum():,}",
                "pairs to judge": f"{found.pairs.sum():,}",
                "without a verdict": f"{found.unjudged.sum():,}",
            }
        )
    return frame(BY_GENERATOR, rows)


def _costs(measured: MeasuredRag) -> DataFrame:
    """Return what labels and answers cost in all."""
    names = ("model_calls", "tokens", "milliseconds")
    rows = [
        (
            collection,
            generator,
            "labels",
            *(sum(getattr(label, name) for label in labels) for name in names),
        )
        for (collection, generator), labels in measured.label_records.items()
    ]
    keys = ["collection", "generator", "policy"]
    rows += [
        (*key, *(found[name].sum() for name in names))
        for key, found in measured.cells.groupby(keys, observed=True)
    ]
    return frame(
        ["collection"],
        [
            {
                "collection": _title(measured, collection),
                "generator": generator,
                "for": policy,
                "model calls": f"{calls:,}",
                "tokens": f"{tokens:,}",
                "seconds": f"{milliseconds / 1000:,.1f}",
            }
            for collection, generator, policy, calls, tokens, milliseconds in rows
        ],
    )


def _facts(measured: MeasuredRag) -> dict[str, str]:
    manifest = measured.manifest
    experiment = manifest.experiment
    answered = experiment.samples if experiment.generated is None else experiment.generated
    facts = {
        "documents that a generator reads (k)": f"{experiment.k}",
        "rankings drawn from each policy (N)": f"{experiment.samples}",
        "answered of these": "all" if answered == experiment.samples else f"the first {answered}",
        "seeds": ", ".join(map(str, experiment.seeds)),
        "α": ", ".join(f"{alpha:g}" for alpha in experiment.alphas),
        "Plackett–Luce over": f"{experiment.form}, scores min-max normalised to [1, 2]",
        "retrievers": ", ".join(experiment.retrievers),
        "generators": ", ".join(experiment.generators),
        "attributor": manifest.attributor or "none",
        "hypothesis": "the answer as it is"
        if experiment.hypothesis == "raw"
        else "the sentence that the task makes of the answer",
        "documents of each query": "all of its pool"
        if experiment.pool is None
        else f"the first {experiment.pool} of its pool",
        "begun": manifest.started,
        "versions": ", ".join(f"{name} {v}" for name, v in manifest.versions.items()),
    }
    for entry in manifest.collections:
        facts[f"{entry.name}: prompt {entry.prompt}"] = f"sha256 {entry.prompt_sha256}"
        facts[f"{entry.name}: sha256 of its files"] = entry.fingerprint
        facts[f"{entry.name}: task, utility"] = f"{entry.task}, {entry.utility}"
        facts[f"{entry.name}: documents"] = f"{entry.documents:,} in all pools"
        facts[f"{entry.name}: hypothesis"] = entry.hypothesis
    return facts


def _name(kind: str, title: str) -> str:
    return file_name(*kind.split(" | "), title)


BY_RETRIEVER = (
    "A line for each retriever over its α, written at the points, and its deterministic ranking "
    "(fixed); the mean over generators. The star is the oracle, which puts useful documents first "
    "in random order. Up and to the left is best."
)
BY_GENERATORS = (
    "A line for each generator, the mean over retrievers, over α, written at the points, and the "
    "deterministic rankings (fixed); the star is the oracle, the mean over generators."
)
BEST = " Up and to the {} is best."

AGAINST: tuple[tuple[str, Name, Name, str, str, bool], ...] = (
    ("relevance", Name.EE_D, Name.EE_R, "retriever", BY_RETRIEVER, False),
    ("utility_by_relevance", Name.EE_R, Name.EU_MAX, "generator",
     BY_GENERATORS + BEST.format("right"), False),
    ("utility_by_disparity", Name.EE_D, Name.EU_MAX, "generator",
     BY_GENERATORS + BEST.format("left"), False),
    ("rate_by_disparity", Name.EE_D, Name.EAR, "generator", BY_GENERATORS, False),
    ("rate_by_relevance", Name.EE_R, Name.EAR, "generator", BY_GENERATORS, False),
    ("use", Name.EE_D_K_ANSWERED, Name.EAE_D_K, "generator",
     BY_GENERATORS + " On the dotted line use is as uneven as exposure. No point is above it: "
     "where little is used, this measure is low.", True),
    ("share", Name.EE_D_K_ANSWERED, Name.SHARE, "generator",
     BY_GENERATORS + " Above the dotted line, what is used is more concentrated than what is "
     "shown. Below it nothing is said: use that is picked evenly, and not always, is below.",
     True),
)  # fmt: skip
"""The plots of one measure against another: name, x, y, what has a line, how to read it, y = x."""

FIGURES = ("disparity", *(row[0] for row in AGAINST))


def figures_of(measured: MeasuredRag) -> list[Figure]:
    """Draw the figures of each collection; none without matplotlib."""
    if not can_draw():
        return []
    drawn: list[Figure] = []
    for entry in _measured_entries(measured):
        cells = measured.cells[measured.cells.collection == entry.name]
        drawn += _disparity(entry.title, cells)
        for name, x, y, by, reading, diagonal in AGAINST:
            drawn += _against(name, entry.title, cells, x, y, by, reading, diagonal=diagonal)
    return drawn


def _disparity(title: str, cells: DataFrame) -> Iterator[Figure]:
    """Yield the plot of disparity by α."""
    own = cells[cells.kind != "oracle"]
    policies = [str(policy) for policy, _ in own.groupby("policy", observed=True)]
    lines = []
    for retriever, mine in own.groupby("retriever", observed=True):
        points = tuple(
            Point(float(policies.index(str(policy))), mean.mean)
            for policy, found in mine.groupby("policy", observed=True)
            if (mean := mean_of(found, Name.EE_D)).queries
        )
        if points:
            lines.append(Series(str(retriever), points))
    if not lines:
        return
    told = "; ".join(
        f"{line.name}: " + ", ".join(f"{policies[int(p.x)]} {p.y:.3f}" for p in line.points)
        for line in lines
    )
    yield Figure(
        _name("disparity", title),
        f"{title}: normalised EE-D by α, mean over queries. 0 is even exposure, 1 that of one "
        "fixed ranking; the larger α, the nearer the samples are to the deterministic ranking.",
        f"Lines of EE-D by policy: {told}.",
        draw_series(
            lines,
            "policy",
            "EE-D, normalised",
            ticks=[(float(place), policy) for place, policy in enumerate(policies)],
        ),
    )


def _against(
    name: str,
    title: str,
    cells: DataFrame,
    x: Name,
    y: Name,
    by: str,
    reading: str,
    *,
    diagonal: bool,
) -> Iterator[Figure]:
    """Yield the plot of one measure against another, means over the queries that have both."""
    lines = []
    for line, mine in cells[cells.kind != "oracle"].groupby(by, observed=True):
        points = tuple(
            point._replace(label=_label(str(policy)))
            for policy, found in mine.groupby("policy", observed=True)
            if (point := _point(found, x, y))
        )
        if points:
            lines.append(Series(str(line), points))
    oracle = _point(cells[cells.kind == "oracle"], x, y)
    if not lines:
        return
    if oracle:
        lines.append(Series("oracle", (oracle,), own=True))
    told = "; ".join(
        f"{line.name}: "
        + ", ".join(f"{p.label} ({p.x:.3f}, {p.y:.3f})".strip() for p in line.points)
        for line in lines
    )
    yield Figure(
        _name(name, title),
        f"{title}: {y} against {x}, means over the queries that have both. {reading}",
        f"Lines of {y} over {x}: {told}.",
        draw_series(lines, str(x), str(y), diagonal=diagonal),
    )


def _label(policy: str) -> str:
    return "fixed" if policy == "deterministic" else policy.removeprefix("α = ")


def _point(found: DataFrame, x: Name, y: Name) -> Point | None:
    """Return the means of two measures over the queries that have both."""
    across, upward = by_query(found, x), by_query(found, y)
    both = across.index.intersection(upward.index)
    return Point(across[both].mean(), upward[both].mean()) if len(both) else None
