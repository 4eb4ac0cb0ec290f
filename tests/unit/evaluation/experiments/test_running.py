"""Running: every search is done once, and no topic is ranked by weights that saw it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairqr.base.errors import ModelUnavailableError
from fairqr.evaluation.collections.collection import Collection, Topic
from fairqr.evaluation.experiments import running
from fairqr.evaluation.experiments.measuring import measure
from fairqr.evaluation.experiments.running import Cell, search
from fairqr.evaluation.experiments.specification import RunFolder, SearchRecord
from fairqr.evaluation.experiments.tasks import Done
from fairqr.evaluation.experiments.workers import RunOptions, Tools
from fairqr.retrieval.sources.catalog import Catalog
from tests.unit.evaluation.experiments.small import experiment, write_collection, write_source
from tests.unit.evaluation.watching import Watcher

BASELINE = {"name": "BM25", "method": "baseline"}
LEARNT = {"name": "DELTR", "method": "deltr", "train": {"folds": 4, "options": {"iterations": 20}}}
OURS = {"name": "ours, feedback", "method": "fairqr"}


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRQR_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("FAIRQR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("FAIRQR_ELASTICSEARCH_URL", raising=False)


async def _run(collection: Path, store: RunFolder, at_once: int = 2, **changes: Any) -> Watcher:
    """Run a small experiment."""
    watcher, values = (
        Watcher(),
        {"systems": [BASELINE, LEARNT, OURS], "model": "feedback", **changes},
    )
    asked = experiment(collection, collection=str(collection), **values)
    await running.run(asked, RunOptions(store.folder, watcher, at_once=at_once))
    return watcher


async def test_a_query_that_finds_nothing_is_a_result_that_counts_as_0(tmp_path: Path) -> None:
    write_collection(tmp_path / "collection")
    topics = (tmp_path / "collection" / "topics.jsonl").read_text().replace("poet", "xyzzy")
    (tmp_path / "collection" / "topics.jsonl").write_text(topics)
    store = RunFolder(tmp_path / "run")
    await _run(tmp_path / "collection", store, systems=[BASELINE])
    (empty,) = [record for record in store.lines.read() if not record.ids]
    assert (empty.topic, empty.stop_reason, empty.error) == ("t2", "no_hits", "")
    results = measure(store.folder).evaluations["gender", "title", "BM25"].results.values()
    assert [result.count for result in results] == [4, 3, 4]
    assert [result.values["t2"] == 0 for result in results] == [True, False, True]


async def test_an_unknown_model_is_refused_before_anything_is_written(
    collection: Collection, tmp_path: Path
) -> None:
    """Otherwise the folder would hold an experiment that can never be finished."""
    store = RunFolder(tmp_path / "run")
    for system in (OURS, {"name": "listwise", "method": "listwise"}):
        with pytest.raises(ModelUnavailableError, match="'nonsense' names no provider"):
            await _run(collection.folder, store, model="nonsense", systems=[BASELINE, system])
        assert not store.exists()


async def test_a_system_searches_the_corpus_that_it_names(
    collection: Collection, tmp_path: Path
) -> None:
    """By the name it is attached under, or by its file; an experiment names one for all.

    Systems whose corpus is not there, or cannot rank as they ask, are left out, and the rest is
    measured.
    """
    path = write_source(tmp_path, "elsewhere", documents=f"{collection.folder}/documents.jsonl")
    Catalog().attach(path)
    (tmp_path / "exported.txt").write_text("t0 Q0 d00 1 1.0 mine\n")
    source = str(write_source(tmp_path, "exported", engine="run", runs="exported.txt"))
    named = {"BM25": None, "own": collection.corpus_name, "path": str(path), "away": "not-attached"}
    systems = [{"name": name, "corpus": corpus} for name, corpus in named.items()]
    systems += [{"name": "no vectors", "corpus": source, "retriever": "dense"}]
    store = RunFolder(tmp_path / "run")
    watcher = await _run(collection.folder, store, systems=systems, corpus="elsewhere")
    assert [sentence.partition(";")[0] for sentence in watcher.notes] == [
        "'away' was left out: There is no index 'not-attached'",
        "'no vectors' was left out: The source 'exported' only ranks in its own way",
    ]
    rankings = {(it.system, it.topic): it.ids for it in store.lines.read()}
    assert len(rankings) == 3 * 4
    assert all(rankings["BM25", topic] == ids for (_, topic), ids in rankings.items())
    measured = measure(store.folder)
    assert [system for *_, system in measured.evaluations] == ["BM25", "own", "path"]
    assert [*measured.unfinished.values()] == [4, 4]


async def test_a_system_that_finds_nothing_to_learn_from_is_left_out(
    collection: Collection, tmp_path: Path
) -> None:
    """The others are done: one topic has no other to learn from."""
    systems = [{"name": "learnt", "method": "deltr", "train": {}}, {"name": "BM25"}]
    store = RunFolder(tmp_path / "run")
    watcher = await _run(collection.folder, store, systems=systems, topics=1)
    (note,) = watcher.notes
    assert note.startswith("'learnt' was left out: There is nothing to train on")
    assert {record.system for record in store.lines.read()} == {"BM25"}


@pytest.mark.promise("evaluation")
async def test_weights_never_saw_the_judgements_of_their_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DELTR and DLF rank a topic by weights that never saw its judgements.

    Turn the judgements of one topic round: the weights that rank it stay, all others change.

    Several seeds share the weights of a fold, so a topic must be in the same fold for all of them.
    """
    used: dict[str, set[str]] = {}

    async def noting(tools: Tools, cell: Cell, topic: Topic, weights: Any) -> Done[SearchRecord]:
        if weights is not None:
            used.setdefault(topic.id, set()).add(str(weights.model))
        return await search(tools, cell, topic, weights)

    monkeypatch.setattr(running, "search", noting)

    async def weights_of(turned: str = "") -> dict[str, str]:
        folder = tmp_path / f"turned-{turned}"
        write_collection(folder)
        if turned:
            kept = [q for q in (folder / "qrels.txt").read_text().splitlines() if turned not in q]
            others = [f"{turned} 0 d{n:02} 1" for n in range(int(turned[1:]), 48, 12)]
            (folder / "qrels.txt").write_text("\n".join(kept + others) + "\n")
        used.clear()
        await _run(folder, RunFolder(folder / "run"), systems=[BASELINE, LEARNT], seeds=[0, 1])
        assert all(len(weights) == 1 for weights in used.values())
        return {topic: weights.pop() for topic, weights in used.items()}

    before = await weights_of()
    assert len(set(before.values())) == 4
    for topic in before:
        after = await weights_of(topic)
        assert [it for it in before if after[it] == before[it]] == [topic]
