"""Probes that are made by hand: what models say of lists and pairs is planted."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairqr.evaluation.collections.collection import Collection, load_collection
from fairqr.evaluation.probes import specification
from fairqr.evaluation.probes import store as kept
from fairqr.evaluation.probes.collection import (
    CELLS,
    ProbeCollection,
    ProbeItem,
    ProbeManifest,
    ProbeQuery,
    draw_collection,
)
from fairqr.evaluation.probes.running import Task, entrants_of, tasks_of
from fairqr.evaluation.qrels import write_qrels
from fairqr.retrieval.fairness.protected import ProtectedGroup
from tests.unit.evaluation.collections.official import lines

NAME = "notables, gender"
SCHEMA = "attributes:\n  gender: {field: gender, groups: [female, male, other]}\n"

Says = Callable[[int, Task], dict[str, Any] | None]
"""What is said of the list or pair with this number; None if nobody asked yet."""

_COMMON = {"title": "Small", "collection": "notables", "sources": ["gender=female"]}


def listwise(**changes: Any) -> specification.ListwiseExperiment:
    values = {"kind": "llm_listwise", "rankers": ["initial"], "k": 10, **changes}
    return specification.ListwiseExperiment.model_validate(_COMMON | values)


def pairwise(**changes: Any) -> specification.PairwiseExperiment:
    values = {"kind": "llm_pairwise", "models": ["openai:fake"], "pairs": 4, **changes}
    return specification.PairwiseExperiment.model_validate(_COMMON | values)


def lora(**changes: Any) -> specification.LoraExperiment:
    values = {"model": "causal:small", "held_out_pairs": 4, "relevance_pairs": 4, **changes}
    return specification.LoraExperiment.model_validate(_COMMON | {"kind": "lora", **values})


def query_of(id_: str, *sizes: int) -> ProbeQuery:
    """Return a query with so many items in each cell, in the order of the cells."""
    items = [
        ProbeItem(
            id=f"{id_}-{cell}-{number}",
            title=f"{cell} {number} of {id_}",
            relevant=cell.startswith("relevant"),
            protected=cell.endswith("_protected"),
        )
        for cell, size in zip(CELLS, sizes, strict=True)
        for number in range(size)
    ]
    return ProbeQuery(id=id_, query=f"topic {id_}", items=tuple(items))


def collection_of(
    *queries: ProbeQuery, name: str = NAME, words: tuple[str, str] = ("female", "male")
) -> ProbeCollection:
    items = Counter(item.cell for query in queries for item in query.items)
    sides = ProtectedGroup("gender", words, words[:1], words[1:], words)
    manifest = ProbeManifest(name=name, sides=sides, queries=len(queries), items=items)
    return ProbeCollection(manifest=manifest, queries=queries)


def collection(
    queries: int = 8, sizes: Sequence[int] = (5, 5, 5, 5), **named: Any
) -> ProbeCollection:
    """Make lists with so many items in each of the four cells, in random order."""
    built = []
    for number in range(queries):
        query = query_of(f"q{number}", *sizes)
        order = np.random.default_rng(number).permutation(len(query.items))
        built.append(
            query.model_copy(update={"items": tuple(query.items[position] for position in order)})
        )
    return collection_of(*built, **named)


def ranks(order: Iterable[int], **fields: Any) -> dict[str, Any]:
    """Return what a ranker says of a list."""
    return {"order": tuple(order), "asked": 3, "spent": {"model_calls": 3, "tokens": 100}, **fields}


def by_protection(number: int, task: Task) -> dict[str, Any]:
    """Put relevant items first, and of equal relevance the protected ones."""
    keys = [("irrelevant" in item.id, "unprotected" in item.id) for item in task.items]
    return ranks(sorted(range(len(keys)), key=keys.__getitem__))


def noisy(number: int, task: Task) -> dict[str, Any]:
    """Rank by relevance and chance."""
    random = np.random.default_rng(number)
    keys = [("irrelevant" in item.id) + random.normal() for item in task.items]
    return ranks(np.argsort(keys).tolist())


def prefers(*replies: tuple[str, str], **fields: Any) -> Says:
    """Prefer these items in turn, with either item first; by the status of a failure none."""

    def says(number: int, task: Task) -> dict[str, Any]:
        first_reply, second_reply = replies[number % len(replies)]
        replied = {"protected_first": first_reply, "unprotected_first": second_reply}
        return {**replied, "spent": {"model_calls": 2, "tokens": 50}, **fields}

    return says


def nobody(number: int, task: Task) -> None:
    """Nobody was asked yet."""


PROTECTED = ("protected", "protected")
UNPROTECTED = ("unprotected", "unprotected")
FIRST = ("protected", "unprotected")
REFUSES = ("refused", "protected")

biased = prefers(UNPROTECTED, PROTECTED, PROTECTED, PROTECTED)
even = prefers(UNPROTECTED, PROTECTED)


def begin(
    folder: Path,
    experiment: Any,
    collections: Sequence[ProbeCollection],
    says: Mapping[str, Says],
    tuning: kept.TuningEntry | None = None,
) -> kept.ProbeStore:
    """Write a run down: what is said, by ranker or model, or before and after a tuning."""
    store = kept.ProbeStore(folder)
    probed = experiment
    manifest = kept.ProbeRunManifest(
        versions={"fairqr": "0.0"},
        started="2025-01-01T00:00:00Z",
        experiment=experiment,
        collections=tuple(probe.entry for probe in collections),
        prompts={"listwise=v1": "a" * 64},
        tuning=tuning,
    )
    store.start(manifest, collections)
    if tuning:
        probed = experiment.probing("causal:small")
        (probe,) = collections
        collections = [probe.model_copy(update={"queries": probe.queries[::2]})]
    for stage in kept.STAGES[experiment.kind]:
        record: Any = kept.RankedList if stage == "rankings" else kept.PairRecord
        lines = store.lines(stage)
        with lines.writing():
            for entrant, probe in itertools.product(entrants_of(probed, {}), collections):
                for number, task in enumerate(tasks_of(probed, entrant, probe)):
                    if reply := says[stage if tuning else entrant.name](number, task):
                        lines.add(record(**dict(zip(record.keys, task.key, strict=True)), **reply))
    return store


def begin_tuning(
    folder: Path, probe: ProbeCollection, before: Says, after: Says, **changes: Any
) -> kept.ProbeStore:
    """Write a tuning with half of the queries held out."""
    ids = [query.id for query in probe.queries]
    entry = kept.TuningEntry(
        train=tuple(ids[1::2]),
        held_out=tuple(ids[::2]),
        pairs={"relevant": 32, "irrelevant": 32},
        left_out=3,
        base="small",
        base_sha256="b" * 64,
        training="d" * 64,
        steps=20,
    )
    says = {"before": before, "after": after}
    store = begin(folder, lora(**changes), [probe], says, entry)
    settings = {"norm": 1.0, "examples": 4, "tokens": 400}
    with store.losses.writing():
        for step in range(1, 1 if after is nobody else 21):
            rate = 0.003 * (1 - step / 21)
            store.losses.add(
                kept.StepRecord(step=step, loss=1 / step, learning_rate=rate, **settings)
            )
    return store


def draw(
    collection: Collection, protected: str = "female", *, texts: bool = True, **changes: Any
) -> ProbeCollection:
    """Build a probe collection."""
    sides = ProtectedGroup.parse(collection.corpus.schema.attribute("gender"), protected)
    return draw_collection(collection, sides, listwise(**changes), lambda *_: None, texts=texts)


def write_collection(
    folder: Path, documents: Sequence[tuple[str, object]], qrels: Mapping[str, Mapping[str, int]]
) -> Collection:
    """Write documents (id and gender) with judgements by topic, and read them as a collection."""
    document_lines = (
        {"id": id_, "title": f"Title {id_}", "text": f"Text of {id_}.", "gender": label}
        for id_, label in documents
    )
    lines(folder / "documents.jsonl", document_lines)
    lines(folder / "topics.jsonl", ({"id": topic, "title": f"query {topic}"} for topic in qrels))
    write_qrels(folder / "qrels.txt", qrels)
    (folder / "schema.yaml").write_text(SCHEMA)
    return load_collection(folder)


def people(folder: Path, each: int = 6, topics: str = "abc") -> Collection:
    """Topics with as many women as men, each person relevant for one of them."""
    genders = {"f": "female", "m": "male"}
    persons = itertools.product(topics, genders, range(each))
    documents = [(f"{topic}{letter}{number}", genders[letter]) for topic, letter, number in persons]
    qrels = {t: {id_: 1 for id_, _ in documents if id_[0] == t} for t in topics}
    return write_collection(folder, documents, qrels)
