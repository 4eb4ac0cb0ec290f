"""A collection of two dozen people, and what experiments on it need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

import fairqr
from fairqr.evaluation.collections.collection import Collection, load_collection
from fairqr.evaluation.experiments.catalogue import read_experiment
from fairqr.evaluation.experiments.running import cells_of, manifest_of
from fairqr.evaluation.experiments.specification import (
    Experiment,
    Manifest,
    RoundRecord,
    RunFolder,
    SearchRecord,
)
from fairqr.evaluation.qrels import write_qrels
from fairqr.prompts.library import PromptLibrary
from tests.unit.evaluation.collections.official import lines

SCHEMA = """attributes:
  gender: {field: gender, groups: [female, male], population: {female: 0.5, male: 0.5}}
  place:
    field: place
    groups: [north, south]
    population: {north: 0.5, south: 0.5}
"""
TITLES = ("physicist", "chemist", "poet", "sailor")
SYSTEMS: list[dict[str, Any]] = [
    {"name": "BM25", "method": "baseline"},
    {"name": "ours, no refinement", "settings": {"max_iterations": 0}},
    {"name": "ours, feedback", "model": "feedback"},
    {"name": "ours"},
]


def write_collection(
    folder: Path, *, keywords: bool = True, named: str = "Two dozen people"
) -> Collection:
    """Write 48 people of four occupations, a quarter of them women and half without a place."""
    documents = []
    qrels = dict[str, dict[str, int]]()
    for number in range(48):
        title = TITLES[number % 4]
        woman = number // 4 % 4 == 3
        words = " ".join([title] * (2 if woman else 3))
        text = f"A {words}. {'She has a garden' if woman else 'He has a boat'} {number}."
        gender = "female" if woman else "male"
        region = ("north", "south")[number // 4 % 2] if number % 4 < 2 else None
        document = {"id": f"d{number:02}", "title": f"Person {number}", "text": text}
        documents.append({**document, "gender": gender, "place": region})
        if number % 5:
            qrels.setdefault(f"t{number % 4}", {})[f"d{number:02}"] = 1
    keyword_fields = {"keywords": ["garden"] * keywords}
    topics = ({"id": f"t{n}", "title": title, **keyword_fields} for n, title in enumerate(TITLES))
    lines(folder / "documents.jsonl", documents)
    lines(folder / "topics.jsonl", topics)
    write_qrels(folder / "qrels.txt", qrels)
    (folder / "schema.yaml").write_text(SCHEMA)
    (folder / "collection.yaml").write_text(yaml.safe_dump({"title": named, "note": "A note."}))
    return load_collection(folder)


def write_source(folder: Path, name: str, engine: str = "tantivy", **values: Any) -> Path:
    """Write the file of a source that has the labels of the small collection."""
    path = folder / f"{name}.source.yaml"
    source = {"name": name, "engine": engine, **yaml.safe_load(SCHEMA), **values}
    path.write_text(yaml.safe_dump(source))
    return path


def write_experiment(path: Path, **changes: Any) -> Path:
    """Write the file of an experiment with these values."""
    values: dict[str, Any] = {
        "title": "A small experiment",
        "attributes": ["gender"],
        "k": 5,
        "measures": ["nDCG@5", "AWRF@5(unit=bits)", "nDCG@5×AWRF@5(unit=bits)"],
        "baseline": "BM25",
        "systems": SYSTEMS,
        "report": ["table", "trade_off", "rounds", "drift", "cost", "published"],
        **changes,
    }
    path.write_text(yaml.safe_dump(values, allow_unicode=True), encoding="utf-8")
    return path


def experiment(folder: Path, **changes: Any) -> Experiment:
    """Return a small experiment."""
    return read_experiment(write_experiment(folder / "small.yaml", **changes)).spec()


def manifest_for(collection: Collection, folder: Path, **changes: Any) -> Manifest:
    """Return what a small experiment on a collection is run with."""
    spec = experiment(folder, collection=str(collection.folder), **changes)
    return manifest_of(spec, collection, PromptLibrary())


def records_of(manifest: Manifest, collection: Collection) -> Iterator[SearchRecord]:
    """Yield a made-up record of each search: each system has an order of its own.

    Systems that refine have a first round, and for the first topic a second one.
    """
    ids = [document.id for document in collection.corpus.documents()]
    for number, cell in enumerate(cells_of(manifest, collection, collection.corpus_name)):
        for index, topic in enumerate(collection.topics):
            relevant_ids = [id_ for id_ in ids if int(id_[1:]) % 4 == int(topic.id[1:])]
            ranked = relevant_ids[number % 5 :] + relevant_ids[: number % 5]
            refines = cell.system.asks_a_model
            rounds = [
                RoundRecord(
                    ids=(ranked[step:] + ranked[:step])[:5],
                    exposure={"female": 0.2 + step / 10, "male": 0.8 - step / 10},
                    divergence=0.3 / (step + 1),
                )
                for step in range(1 + (1 + (index == 0) if refines else 0))
            ]
            steps = len(rounds) - 1
            cost = {"model_calls": steps, "tokens": 100 * steps, "milliseconds": 10.0 + index}
            yield SearchRecord(
                **dict(zip(SearchRecord.keys, cell.key(topic), strict=True)),
                **cost,
                ids=ranked[:5],
                rounds=rounds,
                best_round=steps,
                target={"female": 0.4, "male": 0.6},
                stop_reason="max_iterations" if refines else "not_refining",
            )


def measured(
    folder: Path,
    change: Callable[[SearchRecord], SearchRecord | None] = lambda record: record,
    named: str = "Two dozen people",
    **changes: Any,
) -> Any:
    """Measure the small experiment, run in a folder, with its records changed or left out."""
    collection = write_collection(folder / "collection", named=named)
    manifest = manifest_for(collection, folder, **changes).model_copy(update={"started": "Then"})
    records = map(change, records_of(manifest, collection))
    fill(RunFolder(folder / "run"), manifest, filter(None, records))
    return fairqr.load_experiment(folder / "run")


def fill(store: RunFolder, manifest: Manifest, records: Iterable[SearchRecord]) -> None:
    """Write records into a new folder."""
    with store.locked():
        store.begin(manifest)
        with store.lines.writing():
            for record in records:
                store.lines.add(record)
