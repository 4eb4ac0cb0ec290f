"""Names and places of indexes: what is opened, built, waited for and refused."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from fairqr.errors import (
    BuildInProgressError,
    IndexNotFoundError,
    IndexVersionError,
    InputError,
)
from fairqr.retrieval import elasticsearch_index as es
from fairqr.retrieval.catalog import Catalog, Choice
from fairqr.retrieval.corpus import BUILT_IN, Corpus, find_corpus
from fairqr.retrieval.documents import Document
from fairqr.retrieval.schema import Attribute, Schema
from fairqr.retrieval.tantivy_index import TantivyIndex
from fairqr.retrieval.tantivy_layout import FORMAT, Manifest


def write(folder: Path, *texts: str, name: str = "documents.jsonl") -> Corpus:
    """Write a corpus of these texts, whose ids are 0, 1 and so on."""
    folder.mkdir(exist_ok=True)
    (folder / "schema.yaml").write_text("attributes: {gender: {field: g, groups: [f, m]}}")
    (folder / name).write_text(
        "".join(json.dumps({"id": n, "text": t, "g": "f"}) + "\n" for n, t in enumerate(texts))
    )
    return find_corpus(folder / name)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(tmp_path / "data")


async def test_an_index_that_is_built_anew_before_its_first_read_can_be_read(
    catalog: Catalog, tmp_path: Path
) -> None:
    await catalog.create("p", write(tmp_path / "c", "old one", "old two"))
    opened = await catalog.open("p")
    assert isinstance(opened, TantivyIndex)
    await catalog.create("p", write(tmp_path / "c", "new"))
    assert not opened.folder.exists()
    assert (await opened.search("old", 9)).ids == ["0", "1"]
    assert (await opened.search("new", 9)).ids == []
    assert [document.text for document in await opened.documents(["1"])] == ["old two"]
    assert (await opened.memberships("gender", ["0"])).tolist() == [[1, 0]]
    assert (await opened.corpus_shares("gender")).tolist() == [1, 0]
    with pytest.raises(IndexVersionError, match="built anew"):
        await opened.upsert([Document("9", "", "late")])
    with pytest.raises(IndexVersionError, match="built anew"):
        await opened.delete(["0"])
    assert (await (await catalog.open("p")).search("new", 9)).ids == ["0"]


async def test_an_index_can_be_opened_at_any_moment_of_a_build(
    catalog: Catalog, tmp_path: Path
) -> None:
    corpus = write(tmp_path / "c", "text")
    await catalog.create("p", corpus)
    building = asyncio.create_task(catalog.create("p", corpus))
    while not building.done():
        assert (await (await catalog.open("p")).search("text", 9)).ids == ["0"]
    await building


SLOW = textwrap.dedent(
    """
    import asyncio, pathlib, sys, time
    from fairqr.retrieval import catalog
    from fairqr.retrieval.corpus import Corpus, find_corpus

    class Slow(Corpus):
        def documents(self):
            print("building", flush=True)
            time.sleep(float(sys.argv[3]))
            yield from super().documents()

    def slowly(path, schema=None):
        found = find_corpus(pathlib.Path(path))
        return Slow(found.path, found.schema)

    catalog._named_corpus = slowly
    asyncio.run(catalog.Catalog(pathlib.Path(sys.argv[1])).resolve(sys.argv[2]))
    """
)


def building(catalog_folder: Path, corpus: Corpus, seconds: float) -> subprocess.Popen[str]:
    """Start a process that indexes a corpus at its first use, slowly, and wait until it does."""
    arguments = [str(catalog_folder), str(corpus.path), str(seconds)]
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, *arguments], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "building\n"
    process.stdout.close()
    return process


async def test_who_first_uses_a_corpus_at_the_same_time_waits_and_shares_the_index(
    catalog: Catalog, tmp_path: Path
) -> None:
    corpus = write(tmp_path / "c", "text")
    process = building(tmp_path / "data", corpus, 1)
    try:
        name = next((tmp_path / "data/indexes").glob("documents-*")).name
        with pytest.raises(BuildInProgressError):
            await catalog.create(name, corpus)
        indexes = await asyncio.gather(*(catalog.resolve(str(corpus.path)) for _ in range(3)))
    finally:
        process.kill()
        process.wait()
    assert process.returncode in (0, -9)
    for index in indexes:
        assert isinstance(index, TantivyIndex)
        assert index.folder.name == "v1"
        assert (await index.search("text", 9)).ids == ["0"]


async def test_two_tasks_may_first_use_a_corpus_at_once(catalog: Catalog, tmp_path: Path) -> None:
    path = str(write(tmp_path / "c", *["text"] * 2000).path)
    first, second = await asyncio.gather(catalog.resolve(path), catalog.resolve(path))
    assert (await first.info()) == (await second.info())


async def test_waiting_for_the_build_of_another_can_be_cancelled_or_outlive_it(
    catalog: Catalog, tmp_path: Path
) -> None:
    corpus = write(tmp_path / "c", "text")
    process = building(tmp_path / "data", corpus, 60)
    try:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await catalog.resolve(str(corpus.path))
        waiting = asyncio.create_task(catalog.resolve(str(corpus.path)))
        await asyncio.sleep(0.2)
        assert not waiting.done()
    finally:
        process.kill()
        process.wait()
    async with asyncio.timeout(10):
        assert (await (await waiting).search("text", 9)).ids == ["0"]


async def test_the_name_of_a_built_in_corpus_is_for_that_corpus_alone(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BUILT_IN, "notables", write(tmp_path / "own", "text").path)
    with pytest.raises(InputError, match=r"'notables'.*choose another"):
        await catalog.create("notables", write(tmp_path / "people", "text"))
    assert catalog.names() == []
    assert (await (await catalog.resolve("notables")).search("text", 9)).ids == ["0"]
    index = await catalog.create("notables", find_corpus(BUILT_IN["notables"]))
    assert index.name == "notables"


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("patterns.json", None),
        ("patterns.json", "{"),
        ("patterns.json", "[]"),
        ("patterns.json", '{"gender": 3}'),
        ("patterns.json", '{"gender": [[1]]}'),
        ("patterns.json", '{"nobody": [[1, 0]]}'),
        ("patterns.json", "{}"),
        ("ids.offsets", None),
        ("ids.offsets", ""),
        ("ids.offsets", "half"),
        ("ids.offsets", "\1" + "\0" * 7),
        ("ids.utf8", None),
        ("ids.utf8", ""),
        ("ids.utf8", "0"),
        ("ids.utf8", b"\xff\xff"),
        ("text", None),
    ],
)
async def test_a_damaged_index_is_named_with_what_to_do(
    catalog: Catalog, tmp_path: Path, file: str, content: str | bytes | None
) -> None:
    made = await catalog.create("p", write(tmp_path / "c", "text", "text"))
    assert isinstance(made, TantivyIndex)
    path = made.folder / file
    if path.is_dir():
        shutil.rmtree(path)
    elif content is None:
        path.unlink()
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    async def use() -> None:
        index = await catalog.open("p")
        await index.search("text", 9)
        await index.memberships("gender", ["0"])

    with pytest.raises(IndexVersionError, match=r"'p' .* is damaged .*fairqr index delete"):
        await use()
    await catalog.delete("p")


async def test_half_an_entry_of_an_interrupted_write_is_no_damage(
    catalog: Catalog, tmp_path: Path
) -> None:
    made = await catalog.create("p", write(tmp_path / "c", "text"))
    assert isinstance(made, TantivyIndex)
    with (made.folder / "ids.offsets").open("ab") as stream:
        stream.write(b"abc")
    index = await catalog.open("p")
    await index.upsert([Document("x", "", "text")])
    assert (await index.search("text", 9)).ids == ["0", "x"]


async def test_shares_over_more_memberships_than_one_aggregation_takes(tmp_path: Path) -> None:
    """The groups' shares are those of all documents, however many distinct labels there are."""
    gender = Attribute(name="gender", field="g", groups=("f", "m"))
    schema = Schema(attributes={"gender": gender})
    labels = [{"f": n, "m": 1} for n in range(66_001)] + [{"f": 65_999, "m": 1}] * 99
    documents = (Document(f"{n}", "", "x", {"g": label}) for n, label in enumerate(labels))
    manifest = Manifest(
        format=FORMAT, name="many", source="", source_sha256="", corpus_schema=schema
    )
    TantivyIndex.build(tmp_path / "many", manifest, documents)
    index = TantivyIndex(tmp_path / "many")
    expected = np.mean([gender.membership(label) for label in labels], axis=0)
    assert await index.corpus_shares("gender") == pytest.approx(expected, rel=1e-12)
    await index.delete([str(n) for n in range(66_000)])
    left = np.mean([gender.membership(label) for label in labels[66_000:]], axis=0)
    assert await index.corpus_shares("gender") == pytest.approx(left, rel=1e-12)
    await index.delete([str(n) for n in range(66_000, len(labels))])
    assert (await index.corpus_shares("gender")).tolist() == [0, 0]


@pytest.mark.parametrize("name", ["people", "People"])
async def test_a_folder_in_the_current_one_is_a_path_unless_an_index_has_its_name(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    with pytest.raises((IndexNotFoundError, InputError)):
        await catalog.resolve(name)
    write(tmp_path / name, "in the folder")
    assert (await (await catalog.resolve(name)).search("folder", 9)).ids == ["0"]
    if name == "people":
        await catalog.create("people", write(tmp_path / "other", "in the index"))
        index = await catalog.resolve("people")
        assert (await index.search("index", 9)).ids == ["0"]


async def test_an_index_that_is_gone_from_its_server_is_off_the_list_too(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(connection: object, name: str) -> None:
        raise IndexNotFoundError("not on the server")

    monkeypatch.setattr(es, "delete_elasticsearch", gone)
    monkeypatch.setenv("FAIRQR_ELASTICSEARCH_URL", "http://localhost:9")
    note = tmp_path / "data/elasticsearch/p.json"
    note.parent.mkdir(parents=True)
    note.write_text(json.dumps({"url": "http://localhost:9"}))
    with pytest.raises(IndexNotFoundError, match="not on the server"):
        await catalog.delete("p", Choice("elasticsearch", "http://localhost:8"))
    assert note.exists()
    with pytest.raises(IndexNotFoundError, match=r"'p' was no longer on .*:9"):
        await catalog.delete("p")
    assert catalog.names() == []
    with pytest.raises(IndexNotFoundError, match="There is no index 'p'"):
        await catalog.delete("p")
