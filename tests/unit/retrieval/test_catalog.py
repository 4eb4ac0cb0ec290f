"""What can be searched by name: what is opened, built, waited for, attached and refused."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairqr.base.errors import (
    BuildInProgressError,
    CorpusError,
    IndexNotFoundError,
    IndexVersionError,
    InputError,
    SourceError,
)
from fairqr.retrieval.encoders.opening import Retriever
from fairqr.retrieval.engines.engine import EngineInfo, SearchEngine
from fairqr.retrieval.engines.tantivy.engine import TantivyEngine
from fairqr.retrieval.sources.catalog import Catalog
from fairqr.retrieval.sources.corpus import BUILT_IN, Corpus, find_corpus
from fairqr.retrieval.sources.documents import Document
from tests.patience import PATIENCE
from tests.unit.engines import hits_of
from tests.unit.retrieval.vector_encoders import CountingEncoder

SCHEMA = "attributes: {gender: {field: g, groups: [f, m]}}"


def write(folder: Path, *texts: str, schema: str = SCHEMA, name: str = "documents.jsonl") -> Corpus:
    """Write a corpus of these texts, whose ids are 0, 1 and so on."""
    folder.mkdir(exist_ok=True)
    (folder / "schema.yaml").write_text(schema)
    (folder / name).write_text(
        "".join(json.dumps({"id": n, "text": t, "g": "f"}) + "\n" for n, t in enumerate(texts))
    )
    return find_corpus(folder / name)


async def ids(engine: SearchEngine, text: str) -> list[str]:
    return (await hits_of(engine, text, 9)).ids


def folder_of(engine: SearchEngine) -> Path:
    assert isinstance(engine, TantivyEngine)
    return engine.folder


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(tmp_path / "data")


@pytest.mark.promise("labels")
async def test_a_corpus_that_cannot_be_indexed_leaves_the_old_index(
    catalog: Catalog, tmp_path: Path
) -> None:
    """A build of an index that fails leaves the old index."""
    await catalog.create("people", write(tmp_path / "c", "one"))
    path, line = tmp_path / "c" / "bad.jsonl", b'{"id": "x", "text": "y"}\n'
    for named, content in (
        ("is empty", b""),
        ("Two documents .*same id", line + line.replace(b"x", b"z", 1) + line),
        ("line 2: it is not valid JSON", line + b"{half"),
        ("line 1.*'boy'.*fairqr corpus check", b'{"id": "x", "text": "y", "g": "boy"}'),
        ("is not UTF-8 text; save it as UTF-8", b'{"id": "x", "text": "\xe9"}'),
    ):
        path.write_bytes(content)
        for name in ("people", "never"):
            with pytest.raises(CorpusError, match=named):
                await catalog.create(name, find_corpus(path))
    assert await ids(await catalog.open("people"), "one") == ["0"]
    assert catalog.names() == ["people"]
    assert sorted(path.name for path in (tmp_path / "data/indexes").glob("[!.]*")) == ["people"]


BUILD = """
import asyncio, pathlib, sys
from fairqr.retrieval.sources import catalog
from fairqr.retrieval.sources.corpus import Corpus, find_corpus

class Slow(Corpus):
    def documents(self):
        for document in super().documents():
            yield document
            print("building", flush=True)
            sys.stdin.readline()

def slowly(path, schema=None):
    found = find_corpus(pathlib.Path(path))
    return Slow(found.path, found.schema, found.labels_folder)

catalog.find_corpus = slowly
folder, path, *name = sys.argv[1:]
here = catalog.Catalog(pathlib.Path(folder))
asyncio.run(here.create(*name, slowly(path)) if name else here.resolve(path))
"""


def building(catalog_folder: Path, corpus: Corpus, *name: str) -> subprocess.Popen[str]:
    """Start a process that indexes a corpus, and does not end while its input is open."""
    process = subprocess.Popen(
        [sys.executable, "-c", BUILD, str(catalog_folder), str(corpus.path), *name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "building\n"
    process.stdout.close()
    return process


@pytest.mark.promise("labels")
@pytest.mark.parametrize("had_one", [True, False])
async def test_a_build_that_is_killed_leaves_the_old_index_or_none(
    catalog: Catalog, tmp_path: Path, had_one: bool
) -> None:
    """A build of an index that is killed leaves the old index or none."""
    corpus = write(tmp_path / "c", "one")
    if had_one:
        await catalog.create("people", corpus)
    build = building(tmp_path / "data", corpus, "people")
    for writing in (
        catalog.create("people", corpus),
        *([catalog.remove("people", ["0"]), catalog.delete("people")] if had_one else []),
    ):
        with pytest.raises(BuildInProgressError, match="wait"):
            await writing
    build.kill()
    build.wait()
    if had_one:
        assert await ids(await catalog.open("people"), "one") == ["0"]
    else:
        with pytest.raises(IndexNotFoundError):
            await catalog.open("people")
    assert await ids(await catalog.create("people", corpus), "one") == ["0"]
    assert len([*(tmp_path / "data/indexes/people").glob("v*")]) == 1


async def test_a_build_that_nobody_waits_for_any_longer_stops(
    catalog: Catalog, tmp_path: Path
) -> None:
    """Cancelling leaves everything as it was, and the index free to be built again."""
    found = write(tmp_path / "c", "one")
    reached, loop = asyncio.Event(), asyncio.get_running_loop()

    class Endless(Corpus):
        def documents(self) -> Iterator[Document]:
            for number in itertools.count():
                loop.call_soon_threadsafe(reached.set)
                yield Document(f"n{number}", "", "text")

    endless = Endless(found.path, found.schema, found.labels_folder)
    building = asyncio.create_task(catalog.create("endless", endless))
    await reached.wait()
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await building
    async with asyncio.timeout(PATIENCE):
        while not catalog.names():
            with contextlib.suppress(BuildInProgressError):
                await catalog.create("endless", found)
            await asyncio.sleep(0.01)
    assert await ids(await catalog.open("endless"), "one") == ["0"]


async def test_first_users_at_once_share_one_index(catalog: Catalog, tmp_path: Path) -> None:
    """Waiting can be cancelled, and outlives the build of a process that was killed."""
    corpus = write(tmp_path / "c", "text")
    process = building(tmp_path / "data", corpus)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await catalog.resolve(str(corpus.path))
    waiting = [asyncio.create_task(catalog.resolve(str(corpus.path))) for _ in range(3)]
    await asyncio.sleep(0.2)
    assert not any(task.done() for task in waiting)
    process.kill()
    process.wait()
    async with asyncio.timeout(PATIENCE):
        for engine in await asyncio.gather(*waiting):
            assert (folder_of(engine).name, await ids(engine, "text")) == ("v1", ["0"])


async def test_the_name_of_a_built_in_corpus_is_for_that_corpus_alone(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BUILT_IN, "notables", write(tmp_path / "own", "text").path)
    with pytest.raises(InputError, match=r"'notables'.*choose another"):
        await catalog.create("notables", write(tmp_path / "people", "text"))
    assert await ids(await catalog.resolve("notables"), "text") == ["0"]
    assert (await catalog.create("notables", find_corpus(BUILT_IN["notables"]))).name == "notables"


@pytest.mark.promise("labels")
async def test_a_path_is_indexed_once_and_again_when_it_changes(
    catalog: Catalog, tmp_path: Path
) -> None:
    """A file is indexed at its first search, and again only if it changed."""
    corpus = write(tmp_path / "c", "one")
    said: list[str] = []
    counts: list[int] = []

    def announced(name: str) -> Callable[[int], None]:
        said.append(name)
        return counts.append

    for _ in range(2):
        await catalog.resolve(str(corpus.path), progress=announced)
    assert (len(said), counts) == (1, [1])
    state = corpus.path.stat()
    write(tmp_path / "c", "two")  # in the same tick of the clock, and of the same size
    os.utime(corpus.path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert await ids(await catalog.resolve(str(corpus.path)), "two") == ["0"]
    write(tmp_path / "c", "one", "one")
    engine = await catalog.resolve(str(corpus.path), progress=announced)
    assert said == [engine.name] * 2
    assert await ids(engine, "one") == ["0", "1"]
    (tmp_path / "c" / "schema.yaml").write_text(SCHEMA.replace("gender", "sex"))
    assert list((await catalog.resolve(str(corpus.path))).schema.attributes) == ["sex"]


@pytest.mark.promise("labels")
async def test_an_index_of_another_version_is_rebuilt(catalog: Catalog, tmp_path: Path) -> None:
    """An index of another version is built again if its corpus is known, and is refused in one
    sentence otherwise.

    And refused otherwise, in one sentence.
    """
    corpus = write(tmp_path / "c", "text")
    named = await catalog.create("named", corpus)
    by_path = await catalog.resolve(str(corpus.path))
    for engine in (named, by_path):
        manifest = folder_of(engine) / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"format": 8', '"format": 7'))
    assert await ids(await catalog.resolve(str(corpus.path)), "text") == ["0"]
    with pytest.raises(IndexVersionError, match=r"another version.*fairqr index delete"):
        await catalog.open("named")
    ((name, engine_kind, why),) = [
        info for info in await catalog.infos() if not isinstance(info, EngineInfo)
    ]
    assert (name, engine_kind) == ("named", "tantivy")
    assert "another version" in why
    await catalog.delete("named")
    with pytest.raises(IndexNotFoundError, match="There is no index 'named'"):
        await catalog.open("named")
    assert await ids(await catalog.create("named", corpus), "text") == ["0"]


async def test_a_folder_is_a_path_unless_an_index_has_its_name(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "people").mkdir()
    with pytest.raises(IndexNotFoundError):
        await catalog.resolve("people")
    write(tmp_path / "people", "in the folder")
    assert await ids(await catalog.resolve("people"), "folder") == ["0"]
    await catalog.create("people", write(tmp_path / "other", "in the index"))
    assert await ids(await catalog.resolve("people"), "index") == ["0"]


async def test_what_is_not_there_is_said_in_one_sentence(catalog: Catalog) -> None:
    for corpus, error, says in (
        ("", IndexNotFoundError, "There is no index ''; 'fairqr index create NAME"),
        ("Notable", IndexNotFoundError, "is no index 'Notable'; did you mean 'notables'\\?$"),
        ("./nobody", CorpusError, "There is no corpus at nobody"),
        ("nobody.source.yaml", SourceError, r"The source nobody.source.yaml cannot be read"),
    ):
        with pytest.raises(error, match=says):
            await catalog.resolve(corpus)


async def test_documents_are_added_and_removed_by_name(catalog: Catalog, tmp_path: Path) -> None:
    await catalog.create("p", write(tmp_path / "c", "old", "old"))
    more = tmp_path / "more.jsonl"
    more.write_text('{"id": "1", "text": "new", "g": "m"}\n{"id": "x", "text": "new"}\n')
    counts: list[int] = []
    assert await catalog.upsert("p", more, progress=counts.append) == 2
    assert counts == [2]
    engine = await catalog.open("p")
    hits = await hits_of(engine, "new", 9)
    assert (hits.ids, hits.memberships["gender"].tolist()) == (["1", "x"], [[0, 1], [0, 0]])
    assert await catalog.remove("p", ["0", "nobody"]) == 1
    more.write_text('{"id": "y", "text": "late"}\n{"id": "z"}\n')
    with pytest.raises(CorpusError, match="line 2"):
        await catalog.upsert("p", more)
    assert await ids(engine, "late old") == []
    with pytest.raises(IndexNotFoundError, match="'q'"):
        await catalog.delete("q")


LABELLED = "attributes: {origin: {labels: origins.csv}, gender: {field: g, groups: [f, m]}}"


async def test_labels_that_lie_beside_a_corpus_are_indexed(
    catalog: Catalog, tmp_path: Path
) -> None:
    """They are part of what the index is made of, so a change of them is noticed."""
    corpus = write(tmp_path / "c", "text", "text", "text", schema=LABELLED)
    labels = tmp_path / "c" / "origins.csv"

    async def origins(engine: SearchEngine, text: str) -> Any:
        return (await hits_of(engine, text, 9)).memberships["origin"].tolist()

    labels.write_text("id,group\n0,here\n2,there\nx,there\n")
    engine = await catalog.resolve(str(corpus.path))
    assert await origins(engine, "text") == [[1, 0], [0, 0], [0, 1]]
    assert (await engine.corpus_shares())["origin"] == pytest.approx([1 / 3, 1 / 3])
    (tmp_path / "more.jsonl").write_text('{"id": "x", "text": "more"}\n')
    await catalog.upsert(engine.name, tmp_path / "more.jsonl")
    assert await origins(engine, "more") == [[0, 1]]
    labels.write_text("id,group\n0,there\n2,here\nx,there\n")
    again = await catalog.resolve(str(corpus.path))
    assert await origins(again, "text") == [[0, 1], [0, 0], [1, 0]]
    labels.unlink()
    with pytest.raises(CorpusError, match=r"needs the file .*origins.csv"):
        await catalog.resolve(str(corpus.path))


def source_file(folder: Path, name: str = "team", **more: str) -> Path:
    """Write the source of an embedded index of two documents."""
    folder.mkdir(exist_ok=True)
    (folder / "team.jsonl").write_text('{"id": "a", "text": "one"}\n{"id": "b", "text": "two"}\n')
    path = folder / f"{name}.source.yaml"
    lines = {"name": name, "engine": "tantivy", "documents": "team.jsonl"} | more
    attributes = "attributes: {sex: {field: s, groups: {female: F, male: M}}}"
    path.write_text("\n".join([*(f"{k}: {v}" for k, v in lines.items()), attributes]))
    return path


async def test_a_source_is_searched_by_name_by_path_and_as_an_object(
    catalog: Catalog, tmp_path: Path
) -> None:
    path = source_file(tmp_path / "s")
    source = catalog.attach(path)
    assert catalog.sources() == {"team": path}
    assert catalog.source("team") == (source, path)
    for corpus in ("team", str(path), source):
        engine = await catalog.resolve(corpus)
        assert engine.name == "team"
        assert await ids(engine, "two") == ["b"]
        assert folder_of(engine).name == "v1", "indexed once"
    by_vectors, told = Retriever("dense", CountingEncoder()), list[str]()

    def announced(what: str) -> Callable[[int], None]:
        told.append(what)
        return print

    for _ in range(2):
        found = await catalog.resolve("team", retriever=by_vectors, progress=announced)
        assert found.retriever == "dense:words"
    assert told == ["vectors of team"], "announced where something is encoded"


async def test_edits_of_a_source_take_effect(catalog: Catalog, tmp_path: Path) -> None:
    path = source_file(tmp_path / "s")
    catalog.attach(path)
    text = path.read_text()
    path.write_text(text.replace("sex:", "gender:"))
    assert list((await catalog.resolve("team")).schema.attributes) == ["gender"]
    path.write_text(text.replace("name: team", "name: other"))
    with pytest.raises(SourceError, match=r"now has the name 'other'; attach it again"):
        await catalog.resolve("team")
    path.unlink()
    remedy = r"'fairqr attach FILE', or forget it with 'fairqr source remove team'"
    with pytest.raises(SourceError, match=f"of the source 'team' is gone; .*{remedy}"):
        await catalog.resolve("team")
    assert [it[:2] for it in await catalog.infos() if isinstance(it, tuple)] == [("team", "source")]
    catalog.detach("team")
    assert catalog.sources() == {}
    for gone in (lambda: catalog.detach("team"), lambda: catalog.source("team")):
        with pytest.raises(IndexNotFoundError, match="no attached source 'team'"):
            gone()


async def test_what_is_known_of_all_that_has_a_name(catalog: Catalog, tmp_path: Path) -> None:
    """Nothing is indexed for that, and the index of a source is not listed beside it."""
    await catalog.create("people", write(tmp_path / "c", "text"))
    catalog.attach(source_file(tmp_path / "s"))
    catalog.attach(source_file(tmp_path / "s", "gone", documents="nothing.jsonl"))
    for documents in (None, 2):
        infos = {info.name: info for info in await catalog.infos() if isinstance(info, EngineInfo)}
        counts = {name: info.documents for name, info in infos.items()}
        assert counts == {"people": 1, "team": documents, "gone": None}
        await catalog.resolve("team")
    assert infos["people"].source == str(tmp_path / "c" / "documents.jsonl")


async def test_what_is_wrong_is_refused_before_anything_is_indexed(
    catalog: Catalog, tmp_path: Path
) -> None:
    corpus, source = write(tmp_path / "c", "text"), source_file(tmp_path / "s")
    for name in (str(corpus.path), str(source), "notables"):
        with pytest.raises(InputError, match="choose auto, bm25, dense"):
            await catalog.resolve(name, retriever="sparse")
    with pytest.raises(InputError, match="Only a corpus given by its path takes a schema"):
        await catalog.resolve("notables", schema=tmp_path / "none.yaml")
    for wrong in ("", "..", "A", "a/b", "-x", "a b", "x" * 101, "ü"):
        with pytest.raises(InputError, match="cannot be the name of an index"):
            await catalog.create(wrong, corpus)
    assert not (tmp_path / "data").exists()
