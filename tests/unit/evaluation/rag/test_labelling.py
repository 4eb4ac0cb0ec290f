"""Labels of utility: what they are, what they cost, and what is kept of them."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from fairqr.base.errors import InputError, ModelError
from fairqr.evaluation.experiments.engine import GIVE_UP, run_tasks
from fairqr.evaluation.experiments.workers import Pool
from fairqr.evaluation.rag.answering import Asked, open_answerer
from fairqr.evaluation.rag.collection import RagCollection
from fairqr.evaluation.rag.labelling import (
    NO_BASELINE,
    check_labels,
    given_labels,
    label_manifest,
    label_query,
    labelling_calls,
    summarise_labels,
    useful_positions,
    why_dropped,
)
from fairqr.evaluation.rag.store import GenerationLabels, LabelRecord
from tests.patience import PATIENCE
from tests.unit.evaluation.rag.small_rag import (
    PROMPT,
    Namer,
    collection_of,
    query_of,
    tools_with,
)
from tests.unit.evaluation.watching import Watcher


def _store(folder: Path, collection: RagCollection) -> GenerationLabels:
    store = GenerationLabels(folder)
    store.begin(label_manifest(collection, "namer", PROMPT, None))
    return store


async def _label(
    folder: Path,
    collection: RagCollection,
    namer: Namer,
    at_once: int = 4,
    watcher: Watcher | None = None,
) -> list[LabelRecord]:
    store, asked = _store(folder, collection), Asked("namer", collection.task, PROMPT)
    pool = Pool(await tools_with(folder, generator=namer))
    await run_tasks(
        collection.queries,
        lambda query: pool.do(label_query, asked, query),
        store.lines,
        title="labels",
        keys=lambda query: [(query.id,)],
        place=lambda _: None,
        start=lambda _: pool.do(open_answerer, asked),
        model=lambda _: "namer",
        watcher=watcher or Watcher(),
        at_once=at_once,
    )
    found = {label.query: label for label in store.lines.read()}
    return [found[query.id] for query in collection.queries]


async def test_the_gain_is_over_the_answer_without_documents(tmp_path: Path) -> None:
    """The answer without documents says "nothing", which one of the queries has as its gold."""
    silent = dataclasses.replace(query_of("q1"), golds=("nothing",))
    collection = collection_of(query_of("q0"), silent)
    first, second = await _label(tmp_path / "l", collection, Namer())
    assert first.without == 0.0
    assert list(first.gains.values()) == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert useful_positions(collection.queries[0], first) == (0, 1)
    assert second.without == 1.0
    assert list(second.gains.values()) == [-1.0] * 5
    assert (first.model_calls, first.tokens) == (6, 60)


async def test_labels_do_not_depend_on_concurrency_nor_on_where_it_stopped(tmp_path: Path) -> None:
    collection = collection_of(*(query_of(f"q{n}", 4 + n, n) for n in range(5)))
    whole = [
        record.model_copy(update={"milliseconds": 0.0})
        for record in await _label(tmp_path / "one", collection, Namer(), 1)
    ]
    some = collection_of(*collection.queries[:2])
    await _label(tmp_path / "two", some, Namer(), 8)
    namer = Namer()
    resumed = await _label(tmp_path / "two", collection, namer, 8)
    assert [r.model_copy(update={"milliseconds": 0.0}) for r in resumed] == whole
    assert len(namer.asked) == labelling_calls(collection.queries[2:])


async def test_the_documents_of_a_query_without_a_baseline_are_not_asked_about(
    tmp_path: Path,
) -> None:
    collection = collection_of(query_of("q0"), query_of("q1"), query_of("q2"))
    watcher, namer = Watcher(), Namer()
    await _label(tmp_path / "l", collection_of(query_of("q2")), namer)
    asked, namer.ends = len(namer.asked), {"": "refuses"}
    labels = await _label(tmp_path / "l", collection, namer, watcher=watcher)
    assert watcher.stages == [("labels", 3, 1)]
    assert watcher.steps == 2
    assert len(namer.asked) == asked + 2
    assert [why_dropped(label, 2) for label in labels] == [NO_BASELINE, NO_BASELINE, None]


async def test_what_the_cache_answered_costs_what_it_cost_then(tmp_path: Path) -> None:
    collection = collection_of(query_of("q0", 1))
    (label,) = await _label(tmp_path / "l", collection, Namer({"a": "cached", "": "empty"}))
    assert label.gains == {"q0-a": 1.0}
    assert label.model_calls == 2
    assert label.milliseconds >= 250.0


async def test_a_generator_that_only_fails_is_given_up_and_leaves_no_failures(
    tmp_path: Path,
) -> None:
    """When it is back, the queries that it was asked last are asked again."""
    collection = collection_of(*(query_of(f"q{n}") for n in range(GIVE_UP + 2)))
    whole = await _label(tmp_path / "whole", collection, Namer())
    with pytest.raises(ModelError, match=f"namer failed {GIVE_UP} times in a row") as caught:
        await _label(tmp_path / "l", collection, Namer({"": "fails"}), 1)
    assert caught.value.status == "timeout"
    assert "It took too long; fix this and run again" in str(caught.value)
    assert not GenerationLabels(tmp_path / "l").lines.read()
    labels = await _label(tmp_path / "l", collection, Namer())
    assert [label.gains for label in labels] == [label.gains for label in whole]


async def test_what_it_refuses_is_a_result(tmp_path: Path) -> None:
    collection = collection_of(query_of("q0"), query_of("q1"))
    labels = await _label(tmp_path / "l", collection, Namer({"e": "refuses", "b": "refuses"}), 1)
    assert [label.failures for label in labels] == [{"refused": 2}, {"refused": 2}]
    assert list(labels[0].gains.values()) == [1.0, None, 0.0, 0.0, None]


def test_the_summary_is_that_of_the_kept_queries() -> None:
    def label(query: str, *gains: float | None, without: float | None = 0.0) -> LabelRecord:
        return LabelRecord(
            query=query, without=without, gains={str(n): gain for n, gain in enumerate(gains)}
        )

    labels = [
        label("q0", 1.0, 0.5, 0.0, -0.5),
        label("q1", 0.1, 0.1, 0.1, 0.1, None),
        label("q2", 1.0, 0.0),
        label("q3", None, None, without=None),
    ]
    assert summarise_labels(labels, 2) == {
        "labelled": 4,
        "kept": 2,
        "documents": 9,
        "unlabelled": 1,
        "useful": 6,
        "useful_mean": 3.0,
        "useful_sd": pytest.approx(2**0.5),
        "share": 6 / 8,
        "dropped": {"fewer than 2 useful documents": 1, "the answer without documents failed": 1},
    }
    none = summarise_labels(labels, 5)
    assert [none[it] for it in ("kept", "useful_mean", "useful_sd", "share")] == [0, *[None] * 3]
    one = summarise_labels(labels[:1], 1)
    assert (one["useful_mean"], one["useful_sd"]) == (2.0, None)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"fingerprint": "f1"}, "are of other files than the collection 'letters' has now"),
        ({"generator": "other"}, "are of the generator namer, not of other"),
        ({"prompt": "answer=v2", "prompt_sha256": "x"}, "are made with the prompt answer=v1, not"),
        ({"prompt_sha256": "x"}, "are made with another text of the prompt answer=v1"),
        ({"utility": "ROUGE-L"}, "are by begins rightly, not by ROUGE-L"),
    ],
)
def test_labels_of_something_else_are_refused(
    tmp_path: Path, changes: dict[str, str], sentence: str
) -> None:
    collection = collection_of(query_of("q0"))
    store = _store(tmp_path / "l", collection)
    wanted = store.manifest()
    check_labels(store, wanted.model_copy(update={"pool": 3, "title": "Another"}))
    with pytest.raises(InputError) as caught:
        check_labels(store, wanted.model_copy(update=changes))
    assert sentence in str(caught.value)


async def test_given_labels_are_cut_to_the_pools(tmp_path: Path) -> None:
    collection = collection_of(query_of("q0", 5), query_of("q1", 5))
    await _label(tmp_path / "given", collection, Namer())
    (taken,) = given_labels(tmp_path / "given", [query_of("q0", 3), query_of("q2", 3)])
    assert list(taken.gains) == ["q0-a", "q0-b", "q0-c"]
    with pytest.raises(InputError, match=r"about 1 documents of the query 'q0'; take labels of a"):
        given_labels(tmp_path / "given", [query_of("q0", 6), query_of("q1", 6)])


async def test_one_that_stops_stops_the_others(tmp_path: Path) -> None:
    """What waits for its turn is not asked any more."""
    collection = collection_of(*(query_of(f"q{n}", 10) for n in range(40)))
    everything = dict.fromkeys(["", *"abcdefghij"], "fails")
    namer = Namer(everything)
    with pytest.raises(ModelError):
        await asyncio.wait_for(_label(tmp_path / "l", collection, namer, 3), PATIENCE)
    assert len(namer.asked) <= GIVE_UP + 3
