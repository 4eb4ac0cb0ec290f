"""Probes and tunings whose records are made by hand: how a model ranks and prefers is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fairqr.agents.ranking.rankers import Asker
from fairqr.evaluation.probes.collection import (
    CELLS,
    Order,
    ProbeCollection,
    ProbeItem,
    ProbeManifest,
    ProbeQuery,
    shortfalls,
)
from fairqr.evaluation.probes.pairs import ProbePair, group_pairs, planned_pairs, relevance_pairs
from fairqr.evaluation.probes.specification import (
    ListwiseExperiment,
    LoraExperiment,
    PairwiseExperiment,
)
from fairqr.evaluation.probes.store import (
    CollectionEntry,
    LoraManifest,
    LoraStore,
    PairRecord,
    ProbeRunManifest,
    ProbeStore,
    PromptEntry,
    RankingRecord,
    Spent,
    SplitEntry,
    StepRecord,
    When,
)

ASKERS: tuple[Asker, ...] = ("neutral", "unprotected", "protected")

Reply = Callable[[int], tuple[str, str]]
ODDS = {"protected": 1.0, "unprotected": -1.0}
"""How sure a model is of what it prefers, in log-odds."""

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


def noisy(query: ProbeQuery, asker: Asker) -> Sequence[int]:
    """Rank by relevance and chance."""
    random = np.random.default_rng([ASKERS.index(asker), len(query.id), int(query.id[1:])])
    keys = [(not item.relevant) + random.normal() for item in query.items]
    return [int(place) for place in np.argsort(keys)]


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
                for number, pair in enumerate(
                    planned_pairs(
                        query, experiment.pairs, experiment.relevance_pairs, experiment.seed
                    )
                ):
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


def begin_tuning(
    folder: Any,
    probe: ProbeCollection,
    before: Reply | None,
    after: Reply | None,
    *,
    steps: int = 20,
    relevance: int = 4,
    notes: tuple[str, ...] = (),
    **changes: Any,
) -> LoraStore:
    """Write a tuning with half of the queries held out; a reply takes the number of a pair."""
    values = {
        "kind": "lora",
        "title": "Tuning",
        "collection": "notables",
        "sources": [{"attribute": "gender", "protected": "female"}],
        "model": "causal:small",
        "held_out_pairs": 4,
        "relevance_pairs": relevance,
        **changes,
    }
    held_out = probe.queries[::2]
    pairs = [
        (query.id, pair)
        for query in held_out
        for pair in (
            *group_pairs(query, "relevant", 4, 0),
            *group_pairs(query, "irrelevant", 4, 0),
            *relevance_pairs(query, relevance, 0),
        )
    ]
    kinds = [pair.kind for _, pair in pairs]
    store = LoraStore(folder)
    store.begin(
        LoraManifest(
            versions={"fairqr": "0.0"},
            started="2025-01-01T00:00:00Z",
            experiment=LoraExperiment.model_validate(values),
            collections=(CollectionEntry.of(probe),),
            splits=(
                SplitEntry(
                    collection=probe.manifest.name,
                    train=tuple(query.id for query in probe.queries[1::2]),
                    held_out=tuple(query.id for query in held_out),
                    training_pairs={"relevant": 32, "irrelevant": 32},
                    held_out_pairs={kind: kinds.count(kind) for kind in dict.fromkeys(kinds)},
                    left_out=3,
                ),
            ),
            base="small",
            base_sha256="b" * 64,
            prompt="pairwise=v2",
            prompt_sha256="c" * 64,
            training="d" * 64,
            steps=steps,
            notes=notes,
        )
    )
    sides: tuple[tuple[When, Reply | None], ...] = (("before", before), ("after", after))
    for when, reply in sides:
        lines = store.pairs(when)
        with lines.writing():
            for number, (query, pair) in enumerate(pairs if reply else ()):
                assert reply is not None
                lines.add(_said(probe, query, pair, reply(number)))
    with store.losses.writing():
        for step in range(1, (steps if after else 0) + 1):
            store.losses.add(
                StepRecord(
                    step=step,
                    loss=1 / step,
                    learning_rate=0.003 * (1 - step / (steps + 1)),
                    norm=1.0,
                    examples=4,
                    tokens=400,
                )
            )
    return store


def _said(probe: ProbeCollection, query: str, pair: ProbePair, said: tuple[str, str]) -> PairRecord:
    one, other = (ODDS.get(reply) for reply in said)
    return PairRecord(
        collection=probe.manifest.name,
        model="causal:small",
        query=query,
        kind=pair.kind,
        protected=pair.protected.id,
        unprotected=pair.unprotected.id,
        protected_first=said[0],
        unprotected_first=said[1],
        log_odds=(one, None if other is None else -other),
    )
