"""Search by vectors: of an embedded index, alone and with words, and of the texts of a pool."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqr.base.errors import (
    IndexUnavailableError,
    IndexVersionError,
    InputError,
    ModelError,
)
from fairqr.retrieval.encoders.encoder import Encoder, EncoderMark, text_of, unit_rows
from fairqr.retrieval.encoders.opening import Retriever
from fairqr.retrieval.engines.engine import Query, SearchEngine, lexical_of
from fairqr.retrieval.engines.hybrid import encoded_pool
from fairqr.retrieval.engines.hybrid.embedded import (
    HybridEngine,
    VectorEngine,
    read_vectors,
    unit_vectors,
    vectors_path,
    write_vectors,
)
from fairqr.retrieval.engines.hybrid.encoded_pool import EncodedPoolEngine
from fairqr.retrieval.engines.opening import with_retriever
from fairqr.retrieval.engines.tantivy.engine import TantivyEngine
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.fairness.relevance import SAMPLE_WORDS
from fairqr.retrieval.sources.catalog import Catalog
from fairqr.retrieval.sources.documents import Document
from tests.unit.engines import WatchedEngine, answers_of, hits_of, ranked, remove
from tests.unit.retrieval.embedded import GENDER, built, corpus_of, upsert
from tests.unit.retrieval.vector_encoders import (
    CountingEncoder,
    estimates_by_hand,
    generated,
    stored_vector,
    unit,
    word_vector,
)

QUERIES = ("w1", "w2 w3", "w4 w5 w6 w7 unheard")
DOCUMENTS = generated(150, more=SAMPLE_WORDS.split())

both = pytest.mark.parametrize("kind", [VectorEngine, HybridEngine])


@pytest.fixture
def lexical(tmp_path: Path) -> TantivyEngine:
    return built(tmp_path / "v1", DOCUMENTS)


def some(count: int, seed: int = 1) -> list[Document]:
    """Short documents, many of them equal; each tenth has no word at all."""
    short = [replace(d, text=" ".join(d.text.split()[:2])) for d in generated(count, seed)]
    return [replace(d, title="...", text="") if d.id[-1] == "0" else d for d in short]


def numbered(count: int) -> list[Document]:
    return [Document(f"d{n}", "", f"word{n}") for n in range(count)]


def by_cosine(documents: Iterable[Document], query: str) -> Ranking:
    """Rank all documents by (1 + cosine)/2, computed one by one, ties by id."""
    asked = unit(word_vector(query, 8))
    vectors = {d.id: stored_vector(word_vector(text_of(d), 8)) for d in documents}
    return Ranking.of({i: float(1 + v @ asked) / 2 for i, v in vectors.items() if v.any()})


async def by_hand(engine: HybridEngine, documents: list[Document], query: str) -> Ranking:
    """The definition of docs/explanation/relevance.md, over vectors as an index keeps them."""
    vectors = {d.id: stored_vector(word_vector(text_of(d), 8)) for d in documents}
    return Ranking.of(await estimates_by_hand(lexical_of(engine), vectors, query, by_rank=False))


def same(found: Ranking, expected: Ranking, n: int | None = None) -> None:
    """Assert that this is the first n of a ranking, or of one that differs in last digits."""
    scores = dict(zip(expected.ids, expected.scores, strict=True))
    assert len(set(found.ids)) == len(found)
    assert found.scores == pytest.approx([scores[id_] for id_ in found.ids], abs=1e-5)
    assert found.scores == pytest.approx(expected.scores[:n], abs=1e-5)


async def opened(lexical: TantivyEngine, encoder: Encoder | None = None) -> VectorEngine:
    return await VectorEngine.open(lexical, encoder or CountingEncoder())


def again(engine: SearchEngine) -> TantivyEngine:
    """The same index, opened as another process would."""
    lexical = lexical_of(engine)
    assert isinstance(lexical, TantivyEngine)
    return TantivyEngine(lexical.folder, "again")


def folder_of(tmp_path: Path) -> Path:
    (vectors,) = tmp_path.glob("v1/dense/*/vectors")
    return vectors.parent


# --- searching --------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("textless", [True, False])
async def test_scores_are_those_of_the_definition(
    tmp_path: Path, kind: type[VectorEngine], textless: bool
) -> None:
    """All documents are ranked; the top n is the beginning, ties are by id, and groups come too."""
    documents = some(300) if textless else generated(300)
    engine = await kind.open(built(tmp_path / "v1", documents), CountingEncoder())
    assert engine.retriever == f"{kind.kind}:words"
    groups = {d.id: [*d.membership(GENDER.attributes["gender"])] for d in documents}
    for query in QUERIES:
        whole = await ranked(engine, query, 1000)
        expected = by_cosine(documents, query)
        if isinstance(engine, HybridEngine):
            expected = await by_hand(engine, documents, query)
        assert len(whole) == (270 if textless and kind is VectorEngine else 300)
        same(whole, expected)
        pairs = [*zip(whole.ids, whole.scores, strict=True)]
        assert pairs == sorted(pairs, key=lambda pair: (-pair[1], pair[0]))
        assert 0 <= min(whole.scores) < max(whole.scores) <= 1
        for n in (1, 7, 50, 269):
            assert await ranked(engine, query, n) == whole.top(n)
        hits = await hits_of(engine, query, 30)
        assert hits.memberships["gender"].tolist() == [groups[id_] for id_ in hits.ids]


@pytest.mark.parametrize("kind", [None, VectorEngine, HybridEngine])
async def test_given_documents_get_the_scores_of_a_search(
    tmp_path: Path, kind: type[VectorEngine] | None
) -> None:
    """Documents without a word come last; ids that the index lacks are left out."""
    lexical = built(tmp_path / "v1", some(300))
    engine = await kind.open(lexical, CountingEncoder()) if kind else lexical
    whole = await ranked(engine, "w1 w2", 300)
    wanted = {*random.Random(3).sample(whole.ids[:90], 40), "d000", "d010"}
    hits = await hits_of(engine, "w1 w2", 99, only=[*wanted, "nobody", "d010"])
    scores = dict(zip(whole.ids, whole.scores, strict=True))
    assert {*hits.ids} == wanted
    assert hits.scores == [scores.get(id_, 0) for id_ in hits.ids]
    assert hits.scores == sorted(hits.scores, reverse=True)
    assert len(hits.memberships["gender"]) == len(hits)
    assert await ranked(engine, "w1", 9, only=[]) == Ranking([], [])


@pytest.mark.parametrize("kind", [VectorEngine, HybridEngine, EncodedPoolEngine])
async def test_what_vectors_cannot_say_is_said_by_the_lexical_engine(
    lexical: TantivyEngine, kind: Any
) -> None:
    more = {"keeps_order": True} if kind is EncodedPoolEngine else {}
    engine: SearchEngine = await kind.open(lexical, CountingEncoder(), **more)
    assert lexical_of(engine) is lexical
    added = {VectorEngine: {"vectors"}, EncodedPoolEngine: {"relevance"}}
    assert engine.capabilities - lexical.capabilities == added.get(kind, {"vectors", "relevance"})
    assert await engine.info() == await lexical.info()
    assert await engine.documents(["d001", "no"]) == await lexical.documents(["d001"])
    ours, theirs = await engine.corpus_shares(), await lexical.corpus_shares()
    assert (ours["gender"] == theirs["gender"]).all()
    queries = [
        Query("w1", 0),
        Query("", 0),
        *(Query(nothing, 9) for nothing in ("", " ", "...")),
        *(Query(nothing, 9, only=("d002", "nobody", "d001")) for nothing in ("", "...")),
        Query("w1 w2", 0, every_word=True),
        Query("w1 w2", 9, every_word=True),
        Query("w1", 0, only=("d001", "d002", "d003")),
    ]
    assert await answers_of(engine, queries) == await answers_of(lexical, queries)


# --- writing ----------------------------------------------------------------------------------

texts = st.lists(st.sampled_from(["w1", "w2", "w3", "w4", "..."]), max_size=3).map(" ".join)
weights = st.dictionaries(st.sampled_from(["female", "male", "unknown"]), st.integers(0, 9))
labels = st.one_of(st.none(), st.sampled_from(["female", "male", ""]), weights)
ids = st.integers(0, 4).map(lambda number: f"d{number}")
steps = st.one_of(
    st.tuples(st.just("upsert"), st.dictionaries(ids, st.tuples(texts, labels), max_size=4)),
    st.tuples(st.just("remove"), st.lists(ids, max_size=4)),
    st.tuples(st.just("reopen"), st.none()),
)


def listed(rows: dict[str, tuple[str, Any]]) -> list[Document]:
    return [Document(id_, "t", text, {"gender": label}) for id_, (text, label) in rows.items()]


async def check_groups_and_counts(engine: SearchEngine, now: dict[str, tuple[str, Any]]) -> None:
    gender = GENDER.attributes["gender"]
    matching, several, all_ = await engine.search(
        [Query("w1", 99), Query("w1 w2", 0, every_word=True), Query("", 99, only=tuple(now))]
    )
    assert set(matching.ids) == {id_ for id_, (text, _) in now.items() if "w1" in text}
    assert several.total == sum("w1" in text and "w2" in text for text, _ in now.values())
    assert all_.ids == sorted(now)
    for hits in (matching, all_):
        expected = [list(gender.membership(now[id_][1])) for id_ in hits.ids]
        assert hits.memberships["gender"].tolist() == expected
    shares = (await engine.corpus_shares())["gender"]
    rows = [gender.membership(label) for _, label in now.values()]
    assert shares == pytest.approx(np.sum(rows, axis=0) / max(1, len(rows)) if rows else 0)


@settings(max_examples=25)
@given(st.lists(steps, max_size=7))
def test_it_stays_right_whatever_is_written(writes: list[Any]) -> None:
    """After each write a search finds what there is, with its groups, and nothing that is gone."""

    async def work(folder: Path) -> None:
        encoder = CountingEncoder()
        now: dict[str, tuple[str, Any]] = {"d0": ("w1", "female"), "d4": ("w2 w3", None)}
        engine = await opened(built(folder / "v1", listed(now)), encoder)
        encoder.taken()
        for kind, change in writes:
            if kind == "upsert":
                await upsert(engine, listed(change))
                now.update(change)
            elif kind == "remove":
                assert await remove(engine, change) == len(now.keys() & {*change})
                now = {id_: row for id_, row in now.items() if id_ not in change}
            else:
                engine = await opened(again(engine), encoder)
            same(await ranked(engine, "w1 w2", 99), by_cosine(listed(now), "w1 w2"))
            same(await ranked(engine, "w3", 2), by_cosine(listed(now), "w3"), n=2)
            await check_groups_and_counts(engine.lexical, now)
            assert len(encoder.taken()) <= (len(change) if kind == "upsert" else 0)

    with TemporaryDirectory() as temporary:
        asyncio.run(work(Path(temporary)))


@pytest.mark.promise("labels")
async def test_only_what_is_new_is_encoded(tmp_path: Path) -> None:
    """Only new texts are encoded.

    Also where the index is built again, whatever the ids.
    """
    catalog, encoder = Catalog(tmp_path / "data"), CountingEncoder()
    first = corpus_of(tmp_path / "c", numbered(10))
    made = await catalog.create("people", first, encoder=encoder)
    assert encoder.taken() == [document.text for document in numbered(10)]
    engine = await opened(again(made), encoder)
    await upsert(engine, [Document("new", "", "quite new"), Document("d1", "", "x")])
    await ranked(engine, "word3", 9)
    assert sorted(encoder.taken()) == ["quite new", "x"]
    changed = [Document(f"x{n}", "", f"word{n}", {"gender": "male"}) for n in reversed(range(13))]
    corpus = corpus_of(tmp_path / "c", changed)
    made = await catalog.create("people", corpus, encoder=encoder)
    assert encoder.taken() == ["word12", "word11", "word10"]
    engine = await opened(again(made), encoder)
    assert encoder.taken() == []
    same(await ranked(engine, "word3 word11", 99), by_cosine(changed, "word3 word11"))


@pytest.mark.promise("labels")
async def test_vectors_of_another_model_are_refused(tmp_path: Path) -> None:
    """Vectors of two encoders are never compared: those of another model are refused.

    And those of two encoders stand beside each other.
    """
    lexical = built(tmp_path / "v1", some(60))
    first = await opened(lexical)
    second = await opened(lexical, CountingEncoder("salted", dimensions=5, salt="s"))
    assert (await ranked(second, "w1", 99)).scores != (await ranked(first, "w1", 99)).scores
    assert all(vectors_path(tmp_path / "v1", it).exists() for it in ("words", "salted"))
    for other in (CountingEncoder(salt="other"), CountingEncoder(dimensions=9)):
        with pytest.raises(
            InputError, match=r"'words' in .* another model of that name, with 8 dim.* or delete"
        ):
            await opened(lexical, other)
    same(await ranked(first, "w1", 99), by_cosine(some(60), "w1"))


# --- built again ------------------------------------------------------------------------------


async def test_a_replaced_index_can_still_be_searched(
    tmp_path: Path,
) -> None:
    """As the lexical engine can; but no vectors are opened over it any more."""
    catalog = Catalog(tmp_path / "data")
    old = await catalog.create("people", corpus_of(tmp_path / "c", some(40)))
    assert isinstance(old, TantivyEngine)
    engine = await opened(old)
    await catalog.create("people", corpus_of(tmp_path / "c", some(20, seed=2)))
    same(await ranked(engine, "w1", 99), by_cosine(some(40), "w1"))
    with pytest.raises(IndexVersionError, match="rebuilt or deleted in the meantime; open it"):
        await opened(old, CountingEncoder("another"))


# --- what goes wrong --------------------------------------------------------------------------


@pytest.mark.parametrize("left", [0, 3, 700])
async def test_a_damaged_file_is_made_again(tmp_path: Path, left: int) -> None:
    engine = await opened(built(tmp_path / "v1", some(60)))
    path = folder_of(tmp_path) / "vectors"
    path.write_bytes(path.read_bytes()[:left])
    found = await opened(again(engine))
    same(await ranked(found, "w1 w2", 99), by_cosine(some(60), "w1 w2"))


# --- several at once --------------------------------------------------------------------------


async def test_only_new_documents_wait_for_the_lock(
    tmp_path: Path,
) -> None:
    """A folder in its place stops even the superuser, and is one sentence."""
    lexical = built(tmp_path / "v1", some(40))
    await opened(lexical)
    lock = folder_of(tmp_path) / "lock"
    with FileLock(lock):
        engine = await opened(again(lexical))
        same(await ranked(engine, "w3", 99), by_cosine(some(40), "w3"))
        await upsert(lexical, [Document("new", "", "w3")])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await ranked(engine, "w3", 99)
    assert "new" in (await ranked(engine, "w3", 99)).ids
    lock.unlink()
    lock.mkdir()
    await upsert(engine, [Document("newer", "", "w1")])
    with pytest.raises(IndexUnavailableError, match="cannot be saved in"):
        await ranked(engine, "w1", 99)


@pytest.mark.promise("labels")
def test_half_precision_hardly_changes_a_cosine(tmp_path: Path) -> None:
    """Vectors are kept in half precision, which changes a cosine by less than a thousandth.

    And zeros stay zeros.
    """
    rows = unit_rows(np.random.default_rng(4).standard_normal((500, 384)))
    kept = tmp_path / "vectors", EncoderMark("wide", 384, (0.1,))
    assert read_vectors(*kept).shape == (0, 384)
    write_vectors(*kept, np.concatenate([rows, 0 * rows[:2]]).astype(np.float16))
    found = unit_vectors(read_vectors(*kept))
    assert np.linalg.norm(found[:500].astype(float), axis=1) == pytest.approx(1, abs=1e-6)
    assert np.abs(found[:500] @ rows[7] - rows @ rows[7]).max() < 3e-4
    assert not found[500:].any()


# --- pools ---------------------------------------------------------------------------------------


async def pooled(
    engine: SearchEngine, encoder: Encoder | None = None, *, keeps_order: bool = False
) -> EncodedPoolEngine:
    encoder = encoder or CountingEncoder()
    return await EncodedPoolEngine.open(engine, encoder, keeps_order=keeps_order)


async def probabilities(
    engine: SearchEngine, query: str, n: int = 500, only: Sequence[str] | None = None
) -> dict[str, float]:
    """The estimates by id, in the order of the hits."""
    hits = await hits_of(engine, query, n, only=only)
    assert hits.relevance is not None
    return dict(zip(hits.ids, hits.relevance.tolist(), strict=True))


@pytest.mark.parametrize("keeps_order", [True, False])
async def test_estimates_of_a_pool_are_those_of_the_definition(
    lexical: TantivyEngine, keeps_order: bool
) -> None:
    """They stand beside the ranking of an engine that keeps its own, and rank other documents."""
    documents = {document.id: document for document in DOCUMENTS}
    engine = await pooled(lexical, keeps_order=keeps_order)
    assert engine.retriever == "hybrid-pool:words"
    found = await hits_of(engine, "w1 w2", 500)
    by_words = await hits_of(lexical, "w1 w2", 200)
    vectors = {id_: unit(word_vector(text_of(d), 8)) for id_, d in documents.items()}
    pool = {id_: vectors[id_] for id_ in by_words.ids}
    sample = await lexical.search([Query(word, 10) for word in SAMPLE_WORDS.split()])
    ids = list(dict.fromkeys(id_ for hits in sample for id_ in hits.ids))
    usual = [vectors[id_] for id_ in ids]
    wanted = await estimates_by_hand(lexical, pool, "w1 w2", by_rank=True, sample=usual)
    assert found.relevance == pytest.approx([wanted[id_] for id_ in found.ids], abs=1e-5)
    if keeps_order:
        assert (found.ids, found.scores, found.own) == (by_words.ids, by_words.scores, None)
    else:
        assert sorted(found.ids) == sorted(by_words.ids), "it finds what the engine finds"
        assert found.scores == sorted(found.relevance, reverse=True)
        assert await ranked(engine, "w1 w2", 5) == Ranking(found.ids, found.scores).top(5)
    groups = [[*documents[id_].membership(GENDER.attributes["gender"])] for id_ in found.ids]
    assert found.memberships["gender"].tolist() == groups


async def test_only_the_pool_is_encoded(
    lexical: TantivyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What other queries had encoded stands below this one's pool and changes nothing."""
    monkeypatch.setattr(encoded_pool, "POOL", 10)
    encoder = CountingEncoder()
    engine = await pooled(lexical, encoder)
    sampled = set(encoder.taken())
    first = await lexical.documents((await hits_of(lexical, "w1", 10)).ids)
    alone = await probabilities(engine, "w1", 100)
    assert len(alone) > 20
    assert set(encoder.taken()) == {text_of(document) for document in first} - sampled
    for word in range(12):
        await hits_of(engine, f"w{word}", 100)
    assert await probabilities(engine, "w1", 100) == alone


@pytest.mark.parametrize("without", [(), ("rescore",)])
async def test_estimates_do_not_depend_on_other_documents(
    lexical: TantivyEngine, monkeypatch: pytest.MonkeyPatch, without: Sequence[Any]
) -> None:
    """Also below the pool, if other words found them, and if the engine cannot score them."""
    monkeypatch.setattr(encoded_pool, "POOL", 5)
    engine = await pooled(WatchedEngine(lexical, without=without), keeps_order=True)
    searched = await probabilities(engine, "w1 w2")
    given = [*searched, next(d.id for d in DOCUMENTS if d.id not in searched)]
    whole = await probabilities(engine, "w1 w2", only=given)
    assert {*whole} == {*given}
    for at in range(0, len(given), 9):
        few = await probabilities(engine, "w1 w2", 9, only=given[at : at + 9])
        assert few == pytest.approx({id_: whole[id_] for id_ in given[at : at + 9]})
    others = [id_ for id_ in searched if searched[id_] != pytest.approx(whole[id_])]
    assert len(others) > 20, "in a search, what is below the pool has no similarity of its own"


async def test_an_index_with_vectors_of_its_own_is_searched_by_them(lexical: TantivyEngine) -> None:
    encoder = CountingEncoder()
    assert isinstance(await with_retriever(lexical, encoder), EncodedPoolEngine)
    await with_retriever(lexical, Retriever("dense", encoder))
    assert isinstance(await with_retriever(lexical, encoder), HybridEngine)


async def test_a_hybrid_that_stores_vectors_stays_the_same(
    lexical: TantivyEngine,
) -> None:
    """As experiments open it, whose figures may not depend on what ran before."""
    asked = Retriever("hybrid", CountingEncoder(), stores_vectors=True)
    (first,) = await (await with_retriever(lexical, asked)).search([Query("w1 w2", 20)])
    (later,) = await (await with_retriever(lexical, asked)).search([Query("w1 w2", 20)])
    assert (first.ids, first.relevance.tolist()) == (later.ids, later.relevance.tolist())
    assert isinstance(await with_retriever(lexical, asked), HybridEngine)


class Broken(CountingEncoder):
    """An encoder that fails."""

    async def encode_documents(self, texts: Sequence[str]) -> Any:
        raise ModelError("unavailable", "no more")


async def test_an_engine_is_closed_where_its_encoder_fails(lexical: TantivyEngine) -> None:
    watched = WatchedEngine(lexical)
    with pytest.raises(ModelError):
        await with_retriever(watched, Retriever("hybrid", Broken()))
    assert watched.closed == 1
