"""The embedded engine: scores, ties, groups, counts, what writing does, and searches in a group."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairqr.base.errors import CorpusError, IndexVersionError, UnsupportedError
from fairqr.retrieval.engines.engine import Hits, Query
from fairqr.retrieval.engines.hybrid import encoded_pool
from fairqr.retrieval.engines.hybrid.embedded import HybridEngine, VectorEngine
from fairqr.retrieval.engines.hybrid.encoded_pool import EncodedPoolEngine
from fairqr.retrieval.engines.tantivy.engine import TantivyEngine
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.sources.schema import Schema
from tests.unit.engines import WatchedEngine, compare_within, hits_of, ranked, remove
from tests.unit.retrieval.embedded import built, upsert
from tests.unit.retrieval.vector_encoders import CountingEncoder, generated

SCHEMA = Schema.model_validate(
    {
        "attributes": {
            "gender": {"field": "gender", "groups": ["female", "male"]},
            "place": {"field": "place", "groups": ["here", "there", "far"], "unknown": "group"},
            "era": {"field": "born", "groups": {"old": {"lt": 1950}, "young": {"gte": 1950}}},
        }
    }
)


async def total(engine: TantivyEngine, text: str, **options: Any) -> int | None:
    (hits,) = await engine.search([Query(text, 0, **options)])
    assert hits.ids == []
    assert hits.memberships["gender"].shape == (0, 2)
    return hits.total


def top(hits: Hits, n: int) -> tuple[list[str], list[float]]:
    return hits.ids[:n], hits.scores[:n]


# --- searching --------------------------------------------------------------------------------


@pytest.mark.parametrize("segments", [1, 4])
async def test_a_ranking_is_cut_where_scores_tie_by_id(tmp_path: Path, segments: int) -> None:
    """Whatever n is, the top n is the beginning of the whole ranking, sorted by score and id.

    The same holds over several segments, as writing leaves them.
    """
    engine = built(tmp_path / "v1", generated(300 if segments > 1 else 500))
    for start in range(200, 400, 50) if segments > 1 else ():
        await upsert(engine, generated(400, seed=2)[start : start + 50])
    assert (engine.snapshot().searcher.num_segments > 1) == (segments > 1)
    for query in ("w1", "w2 w3", "w4 w5 w6 w7"):
        whole = await hits_of(engine, query, 500)
        pairs = list(zip(whole.ids, whole.scores, strict=True))
        assert pairs == sorted(pairs, key=lambda pair: (-pair[1], pair[0]))
        assert len(set(whole.scores)) < len(whole) * 2 / 3, "there are ties"
        for n in (1, 3, 10, 50, 499):
            assert top(await hits_of(engine, query, n), n) == top(whole, n)


async def test_texts_groups_and_shares(tmp_path: Path) -> None:
    documents = [
        Document("b", "B", "word", {"gender": "female", "place": "here"}),
        Document("a", "", "word", {"gender": ["female", "male"], "extra": {"x": [1, "ü"]}}),
        Document("c", "", "word", {"place": {"here": 1, "there": 3}}),
    ]
    engine = built(tmp_path / "v1", documents, SCHEMA)
    assert await engine.documents(["c", "nobody", "b"]) == [documents[2], documents[0]]
    assert (await engine.documents(["a"]))[0].fields["extra"] == {"x": [1, "ü"]}
    assert await engine.documents([]) == []
    found = await hits_of(engine, "word", 9)
    assert found.ids == ["a", "c", "b"]
    assert found.memberships["gender"].tolist() == [[0.5, 0.5], [0, 0], [1, 0]]
    assert found.memberships["place"].tolist() == [[0, 0, 0, 1], [0.25, 0.75, 0, 0], [1, 0, 0, 0]]
    shares = await engine.corpus_shares()
    assert shares["gender"] == pytest.approx([0.5, 1 / 6])
    assert shares["place"] == pytest.approx([1.25 / 3, 0.25, 0, 1 / 3])


# --- counting ---------------------------------------------------------------------------------


async def test_counts_of_documents(tmp_path: Path) -> None:
    texts = ["running women", "a woman runs", "the run of man", "women's day"]
    engine = built(tmp_path / "v1", [Document(str(i), "", text) for i, text in enumerate(texts)])
    for words, count in (("run", 3), ("women", 2), ("women run", 1), ("run run", 3)):
        assert await total(engine, words, every_word=True) == count
    for words in ("the", "zebra", "..."):
        assert await total(engine, words, every_word=True) == 0
        assert await total(engine, words) == 0
    assert await total(engine, "women run") == 4
    assert await total(engine, "") == 4
    assert await total(engine, "run", only=("0", "3", "nobody")) == 1
    assert await total(engine, "women run", only=("0", "1", "2"), every_word=True) == 1
    assert await total(engine, "", only=("0", "nobody")) == 1
    await remove(engine, ["1", "nobody"])
    await upsert(engine, [Document("0", "", "ran away")])
    assert await total(engine, "run") == 1, "deleted and replaced documents do not count"
    assert await total(engine, "") == 3


# --- writing ----------------------------------------------------------------------------------


@pytest.mark.promise("labels")
async def test_an_update_that_fails_changes_nothing(tmp_path: Path) -> None:
    """An update of an index that fails changes nothing."""
    engine = built(tmp_path / "v1", [Document("a", "", "one")])

    def broken() -> Iterator[Document]:
        yield from (Document(f"b{n}", "", "one") for n in range(600))
        raise CorpusError("Line 601 is wrong.")

    with pytest.raises(CorpusError, match="601"):
        await upsert(engine, broken())
    assert (await ranked(engine, "one", 9)).ids == ["a"]
    await upsert(engine, [Document("b", "", "one")])
    assert (await ranked(engine, "one", 9)).ids == ["a", "b"]


# --- what goes wrong --------------------------------------------------------------------------


async def test_a_damaged_index_is_named_with_what_to_do(tmp_path: Path) -> None:
    for number, (file, content) in enumerate(
        [("text/meta.json", "{"), ("text/*.fast", ""), ("manifest.json", '{"format": 2}')]
    ):
        folder = built(tmp_path / f"v{number}", [Document("0", "", "text")]).folder
        (path,) = folder.glob(file)
        path.unlink()  # a thread of the index that was built may still read what it has mapped
        path.write_text(content)
        with pytest.raises(IndexVersionError, match=r"in .*v\d .*damaged.*fairqr index delete"):
            await hits_of(TantivyEngine(folder, "p"), "text", 9)


async def test_ids_of_every_length_and_script_come_back(tmp_path: Path) -> None:
    """Also with zeros, which fill up what an index stores of shorter ids."""
    ids = [*("x" * n for n in (1, 7, 8, 9, 512)), "é" * 256, "日本\U0001f600", "nul\0", "\0" * 16]
    engine = built(tmp_path / "v1", [Document(id_, "", "text") for id_ in ids])
    assert (await hits_of(engine, "text", 99)).ids == sorted(ids)
    assert [found.id for found in await engine.documents(ids)] == ids


# --- within a group ---------------------------------------------------------------------------

COUNT = 300
FEMALE = ("gender", "female")


def people(count: int = COUNT) -> list[Document]:
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
    Query("w4 w5 w6", 25),
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
    engine = built(tmp_path / "v1", people(), SCHEMA)
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
    engine = await kind.open(built(tmp_path / "v1", people(), SCHEMA), CountingEncoder())
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
    lexical = WatchedEngine(built(tmp_path / "v1", people(), SCHEMA))
    engine = await EncodedPoolEngine.open(lexical, CountingEncoder(), keeps_order=False)
    monkeypatch.setattr(encoded_pool, "POOL", COUNT)
    assert (await compare_within(engine, RANKED, COUNT, counts=False, rounded=True)) > 500
    monkeypatch.setattr(encoded_pool, "POOL", 20)
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
    is_woman = ["female" in (d.fields["gender"] or ()) for d in people()]
    assert [hits.total for hits in counted] == [sum(is_woman), sum(is_woman[:50])]


async def test_what_cannot_be_filtered_is_refused_in_one_sentence(tmp_path: Path) -> None:
    engine = built(tmp_path / "v1", people(20), SCHEMA)
    for within in (("gender", "martian"), ("shoes", "red")):
        with pytest.raises(
            UnsupportedError, match=f"within the group '{within[1]}' of {within[0]};"
        ):
            await engine.search([Query("w1", 5, within=within)])
