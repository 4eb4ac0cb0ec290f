"""Relevance estimated from texts alone: what an audit knows of relevance without judgements."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fairqr.retrieval.encoders.encoder import text_of
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.engines.hybrid import relevance_of_texts as module
from fairqr.retrieval.engines.hybrid.relevance_of_texts import (
    Reference,
    TextEvidence,
    TextRelevance,
    bm25,
    end_of,
    numbers_of,
)
from fairqr.retrieval.engines.hybrid.vectors import VectorEngine
from fairqr.retrieval.engines.tantivy.analysis import english_analyzer
from fairqr.retrieval.fairness.relevance import CALIBRATED, SAMPLE_WORDS
from fairqr.retrieval.pools.bm25 import MemoryIndex
from fairqr.retrieval.sources.documents import Document
from tests.unit.engines import WatchedEngine
from tests.unit.retrieval.embedded import built, upsert
from tests.unit.retrieval.vector_encoders import CountingEncoder, word_vector

WORDS = [f"w{i}" for i in range(12)]
LABEL = {"gender": "female"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No vectors of other tests."""
    monkeypatch.setenv("FAIRQR_CACHE_DIR", str(tmp_path / "cache"))


def generated(count: int) -> list[Document]:
    """Documents about some of twelve things, w0 in nearly all, each with one common word."""
    draw = random.Random(1)
    common = SAMPLE_WORDS.split()
    return [
        Document(
            f"d{number:03}",
            draw.choice(WORDS),
            " ".join(["w0", *draw.choices(WORDS, k=draw.randint(2, 9)), draw.choice(common)]),
            LABEL,
        )
        for number in range(count)
    ]


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
    assert ((estimates > 0) & (estimates < 1)).all()
    return dict(zip([document.id for document in documents], estimates.tolist(), strict=True))


def unit(vector: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(vector)
    return vector / length if length else vector


def stems(text: str) -> list[str]:
    return english_analyzer().analyze(text)


async def test_estimates_are_those_of_the_definition(tmp_path: Path) -> None:
    """Written out in plain loops, from the texts alone."""
    documents = generated(150)
    lexical = built(tmp_path / "v1", documents)
    pool = documents[40:110]
    found = await estimated(await opened(lexical), "w1 w0 w1", pool)

    terms_of = {d.id: stems(text_of(d)) for d in documents}
    sampled: set[str] = set()
    for word in SAMPLE_WORDS.split():
        holders = [d for d in documents if stems(word)[0] in terms_of[d.id]]
        if len(holders) <= 10:
            sampled |= {d.id for d in holders}
        else:
            (hits,) = await lexical.search([module.Query(word, 10)])
            sampled |= {*hits.ids}
    sample = [terms_of[id_] for id_ in sampled]
    mean_length = sum(map(len, sample)) / len(sample)

    def score(document: Document) -> float:
        terms, total = terms_of[document.id], 0.0
        for word in ("w1", "w0", "w1"):
            count, having = terms.count(word), sum(word in text for text in sample)
            weight = math.log(1 + (len(sample) - having + 0.5) / (having + 0.5))
            total += weight * count * 2.2 / (count + 1.2 * (0.25 + 0.75 * len(terms) / mean_length))
        return total

    scores = {d.id: score(d) for d in pool}
    vectors = {d.id: unit(word_vector(text_of(d), 8)) for d in documents}
    query = unit(word_vector("w1 w0 w1", 8))
    by_words = sorted((id_ for id_ in scores if scores[id_]), key=lambda i: (-scores[i], i))
    nearest = sorted(scores, key=lambda i: (-float(vectors[i] @ query), i))
    fused = {
        id_: sum(1 / (61 + ranking.index(id_)) for ranking in (by_words, nearest) if id_ in ranking)
        for id_ in scores
    }
    best = sorted(fused, key=lambda i: (-fused[i], i))[:10]
    moved = unit(query / 2 + unit(np.mean([vectors[id_] for id_ in best], axis=0)) / 2)
    usual = np.array([vectors[id_] @ moved for id_ in sampled])
    for id_, estimate in found.items():
        likeness = (vectors[id_] @ moved - usual.mean()) / usual.std()
        logit = (
            CALIBRATED.texts.intercept
            + CALIBRATED.texts.lexical * scores[id_] / max(scores.values())
            + CALIBRATED.texts.similarity * likeness
        )
        assert estimate == pytest.approx(1 / (1 + math.exp(-logit)), abs=2e-5)


def evidence_of(texts: Sequence[str]) -> TextEvidence:
    vectors = [word_vector(text, 8).astype(np.float32) for text in texts]
    return TextEvidence.of(texts, np.stack(vectors))


@pytest.mark.parametrize("query", ["w1", "w0 w5 w5", "people", "nothing of that"])
def test_bm25_is_that_of_an_index_if_the_statistics_are_its_own(query: str) -> None:
    texts = [text_of(document) for document in generated(120)]
    evidence = evidence_of(texts)
    scores = bm25(numbers_of(stems(query)), evidence, Reference.of(evidence))
    assert scores == pytest.approx(MemoryIndex(texts).scores(query), rel=1e-4)


def test_a_word_that_all_of_the_pool_have_counts() -> None:
    """Its weight comes from the sample; by the pool's own statistics it had next to none."""
    pool = evidence_of([*(f"w1 w1 w{n}" for n in range(2, 10)), "w1 w8 w9"])
    query = numbers_of(["w1"])
    sample = evidence_of([f"w{n} w{n + 1}" for n in range(2, 9)])
    assert Reference.of(pool).weight(int(query[0])) < 0.06
    assert Reference.of(sample).weight(int(query[0])) > 2
    scores = bm25(query, pool, Reference.of(sample))
    assert scores[0] > scores[-1] > 1


async def test_the_order_of_the_pool_changes_not_even_a_digit(tmp_path: Path) -> None:
    documents = generated(150)
    relevance = await opened(built(tmp_path / "v1", documents))
    pool = documents[:97]
    first = await estimated(relevance, "w3 w4", pool)
    for seed in range(5):
        shuffled = random.Random(seed).sample(pool, len(pool))
        assert await estimated(relevance, "w3 w4", shuffled) == first


async def test_what_was_asked_before_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does how much of it is kept."""
    documents = generated(150)
    lexical, pool = built(tmp_path / "v1", documents), documents[20:80]
    alone = await estimated(await opened(lexical), "w2", pool)
    busy = await opened(lexical)
    for number, word in enumerate(WORDS):
        await busy.estimate_ids(word, [d.id for d in documents[number * 5 : number * 5 + 60]])
    assert await estimated(busy, "w2", pool) == alone
    monkeypatch.setattr(module, "KEPT_BYTES", 5_000)
    forgetful = await opened(lexical)
    for word in WORDS:
        await forgetful.estimate_ids(word, [d.id for d in documents])
        assert forgetful._kept.size <= 5_000
    assert await estimated(forgetful, "w2", pool) == alone


async def test_the_engine_is_asked_for_texts_alone(tmp_path: Path) -> None:
    """Once it is open; each text is read and encoded once, for ten minutes."""
    documents = generated(150)
    watched, encoder = WatchedEngine(built(tmp_path / "v1", documents)), CountingEncoder()
    relevance = await TextRelevance.open(watched, encoder)
    assert len(watched.searches) == 1
    sampled = {id_ for read in watched.reads for id_ in read}
    watched.reads.clear()
    pool = [d.id for d in documents[:90]]
    await asyncio.gather(*(relevance.estimate_ids(word, pool) for word in WORDS))
    assert len(watched.searches) == 1
    assert sorted(id_ for read in watched.reads for id_ in read) == sorted({*pool} - sampled)
    assert max(Counter(encoder.taken()).values()) == 1


async def test_texts_are_read_again_after_ten_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = generated(60)
    watched = WatchedEngine(built(tmp_path / "v1", documents))
    relevance = await opened(watched)
    pool = [d.id for d in documents[:30]]
    before = await relevance.estimate_ids("w5", pool)
    monkeypatch.setattr(module, "SECONDS_KEPT", -1.0)
    await upsert(watched._engine, [Document("d000", "w5", "w5 w5 w5 w5", LABEL)])
    after = await relevance.estimate_ids("w5", pool)
    assert before is not None
    assert after is not None
    assert after[0] > before[0]


async def test_vectors_of_expected_queries_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second audit encodes none, in whatever order they come; other queries are not stored."""
    monkeypatch.setattr(module, "READ_AHEAD", 3)
    documents, lexical = generated(60), built(tmp_path / "v1", generated(60))
    plain = await opened(lexical)
    wanted = {word: await estimated(plain, word, documents) for word in [*WORDS, "w1 w2"]}
    texts = {text_of(document) for document in documents}
    for encoded in (sorted(WORDS), []):
        encoder = CountingEncoder()
        relevance = await TextRelevance.open(lexical, encoder, expected=[*WORDS, WORDS[0]])
        for word in random.Random(1).choices(WORDS, k=60):
            assert await estimated(relevance, word, documents) == wanted[word]
        together = await asyncio.gather(*(estimated(relevance, it, documents) for it in WORDS))
        assert together == [wanted[word] for word in WORDS]
        assert sorted({*encoder.taken()} - texts) == encoded
    for _ in range(2):
        assert await estimated(relevance, "w1 w2", documents) == wanted["w1 w2"]
        assert encoder.taken() == ["w1 w2"]


async def test_vectors_that_an_index_has_are_used(tmp_path: Path) -> None:
    """Only a text that is new since then is encoded."""
    documents = generated(120)
    lexical, encoder = built(tmp_path / "v1", documents), CountingEncoder()
    plain = await estimated(await opened(lexical), "w3 w4", documents)
    await VectorEngine.open(lexical, CountingEncoder())
    relevance = await TextRelevance.open(lexical, encoder)
    stored = await estimated(relevance, "w3 w4", documents)
    assert encoder.taken() == ["w3 w4"]
    assert stored == pytest.approx(plain, abs=5e-3), "the index has half precision"
    await upsert(lexical, [Document("new", "w3", "w3 w9 w9", LABEL)])
    await relevance.estimate_ids("w3", [*(d.id for d in documents), "new"])
    assert encoder.taken() == ["w3\nw3 w9 w9", "w3"]


async def test_vectors_of_another_model_of_the_same_name_are_not_used(tmp_path: Path) -> None:
    documents = generated(60)
    lexical = built(tmp_path / "v1", documents)
    plain = await estimated(await opened(lexical), "w3", documents)
    await VectorEngine.open(lexical, CountingEncoder(salt="another"))
    assert await estimated(await opened(lexical), "w3", documents) == plain


async def test_without_texts_there_is_no_estimate(tmp_path: Path) -> None:
    blank = [Document("a", "", " \n"), Document("b", "", "")]
    relevance = await opened(Supplying(built(tmp_path / "v1", generated(60)), blank))
    assert await relevance.estimate_ids("w1", []) is None
    assert await relevance.estimate_ids("w1", ["a", "b"]) is None
    assert await relevance.estimate_ids("w1", ["not there", "nor this"]) is None
    assert await relevance.estimate_ids("w1", ["d001", "not there", "nor this"]) is None


async def test_a_document_without_text_gets_the_mean_of_the_others(tmp_path: Path) -> None:
    documents = generated(60)
    blank = Document("d0005", "", "  ")
    relevance = await opened(Supplying(built(tmp_path / "v1", documents), [blank]))
    with_text = documents[:20]
    alone = await estimated(relevance, "w1 w2", with_text)
    found = await estimated(relevance, "w1 w2", [*with_text, blank])
    assert found.pop("d0005") == pytest.approx(np.mean([*alone.values()]))
    assert found == alone
    given = await relevance.estimate_ids("w1 w2", [*(d.id for d in with_text), "not there"])
    assert given is not None
    assert given[-1] == pytest.approx(np.mean([*alone.values()]))


async def test_an_engine_that_answers_its_own_queries_alone(tmp_path: Path) -> None:
    """The sample is what some of them find, in whatever order; without them there is none."""
    documents = generated(150)
    watched = WatchedEngine(built(tmp_path / "v1", documents), without=["new_queries"])
    without = await opened(watched, WORDS[:9])
    assert watched.searches == []
    assert without.reference == Reference(without.reference.background)
    assert len({without.reference.weight(term) for term in (1, 2, 3)}) == 1
    found = await estimated(without, "w1", documents[:50])
    assert len({*found.values()}) > 10
    queries = [f"{a} {b}" for a in WORDS for b in WORDS]
    one = await opened(watched, queries)
    other = await opened(watched, queries[::-1] * 2)
    (asked, again) = watched.searches
    assert asked == again
    assert len(asked) == 20
    pool = documents[:50]
    assert await estimated(one, "w1", pool) == await estimated(other, "w1", pool)
    assert one.reference.texts > 20


async def test_documents_without_any_of_the_common_words(tmp_path: Path) -> None:
    """As in another language: the sample is what the queries of the audit find."""
    words = [f"wort{number}" for number in range(12)]
    documents = [Document(f"d{n}", "", f"{words[n % 12]} {words[n % 7]}") for n in range(120)]
    engine = built(tmp_path / "v1", documents)
    assert (await opened(engine)).reference.texts == 0
    relevance = await opened(engine, words)
    assert relevance.reference.texts > 50
    found = await estimated(relevance, "wort3", documents[:24])
    assert found["d3"] > found["d4"]


HOSTILE = {
    "long": "w1 " * 2_000_000,
    "one word": "x" * 3_000_000,
    "half a pair": "w1 \ud800 w2 \udfff",
    "nulls": "w1\x00\x00w2\x00",
    "points": "... !!! ---",
    "stop words": "the of and it",
    "right to left": "\u202ew1 w2\u202c",
    "markup": "<script>w1</script> {{w1}} \u2028",
    "marks": "e" + "\u0301" * 50_000,
    "stuffed": "w1 " * 400,
}


async def test_hostile_texts_and_queries(tmp_path: Path) -> None:
    documents = generated(60)
    hostile = [Document(name, "", text) for name, text in HOSTILE.items()]
    relevance = await opened(Supplying(built(tmp_path / "v1", documents), hostile))
    plain = await estimated(relevance, "w1", documents)
    for query in ("w1", "", "the", "\ud800", "w1 " * 100_000, "x" * 500_000, "w1\x00"):
        found = await estimated(relevance, query, [*documents, *hostile])
        assert len(found) == len(documents) + len(hostile)
    assert relevance._kept.size < 10_000 * len(found)
    assert await estimated(relevance, "w1", documents) == plain


async def test_a_document_stuffed_with_the_query_says_no_more_than_all_of_it(
    tmp_path: Path,
) -> None:
    """The evidence is bounded: neither words nor likeness make a document certain."""
    documents = generated(60)
    stuffed = Document("s", "w1", "w1 " * 9_000)
    relevance = await opened(Supplying(built(tmp_path / "v1", documents), [stuffed]))
    found = await estimated(relevance, "w1", [*documents, stuffed])
    assert found["s"] < 1 - 1e-6


async def test_documents_that_answer_stand_above_those_that_do_not(tmp_path: Path) -> None:
    documents = generated(150)
    found = await estimated(await opened(built(tmp_path / "v1", documents)), "w7", documents)
    has = [d.id for d in documents if "w7" in text_of(d).split()]
    assert np.mean([found[i] for i in has]) > 2 * np.mean([found[i] for i in found if i not in has])


def test_a_search_ends_among_its_last_ten_documents() -> None:
    estimates = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])
    assert end_of(estimates, []) == 0
    assert end_of(estimates, [0, 3, 8]) == 0.6
    many = np.linspace(1, 0, 101)
    assert end_of(many, range(80)) == pytest.approx(1 - 0.745)


async def test_a_group_that_is_held_down_has_its_share_of_the_comparable_documents(
    tmp_path: Path,
) -> None:
    """A pool with 60 of one group and 15 of another, which has a quarter of the relevant ones."""
    draw = random.Random(3)
    documents = [
        Document(
            f"d{number:03}",
            "",
            " ".join([*["w1"] * (8 - number // 20), *draw.choices(WORDS[2:], k=2 + number // 20)]),
            {"gender": "female" if number % 4 == 0 else "male"},
        )
        for number in range(160)
    ]
    relevance = await opened(built(tmp_path / "v1", documents))
    women = [d for d in documents if d.fields["gender"] == "female"]
    men = [d for d in documents if d.fields["gender"] == "male"]
    pool = [*men[:60], *women]
    estimates = await relevance.estimate_ids("w1", [document.id for document in pool])
    assert estimates is not None
    level = end_of(estimates, range(60))
    kept = estimates * (estimates >= level)
    assert estimates[60:].sum() / estimates.sum() > 0.3
    assert kept[60:].sum() / kept.sum() == pytest.approx(0.25, abs=0.05)
