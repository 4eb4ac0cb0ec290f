"""Vectors beside the embedded index: right after every kind of write, kill and race."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
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
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqr.errors import (
    IndexUnavailableError,
    IndexVersionError,
    InputError,
    ModelError,
    ModelUnavailableError,
)
from fairqr.retrieval.catalog import Catalog
from fairqr.retrieval.corpus import Corpus, find_corpus
from fairqr.retrieval.documents import Document
from fairqr.retrieval.encoders.encoder import Encoder, text_of
from fairqr.retrieval.encoders.langchain import LangChainEncoder
from fairqr.retrieval.index import Index
from fairqr.retrieval.ranking import Ranking
from fairqr.retrieval.vectors import VectorIndex, open_retriever
from fairqr.retrieval.vectors import tantivy_vectors as module
from tests.unit.retrieval.vector_encoders import CountingEncoder, WordEmbeddings, word_vector

SCHEMA = "attributes:\n  gender: {field: gender, groups: [female, male]}\n"
ROOT = Path(__file__).parents[3]


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(tmp_path / "data")


def corpus_of(folder: Path, documents: list[Document]) -> Corpus:
    folder.mkdir(exist_ok=True)
    (folder / "schema.yaml").write_text(SCHEMA)
    (folder / "people.jsonl").write_text(
        "".join(
            json.dumps({"id": d.id, "title": d.title, "text": d.text, **d.fields}) + "\n"
            for d in documents
        )
    )
    return find_corpus(folder / "people.jsonl")


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
        vector = word_vector(text_of(document), 8)
        if vector.any():
            cosine = vector @ asked / np.linalg.norm(vector) / np.linalg.norm(asked)
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


async def opened(index: Index, encoder: Encoder | None = None) -> VectorIndex:
    found = await open_retriever(index, encoder or CountingEncoder())
    assert isinstance(found, VectorIndex)
    return found


# --- searching --------------------------------------------------------------------------------


async def test_a_search_ranks_all_documents_by_cosine(catalog: Catalog, tmp_path: Path) -> None:
    """As computed by hand; and whatever n is, the top n is the beginning of the whole ranking."""
    documents = generated(300)
    index = await opened(await catalog.create("people", corpus_of(tmp_path / "c", documents)))
    for query in QUERIES:
        whole = await index.search(query, 1000)
        assert len(whole) == 270
        same(whole, by_hand(documents, query))
        assert list(zip(whole.ids, whole.scores, strict=True)) == sorted(
            zip(whole.ids, whole.scores, strict=True), key=lambda pair: (-pair[1], pair[0])
        )
        assert len(set(whole.scores)) < 250, "there are ties"
        for n in (1, 3, 20, 269, 270):
            assert await index.search(query, n) == whole.top(n)
    assert await index.search("w1", 0) == Ranking([], [])


async def test_a_rescoring_gives_the_scores_of_a_search(catalog: Catalog, tmp_path: Path) -> None:
    """Documents without a word come last with 0; ids that the index lacks are left out."""
    index = await opened(await catalog.create("people", corpus_of(tmp_path / "c", generated(300))))
    whole = await index.search("w1 w2", 300)
    some = random.Random(3).sample(whole.ids, 40)
    rescored = await index.rescore("w1 w2", [*some, "nobody", "d10", "d0", some[0]])
    assert rescored.ids == [*[id_ for id_ in whole.ids if id_ in some], "d0", "d10"]
    scores = dict(zip(whole.ids, whole.scores, strict=True))
    assert rescored.scores == [*[scores[id_] for id_ in rescored.ids[:-2]], 0, 0]
    assert await index.rescore("w1", []) == Ranking([], [])


async def test_a_query_without_words_finds_nothing(catalog: Catalog, tmp_path: Path) -> None:
    """And as a rescoring it has no opinion."""
    index = await opened(await catalog.create("people", corpus_of(tmp_path / "c", generated(30))))
    for query in ("", " ", "..."):
        assert await index.search(query, 9) == Ranking([], [])
        assert await index.rescore(query, ["d3", "d1", "nobody"]) == Ranking(["d1", "d3"], [0, 0])


async def test_words_of_boost_are_encoded_with_the_query(catalog: Catalog, tmp_path: Path) -> None:
    index = await opened(await catalog.create("people", corpus_of(tmp_path / "c", generated(50))))
    assert await index.search("w1", 50, boost="w2") == await index.search("w1 w2", 50)


async def test_all_else_is_that_of_the_lexical_index(catalog: Catalog, tmp_path: Path) -> None:
    lexical = await catalog.create("people", corpus_of(tmp_path / "c", generated(50)))
    index: Index = await opened(lexical)
    assert (index.retriever, lexical.retriever) == ("dense:words", "bm25")
    assert index.lexical is lexical
    assert lexical.lexical is lexical
    assert (index.name, index.schema) == (lexical.name, lexical.schema)
    assert await index.info() == await lexical.info()
    ids = ["d1", "nobody", "d3"]
    assert await index.documents(ids) == await lexical.documents(ids)
    assert (
        await index.memberships("gender", ids) == await lexical.memberships("gender", ids)
    ).all()
    assert (await index.corpus_shares("gender") == await lexical.corpus_shares("gender")).all()
    assert await index.document_frequencies(["w1"]) == await lexical.document_frequencies(["w1"])


async def test_retrievers_by_name(catalog: Catalog, tmp_path: Path) -> None:
    index = await catalog.create("people", corpus_of(tmp_path / "c", generated(20)))
    dense = await open_retriever(index, "dense")
    assert dense.retriever == "dense:wordllama"
    assert (await open_retriever(dense, "dense:wordllama")).lexical is index
    assert await open_retriever(dense, "bm25") is index
    assert await open_retriever(index, "bm25") is index
    for wrong in ("", "sparse", "bm25:x", "Dense", "densest"):
        with pytest.raises(InputError, match="choose bm25, dense or dense:<encoder>"):
            await open_retriever(index, wrong)
    with pytest.raises(ModelUnavailableError, match="no encoder 'minilm'"):
        await open_retriever(index, "dense:minilm")


async def test_a_model_of_langchain_retrieves(catalog: Catalog, tmp_path: Path) -> None:
    documents = generated(100)
    index = await catalog.create("people", corpus_of(tmp_path / "c", documents))
    dense = await opened(index, LangChainEncoder(WordEmbeddings()))
    assert dense.retriever == "dense:WordEmbeddings"
    same(await dense.search("w1 w2", 1000), by_hand(documents, "w1 w2"))


# --- writing ----------------------------------------------------------------------------------

texts = st.lists(st.sampled_from(["w1", "w2", "w3", "w4", "..."]), max_size=3).map(" ".join)
ids = st.integers(0, 6).map(lambda number: f"d{number}")
steps = st.one_of(
    st.tuples(st.just("upsert"), st.dictionaries(ids, texts, max_size=4)),
    st.tuples(st.just("upsert elsewhere"), st.dictionaries(ids, texts, max_size=4)),
    st.tuples(st.just("delete"), st.lists(ids, max_size=4)),
    st.tuples(st.just("delete elsewhere"), st.lists(ids, max_size=4)),
    st.tuples(st.just("rebuild"), st.dictionaries(ids, texts, min_size=1, max_size=6)),
    st.tuples(st.just("reopen"), st.none()),
)


@settings(max_examples=15, deadline=None)
@given(st.lists(steps, max_size=7), st.sampled_from([0, 10_000]))
def test_it_stays_right_whatever_is_written(writes: list[Any], gone_at_least: int) -> None:
    """After each write, by this object, another one or a new build, a search finds what there is.

    And a text is never encoded twice while a document has it.
    """

    async def work(folder: Path) -> None:
        catalog, encoder = Catalog(folder / "data"), CountingEncoder()
        now = {"d0": "w1", "d9": "w2 w3"}

        async def build() -> VectorIndex:
            corpus = corpus_of(folder, [Document(i, "t", text) for i, text in now.items()])
            return await opened(await catalog.create("people", corpus), encoder)

        index = await build()
        encoder.taken()
        for kind, change in writes:
            known = {f"t\n{text}" if text.strip() else "t" for text in now.values()}
            where: Index = await catalog.open("people") if kind.endswith("elsewhere") else index
            if kind.startswith("upsert"):
                await where.upsert([Document(i, "t", text) for i, text in change.items()])
                now.update(change)
            elif kind.startswith("delete"):
                await where.delete(change)
                now = {id_: text for id_, text in now.items() if id_ not in change}
            elif kind == "rebuild":
                now = dict(change)
                index = await build()
            else:
                index = await opened(await catalog.open("people"), encoder)
            documents = [Document(id_, "t", text) for id_, text in now.items()]
            same(await index.search("w1 w2", 99), by_hand(documents, "w1 w2"))
            same(await index.search("w3", 2), by_hand(documents, "w3"), n=2)
            assert not known & set(encoder.taken())

    with TemporaryDirectory() as temporary, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "GONE_AT_LEAST", gone_at_least)
        asyncio.run(work(Path(temporary)))


async def test_only_what_is_new_is_encoded(catalog: Catalog, tmp_path: Path) -> None:
    """After an upsert, and after a new build of a corpus in which some texts have changed."""
    documents = [Document(f"d{n}", "", f"word{n}") for n in range(50)]
    encoder = CountingEncoder()
    index = await opened(
        await catalog.create("people", corpus_of(tmp_path / "c", documents)), encoder
    )
    assert encoder.taken() == [document.text for document in documents]
    await index.upsert([*documents[:20], Document("new", "", "quite new"), Document("d1", "", "x")])
    assert sorted(encoder.taken()) == ["quite new", "x"]
    documents[7:9] = [Document("d7", "", "other"), Document("d8", "Title", "word8")]
    rebuilt = await catalog.create("people", corpus_of(tmp_path / "c", documents))
    index = await opened(rebuilt, encoder)
    assert sorted(encoder.taken()) == ["Title\nword8", "other"]
    same(await index.search("word7 other", 99), by_hand(documents, "word7 other"))
    await opened(await catalog.open("people"), encoder)
    assert encoder.taken() == []


async def test_rows_of_documents_that_are_gone_are_dropped_when_they_are_most(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GONE_AT_LEAST", 10)
    documents = generated(40)
    encoder = CountingEncoder()
    index = await opened(
        await catalog.create("people", corpus_of(tmp_path / "c", documents)), encoder
    )
    encoder.taken()
    vectors = tmp_path / "data/indexes/people/dense"
    for _ in range(6):
        await index.upsert(documents)
        (generation,) = [path.parent for path in vectors.glob("*/*/numbers")]
        assert (generation / "numbers").stat().st_size / 8 <= 3 * 40
        same(await index.search("w1", 99), by_hand(documents, "w1"))
    assert encoder.taken() == []
    assert generation.name.endswith(".3") or generation.name.endswith(".2")


async def test_two_encoders_have_vectors_of_their_own(catalog: Catalog, tmp_path: Path) -> None:
    documents = generated(60)
    lexical = await catalog.create("people", corpus_of(tmp_path / "c", documents))
    first = await opened(lexical)
    second = await opened(lexical, CountingEncoder("salted", dimensions=5, salt="s"))
    same(await first.search("w1", 99), by_hand(documents, "w1"))
    assert (await second.search("w1", 99)).scores != (await first.search("w1", 99)).scores
    with pytest.raises(InputError, match=r"'words' in .* another model of that name"):
        await opened(lexical, CountingEncoder(salt="other"))
    with pytest.raises(InputError, match=r"of 8 dimensions; give .* or delete that folder"):
        await opened(lexical, CountingEncoder(dimensions=9))
    same(await first.search("w1", 99), by_hand(documents, "w1"))


async def test_an_index_that_was_built_anew_meanwhile_can_still_be_searched(
    catalog: Catalog, tmp_path: Path
) -> None:
    """As the lexical index can; but it is not one to open vectors over any more."""
    documents = generated(40)
    old = await catalog.create("people", corpus_of(tmp_path / "c", documents))
    index = await opened(old)
    new = await catalog.create("people", corpus_of(tmp_path / "c", generated(20, seed=2)))
    await opened(new)
    same(await index.search("w1", 99), by_hand(documents, "w1"))
    with pytest.raises(IndexVersionError, match="built anew or deleted meanwhile; open it again"):
        await opened(old, CountingEncoder("another"))
    await catalog.delete("people")
    assert not (tmp_path / "data/indexes/people").exists()
    same(await index.search("w1", 99), by_hand(documents, "w1"))
    assert not (tmp_path / "data/indexes/people").exists()


async def test_an_empty_index_has_no_results(catalog: Catalog, tmp_path: Path) -> None:
    index = await opened(await catalog.create("people", corpus_of(tmp_path / "c", generated(2))))
    await index.delete(["d0", "d1"])
    assert await index.search("w1", 9) == Ranking([], [])
    assert await index.rescore("w1", ["d1"]) == Ranking([], [])
    again = await opened(await catalog.open("people"))
    assert await again.search("w1", 9) == Ranking([], [])


# --- what goes wrong --------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["manifest", "numbers", "vectors", "order", "strange"])
async def test_damaged_files_are_made_again(catalog: Catalog, tmp_path: Path, damage: str) -> None:
    documents = generated(60)
    await opened(await catalog.create("people", corpus_of(tmp_path / "c", documents)))
    (folder,) = [path.parent for path in tmp_path.glob("data/indexes/people/dense/*/*/numbers")]
    match damage:
        case "manifest":
            (folder / "manifest.json").write_text("{")
        case "numbers" | "vectors":
            data = (folder / damage).read_bytes()
            (folder / damage).write_bytes(data[: len(data) // 2 + 3])
        case "order":
            numbers = np.fromfile(folder / "numbers", dtype="<i8")[::-1]
            (folder / "numbers").write_bytes(numbers.tobytes())
        case _:
            shutil.rmtree(folder)
            folder.write_text("no folder")
            (folder.parent / "1.x").mkdir()
    index = await opened(await catalog.open("people"))
    same(await index.search("w1 w2", 99), by_hand(documents, "w1 w2"))


async def test_vectors_that_cannot_be_written_are_said_to_be(
    catalog: Catalog, tmp_path: Path
) -> None:
    index = await catalog.create("people", corpus_of(tmp_path / "c", generated(5)))
    (tmp_path / "data/indexes/people/dense").write_text("in the way")
    with pytest.raises(IndexUnavailableError, match=r"cannot be kept in .*or take the retriever"):
        await opened(index)


class Failing(CountingEncoder):
    """Fails at the third batch of documents."""

    batches = 0

    async def encode_documents(self, texts: Any) -> Any:
        self.batches += 1
        if self.batches == 3:
            raise ModelError("unavailable", "no more")
        return await super().encode_documents(texts)


async def test_what_was_encoded_before_a_failure_is_kept(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DOCUMENTS_AT_ONCE", 10)
    documents = [Document(f"d{n}", "", f"word{n}") for n in range(30)]
    index = await catalog.create("people", corpus_of(tmp_path / "c", documents))
    with pytest.raises(ModelError, match="no more"):
        await opened(index, Failing())
    encoder, seen = CountingEncoder(), []
    dense = await open_retriever(index, encoder, seen.append)
    assert encoder.taken() == [f"word{n}" for n in range(10, 30)]
    assert seen == [10, 20]
    same(await dense.search("word3", 99), by_hand(documents, "word3"))


async def test_an_opening_that_nobody_waits_for_any_longer_lets_go(
    catalog: Catalog, tmp_path: Path
) -> None:
    index = await catalog.create("people", corpus_of(tmp_path / "c", generated(30)))
    reached = asyncio.Event()

    class Endless(CountingEncoder):
        async def encode_documents(self, texts: Any) -> Any:
            if len(texts) > 1:
                reached.set()
                await asyncio.Event().wait()
            return await super().encode_documents(texts)

    opening = asyncio.create_task(opened(index, Endless()))
    await reached.wait()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    same(await (await opened(index)).search("w1", 99), by_hand(generated(30), "w1"))


# --- several at once --------------------------------------------------------------------------

OPEN = textwrap.dedent(
    """
    import asyncio, pathlib, sys
    from fairqr.retrieval.catalog import Catalog
    from fairqr.retrieval.vectors import open_retriever, tantivy_vectors
    from tests.unit.retrieval.vector_encoders import CountingEncoder

    tantivy_vectors.DOCUMENTS_AT_ONCE = 5
    wait_at = int(sys.argv[2])

    def progress(count):
        if count == wait_at:
            print("reached", flush=True)
            sys.stdin.readline()

    async def work():
        index = await Catalog(pathlib.Path(sys.argv[1])).open("people")
        encoder = CountingEncoder()
        dense = await open_retriever(index, encoder, progress)
        print(len(encoder.taken()), *(await dense.search("word1 word2", 9)).ids, flush=True)

    print("started", flush=True)
    asyncio.run(work())
    """
)


@pytest.fixture
def opener(tmp_path: Path) -> Iterator[Any]:
    """Start processes that open the retriever, and wait for a line after so many documents."""
    started: list[subprocess.Popen[str]] = []

    def start(wait_at: int = -1) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", OPEN, str(tmp_path / "data"), str(wait_at)]
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
    catalog: Catalog, tmp_path: Path, opener: Any
) -> None:
    documents = [Document(f"d{n}", "", f"word{n}") for n in range(40)]
    index = await catalog.create("people", corpus_of(tmp_path / "c", documents))
    process = opener(wait_at=20)
    assert process.stdout.readline() == "reached\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    encoder = CountingEncoder()
    dense = await opened(index, encoder)
    assert encoder.taken() == [f"word{n}" for n in range(20, 40)]
    same(await dense.search("word3 word30", 99), by_hand(documents, "word3 word30"))


async def test_of_two_processes_at_once_one_encodes_and_the_other_waits(
    catalog: Catalog, tmp_path: Path, opener: Any
) -> None:
    documents = [Document(f"d{n}", "", f"word{n}") for n in range(40)]
    await catalog.create("people", corpus_of(tmp_path / "c", documents))
    first = opener(wait_at=10)
    assert first.stdout.readline() == "reached\n"
    second, third = opener(), opener()
    first.stdin.write("go on\n")
    first.stdin.flush()
    said = [process.stdout.readline().split() for process in (first, second, third)]
    assert [int(line[0]) for line in said] == [40, 0, 0]
    expected = by_hand(documents, "word1 word2").top(9).ids
    assert [line[1:] for line in said] == [expected] * 3


async def test_many_search_while_documents_are_written(catalog: Catalog, tmp_path: Path) -> None:
    """They see each write as a whole, whoever made it, and never a document that is gone."""
    documents = generated(100)
    index = await opened(await catalog.create("people", corpus_of(tmp_path / "c", documents)))
    other = await catalog.open("people")
    stop = False

    async def write() -> None:
        nonlocal stop
        for number in range(5):
            await other.upsert(Document(f"x{i}", "", f"extra{number}") for i in range(20))
        stop = True

    async def read() -> None:
        while not stop:
            found = await index.search("extra1", 500)
            assert len(set(found.ids)) == len(found) in (90, 110)

    await asyncio.gather(write(), read(), read(), read())
    assert set((await index.search("extra4", 20)).ids) == {f"x{i}" for i in range(20)}
    assert (await index.search("extra4", 20)).scores == pytest.approx([1] * 20)


def test_one_retriever_serves_several_event_loops(tmp_path: Path) -> None:
    documents = generated(50)
    corpus = corpus_of(tmp_path / "c", documents)
    index = asyncio.run(Catalog(tmp_path / "data").create("people", corpus))
    dense = asyncio.run(opened(index))
    for _ in range(2):
        same(asyncio.run(dense.search("w1", 99)), by_hand(documents, "w1"))
    asyncio.run(index.upsert([Document("new", "", "w1")]))
    assert "new" in asyncio.run(dense.search("w1", 99)).ids


async def test_what_is_up_to_date_is_opened_without_writing_or_waiting(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opener: Any
) -> None:
    """Also where the folder may not be written to, or another process holds the lock."""
    documents = [Document(f"d{n}", "", f"word{n}") for n in range(40)]
    lexical = await catalog.create("people", corpus_of(tmp_path / "c", documents))
    await opened(lexical)

    def refused(*_: Any) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module, "_locked", refused)
    index = await opened(await catalog.open("people"))
    same(await index.search("word3", 99), by_hand(documents, "word3"))
    await lexical.upsert([Document("new", "", "word3")])
    with pytest.raises(IndexUnavailableError, match="Permission denied"):
        await index.search("word3", 99)
