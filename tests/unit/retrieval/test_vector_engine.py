"""Vector search over the embedded engine: right after every kind of write, kill and race."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
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
    ModelUnavailableError,
)
from fairqr.retrieval.encoders.encoder import Encoder, text_of
from fairqr.retrieval.encoders.langchain import LangChainEncoder
from fairqr.retrieval.encoders.opening import Retriever, open_encoder
from fairqr.retrieval.engines.engine import Hits, Query, SearchEngine, lexical_of
from fairqr.retrieval.engines.hybrid import vectors as module
from fairqr.retrieval.engines.hybrid.vectors import VectorEngine
from fairqr.retrieval.engines.tantivy.engine import TantivyEngine
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.sources.catalog import Catalog
from fairqr.retrieval.sources.documents import Document
from tests.integration.local_model import minilm_cache, pulled_minilm
from tests.unit.engines import hits_of, ranked
from tests.unit.retrieval.embedded import GENDER, built, corpus_of, remove, upsert
from tests.unit.retrieval.vector_encoders import (
    CountingEncoder,
    WordEmbeddings,
    stored_vector,
    word_vector,
)

__all__ = ["minilm_cache", "pulled_minilm"]

ROOT = Path(__file__).parents[3]


def generated(count: int, seed: int = 1) -> list[Document]:
    """Short documents of few words, so that many are equal; a few have no word at all."""
    draw = random.Random(seed)
    words = [f"w{i}" for i in range(12)]
    return [
        Document(
            f"d{number}",
            draw.choice(words),
            " ".join(draw.choices(words, k=draw.randint(0, 3))),
            {"gender": draw.choice(["female", "male"])},
        )
        if number % 10
        else Document(f"d{number}", "...", "")
        for number in range(count)
    ]


def by_hand(documents: list[Document], query: str) -> Ranking:
    """Rank all documents by (1 + cosine)/2, computed one by one, ties by id."""
    asked = word_vector(query, 8)
    scores = {}
    for document in documents:
        vector = stored_vector(word_vector(text_of(document), 8))
        if vector.any():
            cosine = vector @ asked / np.linalg.norm(asked)
            scores[document.id] = float(1 + cosine) / 2
    return Ranking.of(scores)


def same(found: Ranking, expected: Ranking, n: int | None = None) -> None:
    """Assert that a ranking is the first n of the expected one, or of one that equals it but for
    the last digits of the scores."""
    scores = dict(zip(expected.ids, expected.scores, strict=True))
    assert len(set(found.ids)) == len(found)
    assert found.scores == pytest.approx([scores[id_] for id_ in found.ids], abs=1e-6)
    assert found.scores == pytest.approx(expected.scores[:n], abs=1e-6)


QUERIES = ("w1", "w2 w3", "w4 w5 w6 w7 unheard")


async def opened(lexical: TantivyEngine, encoder: Encoder | None = None) -> VectorEngine:
    return await VectorEngine.open(lexical, encoder or CountingEncoder())


def again(engine: SearchEngine) -> TantivyEngine:
    """The same index, opened as another process would."""
    lexical = lexical_of(engine)
    assert isinstance(lexical, TantivyEngine)
    return TantivyEngine(lexical.folder, "again")


# --- searching --------------------------------------------------------------------------------


async def test_a_search_ranks_all_documents_by_cosine(tmp_path: Path) -> None:
    """As computed by hand; and whatever n is, the top n is the beginning of the whole ranking."""
    documents = generated(300)
    engine = await opened(built(tmp_path / "v1", documents))
    for query in QUERIES:
        whole = await ranked(engine, query, 1000)
        assert len(whole) == 270
        same(whole, by_hand(documents, query))
        pairs = list(zip(whole.ids, whole.scores, strict=True))
        assert pairs == sorted(pairs, key=lambda pair: (-pair[1], pair[0]))
        assert len(set(whole.scores)) < 250, "there are ties"
        for n in (1, 3, 20, 269, 270):
            assert await ranked(engine, query, n) == whole.top(n)


async def test_hits_bring_their_groups(tmp_path: Path) -> None:
    documents = generated(50)
    engine = await opened(built(tmp_path / "v1", documents))
    gender = GENDER.attributes["gender"]
    for hits in (await hits_of(engine, "w1", 30), await hits_of(engine, "w1", 9, only=["d7"])):
        expected = [list(documents[int(id_[1:])].membership(gender)) for id_ in hits.ids]
        assert len(hits) > 0
        assert hits.memberships["gender"].tolist() == expected


async def test_given_documents_get_the_scores_of_a_search(tmp_path: Path) -> None:
    """Documents without a word come last with 0; ids that the index lacks are left out."""
    engine = await opened(built(tmp_path / "v1", generated(300)))
    whole = await ranked(engine, "w1 w2", 300)
    some = random.Random(3).sample(whole.ids, 40)
    found = await ranked(engine, "w1 w2", 99, only=[*some, "nobody", "d10", "d0", some[0]])
    assert found.ids == [*[id_ for id_ in whole.ids if id_ in some], "d0", "d10"]
    scores = dict(zip(whole.ids, whole.scores, strict=True))
    assert found.scores == [*[scores[id_] for id_ in found.ids[:-2]], 0, 0]
    assert await ranked(engine, "w1", 9, only=[]) == Ranking([], [])


async def test_a_query_without_words_finds_nothing(tmp_path: Path) -> None:
    """And of given documents it prefers none, whatever the lexical engine would say."""
    engine = await opened(built(tmp_path / "v1", generated(30)))
    for query in ("", " ", "..."):
        assert await ranked(engine, query, 9) == Ranking([], [])
        found = await ranked(engine, query, 9, only=["d3", "d1", "nobody"])
        assert found == Ranking(["d1", "d3"], [0, 0])


async def test_words_of_boost_are_encoded_after_the_query(tmp_path: Path) -> None:
    engine = await opened(built(tmp_path / "v1", generated(50)))
    boosted = await hits_of(engine, "w1", 50, boost="w2")
    plain = await hits_of(engine, "w1 w2", 50)
    assert (boosted.ids, boosted.scores) == (plain.ids, plain.scores)


async def test_what_vectors_cannot_say_is_said_by_the_lexical_engine(tmp_path: Path) -> None:
    lexical = built(tmp_path / "v1", generated(50))
    engine: SearchEngine = await opened(lexical)
    assert (engine.retriever, lexical.retriever) == ("dense:words", "bm25")
    assert lexical_of(engine) is lexical
    assert engine.capabilities == lexical.capabilities | {"vectors"}
    assert (engine.name, engine.schema) == (lexical.name, lexical.schema)
    assert await engine.info() == await lexical.info()
    assert await engine.documents(["d1", "no", "d3"]) == await lexical.documents(["d1", "d3"])
    ours, theirs = await engine.corpus_shares(), await lexical.corpus_shares()
    assert (ours["gender"] == theirs["gender"]).all()
    queries = [
        Query("w1", 0),
        Query("", 0),
        Query("w1 w2", 0, every_word=True),
        Query("w1 w2", 9, every_word=True),
        Query("w1", 0, only=("d1", "d2", "d3")),
    ]
    for one, other in zip(await engine.search(queries), await lexical.search(queries), strict=True):
        assert (one.ids, one.scores, one.total) == (other.ids, other.scores, other.total)


async def test_retrievers_by_name(tmp_path: Path, minilm_cache: Path) -> None:
    catalog = Catalog(tmp_path / "data")
    await catalog.create("people", corpus_of(tmp_path / "c", generated(20)))
    seen: list[str] = []
    for name in ("dense", "dense:minilm"):
        engine = await catalog.resolve(
            "people", retriever=name, progress=lambda what: (seen.append(what), print)[1]
        )
        assert engine.retriever == "dense:minilm"
    assert seen == ["vectors of people"], "announced where something is encoded"
    assert (await catalog.resolve("people", retriever="bm25")).retriever == "bm25"
    for wrong in ("", "sparse", "bm25:x", "Dense", "densest"):
        with pytest.raises(InputError, match="choose auto, bm25, dense, hybrid"):
            await catalog.resolve("people", retriever=wrong)
    with pytest.raises(ModelUnavailableError, match="no encoder 'magic'"):
        await catalog.resolve("people", retriever="dense:magic")


async def test_a_model_of_langchain_retrieves(tmp_path: Path) -> None:
    documents = generated(100)
    lexical = built(tmp_path / "v1", documents)
    engine = await opened(lexical, LangChainEncoder(WordEmbeddings()))
    assert engine.retriever == "dense:WordEmbeddings"
    same(await ranked(engine, "w1 w2", 1000), by_hand(documents, "w1 w2"))


# --- writing ----------------------------------------------------------------------------------

texts = st.lists(st.sampled_from(["w1", "w2", "w3", "w4", "..."]), max_size=3).map(" ".join)
ids = st.integers(0, 6).map(lambda number: f"d{number}")
steps = st.one_of(
    st.tuples(st.just("upsert"), st.dictionaries(ids, texts, max_size=4)),
    st.tuples(st.just("remove"), st.lists(ids, max_size=4)),
    st.tuples(st.just("reopen"), st.none()),
)


@settings(max_examples=20)
@given(st.lists(steps, max_size=7))
def test_it_stays_right_whatever_is_written(writes: list[Any]) -> None:
    """After each write a search finds what there is, and never a document that is gone."""

    async def work(folder: Path) -> None:
        encoder = CountingEncoder()
        now = {"d0": "w1", "d9": "w2 w3"}
        first = [Document(id_, "t", text) for id_, text in now.items()]
        engine = await opened(built(folder / "v1", first), encoder)
        encoder.taken()
        for kind, change in writes:
            if kind == "upsert":
                await upsert(engine, [Document(i, "t", text) for i, text in change.items()])
                now.update(change)
            elif kind == "remove":
                await remove(engine, change)
                now = {id_: text for id_, text in now.items() if id_ not in change}
            else:
                engine = await opened(again(engine), encoder)
            documents = [Document(id_, "t", text) for id_, text in now.items()]
            same(await ranked(engine, "w1 w2", 99), by_hand(documents, "w1 w2"))
            same(await ranked(engine, "w3", 2), by_hand(documents, "w3"), n=2)
            assert len(encoder.taken()) <= (len(change) if kind == "upsert" else 0)

    with TemporaryDirectory() as temporary:
        asyncio.run(work(Path(temporary)))


async def test_only_what_is_new_is_encoded(tmp_path: Path) -> None:
    documents = [Document(f"d{n}", "", f"word{n}") for n in range(50)]
    encoder = CountingEncoder()
    engine = await opened(built(tmp_path / "v1", documents), encoder)
    assert encoder.taken() == [document.text for document in documents]
    await upsert(engine, [Document("new", "", "quite new"), Document("d1", "", "x")])
    await ranked(engine, "word3", 9)
    assert sorted(encoder.taken()) == ["quite new", "x"]
    await opened(again(engine), encoder)
    assert encoder.taken() == []


async def test_rows_of_documents_that_are_gone_hide_no_others(tmp_path: Path) -> None:
    """Even where they are most, and the best: there are as many hits as were asked for."""
    documents = [Document(f"d{n}", "", f"w1 word{n}") for n in range(40)]
    engine = await opened(built(tmp_path / "v1", documents))
    for number in range(6):
        await upsert(engine, [Document(d.id, "", f"{d.text} again{number}") for d in documents])
    now = [Document(d.id, "", f"{d.text} again5") for d in documents]
    for n in (1, 5, 40, 99):
        same(await ranked(engine, "w1 word3 again0", n), by_hand(now, "w1 word3 again0"), n=n)


async def test_two_encoders_have_vectors_of_their_own(tmp_path: Path) -> None:
    documents = generated(60)
    lexical = built(tmp_path / "v1", documents)
    first = await opened(lexical)
    second = await opened(lexical, CountingEncoder("salted", dimensions=5, salt="s"))
    same(await ranked(first, "w1", 99), by_hand(documents, "w1"))
    assert (await ranked(second, "w1", 99)).scores != (await ranked(first, "w1", 99)).scores
    with pytest.raises(InputError, match=r"'words' in .* another model of that name"):
        await opened(lexical, CountingEncoder(salt="other"))
    with pytest.raises(InputError, match=r"with 8 dimensions; give .* or delete that folder"):
        await opened(lexical, CountingEncoder(dimensions=9))
    same(await ranked(first, "w1", 99), by_hand(documents, "w1"))


async def test_an_index_that_was_built_again_meanwhile_can_still_be_searched(
    tmp_path: Path,
) -> None:
    """As the lexical engine can; but no vectors are opened over it any more."""
    catalog = Catalog(tmp_path / "data")
    documents = generated(40)
    old = await catalog.create("people", corpus_of(tmp_path / "c", documents))
    assert isinstance(old, TantivyEngine)
    engine = await opened(old)
    new = await catalog.create("people", corpus_of(tmp_path / "c", generated(20, seed=2)))
    assert isinstance(new, TantivyEngine)
    same(await ranked(await opened(new), "w1", 99), by_hand(generated(20, seed=2), "w1"))
    same(await ranked(engine, "w1", 99), by_hand(documents, "w1"))
    with pytest.raises(
        IndexVersionError, match="rebuilt or deleted in the meantime; open it again"
    ):
        await opened(old, CountingEncoder("another"))
    await catalog.delete("people")
    same(await ranked(engine, "w1", 99), by_hand(documents, "w1"))
    assert not (tmp_path / "data/indexes/people").exists()


async def test_an_empty_index_has_no_hits(tmp_path: Path) -> None:
    engine = await opened(built(tmp_path / "v1", generated(2)))
    await remove(engine, ["d0", "d1"])
    assert await ranked(engine, "w1", 9) == Ranking([], [])
    assert await ranked(engine, "w1", 9, only=["d1"]) == Ranking([], [])
    assert await ranked(await opened(again(engine)), "w1", 9) == Ranking([], [])


# --- built again ------------------------------------------------------------------------------


async def test_an_index_that_is_built_again_encodes_new_texts_only(tmp_path: Path) -> None:
    """Whatever their ids and their order, and although labels may have changed."""
    catalog = Catalog(tmp_path / "data")
    texts = [Document(f"d{n}", "", f"word{n}", {"gender": "female"}) for n in range(10)]
    await catalog.create("people", corpus_of(tmp_path / "c", texts), encoder=CountingEncoder())
    changed = [Document(f"x{n}", "", f"word{n}", {"gender": "male"}) for n in reversed(range(13))]
    encoder = CountingEncoder()
    made = await catalog.create("people", corpus_of(tmp_path / "c", changed), encoder=encoder)
    assert encoder.taken() == ["word12", "word11", "word10"]
    engine = await opened(again(made), encoder)
    assert encoder.taken() == []
    same(await ranked(engine, "word3 word11", 99), by_hand(changed, "word3 word11"))
    assert not list((tmp_path / "data").rglob("earlier")), "they are not kept for ever"
    other = CountingEncoder(salt="x")
    await catalog.delete("people")
    await catalog.create("people", corpus_of(tmp_path / "c", texts), encoder=other)
    assert len(other.taken()) == 10


async def test_a_build_whose_encoding_was_cut_off_is_built_again_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DOCUMENTS_AT_ONCE", 10)
    catalog = Catalog(tmp_path / "data")
    documents = [Document(f"d{n}", "", f"word{n}") for n in range(30)]
    corpus = corpus_of(tmp_path / "c", documents)
    failing = Failing()
    failing.batches = -2  # two short texts come before the documents
    with pytest.raises(ModelError, match="no more"):
        await catalog.create("people", corpus, encoder=failing)
    encoder, seen = CountingEncoder(), []
    made = await catalog.create(
        "people", corpus, encoder=encoder, progress=lambda *done: seen.append(done)
    )
    assert encoder.taken() == [f"word{n}" for n in range(20, 30)]
    assert seen[-3:] == [(10, 30), (20, 30), (30, 30)]
    same(await ranked(await opened(again(made)), "word3", 99), by_hand(documents, "word3"))


async def test_another_model_of_the_same_name_encodes_all(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "data")
    corpus = corpus_of(tmp_path / "c", generated(20))
    await catalog.create("people", corpus, encoder=CountingEncoder(salt="x"))
    encoder = CountingEncoder()
    made = await catalog.create("people", corpus, encoder=encoder)
    assert len(encoder.taken()) == 20
    same(await ranked(await opened(again(made)), "w1", 99), by_hand(generated(20), "w1"))


async def test_an_encoder_that_fails_at_once_leaves_the_index_as_it_was(tmp_path: Path) -> None:
    class Broken(CountingEncoder):
        async def encode_documents(self, texts: Any) -> Any:
            raise ModelUnavailableError("not here")

    catalog = Catalog(tmp_path / "data")
    with pytest.raises(ModelUnavailableError, match="not here"):
        await catalog.create("people", corpus_of(tmp_path / "c", generated(9)), encoder=Broken())
    assert catalog.names() == []


async def test_added_documents_are_encoded_by_who_encoded_the_index(
    tmp_path: Path, minilm_cache: Path
) -> None:
    catalog = Catalog(tmp_path / "data")
    corpus = corpus_of(tmp_path / "c", generated(20))
    await catalog.create("people", corpus, encoder=open_encoder("minilm"))
    await catalog.resolve("people", retriever=Retriever("dense", CountingEncoder()))
    more = corpus_of(tmp_path / "m", [Document(f"new{n}", "", f"new{n}") for n in range(5)])
    seen: list[tuple[int, ...]] = []
    await catalog.upsert("people", more.path, progress=lambda *done: seen.append(done))
    assert seen[-1] == (5, 5)
    manifests = (tmp_path / "data").rglob("dense/*/manifest.json")
    rows = {
        found["encoder"]: found["rows"] for found in (json.loads(p.read_bytes()) for p in manifests)
    }
    assert (rows["minilm"] >= 25, rows["words"]) == (True, 20), (
        "'words' is a name that opens no encoder"
    )
    encoder = CountingEncoder()
    engine = await catalog.resolve("people", retriever=Retriever("dense", encoder))
    assert encoder.taken() == [f"new{n}" for n in range(5)]
    assert "new3" in (await ranked(engine, "new3", 1)).ids


# --- what goes wrong --------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["manifest", "vectors", "strange"])
async def test_damaged_files_are_made_again(tmp_path: Path, damage: str) -> None:
    documents = generated(60)
    engine = await opened(built(tmp_path / "v1", documents))
    (folder,) = [path.parent for path in tmp_path.glob("v1/dense/*/vectors")]
    match damage:
        case "manifest":
            (folder / "manifest.json").write_text("{")
        case "vectors":
            data = (folder / "vectors").read_bytes()
            (folder / "vectors").write_bytes(data[: len(data) // 2 + 3])
        case _:
            (folder / "manifest.json").unlink()
            (folder / "vectors").write_text("something else " * 999)
    found = await opened(again(engine))
    same(await ranked(found, "w1 w2", 99), by_hand(documents, "w1 w2"))


async def test_vectors_that_cannot_be_written_are_said_to_be(tmp_path: Path) -> None:
    lexical = built(tmp_path / "v1", generated(5))
    (tmp_path / "v1/dense").write_text("in the way")
    with pytest.raises(IndexUnavailableError, match=r"cannot be saved in .*or use the retriever"):
        await opened(lexical)


class Failing(CountingEncoder):
    """Fails at the third batch of documents."""

    batches = 0

    async def encode_documents(self, texts: Any) -> Any:
        self.batches += 1
        if self.batches == 3:
            raise ModelError("unavailable", "no more")
        return await super().encode_documents(texts)


async def test_what_was_encoded_before_a_failure_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DOCUMENTS_AT_ONCE", 10)
    documents = [Document(f"d{n}", "", f"word{n}") for n in range(30)]
    lexical = built(tmp_path / "v1", documents)
    with pytest.raises(ModelError, match="no more"):
        await opened(lexical, Failing())
    encoder, seen = CountingEncoder(), []
    engine = await VectorEngine.open(lexical, encoder, lambda *done: seen.append(done))
    assert encoder.taken() == [f"word{n}" for n in range(10, 30)]
    assert seen == [(10, 20), (20, 20)]
    same(await ranked(engine, "word3", 99), by_hand(documents, "word3"))


async def test_an_opening_that_nobody_waits_for_any_longer_lets_go(tmp_path: Path) -> None:
    lexical = built(tmp_path / "v1", generated(30))
    reached = asyncio.Event()

    class Endless(CountingEncoder):
        async def encode_documents(self, texts: Any) -> Any:
            if len(texts) > 1:
                reached.set()
                await asyncio.Event().wait()
            return await super().encode_documents(texts)

    opening = asyncio.create_task(opened(lexical, Endless()))
    await reached.wait()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    same(await ranked(await opened(lexical), "w1", 99), by_hand(generated(30), "w1"))


# --- several at once --------------------------------------------------------------------------

OPEN = textwrap.dedent(
    """
    import asyncio, pathlib, sys
    from fairqr.retrieval.engines.hybrid import vectors
    from fairqr.retrieval.engines.tantivy.engine import TantivyEngine
    from tests.unit.engines import ranked
    from tests.unit.retrieval.vector_encoders import CountingEncoder

    vectors.DOCUMENTS_AT_ONCE = 5
    wait_at = int(sys.argv[2])

    def progress(count, total):
        if count == wait_at:
            print("reached", flush=True)
            sys.stdin.readline()

    async def work():
        lexical = TantivyEngine(pathlib.Path(sys.argv[1]), "people")
        encoder = CountingEncoder()
        engine = await vectors.VectorEngine.open(lexical, encoder, progress)
        print(len(encoder.taken()), *(await ranked(engine, "word1 word2", 9)).ids, flush=True)

    print("started", flush=True)
    asyncio.run(work())
    """
)


@pytest.fixture
def opener(tmp_path: Path) -> Iterator[Any]:
    """Start processes that open the vectors, and wait for a line after so many documents."""
    started: list[subprocess.Popen[str]] = []

    def start(wait_at: int = -1) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", OPEN, str(tmp_path / "v1"), str(wait_at)]
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


async def test_a_process_that_is_killed_while_encoding_leaves_what_it_has_done(
    tmp_path: Path, opener: Any
) -> None:
    documents = [Document(f"d{n}", "", f"word{n}") for n in range(40)]
    lexical = built(tmp_path / "v1", documents)
    process = opener(wait_at=20)
    assert process.stdout.readline() == "reached\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    encoder = CountingEncoder()
    engine = await opened(lexical, encoder)
    assert encoder.taken() == [f"word{n}" for n in range(20, 40)]
    same(await ranked(engine, "word3 word30", 99), by_hand(documents, "word3 word30"))


async def test_of_two_processes_at_once_one_encodes_and_the_other_waits(
    tmp_path: Path, opener: Any
) -> None:
    documents = [Document(f"d{n}", "", f"word{n}") for n in range(40)]
    built(tmp_path / "v1", documents)
    first = opener(wait_at=10)
    assert first.stdout.readline() == "reached\n"
    second, third = opener(), opener()
    first.stdin.write("go on\n")
    first.stdin.flush()
    said = [process.stdout.readline().split() for process in (first, second, third)]
    assert [int(line[0]) for line in said] == [40, 0, 0]
    expected = by_hand(documents, "word1 word2").top(9).ids
    assert [line[1:] for line in said] == [expected] * 3


async def test_many_search_while_documents_are_written(tmp_path: Path) -> None:
    """They see each write as a whole, whoever made it, and never a document that is gone."""
    documents = generated(100)
    engine = await opened(built(tmp_path / "v1", documents))
    stop = False

    async def write() -> None:
        nonlocal stop
        for number in range(5):
            await upsert(engine, [Document(f"x{i}", "", f"extra{number}") for i in range(20)])
        stop = True

    async def read() -> None:
        while not stop:
            found: Hits = await hits_of(engine, "extra1", 500)
            assert len(set(found.ids)) == len(found) in (90, 110)

    await asyncio.gather(write(), read(), read(), read())
    found = await ranked(engine, "extra4", 20)
    assert set(found.ids) == {f"x{i}" for i in range(20)}
    assert found.scores == pytest.approx([1] * 20)


def test_one_engine_serves_several_event_loops(tmp_path: Path) -> None:
    documents = generated(50)
    engine = asyncio.run(opened(built(tmp_path / "v1", documents)))
    for _ in range(2):
        same(asyncio.run(ranked(engine, "w1", 99)), by_hand(documents, "w1"))
    asyncio.run(upsert(engine, [Document("new", "", "w1")]))
    assert "new" in asyncio.run(ranked(engine, "w1", 99)).ids


async def test_what_is_up_to_date_is_opened_without_waiting_for_the_lock(
    tmp_path: Path, opener: Any
) -> None:
    """Another process may encode what came later meanwhile."""
    documents = [Document(f"d{n}", "", f"word{n}") for n in range(40)]
    lexical = built(tmp_path / "v1", documents)
    await opened(lexical)
    (folder,) = [path.parent for path in tmp_path.glob("v1/dense/*/vectors")]
    with FileLock(folder / "lock"):
        engine = await opened(again(lexical))
        same(await ranked(engine, "word3", 99), by_hand(documents, "word3"))
        await upsert(lexical, [Document("new", "", "word3")])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await ranked(engine, "word3", 99)
    assert "new" in (await ranked(engine, "word3", 99)).ids


async def test_what_is_up_to_date_is_searched_in_a_folder_that_cannot_be_written(
    tmp_path: Path,
) -> None:
    """Here the lock's place is taken by a folder, for nothing keeps the superuser from writing."""
    documents = generated(30)
    engine = await opened(built(tmp_path / "v1", documents))
    (folder,) = [path.parent for path in tmp_path.glob("v1/dense/*/vectors")]
    (folder / "lock").unlink()
    (folder / "lock").mkdir()
    found = await opened(again(engine))
    same(await ranked(found, "w1", 99), by_hand(documents, "w1"))
    await upsert(engine, [Document("new", "", "w1")])
    with pytest.raises(IndexUnavailableError, match="cannot be saved in"):
        await ranked(found, "w1", 99)
