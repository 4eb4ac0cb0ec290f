"""The report of an experiment with searches: what its template shows, and its figures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fairqr.evaluation.experiments.folder import file_name
from fairqr.evaluation.experiments.measuring import (
    PLACE,
    MeasuredSearches,
    Place,
    shared_topics,
)
from fairqr.evaluation.experiments.specification import Experiment, System
from fairqr.evaluation.measures.measure import parse_measures
from fairqr.evaluation.reports.plots import BLUE, INK, PURPLE, VERMILION, draw_lines
from fairqr.evaluation.reports.text import (
    Markdown,
    cell,
    counted,
    difference,
    frame,
    p_value,
    percent,
    span,
    value,
)
from fairqr.evaluation.reports.writer import Figure
from fairqr.graph.search.context import METHODS

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURES = ("trade_off", "exposure", "divergence", "drift")
STYLES = {"plain": (INK, "s"), "fair-qr": (VERMILION, "^"), "fairqr": (BLUE, "o")}
"""Colour and marker of methods in the trade-off; re-ranking alone has :data:`RERANKING`."""

RERANKING = (PURPLE, "D")
NEAR = 0.04
"""Points that differ by about this share of each axis have one label."""

MOST_GROUPS = 7
MOST_WARNINGS = 20
NOTED = ("unknown_relevant", "unknown_documents", "no_relevant", "missing_queries")
_NUMBERS = re.compile(r"(?<!\w)[0-9]+(?:[.,][0-9]+)*(?!\w)")


def values_of(measured: MeasuredSearches) -> dict[str, Any]:
    """Return what the template shows; its tables are DataFrames of texts."""
    import pandas as pd

    manifest, searches = measured.manifest, measured.searches
    experiment = manifest.experiment
    records = [it for each in measured.records.values() for own in each.values() for it in own]
    told = [text for it in records for text in (*it.warnings, *filter(None, [it.error]))]
    judged = (pair for of_topic in measured.qrels.values() for pair in of_topic.items())
    relevant = [document for document, grade in judged if grade > 0]
    described = [
        _described(experiment, system, len(manifest.topics)) for system in experiment.all_systems()
    ]
    at_once = sorted(searches.at_once[searches.error == ""].unique())
    return {
        "title": experiment.title,
        "about": experiment.about,
        "manifest": manifest,
        "experiment": experiment,
        "parts": [_part(measured, place) for place in measured.records],
        "at_once": " or ".join(map(str, at_once)),
        "missing": [*manifest.notes, *_unfinished(measured), *_on_judgements(measured)],
        "ended": {_title(key): own for key, own in searches.groupby(PLACE, sort=False)},
        "endings": _reasons(searches),
        "warnings": Counter(_NUMBERS.sub("#", text) for text in told).most_common(),
        "most_warnings": MOST_WARNINGS,
        "documents": measured.scan.documents,
        "relevant": (len(relevant), len(set(relevant))),
        "measures": parse_measures(experiment.measures),
        "systems": pd.DataFrame(described),
    }


def _at(frame: DataFrame, place: Place) -> DataFrame:
    """Return the rows of a place, and the columns that have a value there."""
    rows = frame[(frame.attribute == place[0]) & (frame.queries == place[1])]
    own = [name for name in rows if " of " not in name or rows[name].notna().any()]
    return rows[own].drop(columns=PLACE)


def _part(measured: MeasuredSearches, place: Place) -> dict[str, Any]:
    """Return what the template shows of one attribute and form of query."""
    experiment, systems = measured.manifest.experiment, [*measured.evaluations[place]]
    part: dict[str, Any] = {
        "attribute": place[0],
        "title": _title(place),
        "is_measured": bool(systems),
        "best": None,
        "added_by_models": frame(["topics"]),
        "figures": {kind: file_name(kind, *place) for kind in FIGURES},
    }
    if not systems:
        return part
    scores, searches = (_at(it, place) for it in (measured.scores, measured.searches))
    by_system = searches.groupby("system", sort=False)
    used = searches[searches.system.isin(measured.refining) & searches.rounds.notna()]
    labelled = by_system[["labelled", "returned"]].mean()
    means, rounds = _means(measured, measured.means, place), _at(measured.rounds, place)
    means[f"{place[0]} known in the top {experiment.k}"] = [
        f"{known:.1f} of {returned:.1f}" for known, returned in labelled.to_numpy()
    ]
    differences, common = _at(measured.differences, place), measured.common
    fairness = measured.measures.get(measured.fairness or "")
    return part | {
        "main": measured.main,
        "relevance": measured.relevance,
        "best": _best(measured, scores, systems),
        "added_by_models": _added(measured, place),
        "share_topics": bool(shared_topics(measured.scores)[place].all()),
        "means": means,
        "labelled": labelled.labelled,
        "all_labelled": bool((searches.labelled == searches.returned).all()),
        "differences": _differences(measured, differences, systems),
        "tests": differences.tests.max() if len(differences) else 0,
        "common_topics": _at(common, place).topic.nunique(),
        "common_means": _means(measured, measured.means_of(common), place),
        "fairness": measured.fairness,
        "fairness_up": bool(fairness and fairness.kind.higher_is_better),
        "is_product": _is_their_product(measured),
        "hidden_groups": rounds.filter(like="target of ").shape[1] - MOST_GROUPS,
        "rounds": list(used.groupby("system", sort=False)),
        "stops": _reasons(used),
        "drift": _at(measured.drift, place),
        "costs": [(system, own[own.error == ""]) for system, own in by_system],
    }


def _is_up(measured: MeasuredSearches) -> bool:
    """Return whether a higher value of the main measure is better."""
    return measured.measures[measured.main].kind.higher_is_better is not False


def _best(
    measured: MeasuredSearches, scores: DataFrame, systems: Sequence[str]
) -> dict[str, Any] | None:
    """Return which system has the best main measure, over the topics that all have a value for."""
    values = scores[scores.measure == measured.main].pivot(
        index="topic", columns="system", values="value"
    )
    common = values.dropna()
    if common.empty:
        return None
    means = common.mean()[systems]
    best = means.idxmax() if _is_up(measured) else means.idxmin()
    return {
        "system": best,
        "mean": means[best],
        "systems": len(means),
        "topics": len(common),
        "all": len(common) == len(values),
        "baseline": means.get(measured.manifest.experiment.baseline),
    }


def _added(measured: MeasuredSearches, place: Place) -> DataFrame:
    """Return what language models add to the main measure, and whether that is for the better."""
    found = _at(measured.added_by_models, place)
    found = found[found.measure == measured.main]
    return found.assign(
        better=(found.difference > 0) == _is_up(measured),
        refines=found.baseline.isin(measured.refining),
    )


def _means(measured: MeasuredSearches, means: DataFrame, place: Place) -> DataFrame:
    found = _at(means, place)
    cells = [
        cell(value(row.mean), span([row.low, row.high]), f"n={row.topics}", best=row.best)
        for row in found.itertuples()
    ]
    return _wide(measured, found.assign(cell=cells), [*measured.evaluations[place]])


def _wide(measured: MeasuredSearches, found: DataFrame, systems: Sequence[str]) -> DataFrame:
    """Return a row for each system, with its cells by measure."""
    wide = found.pivot(index="system", columns="measure", values="cell")
    order = [name for name in systems if name in wide.index]
    wide = wide.reindex(index=order, columns=[n for n in measured.measures if n in wide.columns])
    return wide.reset_index()


def _differences(measured: MeasuredSearches, found: DataFrame, systems: Sequence[str]) -> DataFrame:
    if found.empty:
        return found
    cells = [
        cell(
            difference(row.difference),
            span([row.low, row.high]),
            Markdown(f"p {p_value(row.p)} / {p_value(row.p_t)}, n={row.topics}"),
        )
        for row in found.itertuples()
    ]
    wide = _wide(measured, found.assign(cell=cells), systems)
    wide = wide.rename(columns={m: f"{m}, p randomisation / t" for m in measured.measures})
    changes = [
        cell(
            percent(row.change, signed=True),
            "holds" if row.holds else "too few topics" if row.too_few else "does not hold",
        )
        for row in found[found.measure == measured.main].itertuples()
    ]
    wide.insert(1, f"change of {measured.main}", changes)
    return wide


def _reasons(searches: DataFrame) -> list[str]:
    """Return why searches ended, as far as it is known."""
    return [reason for reason in searches.stop_reason.unique() if reason]


def _unfinished(measured: MeasuredSearches) -> Iterator[str]:
    experiment = measured.manifest.experiment
    systems = {system.name: system for system in experiment.all_systems()}
    for place, unfinished in measured.unfinished.items():
        for name, missing in unfinished.items():
            corpus, seeds = experiment.corpus_of(systems[name]), experiment.seeds_of(systems[name])
            text = f"{_title(place)}: '{name}' is left out of all tables and means"
            if corpus and missing == len(seeds) * len(measured.manifest.topics):
                yield (
                    f"{text}: nothing was searched for. It needs the corpus '{corpus}'; attach it, "
                    "and running the experiment again adds the system."
                )
            else:
                yield (
                    f"{text}: {counted(missing, 'search', 'searches')} still to be done; running "
                    "the experiment again goes on with them."
                )


def _on_judgements(measured: MeasuredSearches) -> Iterator[str]:
    """Yield what evaluations note of the collection, and of topics that nothing was found for."""
    found = [
        note.sentence
        for evaluations in measured.evaluations.values()
        for evaluation in evaluations.values()
        for note in evaluation.notes
        if note.kind in NOTED
    ]
    yield from dict.fromkeys(found)


def _described(experiment: Experiment, system: System, topics: int) -> dict[str, str]:
    """Return what the table of systems says of one."""
    corpus = experiment.corpus_of(system)
    model = system.model or experiment.model
    asked = [model] if system.asks_a_model else []
    if system.ranker in ("monot5", "monobert"):
        asked.append(system.ranker)
    elif system.ranker:
        asked.append(f"{system.ranker} re-ranking by {model}")
    settings = [f"{name}={value}" for name, value in system.settings.items()]
    if system.train:
        folds = min(system.train.folds, topics)
        settings.append(f"trained by cross-validation in {folds} folds")
        settings += [f"{name}={value}" for name, value in system.train.options.items()]
    return {
        "system": system.name,
        "method": f"{system.method}: {METHODS[system.method].about}",
        "retriever": f"{system.retriever}, {corpus}" if corpus else system.retriever,
        "asks": ", ".join(asked) or "nothing",
        "settings": ", ".join(settings) or "the method's own",
    }


def _title(place: Place) -> str:
    return f"{place[0]}, queries: {place[1]}"


def figures_of(measured: MeasuredSearches) -> list[Figure]:
    """Draw the figures of the sections that the experiment asks for."""
    sections, found = set(measured.manifest.experiment.report), list[Figure]()
    for place in (place for place, each in measured.evaluations.items() if each):
        rounds = _at(measured.rounds, place)
        if "trade_off" in sections:
            found += _trade_off(measured, place)
        if "rounds" in sections:
            targets = rounds.filter(like="target of ").mean()
            targets = targets.sort_values(ascending=False, kind="stable")
            shown = [name.removeprefix("target of ") for name in targets.index[:MOST_GROUPS]]
            found += _by_round(rounds, place, "exposure", "share of exposure", shown)
            found += _by_round(rounds, place, "divergence", "divergence (nats)")
        if "drift" in sections and measured.relevance is not None:
            found += _by_round(rounds, place, "drift", measured.relevance)
    return found


def _trade_off(measured: MeasuredSearches, place: Place) -> Iterator[Figure]:
    x, y = measured.relevance, measured.fairness
    if x is None or y is None:
        return
    means = _at(measured.means, place).set_index(["measure", "system"])
    ends = means.loc[[x, y], ["mean", "low", "high", "topics"]].unstack("measure")
    axes = {x: "x", y: "y"}
    ends.columns = [f"{axes[it]}_{name}".removesuffix("_mean") for name, it in ends.columns]
    points = ends.loc[[*measured.evaluations[place]]]
    points = points[(points.x_topics > 0) & (points.y_topics > 0)]
    if points.empty:
        return
    listed = "; ".join(f"{it.Index} {it.x:.4f}, {it.y:.4f}" for it in points.itertuples())
    points["number"] = [str(number) for number in range(1, len(points) + 1)]
    points["line"] = points.number + "  " + points.index
    cells = [(points[axis] / (NEAR * np.ptp(points[axis]) or 1)).round() for axis in ("x", "y")]
    near = points.groupby(cells).number
    points["label"] = near.transform(", ".join).where(near.cumcount() == 0, "")
    methods = {it.name: it.method for it in measured.manifest.experiment.all_systems()}
    yield Figure(
        file_name("trade_off", *place),
        f"Scatter plot of {x} and {y}: {listed}.",
        draw_lines(
            {"": points},
            x,
            y,
            styles={
                point.line: STYLES.get(methods[point.Index], RERANKING)
                for point in points.itertuples()
            },
            products=_is_their_product(measured),
            y_up=measured.measures[y].kind.higher_is_better is not False,
        ),
    )


def _is_their_product(measured: MeasuredSearches) -> bool:
    """Tell whether systems are compared by the product of the two measures of the trade-off."""
    main, names = measured.measures[measured.main], (measured.relevance, measured.fairness)
    both = {str(measured.measures.get(name or "")) for name in names}
    return main.is_product and {str(factor) for factor in main.factors} == both


def _by_round(
    rounds: DataFrame, place: Place, kind: str, label: str, groups: Sequence[str] | None = None
) -> Iterator[Figure]:
    """Yield the plot of a value by round, with a panel for each system.

    Args:
        rounds: The rounds of the place.
        place: The attribute and the form of query.
        kind: ``exposure``, ``divergence`` or ``drift``.
        label: That of the vertical axis.
        groups: Those whose exposure is shown, if it is.
    """
    import pandas as pd

    columns = {group: f"exposure of {group}" for group in groups or ()}
    if groups is None:
        columns = {"mean": "relevance" if kind == "drift" else kind}
    panels, told = {}, []
    for system, found in rounds.groupby("system", sort=False):
        lines = [_line(rounds, found, name, column) for name, column in columns.items()]
        if lines:
            panels[str(system)] = pd.concat(lines)
            told.append(f"{system}: {', '.join(map(value, lines[0].y.dropna()))}")
    if panels:
        what = f"Exposure of {groups[0]}" if groups else "Means"
        yield Figure(
            file_name(kind, *place),
            f"Lines by round, one panel for each system. {what}: {'; '.join(told)}.",
            draw_lines(panels, "round, and below it the number of topics", label),
        )


def _line(rounds: DataFrame, found: DataFrame, name: str, column: str) -> DataFrame:
    """Return the mean by round, and over how many topics it is; all have the same rounds."""
    line = found.groupby("round")[column].agg(["mean", "count"])
    line = line.reindex(range(rounds["round"].max() + 1)).rename_axis("x").reset_index()
    topics = line["count"].map("{:.0f}".format, na_action="ignore").fillna("")
    ticks = [f"{number}\n{count}" for number, count in zip(line.x, topics, strict=True)]
    line = line.assign(line=name, y=line["mean"], tick=ticks)
    target = f"target of {name}"
    return line.assign(target=found[target].mean()) if target in found else line
