"""From the records of a Fair RAG experiment to the values of its measures, as DataFrames.

A mean is always over queries: several seeds of a policy on a query are averaged first, and so are
generators and retrievers where a table joins them. A query without a value is left out, and every
mean says over how many queries it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from fairqr.base.errors import InputError
from fairqr.base.statistics import mean_with_ends
from fairqr.evaluation.rag.analysis.cells import Cell, measure_record
from fairqr.evaluation.rag.analysis.names import Name
from fairqr.evaluation.rag.analysis.official import official_of_deterministic
from fairqr.evaluation.rag.collection import RagCollection
from fairqr.evaluation.rag.labels import summarise_labels
from fairqr.evaluation.rag.measures.groups import memberships_of
from fairqr.evaluation.rag.measures.utility_bounds import UtilityBounds
from fairqr.evaluation.rag.records import LabelRecord, Policy, PolicyRecord
from fairqr.evaluation.rag.store import RagManifest
from fairqr.evaluation.scores import Undefined
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.schema import UNKNOWN

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = [
    "KEYS",
    "OF_GROUPS",
    "POLICY",
    "MeasuredRag",
    "counts_of",
    "frame_of",
    "frames_of",
    "group_shares",
    "means_of",
    "measure_fair_rag",
    "policy_name",
    "values_as_csv",
]

POLICY = ["collection", "generator", "retriever", "policy"]
KEYS = [*POLICY, "seed", "query"]
"""The columns that say what a row is of. The oracle has no retriever."""

COST = ("model_calls", "tokens", "milliseconds")
OF_GROUPS = {
    "EE-D by group": "disparity",
    "EE-R by group": "relevance",
    "EE-L by group": "loss",
    "EAE-D by group": "attributed_disparity",
}
SHARES = ["exposure", "target", "useful_exposure", "attributed"]
_ORDER: tuple[Policy, ...] = ("plackett-luce", "deterministic", "oracle")

LabelKey = tuple[str, str]
"""The names of the collection and of the generator."""


@dataclass(frozen=True, slots=True)
class MeasuredRag:
    """All that an experiment says.

    Attributes:
        manifest: What it was run with.
        values: One row for each policy on each query and seed, in the order of the experiment:
            :data:`KEYS`, the ``kind`` of the policy, every measure by its name (NaN if it has no
            value), over how many things they are (see
            :class:`fairqr.evaluation.rag.analysis.cells.Cell`), what they cost, and why there is
            nothing (``failure``).
        reasons: For each row, and each measure without a value, the reason.
        groups: What each group got: :data:`KEYS`, ``attribute``, ``group``, the sums of
            :class:`fairqr.evaluation.rag.measures.groups.GroupExposure`, and the ``rate`` of use.
        group_measures: Expected exposure by group, one row for each attribute; see
            :data:`OF_GROUPS`.
        labels: One row for each collection and generator: what its labels are like (see
            :class:`fairqr.evaluation.rag.labels.LabelSummary`), and what they cost.
        official: LaMP's own measures of deterministic rankings; see
            :func:`fairqr.evaluation.rag.analysis.official.official_of_deterministic`.
        warnings: Sentences on what is missing, for the report and whoever asks for it.
    """

    manifest: RagManifest
    values: DataFrame
    reasons: DataFrame
    groups: DataFrame
    group_measures: DataFrame
    labels: DataFrame
    official: DataFrame
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
    memberships = _memberships(collections)
    ordered = sorted(records, key=_order(manifest, collections))
    cells = [
        measure_record(record, bounds, memberships(record.collection, record.query, record.pool))
        for record in ordered
    ]
    values, reasons = frame_of(cells)
    groups, group_measures = _groups_of(cells, collections, values)
    return MeasuredRag(
        manifest=manifest,
        values=values,
        reasons=reasons,
        groups=groups,
        group_measures=group_measures,
        labels=_labels_of(labels, manifest.experiment.min_useful),
        official=official_of_deterministic(ordered, collections),
        warnings=tuple(_without_labels(manifest, values, labels)),
    )


def frame_of(cells: Sequence[Cell]) -> tuple[DataFrame, DataFrame]:
    """Return the measures of these cells, and why some have no value.

    The names of what they are of are ordered categories: in the order of the cells, policies by α,
    and what has no retriever last.
    """
    import pandas as pd

    values = pd.DataFrame(
        {
            **_keys(record),
            "kind": record.policy,
            **{name: np.nan if isinstance(s, Undefined) else s for name, s in scores.items()},
            **counts,
            **{name: getattr(record, name) for name in COST},
            "failure": record.failure,
        }
        for record, scores, _, counts in cells
    )
    reasons = pd.DataFrame(
        {name: str(s.reason) if isinstance(s, Undefined) else None for name, s in scores.items()}
        for _, scores, _, _ in cells
    )
    policies = sorted(
        {(cell.record.policy, cell.record.alpha) for cell in cells},
        key=lambda policy: (_ORDER.index(policy[0]), policy[1] or 0.0),
    )
    for name in POLICY:
        found = sorted(values[name].unique(), key=lambda value: not value)
        if name == "policy":
            found = [policy_name(*policy) for policy in policies]
        values[name] = pd.Categorical(values[name], found, ordered=True)
    return values, reasons


def _keys(record: PolicyRecord) -> dict[str, object]:
    plain = {name: getattr(record, name) for name in KEYS}
    return plain | {"policy": policy_name(record.policy, record.alpha)}


def _groups_of(
    cells: Sequence[Cell], collections: Mapping[str, RagCollection], values: DataFrame
) -> tuple[DataFrame, DataFrame]:
    """Return what each group got, and expected exposure by group, in the order of the values."""
    import pandas as pd

    schemas = {name: found.schema for name, found in collections.items() if found.schema}
    rows, measures = [], []
    for record, _, groups, _ in cells:
        for name, found in groups.items():
            keys = {**_keys(record), "attribute": name}
            measures.append(
                {**keys, **{title: getattr(found, field) for title, field in OF_GROUPS.items()}}
            )
            rates = [np.nan if isinstance(rate, Undefined) else rate for rate in found.rates()]
            for place, group in enumerate(
                (*schemas[record.collection].attributes[name].groups, UNKNOWN)
            ):
                sums = {share: getattr(found, share)[place] for share in (*SHARES, "answered")}
                rows.append({**keys, "group": group, **sums, "rate": rates[place]})
    columns = [*KEYS, "attribute"]
    order = {name: values[name].dtype for name in POLICY}
    return (
        pd.DataFrame(rows, columns=None if rows else [*columns, "group"]).astype(order),
        pd.DataFrame(measures, columns=None if measures else columns).astype(order),
    )


def _labels_of(labels: Mapping[LabelKey, Sequence[LabelRecord]], min_useful: int) -> DataFrame:
    import pandas as pd

    found = pd.DataFrame(
        {
            "collection": collection,
            "generator": generator,
            **asdict(summarise_labels(own, min_useful)),
            "failures": sum((Counter(label.failures) for label in own), Counter[str]()),
            **{name: sum(getattr(label, name) for label in own) for name in COST},
        }
        for (collection, generator), own in labels.items()
    )
    return found.astype(dict.fromkeys(("useful_mean", "useful_sd", "share"), float))


def means_of(found: DataFrame, keys: Sequence[str], names: Iterable[str]) -> DataFrame:
    """Return the means over queries of measures, for each combination of keys.

    Args:
        found: Rows with a ``query``, of one collection unless that is among the keys.
        keys: The columns to group by.
        names: The measures.

    Returns:
        The keys, ``measure``, ``mean``, the ends ``low`` and ``high`` of its 95% interval, and over
        how many ``queries`` it is. What there is not is NaN.
    """
    import pandas as pd

    keys, names = list(keys), list(names)
    by_query = found.groupby([*keys, "query"], observed=True)[names].mean().reset_index()
    rows = [
        (*key, name, *mean_with_ends(own[name]))
        for key, own in by_query.groupby(keys, observed=True)
        for name in names
    ]
    columns = [*keys, "measure", "mean", "low", "high", "queries"]
    means = pd.DataFrame(rows, columns=columns)
    return means.astype({name: found[name].dtype for name in keys})


def group_shares(groups: DataFrame) -> DataFrame:
    """Return the shares of each group, as means over the queries that have them.

    Args:
        groups: What each group got, of one attribute of one collection.

    Returns:
        By generator, retriever, policy and ``group``: its share of ``exposure``, of the ``target``,
        of the ``useful_exposure``, and of what was used (``attributed``), and its attribution
        ``rate``; and over how many ``queries`` they are, ``useful_queries`` and ``used_queries``.
    """
    keys = POLICY[1:]
    sums = groups.groupby([*keys, "query", "group"], observed=True)[[*SHARES, "rate"]].mean()
    totals = sums[SHARES].groupby(level=[*keys, "query"], observed=True).transform("sum")
    sums[SHARES] = sums[SHARES] / totals.where(totals > 0)
    by_group = sums.groupby(level=[*keys, "group"], observed=True)
    names = {
        "exposure": "queries",
        "useful_exposure": "useful_queries",
        "attributed": "used_queries",
    }
    counts = by_group[list(names)].count().rename(columns=names)
    return by_group.mean().join(counts).reset_index()


def counts_of(values: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return over how many things the values of each policy are, and what they cost in all.

    ``rows`` are queries and seeds, ``undrawn`` those without any ranking; the others are the sums
    of their columns, ``failed`` by status.
    """
    numbers = ["drawn", "generated", "distinct", "empty", "pairs", "unjudged", *COST]
    by_policy = values.assign(undrawn=values.drawn == 0).groupby(list(keys), observed=True)
    found = by_policy[["undrawn", *numbers]].sum()
    found["rows"] = by_policy.size()
    found["failed"] = by_policy["failed"].agg(lambda own: sum(own, Counter()))
    return found.reset_index()


def frames_of(measured: MeasuredRag) -> dict[str, DataFrame]:
    """Return all that was measured, by name."""
    return {
        "values": measured.values,
        "reasons": measured.reasons,
        "means": means_of(measured.values, POLICY, Name),
        "groups": measured.groups,
        "group_measures": measured.group_measures,
        "labels": measured.labels,
        "official": measured.official,
    }


def values_as_csv(measured: MeasuredRag) -> str:
    """Return the value of every measure of every policy on every query, as a CSV file.

    If there is no value, the last column has the reason.
    """
    names = list(Name)
    found = measured.values.melt(KEYS, names, "measure", "value", ignore_index=False)
    found["undefined"] = measured.reasons.melt(None, names)["value"].to_numpy()
    text: str = found.sort_index(kind="stable").to_csv(index=False, lineterminator="\n")
    return text


def _order(
    manifest: RagManifest, collections: Mapping[str, RagCollection]
) -> Callable[[PolicyRecord], tuple[object, ...]]:
    """Return the key that sorts records as the experiment names what they are of."""
    experiment = manifest.experiment
    collection = _places(entry.name for entry in manifest.collections)
    generator, retriever = _places(experiment.generators), _places(experiment.retrievers)
    query = {
        name: _places(query.id for query in found.queries) for name, found in collections.items()
    }
    return lambda record: (
        collection(record.collection),
        generator(record.generator),
        retriever(record.retriever),
        record.policy,
        record.alpha or 0.0,
        query[record.collection](record.query),
        record.seed,
    )


def _places(names: Iterable[str]) -> Callable[[str], tuple[int, str]]:
    """Return what gives the place of a name; others stand behind all that there are."""
    places = {name: place for place, name in enumerate(names)}
    return lambda name: (places.get(name, len(places)), name)


def _memberships(
    collections: Mapping[str, RagCollection],
) -> Callable[[str, str, tuple[str, ...]], dict[str, FloatArray]]:
    """Return what gives the memberships of a query's pool by attribute, each read once."""
    pools = {
        (name, query.id): {document.id: document.groups for document in query.pool}
        for name, found in collections.items()
        if found.schema is not None
        for query in found.queries
    }

    @cache
    def of(collection: str, query: str, pool: tuple[str, ...]) -> dict[str, FloatArray]:
        schema = collections[collection].schema
        if schema is None:
            return {}
        groups = [pools.get((collection, query), {}).get(id_, {}) for id_ in pool]
        return {
            name: memberships_of(attribute, groups) for name, attribute in schema.attributes.items()
        }

    return of


def _without_labels(
    manifest: RagManifest,
    values: DataFrame,
    labels: Mapping[LabelKey, Sequence[LabelRecord]],
) -> Iterator[str]:
    """Yield what to know where rankings were made with labels that are gone."""
    titles = {entry.name: entry.title for entry in manifest.collections}
    for key, own in values.groupby(["collection", "generator"], observed=True):
        drawn = set(own["query"])
        if gone := drawn - {label.query for label in labels.get(key, ())}:
            yield (
                f"{titles[key[0]]}, {key[1]}: the labels of {len(gone)} of {len(drawn)} queries "
                "that were ranked are gone, so what is said of labels is not of this run; bring "
                "the folder labels/ back, or run the experiment again."
            )
