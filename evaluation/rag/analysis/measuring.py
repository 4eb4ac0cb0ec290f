"""From the records of a Fair RAG experiment to the values of its measures."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fairqr.base.errors import InputError
from fairqr.evaluation.rag.analysis.cells import Cell, measure_record
from fairqr.evaluation.rag.analysis.frame import Frame, policy_name
from fairqr.evaluation.rag.analysis.official import Official, official_of_deterministic
from fairqr.evaluation.rag.collection import PoolDocument, RagCollection
from fairqr.evaluation.rag.labels import LabelSummary, summarise_labels
from fairqr.evaluation.rag.measures.groups import memberships_of
from fairqr.evaluation.rag.measures.utility_bounds import UtilityBounds
from fairqr.evaluation.rag.records import LabelRecord, PolicyRecord
from fairqr.evaluation.rag.store import RagManifest
from fairqr.evaluation.scores import Undefined
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.schema import Schema

__all__ = ["MeasuredRag", "measure_fair_rag", "values_as_csv"]

LabelKey = tuple[str, str]
"""The names of the collection and of the generator."""


@dataclass(frozen=True, slots=True)
class MeasuredRag:
    """All that an experiment says.

    Attributes:
        manifest: What it was run with.
        frame: The measures of each policy on each query, in the order of the experiment.
        labels: What the labels of each collection and generator are like.
        label_cost: By the same, model calls, tokens and milliseconds.
        label_failures: By the same, how many answers failed, by status.
        schemas: By collection its groups; collections without groups are absent.
        official: LaMP's own measures of deterministic rankings, by the names of the collection, the
            generator and the retriever; absent for other collections.
        warnings: Sentences on what is missing, for the report and whoever asks for it.
    """

    manifest: RagManifest
    frame: Frame
    labels: Mapping[LabelKey, LabelSummary]
    label_cost: Mapping[LabelKey, tuple[int, int, float]]
    label_failures: Mapping[LabelKey, Mapping[str, int]]
    schemas: Mapping[str, Schema]
    official: Mapping[tuple[str, str, str], Official]
    warnings: tuple[str, ...] = ()


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
    groups = _Memberships(collections)
    cells: list[Cell] = [
        measure_record(record, bounds, groups.of(record))
        for record in sorted(records, key=_Order(manifest, collections))
    ]
    schemas = {
        name: collection.schema
        for name, collection in collections.items()
        if collection.schema is not None
    }
    return MeasuredRag(
        manifest=manifest,
        frame=Frame(cells),
        labels={
            key: summarise_labels(found, manifest.experiment.min_useful)
            for key, found in labels.items()
        },
        label_cost={key: _cost(found) for key, found in labels.items()},
        label_failures={key: _failures(found) for key, found in labels.items()},
        schemas=schemas,
        official=official_of_deterministic(records, collections),
        warnings=tuple(_without_labels(manifest, records, labels)),
    )


def values_as_csv(measured: MeasuredRag) -> str:
    """Return the value of every measure of every policy on every query, as a CSV file.

    Where there is no value, the last column has the reason.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ("collection", "generator", "retriever", "policy", "seed", "query", "measure", "value",
         "undefined")
    )  # fmt: skip
    writer.writerows(_rows(measured.frame.cells))
    return text.getvalue()


def _rows(cells: Sequence[Cell]) -> Iterator[tuple[object, ...]]:
    for cell in cells:
        record = cell.record
        names = (
            record.collection,
            record.generator,
            record.retriever,
            policy_name((record.policy, record.alpha)),
            record.seed,
            record.query,
        )
        for name, score in cell.values.items():
            told = ("", str(score.reason)) if isinstance(score, Undefined) else (score, "")
            yield (*names, str(name), *told)


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


def _cost(labels: Sequence[LabelRecord]) -> tuple[int, int, float]:
    return (
        sum(label.model_calls for label in labels),
        sum(label.tokens for label in labels),
        sum(label.milliseconds for label in labels),
    )


def _failures(labels: Sequence[LabelRecord]) -> dict[str, int]:
    found: dict[str, int] = {}
    for label in labels:
        for status, count in label.failures.items():
            found[status] = found.get(status, 0) + count
    return dict(sorted(found.items()))
