"""Relevance estimated from texts alone: what an audit knows of relevance without judgements."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fairqr.retrieval.encoders.encoder import text_of
from fairqr.retrieval.engines.engine import Hits, Query, SearchEngine
from fairqr.retrieval.engines.hybrid import text_reader, texts
from fairqr.retrieval.engines.hybrid.embedded import VectorEngine
from fairqr.retrieval.engines.hybrid.texts import (
    TextRelevance,
    end_of,
)
from fairqr.retrieval.engines.tantivy.engine import TantivyEngine
from fairqr.retrieval.fairness.relevance import CALIBRATED, SAMPLE_WORDS
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.texts.words import english_analyzer
from tests.unit.engines import WatchedEngine
from tests.unit.retrieval.embedded import built, upsert
from tests.unit.retrieval.vector_encoders import (
    WORDS,
    CountingEncoder,
    generated,
    moved_by_hand,
    unit,
    unrelated_by_hand,
    word_vector,
)

# One word is in nearly all of them.
DOCUMENTS = [
    Document(d.id, d.title, f"w0 {d.text}", d.fields)
    for d in generated(150, more=SAMPLE_WORDS.split())
]


@pytest.fixture
def lexical(tmp_path: Path) -> TantivyEngine:
    return built(tmp_path / "v1", DOCUMENTS)


class Supplying(WatchedEngine):
    """Gives texts that no index would keep as they are, too."""

    def __init__(self, engine: SearchEngine, more: Sequence[Document]) -> None:
        super().__init__(engine)
        self._more = {document.id: document for document in more}

    async def documents(self, ids: Sequence[str]) -> list[Document]:
        indexed = await super().documents([id_ for id_ in ids if id_ not in self._more])
        return [*indexed, *(self._more[id_] for id_ in ids if id_ in self._more)]


async def opened(engine: SearchEngine, queries: Sequence[str] = ()) -> TextRelevance:
    return await TextRelevance.open(engine, CountingEncoder(), queries=queries)


async def estimated(
    relevance: TextRelevance, query: str, documents: Sequence[Document]
) -> dict[str, float]:
    """The estimates by id."""
    estimates = await relevance.estimate_ids(query, [document.id for document in documents])
    assert estimates is not None
    for probabilities in (estimates.relevance, estimates.by_words, estimates.by_similarity):
        assert ((probabilities > 0) & (probabilities < 1)).all()
    ids = [document.id for document in documents]
    return dict(zip(ids, estimates.relevance.tolist(), strict=True))


def stems(text: str) -> list[str]:
    return english_analyzer().analyze(text)


async def test_estimates_are_those_of_the_definition(lexical: TantivyEngine) -> None:
    """Written out in plain loops, from the texts alone."""
    pool = DOCUMENTS[40:110]
    found = await estimated(await opened(lexical), "w1 w0 w1", pool)

    hits = await lexical.search([Query(word, 10) for word in SAMPLE_WORDS.split()])
    sampled = {id_ for own in hits for id_ in own.ids}
    words_of = {d.id: stems(text_of(d)) for d in DOCUMENTS}
    sample = [words_of[id_] for id_ in sampled]
    mean_length = sum(map(len, sample)) / len(sample)

    def score(document: Document) -> float:
        words, total = words_of[document.id], 0.0
        for word in ("w1", "w0", "w1"):
            count, having = words.count(word), sum(word in text for text in sample)
            weight = math.log(1 + (len(sample) - having + 0.5) / (having + 0.5))
            total += weight * count * 2.2 / (count + 1.2 * (0.25 + 0.75 * len(words) / mean_length))
        return total

    scores = {d.id: score(d) for d in pool}
    vectors = {d.id: unit(word_vector(text_of(d), 8)) for d in DOCUMENTS}
    query = unit(word_vector("w1 w0 w1", 8))
    by_words = sorted((id_ for id_ in scores if scores[id_]), key=lambda i: (-scores[i], i))
    nearest = sorted(scores, key=lambda i: (-float(vectors[i] @ query), i))
    moved = moved_by_hand(query, vectors, [by_words, nearest])
    usual = np.array([vectors[id_] @ moved for id_ in sampled])
    fit, ids = CALIBRATED.texts, [document.id for document in pool]

    # Whether there is anything for the query at all is a factor of all of them.
    background = unrelated_by_hand([vectors[id_] for id_ in sampled])
    nearest_cosines = sorted(float(vectors[id_] @ query) for id_ in ids)[-5:]
    above = background.above(float(np.mean(nearest_cosines)))
    answerable = CALIBRATED.texts.answerable.probability(above, 0.0)

    def probabilities(words: Sequence[float], likeness: Sequence[float]) -> list[float]:
        logits = (
            fit.intercept + fit.lexical * one + fit.similarity * other
            for one, other in zip(words, likeness, strict=True)
        )
        return [answerable / (1 + math.exp(-logit)) for logit in logits]

    words = [scores[id_] / max(scores.values()) for id_ in ids]
    likeness = [(vectors[id_] @ moved - usual.mean()) / usual.std() for id_ in ids]
    assert [found[id_] for id_ in ids] == pytest.approx(probabilities(words, likeness), abs=2e-5)
    # Each half of the evidence takes the other to be the same in all texts.
    halves = await (await opened(lexical)).estimate_ids("w1 w0 w1", ids)
    assert halves is not None
    assert halves.answerable == pytest.approx(answerable, abs=2e-5)
    alike = [sum(likeness) / len(ids)] * len(ids)
    assert halves.by_words == pytest.approx(np.array(probabilities(words, alike)), abs=2e-5)
    moved = moved_by_hand(query, vectors, [[], nearest])
    usual = np.array([vectors[id_] @ moved for id_ in sampled])
    likeness = [(vectors[id_] @ moved - usual.mean()) / usual.std() for id_ in ids]
    alike = [sum(words) / len(ids)] * len(ids)
    assert halves.by_similarity == pytest.approx(np.array(probabilities(alike, likeness)), abs=2e-5)


@pytest.mark.promise("labels")
async def test_the_order_of_the_pool_changes_not_even_a_digit(lexical: TantivyEngine) -> None:
    """An audit's estimate of relevance does not depend on the engine's scores or ranks."""
    relevance, pool = await opened(lexical), DOCUMENTS[:97]
    first = await estimated(relevance, "w3 w4", pool)
    for seed in range(5):
        shuffled = random.Random(seed).sample(pool, len(pool))
        assert await estimated(relevance, "w3 w4", shuffled) == first


@pytest.mark.promise("labels")
async def test_the_engine_is_asked_for_texts_alone(
    lexical: TantivyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An audit's estimate of relevance reads texts alone.

    Once it is open; each text is read and encoded once, and read again after ten minutes.
    """
    watched, encoder = WatchedEngine(lexical), CountingEncoder()
    relevance = await TextRelevance.open(watched, encoder)
    sampled = {id_ for read in watched.reads for id_ in read}
    watched.reads.clear()
    pool = [d.id for d in DOCUMENTS[:90]]
    await asyncio.gather(*(relevance.estimate_ids(word, pool) for word in WORDS))
    assert len(watched.searches) == 1
    assert sorted(id_ for read in watched.reads for id_ in read) == sorted({*pool} - sampled)
    assert max(Counter(encoder.taken()).values()) == 1
    before = await estimated(relevance, "w5", DOCUMENTS[:30])
    await upsert(lexical, [Document("d000", "w5", "w5 w5 w5 w5", {"gender": "female"})])
    assert await estimated(relevance, "w5", DOCUMENTS[:30]) == before
    monkeypatch.setattr(text_reader, "SECONDS_KEPT", -1.0)
    assert (await estimated(relevance, "w5", DOCUMENTS[:30]))["d000"] > before["d000"]


async def test_vectors_that_were_made_before_are_used(lexical: TantivyEngine) -> None:
    """Those of an index, but not another model's; no query is stored."""
    await VectorEngine.open(lexical, CountingEncoder())
    await upsert(lexical, [Document("new", "w3", "w3 w9 w9", {"gender": "female"})])
    pool = [*(d.id for d in DOCUMENTS), "new"]
    for encoded in (["w3\nw3 w9 w9", "w3"], ["w3"]):
        encoder, other = CountingEncoder(), CountingEncoder(salt="another")
        relevance = await TextRelevance.open(lexical, encoder)
        await relevance.estimate_ids("w3", pool)
        assert encoder.taken() == encoded
        await relevance.estimate_ids("w4", pool)
        assert encoder.taken() == ["w4"]
    await (await TextRelevance.open(lexical, other)).estimate_ids("w3", ["d000", "d001"])
    assert len(other.taken()) > 100


@pytest.mark.promise("labels")
async def test_without_texts_there_is_no_estimate(lexical: TantivyEngine) -> None:
    """With too few texts there is no estimate of relevance.

    A document without one among others gets their mean.
    """
    blank = [Document("a", "", " \n"), Document("b", "", "")]
    relevance = await opened(Supplying(lexical, blank))
    for pool in ([], ["a", "b"], ["not there", "nor this"], ["d001", "not there", "nor this"]):
        assert await relevance.estimate_ids("w1", pool) is None
    alone = await estimated(relevance, "w1 w2", DOCUMENTS[:20])
    for without in (blank[0], Document("not there", "", "")):
        found = await estimated(relevance, "w1 w2", [*DOCUMENTS[:20], without])
        assert found.pop(without.id) == pytest.approx(np.mean([*alone.values()]))
        assert found == alone


class Backwards(WatchedEngine):
    """Ranks the same documents the other way round."""

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        return [replace(it, ids=it.ids[::-1]) for it in await super().search(queries)]


async def test_an_engine_that_answers_its_own_queries_alone(
    lexical: TantivyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sample is drawn from what they find, whatever the ranks; without them there is none."""
    monkeypatch.setattr(texts, "SAMPLED", 40)
    watched, pool = WatchedEngine(lexical, without=["new_queries"]), DOCUMENTS[:50]
    without = await opened(watched, WORDS[:9])
    assert watched.searches == []
    assert without.reference.texts == 0
    assert len({without.reference.weight(term) for term in (1, 2, 3)}) == 1
    assert len({*(await estimated(without, "w1", pool)).values()}) > 10
    queries = [f"{a} {b}" for a in WORDS for b in WORDS]
    one, other = await opened(watched, queries), await opened(watched, queries[::-1] * 2)
    (asked, again) = watched.searches
    assert asked == again
    assert len(asked) == 40
    backwards = await opened(Backwards(lexical, without=["new_queries"]), queries)
    assert await estimated(one, "w1", pool) == await estimated(backwards, "w1", pool)
    assert await estimated(one, "w1", pool) == await estimated(other, "w1", pool)
    assert 20 < one.reference.texts <= 40


HOSTILE = {
    "long": "w1 " * 2_000_000,
    "one word": "x" * 3_000_000,
    "half a pair": "w1 \ud800 w2 \udfff",
    "nulls": "w1\x00\x00w2\x00",
    "stop words": "the of and it",
    "stuffed": "w1 " * 9_000,
}


async def test_hostile_texts_and_queries(lexical: TantivyEngine) -> None:
    """Neither words nor likeness make a document certain."""
    hostile = [Document(name, "", text) for name, text in HOSTILE.items()]
    relevance, documents = await opened(Supplying(lexical, hostile)), DOCUMENTS[:60]
    plain = await estimated(relevance, "w1", documents)
    for query in ("w1", "", "the", "\ud800", "w1 " * 100_000, "x" * 500_000, "w1\x00"):
        found = await estimated(relevance, query, [*documents, *hostile])
        assert max(found.values()) < 1 - 1e-6
    assert await estimated(relevance, "w1", documents) == plain


def test_a_search_ends_among_its_last_ten_documents() -> None:
    estimates = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])
    assert end_of(estimates, []) == 0
    assert end_of(estimates, [0, 3, 8]) == 0.6
    assert end_of(np.linspace(1, 0, 101), range(80)) == pytest.approx(1 - 0.745)
