"""From the records of a Fair RAG experiment to the values of its measures, as DataFrames.

A mean is always over queries: several seeds of a policy on a query are averaged first, and so are
generators and retrievers where a table joins them. A query without a value is left out, and every
mean says over how many queries it is.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fairqr.base.errors import InputError
from fairqr.base.statistics import mean_interval
from fairqr.evaluation.rag.analysis.cells import Cell, measure_record
from fairqr.evaluation.rag.analysis.names import Name
from fairqr.evaluation.rag.analysis.official import Official, official_of_deterministic
from fairqr.evaluation.rag.collection import PoolDocument, RagCollection
from fairqr.evaluation.rag.labels import LabelSummary, summarise_labels
from fairqr.evaluation.rag.measures.groups import memberships_of
from fairqr.evaluation.rag.measures.utility_bounds import UtilityBounds
from fairqr.evaluation.rag.records import LabelRecord, Policy, PolicyRecord
from fairqr.evaluation.rag.store import RagManifest
from fairqr.evaluation.scores import Reason, Undefined
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.schema import UNKNOWN, Schema

if TYPE_CHECKING:
    from pandas import DataFrame, Series

__all__ = [
    "KEYS",
    "LabelKey",
    "Mean",
    "MeasuredRag",
    "by_query",
    "frame_of",
    "frames_of",
    "mean_of",
    "measure_fair_rag",
    "policy_name",
    "undefined",
    "values_as_csv",
]

KEYS = ["collection", "generator", "retriever", "policy", "seed", "query"]
"""The columns that say what a row is of. The oracle has no retriever."""

QUERY = ["collection", "query"]

LabelKey = tuple[str, str]
"""The names of the collection and of the generator."""

_ORDER: tuple[Policy, ...] = ("plackett-luce", "deterministic", "oracle")


class Mean(NamedTuple):
    """A mean over queries; NaN if no query has a value.

    Attributes:
        mean: The mean.
        low, high: Its 95% interval; NaN if there are too few queries to tell.
        queries: Over how many queries it is.
    """

    mean: float
    low: float
    high: float
    queries: int


@dataclass(frozen=True, slots=True)
class MeasuredRag:
    """All that an experiment says.

    Attributes:
        manifest: What it was run with.
        cells: One row for each policy on each query and seed, in the order of the experiment:
            :data:`KEYS`, the ``kind`` of the policy, every measure by its name (NaN if it has no
            value), over how many things they are (see
            :class:`fairqr.evaluation.rag.analysis.cells.Counts`), and what they cost.
        reasons: For each row, and each measure without a value, the reason.
        groups: What each group got: :data:`KEYS`, ``attribute``, ``group``, and the sums of
            :class:`fairqr.evaluation.rag.measures.groups.GroupExposure`; empty without groups.
        group_measures: Expected exposure by group, one row for each attribute.
        labels: What the labels of each collection and generator are like.
        label_records: The labels themselves.
        schemas: By collection its groups; collections without groups are absent.
        official: LaMP's own measures of deterministic rankings, by the names of the collection, the
            generator and the retriever; absent for other collections.
        warnings: Sentences on what is missing, for the report and whoever asks for it.
    """

    manifest: RagManifest
    cells: DataFrame
    reasons: DataFrame
    groups: DataFrame
    group_measures: DataFrame
    labels: Mapping[LabelKey, LabelSummary]
    label_records: Mapping[LabelKey, Sequence[LabelRecord]]
    schemas: Mapping[str, Schema]
    official: Mapping[tuple[str, str, str], Official]
    warnings: tuple[str, ...] = ()


def policy_name(kind: Policy, alpha: float | None) -> str:
    """Return what tables call a policy, e.g. ``α = 4``."""
    return kind if alpha is None else f"α = {alpha:g}"


def measure_fair_rag(
    manifest: RagManifest,
    records: Sequence[PolicyRecord],
    labels: Mapping[LabelKey, Sequence[LabelRecord]],
    collections: Mapping[str, RagCollection],
) -> MeasuredRag:
    """Measure what an experiment has done so far.

    Args:
        manifest: What it was run with.
        records: One for each policy on each query; equal records in another order give the same.
        labels: By the names of the collection and the generator.
        collections: By name; for golds and the groups of documents.

    Raises:
        InputError: Nothing was drawn yet, or a record names a collection that is not there.
    """
    if not any(record.samples for record in records):
        raise InputError(
            "The experiment has no rankings yet, so there is nothing to measure; run it again, it "
            "goes on where it stopped, and look at how many queries its labels kept."
        )
    if strange := {record.collection for record in records} - set(collections):
        raise InputError(
            f"The experiment has results of the collection '{min(strange)}', which is not among "
            "those given; name the collections that it was run on."
        )
    bounds = UtilityBounds(records)
    memberships = _Memberships(collections)
    ordered = sorted(records, key=_Order(manifest, collections))
    measured = [measure_record(record, bounds, memberships.of(record)) for record in ordered]
    schemas = {
        name: collection.schema
        for name, collection in collections.items()
        if collection.schema is not None
    }
    cells, reasons = frame_of(measured)
    return MeasuredRag(
        manifest=manifest,
        cells=cells,
        reasons=reasons,
        groups=_groups(measured, schemas),
        group_measures=_group_measures(measured),
        labels={
            key: summarise_labels(found, manifest.experiment.min_useful)
            for key, found in labels.items()
        },
        label_records=labels,
        schemas=schemas,
        official=official_of_deterministic(records, collections),
        warnings=tuple(_without_labels(manifest, records, labels)),
    )


def frame_of(cells: Sequence[Cell]) -> tuple[DataFrame, DataFrame]:
    """Return the measures of these cells, and why some have no value.

    The names of what they are of are ordered categories: in the order of the cells, policies by α,
    and what has no retriever last.
    """
    import pandas as pd

    rows = [
        {
            **_keys(cell),
            "kind": cell.record.policy,
            **{
                str(name): np.nan if isinstance(score, Undefined) else score
                for name, score in cell.values.items()
            },
            "drawn": cell.counts.samples,
            "distinct": cell.counts.distinct,
            "generated": cell.counts.generated,
            "failed": cell.counts.failed,
            "empty_answers": cell.counts.empty,
            "pairs": cell.counts.pairs,
            "unjudged": cell.counts.unjudged,
            "failure": cell.record.failure,
            "model_calls": cell.record.model_calls,
            "tokens": cell.record.tokens,
            "milliseconds": cell.record.milliseconds,
        }
        for cell in cells
    ]
    reasons = [
        {
            str(name): score.reason if isinstance(score, Undefined) else None
            for name, score in cell.values.items()
        }
        for cell in cells
    ]
    policies = sorted(
        {(cell.record.policy, cell.record.alpha) for cell in cells},
        key=lambda policy: (_ORDER.index(policy[0]), policy[1] or 0.0),
    )
    frame = pd.DataFrame(rows)
    for name in ("collection", "generator", "retriever"):
        found = sorted(dict.fromkeys(frame[name]), key=lambda value: not value)
        frame[name] = pd.Categorical(frame[name], found, ordered=True)
    frame["policy"] = pd.Categorical(
        frame["policy"], [policy_name(*policy) for policy in policies], ordered=True
    )
    return frame, pd.DataFrame(reasons, columns=[str(name) for name in Name])


def _keys(cell: Cell) -> dict[str, object]:
    record = cell.record
    return {
        "collection": record.collection,
        "generator": record.generator,
        "retriever": record.retriever,
        "policy": policy_name(record.policy, record.alpha),
        "seed": record.seed,
        "query": record.query,
    }


def _groups(cells: Sequence[Cell], schemas: Mapping[str, Schema]) -> DataFrame:
    import pandas as pd

    sums = ("exposure", "target", "useful_exposure", "answered", "attributed")
    rows = [
        {
            **_keys(cell),
            "attribute": attribute,
            "group": group,
            **{name: float(getattr(found, name)[place]) for name in sums},
            "rate": np.nan if isinstance(rate, Undefined) else rate,
        }
        for cell in cells
        for attribute, found in cell.groups.items()
        for place, (group, rate) in enumerate(
            zip(
                (*schemas[cell.record.collection].attributes[attribute].groups, UNKNOWN),
                found.rates(),
                strict=True,
            )
        )
    ]
    return pd.DataFrame(rows, columns=[*KEYS, "attribute", "group", *sums, "rate"])


def _group_measures(cells: Sequence[Cell]) -> DataFrame:
    import pandas as pd

    rows = [
        {
            **_keys(cell),
            "attribute": attribute,
            "EE-D by group": found.disparity,
            "EE-R by group": found.relevance,
            "EE-L by group": found.loss,
            "EAE-D by group": found.attributed_disparity,
        }
        for cell in cells
        for attribute, found in cell.groups.items()
    ]
    return pd.DataFrame(rows)


def by_query(found: DataFrame, name: str) -> Series:
    """Return the value of each query that has one: the mean over its rows with one."""
    return found.groupby(QUERY, sort=False, observed=True)[name].mean().dropna()


def mean_of(found: DataFrame, name: str) -> Mean:
    """Return the mean over queries of a measure."""
    values = by_query(found, name).to_numpy()
    if not len(values):
        return Mean(np.nan, np.nan, np.nan, 0)
    interval = mean_interval(values)
    low, high = (interval.low, interval.high) if interval else (np.nan, np.nan)
    return Mean(float(values.mean()), low, high, len(values))


def undefined(reasons: DataFrame, name: str) -> dict[Reason, int]:
    """Return how many rows have no value of a measure, by reason."""
    return dict(sorted(Counter(reasons[name].dropna()).items()))


def frames_of(measured: MeasuredRag) -> dict[str, DataFrame]:
    """Return all that was measured, by name."""
    import pandas as pd

    keys = ["collection", "generator", "retriever", "policy"]
    means = [
        (*key, str(name), *mean_of(found, str(name)))
        for key, found in measured.cells.groupby(keys, observed=True)
        for name in Name
    ]
    columns = [*keys, "measure", *Mean._fields]
    return {
        "cells": measured.cells,
        "means": pd.DataFrame(means, columns=columns),
        "groups": measured.groups,
        "group_measures": measured.group_measures,
    }


def values_as_csv(measured: MeasuredRag) -> str:
    """Return the value of every measure of every policy on every query, as a CSV file.

    If there is no value, the last column has the reason.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*KEYS, "measure", "value", "undefined"))
    names = [str(name) for name in Name]
    keys = measured.cells[KEYS].astype(object).to_numpy().tolist()
    values = measured.cells[names].to_numpy().tolist()
    reasons = measured.reasons[names].to_numpy().tolist()
    for key, row, why in zip(keys, values, reasons, strict=True):
        for name, value, reason in zip(names, row, why, strict=True):
            writer.writerow((*key, name, *((value, "") if reason is None else ("", str(reason)))))
    return text.getvalue()


class _Order:
    """Sorts records as the experiment names what they are of, so that results repeat."""

    def __init__(self, manifest: RagManifest, collections: Mapping[str, RagCollection]) -> None:
        experiment = manifest.experiment
        self._collections = _places(collection.name for collection in manifest.collections)
        self._generators = _places(experiment.generators)
        self._retrievers = _places(experiment.retrievers)
        self._queries = {
            (name, query.id): place
            for name, collection in collections.items()
            for place, query in enumerate(collection.queries)
        }

    def __call__(self, record: PolicyRecord) -> tuple[object, ...]:
        last = 1 << 30
        return (
            self._collections.get(record.collection, last),
            record.collection,
            self._generators.get(record.generator, last),
            record.generator,
            self._retrievers.get(record.retriever, last),
            record.retriever,
            record.policy,
            record.alpha or 0.0,
            self._queries.get((record.collection, record.query), last),
            record.query,
            record.seed,
        )


def _places(names: Iterable[str]) -> dict[str, int]:
    return {name: place for place, name in enumerate(names)}


class _Memberships:
    """The groups of pools, read once for each query."""

    def __init__(self, collections: Mapping[str, RagCollection]) -> None:
        self._schemas = {name: found.schema for name, found in collections.items()}
        self._pools: dict[tuple[str, str], dict[str, PoolDocument]] = {
            (name, query.id): {document.id: document for document in query.pool}
            for name, found in collections.items()
            if found.schema is not None
            for query in found.queries
        }
        self._known: dict[tuple[str, str, tuple[str, ...]], dict[str, FloatArray]] = {}

    def of(self, record: PolicyRecord) -> dict[str, FloatArray]:
        """Return by attribute the memberships of a record's pool, shape (n, G + 1)."""
        schema = self._schemas[record.collection]
        if schema is None:
            return {}
        key = (record.collection, record.query, record.pool)
        if key not in self._known:
            pool = self._pools.get((record.collection, record.query), {})
            groups = [pool[id_].groups if id_ in pool else {} for id_ in record.pool]
            self._known[key] = {
                name: memberships_of(attribute, groups)
                for name, attribute in schema.attributes.items()
            }
        return self._known[key]


def _without_labels(
    manifest: RagManifest,
    records: Sequence[PolicyRecord],
    labels: Mapping[LabelKey, Sequence[LabelRecord]],
) -> Iterator[str]:
    """Yield what to know where rankings were made with labels that are gone."""
    for entry in manifest.collections:
        for generator in manifest.experiment.generators:
            here = (entry.name, generator)
            drawn = {one.query for one in records if (one.collection, one.generator) == here}
            gone = drawn - {label.query for label in labels.get(here, ())}
            if gone:
                yield (
                    f"{entry.title}, {generator}: the labels of {len(gone)} of {len(drawn)} "
                    "queries that were ranked are gone, so what is said of labels is not of this "
                    "run; bring the folder labels/ back, or run the experiment again."
                )
