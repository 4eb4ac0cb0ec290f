"""The results of a Fair RAG experiment, as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fairqr.base.errors import InputError
from fairqr.evaluation.experiments.catalogue import ExperimentResults
from fairqr.evaluation.rag.collection import RagCollection
from fairqr.evaluation.rag.measures import (
    GROUP_SUMS,
    KEYS,
    PART,
    POLICY,
    Name,
    greatest_utilities,
    measure_record,
)
from fairqr.evaluation.rag.specification import FairRagExperiment, Policy
from fairqr.evaluation.rag.store import PolicyRecord, RagManifest
from fairqr.evaluation.rag.summaries import (
    AIM,
    COST,
    EDGES,
    SHARES,
    curves_of,
    in_shares,
    intervals_of,
    means_of,
)
from fairqr.evaluation.rag.targets import aim_of, memberships_of
from fairqr.evaluation.scores import Reason
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.sources.schema import UNKNOWN

if TYPE_CHECKING:
    from pandas import DataFrame

COUNTED = ("documents", "unlabelled", "useful")
SIZES = ("documents_mean", "documents_sd", "useful_mean", "useful_sd", "share_mean")
LABELLED = ("labelled", "kept", *COUNTED, *SIZES)

OF_GROUPS = ["EE-D by group", "EE-R by group", "EE-L by group", "EAE-D by group"]
"""Σ ε², Σ ε·ε*, Σ (ε − ε*)² and Σ (ε^a)² over the known groups, in squared documents. The low end
of EE-D is even between groups, whatever their sizes; EE-L of 0 is fair: groups get their target."""

Row = dict[str, Any]
"""A row of a table, by its columns."""


@dataclass(frozen=True, slots=True)
class MeasuredRag(ExperimentResults):
    """The results of a Fair RAG experiment.

    Attributes:
        manifest: What it was run with.
        collections: By name, in the order of the experiment.
        values: One row for each policy on each query and seed, in the order of the experiment:
            :data:`KEYS`, the ``kind`` of the policy, every measure by its name (NaN if it has no
            value), over how many things they are (see
            :func:`measure_record`), what they cost, and why there is
            nothing (``failure``).
        reasons: For each row, and each measure without a value, the reason.
        groups: The exposure of each group: :data:`KEYS`, ``attribute``, ``group``, the sums of
            :data:`GROUP_SUMS`, the :data:`AIM` if there are group-aware samples, and the ``rate``
            of use.
        labels: One row for each collection and generator; see :func:`labels_of`.
    """

    frame_names = ("values", "reasons", "means", "groups", "group_measures", "labels")
    template = "fair_rag"
    report = "fairqr.evaluation.rag.report"

    manifest: RagManifest
    collections: Mapping[str, RagCollection]
    values: DataFrame
    reasons: DataFrame
    groups: DataFrame
    labels: DataFrame

    @property
    def means(self) -> DataFrame:
        """The means of all measures, for each policy."""
        return means_of(self.values, POLICY, Name)

    @property
    def group_measures(self) -> DataFrame:
        """Expected exposure by group, one row for each attribute; see :data:`OF_GROUPS`."""
        known = self.groups[self.groups.group != UNKNOWN]
        products = (
            known.exposure**2,
            known.exposure * known.target,
            (known.exposure - known.target) ** 2,
            known.attributed**2,
        )
        measured = known.assign(**dict(zip(OF_GROUPS, products, strict=True)))
        by_attribute = measured.groupby([*KEYS, "attribute"], observed=True, sort=False)
        return by_attribute[OF_GROUPS].sum().reset_index()

    @property
    def table(self) -> DataFrame:
        """The value of every measure of every policy on every query.

        If there is no value, the last column has the reason. At the end stand the shares of groups
        that there are, such as ``exposure, gender: female``; of all queries the differences of
        :func:`intervals_of`, slope and area of :func:`curves_of`, and under the policy ``labels``
        the counts of :func:`labels_of`.
        """
        import pandas as pd

        parts = [
            self._scores(),
            self._shares_of_groups(),
            self._interval_differences(),
            self._curves(),
            self.labels.melt(PART, LABELLED, "measure").assign(policy="labels"),
        ]
        columns = [*KEYS, "measure", "value", "undefined"]
        parts = [part.reindex(columns=columns) for part in parts if len(part)]
        table = pd.concat(parts, ignore_index=True)
        return table.dropna(subset=["value", "undefined"], how="all")

    def _scores(self) -> DataFrame:
        """Return the value of each measure, or the reason why there is none."""
        scores = self.values.melt(KEYS, [*Name], "measure", "value", ignore_index=False)
        scores["undefined"] = self.reasons.melt(None, [*Name])["value"].to_numpy()
        return scores.sort_index(kind="stable")

    def _shares_of_groups(self) -> DataFrame:
        """Return the shares of groups, under names such as ``exposure, gender: female``."""
        shares = in_shares(self.groups, [*KEYS, "attribute"])
        values = shares.melt([*KEYS, "attribute", "group"], SHARES, "measure").dropna()
        names = values.measure + ", " + values.attribute + ": " + values.group
        return values.assign(measure=names)[[*KEYS, "measure", "value"]]

    def _interval_differences(self) -> DataFrame:
        """Return the differences of utility to the one ranking, by intervals of disparity."""
        intervals = intervals_of(self.values, Name.EE_D, Name.EU_MAX)
        positions = intervals.get("interval", ())
        intervals["policy"] = [f"EE-D from {EDGES[position]:g}" for position in positions]
        intervals["measure"] = "EU/u_max less the one ranking's"
        return intervals.rename(columns={"difference": "value"})

    def _curves(self) -> DataFrame:
        """Return the slope and the area of each retriever's curve, by normalisation."""
        import pandas as pd

        by_collection = self.values.groupby("collection", observed=True)
        curves = pd.concat(
            curves_of(values).assign(collection=name) for name, values in by_collection
        )
        curves = curves.rename(columns={"normalisation": "policy"})
        ids = ["collection", "retriever", "policy"]
        return curves.melt(ids, ["slope", "area"], "measure")


def policy_name(kind: Policy, alpha: float | None) -> str:
    """Return the name of a policy in tables, such as ``α = 4``."""
    if alpha is None:
        return kind
    by_group = ", by group" if kind == "group-aware" else ""
    return f"α = {alpha:g}{by_group}"


def measure_fair_rag(
    manifest: RagManifest, records: Iterable[PolicyRecord], collections: Mapping[str, RagCollection]
) -> MeasuredRag:
    """Measure the results that an experiment has so far.

    Args:
        manifest: The settings of the run.
        records: One for each policy on each query, in any order, labels among them.
        collections: By name; for golds and the groups of documents.

    Raises:
        InputError: Nothing was drawn yet.
    """
    experiment = manifest.experiment
    positions: dict[tuple[str, str], int] = {}
    for name, collection in collections.items():
        for query in collection.queries:
            positions[name, query.id] = len(positions)

    def place(record: PolicyRecord) -> tuple[int, int]:
        return positions[record.collection, record.query], record.seed

    ordered = sorted(records, key=place)
    labels = [record for record in ordered if record.policy == "labels"]
    drawn = [record for record in ordered if record.policy != "labels"]
    if not any(record.samples for record in drawn):
        raise InputError("The experiment has no rankings yet; its labels may keep no query.")
    gains = {(label.collection, label.generator, label.query): label.gains for label in labels}
    greatest = greatest_utilities(drawn)
    pools = _PoolGroups(experiment, collections)
    rows: list[Row] = []
    groups: list[Row] = []
    for record in drawn:
        of_query = gains.get((record.collection, record.generator, record.query), np.empty(0))
        measured, documents = measure_record(record, greatest, of_query, experiment.reader)
        keys = _keys_of(record)
        cost = {name: getattr(record, name) for name in (*COST, "failure")}
        rows.append({**keys, "kind": record.policy, **measured, **cost})
        if documents.size:
            groups += [{**keys, **row} for row in pools.rows(record, documents)]
    order = _order(experiment, collections)
    values = _in_order(rows, order)
    reasons = values[[*Name]].map(_reason)
    values[[*Name]] = values[[*Name]].where(reasons.isna()).astype(float)
    of_groups = _in_order(groups, order, *KEYS, "attribute", "group", *GROUP_SUMS, AIM)
    answered = of_groups.answered.where(of_groups.answered > 0)
    rate = (of_groups.attributed / answered).clip(upper=1)
    return MeasuredRag(
        manifest=manifest,
        collections=collections,
        values=values,
        reasons=reasons,
        groups=of_groups.assign(rate=rate),
        labels=labels_of(labels, experiment.min_useful),
    )


def _keys_of(record: PolicyRecord) -> Row:
    """Return the columns that identify a row."""
    keys = {name: getattr(record, name) for name in KEYS}
    keys["policy"] = policy_name(record.policy, record.alpha)
    return keys


def _reason(value: object) -> str | None:
    return str(value) if isinstance(value, Reason) else None


class _PoolGroups:
    """Sums what documents get by the groups that they belong to.

    Args:
        experiment: Which attribute policies mind.
        collections: By name, in which the pools are.
    """

    def __init__(
        self, experiment: FairRagExperiment, collections: Mapping[str, RagCollection]
    ) -> None:
        self._experiment = experiment
        self._collections = collections
        self._pools: dict[tuple[str, str], list[Mapping[str, Mapping[str, float]]]] = {}
        for name, collection in collections.items():
            for query in collection.queries:
                self._pools[name, query.id] = [document.groups for document in query.pool]

    def rows(self, record: PolicyRecord, documents: FloatArray) -> Iterator[Row]:
        """Yield a row for each group of each attribute.

        Args:
            record: A policy on a query.
            documents: The values of :data:`GROUP_SUMS` of each document, shape (5, n).
        """
        schema = self._collections[record.collection].schema
        if schema is None:
            return
        pool = self._pools[record.collection, record.query]
        for name, attribute in schema.attributes.items():
            members = memberships_of(attribute, pool)
            sums = (documents @ members).T.tolist()
            aims = [np.nan] * len(sums)
            if name == self._experiment.group_aware:
                known = members[:, :-1]
                aims = [*aim_of(attribute, known, record.k), np.nan]
            groups = (*attribute.groups, UNKNOWN)
            for group, of_group, aim in zip(groups, sums, aims, strict=True):
                values = dict(zip(GROUP_SUMS, of_group, strict=True))
                yield {"attribute": name, "group": group, **values, AIM: aim}


def _order(
    experiment: FairRagExperiment, collections: Mapping[str, RagCollection]
) -> dict[str, Sequence[str]]:
    """Return the order of the names in the columns that rows are sorted by."""
    alphas = sorted(experiment.alphas)
    random = []
    for kind in experiment.random:
        random += [policy_name(kind, alpha) for alpha in alphas]
    return {
        "collection": [*collections],
        "generator": [*experiment.labellers],
        "retriever": [*experiment.retrievers, ""],
        "policy": [*random, "deterministic", "oracle"],
    }


def _in_order(rows: Sequence[Row], order: Mapping[str, Sequence[str]], *columns: str) -> DataFrame:
    """Return rows in the order of names, which are ordered categories."""
    import pandas as pd

    table = pd.DataFrame(rows, columns=columns or None)
    kinds = {name: pd.CategoricalDtype(names, ordered=True) for name, names in order.items()}
    return table.astype(kinds).sort_values([*order], kind="stable", ignore_index=True)


def labels_of(labels: Iterable[PolicyRecord], min_useful: int) -> DataFrame:
    """Describe labels, as in Appendix D of the Fair RAG paper.

    Returns:
        By collection and generator how many queries are ``labelled``; how many of them are
        ``kept``, since they have enough useful documents, and of these how many ``documents`` their
        pools hold together, how many are ``unlabelled``, since the generator failed, how many are
        ``useful``, and ``documents_mean`` and ``useful_mean`` per query with their sample standard
        deviations, and ``share_mean``, the mean over queries of the share that is useful; why
        queries were ``dropped``, with how many; and what they cost.
    """
    import pandas as pd

    rows = []
    for label in labels:
        ids = [getattr(label, name) for name in (*PART, *COST)]
        reason = label.why_dropped(min_useful)
        unlabelled = sum(answer.utility is None for answer in label.answers)
        sizes = [np.nan] * 3
        if not reason:
            sizes = [len(label.pool), unlabelled, len(label.useful)]
        rows.append([*ids, reason, *sizes])
    table = pd.DataFrame(rows, columns=[*PART, *COST, "dropped", *COUNTED])
    table = table.astype(dict.fromkeys((*COST, *COUNTED), float))
    table["share"] = table.useful / table.documents
    by_part = table.groupby(PART, sort=False)
    sums = by_part[[*COST, *COUNTED]].sum().astype(dict.fromkeys(COUNTED, int))
    return sums.assign(
        labelled=by_part.size(),
        kept=by_part.useful.count(),
        dropped=by_part.dropped.agg(lambda reasons: Counter(filter(None, reasons))),
        documents_mean=by_part.documents.mean(),
        documents_sd=by_part.documents.std(),
        share_mean=by_part.share.mean(),
        useful_mean=by_part.useful.mean(),
        useful_sd=by_part.useful.std(),
    ).reset_index()
