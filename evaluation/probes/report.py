"""The reports of probes and tunings: what their templates show, and their figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fairqr.evaluation.experiments.folder import file_name
from fairqr.evaluation.probes.collection import CELLS
from fairqr.evaluation.probes.listwise_measures import KEYS, MeasuredListwise, ranker_name
from fairqr.evaluation.probes.pairwise_measures import MeasuredPairwise
from fairqr.evaluation.probes.rankers import INITIAL
from fairqr.evaluation.probes.store import CollectionEntry, PromptEntry
from fairqr.evaluation.probes.tuning_measures import MeasuredLora
from fairqr.evaluation.reports import plots
from fairqr.evaluation.reports.text import (
    Markdown,
    cell,
    difference,
    frame,
    p_value,
    percent,
    span,
    value,
)
from fairqr.evaluation.reports.writer import Figure

if TYPE_CHECKING:
    from pandas import DataFrame

Found = MeasuredListwise | MeasuredPairwise | MeasuredLora

MOSTLY = 0.5
"""If more than this share of the questions failed, the order is rather the given one."""

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
PARTS = 10
"""The report gives the mean loss in this many parts of a training."""

AT_RANDOM = float(np.log(2))
"""The cross-entropy of two labels that are held for equally likely."""

ROWS_A_FIGURE = 8
KINDS = {
    "relevant": "relevant pairs",
    "irrelevant": "irrelevant pairs",
    "both": "both kinds together",
    "relevance": "relevance pairs",
}


def values_of(measured: Found) -> dict[str, Any]:
    """Return the values that the template shows."""
    manifest = measured.manifest
    values: dict[str, Any] = {
        "title": manifest.experiment.title,
        "about": manifest.experiment.about,
        "manifest": manifest,
        "experiment": manifest.experiment,
        "missing": measured.missing,
        "cells": CELLS,
        "kinds": KINDS,
        "share": share_cell,
        "ratio": ratio_cell,
        "verdict": verdict_cell,
        "failed": failed_cell,
        "interval": interval_cell,
        "mean": mean_cell,
        "counts": counts,
    }
    if isinstance(measured, MeasuredLora):
        own = measured.manifest
        return values | {
            "prompts": [PromptEntry(prompt=own.prompt, sha256=own.prompt_sha256, asked=())],
            "parts": [_tuning_part(measured, entry) for entry in manifest.collections],
            "consistent": _share_changes(measured.changes, ["consistent"]),
            "relevance": _share_changes(measured.changes, ["both_orders", "averaged"]),
            **_training(measured.losses),
        }
    values["prompts"] = measured.manifest.prompts
    if isinstance(measured, MeasuredPairwise):
        parts = [_pairwise_part(measured, entry) for entry in manifest.collections]
        return values | {"parts": parts, "by_reply": _read_by_reply(measured)}
    parts = [_listwise_part(measured, entry) for entry in manifest.collections]
    return values | {"parts": parts, "names": measured.names}


def figures_of(measured: Found) -> list[Figure]:
    """Draw the figures of a report."""
    if isinstance(measured, MeasuredListwise):
        return [figure for e in measured.manifest.collections for figure in _places(measured, e)]
    if isinstance(measured, MeasuredPairwise):
        figures = measured.figures.assign(label=measured.figures.model)
        return list(_wins("pairs", figures))
    figures = measured.figures.assign(label=measured.figures.when)
    return [*_wins("tuning", figures), *_losses(measured.losses)]


def mean_cell(row: Any, *, signed: bool = False) -> Markdown:
    """Return a mean with its interval and over how many queries it is."""
    number = row.difference if signed else row.mean
    text = difference(number) if signed else value(number)
    return cell(text, span([row.low, row.high]), f"n={row.n}")


def share_cell(row: Any, name: str) -> Markdown:
    """Return a share with its interval over queries, and how many of how many it is."""
    low, high = _ends(row, name)
    interval = Markdown(rf"\[{percent(low)}, {percent(high)}\]" if low == low else "")
    of = f"{int(getattr(row, f'{name}_count')):,} of {int(getattr(row, f'{name}_of')):,}"
    return cell(percent(getattr(row, name)), interval, of)


def ratio_cell(row: Any) -> Markdown:
    """Return the ratio of wins with its interval, and the wins."""
    wins = f"{row.protected_count:,} to {row.unprotected_count:,}"
    return cell(
        "–" if row.ratio is None or row.ratio != row.ratio else f"{row.ratio:.3f}",
        span(_ends(row, "ratio")),
        wins,
    )


def verdict_cell(row: Any) -> Markdown:
    """Return the kind of a verdict, with a lean that stands beside it."""
    beside = row.verdict == "position_decides" and row.lean in ("protected", "unprotected")
    return cell(row.verdict.replace("_", " "), f"the rest favours {row.lean}" if beside else "")


def failed_cell(row: Any) -> Markdown:
    """Return how many replies prefer neither item."""
    return cell(f"{row.failed:,}", percent(row.failed / row.replies) if row.replies else "")


def interval_cell(row: Any, name: str, text: Markdown, *notes: object) -> Markdown:
    """Return a number with its interval over queries; the columns start with the name."""
    return cell(text, span(_ends(row, name)), *notes)


def _ends(row: Any, name: str) -> tuple[float, float]:
    """Return the ends of an interval; NaN if there is none."""
    names = (f"{name}_low", f"{name}_high") if name else ("low", "high")
    low, high = (getattr(row, end, None) for end in names)
    return (np.nan, np.nan) if low is None or high is None else (low, high)


def counts(found: Mapping[str, int], names: Mapping[str, str] | None = None) -> str:
    """Write how often each thing happened, or ``none``."""
    described = (f"{count:,} × {(names or {}).get(kind, kind)}" for kind, count in found.items())
    return "; ".join(described) or "none"


def _listwise_part(measured: MeasuredListwise, entry: CollectionEntry) -> dict[str, Any]:
    """Return the values that the template shows of one collection."""
    rows = list(_rows(measured, entry))
    lists, tests = (
        found[found.collection == entry.name] for found in (measured.lists, measured.tests)
    )
    names = [ranker_name(row.ranker, row.window) for row in tests.itertuples()]
    tests = tests.assign(name=names)
    references = lists.drop_duplicates("query").ratio_of_relevance.dropna()
    windowed: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        if row["window"]:
            windowed.setdefault((row["ranker"], row["asker"]), {})[row["window"]] = row
    return {
        "entry": entry,
        "rows": rows,
        "given": next((row for row in rows if row["ranker"] == INITIAL), None),
        "leans": [row for row in rows if row["lean"] is not None],
        "gains": list(tests[tests.test == "relevance"].itertuples()),
        "between": list(tests[tests.test == "askers"].itertuples()),
        "tests": int(tests.p.notna().sum()),
        "failing": list(_failing(rows)),
        "references": references,
        "windowed": windowed,
        "figures": [_places_name(entry, piece) for piece in range(1, 1 + len(rows))],
    }


def _rows(measured: MeasuredListwise, entry: CollectionEntry) -> Iterator[dict[str, Any]]:
    """Yield a row for each ranker and asker; the initial order is the same for all, and comes once.

    It has the means by measure, the test of its lean, counts of events, and its cost.
    """
    means = measured.means.set_index(KEYS)
    leans = measured.tests[measured.tests.test == "lean"].set_index(KEYS)
    first = measured.manifest.rankings.askers[0]
    words = {"protected": entry.built.protected, "unprotected": entry.built.unprotected}
    own = measured.lists[measured.lists.collection == entry.name]
    events_of, places_of = (
        dict(iter(frame.groupby(KEYS, sort=False))) for frame in (measured.events, measured.places)
    )
    for key, found in own.groupby(KEYS, sort=False):
        _, ranker, window, asker = key
        if ranker == INITIAL and asker != first:
            continue
        events = events_of.get(key, measured.events[:0])
        places = places_of.get(key, measured.places[:0])
        happened = events.groupby(["event", "kind"])["count"].sum()
        word = words.get(asker)
        yield {
            "ranker": ranker,
            "window": window,
            "name": ranker_name(ranker, window),
            "asker": "any" if ranker == INITIAL else f"{asker}: {word}" if word else asker,
            "word": word or asker,
            "means": {row.measure: row for row in means.loc[[key]].itertuples()},
            "lean": next(leans.loc[[key]].itertuples()) if key in leans.index else None,
            **{
                f"{event}s": happened[event].to_dict() if event in happened else {}
                for event in ("failure", "repair", "warning")
            },
            "run": int((found.status != "not_run").sum()),
            "ranked": int((found.status == "ok").sum()),
            **{name: int(found[name].sum()) for name in ("asked", "model_calls", "tokens")},
            "places": places.place,
            "place_quantiles": [f"{q:.2f}" for q in places.place.quantile(QUANTILES).dropna()],
            "rank_quantiles": [f"{q:g}" for q in places["rank"].quantile(QUANTILES).dropna()],
            "top_share": found.top_share.mean(),
            "share": found.share.mean(),
        }


def _failing(
    rows: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[str, int, int, Mapping[str, int]]]:
    """Yield the rankers most of whose questions failed, with how many were asked and failed."""
    for name in dict.fromkeys(row["name"] for row in rows):
        own = [row for row in rows if row["name"] == name]
        failures = sum((Counter(row["failures"]) for row in own), Counter[str]())
        asked = sum(row["asked"] for row in own)
        if failures.total() > MOSTLY * asked:
            yield name, asked, failures.total(), failures


def _places_name(entry: CollectionEntry, piece: int) -> str:
    return file_name("ranks", entry.name, *([piece] if piece > 1 else []))


def _places(measured: MeasuredListwise, entry: CollectionEntry) -> Iterator[Figure]:
    """Yield histograms of where the protected items stand."""
    drawn: dict[str, dict[str, Any]] = {}
    rows = list(_rows(measured, entry))
    askers = dict.fromkeys(row["asker"] for row in rows if row["asker"] != "any") or ["any"]
    for row in rows:
        own = drawn.setdefault(row["name"], {asker: [] for asker in askers})
        own[next(iter(askers)) if row["asker"] == "any" else row["asker"]] = row["places"]
    pieces = [list(drawn)[at : at + ROWS_A_FIGURE] for at in range(0, len(drawn), ROWS_A_FIGURE)]
    for number, names in enumerate(pieces, start=1):
        described = "; ".join(
            f"{name}, {asker}: " + ", ".join(f"{share:.2f}" for share in plots.shares_of(places))
            for name in names
            for asker, places in drawn[name].items()
            if len(places)
        )
        yield Figure(
            _places_name(entry, number),
            f"Histograms of the places of protected items: {described}.",
            plots.draw_histograms({name: drawn[name] for name in names}),
        )


def _pairwise_part(measured: MeasuredPairwise, entry: CollectionEntry) -> dict[str, Any]:
    """Return the values that the template shows of one collection."""
    figures = measured.figures[measured.figures.collection == entry.name]
    tested = figures.p_holm.notna().sum()
    return {
        "entry": entry,
        "rows": list(figures.itertuples()),
        "tests": int(tested),
        "figure": file_name("pairs", entry.name),
    }


def _read_by_reply(measured: MeasuredPairwise) -> list[str]:
    """Return the models that gave no probabilities although they were asked for them."""
    if measured.manifest.pairs.by != "probabilities":
        return []
    sums = measured.figures.groupby("model", sort=False)[["votes_of", "log_odds_replies"]].sum()
    return [model for model, votes, weighed in sums.itertuples() if votes and not weighed]


def _wins(kind: str, figures: DataFrame) -> Iterator[Figure]:
    """Yield for each collection which group wins pairs, by kind of pairs and ``label``."""
    figures = figures[figures.kind.isin(["relevant", "irrelevant"])]
    for name, found in figures.groupby("collection", sort=False):
        rows = list(found.itertuples())
        if not any(row.pairs for row in rows):
            continue
        titles = [f"{row.label}, {KINDS[row.kind]}" for row in rows]
        described = "; ".join(
            f"{title}: protected {percent(row.protected)}, unprotected {percent(row.unprotected)}"
            for title, row in zip(titles, rows, strict=True)
        )
        colours = {"protected item wins": plots.BLUE, "unprotected item wins": plots.VERMILION}
        bars = [
            plots.Bar(
                title if side == "protected" else "",
                (np.nan if (share := getattr(row, side)) is None else share, *_ends(row, side)),
                f"{side} item wins",
                {},
            )
            for title, row in zip(titles, rows, strict=True)
            for side in ("protected", "unprotected")
        ]
        yield Figure(
            file_name(kind, name),
            f"Shares of pairs: {described}.",
            plots.draw_bars({"": bars}, colours, "share of pairs"),
        )


def _tuning_part(measured: MeasuredLora, entry: CollectionEntry) -> dict[str, Any]:
    """Return the values that the template shows of one collection."""
    figures, changes = (
        found[found.collection == entry.name] for found in (measured.figures, measured.changes)
    )
    splits = measured.manifest.splits
    return {
        "entry": entry,
        "split": next(split for split in splits if split.collection == entry.name),
        "rows": list(figures.itertuples()),
        "both": {row.when: row for row in figures.itertuples() if row.kind == "both"},
        "changes": {(row.kind, row.measure): row for row in changes.itertuples()},
        "tests": int(changes.tests.max()),
        "figure": file_name("tuning", entry.name),
    }


def _share_changes(changes: DataFrame, measures: Sequence[str]) -> DataFrame:
    """Return a table of shares before and after."""
    rows = [
        {
            "collection": row.collection,
            "pairs": KINDS[row.kind]
            if row.measure == "consistent"
            else row.measure.replace("_", " "),
            "before": share_cell(row, "before"),
            "after": share_cell(row, "after"),
            "after less before": interval_cell(row, "", difference(row.difference)),
            "p": p_value(row.p),
            "p by Holm": p_value(row.p_holm),
        }
        for row in changes[changes.measure.isin(measures)].itertuples()
    ]
    return frame(["collection"], rows)


def _training(losses: DataFrame) -> dict[str, Any]:
    """Return the values that the template shows of the training."""
    if losses.empty:
        return {"steps": 0}
    pieces = np.array_split(losses.loss.to_numpy(), min(PARTS, len(losses)))
    return {
        "steps": len(losses),
        "losses": [float(piece.mean()) for piece in pieces],
        "examples": int(losses.examples.sum()),
        "tokens": int(losses.tokens.sum()),
        "rates": [losses.learning_rate.iloc[0], losses.learning_rate.iloc[-1]],
    }


def _losses(losses: DataFrame) -> Iterator[Figure]:
    """Yield the loss by step."""
    import pandas as pd

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
    means = _training(losses)["losses"]
    yield Figure(
        "loss",
        f"The mean loss in {len(means)} parts of the training, in order: "
        f"{', '.join(map(value, means))}.",
        plots.draw_lines({"": points}, "step", "loss", styles=styles),
    )
