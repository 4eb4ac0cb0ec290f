"""Hybrid retrieval over engines without vectors: the texts of what they find are encoded."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fairqr.retrieval.encoders.encoder import text_of
from fairqr.retrieval.encoders.opening import Retriever
from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.engines.hybrid import encoded_pool as module
from fairqr.retrieval.engines.hybrid.embedded import HybridEngine
from fairqr.retrieval.engines.hybrid.encoded_pool import EncodedPoolEngine
from fairqr.retrieval.engines.opening import with_retriever
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.fairness.relevance import (
    CALIBRATED,
    SAMPLE_WORDS,
    fused_best,
    moved_toward,
    rank_evidence,
)
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.sources.retriever_parameters import Hybrid
from tests.unit.engines import WatchedEngine, answers_of, hits_of, ranked
from tests.unit.retrieval.embedded import GENDER, built
from tests.unit.retrieval.vector_encoders import CountingEncoder, word_vector

DEFAULTS = Hybrid().model_dump()


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No vectors of other tests."""
    monkeypatch.setenv("FAIRQR_CACHE_DIR", str(tmp_path / "cache"))


def generated(count: int) -> list[Document]:
    """Documents about some of twelve things, each with one of the common words."""
    draw = random.Random(1)
    words, common = [f"w{i}" for i in range(12)], SAMPLE_WORDS.split()
    return [
        Document(
            f"d{number:03}",
            draw.choice(words),
            " ".join([*draw.choices(words, k=draw.randint(2, 9)), draw.choice(common)]),
            {"gender": draw.choice(["female", "male"])},
        )
        for number in range(count)
    ]


def unit(vector: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(vector)
    return vector / length if length else vector


@pytest.mark.parametrize("keeps_order", [True, False])
async def test_estimates_are_those_of_the_definition(tmp_path: Path, keeps_order: bool) -> None:
    """They stand beside the ranking of an engine that keeps its own, and rank other documents."""
    documents = {document.id: document for document in generated(150)}
    lexical = built(tmp_path / "v1", documents.values())
    engine = await EncodedPoolEngine.open(lexical, CountingEncoder(), keeps_order=keeps_order)
    assert engine.retriever == "hybrid-pool:words"
    found = await hits_of(engine, "w1 w2", 500)
    by_words = await hits_of(lexical, "w1 w2", 200)
    vectors = {id_: unit(word_vector(text_of(d), 8)) for id_, d in documents.items()}
    asked = unit(word_vector("w1 w2", 8))
    own = np.array([vectors[id_] for id_ in by_words.ids], dtype=np.float32)
    nearest = np.argsort(-(own @ asked), kind="stable").tolist()
    best = own[fused_best([range(len(own)), nearest], Hybrid())]
    moved = moved_toward(asked.astype(np.float32), best, 0.5)
    sample = await lexical.search([Query(word, 10) for word in SAMPLE_WORDS.split()])
    ids = list(dict.fromkeys(id_ for hits in sample for id_ in hits.ids))
    background = np.array([vectors[id_] for id_ in ids]) @ moved
    likeness = (own @ moved - background.mean()) / background.std()
    chances = CALIBRATED.rank.probability(rank_evidence(by_words.ids, by_words.ids), likeness)
    wanted = dict(zip(by_words.ids, chances.tolist(), strict=True))
    assert found.relevance is not None
    assert found.relevance == pytest.approx([wanted[id_] for id_ in found.ids], abs=1e-5)
    if keeps_order:
        assert (found.ids, found.scores, found.own) == (by_words.ids, by_words.scores, None)
    else:
        assert sorted(found.ids) == sorted(by_words.ids), "it finds what the engine finds"
        assert found.scores == found.relevance.tolist()
        assert found.scores == sorted(found.scores, reverse=True)
    gender = GENDER.attributes["gender"]
    expected = [list(documents[id_].membership(gender)) for id_ in found.ids]
    assert found.memberships["gender"].tolist() == expected


async def test_fewer_hits_are_the_best_of_the_pool(tmp_path: Path) -> None:
    engine = await EncodedPoolEngine.open(
        built(tmp_path / "v1", generated(150)), CountingEncoder(), keeps_order=False
    )
    whole = await hits_of(engine, "w3", 200)
    few = await hits_of(engine, "w3", 5)
    assert (few.ids, few.scores) == (whole.ids[:5], whole.scores[:5])


async def test_each_parameter_has_an_effect(tmp_path: Path) -> None:
    """And the defaults, written out, have none."""
    lexical = built(tmp_path / "v1", generated(150))

    async def found(**changes: float) -> Ranking:
        options = Hybrid.model_validate(changes)
        engine = await EncodedPoolEngine.open(
            lexical, CountingEncoder(), options=options, keeps_order=False
        )
        named = ",".join(["hybrid-pool:words", *(f"{n}={v}" for n, v in changes.items())])
        assert engine.retriever == (named if changes != DEFAULTS else "hybrid-pool:words")
        return await ranked(engine, "w1 w2", 200)

    default = await found()
    assert await found(**DEFAULTS) == default
    for changes in ({"feedback": 3}, {"weight": 0.8}, {"k": 0}, {"depth": 5}, {"pool": 9}):
        changed = await found(**changes)
        assert sorted(changed.ids) == sorted(default.ids)
        assert changed.scores != default.scores, changes


async def test_only_the_pool_is_encoded(tmp_path: Path) -> None:
    encoder = CountingEncoder()
    lexical = built(tmp_path / "v1", generated(150))
    engine = await EncodedPoolEngine.open(
        lexical, encoder, options=Hybrid(pool=7), keeps_order=False
    )
    sampled = set(encoder.taken())
    first = await lexical.documents((await hits_of(lexical, "w1", 7)).ids)
    assert len(await hits_of(engine, "w1", 50)) == 50
    assert set(encoder.taken()) == {text_of(document) for document in first} - sampled


async def test_scores_do_not_depend_on_what_was_asked_before(tmp_path: Path) -> None:
    """What other queries had encoded stands below this one's pool, where nothing is encoded."""
    lexical, encoder, small = (
        built(tmp_path / "v1", generated(150)),
        CountingEncoder(),
        Hybrid(pool=10),
    )
    alone = await hits_of(
        await EncodedPoolEngine.open(lexical, encoder, options=small, keeps_order=False), "w1", 100
    )
    busy = await EncodedPoolEngine.open(lexical, encoder, options=small, keeps_order=False)
    for word in range(12):
        await hits_of(busy, f"w{word}", 100)
    again = await hits_of(busy, "w1", 100)
    assert len(alone) > 20
    assert (again.ids, again.scores) == (alone.ids, alone.scores)


async def test_given_documents_get_the_scores_of_a_search(tmp_path: Path) -> None:
    engine = await EncodedPoolEngine.open(
        built(tmp_path / "v1", generated(150)), CountingEncoder(), keeps_order=False
    )
    whole = await hits_of(engine, "w1 w2", 200)
    some = whole.ids[::7]
    found = await hits_of(engine, "w1 w2", 99, only=some)
    wanted = dict(zip(whole.ids, whole.scores, strict=True))
    assert found.ids == some
    assert found.scores == pytest.approx([wanted[id_] for id_ in some])


async def test_all_given_documents_are_encoded(tmp_path: Path) -> None:
    """Those below the pool, too, whatever else is given: other words have found them."""
    lexical, encoder = built(tmp_path / "v1", generated(150)), CountingEncoder()
    engine = await EncodedPoolEngine.open(
        lexical, encoder, options=Hybrid(pool=5), keeps_order=False
    )
    searched = await hits_of(engine, "w1", 500)
    given = await hits_of(engine, "w1", 3, only=searched.ids)
    assert len(given) == 3
    whole = await hits_of(engine, "w1", 500, only=searched.ids)
    assert (given.ids, given.scores) == (whole.ids[:3], whole.scores[:3])
    scores = dict(zip(whole.ids, whole.scores, strict=True))
    for at in range(0, len(searched), 9):
        few = await hits_of(engine, "w1", 9, only=searched.ids[at : at + 9])
        assert few.scores == pytest.approx([scores[id_] for id_ in few.ids])
    others = [
        id_
        for id_, score in zip(searched.ids, searched.scores, strict=True)
        if score != pytest.approx(scores[id_])
    ]
    assert len(others) > 20, "in a search, what is below the pool has no similarity of its own"


class PartlyTextless(WatchedEngine):
    """An engine that returns the texts of every tenth document."""

    async def documents(self, ids: Sequence[str]) -> list[Document]:
        return [d for d in await super().documents(ids) if d.id.endswith("0")]


async def test_ranks_below_the_pool_count_as_much_for_given_documents(tmp_path: Path) -> None:
    lexical = PartlyTextless(built(tmp_path / "v1", generated(150)))
    engine = await EncodedPoolEngine.open(
        lexical, CountingEncoder(), options=Hybrid(pool=20), keeps_order=True
    )
    whole = await hits_of(engine, "w1 w2", 500)
    assert whole.relevance is not None
    chances = dict(zip(whole.ids, whole.relevance.tolist(), strict=True))
    below = [id_ for id_ in whole.ids[20:] if not id_.endswith("0")]
    given = await hits_of(engine, "w1 w2", 500, only=below)
    assert given.relevance is not None
    assert given.relevance == pytest.approx([chances[id_] for id_ in given.ids], rel=1e-9)


async def test_texts_that_do_not_come_back_are_not_asked_for_again(tmp_path: Path) -> None:
    lexical = PartlyTextless(built(tmp_path / "v1", generated(150)))
    engine = await EncodedPoolEngine.open(lexical, CountingEncoder(), keeps_order=True)
    first = await hits_of(engine, "w1", 50)
    lexical.reads.clear()
    again = await hits_of(engine, "w1", 50)
    assert lexical.reads == []
    assert first.relevance is not None
    assert again.relevance is not None
    assert again.relevance.tolist() == first.relevance.tolist()


async def test_another_search_takes_no_vectors_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It pushes the first one's out of what is kept while that waits for its query's vector."""
    waits, goes_on = asyncio.Event(), asyncio.Event()
    goes_on.set()

    class Waiting(CountingEncoder):
        async def encode_query(self, text: str) -> NDArray[np.float64]:
            if text == "w1":
                waits.set()
                await goes_on.wait()
            return await super().encode_query(text)

    lexical = built(tmp_path / "v1", generated(150))
    engine = await EncodedPoolEngine.open(lexical, Waiting(), keeps_order=True)
    alone = await hits_of(engine, "w1", 50)
    monkeypatch.setattr(module, "KEPT", 1)
    waits.clear()
    goes_on.clear()
    searching = asyncio.create_task(hits_of(engine, "w1", 50))
    await waits.wait()
    await hits_of(engine, "w2", 50)
    goes_on.set()
    found = await searching
    assert alone.relevance is not None
    assert found.relevance is not None
    assert found.relevance.tolist() == alone.relevance.tolist()


async def test_a_text_is_read_and_encoded_once(tmp_path: Path) -> None:
    """One search, one for the background at first, and no text twice."""
    encoder, watched = CountingEncoder(), WatchedEngine(built(tmp_path / "v1", generated(150)))
    engine = await EncodedPoolEngine.open(watched, encoder, keeps_order=False)
    await engine.search([Query("w1", 20), Query("w2", 20)])
    assert watched.round_trips == 2
    first = len(encoder.taken())
    assert 0 < first <= 150
    await engine.search([Query("w2", 20)])
    assert watched.round_trips == 3
    assert encoder.taken() == []


async def test_what_was_read_is_not_kept_for_long_nor_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts that are read again and have not changed are not encoded again."""
    encoder, watched = CountingEncoder(), WatchedEngine(built(tmp_path / "v1", generated(150)))
    engine = await EncodedPoolEngine.open(watched, encoder, keeps_order=False)
    await hits_of(engine, "w1", 20)
    encoder.taken()
    watched.reads.clear()
    await hits_of(engine, "w1", 20)
    assert watched.reads == []
    monkeypatch.setattr(module, "SECONDS_KEPT", -1.0)
    await hits_of(engine, "w1", 20)
    assert watched.reads
    assert encoder.taken() == []
    monkeypatch.setattr(module, "KEPT", 3)
    found = await hits_of(engine, "w1", 20)
    assert len(found) == 20, "a search needs its own, however few are kept"


async def test_counts_and_groups_are_the_engines_own(tmp_path: Path) -> None:
    lexical = built(tmp_path / "v1", generated(60))
    engine = await EncodedPoolEngine.open(lexical, CountingEncoder(), keeps_order=False)
    asked = [
        Query("w1", 0),
        Query("", 0),
        Query("", 9, only=("d001", "d002")),
        Query("w1 w2", 9, every_word=True),
    ]
    assert await answers_of(engine, asked) == await answers_of(lexical, asked)


async def test_an_index_with_vectors_of_its_own_is_searched_by_them(tmp_path: Path) -> None:
    lexical = built(tmp_path / "v1", generated(30))
    encoder = CountingEncoder()
    assert isinstance(await with_retriever(lexical, encoder), EncodedPoolEngine)
    await with_retriever(lexical, Retriever("dense", encoder))
    assert isinstance(await with_retriever(lexical, encoder), HybridEngine)


async def test_given_documents_need_no_engine_that_scores_them(tmp_path: Path) -> None:
    """A document that a search found has the same estimate when given; their groups are read."""
    lexical = built(tmp_path / "v1", generated(150))
    cannot = WatchedEngine(lexical, without=["rescore"])
    engine = await EncodedPoolEngine.open(cannot, CountingEncoder(), keeps_order=True)
    assert "relevance" in engine.capabilities
    assert "rescore" not in engine.capabilities
    whole = await hits_of(engine, "w1 w2", 200)
    assert whole.relevance is not None
    wanted = dict(zip(whole.ids, whole.relevance.tolist(), strict=True))
    missed = next(d.id for d in generated(150) if d.id not in wanted)
    given = await hits_of(engine, "w1 w2", 9, only=[*whole.ids[30:35], missed])
    assert given.relevance is not None
    assert given.ids == [*whole.ids[30:35], missed]
    assert given.relevance[:5] == pytest.approx([wanted[id_] for id_ in given.ids[:5]])
    assert 0 < given.relevance[5] < 1
    groups = [Query("", 9, only=("d001", "d002")), Query("w1", 3)]
    found, expected = await engine.search(groups), await lexical.search(groups)
    assert found[0].memberships["gender"].tolist() == expected[0].memberships["gender"].tolist()
    assert found[1].ids == expected[1].ids


@pytest.mark.parametrize("keeps_order", [True, False])
async def test_without_texts_nothing_is_estimated(tmp_path: Path, keeps_order: bool) -> None:
    class Textless(WatchedEngine):
        """Documents that nobody may read."""

        async def documents(self, ids: Sequence[str]) -> list[Document]:
            return [Document(id_, "", "") for id_ in ids]

    lexical = built(tmp_path / "v1", generated(50))
    engine = await EncodedPoolEngine.open(
        Textless(lexical), CountingEncoder(), keeps_order=keeps_order
    )
    found, expected = await hits_of(engine, "w1 w2", 9), await hits_of(lexical, "w1 w2", 9)
    assert found.relevance is None
    assert (found.ids, found.scores) == (expected.ids, expected.scores)
