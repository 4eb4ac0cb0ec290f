"""The reports of probes and tunings: what their templates show, and their figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from fairqr.evaluation.experiments.folder import file_name
from fairqr.evaluation.probes.collection import CELLS, CollectionEntry
from fairqr.evaluation.probes.listwise_measures import KEYS, MeasuredListwise, ranker_name
from fairqr.evaluation.probes.pairwise_measures import MeasuredLora, MeasuredPairwise
from fairqr.evaluation.probes.specification import INITIAL
from fairqr.evaluation.reports import plots, text
from fairqr.evaluation.reports.text import Markdown, cell
from fairqr.evaluation.reports.writer import Figure

if TYPE_CHECKING:
    from pandas import DataFrame

MOSTLY = 0.5
"""If more than this share of the questions failed, the order is rather the given one."""

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
PARTS = 10
"""The report gives the mean loss in this many parts of a training."""

AT_RANDOM = float(np.log(2))
"""The cross-entropy of two labels that are held for equally likely."""

Found = MeasuredListwise | MeasuredPairwise | MeasuredLora

KINDS = {
    "relevant": "relevant pairs",
    "irrelevant": "irrelevant pairs",
    "both": "both kinds together",
    "relevance": "relevance pairs",
}


def values_of(measured: Found) -> dict[str, Any]:
    """Return the values that the template shows."""
    manifest, experiment = measured.manifest, measured.manifest.experiment
    values: dict[str, Any] = {
        "title": experiment.title,
        "about": experiment.about,
        "manifest": manifest,
        "experiment": experiment,
        "missing": measured.missing,
        "parts": [_part(measured, entry) for entry in manifest.collections],
        "cells": CELLS,
        "kinds": KINDS,
        **{it.__name__.removesuffix("_cell"): it for it in FUNCTIONS},
    }
    if isinstance(measured, MeasuredListwise):
        return values | {"names": measured.names}
    if isinstance(measured, MeasuredPairwise):
        return values | {"by_reply": _read_by_reply(measured)}
    losses = measured.losses
    return values | {"losses": losses, "mean_losses": _mean_losses(losses)}


def _part(measured: Found, entry: CollectionEntry) -> dict[str, Any]:
    """Return the values that the template shows of one collection."""
    if isinstance(measured, MeasuredListwise):
        return {"entry": entry, **_lists(measured, entry)}
    figures = measured.figures[measured.figures.collection == entry.name]
    part: dict[str, Any] = {"entry": entry, "rows": list(figures.itertuples())}
    part["figure"] = file_name(_WINS[type(measured)][0], entry.name)
    if isinstance(measured, MeasuredPairwise):
        return part | {"tests": int(figures.p_holm.notna().sum())}
    changes = measured.changes[measured.changes.collection == entry.name]
    return part | {
        "both": {row.when: row for row in part["rows"] if row.kind == "both"},
        "changes": {(row.kind, row.measure): row for row in changes.itertuples()},
        "tests": int(changes.tests.max()),
    }


def figures_of(measured: Found) -> list[Figure]:
    """Draw the figures of a report."""
    if isinstance(measured, MeasuredListwise):
        return [_places(measured, entry) for entry in measured.manifest.collections]
    return [*_wins(measured), *(_losses(measured) if isinstance(measured, MeasuredLora) else ())]


def mean_cell(row: Any, *, signed: bool = False) -> Markdown:
    """Return a mean with its interval and over how many queries it is."""
    number = text.difference(row.difference) if signed else text.value(row.mean)
    return cell(number, text.span([row.low, row.high]), f"n={row.n}")


def share_cell(row: Any, name: str) -> Markdown:
    """Return a share with its interval over queries, and how many of how many it is."""
    value, count, of = (getattr(row, f"{name}{end}") for end in ("", "_count", "_of"))
    return cell(
        text.percent(value), text.percent_span(_ends(row, name)), f"{int(count):,} of {int(of):,}"
    )


def ratio_cell(row: Any) -> Markdown:
    """Return the ratio of wins with its interval, and the wins."""
    ratio = "–" if row.ratio is None or row.ratio != row.ratio else f"{row.ratio:.3f}"
    wins = f"{row.protected_count:,} to {row.unprotected_count:,}"
    return interval_cell(row, "ratio", Markdown(ratio), wins)


def interval_cell(row: Any, name: str, number: Markdown, *notes: object) -> Markdown:
    """Return a number with its interval over queries; the columns start with the name."""
    return cell(number, text.span(_ends(row, name)), *notes)


def _ends(row: Any, name: str) -> list[float | None]:
    return [getattr(row, f"{name}_{end}".lstrip("_"), None) for end in ("low", "high")]


def counts(found: Mapping[str, int], names: Mapping[str, str] | None = None) -> str:
    """Write how often each thing happened, or ``none``."""
    described = (f"{count:,} × {(names or {}).get(kind, kind)}" for kind, count in found.items())
    return "; ".join(described) or "none"


FUNCTIONS = (mean_cell, share_cell, ratio_cell, interval_cell, counts)
"""What templates write cells by."""


def _lists(measured: MeasuredListwise, entry: CollectionEntry) -> dict[str, Any]:
    """Return the values that the template shows of one collection."""
    rows = list(_rows(measured, entry))
    lists = measured.lists[measured.lists.collection == entry.name]
    tests = measured.tests[measured.tests.collection == entry.name]
    tests = tests.assign(name=[ranker_name(row.ranker, row.window) for row in tests.itertuples()])
    windowed: dict[tuple[str, str], dict[str, Any]] = {}
    for row in (row for row in rows if row["window"]):
        windowed.setdefault((row["ranker"], row["asker"]), {})[row["window"]] = row
    failing = []
    for name, own in groupby(rows, lambda row: row["name"]):
        each = [(row["asked"], Counter(row["failures"])) for row in own]
        asked = sum(count for count, _ in each)
        failures = sum((failures for _, failures in each), Counter[str]())
        if failures.total() > MOSTLY * asked:
            failing.append((name, asked, failures.total(), failures))
    return {
        "rows": rows,
        "given": next((row for row in rows if row["ranker"] == INITIAL), None),
        "leans": [row for row in rows if row["lean"] is not None],
        "gains": list(tests[tests.test == "relevance"].itertuples()),
        "between": list(tests[tests.test == "askers"].itertuples()),
        "tests": int(tests.p.notna().sum()),
        "failing": failing,
        "references": lists.drop_duplicates("query").ratio_of_relevance.dropna(),
        "windowed": windowed,
        "figure": file_name("ranks", entry.name),
    }


def _rows(measured: MeasuredListwise, entry: CollectionEntry) -> Iterator[dict[str, Any]]:
    """Yield a row for each ranker and asker; the initial order is the same for all, and comes once.

    It has the means by measure, the test of its lean, counts of events, and its cost.
    """
    tests = measured.tests[measured.tests.test == "lean"]
    words = dict(zip(("protected", "unprotected"), entry.built.words, strict=True))
    once = measured.means_once[measured.means_once.collection == entry.name]
    for key, means in once.groupby(KEYS, sort=False):
        _, ranker, window, asker = key
        lists, events, places, leans = (
            found[(found[KEYS] == key).all(axis=1)]
            for found in (measured.lists, measured.events, measured.places, tests)
        )
        happened = events.groupby(["event", "kind"])["count"].sum()
        word = words.get(asker)
        yield {
            "ranker": ranker,
            "window": window,
            "name": ranker_name(ranker, window),
            "asker": "any" if ranker == INITIAL else f"{asker}: {word}" if word else asker,
            "word": word or asker,
            "means": {row.measure: row for row in means.itertuples()},
            "lean": next(leans.itertuples(), None),
            **{
                f"{event}s": happened[event].to_dict() if event in happened else {}
                for event in ("failure", "repair", "warning")
            },
            "run": int((lists.status != "not_run").sum()),
            "ranked": int((lists.status == "ok").sum()),
            **{name: int(lists[name].sum()) for name in ("asked", "model_calls", "tokens")},
            "places": places.place,
            "place_quantiles": [f"{q:.2f}" for q in places.place.quantile(QUANTILES).dropna()],
            "rank_quantiles": [f"{q:g}" for q in places["rank"].quantile(QUANTILES).dropna()],
            "top_share": lists.top_share.mean(),
            "share": lists.share.mean(),
        }


def _places(measured: MeasuredListwise, entry: CollectionEntry) -> Figure:
    """Return histograms of where the protected items stand."""
    rows = list(_rows(measured, entry))
    askers = list(dict.fromkeys(row["asker"] for row in rows if row["asker"] != "any")) or ["any"]
    drawn: dict[str, dict[str, Any]] = {}
    for row in rows:
        own = drawn.setdefault(row["name"], {asker: [] for asker in askers})
        own[askers[0] if row["asker"] == "any" else row["asker"]] = row["places"]
    described = "; ".join(
        f"{name}, {asker}: " + ", ".join(f"{share:.2f}" for share in plots.shares_of(places))
        for name, own in drawn.items()
        for asker, places in own.items()
        if len(places)
    )
    return Figure(
        file_name("ranks", entry.name),
        f"Histograms of the places of protected items: {described}.",
        plots.draw_histograms(drawn),
    )


def _read_by_reply(measured: MeasuredPairwise) -> list[str]:
    """Return the models that gave no probabilities although they were asked for them."""
    experiment: Any = measured.manifest.experiment
    sums = measured.figures.groupby("model", sort=False)[["votes_of", "log_odds_replies"]].sum()
    read = [model for model, votes, weighed in sums.itertuples() if votes and not weighed]
    return read if experiment.by == "probabilities" else []


_WINS = {MeasuredPairwise: ("pairs", "model"), MeasuredLora: ("tuning", "when")}
"""The names of the figures of who wins, and the column that tells their rows apart."""


def _wins(measured: MeasuredPairwise | MeasuredLora) -> Iterator[Figure]:
    """Yield for each collection which group wins pairs, by kind of pairs and model or time."""
    named, label = _WINS[type(measured)]
    figures = measured.figures[measured.figures.kind.isin(["relevant", "irrelevant"])]
    colours = {"protected item wins": plots.BLUE, "unprotected item wins": plots.VERMILION}
    for name, found in figures.groupby("collection", sort=False):
        bars, described = [], []
        for row in found.itertuples():
            title = f"{getattr(row, label)}, {KINDS[row.kind]}"
            shares = {side: getattr(row, side) for side in ("protected", "unprotected")}
            said = ", ".join(f"{side} {text.percent(share)}" for side, share in shares.items())
            described.append(f"{title}: {said}")
            for side, share in shares.items():
                value, low, high = (
                    np.nan if it is None else it for it in (share, *_ends(row, side))
                )
                bars.append(plots.Bar(title, (value, low, high), f"{side} item wins", {}))
                title = ""
        if found.pairs.any():
            alt = f"Shares of pairs: {'; '.join(described)}."
            drawn = plots.draw_bars({"": bars}, colours, "share of pairs")
            yield Figure(file_name(named, name), alt, drawn)


def _mean_losses(losses: DataFrame) -> list[float]:
    """Return the mean loss in each part of the training."""
    parts = min(PARTS, len(losses))
    pieces = np.array_split(losses.loss.to_numpy(), parts) if parts else []
    return [float(piece.mean()) for piece in pieces]


def _losses(measured: MeasuredLora) -> Iterator[Figure]:
    """Yield the loss by step."""
    import pandas as pd

    losses = measured.losses
    if losses.empty:
        return
    width = max(1, len(losses) // (2 * PARTS))
    smooth = losses.loss.rolling(2 * width + 1, center=True, min_periods=1).mean()
    series = {"of each step": losses.loss, "mean": smooth, "ln 2": AT_RANDOM}
    colours = (plots.GREY, plots.BLUE, plots.VERMILION)
    styles = {name: (colour, "") for name, colour in zip(series, colours, strict=True)}
    points = pd.concat(
        pd.DataFrame({"line": name, "x": losses.step, "y": y}) for name, y in series.items()
    )
    means = _mean_losses(losses)
    yield Figure(
        "loss",
        f"The mean loss in {len(means)} parts of the training, in order: "
        f"{', '.join(map(text.value, means))}.",
        plots.draw_lines({"": points}, "step", "loss", styles=styles),
    )
