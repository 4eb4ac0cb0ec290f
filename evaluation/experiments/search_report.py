"""The report of an experiment with searches: what its template shows, and its figures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fairqr.evaluation.experiments.folder import file_name
from fairqr.evaluation.experiments.measuring import MeasuredSearches, Table
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

    manifest = measured.manifest
    experiment = manifest.experiment
    records = [r for t in measured.tables for found in t.records.values() for r in found]
    systems = experiment.all_systems()
    at_once = sorted({record.at_once for record in records if not record.error})
    judged = (pair for of_topic in measured.qrels.values() for pair in of_topic.items())
    relevant = [document for document, grade in judged if grade > 0]
    ended = {_title(table): table.searches for table in measured.tables if table.evaluations}
    return {
        "title": experiment.title,
        "about": experiment.about,
        "manifest": manifest,
        "experiment": experiment,
        "parts": [_part(table) for table in measured.tables],
        "at_once": " or ".join(map(str, at_once)),
        "missing": [*manifest.notes, *_unfinished(measured), *_on_judgements(measured)],
        "ended": ended,
        "endings": _reasons(pd.concat(ended.values())),
        "warnings": Counter(
            _NUMBERS.sub("#", text)
            for record in records
            for text in (*record.warnings, *filter(None, [record.error]))
        ).most_common(),
        "most_warnings": MOST_WARNINGS,
        "documents": measured.scan.documents,
        "relevant": (len(relevant), len(set(relevant))),
        "measures": parse_measures(experiment.measures),
        "systems": pd.DataFrame(
            [_described(experiment, system, len(manifest.topics)) for system in systems]
        ),
    }


def _part(table: Table) -> dict[str, Any]:
    """Return what the template shows of one attribute and form of query."""
    part: dict[str, Any] = {
        "attribute": table.attribute,
        "title": _title(table),
        "is_measured": bool(table.evaluations),
        "best": None,
        "added_by_models": frame(["topics"]),
        "figures": {kind: _name(kind, table) for kind in FIGURES},
    }
    if not table.evaluations:
        return part
    searches, scores = table.searches, table.scores
    by_system = searches.groupby("system", sort=False)
    refining = {system.name for system in table.experiment.all_systems() if system.asks_a_model}
    used = searches[searches.system.isin(refining) & searches.rounds.notna()]
    labelled = by_system[["labelled", "returned"]].mean()
    means = _means(table, table.means(scores))
    means[f"{table.attribute} known in the top {table.experiment.k}"] = [
        f"{known:.1f} of {returned:.1f}" for known, returned in labelled.to_numpy()
    ]
    differences = table.differences
    return part | {
        "main": table.main,
        "relevance": table.relevance,
        "best": _best(table),
        "added_by_models": _added(table),
        "share_topics": table.share_topics,
        "means": means,
        "labelled": labelled.labelled,
        "all_labelled": bool((searches.labelled == searches.returned).all()),
        "differences": _differences(table, differences),
        "tests": differences.tests.max() if len(differences) else 0,
        "common_topics": table.common.topic.nunique(),
        "common_means": _means(table, table.means(table.common)),
        "fairness": table.fairness,
        "fairness_up": bool(
            table.fairness and table.measures[table.fairness].kind.higher_is_better
        ),
        "is_product": _is_their_product(table),
        "hidden_groups": table.rounds.filter(like="target of ").shape[1] - MOST_GROUPS,
        "rounds": list(used.groupby("system", sort=False)),
        "stops": _reasons(used),
        "drift": table.drift,
        "costs": [(system, own[own.error == ""]) for system, own in by_system],
    }


def _best(table: Table) -> dict[str, Any] | None:
    """Return which system has the best main measure, over the topics that all have a value for."""
    values = table.scores[table.scores.measure == table.main].pivot(
        index="topic", columns="system", values="value"
    )
    common = values.dropna()
    if common.empty:
        return None
    means = common.mean()[list(table.evaluations)]
    up = table.measures[table.main].kind.higher_is_better is not False
    best = means.idxmax() if up else means.idxmin()
    return {
        "system": best,
        "mean": means[best],
        "systems": len(means),
        "topics": len(common),
        "all": len(common) == len(values),
        "baseline": means.get(table.experiment.baseline),
    }


def _added(table: Table) -> DataFrame:
    """Return what language models add to the main measure, and whether that is for the better."""
    found = table.added_by_models
    found = found[found.measure == table.main].copy()
    up = table.measures[table.main].kind.higher_is_better is not False
    refining = {s.name for s in table.experiment.all_systems() if s.asks_a_model}
    found["better"] = (found.difference > 0) == up
    found["refines"] = found.baseline.isin(refining)
    return found


def _means(table: Table, means: DataFrame) -> DataFrame:
    means["cell"] = [
        cell(value(row.mean), span([row.low, row.high]), f"n={row.topics}", best=row.best)
        for row in means.itertuples()
    ]
    return _wide(table, means)


def _wide(table: Table, found: DataFrame) -> DataFrame:
    """Return a row for each system, with its cells by measure."""
    wide = found.pivot(index="system", columns="measure", values="cell")
    order = [name for name in table.evaluations if name in wide.index]
    wide = wide.reindex(index=order, columns=[n for n in table.measures if n in wide.columns])
    return wide.reset_index()


def _differences(table: Table, found: DataFrame) -> DataFrame:
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
    wide = _wide(table, found.assign(cell=cells))
    wide = wide.rename(columns={m: f"{m}, p randomisation / t" for m in table.measures})
    main = found[found.measure == table.main]
    changes = [
        cell(
            percent(row.change, signed=True),
            "holds" if row.holds else "too few topics" if row.too_few else "does not hold",
        )
        for row in main.itertuples()
    ]
    wide.insert(1, f"change of {table.main}", changes)
    return wide


def _reasons(searches: DataFrame) -> list[str]:
    """Return why searches ended, as far as it is known."""
    return [reason for reason in searches.stop_reason.unique() if reason]


def _unfinished(measured: MeasuredSearches) -> Iterator[str]:
    experiment = measured.manifest.experiment
    systems = {system.name: system for system in experiment.all_systems()}
    for table in measured.tables:
        for name, missing in table.unfinished.items():
            system = systems[name]
            corpus = experiment.corpus_of(system)
            seeds = len(experiment.seeds) if system.asks_a_model else 1
            text = f"{_title(table)}: '{name}' is left out of all tables and means"
            if corpus and missing == seeds * len(measured.manifest.topics):
                yield (
                    f"{text}: nothing was searched for. It needs the corpus '{corpus}'; attach it, "
                    "and running the experiment again adds the system."
                )
            else:
                searches = counted(missing, "search", "searches")
                yield (
                    f"{text}: {searches} still to be done; running the experiment again goes on "
                    "with them."
                )


def _on_judgements(measured: MeasuredSearches) -> Iterator[str]:
    """Yield what evaluations note of the collection, and of topics that nothing was found for."""
    found = [
        note.sentence
        for table in measured.tables
        for evaluation in table.evaluations.values()
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


def _title(table: Table) -> str:
    return f"{table.attribute}, queries: {table.queries}"


def _name(kind: str, table: Table) -> str:
    return file_name(kind, table.attribute, table.queries)


def figures_of(measured: MeasuredSearches) -> list[Figure]:
    """Draw the figures of the sections that the experiment asks for."""
    sections = set(measured.manifest.experiment.report)
    return [
        figure
        for table in measured.tables
        if table.evaluations
        for section, drawn in (
            ("trade_off", _trade_off(table)),
            ("rounds", _exposure(table)),
            ("rounds", _divergence(table)),
            ("drift", _drift(table)),
        )
        if section in sections
        for figure in drawn
    ]


def _trade_off(table: Table) -> Iterator[Figure]:
    import pandas as pd

    x, y = table.relevance, table.fairness
    if x is None or y is None:
        return
    means = table.means(table.scores).set_index(["measure", "system"])
    columns = {"mean": "", "low": "_low", "high": "_high", "topics": "_topics"}
    points = pd.concat(
        [
            means.loc[name][list(columns)].rename(columns=lambda it, axis=axis: axis + columns[it])
            for axis, name in (("x", x), ("y", y))
        ],
        axis=1,
    ).loc[list(table.evaluations)]
    points = points[(points.x_topics > 0) & (points.y_topics > 0)]
    if points.empty:
        return
    up = table.measures[y].kind.higher_is_better
    listed = "; ".join(f"{it.Index} {it.x:.4f}, {it.y:.4f}" for it in points.itertuples())
    points["number"] = [str(number) for number in range(1, len(points) + 1)]
    points["line"] = points.number + "  " + points.index
    cells = [(points[axis] / (NEAR * np.ptp(points[axis]) or 1)).round() for axis in ("x", "y")]
    near = points.groupby(cells).number
    points["label"] = near.transform(", ".join).where(near.cumcount() == 0, "")
    methods = {system.name: system.method for system in table.experiment.all_systems()}
    yield Figure(
        _name("trade_off", table),
        f"Scatter plot of {x} and {y}: {listed}.",
        draw_lines(
            {"": points},
            x,
            y,
            styles={
                point.line: STYLES.get(methods[point.Index], RERANKING)
                for point in points.itertuples()
            },
            products=_is_their_product(table),
            y_up=up is not False,
        ),
    )


def _is_their_product(table: Table) -> bool:
    """Tell whether systems are compared by the product of the two measures of the trade-off."""
    main = table.measures[table.main]
    both = {str(table.measures.get(name or "")) for name in (table.relevance, table.fairness)}
    return main.is_product and {str(factor) for factor in main.factors} == both


def _exposure(table: Table) -> Iterator[Figure]:
    """Yield the plot of the exposure of groups by round."""
    rounds = table.rounds
    targets = rounds.filter(like="target of ").mean().sort_values(ascending=False, kind="stable")
    shown = [name.removeprefix("target of ") for name in targets.index[:MOST_GROUPS]]
    if not shown:
        return
    panels = {
        str(system): [
            _line(rounds, found, f"exposure of {group}").assign(
                line=group, target=found[f"target of {group}"].mean()
            )
            for group in shown
        ]
        for system, found in rounds.groupby("system", sort=False)
    }
    described = "; ".join(f"{system}: {_said(lines[0])}" for system, lines in panels.items())
    yield Figure(
        _name("exposure", table),
        f"Lines by round, one panel for each system. Exposure of {shown[0]}: {described}.",
        _by_rounds(panels, "share of exposure"),
    )


def _divergence(table: Table) -> Iterator[Figure]:
    yield from _by_round(
        table,
        "divergence",
        "divergence",
        "divergence (nats)",
    )


def _drift(table: Table) -> Iterator[Figure]:
    if table.relevance is not None:
        yield from _by_round(
            table,
            "drift",
            "relevance",
            table.relevance,
        )


def _by_round(table: Table, kind: str, column: str, label: str) -> Iterator[Figure]:
    panels = {
        str(system): [_line(table.rounds, found, column)]
        for system, found in table.rounds.groupby("system", sort=False)
    }
    if not panels:
        return
    described = "; ".join(f"{system}: {_said(lines[0])}" for system, lines in panels.items())
    yield Figure(
        _name(kind, table),
        f"Lines by round, one panel for each system. Means: {described}.",
        _by_rounds(panels, label),
    )


def _by_rounds(panels: Mapping[str, Sequence[DataFrame]], label: str) -> str:
    import pandas as pd

    joined = {system: pd.concat(lines) for system, lines in panels.items()}
    return draw_lines(joined, "round, and below it the number of topics", label)


def _line(rounds: DataFrame, found: DataFrame, column: str) -> DataFrame:
    """Return the mean by round, and over how many topics it is; all have the same rounds."""
    line = found.groupby("round")[column].agg(["mean", "count"])
    line = line.reindex(range(rounds["round"].max() + 1)).rename_axis("x").reset_index()
    topics = line["count"].map("{:.0f}".format, na_action="ignore").fillna("")
    ticks = [f"{number}\n{count}" for number, count in zip(line.x, topics, strict=True)]
    return line.assign(line="mean", y=line["mean"], tick=ticks)


def _said(line: DataFrame) -> str:
    return ", ".join(map(value, line.y.dropna()))
