"""The index on a real Elasticsearch server."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import random
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from elasticsearch import Elasticsearch

from fairqr.errors import (
    CorpusError,
    IndexNotFoundError,
    IndexUnavailableError,
    IndexVersionError,
    InputError,
    QueryError,
    UnknownAttributeError,
)
from fairqr.retrieval import elasticsearch_build, elasticsearch_layout
from fairqr.retrieval.documents import Document
from fairqr.retrieval.elasticsearch_index import (
    Connection,
    ElasticsearchIndex,
    build_elasticsearch,
    delete_elasticsearch,
    list_elasticsearch,
)
from fairqr.retrieval.index import Index
from fairqr.retrieval.schema import Schema
from fairqr.retrieval.tantivy_index import TantivyIndex
from fairqr.retrieval.tantivy_layout import FORMAT, Manifest

pytestmark = pytest.mark.elasticsearch

SCHEMA = Schema.model_validate(
    {
        "attributes": {
            "gender": {"field": "gender", "groups": ["female", "male"]},
            # The names of groups are not the names of fields: these would not be allowed to be.
            "place": {
                "field": "where",
                "groups": ["North.America", " ", "a,b*", "_id"],
                "unknown": "group",
            },
        }
    }
)

WORDS = """
study studied studies studying physics physicist tennis player played playing politician election
elected music musician composing composer composed opera singer singing sang painter painting
painted river bridge bridges engineer engineering engine railway mathematics mathematician theorem
proof prove proved prize prizes award awarded university universities professor taught teaching
teacher school schools nation national international africa african europe european asia asian film
films actor actress acting stage theatre director directed novel novels novelist writer writing
wrote poetry poet poems poem medicine medical doctor nurse hospital research researcher discovered
discovery chemistry chemical element elements war army general soldier battle peace treaty minister
president king queen emperor history historian island islands ocean sailor voyage explorer explored
mountain climber climbing swimmer swimming football footballer club league champion championship
law lawyer court judge justice rights movement women men children family married daughter son
""".split()  # noqa: SIM905  (a list of this length is no easier to read)
GLUE = ["the", "of", "and", "in", "a", "was", "by", "for", "with", "who"]

Make = Callable[..., Awaitable[ElasticsearchIndex]]


def generated(count: int, seed: int = 7) -> list[Document]:
    """Return documents of English words, of unequal lengths and with all kinds of labels."""
    draw = random.Random(seed)
    genders: list[Any] = ["female", "male", "male", ["female", "male"], {"male": 3, "female": 1}]
    places: list[Any] = ["North.America", " ", "a,b*", "_id", ["_id", " "]]
    documents = []
    for number in range(count):
        topic = draw.sample(WORDS, 12)
        words = [
            draw.choice(GLUE) if draw.random() < 0.3 else draw.choice(topic + WORDS[:40])
            for _ in range(draw.randint(20, 120))
        ]
        fields: dict[str, Any] = {"year": draw.randint(1400, 2000)}
        if draw.random() < 0.9:
            fields["gender"] = draw.choice(genders)
        if draw.random() < 0.9:
            fields["where"] = draw.choice(places)
        title = " ".join(draw.sample(topic, 2)).title()
        documents.append(Document(f"d{number:05}", title, " ".join(words).capitalize(), fields))
    return documents


DOCUMENTS = generated(800)
QUERIES = [" ".join(random.Random(n).sample(WORDS, 1 + n % 4)) for n in range(40)]


@pytest.fixture
def connection(elasticsearch_url: str) -> Connection:
    return Connection(url=elasticsearch_url, attempts=2)


@pytest.fixture
def admin(elasticsearch_url: str) -> Iterator[Elasticsearch]:
    with Elasticsearch(elasticsearch_url) as client:
        yield client


@pytest.fixture
def name(admin: Elasticsearch) -> Iterator[str]:
    """The name of an index that no other test has; what there is of it is deleted in the end."""
    unique = f"test-{uuid.uuid4().hex[:12]}"
    yield unique
    for index in server_indexes(admin, unique):
        admin.indices.delete(index=index)


@pytest.fixture
async def make(connection: Connection, name: str) -> AsyncIterator[Make]:
    """Build an index of documents and open it."""
    opened: list[ElasticsearchIndex] = []

    async def build(documents: Any, **options: Any) -> ElasticsearchIndex:
        await build_index(connection, name, documents, **options)
        opened.append(await ElasticsearchIndex.open(connection, name))
        return opened[-1]

    yield build
    for index in opened:
        await index.close()


async def build_index(connection: Connection, name: str, documents: Any, **options: Any) -> int:
    options = {"schema": SCHEMA, "source": "made.jsonl", "source_sha256": "5a", **options}
    return await build_elasticsearch(connection, name, documents=documents, **options)


def server_indexes(admin: Elasticsearch, name: str) -> list[str]:
    return sorted(admin.indices.get(index=f"fairqr-{name}-*"))


def doc(id_: str, text: str = "physics", **fields: Any) -> Document:
    return Document(id_, "", text, fields)


# --- the protocol -----------------------------------------------------------------------------


async def test_an_index_tells_what_it_is(
    make: Make, connection: Connection, name: str, elasticsearch_url: str
) -> None:
    index: Index = await make(DOCUMENTS)
    info = await index.info()
    assert (info.name, info.backend, info.documents) == (name, "elasticsearch", len(DOCUMENTS))
    assert (info.source, info.source_sha256) == ("made.jsonl", "5a")
    assert info.location == f"{elasticsearch_url}/fairqr-{name}"
    assert index.name == name
    assert index.schema == SCHEMA
    assert info in await list_elasticsearch(connection)


async def test_progress_is_told_and_ends_with_all(make: Make) -> None:
    told: list[int] = []
    await make(iter(DOCUMENTS), progress=told.append)
    assert told == [500, 800]


async def test_it_ranks_as_the_embedded_index_does(make: Make, tmp_path: Path) -> None:
    remote = await make(DOCUMENTS)
    manifest = Manifest(
        format=FORMAT, name="same", source="made", source_sha256="", corpus_schema=SCHEMA
    )
    TantivyIndex.build(tmp_path / "same", manifest, DOCUMENTS)
    local = TantivyIndex(tmp_path / "same")
    overlaps, ratios = [], []
    for query in QUERIES:
        here, there = await local.search(query, 20), await remote.search(query, 20)
        assert len(here) == len(there)
        overlaps.append(len({*here.ids} & {*there.ids}) / max(len(here), 1))
        ratios += [a / b for a, b in zip(here.scores, there.scores, strict=True)]
    assert np.mean(overlaps) >= 0.95
    assert np.median(ratios) == pytest.approx(1, abs=0.01)
    for attribute in SCHEMA.attributes:
        ids = [document.id for document in DOCUMENTS]
        assert np.allclose(
            await local.corpus_shares(attribute), await remote.corpus_shares(attribute), atol=1e-12
        )
        assert np.array_equal(
            await local.memberships(attribute, ids), await remote.memberships(attribute, ids)
        )
    words = ["physics", "tennis player", "the", "", "nowhere"]
    assert await local.document_frequencies(words) == await remote.document_frequencies(words)


async def test_ties_stand_in_order_of_id(make: Make) -> None:
    ids = ["b", "a10", "a9", "Z", "ä", "日本", "0"]
    index = await make([doc(id_) for id_ in ids])
    for n in range(1, 9):
        assert (await index.search("physics", n)).ids == sorted(ids)[:n]
    assert (await index.rescore("physics", ids)).ids == sorted(ids)


async def test_rescore_gives_the_scores_of_search(make: Make) -> None:
    index = await make(DOCUMENTS)
    for query in QUERIES[:10]:
        assert await index.rescore(query, [d.id for d in DOCUMENTS[:0]]) == await index.search(
            query, 0
        )
        found = await index.search(query, 100)
        assert await index.rescore(query, found.ids[::-1]) == found


async def test_rescore_puts_documents_without_a_term_last(make: Make) -> None:
    index = await make([doc("c", "tennis"), doc("b"), doc("a", "tennis tennis"), doc("0")])
    ranking = await index.rescore("tennis", ["b", "absent", "0", "c", "a", "b"])
    assert ranking.ids == ["a", "c", "0", "b"]
    assert ranking.scores[2:] == [0, 0]
    assert (await index.rescore("the", ["b", "a"])).scores == [0, 0]


async def test_queries_without_terms_find_nothing(make: Make) -> None:
    index = await make([doc("a")])
    for query in ("", "the", "?!", "unheard"):
        assert len(await index.search(query, 5)) == 0
    assert (await index.search('physics AND "(' + "\0", 5)).ids == ["a"]


async def test_a_query_of_too_many_words_is_refused_in_one_sentence(make: Make) -> None:
    index = await make([doc("a")])
    with pytest.raises(QueryError, match="more words than"):
        await index.search(" ".join(f"w{n}" for n in range(100_000)), 5)


async def test_more_than_one_page_of_results(make: Make) -> None:
    index = await make(doc(f"{n:05}", "physics " * (1 + n % 3)) for n in range(20_500))
    whole = await index.search("physics", 30_000)
    assert len(whole) == 20_500
    assert len(set(whole.ids)) == 20_500
    assert whole.top(10_000) == await index.search("physics", 10_000)
    assert whole.top(10_001) == await index.search("physics", 10_001)
    assert await index.rescore("physics", whole.ids) == whole
    assert len(await index.documents(whole.ids)) == 20_500


async def test_scores_do_not_depend_on_the_number_of_shards(make: Make) -> None:
    one, three = await make(DOCUMENTS), await make(DOCUMENTS, shards=3)
    for query in QUERIES[:10]:
        first, second = await one.search(query, 50), await three.search(query, 50)
        assert first.ids == second.ids
        assert first.scores == pytest.approx(second.scores, rel=1e-5)
        assert await three.rescore(query, second.ids) == second


async def test_documents_come_back_as_they_went(make: Make) -> None:
    strange = {"": 1, ".": {"a..b": [1, None, True]}, "x": 1e300, "big": 2**70, "half": "\ud800"}
    given = [
        Document("1/ü ?#", 'A "title"\n', "text\twith\\ \0 signs", {"gender": "male", **strange}),
        Document("x" * 512, "", "tennis", {"not a number": float("inf")}),
    ]
    index = await make(given)
    assert await index.documents(["x" * 512, "absent", "1/ü ?#"]) == given[::-1]
    assert await index.documents([]) == []
    assert (await index.search("tennis", 5)).ids == ["x" * 512]


async def test_memberships_are_exact(make: Make) -> None:
    index = await make(
        [
            doc("f", gender="female"),
            doc("half", gender=["female", "male"], where=["_id", "a,b*"]),
            doc("third", gender={"female": 1, "male": 2}),
            doc("some", gender={"female": 0.1, "unknown": 0.2}),
            doc("none"),
        ]
    )
    rows = await index.memberships("gender", ["none", "third", "f", "absent", "half", "some", "f"])
    assert rows.tolist() == [
        [0, 0], [1 / 3, 2 / 3], [1, 0], [0, 0], [0.5, 0.5], [0.1 / (0.1 + 0.2), 0], [1, 0]
    ]  # fmt: skip
    places = await index.memberships("place", ["half", "none"])
    assert places.tolist() == [[0, 0, 0.5, 0.5, 0], [0, 0, 0, 0, 1]]
    shares = await index.corpus_shares("gender")
    assert shares == pytest.approx(np.array([1 + 1 / 2 + 1 / 3 + 1 / 3, 1 / 2 + 2 / 3]) / 5)
    assert (await index.corpus_shares("place")).tolist() == pytest.approx([0, 0, 0.1, 0.1, 0.8])
    for method in (index.corpus_shares("age"), index.memberships("age", ["f"])):
        with pytest.raises(UnknownAttributeError, match="has no attribute 'age'"):
            await method


async def test_document_frequencies(make: Make) -> None:
    index = await make([doc("a", "tennis players"), doc("b", "a player"), doc("c", "tennis")])
    words = ["tennis", "player", "Players of tennis", "the", "", "absent", "tennis absent"]
    assert await index.document_frequencies(words) == [2, 2, 1, 0, 0, 0, 0]
    assert await index.document_frequencies([]) == []
    assert await index.document_frequencies(["tennis"] * 1200) == [2] * 1200


# --- writing ----------------------------------------------------------------------------------


async def test_upsert_and_delete(make: Make) -> None:
    index = await make([doc("a", gender="female"), doc("b", gender="male")])
    told: list[int] = []
    added = [doc("b", "tennis", gender="female"), doc("c", "tennis", gender="female")]
    assert await index.upsert(iter(added), told.append) == 2
    assert told == [2]
    assert (await index.search("physics tennis", 9)).ids == ["a", "b", "c"]
    assert await index.documents(["b"]) == [added[0]]
    assert (await index.corpus_shares("gender")).tolist() == [1, 0]
    assert (await index.info()).documents == 3
    assert await index.delete(["b", "absent", "a"]) == 2
    assert (await index.search("physics tennis", 9)).ids == ["c"]
    assert await index.delete([]) == 0
    assert await index.upsert([]) == 0
    assert await index.delete(["c"]) == 1
    assert (await index.corpus_shares("gender")).tolist() == [0, 0]


def refuse_bad_titles(admin: Elasticsearch, pipeline: str) -> None:
    """Make the server refuse, really, each document whose title is Bad."""
    fail = {"if": "ctx.source.title == 'Bad'", "message": "no bad titles\nhere"}
    admin.ingest.put_pipeline(id=pipeline, processors=[{"fail": fail}])


async def test_refused_documents_are_counted_and_the_first_is_named(
    make: Make, admin: Elasticsearch, name: str
) -> None:
    index = await make([doc("a")])
    refuse_bad_titles(admin, name)
    settings = {"index.default_pipeline": name}
    admin.indices.put_settings(index=f"fairqr-{name}", settings=settings)
    documents = [
        Document(f"n{n:04}", "Bad" if n % 100 == 40 else "Good", "tennis") for n in range(1200)
    ]
    with pytest.raises(IndexUnavailableError) as caught:
        await index.upsert(documents)
    message = str(caught.value)
    assert "12 of the 1200 documents" in message
    assert "'n0040', status 500 (no bad titles here)" in message
    assert len(await index.search("tennis", 9999)) == 1188
    admin.indices.put_settings(index=f"fairqr-{name}", settings={"index.default_pipeline": "_none"})
    admin.ingest.delete_pipeline(id=name)


async def test_documents_that_the_mapping_refuses_are_counted(
    make: Make, admin: Elasticsearch, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = await make([doc("a")])
    stored = elasticsearch_layout.stored_document

    def wrong(document: Document, *rest: Any) -> str:
        entry = json.loads(stored(document, *rest))
        return json.dumps({**entry, "stray": 1} if document.id == "x" else entry)

    monkeypatch.setattr("fairqr.retrieval.elasticsearch_index.stored_document", wrong)
    with pytest.raises(IndexUnavailableError, match=r"refused 1 of the 3 .* 'x', status 400"):
        await index.upsert([doc("b"), doc("x"), doc("c")])
    assert (await index.search("physics", 9)).ids == ["a", "b", "c"]


async def test_a_build_with_refused_documents_leaves_the_old_index(
    make: Make, admin: Elasticsearch, connection: Connection, name: str
) -> None:
    index = await make([doc("old")])
    refuse_bad_titles(admin, name)
    template = {"settings": {"index.default_pipeline": name}}
    admin.indices.put_index_template(
        name=name, index_patterns=[f"fairqr-{name}-*"], template=template, priority=900
    )
    try:
        with pytest.raises(IndexUnavailableError, match=r"refused 1 of the 2 documents.*'x'"):
            await build_index(connection, name, [doc("b"), Document("x", "Bad", "physics")])
    finally:
        admin.indices.delete_index_template(name=name)
        admin.ingest.delete_pipeline(id=name)
    assert (await index.search("physics", 9)).ids == ["old"]
    assert len(server_indexes(admin, name)) == 1


async def test_a_write_block_stops_the_writing_at_once(
    make: Make, admin: Elasticsearch, name: str
) -> None:
    index = await make([doc("a")])
    admin.indices.put_settings(index=f"fairqr-{name}", settings={"index.blocks.write": True})
    read = 0

    def endless() -> Iterator[Document]:
        nonlocal read
        for read in range(100_000):
            yield doc(f"n{read}")

    with pytest.raises(IndexUnavailableError, match=r"refused 500 of the 500 .* status 403"):
        await index.upsert(endless())
    assert read < 1_500


# --- building ---------------------------------------------------------------------------------


async def test_a_repeated_id_is_refused_with_both_places(
    connection: Connection, admin: Elasticsearch, name: str
) -> None:
    documents = [doc(f"n{n}") for n in range(1200)]
    for place, other in ((5, 7), (5, 1100)):
        twice = [*documents]
        twice[other - 1] = documents[place - 1]
        with pytest.raises(CorpusError) as caught:
            await build_index(connection, name, twice)
        message = f"The id 'n4' stands twice in made.jsonl, in documents {place} and {other};"
        assert str(caught.value).startswith(message)
    assert server_indexes(admin, name) == []


async def test_an_empty_corpus_is_refused(
    connection: Connection, admin: Elasticsearch, name: str
) -> None:
    with pytest.raises(CorpusError, match=r"The corpus made\.jsonl is empty"):
        await build_index(connection, name, [])
    assert server_indexes(admin, name) == []


async def test_an_error_while_reading_leaves_nothing(
    make: Make, connection: Connection, admin: Elasticsearch, name: str
) -> None:
    index = await make([doc("old")])

    def broken() -> Iterator[Document]:
        yield from DOCUMENTS[:600]
        raise CorpusError("line 601 is no document")

    with pytest.raises(CorpusError, match="line 601"):
        await build_index(connection, name, broken())
    assert (await index.search("physics", 9)).ids == ["old"]
    assert len(server_indexes(admin, name)) == 1


async def test_a_build_replaces_the_index_and_readers_follow(
    make: Make, connection: Connection, admin: Elasticsearch, name: str
) -> None:
    reader = await make([doc("old")])
    await build_index(connection, name, [doc("new"), doc("newer")])
    assert len(server_indexes(admin, name)) == 1
    assert (await reader.search("physics", 9)).ids == ["new", "newer"]
    assert await reader.upsert([doc("x")]) == 1
    await build_index(connection, name, [doc("newest")])
    assert await reader.upsert([doc("x")]) == 1
    assert (await reader.search("physics", 9)).ids == ["newest", "x"]
    assert len(server_indexes(admin, name)) == 1


async def test_a_reader_of_another_schema_is_told(
    make: Make, connection: Connection, name: str
) -> None:
    reader = await make([doc("old")])
    other = {"attributes": {"gender": {"field": "gender", "groups": ["male", "female"]}}}
    await build_index(connection, name, [doc("new")], schema=Schema.model_validate(other))
    with pytest.raises(IndexVersionError, match="built anew with another schema"):
        await reader.memberships("gender", ["new"])
    with pytest.raises(IndexVersionError, match="built anew with another schema"):
        await reader.upsert([doc("x")])


async def test_a_deleted_index_is_not_made_again_by_writing(
    make: Make, connection: Connection, admin: Elasticsearch, name: str
) -> None:
    index = await make([doc("a")])
    await delete_elasticsearch(connection, name)
    for call in (index.search("x", 1), index.upsert([doc("b")]), index.delete(["a"]), index.info()):
        with pytest.raises(IndexNotFoundError, match=rf"no index '{name}' .*fairqr index create"):
            await call
    assert server_indexes(admin, name) == []
    with pytest.raises(IndexNotFoundError, match="There is no index"):
        await delete_elasticsearch(connection, name)


BUILD_SLOWLY = """
import asyncio, sys
from fairqr.retrieval.documents import Document
from fairqr.retrieval.elasticsearch_index import Connection, build_elasticsearch
from fairqr.retrieval.schema import Schema

def documents():
    for number in range(2000):
        if number == 1100:
            print("loading", flush=True)
            sys.stdin.readline()
        yield Document(f"n{number}", "", "physics", {})

url, name, schema = sys.argv[1:]
asyncio.run(build_elasticsearch(
    Connection(url=url), name, Schema.model_validate_json(schema), documents(),
    source="slow", source_sha256="",
))
"""


@pytest.fixture
def slow_build(elasticsearch_url: str, name: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has written a part of an index, and goes on when it is sent a line."""
    command = [sys.executable, "-c", BUILD_SLOWLY, elasticsearch_url, name]
    with subprocess.Popen(
        [*command, SCHEMA.model_dump_json()],
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
    slow_build: subprocess.Popen[str],
    connection: Connection,
    admin: Elasticsearch,
    name: str,
    make: Make,
) -> None:
    index = await make([doc("old")])
    unfinished, live = sorted(
        server_indexes(admin, name), key=lambda one: bool(aliases(admin, one))
    )
    slow_build.send_signal(signal.SIGKILL)
    assert slow_build.wait(10) == -signal.SIGKILL
    assert server_indexes(admin, name) == sorted([unfinished, live])
    assert (await index.search("physics", 9)).ids == ["old"]
    await build_index(connection, name, [doc("new")])
    assert unfinished not in server_indexes(admin, name)
    assert len(server_indexes(admin, name)) == 1
    assert (await index.search("physics", 9)).ids == ["new"]


async def test_a_running_build_is_not_disturbed_by_another(
    slow_build: subprocess.Popen[str],
    connection: Connection,
    admin: Elasticsearch,
    name: str,
    make: Make,
) -> None:
    (running,) = server_indexes(admin, name)
    index = await make([doc("meanwhile")])
    assert running in server_indexes(admin, name)
    assert (await index.search("physics", 9)).ids == ["meanwhile"]
    assert slow_build.stdin
    slow_build.stdin.write("go on\n")
    slow_build.stdin.flush()
    assert slow_build.wait(60) == 0
    assert server_indexes(admin, name) == [running]
    assert (await index.info()).documents == 2000


def aliases(admin: Elasticsearch, index: str) -> dict[str, Any]:
    found: dict[str, Any] = admin.indices.get_alias(index=index).body[index]["aliases"]
    return found


async def test_a_build_gives_signs_of_life(
    connection: Connection, admin: Elasticsearch, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elasticsearch_build, "SIGN_OF_LIFE_SECONDS", 0.05)
    seen: list[float] = []

    def renewed() -> float:
        (index,) = server_indexes(admin, name)
        mapping = admin.indices.get_mapping(index=index).body[index]["mappings"]
        mark: float = mapping["_meta"]["fairqr"]["build"]["renewed"]
        return mark

    def documents() -> Iterator[Document]:
        yield from DOCUMENTS[:500]
        seen.append(renewed())
        for _ in range(200):
            if (now := renewed()) != seen[0]:
                seen.append(now)
                break
        yield from DOCUMENTS[500:]

    assert await build_index(connection, name, documents()) == 800
    assert seen[1] > seen[0]


async def test_a_silent_build_elsewhere_is_taken_for_ended_after_an_hour(
    connection: Connection, admin: Elasticsearch, name: str
) -> None:
    meta = elasticsearch_layout.Meta(
        name=name,
        source="",
        source_sha256="",
        corpus_schema=SCHEMA,
        build=elasticsearch_layout.BuildMark.own().model_copy(update={"machine": "another"}),
    )
    old = meta.model_copy(
        update={"build": meta.build.model_copy(update={"renewed": meta.build.renewed - 3700})}
    )
    for suffix, stored in (("fresh", meta), ("old", old)):
        admin.indices.create(
            index=f"fairqr-{name}-{suffix}", mappings=elasticsearch_layout.mappings_of(stored)
        )
    # One of another name, whose index begins the same.
    other = old.model_copy(update={"name": f"{name}-longer"})
    admin.indices.create(
        index=f"fairqr-{name}-longer-old", mappings=elasticsearch_layout.mappings_of(other)
    )
    await build_index(connection, name, [doc("a")])
    left = server_indexes(admin, name)
    assert f"fairqr-{name}-old" not in left
    assert {f"fairqr-{name}-fresh", f"fairqr-{name}-longer-old"} < set(left)
    await delete_elasticsearch(connection, name)
    assert set(server_indexes(admin, name)) == {f"fairqr-{name}-fresh", f"fairqr-{name}-longer-old"}


async def test_an_index_deleted_while_it_is_built_is_noticed(
    connection: Connection, admin: Elasticsearch, name: str
) -> None:
    def documents() -> Iterator[Document]:
        yield from DOCUMENTS[:500]
        yield DOCUMENTS[500]
        (index,) = server_indexes(admin, name)
        admin.indices.delete(index=index)
        yield from DOCUMENTS[501:]

    with pytest.raises((IndexUnavailableError, IndexNotFoundError)):
        await build_index(connection, name, documents())
    assert server_indexes(admin, name) == []


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
    elasticsearch_url: str, name: str, admin: Elasticsearch
) -> None:
    handler = type("Handler", (LosingProxy,), {"upstream": elasticsearch_url, "lost": 0})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        through = Connection(url=f"http://127.0.0.1:{proxy.server_port}", attempts=2)
        assert await build_index(through, name, DOCUMENTS) == 800
        proxy.shutdown()
    assert handler.lost == 1  # type: ignore[attr-defined]
    assert admin.count(index=f"fairqr-{name}")["count"] == 800


# --- opening ----------------------------------------------------------------------------------


async def test_a_missing_index(connection: Connection, name: str) -> None:
    with pytest.raises(IndexNotFoundError) as caught:
        await ElasticsearchIndex.open(connection, name)
    assert f"There is no index '{name}' at {connection.url}" in str(caught.value)
    assert "fairqr index create" in str(caught.value)


@pytest.mark.parametrize("wrong", ["UPPER", "", "a b", "-a", "a/b", "ä", "a" * 201, "a*", "a,b"])
async def test_a_name_that_elasticsearch_does_not_take(connection: Connection, wrong: str) -> None:
    with pytest.raises(InputError, match="cannot name an index on Elasticsearch"):
        await ElasticsearchIndex.open(connection, wrong)
    with pytest.raises(InputError, match="cannot name an index on Elasticsearch"):
        await build_index(connection, wrong, [doc("a")])
    with pytest.raises(InputError, match="cannot name an index on Elasticsearch"):
        await delete_elasticsearch(connection, wrong)


@pytest.mark.parametrize(
    "meta", [{"format": 2, "name": "NAME"}, {"format": 1, "name": "NAME"}, {}, {"format": None}]
)
async def test_another_format_is_refused_and_can_be_deleted(
    make: Make,
    connection: Connection,
    admin: Elasticsearch,
    name: str,
    meta: dict[str, Any],
) -> None:
    await make([doc("a")])
    stored = {"fairqr": {**meta, "name": name} if "name" in meta else meta}
    admin.indices.put_mapping(index=f"fairqr-{name}", meta=stored)
    with pytest.raises(IndexVersionError, match="this version of fairqr reads 1; delete it"):
        await ElasticsearchIndex.open(connection, name)
    listed = [info.name for info in await list_elasticsearch(connection)]
    assert (name in listed) == ("name" in meta)
    await delete_elasticsearch(connection, name)
    assert server_indexes(admin, name) == []


async def test_a_dead_port() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(IndexUnavailableError) as caught:
            await ElasticsearchIndex.open(Connection(url=url, attempts=1), "any")
    assert str(caught.value).startswith(f"Elasticsearch cannot be reached at {url}; start it there")


def test_one_index_serves_several_event_loops(elasticsearch_url: str, name: str) -> None:
    connection = Connection(url=elasticsearch_url)
    asyncio.run(build_index(connection, name, [doc("a"), doc("b")]))

    async def opened() -> ElasticsearchIndex:
        index = await ElasticsearchIndex.open(connection, name)
        await index.close()
        return index

    index = asyncio.run(opened())

    async def searched() -> list[str]:
        try:
            return (await index.search("physics", 5)).ids
        finally:
            await index.close()

    for _ in range(3):
        assert asyncio.run(searched()) == ["a", "b"]
    found: list[list[str]] = []
    threads = [
        threading.Thread(target=lambda: found.append(asyncio.run(searched()))) for _ in "123"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [["a", "b"]] * 3


async def test_many_searches_at_once(make: Make) -> None:
    index = await make(DOCUMENTS)
    alone = [await index.search(query, 20) for query in QUERIES]
    assert await asyncio.gather(*(index.search(query, 20) for query in QUERIES)) == alone


# --- security ---------------------------------------------------------------------------------


@pytest.fixture
def as_elastic(secure_elasticsearch: Any) -> Connection:
    server = secure_elasticsearch
    return Connection(
        url=server.url,
        username=server.username,
        password=server.password,
        ca_certs=server.ca_certs,
        attempts=2,
    )


async def use(connection: Connection) -> list[str]:
    """Build, open, search and delete an index."""
    await build_index(connection, "secret", [doc("a")])
    index = await ElasticsearchIndex.open(connection, "secret")
    try:
        assert await index.upsert([doc("b")]) == 1
        assert [info.name for info in await list_elasticsearch(connection)] == ["secret"]
        return (await index.search("physics", 5)).ids
    finally:
        await index.close()
        await delete_elasticsearch(connection, "secret")


async def api_key(connection: Connection, privileges: list[str]) -> str:
    roles = {"r": {"cluster": [], "indices": [{"names": ["fairqr-*"], "privileges": privileges}]}}
    client = connection.client()
    try:
        made = await client.security.create_api_key(name="k", role_descriptors=roles)
    finally:
        await client.close()
    encoded: str = made["encoded"]
    return encoded


async def test_a_password(as_elastic: Connection) -> None:
    assert await use(as_elastic) == ["a", "b"]


async def test_a_password_in_the_url(as_elastic: Connection, secure_elasticsearch: Any) -> None:
    secret = secure_elasticsearch.password
    url = as_elastic.url.replace("https://", f"https://elastic:{secret}@")
    connection = Connection(url=url, ca_certs=as_elastic.ca_certs)
    assert await use(connection) == ["a", "b"]
    assert secret not in connection.shown


async def test_an_api_key_for_the_indexes_of_fairqr_alone(as_elastic: Connection) -> None:
    key = await api_key(as_elastic, ["all"])
    connection = Connection(url=as_elastic.url, api_key=f" {key}\n", ca_certs=as_elastic.ca_certs)
    assert await use(connection) == ["a", "b"]


async def test_an_api_key_that_may_only_read(as_elastic: Connection) -> None:
    key = await api_key(as_elastic, ["read", "view_index_metadata"])
    connection = Connection(url=as_elastic.url, api_key=key, ca_certs=as_elastic.ca_certs)
    with pytest.raises(
        IndexUnavailableError, match=r"does not allow this \(status 403\)"
    ) as caught:
        await build_index(connection, "secret", [doc("a")])
    assert key not in str(caught.value)


@pytest.mark.parametrize(
    ("credentials", "says"),
    [
        ({"username": "elastic", "password": "Wr0ng!"}, "the username or the password"),
        ({"api_key": base64.b64encode(b"nobody:Wr0ng!").decode()}, "does not accept the API key"),
        ({"api_key": "Wr0ng!"}, "does not accept the API key"),
        ({}, "asks for credentials"),
    ],
)
async def test_wrong_credentials(
    as_elastic: Connection, credentials: dict[str, str], says: str
) -> None:
    connection = Connection(url=as_elastic.url, ca_certs=as_elastic.ca_certs, **credentials)
    with pytest.raises(IndexUnavailableError, match=says) as caught:
        await ElasticsearchIndex.open(connection, "any")
    assert "set FAIRQR_ELASTICSEARCH_API_KEY, or FAIRQR_ELASTICSEARCH_USERNAME" in str(caught.value)
    assert caught.value.__cause__ is None
    for secret in (credentials.get("password"), credentials.get("api_key")):
        assert secret is None or secret not in f"{caught.value!r} {connection!r}"


NOT_TRUSTED = (
    r"^The certificate of https://127\.0\.0\.1:\d+ is not trusted \([a-z-][a-z -]+\); "
    r"name the file of its CA in FAIRQR_ELASTICSEARCH_CA_CERTS\.$"
)


async def test_a_certificate_that_is_not_trusted(as_elastic: Connection, tmp_path: Path) -> None:
    key, certificate = tmp_path / "other.key", tmp_path / "other.crt"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=other"
    subprocess.run(
        [*command.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True
    )
    for trusted in (None, certificate):
        connection = as_elastic.model_copy(update={"ca_certs": trusted, "attempts": 4})
        with pytest.raises(IndexUnavailableError, match=NOT_TRUSTED):
            await ElasticsearchIndex.open(connection, "any")


async def test_any_certificate_is_trusted_when_asked(as_elastic: Connection) -> None:
    connection = as_elastic.model_copy(update={"ca_certs": None, "verify_certs": False})
    assert await use(connection) == ["a", "b"]


async def test_the_wrong_scheme(as_elastic: Connection, elasticsearch_url: str) -> None:
    plain = Connection(url=as_elastic.url.replace("https", "http"), attempts=1)
    with pytest.raises(IndexUnavailableError, match="cannot be reached"):
        await ElasticsearchIndex.open(plain, "any")
    tls = Connection(url=elasticsearch_url.replace("http", "https"), attempts=1)
    with pytest.raises(IndexUnavailableError, match="starts with http:// or https://"):
        await ElasticsearchIndex.open(tls, "any")


async def test_boosting_words_never_make_a_document_a_result(elasticsearch_url: str) -> None:
    """They only add to scores, as over the embedded index."""
    schema = Schema.model_validate(
        {"attributes": {"gender": {"field": "g", "groups": ["female", "male"]}}}
    )
    connection = Connection(url=elasticsearch_url)
    documents = [
        Document("a", "", "physicist and he"),
        Document("b", "", "physicist and she"),
        Document("c", "", "she she she"),
    ]
    await build_elasticsearch(
        connection, "boost", schema, documents, source="test", source_sha256="0"
    )
    index = await ElasticsearchIndex.open(connection, "boost")
    assert (await index.search("physicist", 9)).ids == ["a", "b"]
    assert (await index.search("physicist", 9, boost="she")).ids == ["b", "a"]
    await index.close()
    await delete_elasticsearch(connection, "boost")
