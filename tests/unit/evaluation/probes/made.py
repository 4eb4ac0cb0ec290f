"""Probes and tunings that are made by hand: how a model ranks and prefers is known."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairqr.agents.ranking.rankers import Asker
from fairqr.evaluation.collections.collection import Collection, load_collection
from fairqr.evaluation.probes.collection import (
    CELLS,
    ProbeCollection,
    ProbeItem,
    ProbeManifest,
    ProbeQuery,
    draw_collection,
    planned_pairs,
)
from fairqr.evaluation.probes.specification import (
    ListwiseExperiment,
    LoraExperiment,
    PairwiseExperiment,
)
from fairqr.evaluation.probes.store import (
    PairRecord,
    ProbeRunManifest,
    ProbeStore,
    RankingRecord,
    StepRecord,
    TuningEntry,
)
from fairqr.retrieval.fairness.protected import ProtectedGroup

ASKERS: tuple[Asker, ...] = ("neutral", "unprotected", "protected")
SCHEMA = "attributes:\n  gender: {field: gender, groups: [female, male, other]}\n"

Reply = Callable[[int], tuple[str, str]]
"""What a model prefers in the pair with a number, in both orders."""

Ranks = Callable[[ProbeQuery, Asker], Sequence[int]]


def query_of(id_: str, *sizes: int, mixed: bool = False) -> ProbeQuery:
    """Return a query with so many items in each cell, in the order of the cells or mixed."""
    items = [
        ProbeItem(
            id=f"{id_}-{cell}-{place}",
            title=f"{cell} {place} of {id_}",
            relevant=cell.startswith("relevant"),
            protected=cell.endswith("_protected"),
        )
        for cell, size in zip(CELLS, sizes, strict=True)
        for place in range(size)
    ]
    if mixed:
        order = np.random.default_rng(int(id_.removeprefix("q"))).permutation(len(items))
        items = [items[place] for place in order]
    return ProbeQuery(id=id_, query=f"topic {id_}", items=tuple(items))


def collection_of(
    *queries: ProbeQuery,
    name: str = "notables, gender",
    words: tuple[str, str] = ("female", "male"),
) -> ProbeCollection:
    items = Counter(item.cell for query in queries for item in query.items)
    sides = ProtectedGroup("gender", words, words[:1], words[1:], words)
    manifest = ProbeManifest(name=name, sides=sides, queries=len(queries), items=items)
    return ProbeCollection(manifest=manifest, queries=queries)


def collection(
    queries: int = 8, sizes: Sequence[int] = (5, 5, 5, 5), **named: Any
) -> ProbeCollection:
    """Make lists with so many items in each of the four cells, mixed alike in every query."""
    made = [query_of(f"q{number}", *sizes, mixed=True) for number in range(queries)]
    return collection_of(*made, **named)


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
    own = {"collection": probe.manifest.name, "ranker": ranker, "window": window}
    own |= {"asked": 3 if window else 0, "spent": {"model_calls": 3, "tokens": 100}, **changes}
    return [
        RankingRecord(asker=asker, query=query.id, order=tuple(ranks(query, asker)), **own)
        for asker in askers
        for query in probe.queries
    ]


def leaning(number: int) -> tuple[str, str]:
    """Prefer the protected item in three of four pairs, both times."""
    return ("protected",) * 2 if number % 4 else ("unprotected",) * 2


def even(number: int) -> tuple[str, str]:
    """Prefer either item as often."""
    return ("protected",) * 2 if number % 2 else ("unprotected",) * 2


def first(number: int) -> tuple[str, str]:
    """Prefer what stands first."""
    return "protected", "unprotected"


def mixed(number: int) -> tuple[str, str]:
    """Do a bit of everything."""
    return (even(1), even(0), first(0), ("refused", "protected"))[number % 4]


def fails(number: int) -> tuple[str, str]:
    return "refused", "both"


def compared(
    experiment: PairwiseExperiment,
    probe: ProbeCollection,
    model: str,
    reply: Reply,
    **changes: Any,
) -> list[PairRecord]:
    """Compare every pair that an experiment plans; a reply takes the pair's number."""
    pairs = [
        (query.id, pair)
        for query in probe.queries
        for pair in planned_pairs(
            query, experiment.pairs, experiment.relevance_pairs, experiment.seed
        )
    ]
    records = []
    for number, (query, pair) in enumerate(pairs):
        one, other = reply(number)
        own = {"collection": probe.manifest.name, "model": model, "query": query}
        own |= {"protected_first": one, "unprotected_first": other, "kind": pair.kind}
        own |= {"protected": pair.protected.id, "unprotected": pair.unprotected.id}
        own |= {"spent": {"model_calls": 2, "tokens": 50}, **changes}
        records.append(PairRecord(**own))
    return records


_COMMON = {
    "title": "Small",
    "collection": "notables",
    "sources": [{"attribute": "gender", "protected": "female"}],
}


def listwise(**changes: Any) -> ListwiseExperiment:
    values = {**_COMMON, "kind": "llm_listwise", "rankers": ["initial"], "k": 10, **changes}
    return ListwiseExperiment.model_validate(values)


def pairwise(**changes: Any) -> PairwiseExperiment:
    values = {**_COMMON, "kind": "llm_pairwise", "models": ["openai:fake"], "pairs": 4, **changes}
    return PairwiseExperiment.model_validate(values)


def lora(**changes: Any) -> LoraExperiment:
    values = {"model": "causal:small", "held_out_pairs": 4, "relevance_pairs": 4, **changes}
    return LoraExperiment.model_validate({**_COMMON, "kind": "lora", **values})


def manifest_of(
    experiment: Any, collections: Iterable[ProbeCollection], **changes: Any
) -> ProbeRunManifest:
    return ProbeRunManifest(
        versions={"fairqr": "0.0"},
        started="2025-01-01T00:00:00Z",
        experiment=experiment,
        collections=tuple(each.entry for each in collections),
        prompts={"listwise=v1": "a" * 64},
        **changes,
    )


def begin(
    folder: Path,
    experiment: Any,
    collections: Sequence[ProbeCollection],
    records: Mapping[str, Iterable[Any]],
    **changes: Any,
) -> ProbeStore:
    """Write a run down, with the records of each stage."""
    store = ProbeStore(folder)
    store.start(manifest_of(experiment, collections, **changes), collections)
    for stage, each in records.items():
        lines = store.losses if stage == "losses" else store.lines(stage)
        with lines.writing():
            for record in each:
                lines.add(record)
    return store


def begin_listwise(
    folder: Path,
    collections: Sequence[ProbeCollection],
    records: Sequence[RankingRecord],
    **changes: Any,
) -> ProbeStore:
    """Write a listwise run; the rankers are those of the records where there are any."""
    rankers = list(dict.fromkeys(record.ranker for record in records)) or ["model"]
    experiment = listwise(**{"rankers": rankers, "title": "Lists", **changes})
    kept = [record for record in records if record.ranker != "initial"]
    return begin(folder, experiment, collections, {"rankings": kept})


def begin_pairwise(
    folder: Path,
    collections: Sequence[ProbeCollection],
    replies: Mapping[str, Reply],
    *,
    log_odds: tuple[float | None, float | None] = (None, None),
    missing: int = 0,
    **changes: Any,
) -> ProbeStore:
    """Write a pairwise run: for each model what it says of a pair of a query by its number."""
    experiment = pairwise(**{"models": list(replies), "title": "Pairs", **changes})
    records = [
        record
        for probe in collections
        for model, reply in replies.items()
        for query in probe.queries
        for record in compared(
            experiment,
            collection_of(query, name=probe.manifest.name),
            model,
            reply,
            log_odds=log_odds,
        )
    ]
    kept = records[: len(records) - missing]
    return begin(folder, experiment, collections, {"pairs": kept})


def begin_tuning(
    folder: Path,
    probe: ProbeCollection,
    before: Reply | None,
    after: Reply | None,
    *,
    steps: int = 20,
    **changes: Any,
) -> ProbeStore:
    """Write a tuning with half of the queries held out; a reply takes the number of a pair."""
    experiment = lora(**{"title": "Tuning", **changes})
    held_out = ProbeCollection(manifest=probe.manifest, queries=probe.queries[::2])
    probing = experiment.probing("causal:small")
    entry = TuningEntry(
        train=tuple(query.id for query in probe.queries[1::2]),
        held_out=tuple(query.id for query in held_out.queries),
        pairs={"relevant": 32, "irrelevant": 32},
        left_out=3,
        base="small",
        base_sha256="b" * 64,
        training="d" * 64,
        steps=steps,
    )
    records: dict[str, list[Any]] = {}
    for stage, reply in (("before", before), ("after", after)):
        said = compared(probing, held_out, "causal:small", reply) if reply else []
        records[stage] = [it.model_copy(update={"log_odds": _odds(it)}) for it in said]
    records["losses"] = [
        StepRecord(
            step=step,
            loss=1 / step,
            learning_rate=0.003 * (1 - step / (steps + 1)),
            norm=1.0,
            examples=4,
            tokens=400,
        )
        for step in range(1, (steps if after else 0) + 1)
    ]
    return begin(folder, experiment, [probe], records, tuning=entry)


def _odds(record: PairRecord) -> tuple[float | None, float | None]:
    """How sure a model is of what it prefers, as the log-odds of the first item."""
    sure = {"protected": 1.0, "unprotected": -1.0}
    one, other = (sure.get(it) for it in (record.protected_first, record.unprotected_first))
    return one, None if other is None else -other


def draw(
    collection: Collection, protected: str = "female", *, texts: bool = True, **changes: Any
) -> ProbeCollection:
    """Build a probe collection."""
    sides = ProtectedGroup.parse(collection.corpus.schema.attribute("gender"), protected)
    return draw_collection(collection, sides, listwise(**changes), lambda *_: None, texts=texts)


def write_collection(
    folder: Path,
    documents: Sequence[tuple[str, object]],
    qrels: Mapping[str, Mapping[str, int]],
    titles: Mapping[str, str] | None = None,
) -> Collection:
    """Write documents (id and gender) with judgements by topic, and read them as a collection."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schema.yaml").write_text(SCHEMA)
    rows = {
        "documents.jsonl": [
            {"id": id_, "title": f"Title {id_}", "text": f"Text of {id_}.", "gender": label}
            for id_, label in documents
        ],
        "topics.jsonl": [
            {"id": topic, "title": (titles or {}).get(topic, f"query {topic}")} for topic in qrels
        ],
    }
    for name, each in rows.items():
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in each))
    judged = (f"{t} 0 {id_} {grade}\n" for t, of in qrels.items() for id_, grade in of.items())
    (folder / "qrels.txt").write_text("".join(judged))
    return load_collection(folder)


def people(folder: Path, each: int = 6) -> Collection:
    """Three topics with as many women as men, each person relevant for one of them."""
    documents = [
        (f"{topic}{gender[0]}{number}", gender)
        for topic in "abc"
        for gender in ("female", "male")
        for number in range(each)
    ]
    qrels = {t: {id_: 1 for id_, _ in documents if id_[0] == t} for t in "abc"}
    return write_collection(folder, documents, qrels)
