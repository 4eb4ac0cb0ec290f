"""The reports of probes and tunings: what their templates show, and their figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from fairqr.evaluation.experiments.folder import file_name
from fairqr.evaluation.probes import measures
from fairqr.evaluation.probes.collection import CELLS, GROUP_KINDS, CollectionEntry
from fairqr.evaluation.probes.specification import INITIAL
from fairqr.evaluation.reports import plots, text
from fairqr.evaluation.reports.writer import Figure

if TYPE_CHECKING:
    from pandas import DataFrame

KINDS = {
    "relevant": "relevant pairs",
    "irrelevant": "irrelevant pairs",
    "both": "both kinds together",
    "relevance": "relevance pairs",
}


def values_of(measured: measures.MeasuredProbe) -> dict[str, Any]:
    """Return the values that the template shows."""
    part: Any = _lists if isinstance(measured, measures.MeasuredListwise) else _pairs
    return {
        "parts": [part(measured, entry) for entry in measured.manifest.collections],
        "cells": CELLS,
        "kinds": KINDS,
        "mean": mean_cell,
        "share": share_cell,
        "ratio": ratio_cell,
    }


def figures_of(measured: measures.MeasuredProbe) -> list[Figure]:
    """Draw the figures of a report."""
    drawn: list[Any] = [_places if isinstance(measured, measures.MeasuredListwise) else _wins]
    if isinstance(measured, measures.MeasuredLora):
        drawn.append(_ratios)
    return [draw(measured, entry) for entry in measured.manifest.collections for draw in drawn]


def _of(found: DataFrame, entry: CollectionEntry) -> DataFrame:
    """Return the rows of a collection."""
    return found[found.collection == entry.name]


def mean_cell(row: Any, *, signed: bool = False) -> text.Markdown:
    """Return a mean with its interval and over how many queries it is."""
    number = text.difference(row.difference) if signed else text.value(row.mean)
    return text.cell(number, text.span([row.low, row.high]), f"n={row.n}")


def share_cell(row: Any, name: str) -> text.Markdown:
    """Return a share with its interval over queries, and how many of how many it is."""
    value, count, of = (getattr(row, f"{name}{end}") for end in ("", "_count", "_of"))
    ends = [getattr(row, f"{name}_{end}") for end in ("low", "high")]
    return text.cell(text.percent(value), text.percent_span(ends), f"{int(count):,} of {int(of):,}")


def ratio_cell(row: Any) -> text.Markdown:
    """Return the ratio of wins with its interval, and the wins."""
    ratio = "–" if row.ratio is None or row.ratio != row.ratio else f"{row.ratio:.3f}"
    wins = f"{row.protected_count:,} to {row.unprotected_count:,}"
    return text.cell(text.Markdown(ratio), text.span([row.ratio_low, row.ratio_high]), wins)


def _pairs(measured: measures.MeasuredPairwise, entry: CollectionEntry) -> dict[str, Any]:
    """Return what the template shows of the pairs of one collection."""
    figures = _of(measured.figures, entry)
    names = {"figure": "groups", "ratios": "ratios"}
    part: dict[str, Any] = {key: file_name(name, entry.name) for key, name in names.items()}
    part["entry"] = entry
    part |= {"rows": list(figures.itertuples()), "tests": int(figures.p_holm.notna().sum())}
    if isinstance(measured, measures.MeasuredLora):
        changes = list(_of(measured.changes, entry).itertuples())
        by_kind = {(row.kind, row.measure): row for row in changes}
        part |= {"changes": by_kind, "tests": changes[0].tests}
    return part


def _lists(measured: measures.MeasuredListwise, entry: CollectionEntry) -> dict[str, Any]:
    """Return what the template shows of the lists of one collection."""
    rows, tests = list(_rows(measured, entry)), _of(measured.tests, entry)
    tests = tests.assign(
        name=[measures.ranker_name(row.ranker, row.window) for row in tests.itertuples()]
    )
    references = _of(measured.lists, entry).drop_duplicates("query").ratio_of_relevance.dropna()
    return {
        "entry": entry,
        "figure": file_name("groups", entry.name),
        "rows": rows,
        "gains": list(tests[tests.test == "relevance"].itertuples()),
        "between": list(tests[tests.test == "personas"].itertuples()),
        "tests": int(tests.p.notna().sum()),
        "references": references,
    }


def _rows(measured: measures.MeasuredListwise, entry: CollectionEntry) -> Iterator[dict[str, Any]]:
    """Yield a row for each ranker and persona: means, the test of its exposure difference, sums."""
    tests = measured.tests[measured.tests.test == "exposure_difference"]
    words = dict(zip(("protected", "unprotected"), entry.sides.words, strict=True))
    for key, lists in _of(measured.lists, entry).groupby(measures.KEYS, sort=False):
        _, ranker, window, persona = key
        means, differences = (
            it[(it[measures.KEYS] == key).all(axis=1)] for it in (measured.means, tests)
        )
        word = words.get(persona)
        yield {
            "ranker": ranker,
            "window": window,
            "name": measures.ranker_name(ranker, window),
            "persona": "any" if ranker == INITIAL else f"{persona}: {word}" if word else persona,
            "means": {row.measure: row for row in means.itertuples()},
            "exposure_difference": next(differences.itertuples(), None),
            "lists": lists,
            "failures": sum(map(Counter, lists.failures), Counter[str]()),
            "repairs": sum(map(Counter, lists.repairs), Counter[str]()),
            "warnings": Counter(lists.warnings.explode().dropna()),
            "places": lists.places.explode().dropna().astype(float),
        }


def _places(measured: measures.MeasuredListwise, entry: CollectionEntry) -> Figure:
    """Return histograms of where the protected items stand."""
    rows = list(_rows(measured, entry))
    personas = list(dict.fromkeys(row["persona"] for row in rows if row["persona"] != "any")) or [
        "any"
    ]
    drawn: dict[str, dict[str, Any]] = {}
    for row in rows:
        own = drawn.setdefault(row["name"], {persona: [] for persona in personas})
        own[personas[0] if row["persona"] == "any" else row["persona"]] = row["places"]
    alt = "Histograms of the places of protected items; the table below has their quantiles."
    return Figure(file_name("groups", entry.name), alt, plots.draw_histograms(drawn))


def _wins(measured: measures.MeasuredPairwise, entry: CollectionEntry) -> Figure:
    """Return a figure of which group wins pairs, by kind of pairs and model or time."""
    figures = _of(measured.figures, entry)
    colours = {"protected item wins": plots.BLUE, "unprotected item wins": plots.VERMILION}
    bars = []
    for row in figures[figures.kind.isin(GROUP_KINDS)].itertuples():
        title = f"{row.when if 'when' in figures else row.model}, {KINDS[row.kind]}"
        for side in ("protected", "unprotected"):
            ends = (getattr(row, f"{side}{end}") for end in ("", "_low", "_high"))
            value, low, high = (np.nan if it is None else it for it in ends)
            bars.append(plots.Bar(title, (value, low, high), f"{side} item wins", {}))
            title = ""
    alt = "Shares of pairs that either item wins in both orders; the table below has them."
    plot = plots.draw_bars({"": bars}, colours, "share of pairs")
    return Figure(file_name("groups", entry.name), alt, plot)


def _ratios(measured: measures.MeasuredLora, entry: CollectionEntry) -> Figure:
    """Return a figure of the ratio of wins by kind of pairs, before and after a tuning."""
    figures = _of(measured.figures, entry)
    colours = {"before": plots.VERMILION, "after": plots.BLUE}
    bars = []
    for row in figures[figures.kind.isin(GROUP_KINDS)].itertuples():
        ends = (row.ratio, row.ratio_low, row.ratio_high)
        value, low, high = (np.nan if it is None else it for it in ends)
        title = KINDS[row.kind] if row.when == "before" else ""
        bars.append(plots.Bar(title, (value, low, high), row.when, {"as often": 1.0}))
    alt = "Ratios of wins before and after tuning; the table below has them."
    label = "wins of the protected item / wins of the other"
    plot = plots.draw_bars({"": bars}, colours, label, in_percent=False)
    return Figure(file_name("ratios", entry.name), alt, plot)
