"""Searching within a group: the same as filtering all hits, with every engine that can do it."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from fairqr.base.errors import UnsupportedError
from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.engines.hybrid import texts
from fairqr.retrieval.engines.hybrid.embedded import HybridEngine, VectorEngine
from fairqr.retrieval.engines.hybrid.texts import EncodedPoolEngine
from fairqr.retrieval.engines.tantivy.engine import TantivyEngine
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.sources.schema import Schema
from tests.unit.engines import WatchedEngine, compare_within, hits_of, remove
from tests.unit.retrieval.embedded import built, upsert
from tests.unit.retrieval.vector_encoders import CountingEncoder

SCHEMA = Schema.model_validate(
    {
        "attributes": {
            "gender": {"field": "gender", "groups": ["female", "male"]},
            "place": {"field": "place", "groups": ["here", "there", "far"], "unknown": "group"},
            "era": {"field": "born", "groups": {"old": {"lt": 1950}, "young": {"gte": 1950}}},
        }
    }
)
COUNT = 300
FEMALE = ("gender", "female")


def generated(count: int = COUNT) -> list[Document]:
    """Short documents over few words, so that many scores tie; a few are far away."""
    draw = random.Random(3)
    words = [f"w{number}" for number in range(20)]
    return [
        Document(
            f"d{number:03}",
            "",
            " ".join(draw.choices(words, k=draw.randint(2, 6))),
            {
                "gender": draw.choice(["female", "male", ["female", "male"], None]),
                "place": "far" if number % 97 == 0 else draw.choice(["here", {"there": 2}, None]),
                "born": draw.choice([1900, 1949, 1950, 2000]),
            },
        )
        for number in range(count)
    ]


QUERIES = [
    Query("w1", 10),
    Query("w2 w3 unheard", COUNT),
    Query("w4", 25, boost="w5 w6"),
    Query("w7 w8", 10, every_word=True),
    Query("unheard", 10),
    Query("", 10),
    Query("w1 w9", 40, only=tuple(f"d{number:03}" for number in range(0, COUNT + 40, 4))),
    Query("w1 w9", 5, only=tuple(f"d{number:03}" for number in range(50))),
    Query("w1", 5, only=()),
    Query("", 50, only=tuple(f"d{number:03}" for number in range(50))),
]
RANKED = [query for query in QUERIES if not query.every_word]


async def test_the_embedded_index_filters_by_every_group(tmp_path: Path) -> None:
    """With ties, fractional labels, unknown ones, deletions, and several segments."""
    engine = built(tmp_path / "v1", generated(), SCHEMA)
    assert "within_group" in engine.capabilities
    assert {group for name, group in engine.filterable if name == "place"} == {
        "here",
        "there",
        "far",
        "unknown",
    }
    assert await compare_within(engine, QUERIES, COUNT) > 500
    await remove(engine, [f"d{number:03}" for number in range(0, COUNT, 7)])
    await upsert(engine, [Document("d001", "", "w1", {"gender": "male"})])
    await upsert(engine, [Document("x", "", "w1 w2", {"gender": "female", "place": "far"})])
    assert await compare_within(engine, QUERIES, COUNT) > 400
    assert "d001" not in (await engine.search([Query("w1", COUNT, within=FEMALE)]))[0].ids


@pytest.mark.parametrize("kind", [VectorEngine, HybridEngine])
async def test_vectors_find_the_best_documents_of_a_group(
    tmp_path: Path, kind: type[VectorEngine]
) -> None:
    """A rare group is found however far down its documents stand."""
    engine = await kind.open(built(tmp_path / "v1", generated(), SCHEMA), CountingEncoder())
    assert engine.filterable == engine.lexical.filterable
    assert (await compare_within(engine, RANKED, COUNT, counts=False)) > 1000
    (far,) = await engine.search([Query("w1", 10, within=("place", "far"))])
    assert len(far) == 4
    await remove(engine, [far.ids[0]])
    await upsert(engine, [Document("d001", "", "w1", {"place": "far"})])
    (later,) = await engine.search([Query("w1", 10, within=("place", "far"))])
    assert {*later.ids} == {*far.ids[1:], "d001"}
    assert (await compare_within(engine, RANKED, COUNT + 9, counts=False)) > 1000
    both = [Query("w7 w8", 9, every_word=True, within=FEMALE)]
    assert (await engine.search(both))[0].ids == (await engine.lexical.search(both))[0].ids


async def test_an_encoded_pool_is_that_of_the_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores are those of a search whose pool holds all documents."""
    lexical = WatchedEngine(built(tmp_path / "v1", generated(), SCHEMA))
    engine = await EncodedPoolEngine.open(lexical, CountingEncoder(), keeps_order=False)
    monkeypatch.setattr(texts, "POOL", COUNT)
    assert (await compare_within(engine, RANKED, COUNT, counts=False, rounded=True)) > 500
    monkeypatch.setattr(texts, "POOL", 20)
    lexical.searches.clear()
    (found,) = await engine.search([Query("w1 w2", 20, within=FEMALE)])
    assert [query.within for query in lexical.searches[0]] == [FEMALE, None]
    by_words = await hits_of(lexical, "w1 w2", COUNT)
    women = [
        id_
        for id_, share in zip(by_words.ids, by_words.memberships["gender"][:, 0], strict=True)
        if share > 0
    ]
    assert {*found.ids} == {*women[:20]}
    among = replace(QUERIES[-1], n=0)
    counted = await engine.search([replace(it, within=FEMALE) for it in (Query("", 0), among)])
    is_woman = ["female" in (d.fields["gender"] or ()) for d in generated()]
    assert [hits.total for hits in counted] == [sum(is_woman), sum(is_woman[:50])]


async def test_what_cannot_be_filtered_is_refused_in_one_sentence(tmp_path: Path) -> None:
    engine = built(tmp_path / "v1", generated(20), SCHEMA)
    for within in (("gender", "martian"), ("shoes", "red")):
        with pytest.raises(
            UnsupportedError, match=f"within the group '{within[1]}' of {within[0]};"
        ):
            await engine.search([Query("w1", 5, within=within)])
    without = WatchedEngine(engine, without=["within_group"])
    assert not without.filterable
    assert isinstance(engine, TantivyEngine)
    with pytest.raises(UnsupportedError):
        await without.search([Query("w1", 5, within=FEMALE)])
