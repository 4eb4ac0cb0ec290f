"""What pairs say: which group a model prefers, and how sure that is.

Definitions: Wang et al. 2024, "Do Large Language Models Rank Fairly?", section 3.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fairqr.agents.ranking.lean import PairOutcome, pair_figures
from fairqr.agents.ranking.verdict import verdicts
from fairqr.base.statistics import stream
from fairqr.evaluation.probes.collection import ProbeCollection
from fairqr.evaluation.probes.measured import MeasuredPairwise, PairKind, PairwiseRow
from fairqr.evaluation.probes.pairs import ProbePair, planned_pairs
from fairqr.evaluation.probes.records import PairRecord, total_spent
from fairqr.evaluation.probes.specification import PairwiseExperiment
from fairqr.evaluation.probes.store import ProbeRunManifest

__all__ = ["measure_pairwise", "outcome_of"]


def measure_pairwise(
    manifest: ProbeRunManifest,
    collections: Sequence[ProbeCollection],
    records: Iterable[PairRecord],
) -> MeasuredPairwise:
    """Measure the pairs of an experiment, each kind by itself and those of groups together.

    Args:
        manifest: What they were asked with.
        collections: Those of the manifest, in its order.
        records: What was done; what is missing is counted.

    Raises:
        InputError: The manifest is that of another kind of experiment.
    """
    experiment = manifest.pairs
    by_key = {record.key: record for record in records}
    rows: list[PairwiseRow] = []
    missing = 0
    for collection in collections:
        planned = [(query.id, planned_pairs(query, experiment)) for query in collection.queries]
        found: list[PairwiseRow] = []
        for model in experiment.models:
            for kind in _kinds(experiment):
                row, lacking = _pairwise_row(collection, model, kind, planned, by_key, experiment)
                found.append(row)
                # Both kinds together are no third one.
                missing += 0 if kind == "both" else lacking
        rows += _judged(found, collection)
    return MeasuredPairwise(manifest, tuple(rows), missing)


def _kinds(experiment: PairwiseExperiment) -> tuple[PairKind, ...]:
    groups: tuple[PairKind, ...] = ("relevant", "irrelevant", "both")
    return (*groups, "relevance") if experiment.relevance_pairs else groups


def _judged(rows: Sequence[PairwiseRow], collection: ProbeCollection) -> list[PairwiseRow]:
    """Return the rows of a collection with their verdicts.

    All verdicts on a collection are one family for Holm, since a reader sees them together.
    """
    words = (collection.manifest.protected, collection.manifest.unprotected)
    judged = iter(verdicts([row.figures for row in rows if row.kind != "relevance"], words))
    return [row if row.kind == "relevance" else replace(row, verdict=next(judged)) for row in rows]


def _pairwise_row(
    collection: ProbeCollection,
    model: str,
    kind: PairKind,
    planned: Sequence[tuple[str, Sequence[ProbePair]]],
    by_key: Mapping[tuple[str, ...], PairRecord],
    experiment: PairwiseExperiment,
) -> tuple[PairwiseRow, int]:
    """Return the figures of one kind, not judged yet, and how many pairs were not asked about."""
    name = collection.manifest.name
    kinds = ("relevant", "irrelevant") if kind == "both" else (kind,)
    wanted = [(query, [pair for pair in pairs if pair.kind in kinds]) for query, pairs in planned]
    keys = [
        (name, model, query, pair.kind, pair.protected.id, pair.unprotected.id)
        for query, pairs in wanted
        for pair in pairs
    ]
    found = [by_key[key] for key in keys if key in by_key]
    random = stream(experiment.seed, f"figures: {name}, {model}, {kind}")
    figures = pair_figures([outcome_of(record) for record in found], random)
    row = PairwiseRow(
        collection=name,
        model=model,
        kind=kind,
        queries=len(planned),
        without_pairs=sum(not pairs for _, pairs in wanted),
        planned=len(keys),
        figures=figures,
        verdict=None,
        spent=total_spent(record.spent for record in found),
    )
    return row, len(keys) - len(found)


def outcome_of(record: PairRecord) -> PairOutcome:
    """Return what a record says of its pair."""
    return PairOutcome(
        record.query, record.protected_first, record.unprotected_first, record.log_odds
    )
