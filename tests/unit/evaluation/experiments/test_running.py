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
from fairqr.base.errors import (
    InputError,
    ModelUnavailableError,
    UnsupportedError,
)
from fairqr.evaluation.collections.collection import Collection, load_collection
from fairqr.evaluation.experiments import running
from fairqr.evaluation.experiments.engine import Done
from fairqr.evaluation.experiments.folder import Lines
from fairqr.evaluation.experiments.measuring import measure_experiment
from fairqr.evaluation.experiments.running import Place, Plan, Search, run_searches, search
from fairqr.evaluation.experiments.store import SearchRecord, Store
from fairqr.evaluation.experiments.training import folds_of, gather
from fairqr.evaluation.experiments.workers import RunOptions, Tools
from fairqr.graph.search.context import Context
from fairqr.retrieval.sources.catalog import Catalog
from fairqr.retrieval.sources.runs import read_run
from tests.unit.engines import WatchedEngine
from tests.unit.evaluation.experiments.small import plan_of, write_collection, write_source
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


def _plan(collection: Collection, folder: Path, **changes: Any) -> Plan:
    return plan_of(collection, folder, **{"systems": SYSTEMS, "model": "feedback", **changes})


async def _run(plan: Plan, collection: Collection, store: Store, at_once: int = 2) -> Watcher:
    watcher = Watcher()
    async with RunOptions(store.folder, at_once=at_once).tools(store.replies) as tools:
        await run_searches(plan, collection, store, tools, watcher=watcher)
    return watcher


async def test_all_searches_are_done_once_and_no_more(
    collection: Collection, tmp_path: Path
) -> None:
    """Once half of them is lost and done again, one at a time, the rankings are the same."""
    plan, store = _plan(collection, tmp_path), Store(tmp_path / "run")
    with pytest.raises(InputError, match="holds no experiment"):
        measure_experiment(store, collection)
    assert (await _run(plan, collection, store, at_once=4)).steps == 4 * 4
    keys = [record.key for record in store.lines.read()]
    assert sorted(keys) == sorted(cell.key(topic) for cell in plan.cells for topic in plan.topics)
    content = (store.folder / "results.jsonl").read_bytes()
    again = await _run(plan, collection, store)
    assert (again.stages, again.steps) == ([], 0)
    assert (store.folder / "results.jsonl").read_bytes() == content
    first = {record.key: record.ids for record in store.lines.read()}
    lines = content.splitlines(keepends=True)
    (store.folder / "results.jsonl").write_bytes(b"".join(lines[::2]) + lines[1][:30])
    with pytest.raises(InputError, match=r"No system in .* has searched for all topics yet"):
        measure_experiment(store, collection)
    assert (await _run(plan, collection, store, at_once=1)).steps == 8
    assert {record.key: record.ids for record in store.lines.read()} == first


async def test_a_query_that_finds_nothing_is_a_result_that_counts_as_0(tmp_path: Path) -> None:
    collection = write_collection(tmp_path / "collection")
    topics = (tmp_path / "collection" / "topics.jsonl").read_text().replace("poet", "xyzzy")
    (tmp_path / "collection" / "topics.jsonl").write_text(topics)
    collection = load_collection(tmp_path / "collection")
    plan = _plan(collection, tmp_path, systems=SYSTEMS[:2])
    store = Store(tmp_path / "run")
    await _run(plan, collection, store)
    empty = [record for record in store.lines.read() if not record.ids]
    assert {(record.system, record.topic) for record in empty} == {("BM25", "t2"), ("FA*IR", "t2")}
    assert {(record.stop_reason, record.error) for record in empty} == {("no_hits", "")}
    measured = measure_experiment(store, collection)
    relevance, fairness, product = measured.evaluations["gender", "title"]["BM25"].results.values()
    assert (relevance.count, fairness.count, product.count) == (4, 3, 4)
    assert relevance.values["t2"] == product.values["t2"] == 0


async def test_a_model_that_is_none_is_refused_before_anything_is_written(
    collection: Collection, tmp_path: Path
) -> None:
    """Otherwise the folder would hold an experiment that can never be finished."""
    plan = _plan(collection, tmp_path, model="nonsense")
    with pytest.raises(ModelUnavailableError, match="'nonsense' names no provider"):
        await _run(plan, collection, Store(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


async def test_a_full_disk_stops_the_run_and_what_is_whole_is_kept(
    collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, store = _plan(collection, tmp_path), Store(tmp_path / "run")
    whole = Lines.add

    def add(self: Lines[SearchRecord], record: SearchRecord) -> None:
        if record.system == "DELTR":
            assert self._open is not None
            self._open.write(b'{"attribute": "gen')
            raise OSError(28, "No space left on device")
        whole(self, record)

    monkeypatch.setattr(Lines, "add", add)
    with pytest.raises(OSError, match="No space left"):
        await _run(plan, collection, store)
    monkeypatch.undo()
    monkeypatch.setenv("FAIRQR_DATA_DIR", str(tmp_path / "data"))
    assert len(store.lines.read()) == 8
    assert (await _run(plan, collection, store)).steps == 8
    assert len(store.lines.read()) == 16


async def test_a_system_searches_the_corpus_that_it_names(
    collection: Collection, tmp_path: Path
) -> None:
    """By the name it is attached under, or by its file; an experiment names one for all."""
    path = write_source(tmp_path, "elsewhere", documents=f"{collection.folder}/documents.jsonl")
    Catalog().attach(path)
    for number, corpus in enumerate((None, "elsewhere", str(path))):
        plan = _plan(collection, tmp_path, systems=[SYSTEMS[0], SYSTEMS[3]], corpus=corpus)
        await _run(plan, collection, Store(tmp_path / f"run{number}"))
    runs = [
        {record.key: record.ids for record in Store(tmp_path / f"run{number}").lines.read()}
        for number in range(3)
    ]
    assert len(runs[0]) == 8
    assert runs[0] == runs[1] == runs[2]


async def test_systems_whose_corpus_is_not_there_are_left_out_and_the_rest_is_measured(
    collection: Collection, tmp_path: Path
) -> None:
    """So are those whose corpus cannot rank as they ask, or has other documents."""
    (tmp_path / "exported.txt").write_text("t0 Q0 d00 1 1.0 mine\n")
    source = write_source(tmp_path, "exported", engine="run", runs="exported.txt")
    (tmp_path / "others.jsonl").write_text('{"id": "other", "title": "A poet"}\n')
    others = write_source(tmp_path, "others", documents="others.jsonl")
    systems = [
        SYSTEMS[0],
        {"name": "away", "method": "plain", "corpus": "not-attached"},
        {"name": "others", "method": "plain", "corpus": str(others)},
        {"name": "no vectors", "method": "plain", "corpus": str(source), "retriever": "dense"},
    ]
    plan, store = _plan(collection, tmp_path, systems=systems), Store(tmp_path / "run")
    watcher = await _run(plan, collection, store)
    assert [sentence.partition(";")[0] for sentence in watcher.notes] == [
        "'away' was left out: There is no index 'not-attached'",
        f"'others' was left out: '{others}' has none of the relevant documents of 'collection'",
        "'no vectors' was left out: The source 'exported' only ranks in its own way",
    ]
    measured = measure_experiment(store, collection)
    assert list(measured.evaluations["gender", "title"]) == ["BM25"]
    assert measured.unfinished["gender", "title"] == {"away": 4, "others": 4, "no vectors": 4}


async def test_training_estimates_the_target_that_a_search_does(
    collection: Collection, tmp_path: Path
) -> None:
    """The part of the whole corpus included, for which the engine counts its documents once."""
    engine = WatchedEngine(await Catalog().resolve(collection.corpus_name))
    context = Context.of(attributes=("gender",), target="corpus:0.5,population:0.5", k=5)
    queries = {topic.id: topic.title for topic in collection.topics}
    examples = await gather(engine, queries, collection.qrels, context, depth=20)
    searched = await FairSearch(engine).search(
        "poet", **{**context.model_dump(exclude_unset=True), "method": "plain"}
    )
    assert engine.counts == 2
    assert len(examples) == 4
    for item in examples:
        assert item.candidates.targets[0].tolist() == pytest.approx(
            list(searched.target["gender"].values())
        )
    blind = WatchedEngine(engine, without=["corpus_shares"])
    with pytest.raises(UnsupportedError, match="The target part 'corpus' needs an engine"):
        await gather(blind, queries, collection.qrels, context, depth=20)


async def test_results_are_trec_runs_and_values_by_topic(
    collection: Collection, tmp_path: Path
) -> None:
    plan, store = _plan(collection, tmp_path), Store(tmp_path / "run")
    await _run(plan, collection, store)
    measured = measure_experiment(store, collection)
    measured.write(store.folder)
    runs = sorted((store.folder / "runs").iterdir())
    assert len(runs) == 4
    by_tag = {run.name: run for run in map(read_run, runs)}
    for record in store.lines.read():
        if record.system == "BM25":
            assert by_tag["BM25"].rankings[record.topic][0].ids == record.ids
    rows = list(csv.DictReader((store.folder / "measures.csv").read_text().splitlines()))
    assert len(rows) == 4 * 4 * 3
    evaluations = measured.evaluations["gender", "title"]
    for row in rows:
        score = evaluations[row["system"]].results[row["measure"]].values[row["topic"]]
        assert float(row["value"]) == score


async def test_a_collection_that_changed_is_not_measured(tmp_path: Path) -> None:
    collection = write_collection(tmp_path / "collection")
    store = Store(tmp_path / "run")
    await _run(_plan(collection, tmp_path, systems=SYSTEMS[:2]), collection, store)
    qrels = (tmp_path / "collection" / "qrels.txt").read_text().splitlines()
    (tmp_path / "collection" / "qrels.txt").write_text("\n".join(qrels[1:]) + "\n")
    with pytest.raises(InputError, match="'collection' have changed since the experiment was run"):
        measure_experiment(store, load_collection(tmp_path / "collection"))


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

    async def noting(tools: Tools, place: Place, task: Search) -> Done[SearchRecord]:
        if task.weights is not None:
            used.setdefault(task.key[-1], set()).add(task.weights)
        return await search(tools, place, task)

    monkeypatch.setattr(running, "search", noting)

    async def weights_of(name: str, turned: str | None) -> dict[str, Any]:
        folder = tmp_path / name / "collection"
        write_collection(folder)
        if turned:
            kept = [q for q in (folder / "qrels.txt").read_text().splitlines() if turned not in q]
            others = [f"{turned} 0 d{n:02} 1" for n in range(int(turned[1:]), 48, 12)]
            (folder / "qrels.txt").write_text("\n".join(kept + others) + "\n")
        collection = load_collection(folder)
        used.clear()
        systems = [SYSTEMS[0], SYSTEMS[2]]
        plan = _plan(collection, tmp_path, systems=systems, seeds=[0, 1])
        await _run(plan, collection, Store(tmp_path / name / "run"))
        assert all(len(weights) == 1 for weights in used.values())
        return {topic: json.loads(weights.pop())["model"] for topic, weights in used.items()}

    before = await weights_of("before", None)
    assert len(set(map(str, before.values()))) == 4
    for topic in before:
        after = await weights_of(f"without-{topic}", topic)
        assert after[topic] == before[topic]
        assert all(after[other] != before[other] for other in before if other != topic)
