"""Running: every search is done once, and no topic is ranked by weights that saw it."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairqr import FairSearch
from fairqr.base.errors import ModelUnavailableError, UnsupportedError
from fairqr.evaluation.collections.collection import Collection, Topic
from fairqr.evaluation.experiments import running
from fairqr.evaluation.experiments.engine import Done
from fairqr.evaluation.experiments.folder import Lines
from fairqr.evaluation.experiments.measuring import measure
from fairqr.evaluation.experiments.running import Cell, cells_of, search
from fairqr.evaluation.experiments.store import SearchRecord, Store
from fairqr.evaluation.experiments.training import folds_of, gather
from fairqr.evaluation.experiments.workers import RunOptions, Tools
from fairqr.graph.search.context import Context
from fairqr.retrieval.sources.catalog import Catalog
from fairqr.retrieval.sources.runs import read_run
from tests.unit.engines import WatchedEngine
from tests.unit.evaluation.experiments.small import experiment, write_collection, write_source
from tests.unit.evaluation.watching import Watcher

SYSTEMS: list[dict[str, Any]] = [
    {"name": "BM25", "method": "plain"},
    {"name": "FA*IR", "method": "fa-ir"},
    {"name": "DELTR", "method": "deltr", "train": {"folds": 4, "options": {"iterations": 20}}},
    {"name": "ours, feedback", "method": "fairqr"},
]


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRQR_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("FAIRQR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("FAIRQR_ELASTICSEARCH_URL", raising=False)


async def _run(collection: Path, store: Store, at_once: int = 2, **changes: Any) -> Watcher:
    """Run a small experiment."""
    watcher, values = Watcher(), {"systems": SYSTEMS, "model": "feedback", **changes}
    asked = experiment(collection, collection=str(collection), **values)
    options = RunOptions(store.folder, watcher, at_once=at_once)
    await running.run(asked, options)
    return watcher


async def test_all_searches_are_done_once_and_no_more(
    collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk stops a run; it goes on to what a run at one time has, one search at a time.

    Results are runs in TREC's format and values by topic.
    """
    store, other, whole = Store(tmp_path / "run"), Store(tmp_path / "other"), Lines.add

    def add(self: Lines[SearchRecord], record: SearchRecord) -> None:
        if record.system == "DELTR":
            assert self._open is not None
            self._open.write(b'{"attribute": "gen')
            raise OSError(28, "No space left on device")
        whole(self, record)

    with monkeypatch.context() as patched:
        patched.setattr(Lines, "add", add)
        with pytest.raises(OSError, match="No space left"):
            await _run(collection.folder, store)
    assert [(await _run(collection.folder, store)).steps for _ in range(2)] == [8, 0]
    await _run(collection.folder, other, at_once=1)
    rankings = {record.key: record.ids for record in store.lines.read()}
    assert rankings == {record.key: record.ids for record in other.lines.read()}
    cells = cells_of(store.manifest(), collection)
    assert {*rankings} == {cell.key(topic) for cell in cells for topic in collection.topics}
    assert len(rankings) == len(store.lines.read())

    measured = measure(store.folder)
    measured.write(store.folder)
    by_tag = {run.name: run for run in map(read_run, (store.folder / "runs").iterdir())}
    assert len(by_tag) == 4
    for _, _, system, _, topic in rankings:
        if system == "BM25":
            found = by_tag["BM25"].rankings[topic][0].ids
            assert found == rankings["gender", "title", system, 0, topic]
    rows = list(csv.DictReader((store.folder / "measures.csv").read_text().splitlines()))
    assert len(rows) == 4 * 4 * 3
    for row in rows:
        results = measured.evaluations["gender", "title", row["system"]].results
        assert float(row["value"]) == results[row["measure"]].values[row["topic"]]


async def test_a_query_that_finds_nothing_is_a_result_that_counts_as_0(tmp_path: Path) -> None:
    write_collection(tmp_path / "collection")
    topics = (tmp_path / "collection" / "topics.jsonl").read_text().replace("poet", "xyzzy")
    (tmp_path / "collection" / "topics.jsonl").write_text(topics)
    store = Store(tmp_path / "run")
    await _run(tmp_path / "collection", store, systems=SYSTEMS[:2])
    empty = [record for record in store.lines.read() if not record.ids]
    assert {(record.system, record.topic) for record in empty} == {("BM25", "t2"), ("FA*IR", "t2")}
    assert {(record.stop_reason, record.error) for record in empty} == {("no_hits", "")}
    results = measure(store.folder).evaluations["gender", "title", "BM25"].results.values()
    assert [result.count for result in results] == [4, 3, 4]
    assert [result.values["t2"] == 0 for result in results] == [True, False, True]


async def test_a_model_that_is_none_is_refused_before_anything_is_written(
    collection: Collection, tmp_path: Path
) -> None:
    """Otherwise the folder would hold an experiment that can never be finished."""
    store = Store(tmp_path / "run")
    for systems in (SYSTEMS, [SYSTEMS[0], {"name": "listwise", "method": "listwise"}]):
        with pytest.raises(ModelUnavailableError, match="'nonsense' names no provider"):
            await _run(collection.folder, store, model="nonsense", systems=systems)
        assert not (tmp_path / "run" / "experiment.json").exists()


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
    store = Store(tmp_path / "run")
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


async def test_training_estimates_the_target_that_a_search_does(
    collection: Collection, tmp_path: Path
) -> None:
    """The part of the whole corpus included, for which the engine counts its documents once."""
    engine = WatchedEngine(await Catalog().resolve(collection.corpus_name))
    context = Context.of(attributes=("gender",), target="corpus:0.5,population:0.5", k=5)
    queries = {topic.id: topic.title for topic in collection.topics}
    examples = await gather(engine, queries, collection.qrels, context, depth=20)
    asked = {**context.model_dump(exclude_unset=True), "method": "plain"}
    searched = await FairSearch(engine).search("poet", **asked)
    assert engine.counts == 2
    targets = [item.candidates.targets[0].tolist() for item in examples]
    assert targets == [pytest.approx([*searched.target["gender"].values()])] * 4
    blind = WatchedEngine(engine, without=["corpus_shares"])
    with pytest.raises(UnsupportedError, match="The target part 'corpus' needs an engine"):
        await gather(blind, queries, collection.qrels, context, depth=20)


@given(st.integers(2, 9), st.integers(0, 60))
def test_folds_hold_each_topic_once_and_are_of_one_size(folds: int, more: int) -> None:
    topics = [f"t{number}" for number in range(folds + more)]
    dealt = folds_of(topics, folds)
    assert sorted(topic for fold in dealt for topic in fold) == sorted(topics)
    sizes = {len(fold) for fold in dealt}
    assert max(sizes) - min(sizes) <= 1
    assert dealt == folds_of(topics, folds)


async def test_each_topic_is_ranked_by_weights_that_never_saw_its_judgements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turn the judgements of one topic round: the weights that rank it stay, all others change.

    Several seeds share the weights of a fold, so a topic must be in the same fold for all of them.
    """
    used: dict[str, set[bytes]] = {}

    async def noting(tools: Tools, cell: Cell, topic: Topic, weights: Any) -> Done[SearchRecord]:
        if weights is not None:
            used.setdefault(topic.id, set()).add(weights)
        return await search(tools, cell, topic, weights)

    monkeypatch.setattr(running, "search", noting)

    async def weights_of(turned: str = "") -> dict[str, Any]:
        folder = tmp_path / f"turned-{turned}"
        write_collection(folder)
        if turned:
            kept = [q for q in (folder / "qrels.txt").read_text().splitlines() if turned not in q]
            others = [f"{turned} 0 d{n:02} 1" for n in range(int(turned[1:]), 48, 12)]
            (folder / "qrels.txt").write_text("\n".join(kept + others) + "\n")
        used.clear()
        systems = [SYSTEMS[0], SYSTEMS[2]]
        await _run(folder, Store(folder / "run"), systems=systems, seeds=[0, 1])
        assert all(len(weights) == 1 for weights in used.values())
        return {topic: json.loads(weights.pop())["model"] for topic, weights in used.items()}

    before = await weights_of()
    assert len(set(map(str, before.values()))) == 4
    for topic in before:
        after = await weights_of(topic)
        assert [it for it in before if after[it] == before[it]] == [topic]
