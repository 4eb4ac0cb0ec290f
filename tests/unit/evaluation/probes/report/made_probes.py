"""Probes whose records are made by hand: how a model ranks and prefers is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fairqr.agents.ranking.item_ranker import Asker
from fairqr.evaluation.probes.collection import (
    CELLS,
    Order,
    ProbeCollection,
    ProbeItem,
    ProbeManifest,
    ProbeQuery,
    shortfalls,
)
from fairqr.evaluation.probes.pairs import planned_pairs
from fairqr.evaluation.probes.records import PairRecord, RankingRecord, Spent
from fairqr.evaluation.probes.specification import ListwiseExperiment, PairwiseExperiment
from fairqr.evaluation.probes.store import (
    CollectionEntry,
    ProbeRunManifest,
    ProbeStore,
    PromptEntry,
)

__all__ = [
    "ASKERS",
    "Ranks",
    "begin_listwise",
    "begin_pairwise",
    "by_protection",
    "collection",
    "given",
    "manifest",
    "ranking",
]

ASKERS: tuple[Asker, ...] = ("neutral", "unprotected", "protected")

Ranks = Callable[[ProbeQuery, Asker], Sequence[int]]


def collection(
    *,
    queries: int = 8,
    sizes: Sequence[int] = (5, 5, 5, 5),
    name: str = "notables, gender",
    words: tuple[str, str] = ("female", "male"),
    order: Order = "shuffled",
    **changes: Any,
) -> ProbeCollection:
    """Make lists with so many items in each of the four cells, mixed alike in every query."""
    made = []
    full = max(sizes)
    for number in range(queries):
        items = [
            ProbeItem(
                id=f"{number}-{cell}-{place}",
                title=f"{cell} {place} of {number}",
                relevant=cell.startswith("relevant"),
                protected=cell.endswith("_protected"),
            )
            for cell, size in zip(CELLS, sizes, strict=True)
            for place in range(size)
        ]
        mixed = np.random.default_rng(number).permutation(len(items))
        lacking = {
            cell: full - size for cell, size in zip(CELLS, sizes, strict=True) if size < full
        }
        made.append(
            ProbeQuery(
                id=f"q{number}",
                query=f"topic {number}",
                items=tuple(items[place] for place in mixed),
                short=lacking,
            )
        )
    values: dict[str, Any] = {
        "name": name,
        "source": "notables",
        "source_fingerprint": "f" * 64,
        "attribute": "gender",
        "protected": words[0],
        "unprotected": words[1],
        "protected_groups": (words[0],),
        "unprotected_groups": (words[1],),
        "size": 4 * full,
        "order": order,
        "seed": 0,
        "texts": False,
        "queries": queries,
        "short": shortfalls(made),
    }
    return ProbeCollection(
        manifest=ProbeManifest.model_validate({**values, **changes}), queries=tuple(made)
    )


def given(query: ProbeQuery, asker: Asker) -> Sequence[int]:
    """Leave the order as it is."""
    return range(len(query.items))


def by_protection(query: ProbeQuery, asker: Asker) -> Sequence[int]:
    """Put relevant items first, and of equal relevance the protected ones."""
    keys = [(not item.relevant, not item.protected) for item in query.items]
    return sorted(range(len(keys)), key=keys.__getitem__)


def ranking(
    probe: ProbeCollection,
    ranks: Ranks,
    ranker: str,
    *,
    window: str = "20/10",
    askers: Sequence[Asker] = ASKERS,
    **changes: Any,
) -> list[RankingRecord]:
    """Rank every list for every asker."""
    return [
        RankingRecord(
            **{
                "collection": probe.manifest.name,
                "ranker": ranker,
                "window": window,
                "asker": asker,
                "query": query.id,
                "order": tuple(ranks(query, asker)),
                "asked": 3 if window else 0,
                "spent": Spent(model_calls=3, tokens=100),
                **changes,
            }
        )
        for asker in askers
        for query in probe.queries
    ]


def manifest(
    experiment: ListwiseExperiment | PairwiseExperiment,
    collections: Sequence[ProbeCollection],
    **changes: Any,
) -> ProbeRunManifest:
    """Describe a run."""
    values: dict[str, Any] = {
        "versions": {"fairqr": "0.0"},
        "started": "2025-01-01T00:00:00Z",
        "experiment": experiment,
        "collections": tuple(CollectionEntry.of(one) for one in collections),
        "prompts": (PromptEntry(prompt="listwise=v1", sha256="a" * 64, asked=("model",)),),
    }
    return ProbeRunManifest.model_validate({**values, **changes})


def begin_listwise(
    folder: Any,
    collections: Sequence[ProbeCollection],
    records: Sequence[RankingRecord],
    *,
    notes: Sequence[str] = (),
    **changes: Any,
) -> ProbeStore:
    """Write a listwise run; the rankers are those of the records where none is named."""
    experiment = ListwiseExperiment.model_validate(
        {
            "kind": "llm_listwise",
            "title": "Lists",
            "collection": "notables",
            "sources": [{"attribute": "gender", "protected": "female"}],
            "rankers": list(dict.fromkeys(record.ranker for record in records)) or ["model"],
            "k": 10,
            **changes,
        }
    )
    return _begin(folder, collections, manifest(experiment, collections, notes=notes), records)


def begin_pairwise(
    folder: Any,
    collections: Sequence[ProbeCollection],
    replies: Mapping[str, Callable[[Any, int], tuple[str, str]]],
    *,
    notes: Sequence[str] = (),
    log_odds: tuple[float | None, float | None] = (None, None),
    missing: int = 0,
    **changes: Any,
) -> ProbeStore:
    """Write a pairwise run: for each model what it says of a pair, with its number."""
    experiment = PairwiseExperiment.model_validate(
        {
            "kind": "llm_pairwise",
            "title": "Pairs",
            "collection": "notables",
            "sources": [{"attribute": "gender", "protected": "female"}],
            "models": list(replies),
            "pairs": 4,
            **changes,
        }
    )
    records = []
    for probe in collections:
        for model, reply in replies.items():
            for query in probe.queries:
                for number, pair in enumerate(planned_pairs(query, experiment)):
                    one, other = reply(pair, number)
                    records.append(
                        PairRecord(
                            collection=probe.manifest.name,
                            model=model,
                            query=query.id,
                            kind=pair.kind,
                            protected=pair.protected.id,
                            unprotected=pair.unprotected.id,
                            protected_first=one,
                            unprotected_first=other,
                            log_odds=log_odds,
                            spent=Spent(model_calls=2, tokens=50),
                        )
                    )
    kept = records[: len(records) - missing]
    return _begin(folder, collections, manifest(experiment, collections, notes=notes), kept)


def _begin(
    folder: Any,
    collections: Sequence[ProbeCollection],
    run: ProbeRunManifest,
    records: Sequence[RankingRecord | PairRecord],
) -> ProbeStore:
    store = ProbeStore(folder)
    store.start(run, collections)
    with store.rankings.writing(), store.pairs.writing():
        for record in records:
            if isinstance(record, RankingRecord):
                store.rankings.add(record)
            else:
                store.pairs.add(record)
    return store
