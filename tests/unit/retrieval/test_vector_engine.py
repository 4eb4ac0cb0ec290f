"""Search by vectors over an embedded index, alone and with words, after every write and kill."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator
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
from fairqr.retrieval.encoders.opening import Retriever, open_encoder
from fairqr.retrieval.engines.engine import Query, SearchEngine, lexical_of
from fairqr.retrieval.engines.hybrid import embedded as module
from fairqr.retrieval.engines.hybrid.embedded import (
    HybridEngine,
    VectorEngine,
    VectorFolder,
    cosines,
    encoder_names,
    highest,
)
from fairqr.retrieval.engines.tantivy.engine import TantivyEngine
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.fairness.relevance import CALIBRATED
from fairqr.retrieval.sources.catalog import Catalog
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.sources.retriever_parameters import Hybrid
from tests.integration.local_model import minilm_cache, pulled_minilm
from tests.unit.engines import answers_of, hits_of, ranked
from tests.unit.retrieval.embedded import GENDER, built, corpus_of, remove, upsert
from tests.unit.retrieval.vector_encoders import (
    CountingEncoder,
    generated,
    stored_vector,
    unit,
    word_vector,
)

__all__ = ["minilm_cache", "pulled_minilm"]

ROOT = Path(__file__).parents[3]
QUERIES = ("w1", "w2 w3", "w4 w5 w6 w7 unheard")
DEFAULTS = ",".join(f"{name}={value}" for name, value in Hybrid().model_dump().items())

both = pytest.mark.parametrize("kind", [VectorEngine, HybridEngine])


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
    similar = {id_: float(vectors[id_] @ moved) for id_ in encoded}
    mean, deviation = np.mean([*similar.values()]), np.std([*similar.values()])
    scores = dict(zip(by_words.ids, by_words.scores, strict=True))

    def chance(id_: str) -> float:
        share = scores.get(id_, 0.0) / max(by_words.scores)
        likeness = (similar.get(id_, mean) - mean) / deviation
        return float(CALIBRATED.words.probability(np.array(share), np.array(likeness)))

    return Ranking.of({id_: chance(id_) for id_ in vectors})


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


@both
async def test_given_documents_get_the_scores_of_a_search(
    tmp_path: Path, kind: type[VectorEngine]
) -> None:
    """Documents without a word come last; ids that the index lacks are left out."""
    engine = await kind.open(built(tmp_path / "v1", some(300)), CountingEncoder())
    whole = await ranked(engine, "w1 w2", 300)
    wanted = {*random.Random(3).sample(whole.ids[:250], 40), "d000", "d010"}
    hits = await hits_of(engine, "w1 w2", 99, only=[*wanted, "nobody", "d010"])
    scores = dict(zip(whole.ids, whole.scores, strict=True))
    assert {*hits.ids} == wanted
    assert hits.scores == [scores.get(id_, 0) for id_ in hits.ids]
    assert hits.scores == sorted(hits.scores, reverse=True)
    assert len(hits.memberships["gender"]) == len(hits)
    assert await ranked(engine, "w1", 9, only=[]) == Ranking([], [])


@both
async def test_a_query_without_words_finds_nothing(
    tmp_path: Path, kind: type[VectorEngine]
) -> None:
    """And of given documents it prefers none; words of ``boost`` come after the query."""
    engine = await kind.open(built(tmp_path / "v1", some(30)), CountingEncoder())
    if kind is VectorEngine:
        boosted, plain = (
            await hits_of(engine, "w1", 50, boost="w2"),
            await hits_of(engine, "w1 w2", 50),
        )
        assert (boosted.ids, boosted.scores) == (plain.ids, plain.scores)
    for query in ("", " ", "..."):
        assert await ranked(engine, query, 9) == Ranking([], [])
        found = await ranked(engine, query, 9, only=["d003", "d001", "nobody"])
        assert found == Ranking(["d001", "d003"], [0, 0])


@both
async def test_what_vectors_cannot_say_is_said_by_the_lexical_engine(
    tmp_path: Path, kind: type[VectorEngine]
) -> None:
    lexical = built(tmp_path / "v1", some(50))
    engine: SearchEngine = await kind.open(lexical, CountingEncoder())
    assert lexical_of(engine) is lexical
    assert engine.capabilities - lexical.capabilities - {"relevance"} == {"vectors"}
    assert (engine.name, engine.schema) == (lexical.name, lexical.schema)
    assert await engine.info() == await lexical.info()
    assert await engine.documents(["d001", "no"]) == await lexical.documents(["d001"])
    ours, theirs = await engine.corpus_shares(), await lexical.corpus_shares()
    assert (ours["gender"] == theirs["gender"]).all()
    queries = [
        Query("w1", 0),
        Query("", 0),
        Query("w1 w2", 0, every_word=True),
        Query("w1 w2", 9, every_word=True),
        Query("w1", 0, only=("d001", "d002", "d003")),
    ]
    assert await answers_of(engine, queries) == await answers_of(lexical, queries)


async def test_retrievers_by_name(tmp_path: Path, minilm_cache: Path) -> None:
    """Each parameter has an effect, and the defaults, written out, have none."""
    catalog, seen = Catalog(tmp_path / "data"), []
    await catalog.create("people", corpus_of(tmp_path / "c", some(20)))
    for name in ("dense", "dense:minilm"):
        engine = await catalog.resolve(
            "people", retriever=name, progress=lambda what: (seen.append(what), print)[1]
        )
        assert engine.retriever == "dense:minilm"
    assert seen == ["vectors of people"], "announced where something is encoded"
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
    for name, options in (
        ("hybrid: minilm, feedback=20, weight=.7", Hybrid(feedback=20, weight=0.7)),
        ("hybrid:feedback=20", Hybrid(feedback=20)),
    ):
        retriever = Retriever.of(name)
        assert (retriever.hybrid, getattr(retriever.encoder, "name", "")) == (options, "minilm")


@pytest.mark.parametrize("wrong", ["weight=0", "depth=x", "pool=20000", "words=3", "k"])
def test_parameters_are_checked_in_one_sentence(wrong: str) -> None:
    name = wrong.partition("=")[0]
    said = f"parameter '{name}'.*parameters are feedback, weight, k, depth, candidates, pool"
    with pytest.raises(InputError, match=said) as bad:
        Retriever.of(f"hybrid:minilm,{wrong}")
    assert "\n" not in str(bad.value)
    with pytest.raises(InputError, match="choose auto, bm25, dense, hybrid"):
        Retriever.of(wrong)


# --- writing ----------------------------------------------------------------------------------

texts = st.lists(st.sampled_from(["w1", "w2", "w3", "w4", "..."]), max_size=3).map(" ".join)
ids = st.integers(0, 4).map(lambda number: f"d{number}")
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
        now = {"d0": "w1", "d4": "w2 w3"}
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
            same(await ranked(engine, "w1 w2", 99), by_cosine(documents, "w1 w2"))
            same(await ranked(engine, "w3", 2), by_cosine(documents, "w3"), n=2)
            assert len(encoder.taken()) <= (len(change) if kind == "upsert" else 0)

    with TemporaryDirectory() as temporary:
        asyncio.run(work(Path(temporary)))


async def test_only_what_is_new_is_encoded(tmp_path: Path, minilm_cache: Path) -> None:
    """Also where the index is built again, whatever the ids; documents that are added are encoded
    by who encoded the index, if its encoder can be opened by its name."""
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
    await opened(again(made), open_encoder("minilm"))
    more = corpus_of(tmp_path / "m", [Document(f"new{n}", "", f"new{n}") for n in range(5)])
    seen: list[tuple[int, ...]] = []
    await catalog.upsert("people", more.path, progress=lambda *done: seen.append(done))
    assert seen[-1] == (5, 5)
    manifests = map(Path.read_bytes, (tmp_path / "data").rglob("dense/*/manifest.json"))
    rows = {found["mark"]["name"]: found["rows"] for found in map(json.loads, manifests)}
    assert (rows["minilm"] >= 18, rows["words"]) == (True, 13), "'words' opens no encoder"
    assert "new3" in (await ranked(engine, "new3", 1)).ids
    other = CountingEncoder(salt="x")
    await catalog.create("people", corpus, encoder=other)
    assert len(other.taken()) == 13, "another model of the same name encodes all"


@both
async def test_documents_that_are_gone_hide_no_others(
    tmp_path: Path, kind: type[VectorEngine]
) -> None:
    """Even where they are most, and the best: there are as many hits as were asked for."""
    documents = [Document(f"d{n}", "", f"w1 word{n}") for n in range(40)]
    engine = await kind.open(built(tmp_path / "v1", documents), CountingEncoder())
    for number in range(6):
        await upsert(engine, [Document(d.id, "", f"{d.text} again{number}") for d in documents])
    await remove(engine, ["d0"])
    now = [Document(d.id, "", f"{d.text} again5") for d in documents[1:]]
    for n in (1, 5, 39, 99):
        found = await ranked(engine, "w1 word3 again0", n)
        assert len({*found.ids} - {"d0"}) == min(n, 39)
        if kind is VectorEngine:
            same(found, by_cosine(now, "w1 word3 again0"), n=n)


async def test_vectors_of_another_model_are_refused(tmp_path: Path) -> None:
    """And those of two encoders stand beside each other."""
    lexical = built(tmp_path / "v1", some(60))
    first = await opened(lexical)
    second = await opened(lexical, CountingEncoder("salted", dimensions=5, salt="s"))
    assert (await ranked(second, "w1", 99)).scores != (await ranked(first, "w1", 99)).scores
    assert {*encoder_names(tmp_path / "v1")} == {"words", "salted"}
    for other in (CountingEncoder(salt="other"), CountingEncoder(dimensions=9)):
        with pytest.raises(
            InputError, match=r"'words' in .* another model of that name, with 8 dim.* or delete"
        ):
            await opened(lexical, other)
    same(await ranked(first, "w1", 99), by_cosine(some(60), "w1"))


# --- built again ------------------------------------------------------------------------------


async def test_an_index_that_was_built_again_meanwhile_can_still_be_searched(
    tmp_path: Path,
) -> None:
    """As the lexical engine can; but no vectors are opened over it any more."""
    catalog = Catalog(tmp_path / "data")
    old = await catalog.create("people", corpus_of(tmp_path / "c", some(40)))
    assert isinstance(old, TantivyEngine)
    engine = await opened(old)
    new = await catalog.create("people", corpus_of(tmp_path / "c", some(20, seed=2)))
    same(await ranked(await opened(again(new)), "w1", 99), by_cosine(some(20, seed=2), "w1"))
    same(await ranked(engine, "w1", 99), by_cosine(some(40), "w1"))
    with pytest.raises(
        IndexVersionError, match="rebuilt or deleted in the meantime; open it again"
    ):
        await opened(old, CountingEncoder("another"))
    await catalog.delete("people")
    same(await ranked(engine, "w1", 99), by_cosine(some(40), "w1"))
    assert not (tmp_path / "data/indexes/people").exists()


# --- what goes wrong --------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["manifest", "vectors", "strange"])
async def test_damaged_files_are_made_again(tmp_path: Path, damage: str) -> None:
    engine = await opened(built(tmp_path / "v1", some(60)))
    folder = folder_of(tmp_path)
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
    same(await ranked(found, "w1 w2", 99), by_cosine(some(60), "w1 w2"))


class Stopped(CountingEncoder):
    """Gets as far as the tenth document."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    async def encode_documents(self, texts: Any) -> Any:
        if "word10" in texts:
            raise self.error
        return await super().encode_documents(texts)


@pytest.mark.parametrize("error", [ModelError("unavailable", "no more"), asyncio.CancelledError()])
async def test_what_was_encoded_before_a_failure_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Also if nobody waits any longer."""
    monkeypatch.setattr(module, "DOCUMENTS_AT_ONCE", 10)
    lexical, encoder, seen = built(tmp_path / "v1", numbered(30)), CountingEncoder(), []
    with pytest.raises(type(error)):
        await opened(lexical, Stopped(error))
    engine = await VectorEngine.open(lexical, encoder, lambda *done: seen.append(done))
    assert encoder.taken() == [f"word{n}" for n in range(10, 30)]
    assert seen == [(10, 20), (20, 20)]
    same(await ranked(engine, "word3", 99), by_cosine(numbered(30), "word3"))


# --- several at once --------------------------------------------------------------------------

OPEN = textwrap.dedent(
    """
    import asyncio, pathlib, sys
    from fairqr.retrieval.engines.hybrid import embedded
    from fairqr.retrieval.engines.tantivy.engine import TantivyEngine
    from tests.unit.engines import ranked
    from tests.unit.retrieval.vector_encoders import CountingEncoder

    embedded.DOCUMENTS_AT_ONCE = 5
    wait_at = int(sys.argv[2])

    def progress(count, total):
        if count == wait_at:
            print("reached", flush=True)
            sys.stdin.readline()

    async def work():
        lexical = TantivyEngine(pathlib.Path(sys.argv[1]), "people")
        encoder = CountingEncoder()
        engine = await embedded.VectorEngine.open(lexical, encoder, progress)
        print(len(encoder.taken()), *(await ranked(engine, "word1 word2", 9)).ids, flush=True)

    print("started", flush=True)
    asyncio.run(work())
    """
)


@pytest.fixture
def opener(tmp_path: Path) -> Iterator[Any]:
    """Start processes that open the vectors, and wait after so many documents."""
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


async def test_of_processes_one_encodes_others_wait_and_go_on_where_it_was_killed(
    tmp_path: Path, opener: Any
) -> None:
    built(tmp_path / "v1", numbered(40))
    first = opener(wait_at=20)
    assert first.stdout.readline() == "reached\n"
    others = [opener(), opener()]
    first.send_signal(signal.SIGKILL)
    said = [process.stdout.readline().split() for process in others]
    assert sorted(int(line[0]) for line in said) == [0, 20]
    expected = by_cosine(numbered(40), "word1 word2").top(9).ids
    assert [line[1:] for line in said] == [expected] * 2


async def test_many_search_while_documents_are_written(tmp_path: Path) -> None:
    """They see each write as a whole, whoever made it, and never a document that is gone."""
    engine = await opened(built(tmp_path / "v1", some(100)))
    stop = False

    async def write() -> None:
        nonlocal stop
        for number in range(5):
            await upsert(engine, [Document(f"x{i}", "", f"extra{number}") for i in range(20)])
        stop = True

    async def read() -> None:
        while not stop:
            found = await hits_of(engine, "extra1", 500)
            assert len(set(found.ids)) == len(found) in (90, 110)

    await asyncio.gather(write(), read(), read(), read())
    found = await ranked(engine, "extra4", 20)
    assert set(found.ids) == {f"x{i}" for i in range(20)}
    assert found.scores == pytest.approx([1] * 20)


async def test_what_is_up_to_date_needs_neither_the_lock_nor_the_right_to_write(
    tmp_path: Path,
) -> None:
    """Another process may hold the lock; then a folder takes its place, as nothing else stops the
    superuser from writing."""
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
    found = await opened(again(engine))
    assert "new" in (await ranked(found, "w3", 99)).ids
    await upsert(engine, [Document("newer", "", "w1")])
    with pytest.raises(IndexUnavailableError, match="cannot be saved in"):
        await ranked(found, "w1", 99)


# --- the folder -------------------------------------------------------------------------------


def test_half_precision_changes_a_cosine_by_less_than_a_thousandth(tmp_path: Path) -> None:
    """What a killed write left behind does not count, and is written over."""
    rows = unit_rows(np.random.default_rng(4).standard_normal((500, 384)))
    stored = VectorFolder(tmp_path, EncoderMark("wide", 384, (0.1,)))
    assert stored.append(0, range(500), rows) == stored.rows() == 500
    with (tmp_path / "vectors").open("ab") as stream:
        stream.write(b"half a row")
    found = stored.load(np.zeros((0, 384), dtype=np.float32))
    assert np.linalg.norm(found.astype(float), axis=1) == pytest.approx(np.ones(500), abs=1e-6)
    assert np.abs(found @ rows[7] - rows @ rows[7]).max() < 3e-4
    assert stored.append(500, [502], rows[:1]) == 503
    more = stored.load(found)
    assert (more[:500] == found).all()
    assert not more[500:502].any()
    assert (more[502] == found[0]).all()


# --- the best rows ----------------------------------------------------------------------------


@settings(max_examples=100)
@given(st.integers(0, 2**32), st.integers(0, 60), st.integers(1, 9), st.integers(1, 70))
def test_the_highest_rows_are_those_of_a_full_sort(seed: int, rows: int, d: int, n: int) -> None:
    """And all that tie with the last, so that whoever breaks ties in another way can do it."""
    # Few distinct values, so that many rows tie, and some are zeros.
    draw = np.random.default_rng(seed)
    vectors, query = (
        unit_rows(draw.integers(-1, 2, (rows, d))),
        unit_rows(draw.integers(-1, 2, (1, d))),
    )
    found = cosines(vectors, query[0])
    known = np.flatnonzero(~np.isnan(found))
    assert known.tolist() == np.flatnonzero(vectors.any(axis=1) & query.any()).tolist()
    # By another way: the cosine is 1 less half of the squared distance.
    expected = 1 - ((vectors[known] - query) ** 2).sum(axis=1) / 2
    assert found[known] == pytest.approx(expected, abs=1e-6)
    allowed = draw.random(rows) < 0.8
    best = sorted((found[row] for row in known if allowed[row]), reverse=True)[:n]
    wanted = [row for row in known.tolist() if allowed[row] and found[row] >= best[-1]]
    assert highest(found, n, allowed).tolist() == wanted


def test_a_cosine_does_not_depend_on_what_is_computed_beside() -> None:
    """To the last digit, for a search and a rescoring have to agree, in widths with odd ends."""
    draw = np.random.default_rng(3)
    for d in (1, 7, 33, 256, 1000):
        vectors, query = np.split(unit_rows(draw.standard_normal((301, d))), [300])
        together = cosines(vectors, query[0])
        for rows in ([5], [299, 0], draw.permutation(300)[:77]):
            assert cosines(vectors[rows], query[0]).tolist() == together[rows].tolist()
