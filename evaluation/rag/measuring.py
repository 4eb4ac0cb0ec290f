"""From the records of a Fair RAG experiment to the values of its measures, as DataFrames.

A mean is always over queries: several seeds of a policy on a query are averaged first, and so are
generators and retrievers where a table joins them. A query without a value is left out, and every
mean says over how many queries it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from fairqr.base.errors import InputError
from fairqr.evaluation.estimates import mean_with_ends
from fairqr.evaluation.experiments.measured import Measured
from fairqr.evaluation.lamp.metrics import Accuracy, FourMinusError, Rouge, official_metrics
from fairqr.evaluation.rag import measures
from fairqr.evaluation.rag.collection import RagCollection
from fairqr.evaluation.rag.labelling import summarise_labels
from fairqr.evaluation.rag.measures import Cell, Name
from fairqr.evaluation.rag.store import LabelRecord, Policy, PolicyRecord, RagManifest
from fairqr.evaluation.scores import Undefined
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.sources.schema import UNKNOWN

if TYPE_CHECKING:
    from pandas import DataFrame

_LAMP = (Accuracy, FourMinusError, Rouge)
POLICY = ["collection", "generator", "retriever", "policy"]
KEYS = [*POLICY, "seed", "query"]
"""The columns that identify a row. The oracle has no retriever."""

COST = ("model_calls", "tokens", "milliseconds")
OF_GROUPS = ("EE-D by group", "EE-R by group", "EE-L by group", "EAE-D by group")
"""Σ ε², Σ ε·ε*, Σ (ε − ε*)² and Σ (ε^a)² over the known groups, in squared documents. The low end
of EE-D is even between groups, whatever their sizes; EE-L of 0 is fair: groups get their target."""

SHARES = ["exposure", "target", "useful_exposure", "attributed"]
_ORDER: tuple[Policy, ...] = ("plackett-luce", "deterministic", "oracle")
Labels = Mapping[tuple[str, str], Sequence[LabelRecord]]
"""By the names of the collection and of the generator."""


def official_of_deterministic(
    records: Sequence[PolicyRecord], collections: Mapping[str, RagCollection]
) -> DataFrame:
    """Return the measures of each retriever's one ranking with each generator.

    Collections with a utility that LaMP lacks are left out. A deterministic ranking is the same
    under every seed, so each query counts once, by the first seed with an answer.

    Args:
        records: The records of all policies, those of the first seed first.
        collections: By name; they have the golds.

    Returns:
        By collection, generator and retriever: over how many ``answers`` they are, how many
        generations ``failed`` and are left out, and the measures of
        :func:`fairqr.evaluation.lamp.metrics.official_metrics` by name.
    """
    import pandas as pd

    keys = ("collection", "generator", "retriever")
    found: dict[tuple[str, ...], dict[str, PolicyRecord]] = {}
    for record in records:
        utility = collections[record.collection].task.utility
        if record.policy == "deterministic" and record.answers and isinstance(utility, _LAMP):
            own = found.setdefault(tuple(getattr(record, name) for name in keys), {})
            if record.query not in own or not measures.is_answer(own[record.query].answers[0]):
                own[record.query] = record
    rows = []
    for key, own in found.items():
        collection = collections[key[0]]
        pairs = [
            (own[query.id].answers[0].text, query.golds[0])
            for query in collection.queries
            if query.id in own and measures.is_answer(own[query.id].answers[0])
        ]
        counts = {"answers": len(pairs), "failed": len(own) - len(pairs)}
        texts, golds = ([pair[side] for pair in pairs] for side in (0, 1))
        values = official_metrics(collection.task.utility, texts, golds)
        rows.append({**dict(zip(keys, key, strict=True)), **counts, **values})
    return pd.DataFrame(rows, columns=None if rows else keys)


@dataclass(frozen=True, slots=True)
class MeasuredRag(Measured):
    """The results of a Fair RAG experiment.

    Attributes:
        manifest: What it was run with.
        values: One row for each policy on each query and seed, in the order of the experiment:
            :data:`KEYS`, the ``kind`` of the policy, every measure by its name (NaN if it has no
            value), over how many things they are (see
            :class:`fairqr.evaluation.rag.measures.Cell`), what they cost, and why there is
            nothing (``failure``).
        reasons: For each row, and each measure without a value, the reason.
        groups: The exposure of each group: :data:`KEYS`, ``attribute``, ``group``, the sums of
            :func:`fairqr.evaluation.rag.measures.group_exposure`, and the ``rate`` of use.
        group_measures: Expected exposure by group, one row for each attribute; see
            :data:`OF_GROUPS`.
        labels: One row for each collection and generator: what its labels are like (see
            :func:`fairqr.evaluation.rag.labelling.summarise_labels`), and what they cost.
        official: LaMP's own measures of deterministic rankings; see
            :func:`fairqr.evaluation.rag.measuring.official_of_deterministic`.
        warnings: Sentences about missing results, for the report.
    """

    frame_names = ("values", "reasons", "means", "groups", "group_measures", "labels", "official")
    template = "fair_rag"
    report = "fairqr.evaluation.rag.report"

    manifest: RagManifest
    values: DataFrame
    reasons: DataFrame
    groups: DataFrame
    group_measures: DataFrame
    labels: DataFrame
    official: DataFrame
    warnings: tuple[str, ...] = ()

    @property
    def means(self) -> DataFrame:
        """The means of all measures, for each policy."""
        return means_of(self.values, POLICY, Name)

    @property
    def table(self) -> DataFrame:
        """The value of every measure of every policy on every query.

        If there is no value, the last column has the reason.
        """
        names = list(Name)
        found = self.values.melt(KEYS, names, "measure", "value", ignore_index=False)
        found["undefined"] = self.reasons.melt(None, names)["value"].to_numpy()
        return found.sort_index(kind="stable")


def policy_name(kind: Policy, alpha: float | None) -> str:
    """Return the name of a policy in tables, such as ``α = 4``."""
    return kind if alpha is None else f"α = {alpha:g}"


def measure_fair_rag(
    manifest: RagManifest,
    records: Sequence[PolicyRecord],
    labels: Labels,
    collections: Mapping[str, RagCollection],
) -> MeasuredRag:
    """Measure the results that an experiment has so far.

    Args:
        manifest: The settings of the run.
        records: One for each policy on each query, in any order.
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
    greatest = measures.greatest_utilities(records)
    memberships = _memberships(collections)
    ordered = sorted(records, key=_order(manifest, collections))
    cells = [
        measures.measure_record(it, greatest, memberships(it.collection, it.query, it.pool))
        for it in ordered
    ]
    values, reasons = frame_of(cells)
    groups, group_measures = _groups_of(cells, collections, values)
    by_seed = sorted(ordered, key=lambda record: record.seed)
    return MeasuredRag(
        manifest=manifest,
        values=values,
        reasons=reasons,
        groups=groups,
        group_measures=group_measures,
        labels=_labels_of(labels, manifest.experiment.min_useful),
        official=official_of_deterministic(by_seed, collections),
        warnings=tuple(_without_labels(manifest, values, labels)),
    )


def frame_of(cells: Sequence[Cell]) -> tuple[DataFrame, DataFrame]:
    """Return the measures of these cells, and why some have no value.

    Keys are ordered categories: in the order of the cells, policies by α, and the oracle, which has
    no retriever, last.
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
    """Return the exposure of each group, and expected exposure by group, in the order of values."""
    import pandas as pd

    columns = [*KEYS, "attribute"]
    rows, sums, by_attribute = [], [], []
    for record, _, groups, _ in cells:
        schema = collections[record.collection].schema
        for name, found in groups.items():
            names = (*schema.attributes[name].groups, UNKNOWN) if schema else ()
            rows += [{**_keys(record), "attribute": name, "group": group} for group in names]
            sums.append(found.T)
            shown, target, _, used, _ = found[:, :-1]
            loss = ((shown - target) ** 2).sum()
            squares = (shown**2).sum(), shown @ target, loss, (used**2).sum()
            by_attribute.append((*_keys(record).values(), name, *map(float, squares)))
    order = {name: values[name].dtype for name in POLICY}
    if not rows:
        found = pd.DataFrame(columns=[*columns, "group"]).astype(order)
        return found, found[columns]
    found = pd.DataFrame(rows).astype(order)
    found[[*measures.GROUP_SUMS]] = np.concatenate(sums)
    found["rate"] = (found.attributed / found.answered.where(found.answered > 0)).clip(upper=1)
    return found, pd.DataFrame(by_attribute, columns=[*columns, *OF_GROUPS]).astype(order)


def _labels_of(labels: Labels, min_useful: int) -> DataFrame:
    import pandas as pd

    found = pd.DataFrame(
        {
            "collection": collection,
            "generator": generator,
            **summarise_labels(own, min_useful),
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
        how many ``queries`` it is. Missing values are NaN.
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
        groups: The exposure of each group, of one attribute of one collection.

    Returns:
        By generator, retriever, policy and ``group``: its share of ``exposure``, of the ``target``,
        of the ``useful_exposure``, and of the use (``attributed``), and its attribution
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
    """Return the counts behind the values of each policy, and their whole cost.

    ``rows`` are queries and seeds, ``undrawn`` those without any ranking; the others are the sums
    of their columns, ``failed`` by status.
    """
    numbers = ["drawn", "generated", "distinct", "empty", "pairs", "unjudged", *COST]
    by_policy = values.assign(undrawn=values.drawn == 0).groupby(list(keys), observed=True)
    found = by_policy[["undrawn", *numbers]].sum()
    found["rows"] = by_policy.size()
    found["failed"] = by_policy["failed"].agg(lambda own: sum(own, Counter()))
    return found.reset_index()


def _order(
    manifest: RagManifest, collections: Mapping[str, RagCollection]
) -> Callable[[PolicyRecord], tuple[object, ...]]:
    """Return the key that sorts records in the order of the experiment; unknown queries last."""
    names = [entry.name for entry in manifest.collections]
    generators, retrievers = manifest.experiment.generators, manifest.experiment.retrievers
    queries = {
        (name, query.id): place
        for name, found in collections.items()
        for place, query in enumerate(found.queries)
    }
    return lambda record: (
        names.index(record.collection),
        generators.index(record.generator),
        [*retrievers, ""].index(record.retriever),
        record.policy,
        record.alpha or 0.0,
        queries.get((record.collection, record.query), len(queries)),
        record.query,
        record.seed,
    )


def _memberships(
    collections: Mapping[str, RagCollection],
) -> Callable[[str, str, tuple[str, ...]], dict[str, FloatArray]]:
    """Return a function that gives the memberships of a query's pool, each read once."""
    documents = {
        (name, query.id, document.id): document.groups
        for name, found in collections.items()
        for query in found.queries
        for document in query.pool
    }

    @cache
    def of(collection: str, query: str, pool: tuple[str, ...]) -> dict[str, FloatArray]:
        schema = collections[collection].schema
        groups = [documents.get((collection, query, id_), {}) for id_ in pool]
        return {
            name: measures.memberships_of(attribute, groups)
            for name, attribute in (schema.attributes.items() if schema else ())
        }

    return of


def _without_labels(
    manifest: RagManifest,
    values: DataFrame,
    labels: Labels,
) -> Iterator[str]:
    """Yield a sentence for each part whose rankings were made with labels that are gone."""
    titles = {entry.name: entry.title for entry in manifest.collections}
    for key, own in values.groupby(["collection", "generator"], observed=True):
        drawn = set(own["query"])
        if gone := drawn - {label.query for label in labels.get(key, ())}:
            yield (
                f"{titles[key[0]]}, {key[1]}: the labels of {len(gone)} of {len(drawn)} queries "
                "that were ranked are gone, so the part on labels is not about this run; restore "
                "the folder labels/, or run the experiment again."
            )
