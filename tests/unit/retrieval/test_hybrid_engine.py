"""Hybrid retrieval over the embedded engine, against the same computed document by document."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fairqr.base.errors import InputError
from fairqr.retrieval.encoders.encoder import text_of
from fairqr.retrieval.encoders.opening import Retriever
from fairqr.retrieval.engines.engine import Query, lexical_of
from fairqr.retrieval.engines.hybrid.embedded import HybridEngine
from fairqr.retrieval.engines.tantivy.engine import TantivyEngine
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.fairness.relevance import CALIBRATED, Calibration, relevance_by_rank
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.sources.retriever_parameters import Hybrid
from tests.unit.engines import hits_of, ranked
from tests.unit.retrieval.embedded import GENDER, built, remove, upsert
from tests.unit.retrieval.vector_encoders import CountingEncoder, stored_vector, word_vector

DEFAULTS = ",".join(f"{name}={value}" for name, value in Hybrid().model_dump().items())
QUERIES = ("w1", "w2 w3", "w4 w5 w6 unheard")


def generated(count: int, seed: int = 1) -> list[Document]:
    draw = random.Random(seed)
    words = [f"w{i}" for i in range(12)]
    return [
        Document(
            f"d{number:03}",
            draw.choice(words),
            " ".join(draw.choices(words, k=draw.randint(2, 9))),
            {"gender": draw.choice(["female", "male"])},
        )
        for number in range(count)
    ]


def unit(vector: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(vector)
    return vector / length if length else vector


async def by_hand(engine: HybridEngine, documents: list[Document], query: str) -> Ranking:
    """The definition of docs/explanation/relevance.md, document by document."""
    (by_words,) = await lexical_of(engine).search([Query(query, 1000)])
    vectors = {d.id: stored_vector(word_vector(text_of(d), 8)) for d in documents}
    asked = unit(word_vector(query, 8))
    encoded = [id_ for id_, vector in vectors.items() if vector.any()]
    by_vector = sorted(encoded, key=lambda id_: (-(vectors[id_] @ asked), id_))
    fused: dict[str, float] = {}
    for ranking in (by_words.ids[:200], by_vector[:200]):
        for rank, id_ in enumerate(ranking, start=1):
            fused[id_] = fused.get(id_, 0) + 1 / (60 + rank)
    first = sorted(fused, key=lambda id_: (-fused[id_], id_))[:10]
    moved = unit(asked + unit(np.mean([vectors[id_] for id_ in first], axis=0)))
    cosines = {id_: float(vectors[id_] @ moved) for id_ in encoded}
    mean, deviation = np.mean(list(cosines.values())), np.std(list(cosines.values()))
    scores = dict(zip(by_words.ids, by_words.scores, strict=True))
    return Ranking.of(
        {
            id_: float(
                CALIBRATED.words.probability(
                    np.array(scores.get(id_, 0.0) / max(by_words.scores)),
                    np.array((cosines.get(id_, mean) - mean) / deviation),
                )
            )
            for id_ in vectors
        }
    )


async def opened(lexical: TantivyEngine) -> HybridEngine:
    return await HybridEngine.open(lexical, CountingEncoder())


@pytest.mark.parametrize("textless", [0, 100])
async def test_scores_are_those_of_the_definition(tmp_path: Path, textless: int) -> None:
    """Documents without text get the mean similarity, and do not shift it for others."""
    blank = Document("", "", "...", {"gender": "female"})
    documents = generated(300 - textless)
    documents += [replace(blank, id=f"e{number}") for number in range(textless)]
    engine = await opened(built(tmp_path / "v1", documents))
    assert engine.retriever == "hybrid:words"
    assert "relevance" in engine.capabilities
    for query in QUERIES:
        whole, expected = await ranked(engine, query, 500), await by_hand(engine, documents, query)
        assert len(whole) == 300
        wanted = dict(zip(expected.ids, expected.scores, strict=True))
        assert whole.scores == pytest.approx([wanted[id_] for id_ in whole.ids], abs=1e-5)
        assert whole.scores == pytest.approx(expected.scores, abs=1e-5)
        assert 0 < min(whole.scores) < max(whole.scores) < 1


async def test_fewer_hits_are_the_best_ones(tmp_path: Path) -> None:
    engine = await opened(built(tmp_path / "v1", generated(300)))
    for query in QUERIES:
        whole = await ranked(engine, query, 300)
        for n in (1, 7, 50):
            assert await ranked(engine, query, n) == whole.top(n)


async def test_each_parameter_has_an_effect(tmp_path: Path) -> None:
    """And the defaults, written out, have none."""
    lexical = built(tmp_path / "v1", generated(300))

    async def found(parameters: str) -> Ranking:
        options = Retriever.of(f"hybrid:{parameters}").hybrid
        engine = await HybridEngine.open(lexical, CountingEncoder(), options=options)
        shown = "" if parameters == DEFAULTS else parameters and f",{parameters}"
        assert engine.retriever == f"hybrid:words{shown}"
        return await ranked(engine, "w1 w2", 300)

    default = await found("")
    assert await found(DEFAULTS) == default
    for changed in ("feedback=3", "weight=0.8", "k=0", "depth=5", "candidates=20"):
        assert (await found(changed)).scores != default.scores, changed


def test_parameters_may_follow_an_encoder() -> None:
    changed = Retriever.of("hybrid: minilm, feedback=20, weight=.7")
    assert changed.encoder is not None
    assert changed.encoder.name == "minilm"
    assert changed.hybrid == Hybrid(feedback=20, weight=0.7)
    assert Retriever.of("hybrid:minilm").hybrid == Hybrid()
    usual = Retriever.of("hybrid:feedback=20").encoder
    assert usual is not None
    assert usual.name == "minilm"


@pytest.mark.parametrize(
    "wrong", ["weight=0", "weight=1.5", "feedback=0", "depth=x", "pool=20000", "words=3", "k"]
)
def test_parameters_are_checked_in_one_sentence(wrong: str) -> None:
    name = wrong.partition("=")[0]
    said = f"parameter '{name}'.*parameters are feedback, weight, k, depth, candidates, pool"
    with pytest.raises(InputError, match=said) as bad:
        Retriever.of(f"hybrid:minilm,{wrong}")
    assert "\n" not in str(bad.value)


async def test_given_documents_get_the_scores_of_a_search(tmp_path: Path) -> None:
    engine = await opened(built(tmp_path / "v1", generated(300)))
    whole = await ranked(engine, "w1 w2", 300)
    some = random.Random(3).sample(whole.ids, 40)
    found = await ranked(engine, "w1 w2", 99, only=[*some, "nobody", some[0]])
    kept = set(some)
    expected = [
        (id_, score) for id_, score in zip(whole.ids, whole.scores, strict=True) if id_ in kept
    ]
    assert list(zip(found.ids, found.scores, strict=True)) == expected


async def test_hits_bring_their_groups(tmp_path: Path) -> None:
    documents = {document.id: document for document in generated(50)}
    engine = await opened(built(tmp_path / "v1", documents.values()))
    hits = await hits_of(engine, "w1", 30)
    gender = GENDER.attributes["gender"]
    expected = [list(documents[id_].membership(gender)) for id_ in hits.ids]
    assert hits.memberships["gender"].tolist() == expected


async def test_what_is_written_is_found_and_what_is_gone_is_not(tmp_path: Path) -> None:
    documents = generated(120)
    engine = await opened(built(tmp_path / "v1", documents))
    before = await ranked(engine, "w1", 500)
    await remove(engine, before.ids[:5])
    best = Document("new", "w1", "w1 w1", {"gender": "female"})
    await upsert(engine, [best, replace(documents[7], text="w1 w1 w1")])
    after = await ranked(engine, "w1", 500)
    assert len(after) == 116
    assert not set(before.ids[:5]) & set(after.ids)
    assert after.ids.index("new") < 30


async def test_a_query_without_words_finds_nothing(tmp_path: Path) -> None:
    engine = await opened(built(tmp_path / "v1", generated(30)))
    assert not len(await hits_of(engine, "...", 10))
    assert len(await hits_of(engine, "...", 10, only=["d001", "d002"])) == 2
    (count,) = await engine.search([Query("w1", 0)])
    assert count.total == (await lexical_of(engine).search([Query("w1", 0)]))[0].total


def test_more_evidence_is_more_likely() -> None:
    low, high = np.linspace(0, 0.9, 10), np.linspace(0.1, 1, 10)
    for fit in CALIBRATED:
        for kept in (0.0, 2.0):
            assert (fit.probability(high, kept) > fit.probability(low, kept)).all()
            assert (fit.probability(kept, high) > fit.probability(kept, low)).all()
    assert Calibration(0, 1, 1).probability(np.zeros(1), np.zeros(1)) == [0.5]
    ranks = relevance_by_rank(100)
    assert ranks[0] == 1
    assert (np.diff(ranks) < 0).all()
    assert len(relevance_by_rank(0)) == 0
