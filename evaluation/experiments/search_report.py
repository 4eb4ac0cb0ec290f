"""The report of an experiment with searches: what its template shows, and its figures."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fairqr.evaluation.estimates import means_by
from fairqr.evaluation.experiments.by_round import agreement, targets_apart
from fairqr.evaluation.experiments.folder import file_name
from fairqr.evaluation.experiments.measuring import PLACE, MeasuredSearches
from fairqr.evaluation.measures.measure import Measure
from fairqr.evaluation.reports import text
from fairqr.evaluation.reports.plots import draw_lines
from fairqr.evaluation.reports.writer import Figure
from fairqr.graph.search.context import METHODS
from fairqr.retrieval.fairness.target import DEFAULT_TARGET

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURES = ("trade_off", "exposure", "divergence", "curve")
MOST_WARNINGS = 20
_NUMBERS = re.compile(r"(?<!\w)[0-9]+(?:[.,][0-9]+)*(?!\w)")


def values_of(measured: MeasuredSearches) -> dict[str, Any]:
    """Return what the template shows; its tables are DataFrames of texts."""
    import pandas as pd

    searches = measured.searches
    warnings = searches.warnings.explode().dropna()
    errors = searches.error[searches.error != ""]
    sentences = pd.concat([warnings, errors]).str.replace(_NUMBERS, "#", regex=True)
    return {
        "parts": [_part(measured, place) for place in _places(measured)],
        "ended": _ended(searches),
        "warnings": sentences.value_counts()[:MOST_WARNINGS],
        "target": measured.spec.target or DEFAULT_TARGET,
        "methods": METHODS,
    }


def _places(measured: MeasuredSearches) -> list[tuple[str, str]]:
    return list(dict.fromkeys(key[:2] for key in measured.evaluations))


def _at(frame: DataFrame, place: tuple[str, str]) -> DataFrame:
    """Return the rows of a place, and the columns that have a value there."""
    rows = frame[(frame.attribute == place[0]) & (frame.queries == place[1])]
    columns = [name for name in rows if " of " not in name or rows[name].notna().any()]
    return rows[columns].drop(columns=PLACE)


def _part(measured: MeasuredSearches, place: tuple[str, str]) -> dict[str, Any]:
    """Return what the template shows of one attribute and form of query."""
    experiment = measured.manifest.experiment
    means = _at(measured.means, place)
    differences = _at(measured.differences, place)
    pairs = _at(measured.pairs, place)
    searches = _at(measured.searches, place)
    rounds = _at(measured.rounds, place)
    headers = {str(measure): header_of(measure) for measure in measured.measures}
    of_baseline = means[means.system == experiment.baseline]
    base = of_baseline.set_index("measure")["mean"]
    refining = searches[searches.system.isin(rounds.system)]
    used = refining.groupby("system", sort=False).rounds.describe()
    used = used[["count", "mean", "75%", "max"]].map("{:.4g}".format)
    answered = searches[searches.error == ""].groupby("system", sort=False)
    costs = answered[["model_calls", "tokens", "milliseconds"]].agg(_spread)
    has_curve = "curve" in experiment.report
    has_targets = "targets" in experiment.report

    def mean_of(row: Any) -> str:
        notes = (text.span([row.low, row.high]), f"n={row.topics}")
        return text.cell(text.value(row.mean), *notes, best=row.best)

    def difference_of(row: Any) -> str:
        change = text.percent(row.difference / base[row.measure], signed=True)
        p = text.Markdown(f"p {text.p_value(row.randomisation_corrected)}, n={row.count}")
        notes = (change, text.span([row.low, row.high]), p)
        return text.cell(text.difference(row.difference), *notes, best=row.holds)

    return {
        "title": ", queries: ".join(place),
        "best": means[means.best & (means.measure == str(measured.main))],
        "differences": differences,
        "notes": _notes(measured, place),
        "means_table": _wide(means, mean_of, headers),
        "differences_table": _wide(differences, difference_of, headers),
        "pairs": pairs,
        "pairs_table": _pairs_table(pairs, headers),
        "curve": _curve_table(measured, place) if has_curve else None,
        "agreement": _agreement_table(measured, place) if has_targets else None,
        "targets": _targets_table(measured, place) if has_targets else None,
        "used": _named(used, "searches", "mean rounds", "75th percentile", "maximum"),
        "drift": _at(measured.drift, place),
        "costs": _named(costs, "model calls", "tokens", "milliseconds"),
        "figure": {kind: file_name(kind, *place) for kind in FIGURES},
    }


def _notes(measured: MeasuredSearches, place: tuple[str, str]) -> list[str]:
    """Return what else a reader of the measures of a place has to know."""
    sentences: dict[str, None] = {}
    for key, evaluation in measured.evaluations.items():
        if key[:2] == place:
            notes = [note.sentence for note in evaluation.notes if note.kind != "ties"]
            sentences |= dict.fromkeys(notes)
    return list(sentences)


def header_of(measure: Measure) -> str:
    """Return the head of a column: the measure, and the unit if its text does not say it."""
    # A convention sets the unit; without one it is nats by default.
    is_in_nats = any(part.values.get("unit") == "nats" for part in measure.parts)
    return f"{measure}, nats" if is_in_nats else str(measure)


def _pairs_table(pairs: DataFrame, headers: Mapping[str, str]) -> DataFrame:
    """Return a row for each pair of systems, with their difference by measure."""

    def difference_of(row: Any) -> str:
        p = text.Markdown(f"p {text.p_value(row.randomisation_corrected)}, n={row.count}")
        notes = (text.span([row.low, row.high]), p)
        return text.cell(text.difference(row.difference), *notes, best=row.holds)

    named = pairs.assign(system=pairs.system + " − " + pairs.baseline)
    return _wide(named, difference_of, headers)


def _curve_table(measured: MeasuredSearches, place: tuple[str, str]) -> DataFrame:
    """Return a row for each system and round, with the mean of each measure."""
    rounds = _at(measured.judged_rounds, place)
    keys = ["system", "round", "measure"]
    means = means_by(rounds.set_index(keys).value, "topics").reset_index()
    headers = {str(measure): header_of(measure) for measure in measured.measures}

    def mean_of(row: Any) -> str:
        notes = (text.span([row.low, row.high]), f"n={row.topics}")
        return text.cell(text.value(row.mean), *notes)

    cells = means.assign(cell=[mean_of(row) for row in means.itertuples()])
    cells["measure"] = cells.measure.map(headers)
    shape = {"index": ["system", "round"], "columns": "measure", "values": "cell"}
    return cells.pivot_table(**shape, aggfunc="first", sort=False).reset_index()


def _agreement_table(measured: MeasuredSearches, place: tuple[str, str]) -> DataFrame:
    """Return for each system whether a lower divergence meant more of the judged fairness."""
    import pandas as pd

    fairness = str(measured.fairness)
    rows = []
    judged_rounds = _at(measured.judged_rounds, place)
    for system, rounds in judged_rounds.groupby("system", sort=False):
        agreed = agreement(rounds, fairness)
        if agreed is not None:
            r = text.cell(text.value(agreed["r"]), text.span([agreed["low"], agreed["high"]]))
            rose = f"{agreed['rose']} of {agreed['fell']}"
            rows.append((system, agreed["topics"], r, rose))
    heads = ["system", "topics", "correlation", f"{fairness} rose where KL fell"]
    return pd.DataFrame(rows, columns=heads)


def _targets_table(measured: MeasuredSearches, place: tuple[str, str]) -> DataFrame:
    """Return the target that searches of the baseline estimate beside the judged one."""
    attribute, form = place
    records = measured.records.get((attribute, form, measured.manifest.experiment.baseline), ())
    table = targets_apart(records, measured.judged[attribute])

    def apart_of(row: Any) -> str:
        return text.cell(text.value(row.apart), text.span([row.low, row.high]))

    table["mean difference"] = [apart_of(row) for row in table.itertuples()]
    table["estimated"] = table.estimated.map(text.value)
    table["judged"] = table.judged.map(text.value)
    return table[["group", "estimated", "judged", "mean difference", "topics"]]


def _spread(amount: Any) -> str:
    return text.amounts([amount.mean(), amount.median(), amount.quantile(0.95)])


def _named(table: DataFrame, *columns: str) -> DataFrame:
    return table.set_axis([*columns], axis="columns").reset_index()


def _wide(rows: DataFrame, cell_of: Callable[[Any], str], headers: Mapping[str, str]) -> DataFrame:
    """Return a row for each system, with its cells by measure, under these headers."""
    keys = {"index": "system", "columns": "measure", "values": "cell"}
    cells = rows.assign(cell=[cell_of(row) for row in rows.itertuples()])
    cells["measure"] = cells.measure.map(headers)
    return cells.pivot_table(**keys, aggfunc="first", sort=False).reset_index()


def _ended(searches: DataFrame) -> DataFrame:
    """Return for each system and place how many searches failed, and why they ended."""
    ended = searches.stop_reason.str.replace("_", " ").where(searches.error == "", "failed")
    keys: Any = {"index": ["system", *PLACE], "columns": "ended", "aggfunc": "size"}
    return searches.assign(ended=ended).pivot_table(**keys, fill_value=0, sort=False).reset_index()


def figures_of(measured: MeasuredSearches) -> list[Figure]:
    """Draw the figures of the sections that the experiment asks for."""
    sections = set(measured.manifest.experiment.report)
    figures: list[Figure] = []
    for place in _places(measured):
        rounds = _at(measured.rounds, place)
        if "trade_off" in sections:
            figures += _trade_off(measured, place)
        if "rounds" in sections:
            exposures = rounds.filter(like="exposure of ")
            by_group = {name.removeprefix("exposure of "): name for name in exposures}
            figures += _by_round(rounds, place, "exposure", "share of exposure", by_group)
            label = "divergence (nats)"
            figures += _by_round(rounds, place, "divergence", label, {"mean": "divergence"})
        if "curve" in sections:
            figures += _curve(measured, place)
    return figures


def _trade_off(measured: MeasuredSearches, place: tuple[str, str]) -> Iterator[Figure]:
    """Yield the plot of relevance and fairness, a point for each system."""
    x = measured.relevance
    y = measured.fairness
    if x is None or y is None:
        return
    means = _at(measured.means, place).set_index("system").rename(columns={"mean": ""})
    columns = ["", "low", "high"]
    of_x = means[means.measure == str(x)][columns].add_prefix("x_")
    of_y = means[means.measure == str(y)][columns].add_prefix("y_")
    points = of_x.join(of_y)
    points = points.rename(columns=lambda name: name.rstrip("_")).dropna(subset=["x", "y"])
    if points.empty:
        return
    points["number"] = [str(number) for number in range(1, len(points) + 1)]
    points["line"] = points.number + "  " + points.index
    points["label"] = points.groupby(["x", "y"]).number.transform(", ".join)
    is_up = y.kind.higher_is_better is not False
    drawing = draw_lines({"": points}, str(x), str(y), y_up=is_up)
    alt = f"{x} against {y}, a point for each system; the table of results has their values."
    yield Figure(file_name("trade_off", *place), alt, drawing)


def _curve(measured: MeasuredSearches, place: tuple[str, str]) -> Iterator[Figure]:
    """Yield the plot of relevance and fairness by round, over all topics."""
    values = _at(measured.judged_rounds, place)
    measures = (measured.relevance, measured.fairness)
    names = [str(measure) for measure in measures if measure is not None]
    drawn = values[values.measure.isin(names)]
    if drawn.empty:
        return
    keys = ["system", "round", "topic"]
    rounds = drawn.pivot_table(values="value", index=keys, columns="measure", sort=False)
    columns = {name: name for name in names}
    yield from _by_round(rounds.reset_index(), place, "curve", "value", columns)


def _by_round(
    rounds: DataFrame, place: tuple[str, str], kind: str, label: str, columns: Mapping[str, str]
) -> Iterator[Figure]:
    """Yield the plot of values by round, with a panel for each system and a line for each column.

    Args:
        rounds: The rounds of the place.
        place: The attribute and the form of query.
        kind: The name of the figure.
        label: The label of the vertical axis.
        columns: The columns of values, by the names of their lines.
    """
    import pandas as pd

    if rounds.empty or not columns:
        return
    # All panels have the same rounds, though some systems stop earlier.
    numbers = range(rounds["round"].max() + 1)
    index = pd.MultiIndex.from_product([rounds.system.unique(), numbers], names=["system", "x"])
    lines = []
    for name, column in columns.items():
        line = rounds.groupby(["system", "round"])[column].agg(["mean", "count"])
        line = line.reindex(index).reset_index()
        topics = line["count"].map("{:.0f}".format, na_action="ignore").fillna("")
        line = line.assign(line=name, y=line["mean"], tick=line.x.astype(str) + "\n" + topics)
        target = f"target of {name}"
        if target in rounds:
            line["target"] = line.system.map(rounds.groupby("system")[target].mean())
        lines.append(line)
    by_system = pd.concat(lines).groupby("system", sort=False)
    panels = {str(system): of_system for system, of_system in by_system}
    drawing = draw_lines(panels, "round, and below it the number of topics", label)
    alt = f"{label} by round, one panel for each system: {', '.join(panels)}."
    yield Figure(file_name(kind, *place), alt, drawing)
