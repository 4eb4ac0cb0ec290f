"""The reports of probes and tunings: what their templates show, and their figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fairqr.evaluation.experiments.folder import file_name
from fairqr.evaluation.probes.collection import CELLS, GROUP_KINDS, CollectionEntry
from fairqr.evaluation.probes.listwise import KEYS, MeasuredListwise, ranker_name
from fairqr.evaluation.probes.measured import MeasuredProbe
from fairqr.evaluation.probes.pairwise import MeasuredLora, MeasuredPairwise
from fairqr.evaluation.probes.specification import INITIAL
from fairqr.evaluation.reports import plots, text
from fairqr.evaluation.reports.writer import Figure

if TYPE_CHECKING:
    from pandas import DataFrame

ANY = "any"
"""The persona of the initial order, which is the same for all."""

KINDS = {
    "relevant": "relevant pairs",
    "irrelevant": "irrelevant pairs",
    "both": "both kinds together",
    "relevance": "relevance pairs",
}


def values_of(measured: MeasuredProbe) -> dict[str, Any]:
    """Return the values that the template shows."""
    part: Any = _lists if isinstance(measured, MeasuredListwise) else _pairs
    return {
        "parts": [part(measured, entry) for entry in measured.manifest.collections],
        "cells": CELLS,
        "kinds": KINDS,
        "mean": mean_cell,
        "share": share_cell,
        "ratio": ratio_cell,
    }


def figures_of(measured: MeasuredProbe) -> list[Figure]:
    """Draw the figures of a report."""
    figures = []
    for entry in measured.manifest.collections:
        if isinstance(measured, MeasuredListwise):
            figures.append(_places(measured, entry))
        if isinstance(measured, MeasuredPairwise):
            figures.append(_wins(measured, entry))
        if isinstance(measured, MeasuredLora):
            figures.append(_ratios(measured, entry))
    return figures


def _of(table: DataFrame, entry: CollectionEntry) -> DataFrame:
    """Return the rows of a collection."""
    return table[table.collection == entry.name]


def mean_cell(row: Any, *, signed: bool = False) -> text.Markdown:
    """Return a mean with its interval and over how many queries it is."""
    number = text.difference(row.difference) if signed else text.value(row.mean)
    return text.cell(number, text.span([row.low, row.high]), f"n={row.n}")


def share_cell(row: Any, name: str) -> text.Markdown:
    """Return a share with its interval over queries, and how many of how many it is."""
    value = getattr(row, name)
    count = int(getattr(row, f"{name}_count"))
    total = int(getattr(row, f"{name}_of"))
    ends = [getattr(row, f"{name}_low"), getattr(row, f"{name}_high")]
    return text.cell(text.percent(value), text.percent_span(ends), f"{count:,} of {total:,}")


def ratio_cell(row: Any) -> text.Markdown:
    """Return the ratio of wins with its interval, and the wins."""
    has_ratio = row.ratio is not None and not math.isnan(row.ratio)
    ratio = f"{row.ratio:.3f}" if has_ratio else text.NOTHING
    wins = f"{row.protected_count:,} to {row.unprotected_count:,}"
    return text.cell(text.Markdown(ratio), text.span([row.ratio_low, row.ratio_high]), wins)


def _pairs(measured: MeasuredPairwise, entry: CollectionEntry) -> dict[str, Any]:
    """Return what the template shows of the pairs of one collection."""
    figures = _of(measured.figures, entry)
    part: dict[str, Any] = {
        "entry": entry,
        "figure": file_name("groups", entry.name),
        "ratios": file_name("ratios", entry.name),
        "rows": list(figures.itertuples()),
        "tests": int(figures.p_holm.notna().sum()),
    }
    if isinstance(measured, MeasuredLora):
        changes = list(_of(measured.changes, entry).itertuples())
        part["changes"] = {(row.kind, row.measure): row for row in changes}
        part["tests"] = changes[0].tests
    return part


def _lists(measured: MeasuredListwise, entry: CollectionEntry) -> dict[str, Any]:
    """Return what the template shows of the lists of one collection."""
    tests = _of(measured.tests, entry)
    names = [ranker_name(row.ranker, row.window) for row in tests.itertuples()]
    tests = tests.assign(name=names)
    of_queries = _of(measured.lists, entry).drop_duplicates("query")
    return {
        "entry": entry,
        "figure": file_name("groups", entry.name),
        "rows": list(_rows(measured, entry)),
        "gains": list(tests[tests.test == "relevance"].itertuples()),
        "between": list(tests[tests.test == "personas"].itertuples()),
        "tests": int(tests.p.notna().sum()),
        "references": of_queries.ratio_of_relevance.dropna(),
    }


def _rows(measured: MeasuredListwise, entry: CollectionEntry) -> Iterator[dict[str, Any]]:
    """Yield a row for each ranker and persona: means, the test of its exposure difference, sums."""
    tests = measured.tests[measured.tests.test == "exposure_difference"]
    words = dict(zip(("protected", "unprotected"), entry.sides.words, strict=True))
    for key, lists in _of(measured.lists, entry).groupby(KEYS, sort=False):
        _, ranker, window, persona = key
        means = _with_key(measured.means, key)
        differences = _with_key(tests, key)
        word = words.get(persona)
        asker = f"{persona}: {word}" if word else persona
        if ranker == INITIAL:
            asker = ANY
        yield {
            "ranker": ranker,
            "window": window,
            "name": ranker_name(ranker, window),
            "persona": asker,
            "means": {row.measure: row for row in means.itertuples()},
            "exposure_difference": next(differences.itertuples(), None),
            "lists": lists,
            "failures": sum(map(Counter, lists.failures), Counter[str]()),
            "repairs": sum(map(Counter, lists.repairs), Counter[str]()),
            "warnings": Counter(lists.warnings.explode().dropna()),
            "places": lists.places.explode().dropna().astype(float),
        }


def _with_key(table: DataFrame, key: tuple[str, ...]) -> DataFrame:
    """Return the rows of a ranker and persona."""
    return table[(table[KEYS] == key).all(axis=1)]


def _places(measured: MeasuredListwise, entry: CollectionEntry) -> Figure:
    """Return histograms of where the protected items stand."""
    rows = list(_rows(measured, entry))
    known = dict.fromkeys(row["persona"] for row in rows if row["persona"] != ANY)
    personas = list(known) or [ANY]
    panels: dict[str, dict[str, Any]] = {}
    for row in rows:
        by_persona = panels.setdefault(row["name"], {persona: [] for persona in personas})
        persona = personas[0] if row["persona"] == ANY else row["persona"]
        by_persona[persona] = row["places"]
    alt = "Histograms of the places of protected items; the table below has their quantiles."
    return Figure(file_name("groups", entry.name), alt, plots.draw_histograms(panels))


def _wins(measured: MeasuredPairwise, entry: CollectionEntry) -> Figure:
    """Return a figure of which group wins pairs, by kind of pairs and model or time."""
    figures = _of(measured.figures, entry)
    colours = {"protected item wins": plots.BLUE, "unprotected item wins": plots.VERMILION}
    bars = []
    for row in figures[figures.kind.isin(GROUP_KINDS)].itertuples():
        label = row.when if isinstance(measured, MeasuredLora) else row.model
        title = f"{label}, {KINDS[row.kind]}"
        for side in ("protected", "unprotected"):
            low = getattr(row, f"{side}_low")
            high = getattr(row, f"{side}_high")
            dot = _dot(getattr(row, side), low, high)
            bars.append(plots.Bar(title, dot, f"{side} item wins", {}))
            title = ""
    alt = "Shares of pairs that either item wins in both orders; the table below has them."
    plot = plots.draw_bars({"": bars}, colours, "share of pairs")
    return Figure(file_name("groups", entry.name), alt, plot)


def _dot(value: float | None, low: float | None, high: float | None) -> tuple[float, float, float]:
    """Return a figure and the ends of its interval to be drawn; NaN where there is none."""
    value, low, high = (math.nan if number is None else number for number in (value, low, high))
    return value, low, high


def _ratios(measured: MeasuredLora, entry: CollectionEntry) -> Figure:
    """Return a figure of the ratio of wins by kind of pairs, before and after a tuning."""
    figures = _of(measured.figures, entry)
    colours = {"before": plots.VERMILION, "after": plots.BLUE}
    bars = []
    for row in figures[figures.kind.isin(GROUP_KINDS)].itertuples():
        title = KINDS[row.kind] if row.when == "before" else ""
        dot = _dot(row.ratio, row.ratio_low, row.ratio_high)
        bars.append(plots.Bar(title, dot, row.when, {"as often": 1.0}))
    alt = "Ratios of wins before and after tuning; the table below has them."
    label = "wins of the protected item / wins of the other"
    plot = plots.draw_bars({"": bars}, colours, label, in_percent=False)
    return Figure(file_name("ratios", entry.name), alt, plot)
