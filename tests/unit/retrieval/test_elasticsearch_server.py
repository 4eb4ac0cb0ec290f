"""Reaching servers of Elasticsearch and OpenSearch: real HTTP servers that misbehave."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fairqr.base.errors import (
    ConfigError,
    FairqrError,
    IndexNotFoundError,
    IndexUnavailableError,
    ModelError,
    QueryError,
    SourceError,
)
from fairqr.retrieval.encoders.encoder import Encoder
from fairqr.retrieval.engines.elasticsearch.connection import Connection
from fairqr.retrieval.engines.elasticsearch.drafting import draft
from fairqr.retrieval.engines.elasticsearch.engine import ElasticsearchEngine
from fairqr.retrieval.engines.elasticsearch.mapping import read_index
from fairqr.retrieval.engines.elasticsearch.opening import open_elasticsearch
from fairqr.retrieval.engines.elasticsearch.opensearch import OpenSearchServer
from fairqr.retrieval.engines.elasticsearch.server import Server
from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.sources.credentials import Credentials
from fairqr.retrieval.sources.labels import LabelReader
from fairqr.retrieval.sources.source import ElasticsearchSource, Source
from tests.patience import PATIENCE
from tests.unit.retrieval.http_servers import ELASTICSEARCH, Answer, answering, of_json

KEY = Credentials(api_key="s3cret", headers={"X-Key": "s3cret"})
PLAIN = {"content-type": "application/json"}
GROUPS = {"field": "sex", "groups": ["F", "M"]}
KINDS = pytest.mark.parametrize("kind", [Server, OpenSearchServer])
PAGE = b"<html><title>502 Bad Gateway</title></html>"


def counted(kind: type[Server]) -> Answer:
    """The answer of a sound server of this kind."""
    return 200, ELASTICSEARCH if kind is Server else PLAIN, b'{"count": 1}'


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("URL", "API_KEY", "USERNAME", "PASSWORD", "CA_CERTS"):
        monkeypatch.delenv(f"FAIRQR_ELASTICSEARCH_{name}", raising=False)
    monkeypatch.setenv("FAIRQR_CONFIG", str(tmp_path / "fairqr.toml"))
    (tmp_path / "fairqr.toml").write_text("")


async def count(url: str, kind: type[Server] = Server, **options: Any) -> int:
    server = kind(Connection(urls=(url,), **options))
    try:
        return int((await server.request("POST", "/any/_count"))["count"])
    finally:
        await server.aclose()


# --- answers and failures ---------------------------------------------------------------------


async def test_an_overload_is_waited_out_as_long_as_the_server_asks() -> None:
    def answer(number: int, _: str) -> Answer:
        if number == 0:
            return of_json(429, {"error": "busy"}, **{"retry-after": "1"})
        return of_json(200, {"count": 7})

    with answering(answer) as (url, asked):
        assert await count(url) == 7
    assert len(asked.times) == 2
    assert 1 <= asked.times[1] - asked.times[0] < 20


@KINDS
@pytest.mark.parametrize(
    ("status", "says"),
    [
        (429, "is overloaded (status 429, 2 attempts); try again later."),
        (503, "failed with status 503 (full, 2 attempts); look into its log, then try again."),
    ],
)
async def test_what_does_not_heal_is_told(kind: type[Server], status: int, says: str) -> None:
    content = {"error": {"type": "x", "reason": "full"}}
    with answering(lambda *_: of_json(status, content)) as (url, asked):
        with pytest.raises(IndexUnavailableError) as caught:
            await count(url, kind, attempts=2)
        assert str(caught.value) == f"{kind.product} at {url} {says}"
        assert caught.value.__suppress_context__
    assert len(asked.times) == 2


@KINDS
@pytest.mark.parametrize(
    "answer",
    [
        (200, {"content-type": "text/html"}, b"<h1>It works!</h1>"),
        (404, {"content-type": "text/html"}, b"nothing here"),
        (405, {}, b""),
    ],
)
async def test_another_kind_of_server(kind: type[Server], answer: Answer) -> None:
    with answering(lambda *_: answer) as (url, asked):
        with pytest.raises(IndexUnavailableError) as caught:
            await count(url, kind)
        said = f"The server at {url} is not {kind.product}{kind.versions}; correct its url, or name"
        assert str(caught.value).startswith(said)
    assert len(asked.times) == 1


async def test_opensearch_is_not_taken_for_elasticsearch() -> None:
    with answering(lambda *_: (200, PLAIN, b'{"count": 3}')) as (url, _):
        with pytest.raises(
            IndexUnavailableError, match=r"is not Elasticsearch 8 or newer; .* opensearch"
        ):
            await count(url)
        assert await count(url, OpenSearchServer) == 3


@KINDS
@pytest.mark.parametrize(
    "headers", [{"content-type": "text/html"}, {"content-type": "application/json"}, {}]
)
async def test_the_page_of_a_proxy_is_not_the_servers_answer(
    kind: type[Server], headers: dict[str, str]
) -> None:
    """However the proxy calls it; the server behind may be up again a moment later."""
    with answering(lambda *_: (502, headers, PAGE)) as (url, asked):
        with pytest.raises(IndexUnavailableError) as caught:
            await count(url, kind, attempts=2)
        assert str(caught.value).startswith(
            f"Something in front of {kind.product} at {url} answered with a web page and status 502"
        )
    assert len(asked.times) == 2


@pytest.mark.parametrize(
    "content",
    [b'{"name": "n", "version": {}}', b'{"hr": {"mappings": []}}', b'{"hr": 1}', b'["hr"]'],
)
async def test_json_that_is_no_mapping(content: bytes) -> None:
    with answering(lambda *_: (200, ELASTICSEARCH, content)) as (url, _):
        server = Server(Connection(urls=(url,)))
        try:
            with pytest.raises(IndexUnavailableError, match="is not Elasticsearch"):
                await read_index(server, "hr")
        finally:
            await server.aclose()


async def test_an_answer_that_is_cut_off_or_no_json() -> None:
    for content in (b'{"count": ', b"\xff\xfe"):
        with (
            answering(lambda *_, content=content: (200, ELASTICSEARCH, content)) as (url, _),
            pytest.raises(IndexUnavailableError),
        ):
            await count(url, attempts=1)


@KINDS
@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (of_json(401, {}), IndexUnavailableError, "asks for credentials .status 401.; set FAIRQR_"),
        (
            of_json(403, {}),
            IndexUnavailableError,
            "give the account the privileges 'read' and 'view_index_metadata' on the index",
        ),
        (
            of_json(404, {"error": {"type": "index_not_found_exception", "index": "people"}}),
            IndexNotFoundError,
            "There is no index 'people' at .*; correct 'index' in the source",
        ),
        (
            of_json(403, {"error": {"type": "cluster_block_exception", "reason": "disk\nfull"}}),
            IndexUnavailableError,
            r"with status 403 \(disk full\)",
        ),
        (
            of_json(400, {"error": {"reason": "a", "caused_by": {"reason": "b"}}}),
            IndexUnavailableError,
            r"with status 400 \(a: b\)",
        ),
        (
            of_json(400, {"error": {"type": "media_type_header_exception", "reason": "x"}}),
            IndexUnavailableError,
            "is older than version 8; use a server of version 8 or 9",
        ),
        (
            of_json(400, {"error": {"type": "too_many_nested_clauses", "reason": "x"}}),
            QueryError,
            "The query has more words than",
        ),
    ],
)
async def test_refusals_are_told_and_not_tried_again(
    kind: type[Server], answer: Answer, error: type[Exception], says: str
) -> None:
    with answering(lambda *_: answer) as (url, asked), pytest.raises(error, match=says):
        await count(url, kind)
    assert len(asked.times) == 1


@KINDS
async def test_a_slow_server(kind: type[Server]) -> None:
    def answer(*_: Any) -> Answer:
        time.sleep(0.5)
        return of_json(200, {"count": 1})

    with (
        answering(answer) as (url, _),
        pytest.raises(IndexUnavailableError, match=r"answer any attempt within 0\.1 seconds; try"),
    ):
        await count(url, kind, timeout=0.1, attempts=1)


@KINDS
async def test_a_server_that_never_answers_at_opening_is_given_up_soon(kind: type[Server]) -> None:
    """No attempt begins after twice the time limit, in place of four attempts."""

    def answer(*_: Any) -> Answer:
        time.sleep(1)
        return of_json(200, {})

    with answering(answer) as (url, asked):
        server = kind(Connection(urls=(url,), timeout=0.4))
        with pytest.raises(IndexUnavailableError, match="did not answer any attempt"):
            await read_index(server, "hr")
        async with asyncio.timeout(PATIENCE):
            while not asked.times:  # its thread may be late; a second request can come no more
                await asyncio.sleep(0.01)
        assert len(asked.times) == 1
        await server.aclose()


@KINDS
async def test_a_dead_port(kind: type[Server]) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(IndexUnavailableError, match=f"cannot be reached at {url}; start it"):
            await count(url, kind, attempts=1)


@KINDS
async def test_of_several_nodes_one_that_is_down_does_no_harm(kind: type[Server]) -> None:
    with socket.socket() as held, answering(lambda *_: counted(kind)) as (url, _):
        held.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{held.getsockname()[1]}"
        server = kind(Connection(urls=(dead, url)))
        for _ in range(4):
            assert (await server.request("POST", "/any/_count"))["count"] == 1
        await server.aclose()


@KINDS
async def test_certificates_that_cannot_be_read(kind: type[Server], tmp_path: Path) -> None:
    (tmp_path / "no.pem").write_text("no certificate")
    for path in (tmp_path / "no.pem", tmp_path / "missing.pem"):
        with pytest.raises(
            FairqrError, match=r"^The certificates in .* cannot be used .* ca_certs"
        ):
            await count("https://127.0.0.1:1", kind, credentials=Credentials(ca_certs=path))


async def test_a_cloud_id_that_is_none() -> None:
    server = Server(Connection(cloud_id="people:nonsense"))
    with pytest.raises(SourceError, match=r"^The server people cannot be used .* cloud_id\.$"):
        await server.request("GET", "/")


# --- where keys go ----------------------------------------------------------------------------


@KINDS
async def test_a_key_is_sent_and_never_logged(
    kind: type[Server], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with answering(lambda *_: counted(kind)) as (url, asked):
        assert await count(url, kind, credentials=KEY) == 1
    assert asked.headers[0]["authorization"] == "ApiKey s3cret"
    assert asked.headers[0]["x-key"] == "s3cret"
    assert "s3cret" not in caplog.text


@KINDS
@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed(kind: type[Server], status: int) -> None:
    """Whoever answers at the named address cannot send the key, or the query, elsewhere."""
    with answering(lambda *_: of_json(200, {"count": 1})) as (elsewhere, asked):
        moved = (status, {**ELASTICSEARCH, "location": f"{elsewhere}/any/_count"}, b"{}")
        with (
            answering(lambda *_: moved) as (url, first),
            pytest.raises(IndexUnavailableError, match=f"{url} redirects to another address"),
        ):
            await count(url, kind, credentials=KEY)
    assert len(first.times) == 1
    assert asked.times == []


def source(url: Any, **changes: Any) -> ElasticsearchSource:
    groups = {"gender": GROUPS}
    parts = {"name": "x", "engine": "elasticsearch", "url": url, "index": "x", "text": ["bio"]}
    made = Source.model_validate({**parts, "attributes": groups, **changes})
    assert isinstance(made, ElasticsearchSource)
    return made


def test_a_source_without_an_address_takes_the_configured_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(SourceError, match=r"give its url, or set FAIRQR_ELASTICSEARCH_URL\.$"):
        Connection.of(source(None))
    monkeypatch.setenv("FAIRQR_ELASTICSEARCH_URL", "http://me:s3cret@here:9200")
    found = Connection.of(source(None, timeout=3, concurrency=2))
    assert found.urls == ("http://here:9200",)
    assert (found.timeout, found.concurrency) == (3, 2)
    assert "Basic" in found.credentials.request_headers()["Authorization"]
    assert "s3cret" not in repr(found)


@pytest.mark.parametrize(
    "url",
    [
        "http://me:s3cret@here:9200",
        ["http://here:9200", "https://me:s3cret@there:9200"],
        "me:s3cret@here:9200",
        "http//me:s3cret@here:9200",
        "http://me:s3cret@{{query}}",
        "http://here:9200/?key=s3cret",
        "http://here:9200#s3cret",
        "http://s3cret here:9200",
    ],
)
async def test_an_address_that_cannot_be_or_has_a_password_is_refused_and_never_quoted(
    url: Any,
) -> None:
    """Before anything is sent, or a draft or a source is written with it."""
    attempts = [lambda: Connection.to(url)]
    if isinstance(url, str):
        attempts += [lambda: asyncio.run(draft(url, "x"))]
    for attempt in attempts:
        with pytest.raises(SourceError, match=r"^The url of the server is wrong: the ") as caught:
            await asyncio.to_thread(attempt)
        assert "s3cret" not in str(caught.value)
        assert caught.value.__cause__ is None


def test_what_may_not_go_to_all_nodes_goes_to_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes share one client."""
    monkeypatch.setenv("FAIRQR_ELASTICSEARCH_URL", "http://here:9200")
    monkeypatch.setenv("FAIRQR_ELASTICSEARCH_API_KEY", "s3cret")
    both = ["http://here:9200", "http://evil:9200"]
    assert Connection.of(source(both[:1])).credentials.api_key
    assert Connection.of(source(both)).credentials == Credentials()


def test_a_named_entry_goes_to_its_addresses_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "named.toml"
    file.write_text('[credentials.one]\nurls = ["http://here:9200"]\napi_key = "s3cret"\n')
    monkeypatch.setenv("FAIRQR_CONFIG", str(file))
    assert Connection.of(source("http://here:9200", credentials="one")).credentials.api_key
    for url in ("http://evil:9200", ["http://here:9200", "http://evil:9200"]):
        with pytest.raises(ConfigError, match="'one' may not be sent to http://evil:9200"):
            Connection.of(source(url, credentials="one"))
    with pytest.raises(ConfigError, match="'one' may not be sent to people:x"):
        Connection.of(source(None, cloud_id="people:x", credentials="one"))


# --- searches over a server that misbehaves ---------------------------------------------------

MAPPING = {
    "x": {
        "mappings": {
            "properties": {
                "bio": {"type": "text"},
                "sex": {"type": "keyword"},
                "meaning": {"type": "semantic_text"},
                "vector": {"type": "dense_vector", "dims": 2},
            }
        }
    }
}
SHARDS = {"total": 5, "successful": 5, "failed": 0}
HIT = {"_id": "a", "_score": 1.5, "fields": {"sex": ["F"]}}


def found(**changes: Any) -> dict[str, Any]:
    """The answer to one search."""
    hits = {"total": {"value": 1}, "hits": [HIT]}
    return {"status": 200, "timed_out": False, "_shards": SHARDS, "hits": hits, **changes}


def serving(part: Callable[[int], dict[str, Any]]) -> Callable[[int, str], Answer]:
    """Answer a sound opening, and then what ``part(number of the search from 0)`` says."""

    def answer(number: int, path: str) -> Answer:
        if path.startswith("/x?"):
            return of_json(200, MAPPING)
        return of_json(200, {"responses": [found() if number < 2 else part(number - 2)]})

    return answer


@asynccontextmanager
async def opened(
    url: str, encoder: Encoder | None = None, **changes: Any
) -> AsyncIterator[ElasticsearchEngine]:
    described = source(url, **changes)
    labels = await LabelReader.open(described.attributes, Path(), store=Path("/nowhere"))
    retriever = encoder or ("dense" if "vectors" in changes else "bm25")
    engine = await open_elasticsearch(described, labels, retriever=retriever)
    try:
        yield engine
    finally:
        await engine.aclose()


async def searched(url: str, **changes: Any) -> Any:
    async with opened(url, **changes) as engine:
        (hits,) = await engine.search([Query("physics", 5)])
        return hits


async def test_a_part_that_the_server_is_too_busy_for_is_asked_again() -> None:
    busy = {"status": 429, "error": {"type": "es_rejected_execution_exception", "reason": "queue"}}
    with answering(serving(lambda n: found() if n else busy)) as (url, asked):
        hits = await searched(url)
    assert (hits.ids, hits.memberships["gender"].tolist()) == (["a"], [[1, 0]])
    assert len(asked.times) == 4


@pytest.mark.parametrize(
    ("part", "warning"),
    [
        (found(_shards={"total": 5, "failed": 2}), "2 of 5 shards of 'x' did not answer."),
        (found(timed_out=True), "The search of 'x' hit its time limit before it was complete."),
    ],
)
async def test_a_result_in_part_is_an_error_or_a_warning(part: Any, warning: str) -> None:
    with answering(serving(lambda _: part)) as (url, asked):
        with pytest.raises(IndexUnavailableError) as caught:
            await searched(url)
        assert str(caught.value).startswith(f"{warning} Try again, or accept such results with")
        header, body = map(json.loads, asked.bodies[-1].splitlines())
        assert header == {"preference": "fairqr", "allow_partial_search_results": False}
        assert "timeout" not in body
    with answering(serving(lambda _: part)) as (url, asked):
        hits = await searched(url, allow_partial=True, timeout=10)
        assert (hits.ids, hits.warnings) == (["a"], (warning,))
        header, body = map(json.loads, asked.bodies[-1].splitlines())
        assert header["allow_partial_search_results"] is True
        assert body["timeout"] == "8000ms", "the server has time to answer before the client leaves"


IN_PART = {"total": 5, "failed": 2}


async def test_a_count_in_part_has_a_warning() -> None:
    matching = {"aggregations": {"matching": {"buckets": [{"doc_count": 3}]}}}
    with answering(serving(lambda _: found(_shards=IN_PART, **matching))) as (url, _):
        async with opened(url, allow_partial=True) as engine:
            (hits,) = await engine.search([Query("physics", 0)])
    assert hits.total == 3
    assert hits.warnings == ("2 of 5 shards of 'x' did not answer.",)


async def test_shares_of_a_part_are_left_out_and_counted_again() -> None:
    """Those of all documents are kept for a while."""
    buckets = [{"doc_count": 1}, {"doc_count": 0}]
    counted = {"held": {"value": 1}, "labelled": {"doc_count": 1}, "groups": {"buckets": buckets}}

    def part(number: int) -> dict[str, Any]:
        return found(aggregations=counted, **({} if number else {"_shards": IN_PART}))

    with answering(serving(part)) as (url, asked):
        async with opened(url, allow_partial=True) as engine:
            assert await engine.corpus_shares() == {}
            for _ in "12":
                shares = await engine.corpus_shares()
                assert {name: one.tolist() for name, one in shares.items()} == {"gender": [1, 0]}
    assert len(asked.times) == 4


async def test_a_query_that_cannot_be_encoded_ends_the_others() -> None:
    """Nothing goes on in the background, and the error is that of the encoder."""
    ended: list[str] = []

    class Failing:
        name = "failing"

        async def encode_documents(self, texts: list[str]) -> Any:
            raise NotImplementedError

        async def encode_query(self, text: str) -> Any:
            if text == "bad":
                raise ModelError("unavailable", "The encoder is out.")
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                ended.append(text)
                raise

    vectors = {"field": "vector", "embeddings": "failing"}
    with answering(serving(lambda _: found())) as (url, _):
        async with opened(url, Failing(), vectors=vectors) as engine:
            assert "vectors" in engine.capabilities
            assert "vectors" not in engine.lexical.capabilities
            with pytest.raises(ModelError, match=r"The encoder is out\."):
                await engine.search([Query("good", 5), Query("bad", 5)])
            assert ended == ["good"]


async def test_a_part_that_fails_is_told_with_its_reason() -> None:
    cause = {"type": "query_shard_exception", "reason": "no such thing"}
    part = {"status": 400, "error": {"root_cause": [cause], "type": "x", "reason": "all failed"}}
    with (
        answering(serving(lambda _: part)) as (url, _),
        pytest.raises(IndexUnavailableError, match=r"with status 400 \(no such thing\)\.$"),
    ):
        await searched(url)


@pytest.mark.parametrize("content", [b"[]", b'"x"', b"{}"])
async def test_what_is_no_mapping_is_told(content: bytes) -> None:
    with (
        answering(lambda *_: (200, ELASTICSEARCH, content)) as (url, _),
        pytest.raises((IndexUnavailableError, IndexNotFoundError)) as caught,
    ):
        await searched(url)
    assert "\n" not in str(caught.value)


async def test_a_field_of_semantic_text_is_asked_by_the_servers_own_query() -> None:
    """The request alone: no server that knows such fields could be had."""
    with answering(serving(lambda _: found())) as (url, asked):
        hits = await searched(url, vectors={"field": "meaning"}, filter={"term": {"sex": "F"}})
    assert hits.ids == ["a"]
    body = json.loads(asked.bodies[-1].splitlines()[1])
    semantic = {"semantic": {"field": "meaning", "query": "physics"}}
    assert body["query"] == {"bool": {"must": [semantic], "filter": [{"term": {"sex": "F"}}]}}
