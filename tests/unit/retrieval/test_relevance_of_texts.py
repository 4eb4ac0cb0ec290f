"""Relevance estimated from texts alone: what an audit knows of relevance without judgements."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

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
    ids = [document.id for document in pool]
    estimates = await (await opened(lexical)).estimate_ids("w1 w0 w1", ids)
    assert estimates is not None

    hits = await lexical.search([Query(word, 10) for word in SAMPLE_WORDS.split()])
    sampled = list(dict.fromkeys(id_ for of_word in hits for id_ in of_word.ids))
    by_hand = EstimateByHand(ids, sampled)
    expected = by_hand.probabilities(by_hand.words(), by_hand.likeness(by_hand.by_words()))
    assert estimates.relevance == pytest.approx(expected, abs=2e-5)
    assert estimates.answerable == pytest.approx(by_hand.answerable(), abs=2e-5)
    # Each half of the evidence takes the other to be the same in all texts.
    alike = np.full(len(ids), by_hand.likeness(by_hand.by_words()).mean())
    by_words = by_hand.probabilities(by_hand.words(), alike)
    assert estimates.by_words == pytest.approx(by_words, abs=2e-5)
    alike = np.full(len(ids), by_hand.words().mean())
    by_similarity = by_hand.probabilities(alike, by_hand.likeness([]))
    assert estimates.by_similarity == pytest.approx(by_similarity, abs=2e-5)


class EstimateByHand:
    """The definition of an estimate for the query 'w1 w0 w1', a document at a time.

    Args:
        ids: The documents of the pool.
        sampled: The documents that the pool is compared with.
    """

    def __init__(self, ids: Sequence[str], sampled: Sequence[str]) -> None:
        self._ids = ids
        self._sampled = sampled
        self._stems = {document.id: stems(text_of(document)) for document in DOCUMENTS}
        self._vectors = {
            document.id: unit(word_vector(text_of(document), 8)) for document in DOCUMENTS
        }
        self._query = unit(word_vector("w1 w0 w1", 8))
        self._scores = {id_: self._bm25(id_) for id_ in ids}

    def _bm25(self, id_: str) -> float:
        """The BM25 score of a document, with the frequencies of the sample."""
        sample = [self._stems[other] for other in self._sampled]
        mean_length = sum(map(len, sample)) / len(sample)
        words = self._stems[id_]
        total = 0.0
        for word in ("w1", "w0", "w1"):
            count = words.count(word)
            having = sum(word in text for text in sample)
            weight = math.log(1 + (len(sample) - having + 0.5) / (having + 0.5))
            norm = 1.2 * (0.25 + 0.75 * len(words) / mean_length)
            total += weight * count * 2.2 / (count + norm)
        return total

    def by_words(self) -> list[str]:
        """The documents with a word of the query, the best first."""
        having = [id_ for id_ in self._ids if self._scores[id_]]
        return sorted(having, key=lambda id_: (-self._scores[id_], id_))

    def words(self) -> NDArray[np.float64]:
        """The score of each document, by the highest one."""
        return np.array([self._scores[id_] for id_ in self._ids]) / max(self._scores.values())

    def likeness(self, by_words: Sequence[str]) -> NDArray[np.float64]:
        """How much nearer each document is than those of the sample, in standard deviations."""
        cosines = {id_: float(self._vectors[id_] @ self._query) for id_ in self._ids}
        nearest = sorted(self._ids, key=lambda id_: (-cosines[id_], id_))
        moved = moved_by_hand(self._query, self._vectors, [by_words, nearest])
        usual = np.array([self._vectors[id_] @ moved for id_ in self._sampled])
        similar = np.array([self._vectors[id_] @ moved for id_ in self._ids])
        return np.asarray((similar - usual.mean()) / usual.std())

    def answerable(self) -> float:
        """Whether there is anything for the query at all, which is a factor of all documents."""
        background = unrelated_by_hand([self._vectors[id_] for id_ in self._sampled])
        cosines = sorted(float(self._vectors[id_] @ self._query) for id_ in self._ids)
        above = background.above(float(np.mean(cosines[-5:])))
        return CALIBRATED.texts.answerable.probability(above, 0.0)

    def probabilities(
        self, words: NDArray[np.float64], likeness: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """The probability of relevance of each document by both kinds of evidence."""
        fit = CALIBRATED.texts
        logits = fit.intercept + fit.lexical * words + fit.similarity * likeness
        return np.asarray(self.answerable() / (1 + np.exp(-logits)))


@pytest.mark.promise("labels")
async def test_the_order_of_the_pool_changes_not_even_a_digit(lexical: TantivyEngine) -> None:
    """An audit's estimate of relevance does not depend on the engine's scores or ranks."""
    relevance = await opened(lexical)
    pool = DOCUMENTS[:97]
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
    watched = WatchedEngine(lexical)
    encoder = CountingEncoder()
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
@pytest.mark.parametrize(
    "pool",
    [[], ["a", "b"], ["not there", "nor this"], ["d001", "not there", "nor this"]],
    ids=["empty", "blank", "missing", "one"],
)
async def test_without_texts_there_is_no_estimate(lexical: TantivyEngine, pool: list[str]) -> None:
    """With too few texts there is no estimate of relevance."""
    blank = [Document("a", "", " \n"), Document("b", "", "")]
    relevance = await opened(Supplying(lexical, blank))

    assert await relevance.estimate_ids("w1", pool) is None


@pytest.mark.parametrize("id_", ["a", "not there"])
async def test_a_document_without_text_gets_the_mean(lexical: TantivyEngine, id_: str) -> None:
    relevance = await opened(Supplying(lexical, [Document("a", "", " \n")]))
    alone = await estimated(relevance, "w1 w2", DOCUMENTS[:20])
    estimates = await estimated(relevance, "w1 w2", [*DOCUMENTS[:20], Document(id_, "", "")])

    assert estimates.pop(id_) == pytest.approx(np.mean([*alone.values()]))
    assert estimates == alone


class Backwards(WatchedEngine):
    """Ranks the same documents the other way round."""

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        return [replace(hits, ids=hits.ids[::-1]) for hits in await super().search(queries)]


async def test_an_engine_that_answers_its_own_queries_alone(
    lexical: TantivyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sample is drawn from what they find, whatever the ranks."""
    monkeypatch.setattr(texts, "SAMPLED", 40)
    watched = WatchedEngine(lexical, without=["new_queries"])
    queries = [" ".join(words) for words in itertools.product(WORDS, repeat=2)]
    relevance = await opened(watched, queries)
    turned = await opened(watched, queries[::-1] * 2)
    backwards = await opened(Backwards(lexical, without=["new_queries"]), queries)

    first, second = watched.searches
    assert first == second
    assert len(first) == 40
    estimates = await estimated(relevance, "w1", DOCUMENTS[:50])
    assert await estimated(backwards, "w1", DOCUMENTS[:50]) == estimates
    assert await estimated(turned, "w1", DOCUMENTS[:50]) == estimates
    assert 20 < relevance.reference.texts <= 40


async def test_without_queries_of_its_own_an_engine_has_no_sample(lexical: TantivyEngine) -> None:
    watched = WatchedEngine(lexical, without=["new_queries"])
    relevance = await opened(watched, WORDS[:9])

    assert watched.searches == []
    assert relevance.reference.texts == 0
    assert len({relevance.reference.weight(term) for term in (1, 2, 3)}) == 1
    estimates = await estimated(relevance, "w1", DOCUMENTS[:50])
    assert len(set(estimates.values())) > 10


HOSTILE = {
    "long": "w1 " * 2_000_000,
    "one word": "x" * 3_000_000,
    "half a pair": "w1 \ud800 w2 \udfff",
    "nulls": "w1\x00\x00w2\x00",
    "stop words": "the of and it",
    "stuffed": "w1 " * 9_000,
}


async def test_hostile_texts_and_queries_are_never_certain(lexical: TantivyEngine) -> None:
    """Neither words nor likeness make a document certain."""
    hostile = [Document(name, "", text) for name, text in HOSTILE.items()]
    relevance = await opened(Supplying(lexical, hostile))
    documents = DOCUMENTS[:60]
    without = await estimated(relevance, "w1", documents)
    for query in ("w1", "", "the", "\ud800", "w1 " * 100_000, "x" * 500_000, "w1\x00"):
        estimates = await estimated(relevance, query, [*documents, *hostile])
        assert max(estimates.values()) < 1 - 1e-6

    assert await estimated(relevance, "w1", documents) == without


def test_a_search_ends_among_its_last_ten_documents() -> None:
    estimates = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])
    assert end_of(estimates, []) == 0
    assert end_of(estimates, [0, 3, 8]) == 0.6
    assert end_of(np.linspace(1, 0, 101), range(80)) == pytest.approx(1 - 0.745)
