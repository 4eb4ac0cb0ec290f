"""Hybrid retrieval over engines without vectors: the texts of what they find are encoded."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fairqr.retrieval.encoders.encoder import text_of
from fairqr.retrieval.encoders.opening import Retriever
from fairqr.retrieval.engines.engine import Query, SearchEngine
from fairqr.retrieval.engines.hybrid import texts as module
from fairqr.retrieval.engines.hybrid.embedded import HybridEngine
from fairqr.retrieval.engines.hybrid.texts import EncodedPoolEngine
from fairqr.retrieval.engines.opening import with_retriever
from fairqr.retrieval.engines.tantivy.engine import TantivyEngine
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.fairness.relevance import (
    CALIBRATED,
    SAMPLE_WORDS,
    fused_best,
    moved_toward,
)
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.sources.retriever_parameters import Hybrid
from tests.unit.engines import WatchedEngine, answers_of, hits_of, ranked
from tests.unit.retrieval.embedded import GENDER, built
from tests.unit.retrieval.vector_encoders import CountingEncoder, generated, unit, word_vector

DEFAULTS = Hybrid().model_dump()
DOCUMENTS = generated(150, more=SAMPLE_WORDS.split())


@pytest.fixture
def lexical(tmp_path: Path) -> TantivyEngine:
    return built(tmp_path / "v1", DOCUMENTS)


async def opened(
    engine: SearchEngine,
    encoder: CountingEncoder | None = None,
    *,
    keeps_order: bool = False,
    **options: float,
) -> EncodedPoolEngine:
    return await EncodedPoolEngine.open(
        engine,
        encoder or CountingEncoder(),
        options=Hybrid.model_validate(options),
        keeps_order=keeps_order,
    )


async def chances(
    engine: SearchEngine, query: str, n: int = 500, only: Sequence[str] | None = None
) -> dict[str, float]:
    """The estimates by id, in the order of the hits."""
    hits = await hits_of(engine, query, n, only=only)
    assert hits.relevance is not None
    return dict(zip(hits.ids, hits.relevance.tolist(), strict=True))


class PartlyTextless(WatchedEngine):
    """An engine that gives the texts of some documents alone."""

    having: Collection[str] = [d.id for d in DOCUMENTS if d.id.endswith("0")]

    async def documents(self, ids: Sequence[str]) -> list[Document]:
        return [d for d in await super().documents(ids) if d.id in self.having]


@pytest.mark.parametrize("keeps_order", [True, False])
async def test_estimates_are_those_of_the_definition(
    lexical: TantivyEngine, keeps_order: bool
) -> None:
    """They stand beside the ranking of an engine that keeps its own, and rank other documents."""
    documents = {document.id: document for document in DOCUMENTS}
    engine = await opened(lexical, keeps_order=keeps_order)
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
    ranks = 61 / np.arange(61, 61 + len(own))
    expected = CALIBRATED.rank.probability(ranks, likeness)
    wanted = dict(zip(by_words.ids, expected.tolist(), strict=True))
    assert found.relevance == pytest.approx([wanted[id_] for id_ in found.ids], abs=1e-5)
    if keeps_order:
        assert (found.ids, found.scores, found.own) == (by_words.ids, by_words.scores, None)
    else:
        assert sorted(found.ids) == sorted(by_words.ids), "it finds what the engine finds"
        assert found.scores == sorted(found.relevance, reverse=True)
        assert await ranked(engine, "w1 w2", 5) == Ranking(found.ids, found.scores).top(5)
    groups = [[*documents[id_].membership(GENDER.attributes["gender"])] for id_ in found.ids]
    assert found.memberships["gender"].tolist() == groups


async def test_each_parameter_has_an_effect(lexical: TantivyEngine) -> None:
    """And the defaults, written out, have none."""

    async def found(**changes: float) -> Ranking:
        engine = await opened(lexical, **changes)
        named = ",".join(["hybrid-pool:words", *(f"{n}={v}" for n, v in changes.items())])
        assert engine.retriever == (named if changes != DEFAULTS else "hybrid-pool:words")
        return await ranked(engine, "w1 w2", 200)

    default = await found()
    assert await found(**DEFAULTS) == default
    for changes in ({"feedback": 3}, {"weight": 0.8}, {"k": 0}, {"depth": 5}, {"pool": 9}):
        changed = await found(**changes)
        assert sorted(changed.ids) == sorted(default.ids)
        assert changed.scores != default.scores, changes


async def test_only_the_pool_is_encoded(lexical: TantivyEngine) -> None:
    """What other queries had encoded stands below this one's pool and changes nothing."""
    encoder = CountingEncoder()
    engine = await opened(lexical, encoder, pool=10)
    sampled = set(encoder.taken())
    first = await lexical.documents((await hits_of(lexical, "w1", 10)).ids)
    alone = await chances(engine, "w1", 100)
    assert len(alone) > 20
    assert set(encoder.taken()) == {text_of(document) for document in first} - sampled
    for word in range(12):
        await hits_of(engine, f"w{word}", 100)
    assert await chances(engine, "w1", 100) == alone


async def test_all_given_documents_are_encoded(lexical: TantivyEngine) -> None:
    """Those below the pool, too, whatever else is given: other words have found them."""
    engine = await opened(lexical, pool=5)
    searched = await chances(engine, "w1")
    whole = await chances(engine, "w1", only=[*searched])
    given = await chances(engine, "w1", 3, only=[*searched])
    assert [*given.items()] == [*whole.items()][:3]
    for at in range(0, len(searched), 9):
        few = await chances(engine, "w1", 9, only=[*searched][at : at + 9])
        assert few == pytest.approx({id_: whole[id_] for id_ in few})
    others = [id_ for id_ in searched if searched[id_] != pytest.approx(whole[id_])]
    assert len(others) > 20, "in a search, what is below the pool has no similarity of its own"
    textless = await opened(PartlyTextless(lexical), keeps_order=True, pool=20)
    whole = await chances(textless, "w1 w2")
    given = await chances(textless, "w1 w2", only=[i for i in [*whole][20:] if i[-1] != "0"])
    assert given == pytest.approx({id_: whole[id_] for id_ in given}, rel=1e-9), "ranks count"


@pytest.mark.parametrize("without", [(), ("rescore",)])
async def test_given_documents_have_the_estimates_of_a_search(
    lexical: TantivyEngine, without: Sequence[str]
) -> None:
    """Also from an engine that cannot score them; and if other words found them."""
    engine = await opened(WatchedEngine(lexical, without=without), keeps_order=True)
    assert "relevance" in engine.capabilities
    whole = await chances(engine, "w1 w2")
    missed = next(d.id for d in DOCUMENTS if d.id not in whole)
    given = await chances(engine, "w1 w2", 9, only=[*[*whole][30:35], missed])
    assert {*given} == {*[*whole][30:35], missed}
    assert 0 < given.pop(missed) < 1
    assert given == pytest.approx({id_: whole[id_] for id_ in given})
    own = [
        Query("", 9, only=("d001", "d002")),
        Query("w1", 3),
        Query("w1", 0),
        Query("", 0),
        Query("w1 w2", 9, every_word=True),
    ]
    assert await answers_of(engine, own) == await answers_of(lexical, own)


async def test_a_text_is_read_and_encoded_once(
    lexical: TantivyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One search for the background, one for each round; texts are read again after ten minutes."""
    encoder, watched = CountingEncoder(), PartlyTextless(lexical)
    watched.having = [d.id for d in DOCUMENTS[5:]]
    engine = await opened(watched, encoder)
    await engine.search([Query("w1", 200), Query("w2", 200)])
    assert len(watched.searches) == 2
    read, texts = [id_ for ids in watched.reads for id_ in ids], encoder.taken()
    assert 0 < len(texts) == len({*texts}) <= len(read) == len({*read}) <= 150
    before = await chances(engine, "w2")
    assert [id_ for ids in watched.reads for id_ in ids] == read, "nor those that did not come"
    monkeypatch.setattr(module, "SECONDS_KEPT", -1.0)
    assert await chances(engine, "w2") == before
    assert len(watched.reads) > 2
    assert encoder.taken() == []


async def test_another_search_takes_no_vectors_away(
    lexical: TantivyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes the engine forget those of the first, while that waits for its query's vector."""
    waits, goes_on = asyncio.Event(), asyncio.Event()
    goes_on.set()

    class Waiting(CountingEncoder):
        async def encode_query(self, text: str) -> NDArray[np.float64]:
            if text == "w1":
                waits.set()
                await goes_on.wait()
            return await super().encode_query(text)

    engine = await opened(lexical, Waiting(), keeps_order=True)
    alone = await chances(engine, "w1")
    monkeypatch.setattr(module, "KEPT_BYTES", 1)
    waits.clear()
    goes_on.clear()
    searching = asyncio.create_task(chances(engine, "w1"))
    await waits.wait()
    await hits_of(engine, "w2", 50)
    goes_on.set()
    assert await searching == alone


async def test_an_index_with_vectors_of_its_own_is_searched_by_them(lexical: TantivyEngine) -> None:
    encoder = CountingEncoder()
    assert isinstance(await with_retriever(lexical, encoder), EncodedPoolEngine)
    await with_retriever(lexical, Retriever("dense", encoder))
    assert isinstance(await with_retriever(lexical, encoder), HybridEngine)


@pytest.mark.parametrize("keeps_order", [True, False])
async def test_without_texts_nothing_is_estimated(
    lexical: TantivyEngine, keeps_order: bool
) -> None:
    textless = PartlyTextless(lexical)
    textless.having = []
    engine = await opened(textless, keeps_order=keeps_order)
    found, expected = await hits_of(engine, "w1 w2", 9), await hits_of(lexical, "w1 w2", 9)
    assert found.relevance is None
    assert (found.ids, found.scores) == (expected.ids, expected.scores)
