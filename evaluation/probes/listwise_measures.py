"""What rankings say: relevance, exposure of the groups, and fairness to the askers.

Definitions: Wang et al. 2024, "Do Large Language Models Rank Fairly?", section 3.2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np

from fairqr.agents.ranking.item_ranker import Asker
from fairqr.base.statistics import (
    Randomisation,
    corrected_by_holm,
    mean_interval,
    paired_randomisation,
    paired_t,
    stream,
)
from fairqr.evaluation.probes.collection import ProbeCollection, ProbeQuery
from fairqr.evaluation.probes.measured import (
    AskerDifference,
    Average,
    ListwiseRow,
    MeasuredListwise,
    QueryValues,
    RankDistribution,
)
from fairqr.evaluation.probes.rankers import INITIAL, windows_of
from fairqr.evaluation.probes.records import RankingRecord, total_spent
from fairqr.evaluation.probes.specification import ListwiseExperiment
from fairqr.evaluation.probes.store import ProbeRunManifest
from fairqr.evaluation.relevance import ndcg, precision
from fairqr.retrieval.exposure_ratio import exposure_ratio

__all__ = [
    "BINS",
    "QUANTILES",
    "average",
    "measure_listwise",
    "query_values",
    "rank_distribution",
]

BINS = 20
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)

Measure = Literal["precision", "ndcg"]


def measure_listwise(
    manifest: ProbeRunManifest,
    collections: Sequence[ProbeCollection],
    records: Iterable[RankingRecord],
) -> MeasuredListwise:
    """Measure the rankings of an experiment.

    Args:
        manifest: What they were made with.
        collections: Those of the manifest, in its order.
        records: What was done; what is missing is counted.

    Raises:
        InputError: The manifest is that of another kind of experiment.
    """
    experiment = manifest.rankings
    by_key = {record.key: record for record in records}
    rows: list[ListwiseRow] = []
    missing = 0
    for collection in collections:
        for ranker in experiment.rankers:
            for window in windows_of(experiment, ranker):
                for asker in experiment.askers:
                    key = (collection.manifest.name, ranker, window, asker)
                    found = {
                        query.id: by_key[(*key, query.id)]
                        for query in collection.queries
                        if (*key, query.id) in by_key
                    }
                    missing += len(collection.queries) - len(found)
                    rows.append(_row(collection, ranker, window, asker, found, experiment))
    return MeasuredListwise(manifest, tuple(rows), _differences(rows, experiment.seed), missing)


def _row(
    collection: ProbeCollection,
    ranker: str,
    window: str,
    asker: Asker,
    records: Mapping[str, RankingRecord],
    experiment: ListwiseExperiment,
) -> ListwiseRow:
    run = [(query, records[query.id]) for query in collection.queries if query.id in records]
    values = tuple(query_values(query, record, experiment.k) for query, record in run)
    not_run = len(collection.queries) - len(run)
    why = {"precision": "", "ndcg": "nothing_relevant", "ratio": "empty_group"}

    def averaged(measure: Literal["precision", "ndcg", "ratio"]) -> Average:
        left_out = Counter({"not_run": not_run})
        for each in values:
            if getattr(each, measure) is None:
                left_out["failed" if each.status == "failed" else why[measure]] += 1
        there = [value for each in values if (value := getattr(each, measure)) is not None]
        return average(there, left_out)

    return ListwiseRow(
        collection=collection.manifest.name,
        ranker=ranker,
        window=window,
        asker=asker,
        queries=len(collection.queries),
        precision=averaged("precision"),
        ndcg=averaged("ndcg"),
        ratio=averaged("ratio"),
        ranks=rank_distribution(
            [_protected(query, record) for query, record in run if not record.failed],
            experiment.k,
        ),
        asked=sum(record.asked for _, record in run),
        failures=_added(record.failures for _, record in run),
        repairs=_added(record.repairs for _, record in run),
        warnings=_added(dict.fromkeys(record.warnings, 1) for _, record in run),
        spent=total_spent(record.spent for _, record in run),
        by_query=values,
    )


def query_values(query: ProbeQuery, record: RankingRecord, k: int) -> QueryValues:
    """Measure one list.

    Args:
        query: Whose items.
        record: How they were ranked.
        k: Depth of P@k and nDCG@k; the ratio is of the whole list.
    """
    if record.failed:
        return QueryValues(query.id, None, None, None, "failed")
    relevant = np.array([query.items[place].relevant for place in record.order], dtype=np.float64)
    total = int(relevant.sum())
    return QueryValues(
        query.id,
        precision=float(precision(relevant, k)),
        ndcg=float(ndcg(relevant, np.ones(total), k=k)) if total else None,
        ratio=exposure_ratio(_protected(query, record)),
        share=float(np.mean(_protected(query, record))) if record.order else None,
    )


def average(values: Sequence[float], left_out: Mapping[str, int] | None = None) -> Average:
    """Average values of queries; those that have none are only counted.

    Args:
        values: One for each query that has one.
        left_out: Why others have none, with how many.
    """
    return Average(
        n=len(values),
        mean=float(np.mean(values)) if values else None,
        sd=float(np.std(values, ddof=1)) if len(values) > 1 else None,
        interval=mean_interval(values),
        left_out={name: count for name, count in (left_out or {}).items() if count},
    )


def rank_distribution(lists: Sequence[Sequence[bool]], k: int) -> RankDistribution:
    """Tell where the protected items stand.

    Args:
        lists: For each query, in order of rank, whether the item is protected.
        k: How many of the first count as the top.
    """
    places: list[float] = []
    ranks: list[int] = []
    top: list[float] = []
    whole: list[float] = []
    for protected in lists:
        mask = np.asarray(protected, dtype=bool)
        if not mask.size:
            continue
        found = np.flatnonzero(mask)
        ranks.extend((found + 1).tolist())
        places.extend(((found + 0.5) / mask.size).tolist())
        top.append(float(mask[:k].mean()))
        whole.append(float(mask.mean()))
    counts, _ = np.histogram(places, bins=BINS, range=(0, 1))
    return RankDistribution(
        items=len(places),
        queries=len(top),
        normalised=tuple(sorted(places)),
        counts=tuple(counts.tolist()),
        quantiles=_quantiles(places),
        rank_quantiles=_quantiles(ranks),
        mean=float(np.mean(places)) if places else None,
        top=float(np.mean(top)) if top else None,
        expected_top=float(np.mean(whole)) if whole else None,
    )


def _differences(rows: Sequence[ListwiseRow], seed: int) -> tuple[AskerDifference, ...]:
    """Compare the two sensitive askers, by ranker and window."""
    by_asker: dict[tuple[str, str, str], dict[Asker, ListwiseRow]] = {}
    for row in rows:
        by_asker.setdefault((row.collection, row.ranker, row.window), {})[row.asker] = row
    found: list[AskerDifference] = []
    measures: tuple[Measure, ...] = ("precision", "ndcg")
    for measure in measures:
        tested = [
            _difference(key, measure, askers["protected"], askers["unprotected"], seed)
            for key, askers in by_asker.items()
            if "protected" in askers and "unprotected" in askers
        ]
        # The initial order is the same for both askers: no test of a ranker.
        corrected = corrected_by_holm(
            [None if key[1] == INITIAL or test is None else test.p for key, *_, test in tested]
        )
        found += [
            AskerDifference(*key, measure, difference, t, randomisation, holm_p)
            for (key, difference, t, randomisation), holm_p in zip(tested, corrected, strict=True)
        ]
    return tuple(found)


def _difference(
    key: tuple[str, str, str],
    measure: Measure,
    protected: ListwiseRow,
    unprotected: ListwiseRow,
    seed: int,
) -> tuple[tuple[str, str, str], Average, float | None, Randomisation | None]:
    one = {each.query: getattr(each, measure) for each in protected.by_query}
    other = {each.query: getattr(each, measure) for each in unprotected.by_query}
    # In the collection's order, whatever the order of the records.
    differences = [
        one[query] - other[query]
        for query in one
        if one[query] is not None and other.get(query) is not None
    ]
    left_out = {"one_asker_lacks_it": protected.queries - len(differences)}
    name = f"{measure}: {', '.join(key)}"
    difference = average(differences, left_out)
    return (
        key,
        difference,
        paired_t(differences),
        paired_randomisation(differences, stream(seed, f"test of {name}")),
    )


def _protected(query: ProbeQuery, record: RankingRecord) -> list[bool]:
    return [query.items[place].protected for place in record.order]


def _quantiles(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(np.quantile(values, QUANTILES).tolist()) if values else ()


def _added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(sorted(total.items()))
