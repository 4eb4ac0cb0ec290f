"""Probe collections by brute force: what is in each cell, what changes a draw; and their pairs."""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqr.base.errors import InputError
from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.collections.finding import import_collection
from fairqr.evaluation.probes import collection as probes
from fairqr.evaluation.probes.collection import (
    CELLS,
    GROUP_KINDS,
    ProbeQuery,
    crossed_pairs,
    planned_pairs,
)
from fairqr.evaluation.probes.specification import parse_cells
from tests.unit.evaluation.collections.official import lines
from tests.unit.evaluation.probes.made import draw, listwise, people, query_of, write_collection
from tests.unit.evaluation.watching import Watcher

GENDERS = {"female": 1, "male": 0, "other": -1, None: -1, "both": -1, "rather": 1}
PLACES = ("non-European", "European")
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
    """Each cell against sets; no id twice; what is there, dropped and left out adds up."""
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
    there = Counter[str]()
    for topic in qrels:
        cells = {
            f"{name}_{side}": {it for it in ids if it in genders and GENDERS[genders[it]] == number}
            for name, ids in (("relevant", relevant[topic]), ("irrelevant", pool - relevant[topic]))
            for side, number in (("protected", 1), ("unprotected", 0))
        }
        assert (topic in kept) == bool(cells["relevant_protected"] | cells["relevant_unprotected"])
        if topic not in kept:
            continue
        ids = [item.id for item in kept[topic].items]
        assert len(ids) == len(set(ids)) <= size
        for cell in CELLS:
            drawn = {item.id for item in kept[topic].of_cell(cell)}
            assert drawn <= cells[cell]
            assert len(drawn) == min(size // 4, len(cells[cell]))
            there[cell] += len(drawn)
    assert told.queries == len(built.queries) == len(qrels) - told.dropped
    assert told.items == +there


def by_id(collection: Collection, **changes: Any) -> dict[str, ProbeQuery]:
    return {query.id: query for query in draw(collection, **changes).queries}


def test_items_have_what_rankers_read(tmp_path: Path) -> None:
    """Query, titles and texts; with titles only, a document without one keeps its text."""
    collection = people(tmp_path)
    query = by_id(collection, size=8)["a"]
    assert query.query == "query a"
    assert all((it.title, it.text) == (f"Title {it.id}", f"Text of {it.id}.") for it in query.items)
    path = tmp_path / "documents.jsonl"
    # A document that stands twice is drawn once.
    path.write_text(path.read_text().replace("Title af1", " ") + path.read_text())
    items = by_id(collection, size=40, texts=False)["a"].items
    assert {item.id: item.text for item in items if item.text} == {"af1": "Text of af1."}
    assert len({item.id for item in items}) == len(items) == 6 + 6 + 10 + 10


@pytest.mark.promise("evaluation")
@pytest.mark.parametrize("order", ["shuffled", "discriminatory"])
def test_a_draw_depends_on_seed_topic_and_candidates_alone(tmp_path: Path, order: str) -> None:
    """A probe's draws depend on seed, topic and candidates only.

    Nor do other topics or their order change a list; a discriminatory one goes cell by cell.
    """
    collection = people(tmp_path)
    how: dict[str, Any] = {"size": 8, "order": order}
    first, again, other = (draw(collection, seed=seed, **how) for seed in (5, 5, 6))
    assert first.text == again.text
    assert first.queries != other.queries
    whole = by_id(collection, **how)
    assert by_id(collection, queries=1, **how) == {"a": whole["a"]}
    turned = dataclasses.replace(collection, topics=collection.topics[::-1])
    assert by_id(turned, **how) == whole
    assert list(by_id(turned, queries=2, **how)) == ["c", "b"]
    fewer = dataclasses.replace(
        collection, topics=collection.topics[:2], qrels={t: collection.qrels[t] for t in "ab"}
    )
    for id_, query in by_id(fewer, **how).items():
        for cell in CELLS[:2]:
            assert {*query.of_cell(cell)} == {*whole[id_].of_cell(cell)}
    places = [[CELLS.index(it.cell) for it in query.items] for query in whole.values()]
    is_sorted = all(one <= other for it in places for one, other in itertools.pairwise(it))
    assert is_sorted == (order == "discriminatory")
    # The order is not that in which items were drawn.
    orders = by_id(people(tmp_path / "more", each=10), size=40, order=order).values()
    assert len({tuple(it.id[1:] for it in query.items) for query in orders}) == 3


def test_each_document_is_drawn_equally_often(tmp_path: Path) -> None:
    """2 of 6, over 600 seeds: each of the 15 pairs as often as the others."""
    collection = people(tmp_path)
    pairs: Counter[tuple[str, ...]] = Counter()
    for seed in range(600):
        items = by_id(collection, size=8, seed=seed)["b"].of_cell("relevant_protected")
        pairs[tuple(sorted(item.id for item in items))] += 1
    # Each of the 15 pairs 40 times, within five standard deviations (6.1).
    assert len(pairs) == 15
    assert all(abs(count - 40) < 31 for count in pairs.values())


def opened(folder: Path, **changes: Any) -> tuple[list[str], list[str]]:
    """Return the names of the collections of an experiment, and what a user is told."""
    watcher = Watcher()
    named = {"sources": (), "size": 8, **changes}
    asked = listwise(collection=str(folder / "people"), **named)
    found = probes.open_probe_collections(asked, texts=False, watcher=watcher)
    return [it.manifest.name for it in found], watcher.notes


def test_groups_are_named_or_come_from_the_collection(tmp_path: Path) -> None:
    """By the attribute and its protected group, or by several; what is not there is left out."""
    people(tmp_path / "people")
    women = "people, gender: female"
    assert opened(tmp_path) == ([women], [])
    assert opened(tmp_path, attribute="gender") == ([women], [])
    for protected, name in (
        ("female", "female"),
        ("gender=female", "female"),
        ("male vs female", "male"),
        ("gender=not female", "non-female"),
    ):
        for also in ({}, {"attribute": "gender"}):
            named = opened(tmp_path, protected=protected, sources=["gender=other"], **also)
            assert named == ([f"people, gender: {name}"], [])
    men = {"attribute": "gender", "protected": "not female", "words": ["men", "women"]}
    assert opened(tmp_path, **men, sources=["gender=other"]) == (["people, gender: men"], [])
    both = ["gender=male", "continent=not Europe"]
    for sources, name in (
        (both, "people, gender: male"),
        (both[1:], women),
    ):
        names, (note,) = opened(tmp_path, sources=sources)
        assert names == [name]
        assert note.startswith(f"'people' has no {sources[-1]}, so we probe gender=")
    with pytest.raises(InputError, match="no group 'woman'"):  # a slip is no wish for another
        opened(tmp_path, sources=["gender=woman"])


seeds = st.integers(0, 2**32)
queries = st.lists(st.integers(0, 7), min_size=4, max_size=4).map(lambda it: query_of("q1", *it))

EUROPEAN = "Eastern Europe, Northern Europe, Southern Europe, Western Europe"
PEOPLE_OF = {
    "trec-fair-2021": [
        {"gender": [gender], "geographic_locations": [place]}
        for gender in ("female", "male", "agender")
        for place in ("Europe", "Africa")
    ],
    "trec-fair-2022": [
        {"gender": [gender], "page_subcont_regions": [place]}
        for gender in ("female", "male", "agender")
        for place in ("Northern Europe", "Western Africa")
    ],
}
"""The labels of the relevant pages of each topic, as the official metadata have them."""


@pytest.mark.parametrize(
    ("loader", "named", "words", "each"),
    [
        # Other genders are on neither side, as in the paper.
        ("trec-fair-2022", {"protected": "female vs male"}, ("female", "male"), 2),
        (
            "trec-fair-2022",
            {"attribute": "geography", "protected": f"not {EUROPEAN}", "words": PLACES},
            PLACES,
            3,
        ),
        ("trec-fair-2021", {"attribute": "geography", "protected": "not Europe"}, PLACES, 3),
    ],
)
def test_official_files_are_probed_by_the_recipes_of_the_page(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    loader: str,
    named: dict[str, Any],
    words: tuple[str, str],
    each: int,
) -> None:
    """Each cell has as many items as the made files have people of that side."""
    monkeypatch.setenv("FAIRQR_DATA_DIR", str(tmp_path))
    pages = [
        {"page_id": number, **people}
        for number, people in enumerate(2 * PEOPLE_OF[loader], start=1)
    ]
    ids = [page["page_id"] for page in pages]
    made = tmp_path / "made"
    lines(made / "corpus.json", [{"id": id_, "title": f"Page {id_}", "text": "."} for id_ in ids])
    kind = "metadata" if loader == "trec-fair-2021" else "articles"
    lines(made / f"{kind}.json", pages)
    halves = {"1": ids[:6], "2": ids[6:]}
    topics = [{"id": id_, "title": f"T{id_}", "rel_docs": own} for id_, own in halves.items()]
    lines(made / "topics.json", topics)
    folder, _ = import_collection(loader, [made], "official")
    asked = listwise(collection=str(folder), size=40, **named)
    (built,) = probes.open_probe_collections(asked, texts=False, watcher=Watcher())
    assert built.manifest.sides.words == words
    assert built.manifest.items == dict.fromkeys(CELLS, 2 * each)
    assert [query.query for query in built.queries] == ["T1", "T2"]


@given(st.sampled_from([8, 32, 200]), st.sampled_from(["balanced", "paper", "1:0:2:3", "1:1:1:4"]))
def test_cells_share_a_list_as_their_parts_say(size: int, cells: str) -> None:
    """By exact fractions: no cell is a whole item off its share, and together they fill it."""
    sizes = listwise(cells=cells, size=size).cell_sizes
    parts = parse_cells(cells)
    assert sum(sizes) == size
    for own, part in zip(sizes, parts, strict=True):
        assert abs(own - Fraction(size * part, sum(parts))) < 1


@pytest.mark.parametrize("cells", ["half", "1:1", "0:0:0:0", "1:1:1:-1"])
def test_a_mix_that_is_none_is_refused(cells: str) -> None:
    with pytest.raises(
        ValueError, match="is not a mix of items; write balanced, paper or the parts"
    ):
        listwise(cells=cells)


def test_topics_are_drawn_by_the_seed(tmp_path: Path) -> None:
    """Over seeds each topic is drawn; what is drawn of it stays the same."""
    collection = people(tmp_path)
    whole = by_id(collection, size=8)
    drawn = [draw(collection, size=8, queries=1, topics="drawn", seed=seed) for seed in range(12)]
    assert {built.queries[0].id for built in drawn} == {"a", "b", "c"}
    assert by_id(collection, size=8, topics="drawn") == whole


@given(query=queries, limit=st.integers(1, 60), seed=seeds)
def test_crossed_pairs_are_the_cross_product_evenly(
    query: ProbeQuery, limit: int, seed: int
) -> None:
    """No pair twice, all of them if there is room, the first ones those of the probes."""
    for kind in GROUP_KINDS:
        sides = [query.of_cell(f"{kind}_{side}") for side in ("protected", "unprotected")]
        pairs = crossed_pairs(query, kind, limit, seed)
        every = {(one.id, other.id) for one, other in itertools.product(*sides)}
        ids = [(pair.protected.id, pair.unprotected.id) for pair in pairs]
        assert len(ids) == len(set(ids)) == min(limit, len(every))
        assert set(ids) <= every
        probed = [it for it in planned_pairs(query, limit, 0, seed) if it.kind == kind]
        assert pairs[: len(probed)] == probed
        for place, items in enumerate(sides):
            counts = Counter(pair[place] for pair in ids)
            often = [counts[item.id] for item in items]
            assert not ids or len(items) > len(sides[1 - place]) or max(often) - min(often) <= 1


def test_two_collections_of_one_name_are_refused_first(tmp_path: Path) -> None:
    people(tmp_path / "people")
    (tmp_path / "people" / "documents.jsonl").write_text("no document")
    with pytest.raises(InputError, match="are called 'people, gender: male'"):
        opened(tmp_path, sources=["gender=male", "gender=male vs other"])


@given(query=queries, limit=st.integers(1, 14), seed=seeds)
def test_pairs_are_of_their_cells_and_share_no_item(
    query: ProbeQuery, limit: int, seed: int
) -> None:
    """Relevance pairs are of one side, and the sides take turns."""
    size = {cell: len(query.of_cell(cell)) for cell in CELLS}
    pairs = planned_pairs(query, limit, limit, seed)
    for kind in GROUP_KINDS:
        own = [pair for pair in pairs if pair.kind == kind]
        assert len(own) == min(limit, size[f"{kind}_protected"], size[f"{kind}_unprotected"])
        for pair in own:
            assert [it.cell for it in pair.items] == [f"{kind}_protected", f"{kind}_unprotected"]
        check_apart(query, own)
    own = [pair for pair in pairs if pair.kind == "relevance"]
    able = [
        min(size[f"relevant_{side}"], size[f"irrelevant_{side}"])
        for side in ("protected", "unprotected")
    ]
    assert len(own) == min(limit, sum(able))
    for pair in own:
        assert [it.relevant for it in pair.items] == [True, False]
        assert pair.protected.protected == pair.unprotected.protected
    check_apart(query, own)
    sides = [pair.protected.protected for pair in own][: 2 * min(able)]
    assert sides == [place % 2 == 0 for place in range(len(sides))]


def check_apart(query: ProbeQuery, pairs: list[Any]) -> None:
    """Check that no item is in two pairs."""
    ids = [item.id for pair in pairs for item in pair.items]
    assert len(set(ids)) == len(ids)
    assert set(ids) <= {item.id for item in query.items}


@given(query=queries, seed=seeds, data=st.data())
def test_neither_order_nor_limit_changes_the_draw(
    query: ProbeQuery, seed: int, data: st.DataObject
) -> None:
    items = tuple(data.draw(st.permutations(list(query.items))))
    shuffled = query.model_copy(update={"items": items})
    whole = planned_pairs(query, 10, 10, seed)
    assert planned_pairs(shuffled, 10, 10, seed) == whole
    few = planned_pairs(query, 2, 2, seed)
    for kind in {pair.kind for pair in whole}:
        one, other = ([pair for pair in each if pair.kind == kind] for each in (few, whole))
        assert one == other[:2]
