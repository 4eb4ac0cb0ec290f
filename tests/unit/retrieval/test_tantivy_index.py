"""The embedded index: its protocol, ties, updates, and what a killed build leaves."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from fairqr.errors import (
    BuildInProgressError,
    CorpusError,
    IndexNotFoundError,
    IndexVersionError,
    InputError,
)
from fairqr.retrieval.catalog import Catalog, Choice
from fairqr.retrieval.corpus import Corpus, find_corpus
from fairqr.retrieval.documents import Document
from fairqr.retrieval.index import Index
from fairqr.retrieval.tantivy_index import TantivyIndex

SCHEMA = """
attributes:
  gender: {field: gender, groups: [female, male]}
  place: {field: place, groups: [here, there], unknown: group}
"""
Make = Callable[..., Corpus]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Write a corpus of these documents."""

    def write(documents: list[dict[str, object]], name: str = "people.jsonl") -> Corpus:
        (tmp_path / "schema.yaml").write_text(SCHEMA)
        path = tmp_path / name
        path.write_text("".join(json.dumps(document) + "\n" for document in documents))
        return find_corpus(path)

    return write


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(tmp_path / "data")


def generated(n: int, seed: int = 1) -> list[dict[str, object]]:
    """Short documents over few words, so that many scores tie."""
    draw = random.Random(seed)
    words = [f"w{i}" for i in range(30)]
    return [
        {
            "id": f"d{i}",
            "text": " ".join(draw.choices(words, k=draw.randint(2, 5))),
            "gender": draw.choice(["female", "male", None]),
            "place": draw.choice(["here", {"here": 1, "there": 3}, None]),
        }
        for i in range(n)
    ]


async def test_a_ranking_is_cut_where_scores_tie_by_id(catalog: Catalog, make: Make) -> None:
    """Whatever n is, the top n is the beginning of the whole ranking, sorted by score and id."""
    index = await catalog.create("ties", make(generated(500)))
    for query in ("w1", "w2 w3", "w4 w5 w6 w7"):
        whole = await index.search(query, 500)
        assert list(zip(whole.ids, whole.scores, strict=True)) == sorted(
            zip(whole.ids, whole.scores, strict=True), key=lambda pair: (-pair[1], pair[0])
        )
        for n in (1, 3, 10, 50, 499):
            assert await index.search(query, n) == whole.top(n)


async def test_the_same_holds_over_several_segments(catalog: Catalog, make: Make) -> None:
    index = await catalog.create("segments", make(generated(300)))
    corpus = make(generated(400, seed=2)[200:], "more.jsonl")
    await index.upsert(corpus.documents())
    assert (await index.info()).documents == 400
    whole = await index.search("w1 w2", 400)
    assert whole.ids == sorted(
        whole.ids, key=lambda id_: (-whole.scores[whole.ids.index(id_)], id_)
    )
    for n in (1, 7, 60):
        assert await index.search("w1 w2", n) == whole.top(n)


async def test_bm25_agrees_with_the_formula(catalog: Catalog, make: Make) -> None:
    """Lucene's BM25, k1 1.2 and b .75, over documents whose lengths are stored exactly."""
    documents = generated(200)
    index = await catalog.create("bm25", make(documents))
    tokens = {str(d["id"]): str(d["text"]).split() for d in documents}
    average = sum(len(t) for t in tokens.values()) / len(tokens)
    found = await index.search("w1 w2", 200)
    by_hand: dict[str, float] = {}
    for term in ("w1", "w2"):
        df = sum(term in t for t in tokens.values())
        idf = np.log(1 + (len(tokens) - df + 0.5) / (df + 0.5))
        for id_, words in tokens.items():
            tf = words.count(term)
            norm = 1.2 * (1 - 0.75 + 0.75 * len(words) / average)
            if tf:
                by_hand[id_] = by_hand.get(id_, 0) + idf * tf * 2.2 / (tf + norm)
    assert set(found.ids) == set(by_hand)
    assert found.scores == pytest.approx([by_hand[id_] for id_ in found.ids], rel=1e-4)


async def test_rescoring_gives_the_scores_of_a_search(catalog: Catalog, make: Make) -> None:
    index = await catalog.create("rescore", make(generated(200)))
    whole = await index.search("w1 w2", 200)
    some = random.Random(3).sample(whole.ids, 20)
    rescored = await index.rescore("w1 w2", [*some, "nobody"])
    assert rescored.ids == [id_ for id_ in whole.ids if id_ in some]
    assert rescored.scores == [whole.scores[whole.ids.index(id_)] for id_ in rescored.ids]
    unmatched = sorted({f"d{i}" for i in range(200)} - set(whole.ids))[:2]
    with_others = await index.rescore("w1 w2", [*unmatched, some[0]])
    assert with_others.ids == [some[0], *unmatched]
    assert with_others.scores[1:] == [0, 0]


async def test_texts_memberships_and_shares(catalog: Catalog, make: Make) -> None:
    corpus = make(
        [
            {"id": "b", "title": "B", "text": "word", "gender": "female", "place": "here"},
            {"id": "a", "text": "word", "gender": ["female", "male"], "extra": {"x": [1, "ü"]}},
            {"id": "c", "text": "word", "place": {"here": 1, "there": 3}},
        ]
    )
    index = await catalog.create("small", corpus)
    assert await index.documents(["c", "nobody", "b"]) == [
        Document("c", "", "word", {"place": {"here": 1, "there": 3}}),
        Document("b", "B", "word", {"gender": "female", "place": "here"}),
    ]
    assert (await index.documents(["a"]))[0].fields["extra"] == {"x": [1, "ü"]}
    members = await index.memberships("gender", ["a", "nobody", "c", "b"])
    assert members.tolist() == [[0.5, 0.5], [0, 0], [0, 0], [1, 0]]
    places = await index.memberships("place", ["a", "c"])
    assert places.tolist() == [[0, 0, 1], [0.25, 0.75, 0]]
    assert await index.corpus_shares("gender") == pytest.approx([0.5, 1 / 6])
    assert await index.corpus_shares("place") == pytest.approx([1.25 / 3, 0.25, 1 / 3])
    assert await index.memberships("gender", []) is not None
    assert await index.documents([]) == []


async def test_document_frequencies(catalog: Catalog, make: Make) -> None:
    texts = ["running women", "a woman runs", "the run of man", "women's day"]
    index = await catalog.create(
        "df", make([{"id": str(i), "text": text} for i, text in enumerate(texts)])
    )
    words = ["run", "women", "women run", "the", "", "zebra", "run run"]
    assert await index.document_frequencies(words) == [3, 2, 1, 0, 0, 0, 3]


async def test_documents_are_replaced_added_and_deleted(catalog: Catalog, make: Make) -> None:
    index = await catalog.create(
        "live", make([{"id": "a", "text": "one"}, {"id": "b", "text": "one"}])
    )
    new = make(
        [{"id": "b", "text": "two", "gender": "male"}, {"id": "c", "text": "one"}], "n.jsonl"
    )
    assert await index.upsert(new.documents()) == 2
    assert (await index.search("one", 9)).ids == ["a", "c"]
    assert (await index.search("two", 9)).ids == ["b"]
    assert (await index.memberships("gender", ["b"])).tolist() == [[0, 1]]
    assert await index.delete(["a", "nobody"]) == 1
    assert (await index.info()).documents == 2
    # Another process that had it open sees the same.
    other = await catalog.open("live")
    assert (await other.search("one", 9)).ids == ["c"]


async def test_an_update_that_fails_changes_nothing(catalog: Catalog, make: Make) -> None:
    index = await catalog.create("safe", make([{"id": "a", "text": "one"}]))
    broken = make([{"id": "b", "text": "one"}, {"id": "c"}], "broken.jsonl")
    with pytest.raises(CorpusError, match="line 2"):
        await index.upsert(broken.documents())
    assert (await index.info()).documents == 1
    assert (await index.search("one", 9)).ids == ["a"]


async def test_a_corpus_that_cannot_be_indexed_leaves_the_old_index(
    catalog: Catalog, make: Make
) -> None:
    await catalog.create("people", make([{"id": "a", "text": "one"}]))
    for bad, named in (
        ([], "empty"),
        (
            [{"id": "x", "text": "y"}, {"id": "z", "text": "y"}, {"id": "x", "text": "y"}],
            "'x'.*1 and 3",
        ),
        ([{"id": "x", "text": "y", "gender": "boy"}], "line 1.*'boy'"),
    ):
        with pytest.raises(CorpusError, match=named):
            await catalog.create("people", make(bad, "bad.jsonl"))
        with pytest.raises(CorpusError, match=named):
            await catalog.create("never", make(bad, "bad.jsonl"))
    assert (await (await catalog.open("people")).search("one", 9)).ids == ["a"]
    assert catalog.names() == [("people", "tantivy")]


async def test_a_path_is_indexed_once_and_again_when_it_changes(
    catalog: Catalog, make: Make
) -> None:
    corpus = make([{"id": "a", "text": "one"}])
    started: list[str] = []

    def progress(name: str) -> Callable[[int], None]:
        started.append(name)
        return lambda count: None

    for _ in range(2):
        index = await catalog.resolve(str(corpus.path), progress=progress)
    assert len(started) == 1
    make([{"id": "a", "text": "one"}, {"id": "b", "text": "one"}])
    index = await catalog.resolve(str(corpus.path), progress=progress)
    assert len(started) == 2
    assert (await index.info()).documents == 2


async def test_an_index_of_another_version_is_refused_and_can_be_deleted(
    catalog: Catalog, make: Make
) -> None:
    index = await catalog.create("old", make([{"id": "a", "text": "one"}]))
    assert isinstance(index, TantivyIndex)
    manifest = index.folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 99'))
    with pytest.raises(IndexVersionError, match=r"format 99.*fairqr index delete"):
        await catalog.open("old")
    for damage in ("{", "[]", ""):
        manifest.write_text(damage)
        with pytest.raises(IndexVersionError, match="damaged"):
            await catalog.open("old")
    await catalog.delete("old")
    with pytest.raises(IndexNotFoundError, match="notables"):
        await catalog.open("old")


@pytest.mark.parametrize("name", ["", "..", "A", "a/b", "-x", "a b", "x" * 101, "ü"])
async def test_what_is_no_name_is_refused(catalog: Catalog, make: Make, name: str) -> None:
    with pytest.raises(InputError, match="name of an index"):
        await catalog.create(name, make([{"id": "a", "text": "one"}]))


BUILD = textwrap.dedent(
    """
    import asyncio, pathlib, sys
    from fairqr.retrieval.catalog import Catalog
    from fairqr.retrieval.corpus import Corpus, find_corpus
    from fairqr.retrieval.documents import Document

    class Endless(Corpus):
        def documents(self):
            number = 0
            while True:
                yield Document(f"n{number}", "", "new text", {})
                number += 1

    found = find_corpus(pathlib.Path(sys.argv[2]))
    progress = lambda count: print(count, flush=True)
    asyncio.run(
        Catalog(pathlib.Path(sys.argv[1])).create(
            "people", Endless(found.path, found.schema), progress=progress
        )
    )
    """
)


@pytest.mark.parametrize("had_one", [True, False])
async def test_a_build_that_is_killed_leaves_the_old_index_or_none(
    catalog: Catalog, make: Make, tmp_path: Path, had_one: bool
) -> None:
    corpus = make([{"id": "a", "text": "one"}])
    if had_one:
        await catalog.create("people", corpus)
    build = subprocess.Popen(
        [sys.executable, "-c", BUILD, str(tmp_path / "data"), str(corpus.path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert build.stdout is not None
    build.stdout.readline()  # it is writing
    with pytest.raises(BuildInProgressError, match="wait"):
        await catalog.create("people", corpus)
    build.send_signal(signal.SIGKILL)
    build.wait()
    build.stdout.close()
    if had_one:
        assert (await (await catalog.open("people")).search("one", 9)).ids == ["a"]
    else:
        with pytest.raises(IndexNotFoundError):
            await catalog.open("people")
    index = await catalog.create("people", corpus)
    assert (await index.search("one", 9)).ids == ["a"]
    versions = [path.name for path in (tmp_path / "data/indexes/people").glob("v*")]
    assert len(versions) == 1


async def test_many_searches_at_once_while_documents_are_written(
    catalog: Catalog, make: Make
) -> None:
    """Readers see the index before or after a write, never an error or half of it."""
    index = await catalog.create("busy", make(generated(300)))
    stop = asyncio.Event()

    async def write() -> None:
        for number in range(5):
            await index.upsert(
                Document(f"x{number}-{i}", "", "w1 extra", {"gender": "male"}) for i in range(50)
            )
        stop.set()

    async def read(sizes: list[int]) -> None:
        while not stop.is_set():
            found = await index.search("extra", 1000)
            await index.memberships("gender", found.ids)
            sizes.append(len(found))

    sizes: list[int] = []
    await asyncio.gather(write(), read(sizes), read(sizes))
    assert set(sizes) <= {0, 50, 100, 150, 200, 250}
    assert len(await index.search("extra", 1000)) == 250


async def test_a_named_backend_is_the_one_that_is_opened(catalog: Catalog, make: Make) -> None:
    await catalog.create("here", make([{"id": "a", "text": "one"}]))
    index: Index = await catalog.open("here", Choice("tantivy"))
    assert (await index.info()).backend == "tantivy"
    assert [info.name for info in await catalog.infos() if not isinstance(info, tuple)] == ["here"]


async def test_many_threads_may_be_the_first_to_read(catalog: Catalog, make: Make) -> None:
    """The ids are mapped into memory by whoever reads first; nobody sees half of that."""
    await catalog.create("cold", make(generated(300)))
    for _ in range(20):
        index = await catalog.open("cold")
        rankings = await asyncio.gather(*(index.search(f"w{n}", 300) for n in range(6)))
        assert all(id_.startswith("d") for ranking in rankings for id_ in ranking.ids)
        assert all(len(set(ranking.ids)) == len(ranking) for ranking in rankings)


async def test_a_build_that_nobody_waits_for_any_longer_stops(
    catalog: Catalog, make: Make, tmp_path: Path
) -> None:
    """Cancelling leaves everything as it was, and the index free to be built again."""
    found = make([{"id": "a", "text": "one"}])
    reached = asyncio.Event()
    loop = asyncio.get_running_loop()

    class Endless(Corpus):
        def documents(self) -> Iterator[Document]:
            for number in itertools.count():
                if number == 10:
                    loop.call_soon_threadsafe(reached.set)
                yield Document(f"n{number}", "", "text")

    building = asyncio.create_task(catalog.create("endless", Endless(found.path, found.schema)))
    await reached.wait()
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await building
    async with asyncio.timeout(30):
        while True:
            try:
                index = await catalog.create("endless", found)
                break
            except BuildInProgressError:
                await asyncio.sleep(0.01)
    assert (await index.info()).documents == 1
