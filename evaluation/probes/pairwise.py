"""Measures of pairs: which item wins in both orders, and what a tuning changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from fairqr.agents import statistics
from fairqr.agents.models.opening import CAUSAL
from fairqr.agents.ranking import preference
from fairqr.evaluation.probes.collection import (
    ProbeCollection,
    ProbePair,
    ProbeQuery,
    planned_pairs,
)
from fairqr.evaluation.probes.measured import MeasuredProbe, Row, judged
from fairqr.evaluation.probes.store import STAGES, PairRecord, ProbeStore
from fairqr.evaluation.probes.tuning_changes import GROUPS, changes_of
from fairqr.graph.probe.verdicts import verdict_in_words

if TYPE_CHECKING:
    from pandas import DataFrame

SHARES = {
    "protected": "protected",
    "unprotected": "unprotected",
    "flips": "flips",
    "consistent": "protected of consistent",
    "votes": "votes for protected",
    "averaged": "averaged protected",
}
"""The names of the shares of :class:`fairqr.agents.ranking.preference.PairFigures` in CSV files."""

VALUES = ["measure", "value", "low", "high", "count", "of"]

Records = Mapping[tuple[str, ...], PairRecord]
"""Records of pairs, by their stage and key."""


@dataclass(frozen=True)
class MeasuredPairwise(MeasuredProbe):
    """The results of a pairwise experiment.

    Attributes:
        figures: One row for each collection, model and kind of pairs, in the experiment's order:
            what :func:`figure_row` returns; how many ``queries_in_all`` there are, how many of them
            have no such pair (``without_pairs``), and how many pairs are ``planned``; the
            ``verdict`` and its ``sentence``, ``favoured`` and ``p_holm``, where all verdicts on a
            collection are one family; ``model_calls`` and ``tokens``.
    """

    frame_names: ClassVar[tuple[str, ...]] = ("figures",)
    template = "pairwise"

    figures: DataFrame

    @property
    def table(self) -> DataFrame:
        """The figures, one in each row; the pairs themselves are in ``pairs.jsonl``."""
        return _table(self.figures, ["collection", "model", "kind"])


@dataclass(frozen=True)
class MeasuredLora(MeasuredPairwise):
    """The results of a tuning; in its figures ``when`` is ``before`` or ``after``.

    Attributes:
        changes: One row for each collection, kind and ``measure``, see :func:`changes_of`, as
            :func:`judged` returns them. All tests and verdicts on a collection are one family.
        losses: One row for each step, in order.
    """

    frame_names = ("figures", "changes", "losses")
    template = "tuning"

    changes: DataFrame
    losses: DataFrame

    @property
    def table(self) -> DataFrame:
        """The figures before and after, and then what changed, one in each row."""
        import pandas as pd

        figures = _table(self.figures, ["collection", "kind", "when"])
        renamed = {"kind": "pairs", "pairs": "of", "difference": "value"}
        changes = self.changes.rename(columns=renamed).assign(when="change", count=None)
        return pd.concat([figures, changes[[*figures.columns]]])


def measure_pairs(store: ProbeStore) -> MeasuredPairwise:
    """Measure pairs: each kind alone, and the two of groups together; and what a tuning changed."""
    import pandas as pd

    manifest = store.manifest()
    records: dict[tuple[str, ...], PairRecord] = {}
    for stage in STAGES[manifest.experiment.kind]:
        for record in store.lines(stage).read():
            records[stage, *record.key] = record
    rows: list[Row] = []
    changes: list[Row] = []
    preferences: list[Row] = []
    for collection in store.collections():
        measured = _PairsOfCollection(store, collection, records)
        measured.measure()
        rows += measured.judged_rows()
        preferences += measured.preferences()
        changes += measured.changes
    # ``both`` counts the same pairs again.
    missing = sum(row["planned"] - row["pairs"] for row in rows if row["kind"] != "both")
    if not manifest.tuning:
        return MeasuredPairwise(manifest, missing, pd.DataFrame(rows))
    losses = [record.model_dump() for record in store.losses.read()]
    losses.sort(key=lambda loss: int(loss["step"]))
    # The verdicts on figures count in the same family as the changes.
    tests = judged(pd.DataFrame([*changes, *preferences]))
    judged_changes = tests.iloc[: len(changes)].astype({"pairs": int})
    return MeasuredLora(manifest, missing, pd.DataFrame(rows), judged_changes, pd.DataFrame(losses))


class _PairsOfCollection:
    """Measures the pairs of one collection.

    A reader sees all verdicts on a collection together, so they are one family for Holm.

    Args:
        store: The folder of the run.
        collection: The collection.
        records: What was said of pairs.

    Attributes:
        changes: What a tuning changed, by kind and measure; empty without a tuning.
    """

    def __init__(self, store: ProbeStore, collection: ProbeCollection, records: Records) -> None:
        self.changes: list[Row] = []
        self._manifest = store.manifest()
        self._experiment: Any = self._manifest.experiment
        self._stages = STAGES[self._experiment.kind]
        self._name = collection.manifest.name
        self._words = collection.manifest.sides.words
        self._records = records
        self._queries = self._probed(collection.queries)
        self._planned = self._pairs()
        self._rows: list[Row] = []
        self._figures: list[preference.PairFigures] = []

    def _probed(self, queries: Sequence[ProbeQuery]) -> Sequence[ProbeQuery]:
        """Return the queries that are probed: all, or those that a tuning holds out."""
        tuning = self._manifest.tuning
        if tuning is None:
            return queries
        return [query for query in queries if query.id in tuning.held_out]

    def _pairs(self) -> list[tuple[str, ProbePair]]:
        """Return all pairs that are asked about, each with the id of its query."""
        experiment = self._experiment
        limit = experiment.held_out_pairs if self._manifest.tuning else experiment.pairs
        planned: list[tuple[str, ProbePair]] = []
        for query in self._queries:
            pairs = planned_pairs(query, limit, experiment.relevance_pairs, experiment.seed)
            planned += [(query.id, pair) for pair in pairs]
        return planned

    def measure(self) -> None:
        """Measure all pairs, by model and kind."""
        tuning = self._manifest.tuning
        models = [f"{CAUSAL}:{tuning.base}"] if tuning else self._experiment.models
        kinds = dict(GROUPS)
        if self._experiment.relevance_pairs:
            # These pairs are about no group: a relevant item replaces the protected one.
            kinds["relevance"] = ("relevance",)
        for model in models:
            for kind, kinds_of_records in kinds.items():
                keys = [
                    (self._name, model, query, *pair.key)
                    for query, pair in self._planned
                    if pair.kind in kinds_of_records
                ]
                for stage in self._stages:
                    self._measure_stage(stage, model, kind, keys)
                if tuning:
                    self._measure_changes(kind, keys)

    def _measure_stage(
        self, stage: str, model: str, kind: str, keys: Sequence[tuple[str, ...]]
    ) -> None:
        """Measure the pairs of a kind, as a model judged them before or after a tuning."""
        answered = [key for key in keys if (stage, *key) in self._records]
        records = [self._records[stage, *key] for key in answered]
        label = stage if self._manifest.tuning else model
        random = statistics.stream(self._experiment.seed, f"figures: {self._name}, {label}, {kind}")
        figures = preference.pair_figures(map(outcome_of, records), random)
        queries_with_pairs = {key[2] for key in keys}
        self._figures.append(figures)
        self._rows.append(
            {
                "collection": self._name,
                "when" if self._manifest.tuning else "model": label,
                "kind": kind,
                **figure_row(figures),
                "queries_in_all": len(self._queries),
                "without_pairs": len(self._queries) - len(queries_with_pairs),
                "planned": len(keys),
                "model_calls": sum(record.spent["model_calls"] for record in records),
                "tokens": sum(record.spent["tokens"] for record in records),
            }
        )

    def _measure_changes(self, kind: str, keys: Sequence[tuple[str, ...]]) -> None:
        """Compare the pairs of a kind before and after a tuning, where both are known."""
        couples = []
        for key in keys:
            before_and_after = [self._records.get((stage, *key)) for stage in self._stages]
            outcomes = [outcome_of(record) for record in before_and_after if record]
            if len(outcomes) == len(self._stages):
                couples.append(outcomes)
        random = statistics.stream(self._experiment.seed, f"change: {self._name}, {kind}")
        for change in changes_of(couples, kind, random):
            self.changes.append({"collection": self._name, "kind": kind, **change})

    def judged_rows(self) -> list[Row]:
        """Return the figures with their verdicts."""
        p_of_changes = [change["p"] for change in self.changes]
        verdicts = preference.verdicts(self._figures, beside=p_of_changes)
        rows = []
        for row, verdict, figures in zip(self._rows, verdicts, self._figures, strict=True):
            judgement = {
                "verdict": verdict.kind,
                "favoured": verdict.favoured,
                "p_holm": verdict.p,
                "sentence": verdict_in_words(verdict, figures, self._words),
            }
            rows.append(row | judgement)
        return rows

    def preferences(self) -> list[Row]:
        """Return the tests of preferences, to be corrected together with the changes."""
        return [
            {"collection": self._name, "n": 0, "p": preference.p_of_preference(figures)}
            for figures in self._figures
        ]


def outcome_of(record: PairRecord) -> preference.PairOutcome:
    """Return the outcome in a record."""
    return preference.PairOutcome(
        record.query, record.protected_first, record.unprotected_first, record.log_odds
    )


def figure_row(figures: preference.PairFigures) -> Row:
    """Return figures of pairs as the columns of a row; missing values are None.

    Each of :data:`SHARES` has five columns: its value, the ends of its interval (``…_low``,
    ``…_high``), its count and its total. ``failed`` is the sum of ``failures``.
    """
    row: Row = {field.name: getattr(figures, field.name) for field in fields(figures)}
    intervals = {"ratio": row.pop("ratio_interval")}
    for name in SHARES:
        share = row[name]
        row |= {name: share.value, f"{name}_count": share.count, f"{name}_of": share.of}
        intervals[name] = share.interval
    for name, interval in intervals.items():
        for end in ("low", "high"):
            row[f"{name}_{end}"] = getattr(interval, end, None)
    return row | {"failed": figures.failed}


def _table(figures: DataFrame, ids: Sequence[str]) -> DataFrame:
    """Return a table with one of the figures of each row in each of its rows."""
    import pandas as pd

    rows: list[tuple[object, ...]] = []
    for row in figures.itertuples():
        own_ids = [getattr(row, name) for name in ids]
        rows += [(*own_ids, *values) for values in _values_of(row)]
    names = ["pairs" if name == "kind" else name for name in ids]
    return pd.DataFrame(rows, columns=[*names, *VALUES], dtype=object)


def _values_of(row: Any) -> list[tuple[object, ...]]:
    """Return the figures of a row, as :data:`VALUES` names them."""
    values: list[tuple[object, ...]] = []
    for name, title in SHARES.items():
        columns = [f"{name}{ending}" for ending in ("", "_low", "_high", "_count", "_of")]
        values.append((title, *(getattr(row, column) for column in columns)))
    values += [
        ("ratio", row.ratio, row.ratio_low, row.ratio_high, None, None),
        ("p over pairs", row.p, None, None, None, row.consistent_of),
        ("p over queries", row.over_queries, None, None, None, row.consistent_queries),
        ("p of position", row.position_p, None, None, None, row.flips_count),
    ]
    for status, count in row.failures.items():
        values.append((f"failed: {status}", None, None, None, count, row.replies))
    return values
