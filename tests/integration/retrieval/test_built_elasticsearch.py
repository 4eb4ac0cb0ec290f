"""An index that fairqr makes on Elasticsearch: whole or not at all, and attached like any other."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from fairqr.base.errors import CorpusError, IndexNotFoundError, IndexUnavailableError
from fairqr.retrieval.corpus import BUILT_IN, Corpus, find_corpus
from fairqr.retrieval.documents import Document
from fairqr.retrieval.engines.elasticsearch_building import (
    create_on_elasticsearch,
    delete_on_elasticsearch,
    remove,
    upsert,
)
from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.engines.tantivy import TantivyEngine
from fairqr.retrieval.engines.tantivy_store import EmbeddedIndexes
from fairqr.retrieval.schema import Schema
from fairqr.retrieval.source import ElasticsearchSource
from tests.integration.attached_people import Letters, Server, attached
from tests.patience import PATIENCE
from tests.unit.engines import hits_of

pytestmark = pytest.mark.elasticsearch

SCHEMA: dict[str, Any] = {
    "gender": {"field": "gender", "groups": ["female", "male"]},
    "place": {
        "field": "where",
        "groups": ["North.America", " ", "a,b*", "_id"],
        "unknown": "group",
    },
}


@pytest.fixture
def server(elasticsearch_url: str) -> Iterator[Server]:
    server = Server(elasticsearch_url)
    with server.client:
        yield server


@pytest.fixture
def name(server: Server) -> Iterator[str]:
    """A name that no other test has; what there is of it is deleted in the end."""
    unique = f"test-{uuid.uuid4().hex[:12]}"
    yield unique
    for index in indices(server, unique):
        server.client.delete(f"/{index}")


def indices(server: Server, name: str) -> list[str]:
    return sorted(server.ask("GET", f"/fairqr-{name}-*"))


def corpus(
    folder: Path, documents: Sequence[dict[str, Any]], attributes: dict[str, Any] | None = None
) -> Corpus:
    folder.mkdir(exist_ok=True)
    path = folder / "made.jsonl"
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return Corpus(path, Schema.model_validate({"attributes": attributes or SCHEMA}))


def doc(id_: str, text: str = "physics", **fields: Any) -> dict[str, Any]:
    return {"id": id_, "text": text, "gender": "female", "where": "_id", **fields}


async def build(server: Server, name: str, made: Corpus, **options: Any) -> ElasticsearchSource:
    return await create_on_elasticsearch(name, made, url=server.url, **options)


async def ids_of(source: ElasticsearchSource, query: str) -> list[str]:
    async with attached(source) as engine:
        return (await hits_of(engine, query, 100)).ids


# --- what it holds ----------------------------------------------------------------------------


async def test_it_ranks_as_the_embedded_index_does(
    server: Server, name: str, tmp_path: Path
) -> None:
    """Over the topics of notables; labels, shares and counts are the same."""
    notables = find_corpus(BUILT_IN["notables"])
    lines = (BUILT_IN["notables"] / "topics.jsonl").read_text().splitlines()
    titles = [json.loads(line)["title"] for line in lines]
    told: list[int] = []
    source = await build(server, name, notables, progress=told.append)
    assert told == sorted(told)
    local = await EmbeddedIndexes(tmp_path).create("notables", notables, "notables")
    assert isinstance(local, TantivyEngine)
    async with attached(source) as remote:
        assert (await remote.info()).documents == told[-1] == (await local.info()).documents
        overlaps, ratios = [], []
        there = await remote.search([Query(title, 20) for title in titles])
        here = await local.search([Query(title, 20) for title in titles])
        for one, other in zip(here, there, strict=True):
            overlaps.append(len({*one.ids} & {*other.ids}) / len(one))
            ratios += [a / b for a, b in zip(one.scores, other.scores, strict=True)]
        assert np.mean(overlaps) >= 0.95
        assert np.median(ratios) == pytest.approx(1, abs=0.01)
        (again,) = await remote.search([Query("", 20, only=tuple(here[0].ids))])
        (known,) = await local.search([Query("", 20, only=tuple(here[0].ids))])
        ours, theirs = await local.corpus_shares(), await remote.corpus_shares()
        for attribute in remote.schema.attributes:
            assert (again.memberships[attribute] == known.memberships[attribute]).all()
            assert theirs[attribute] == pytest.approx(ours[attribute], abs=1e-9)
        texts = await remote.documents(here[0].ids)
        assert [(d.title, d.text) for d in texts] == [
            (d.title, d.text) for d in await local.documents(here[0].ids)
        ]
    await delete_on_elasticsearch(source)
    assert indices(server, name) == []


async def test_labels_are_kept_exactly(server: Server, name: str, tmp_path: Path) -> None:
    """Values, lists, repeated values and weights; names of groups that no field could have."""
    documents = [
        doc("f"),
        doc("half", gender=["female", "male"], where=["_id", "a,b*"]),
        doc("third", gender={"female": 1, "male": 2}, where={"North.America": 3, " ": 1}),
        doc("twice", gender=["female", "male", "male"]),
        doc("some", gender={"female": 0.1, "unknown": 0.2}),
        doc("none", gender=None, where=""),
    ]
    source = await build(server, name, corpus(tmp_path, documents))
    ids = tuple(document["id"] for document in documents)
    async with attached(source) as engine:
        hits = await hits_of(engine, "", 9, only=ids)
        shares = await engine.corpus_shares()
    rows = dict(zip(hits.ids, hits.memberships["gender"].tolist(), strict=True))
    assert [rows[id_] for id_ in ids] == [
        [1, 0],
        [0.5, 0.5],
        [1 / 3, 2 / 3],
        [1 / 3, 2 / 3],
        [0.1 / (0.1 + 0.2), 0],
        [0, 0],
    ]
    places = dict(zip(hits.ids, hits.memberships["place"].tolist(), strict=True))
    assert places["half"] == [0, 0, 0.5, 0.5, 0]
    assert places["third"] == [0.75, 0.25, 0, 0, 0]
    assert places["none"] == [0, 0, 0, 0, 1]
    assert shares["gender"] == pytest.approx(hits.memberships["gender"].mean(axis=0))
    assert "place" not in shares, "the server cannot count what cannot name a field"


async def test_numbers_and_files_of_labels(server: Server, name: str, tmp_path: Path) -> None:
    attributes = {
        "era": {"field": "born", "groups": {"old": {"lt": 1950}, "young": {"gte": 1950}}},
        "height": {"field": "m", "groups": {"tall": {"gte": 1.8}, "small": {"lt": 1.8}}},
        "origin": {"labels": "origins.csv"},
    }
    made = corpus(
        tmp_path,
        [doc("a", born=1900, m=1.75), doc("b", born=[1949, 1950], m=2), doc("c")],
        attributes,
    )
    (tmp_path / "origins.csv").write_text("id,group\na,Asia\nb,Europe\n")
    source = await build(server, name, made)
    async with attached(source, tmp_path / "data") as engine:
        hits = await hits_of(engine, "", 9, only=("a", "b", "c"))
        shares = await engine.corpus_shares()
    assert {key: found.tolist() for key, found in hits.memberships.items()} == {
        "era": [[1, 0], [0.5, 0.5], [0, 0]],
        "height": [[0, 1], [1, 0], [0, 0]],
        "origin": [[1, 0], [0, 1], [0, 0]],
    }
    assert shares["era"].tolist() == pytest.approx([0.5, 0.5 / 3])


async def test_vectors_may_be_kept_with_the_documents(
    server: Server, name: str, tmp_path: Path
) -> None:
    """A document without any word has none."""
    made = corpus(tmp_path, [doc("a", "opera"), doc("b", "river"), doc("c", "...", title="?")])
    source = await build(server, name, made, encoder=Letters())
    assert source.vectors
    assert source.vectors.embeddings == "letters"
    async with attached(source, retriever=Letters()) as engine:
        hits = await hits_of(engine, "opera", 9)
    assert (hits.ids, hits.scores[0]) == (["a", "b"], pytest.approx(1))


@pytest.mark.parametrize("field", ["id", "body", "vector", "_source", " ", "a*b"])
async def test_a_field_of_labels_that_the_server_does_not_take(
    server: Server, name: str, tmp_path: Path, field: str
) -> None:
    if field == "id":
        field = "text\n"
    attributes = {"gender": {"field": field, "groups": ["f", "m"]}}
    with pytest.raises(CorpusError, match="Elasticsearch cannot store labels in a field named"):
        await build(server, name, corpus(tmp_path, [doc("a")], attributes))


# --- writing ----------------------------------------------------------------------------------


async def test_documents_are_added_replaced_and_removed(
    server: Server, name: str, tmp_path: Path
) -> None:
    source = await build(server, name, corpus(tmp_path, [doc("a"), doc("b", gender="male")]))
    told: list[int] = []
    added = [Document("b", "", "tennis", {"gender": "female"}), Document("c", "", "tennis", {})]
    assert await upsert(source, iter(added), told.append) == 2
    assert told == [2]
    async with attached(source) as engine:
        hits = await hits_of(engine, "physics tennis", 9)
        assert (hits.ids, (await engine.info()).documents) == (["a", "b", "c"], 3)
        assert hits.memberships["gender"].tolist() == [[1, 0], [1, 0], [0, 0]]
    assert await remove(source, ["b", "absent", "a"]) == 2
    assert await remove(source, []) == 0
    assert await upsert(source, []) == 0
    with pytest.raises(
        CorpusError, match="'d' has weights in 'gender', and the index cannot store"
    ):
        await upsert(source, [Document("d", "", "x", {"gender": {"female": 1, "male": 2}})])


async def test_weights_and_numbers_are_added_as_they_are_kept(
    server: Server, name: str, tmp_path: Path
) -> None:
    attributes = {**SCHEMA, "era": {"field": "n", "groups": {"a": {"lt": 5}, "b": {"gte": 5}}}}
    made = corpus(tmp_path, [doc("a", gender={"female": 1, "male": 3}, n=1)], attributes)
    source = await build(server, name, made)
    assert await upsert(source, [Document("b", "", "x", {"gender": "male", "n": 7})]) == 1
    async with attached(source) as engine:
        hits = await hits_of(engine, "", 9, only=("a", "b"))
    assert hits.memberships["gender"].tolist() == [[0.25, 0.75], [0, 1]]
    assert hits.memberships["era"].tolist() == [[1, 0], [0, 1]]
    with pytest.raises(IndexUnavailableError, match=r"refused 1 of 1 documents .* 'c', status 400"):
        await upsert(source, [Document("c", "", "x", {"n": "many"})])


def refuse_bad_titles(server: Server, pipeline: str) -> None:
    """Make the server refuse, really, each document whose title is Bad."""
    fail = {"if": "ctx.title == 'Bad'", "message": "no bad titles\nhere"}
    server.ask("PUT", f"/_ingest/pipeline/{pipeline}", {"processors": [{"fail": fail}]})


async def test_refused_documents_are_counted_and_the_first_is_named(
    server: Server, name: str, tmp_path: Path
) -> None:
    source = await build(server, name, corpus(tmp_path, [doc("a")]))
    refuse_bad_titles(server, name)
    settings = {"index.default_pipeline": name}
    server.ask("PUT", f"/fairqr-{name}/_settings", settings)
    documents = [
        Document(f"n{n:04}", "Bad" if n in (640, 840) else "Good", "tennis", {})
        for n in range(1200)
    ]
    with pytest.raises(IndexUnavailableError) as caught:
        await upsert(source, documents)
    assert str(caught.value).startswith(
        f"Elasticsearch at {server.url} refused 2 of 500 documents after 500 others; the first is "
        "'n0640', status 500 (no bad titles here); fix the cause"
    )
    server.ask("PUT", f"/fairqr-{name}/_settings", {"index.default_pipeline": "_none"})
    server.ask("DELETE", f"/_ingest/pipeline/{name}")


async def test_a_write_block_stops_the_writing_at_once(
    server: Server, name: str, tmp_path: Path
) -> None:
    source = await build(server, name, corpus(tmp_path, [doc("a")]))
    server.ask("PUT", f"/fairqr-{name}/_settings", {"index.blocks.write": True})
    read = 0

    def endless() -> Iterator[Document]:
        nonlocal read
        for read in range(100_000):
            yield Document(f"n{read}", "", "x", {})

    with pytest.raises(IndexUnavailableError, match=r"refused 500 of 500 documents .* status 403"):
        await upsert(source, endless())
    assert read < 1_500


# --- building ---------------------------------------------------------------------------------


async def test_a_repeated_id_is_refused_with_both_places(
    server: Server, name: str, tmp_path: Path
) -> None:
    for place, other in ((5, 7), (5, 1100)):
        documents = [doc(f"n{n}") for n in range(1200)]
        documents[other - 1] = documents[place - 1]
        made = corpus(tmp_path, documents)
        with pytest.raises(CorpusError) as caught:
            await build(server, name, made)
        said = f"The id 'n4' occurs twice in {made.path}, in documents {place} and {other};"
        assert str(caught.value).startswith(said)
    assert indices(server, name) == []


async def test_an_empty_corpus_is_refused(server: Server, name: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"The corpus .*made\.jsonl is empty"):
        await build(server, name, corpus(tmp_path, []))
    assert indices(server, name) == []


async def test_a_build_that_fails_leaves_what_was_there(
    server: Server, name: str, tmp_path: Path
) -> None:
    """Whether a line is wrong, or the server refuses a document."""
    source = await build(server, name, corpus(tmp_path, [doc("old")]))
    wrong = corpus(tmp_path, [*(doc(f"n{n}") for n in range(600)), doc("x", gender="boy")])
    with pytest.raises(CorpusError, match="line 601"):
        await build(server, name, wrong)
    refuse_bad_titles(server, name)
    template = {"settings": {"index.default_pipeline": name}}
    patterns = {"index_patterns": [f"fairqr-{name}-*"], "template": template, "priority": 900}
    server.ask("PUT", f"/_index_template/{name}", patterns)
    try:
        with pytest.raises(IndexUnavailableError, match=r"refused 1 of 2 documents .* 'x', status"):
            await build(server, name, corpus(tmp_path, [doc("b"), doc("x", title="Bad")]))
    finally:
        server.ask("DELETE", f"/_index_template/{name}")
        server.ask("DELETE", f"/_ingest/pipeline/{name}")
    assert await ids_of(source, "physics") == ["old"]
    assert len(indices(server, name)) == 1


async def test_a_build_replaces_the_index_and_readers_go_on_with_it(
    server: Server, name: str, tmp_path: Path
) -> None:
    source = await build(server, name, corpus(tmp_path, [doc("old")]))
    async with attached(source) as reader:
        await build(server, name, corpus(tmp_path, [doc("new"), doc("newer")]))
        assert len(indices(server, name)) == 1
        assert (await hits_of(reader, "physics", 9)).ids == ["new", "newer"]
        assert await upsert(source, [Document("x", "", "physics", {})]) == 1
        assert (await hits_of(reader, "physics", 9)).ids == ["new", "newer", "x"]


async def test_a_deleted_index_is_not_made_again_by_writing(
    server: Server, name: str, tmp_path: Path
) -> None:
    source = await build(server, name, corpus(tmp_path, [doc("a")]))
    await delete_on_elasticsearch(source)
    for call in (
        upsert(source, [Document("b", "", "x", {})]),
        remove(source, ["a"]),
        delete_on_elasticsearch(source),
    ):
        with pytest.raises(IndexNotFoundError, match=rf"no index '{name}' .*fairqr index create"):
            await call
    assert indices(server, name) == []


async def test_what_is_not_ours_is_never_deleted(server: Server, name: str, tmp_path: Path) -> None:
    """Neither an index of another name that begins the same, nor one that an alias points at."""
    source = await build(server, name, corpus(tmp_path, [doc("a")]))
    stamp = "20200101000000-0123abcd"
    kept = [f"fairqr-{name}-longer-{stamp}", f"fairqr-{name}-mine", f"fairqr-{name}-{stamp[:-1]}"]
    for index in [*kept, f"fairqr-{name}-{stamp}"]:
        server.ask("PUT", f"/{index}")
    used = f"fairqr-{name}-{stamp[:-1]}f"
    server.ask("PUT", f"/{used}", {"aliases": {f"used-{name}": {}}})
    foreign = source.model_copy(update={"index": f"used-{name}"})
    with pytest.raises(IndexNotFoundError):
        await delete_on_elasticsearch(foreign)
    await build(server, name, corpus(tmp_path, [doc("a")]))
    left = set(indices(server, name))
    assert {*kept, used} < left
    assert f"fairqr-{name}-{stamp}" not in left
    await delete_on_elasticsearch(source)
    assert set(indices(server, name)) == {*kept, used}


BUILD_SLOWLY = """
import asyncio, sys
from dataclasses import dataclass
from pathlib import Path
from fairqr.retrieval.corpus import find_corpus, Corpus
from fairqr.retrieval.engines.elasticsearch_building import create_on_elasticsearch

class Slow(Corpus):
    passes = 0
    def documents(self):
        Slow.passes += 1
        for number, document in enumerate(super().documents()):
            if Slow.passes == 2 and number == 1100:
                print("loading", flush=True)
                sys.stdin.readline()
            yield document

url, name, path = sys.argv[1:]
found = find_corpus(Path(path))
asyncio.run(create_on_elasticsearch(name, Slow(found.path, found.schema), url=url))
"""


@pytest.fixture
def slow_build(server: Server, name: str, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has written a part of an index, and goes on when it is sent a line."""
    made = corpus(tmp_path / "slow", [doc(f"n{n}") for n in range(2000)])
    schema = json.dumps({"attributes": SCHEMA})
    (made.path.parent / "schema.yaml").write_text(schema)
    with subprocess.Popen(
        [sys.executable, "-c", BUILD_SLOWLY, server.url, name, str(made.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "loading\n"
        try:
            yield process
        finally:
            process.kill()


async def test_a_killed_build_leaves_the_old_index_and_the_next_one_cleans_up(
    server: Server, name: str, tmp_path: Path
) -> None:
    source = await build(server, name, corpus(tmp_path, [doc("old")]))
    (live,) = indices(server, name)
    made = corpus(tmp_path / "slow", [doc(f"n{n}") for n in range(2000)])
    (made.path.parent / "schema.yaml").write_text(json.dumps({"attributes": SCHEMA}))
    with subprocess.Popen(
        [sys.executable, "-c", BUILD_SLOWLY, server.url, name, str(made.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGKILL)
        assert process.wait(PATIENCE) == -signal.SIGKILL
    (unfinished,) = {*indices(server, name)} - {live}
    assert await ids_of(source, "physics") == ["old"]
    await build(server, name, corpus(tmp_path, [doc("new")]))
    (live,) = indices(server, name)
    assert live != unfinished
    assert await ids_of(source, "physics") == ["new"]


async def test_of_two_builds_at_once_the_later_one_wins(
    slow_build: subprocess.Popen[str], server: Server, name: str, tmp_path: Path
) -> None:
    """The earlier one ends with one sentence, and leaves nothing."""
    source = await build(server, name, corpus(tmp_path, [doc("later")]))
    assert slow_build.stdin
    slow_build.stdin.write("go on\n")
    slow_build.stdin.flush()
    assert slow_build.wait(PATIENCE) == 1
    assert await ids_of(source, "physics") == ["later"]
    assert len(indices(server, name)) == 1


async def test_an_index_that_another_build_deletes_is_not_published(
    server: Server, name: str, tmp_path: Path
) -> None:
    """A bulk after the deletion makes the server create an index with a mapping of its own."""
    source = await build(server, name, corpus(tmp_path, [doc("old")]))
    live = indices(server, name)

    class Deleting(Corpus):
        passes = 0

        def documents(self) -> Iterator[Document]:
            Deleting.passes += 1
            if Deleting.passes == 2:
                for index in {*indices(server, name)} - {*live}:
                    server.ask("DELETE", f"/{index}")
            yield from super().documents()

    made = corpus(tmp_path, [doc("new")])
    with pytest.raises(
        IndexUnavailableError, match=r"was changed by someone else during the build; build it"
    ):
        await build(server, name, Deleting(made.path, made.schema))
    assert indices(server, name) == live
    assert await ids_of(source, "physics") == ["old"]


class LosingProxy(BaseHTTPRequestHandler):
    """Passes requests on, but drops the connection instead of answering the first bulk."""

    upstream: str
    lost: int

    def log_message(self, *_: Any) -> None:
        """Be silent."""

    def pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        upstream = http.client.HTTPConnection(urlsplit(self.upstream).netloc)
        headers = {key: value for key, value in self.headers.items() if key.lower() != "host"}
        upstream.request(self.command, self.path, body, headers)
        answer = upstream.getresponse()
        content = answer.read()
        upstream.close()
        if "_bulk" in self.path and type(self).lost == 0:
            type(self).lost += 1
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response(answer.status)
        for key in ("content-type", "x-elastic-product"):
            if value := answer.getheader(key):
                self.send_header(key, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_DELETE = pass_on  # noqa: N815


async def test_documents_sent_twice_after_a_lost_answer_are_no_duplicates(
    server: Server, name: str, tmp_path: Path
) -> None:
    handler = type("Handler", (LosingProxy,), {"upstream": server.url, "lost": 0})
    made = corpus(tmp_path, [doc(f"n{n}") for n in range(800)])
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        through = f"http://127.0.0.1:{proxy.server_port}"
        await create_on_elasticsearch(name, made, url=through)
        proxy.shutdown()
    assert handler.lost == 1  # type: ignore[attr-defined]
    assert server.ask("GET", f"/fairqr-{name}/_count")["count"] == 800
