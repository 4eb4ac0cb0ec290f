"""Building probe collections: what is in each cell, by brute force, and what changes a draw."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqr.base.errors import InputError, UnknownAttributeError
from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.collections.finding import find_collection, import_collection
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.evaluation.probes.building import open_probe_collections, reorder, source_fingerprint
from fairqr.evaluation.probes.collection import CELLS, ProbeCollection, ProbeItem, ProbeQuery
from fairqr.evaluation.probes.specification import Order
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.sources.catalog import Catalog
from fairqr.retrieval.sources.corpus import Corpus
from fairqr.retrieval.sources.documents import Document
from tests.unit.engines import remove
from tests.unit.evaluation.collections.official import write_2021, write_2022
from tests.unit.evaluation.probes.made import (
    collection_of,
    draw,
    listwise,
    people,
    write_collection,
)

SUBSET = Path(__file__).parents[5] / "shared" / "data" / "trec2022"
GENDERS = {"female": 1, "male": 0, "other": -1, None: -1, "both": -1, "rather": 1}
LABELS = {"both": ["female", "male"], "rather": {"female": 2, "male": 1}}
"""By a name, what stands in a document, and on which side of «female vs male» it then is."""

ORDERS: tuple[Order, ...] = ("shuffled", "discriminatory")


@st.composite
def worlds(draw: st.DrawFn) -> tuple[dict[str, str | None], dict[str, dict[str, int]]]:
    """Genders of a few documents, and judgements, some of them of documents that are not there."""
    count = draw(st.integers(2, 25))
    genders = {f"d{n}": draw(st.sampled_from(list(GENDERS))) for n in range(count)}
    judged = st.dictionaries(st.sampled_from([*genders, "gone1", "gone2"]), st.integers(0, 2))
    qrels = {f"t{n}": draw(judged) for n in range(draw(st.integers(1, 4)))}
    # No collection without judgements is read, and none is refused here for a side.
    genders |= {"w": "female", "m": "male"}
    qrels["t0"] |= {"w": 1, "m": 1}
    return genders, qrels


@settings(max_examples=80)
@given(worlds(), st.sampled_from([4, 8, 12]), st.integers(0, 3))
def test_cells_are_what_judgements_and_labels_say(
    world: tuple[dict[str, str | None], dict[str, dict[str, int]]], size: int, seed: int
) -> None:
    """Each cell against sets; no id twice; what is short, dropped and left out adds up."""
    genders, qrels = world
    with tempfile.TemporaryDirectory() as folder:
        documents = [(id_, LABELS.get(label or "", label)) for id_, label in genders.items()]
        collection = write_collection(Path(folder), documents, qrels)
        built = draw(collection, "female vs male", size=size, seed=seed)
    told = built.manifest
    relevant = {t: {id_ for id_, grade in of.items() if grade > 0} for t, of in qrels.items()}
    pool = set().union(*relevant.values())
    assert told.undecided == sum(GENDERS[genders[it]] < 0 for it in pool if it in genders)
    assert told.missing == len({"gone1", "gone2"} & pool)
    kept = {query.id: query for query in built.queries}
    short = {cell: [0, 0] for cell in CELLS}
    dropped = 0
    for topic in qrels:
        cells = {
            f"{name}_{side}": {it for it in ids if it in genders and GENDERS[genders[it]] == number}
            for name, ids in (("relevant", relevant[topic]), ("irrelevant", pool - relevant[topic]))
            for side, number in (("protected", 1), ("unprotected", 0))
        }
        if not cells["relevant_protected"] | cells["relevant_unprotected"]:
            dropped += 1
            assert topic not in kept
            continue
        query = kept[topic]
        # Some of both sides, and so of two cells at the least.
        assert {item.protected for item in query.items} == {True, False}
        ids = [item.id for item in query.items]
        assert len(ids) == len(set(ids)) <= size
        for cell in CELLS:
            drawn = {item.id for item in query.of_cell(cell)}
            assert drawn <= cells[cell]
            assert len(drawn) == min(size // 4, len(cells[cell]))
            short[cell][0] += len(drawn) < size // 4
            short[cell][1] += size // 4 - len(drawn)
    assert told.dropped == ({"no_relevant_item": dropped} if dropped else {})
    assert told.queries == len(built.queries) == len(qrels) - dropped
    assert told.short == {
        cell: {"queries": queries, "items": items}
        for cell, (queries, items) in short.items()
        if queries
    }


def by_id(collection: Collection, **changes: Any) -> dict[str, ProbeQuery]:
    return {query.id: query for query in draw(collection, **changes).queries}


def test_items_have_what_rankers_read(tmp_path: Path) -> None:
    """Query, titles and texts; with titles only, a document without one keeps its text."""
    collection = people(tmp_path)
    query = by_id(collection, size=8)["a"]
    assert query.query == "query a"
    assert all((it.title, it.text) == (f"Title {it.id}", f"Text of {it.id}.") for it in query.items)
    path = tmp_path / "documents.jsonl"
    path.write_text(path.read_text().replace("Title af1", " "))
    items = by_id(collection, size=40, texts=False)["a"].items
    assert {item.id for item in items if item.text} == {"af1"}


def test_the_same_seed_gives_the_same_bytes_and_another_others(tmp_path: Path) -> None:
    """Nothing but the seed decides; neither time nor place nor the hash of a text."""
    collection = people(tmp_path / "people")
    contents = []
    for number, seed in enumerate([5, 5, 6]):
        draw(collection, size=8, seed=seed).write(tmp_path / str(number))
        contents.append((tmp_path / str(number) / "probe.json").read_bytes())
    assert contents[0] == contents[1]
    assert contents[0].partition(b"queries")[2] != contents[2].partition(b"queries")[2]


def test_other_queries_change_no_draw(tmp_path: Path) -> None:
    """Neither how many are asked for, nor their order; a new topic changes no relevant cell."""
    collection = people(tmp_path / "three")
    whole = by_id(collection, size=8)
    assert by_id(collection, size=8, queries=1) == {"a": whole["a"]}
    turned = dataclasses.replace(collection, topics=collection.topics[::-1])
    assert by_id(turned, size=8) == whole
    assert list(by_id(turned, size=8, queries=2)) == ["c", "b"]
    fewer = dataclasses.replace(
        collection, topics=collection.topics[:2], qrels={t: collection.qrels[t] for t in "ab"}
    )
    for id_, query in by_id(fewer, size=8).items():
        for cell in CELLS[:2]:
            assert {*query.of_cell(cell)} == {*whole[id_].of_cell(cell)}


def test_each_document_is_drawn_equally_often(tmp_path: Path) -> None:
    """2 of 6, over 600 seeds: 200 times each, within five standard deviations (11.5)."""
    collection = people(tmp_path)
    pairs: Counter[tuple[str, ...]] = Counter()
    for seed in range(600):
        items = by_id(collection, size=8, seed=seed)["b"].of_cell("relevant_protected")
        pairs[tuple(sorted(item.id for item in items))] += 1
    counts = Counter(id_ for ids, count in pairs.items() for id_ in ids * count)
    assert set(counts) == {f"bf{n}" for n in range(6)}
    assert all(abs(count - 200) < 58 for count in counts.values())
    # Each of the 15 pairs 40 times, within five standard deviations (6.1).
    assert len(pairs) == 15
    assert all(abs(count - 40) < 31 for count in pairs.values())


def test_documents_are_read_once(tmp_path: Path) -> None:
    """A large corpus takes minutes to read; a document that stands twice is offered once."""
    read: list[str] = []

    class Counted(Corpus):
        def documents(self) -> Iterator[Document]:
            for document in super().documents():
                read.append(document.id)
                yield document

    collection = people(tmp_path)
    path = tmp_path / "documents.jsonl"
    path.write_text(path.read_text() + path.read_text().replace("Text", "Other text"))
    corpus = Counted(path, collection.corpus.schema)
    told: list[int] = []
    counted = dataclasses.replace(collection, corpus=corpus)
    query = by_id(counted, size=40, progress=told.append)["a"]
    assert len(read) == told[-1] == 72
    assert len({item.id for item in query.items}) == len(query.items) == 6 + 6 + 10 + 10
    assert not any("Other" in item.text for item in query.items)


def test_the_fingerprint_changes_with_what_it_is_of(tmp_path: Path) -> None:
    """Documents, schema, topics and judgements; and with nothing else."""
    known = {source_fingerprint(people(tmp_path / "one"))}
    assert source_fingerprint(people(tmp_path / "two")) in known
    for name, old, new in (
        ("documents.jsonl", "Text of af0", "Words of af0"),
        ("schema.yaml", "male, other", "male, others"),
        ("topics.jsonl", "query a", "question a"),
        ("qrels.txt", "a 0 af0 1", "a 0 af0 2"),
    ):
        path = tmp_path / "one" / name
        path.write_text(path.read_text().replace(old, new))
        known.add(source_fingerprint(find_collection(tmp_path / "one")))
    assert len(known) == 5


@pytest.mark.parametrize("protected", ["female", "other"])
def test_a_side_without_any_item_is_refused(tmp_path: Path, protected: str) -> None:
    """All is of the protected group, or nothing; what is only judged 0 does not help."""
    documents = [("f", "female"), ("m", "male")]
    collection = write_collection(tmp_path, documents, {"t": {"f": 1, "m": 0}})
    lacking = {"female": "male or other", "other": "other"}[protected]
    with pytest.raises(InputError, match=f"belongs to {lacking}; choose other groups of gender"):
        draw(collection, protected)


async def test_official_files(tmp_path: Path) -> None:
    """Imports of TREC Fair 2021 and 2022, in their shape, with labels that are lists or weights."""
    import_collection("trec-fair-2022", [write_2022(tmp_path / "raw22")], "fair22", data=tmp_path)
    train = find_collection("fair22", "train", data=tmp_path)
    built = await asyncio.to_thread(draw, train, size=4)
    assert [(query.id, query.query) for query in built.queries] == [("84", "Agriculture")]
    assert {item.id: item.cell for item in built.queries[0].items} == {
        "12": "relevant_protected",
        "307": "relevant_unprotected",
    }
    # Two of both genders or of none; one that is judged and not there.
    assert (built.manifest.undecided, built.manifest.missing) == (2, 1)
    assert built.manifest.dropped == {"no_relevant_item": 1}
    assert (built.manifest.source, built.manifest.split) == ("fair22", "train")
    import_collection("trec-fair-2021", [write_2021(tmp_path / "raw21")], "fair21", data=tmp_path)
    small = find_collection("fair21", "train", data=tmp_path)
    with pytest.raises(InputError, match="belongs to male or non-binary"):
        await asyncio.to_thread(draw, small)


@pytest.mark.skipif(not SUBSET.is_dir(), reason=f"{SUBSET} is absent")
def test_the_joined_subset_of_2022(tmp_path: Path) -> None:
    """Human judgements: 23 topics, each with women and men that are relevant."""
    built = draw(find_collection(SUBSET, data=tmp_path))
    assert (built.manifest.queries, built.manifest.dropped) == (23, {})
    assert set(built.manifest.short) == {"relevant_protected"}
    assert sum(len(query.items) for query in built.queries) == 4481


# --- the initial order ----------------------------------------------------------------------------


def ordered(collection: ProbeCollection, order: Order) -> list[ProbeItem]:
    return [*asyncio.run(reorder(collection, order)).queries[0].items]


@given(
    st.lists(st.tuples(st.booleans(), st.booleans()), max_size=20),
    st.sampled_from(ORDERS),
    st.integers(0, 5),
    st.data(),
)
def test_an_order_is_a_permutation_that_forgets_the_one_before(
    cells: list[tuple[bool, bool]], order: Order, seed: int, data: st.DataObject
) -> None:
    """Seed and query decide; the discriminatory one has one cell after the other."""
    items = [
        ProbeItem(id=f"d{n}", title="", relevant=relevant, protected=protected)
        for n, (relevant, protected) in enumerate([*cells, (True, True), (False, False)])
    ]
    turned = [items, data.draw(st.permutations(items))]
    one, other = (
        collection_of(ProbeQuery(id="q", query="q", items=tuple(each)), seed=seed)
        for each in turned
    )
    found = ordered(one, order)
    assert found == ordered(other, order)
    assert sorted(item.id for item in found) == sorted(item.id for item in items)
    if order == "discriminatory":
        places = [CELLS.index(item.cell) for item in found]
        assert all(one <= other for one, other in itertools.pairwise(places))


@pytest.mark.parametrize("order", ORDERS)
def test_no_two_seeds_or_queries_are_in_the_same_order(order: Order) -> None:
    items = tuple(
        ProbeItem(id=f"{n}", title="", relevant=n % 2 == 0, protected=n < 9) for n in range(30)
    )
    made = [
        collection_of(ProbeQuery(id=id_, query="q", items=items), seed=seed)
        for id_, seed in (("a", 0), ("b", 0), ("a", 1))
    ]
    assert len({tuple(item.id for item in ordered(it, order)) for it in made}) == 3


@pytest.fixture
async def cooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SearchEngine:
    """An engine over five people; the query finds two of them, the others have equal scores."""
    monkeypatch.setenv("FAIRQR_DATA_DIR", str(tmp_path / "data"))
    documents = [(id_, "female" if id_ < "c" else "male") for id_ in "edcba"]
    qrels = {"t": dict.fromkeys("abcd", 1), "u": {"e": 1}}
    write_collection(tmp_path / "cooks", documents, qrels, {"t": "cook", "u": "the"})
    path = tmp_path / "cooks" / "documents.jsonl"
    text = path.read_text().replace("Text of d", "A cook, a cook").replace("of b", "of a cook")
    path.write_text(text)
    return await Catalog().resolve(str(path))


async def test_bm25_is_the_ranking_of_the_engine(cooks: SearchEngine, tmp_path: Path) -> None:
    """The best first; what is not found comes last in order of id, and so does all for no term."""
    source = {"attribute": "gender", "protected": "female"}
    asked = listwise(collection=str(tmp_path / "cooks"), sources=[source], size=8, order="bm25")
    (built,), _ = await open_probe_collections(asked, texts=True, watcher=StageWatcher())
    assert built.manifest.order == "bm25"
    assert [item.id for item in built.queries[0].items] == ["d", "b", "a", "c", "e"]
    assert [item.id for item in built.queries[1].items] == ["a", "b", "c", "d", "e"]
    # What the engine lacks comes last as well.
    await remove(cooks, ["d", "a"])
    again = await reorder(built, "bm25", cooks)
    await cooks.aclose()
    assert [item.id for item in again.queries[0].items] == ["b", "c", "e", "a", "d"]


async def test_a_source_is_built_or_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder gives what was written, the first of its queries, and another order if asked."""
    monkeypatch.setenv("FAIRQR_DATA_DIR", str(tmp_path / "data"))
    people(tmp_path / "people", each=2)
    name, kept = str(tmp_path / "people"), str(tmp_path / "kept")

    async def opened(**changes: Any) -> ProbeCollection:
        asked = listwise(**{"collection": None, "sources": kept, "size": 200, **changes})
        (found,), _ = await open_probe_collections(asked, texts=True, watcher=StageWatcher())
        return found

    async def built(**changes: Any) -> ProbeCollection:
        return await opened(collection=name, sources="gender=female", size=16, **changes)

    first = await built()
    assert (first.manifest.source, first.manifest.order) == (name, "shuffled")
    assert first.manifest.short["relevant_protected"] == {"queries": 3, "items": 6}
    first.write(Path(kept))
    assert await opened() == await opened(queries=9) == await opened(seed=3) == first
    fewer = await opened(queries=1)
    assert fewer.queries == first.queries[:1]
    assert fewer.manifest.short["relevant_protected"] == {"queries": 1, "items": 2}
    for order in ("discriminatory", "bm25"):
        assert await opened(order=order) == await built(order=order)
    with (tmp_path / "people" / "qrels.txt").open("a") as lines:
        lines.write("a 0 bf1 1\n")
    with pytest.raises(InputError, match="has changed since the probe collection 'people, gender"):
        await opened(order="bm25")
    with pytest.raises(InputError, match="are called 'people, gender: female'"):
        await opened(sources=[kept, f"{kept}/"])
    # The shipped experiments name attributes that a collection of one's own may not have.
    both = listwise(collection=name, sources=["gender=female", "continent=not Europe"])
    found, notes = await open_probe_collections(both, texts=True, watcher=StageWatcher())
    assert len(found) == 1
    assert notes[0].startswith("Left out is 'continent', which 'people' lacks; ")
    with pytest.raises(UnknownAttributeError, match="continent"):
        await opened(collection=name, sources="continent=not Europe")
