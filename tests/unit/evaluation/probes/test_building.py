"""Building probe collections: what is in each cell, by brute force, and what changes a draw."""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fairqr.base.errors import InputError
from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.collections.finding import find_collection, import_collection
from fairqr.evaluation.probes.building import build_probe_collection, draw_items, source_fingerprint
from fairqr.evaluation.probes.collection import CELLS, ProbeQuery, write_probe_collection
from fairqr.evaluation.probes.specification import ProbeSettings
from fairqr.retrieval.sources.corpus import Corpus
from fairqr.retrieval.sources.documents import Document
from tests.unit.evaluation.collections.official import write_2021, write_2022
from tests.unit.evaluation.probes.small_collections import people, sides_of, write_collection

SUBSET = Path(__file__).parents[5] / "shared" / "data" / "trec2022"
GENDERS = {"female": 1, "male": 0, "other": -1, None: -1, "both": -1, "rather": 1}
LABELS = {"both": ["female", "male"], "rather": {"female": 2, "male": 1}}
"""By a name, what stands in a document, and on which side of «female vs male» it then is."""


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
        sides = sides_of(collection.corpus.schema, "female vs male")
        built = asyncio.run(
            build_probe_collection(collection, sides, ProbeSettings(size=size, seed=seed))
        )
    relevant = {t: {id_ for id_, grade in of.items() if grade > 0} for t, of in qrels.items()}
    pool = set().union(*relevant.values())
    assert built.manifest.undecided == sum(
        GENDERS[genders[id_]] < 0 for id_ in pool if id_ in genders
    )
    assert built.manifest.missing == len({"gone1", "gone2"} & pool)
    kept = {query.id: query for query in built.queries}
    short = {cell: [0, 0] for cell in CELLS}
    dropped: Counter[str] = Counter()
    for topic in qrels:
        cells = {
            f"{name}_{side}": {
                id_ for id_ in ids if id_ in genders and GENDERS[genders[id_]] == number
            }
            for name, ids in (("relevant", relevant[topic]), ("irrelevant", pool - relevant[topic]))
            for side, number in (("protected", 1), ("unprotected", 0))
        }
        if not cells["relevant_protected"] | cells["relevant_unprotected"]:
            dropped["no_relevant_item"] += 1
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
            lack = size // 4 - len(drawn)
            assert query.short.get(cell, 0) == lack
            assert (cell in query.short) == (lack > 0)
            short[cell][0] += lack > 0
            short[cell][1] += lack
    assert built.manifest.dropped == dropped
    assert built.manifest.queries == len(built.queries) == len(qrels) - dropped.total()
    assert built.manifest.short == {
        cell: {"queries": queries, "items": items}
        for cell, (queries, items) in short.items()
        if queries
    }


def build(collection: Collection, **settings: object) -> dict[str, ProbeQuery]:
    sides = sides_of(collection.corpus.schema)
    own = {name: settings.pop(name) for name in ("texts", "progress") if name in settings}
    chosen = ProbeSettings.model_validate(settings)
    built = asyncio.run(build_probe_collection(collection, sides, chosen, **own))  # type: ignore[arg-type]
    return {query.id: query for query in built.queries}


def test_items_have_what_rankers_read(tmp_path: Path) -> None:
    """Query, titles and texts; with titles only, a document without one keeps its text."""
    collection = people(tmp_path)
    query = build(collection, size=8)["a"]
    assert query.query == "query a"
    assert all(item.title == f"Title {item.id}" for item in query.items)
    assert all(item.text == f"Text of {item.id}." for item in query.items)
    path = tmp_path / "documents.jsonl"
    path.write_text(path.read_text().replace("Title af1", " "))
    items = build(collection, size=40, texts=False)["a"].items
    assert {item.id for item in items if item.text} == {"af1"}


def test_the_same_seed_gives_the_same_bytes_and_another_others(tmp_path: Path) -> None:
    """Nothing but the seed decides; neither time nor place nor the hash of a text."""
    collection = people(tmp_path / "people")
    sides = sides_of(collection.corpus.schema)
    contents = []
    for number, seed in enumerate([5, 5, 6]):
        built = asyncio.run(
            build_probe_collection(collection, sides, ProbeSettings(size=8, seed=seed))
        )
        write_probe_collection(built, tmp_path / str(number))
        names = ("probe.json", "queries.jsonl")
        contents.append([(tmp_path / str(number) / name).read_bytes() for name in names])
    assert contents[0] == contents[1]
    assert contents[0][1] != contents[2][1]


def test_other_queries_change_no_draw(tmp_path: Path) -> None:
    """Neither how many are asked for, nor their order; a new topic changes no relevant cell."""
    collection = people(tmp_path / "three")
    whole = build(collection, size=8)
    first = build(collection, size=8, queries=1)
    assert first == {"a": whole["a"]}
    turned = dataclasses.replace(collection, topics=collection.topics[::-1])
    assert build(turned, size=8) == whole
    assert list(build(turned, size=8, queries=2)) == ["c", "b"]
    fewer = dataclasses.replace(
        collection, topics=collection.topics[:2], qrels={t: collection.qrels[t] for t in "ab"}
    )
    for id_, query in build(fewer, size=8).items():
        for cell in CELLS[:2]:
            assert set(query.of_cell(cell)) == set(whole[id_].of_cell(cell))


def test_dropped_topics_do_not_count_as_queries(tmp_path: Path) -> None:
    """Of four topics two can be asked about; the second is found, and what was passed is told."""
    collection = write_collection(
        tmp_path,
        [("f", "female"), ("m", "male"), ("o", "other"), ("x", None)],
        {"t1": {"x": 1}, "t2": {"f": 1, "x": 1}, "t3": {"f": 1}, "t4": {"o": 1}, "t5": {"m": 0}},
    )
    sides = sides_of(collection.corpus.schema)
    built = asyncio.run(build_probe_collection(collection, sides, ProbeSettings(size=4, queries=1)))
    assert [query.id for query in built.queries] == ["t2"]
    assert built.manifest.dropped == {"no_relevant_item": 1}
    built = asyncio.run(build_probe_collection(collection, sides, ProbeSettings(size=4)))
    assert [query.id for query in built.queries] == ["t2", "t3", "t4"]
    assert built.manifest.dropped == {"no_relevant_item": 2}
    assert built.manifest.undecided == 1


def test_each_document_is_drawn_equally_often(tmp_path: Path) -> None:
    """2 of 6, over 600 seeds: 200 times each, within five standard deviations (11.5)."""
    collection = people(tmp_path)
    sides = sides_of(collection.corpus.schema)
    counts: Counter[str] = Counter()
    pairs: Counter[tuple[str, ...]] = Counter()
    for seed in range(600):
        drawn = draw_items(collection, sides, each=2, seed=seed, texts=False).cells["b"]
        ids = sorted(item.id for item in drawn["relevant_protected"])
        counts.update(ids)
        pairs[tuple(ids)] += 1
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
    query = build(dataclasses.replace(collection, corpus=corpus), size=40, progress=told.append)[
        "a"
    ]
    assert len(read) == told[-1] == 72
    assert len({item.id for item in query.items}) == len(query.items) == 6 + 6 + 10 + 10
    assert not any("Other" in item.text for item in query.items)


def test_the_fingerprint_changes_with_what_it_is_of(tmp_path: Path) -> None:
    """Documents, schema, topics and judgements; and with nothing else."""
    collection = people(tmp_path / "one")
    known = {source_fingerprint(collection)}
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


@pytest.mark.parametrize(
    "settings",
    [
        {"size": 0},
        {"size": 10},
        {"size": -4},
        {"seed": -1},
        {"queries": 0},
        {"order": "random"},
    ],
)
def test_numbers_out_of_range_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ProbeSettings.model_validate(settings)


def test_a_side_without_any_item_is_refused(tmp_path: Path) -> None:
    """All is of the protected group, or nothing; what is only judged 0 does not help."""
    collection = write_collection(
        tmp_path, [("f", "female"), ("m", "male")], {"t": {"f": 1, "m": 0}}
    )
    with pytest.raises(InputError, match="belongs to male or other; choose other groups of gender"):
        build(collection)
    sides = sides_of(collection.corpus.schema, "other")
    with pytest.raises(InputError, match="belongs to other; choose other groups of gender"):
        asyncio.run(build_probe_collection(collection, sides, ProbeSettings()))


def test_one_item_of_each_side_is_enough(tmp_path: Path) -> None:
    """Each is relevant for one of two topics, and irrelevant for the other."""
    documents = [("f", "female"), ("m", "male"), ("x", None)]
    collection = write_collection(
        tmp_path, documents, {"t": {"f": 1}, "u": {"m": 1}, "v": {"x": 1}}
    )
    cells = {id_: [item.cell for item in q.items] for id_, q in build(collection).items()}
    assert {id_: set(found) for id_, found in cells.items()} == {
        "t": {"relevant_protected", "irrelevant_unprotected"},
        "u": {"relevant_unprotected", "irrelevant_protected"},
    }
    assert build(collection)["t"].short["irrelevant_unprotected"] == 49


async def test_official_files(tmp_path: Path) -> None:
    """Imports of TREC Fair 2021 and 2022, in their shape, with labels that are lists or weights."""
    import_collection("trec-fair-2022", [write_2022(tmp_path / "raw22")], "fair22", data=tmp_path)
    train = find_collection("fair22", "train", data=tmp_path)
    sides = sides_of(train.corpus.schema)
    built = await build_probe_collection(train, sides, ProbeSettings(size=4))
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
        await build_probe_collection(small, sides_of(small.corpus.schema), ProbeSettings())


@pytest.mark.parametrize(
    ("attribute", "protected"), [("gender", "female"), ("continent", "not Europe")]
)
async def test_notables(attribute: str, protected: str) -> None:
    """Every topic can be asked about; the cells are full, but for relevant items."""
    collection = find_collection("notables")
    sides = sides_of(collection.corpus.schema, protected, attribute)
    built = await build_probe_collection(collection, sides, ProbeSettings(size=40), texts=False)
    assert built.manifest.queries == len(collection.topics) == 57
    assert built.manifest.name == f"notables, {attribute}: {sides.words[0]}"
    assert set(built.manifest.short) <= {"relevant_protected", "relevant_unprotected"}
    assert built.manifest.missing == 0
    assert all(len(query.of_cell("irrelevant_protected")) == 10 for query in built.queries)


@pytest.mark.skipif(not SUBSET.is_dir(), reason=f"{SUBSET} is absent")
async def test_the_joined_subset_of_2022(tmp_path: Path) -> None:
    """Human judgements: 23 topics, each with women and men that are relevant."""
    collection = find_collection(SUBSET, data=tmp_path)
    built = await build_probe_collection(
        collection, sides_of(collection.corpus.schema), ProbeSettings()
    )
    assert (built.manifest.queries, built.manifest.dropped) == (23, {})
    assert set(built.manifest.short) == {"relevant_protected"}
    assert all(query.of_cell("relevant_protected") for query in built.queries)
    assert sum(len(query.items) for query in built.queries) == 4481
