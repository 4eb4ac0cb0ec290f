"""Reaching servers of Elasticsearch and OpenSearch: real HTTP servers that misbehave."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import threading
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from elasticsearch import AsyncElasticsearch
from opensearchpy import AsyncOpenSearch

from fairqr.base.errors import (
    ConfigError,
    FairqrError,
    IndexNotFoundError,
    IndexUnavailableError,
    QueryError,
    SourceError,
)
from fairqr.retrieval.engines.elasticsearch.client import CLIENT, SearchServer, _with_port
from fairqr.retrieval.engines.elasticsearch.drafting import draft
from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.sources.source import ElasticsearchSource, source_of
from tests.patience import PATIENCE
from tests.servers.attached_people import attached
from tests.servers.http_servers import ELASTICSEARCH, Answer, Received, answering, of_json

ENGINES = pytest.mark.parametrize("engine", ["elasticsearch", "opensearch"])
PAGE = 502, {"content-type": "text/html"}, b"<html><title>502 Bad Gateway</title></html>"


@pytest.fixture(autouse=True)
def _settings(settings_file: Path) -> None:
    settings_file.write_text("")


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Write an entry of credentials, and return its name."""

    def write(*urls: str, **parts: object) -> str:
        lines = {"urls": list(urls), "api_key": "s3cret", **parts}
        text = "".join(f"{key} = {json.dumps(part)}\n" for key, part in lines.items())
        text = f'[credentials.mine]\n{text}headers = {{"X-Key" = "s3cret"}}\n'
        (tmp_path / "named.toml").write_text(text)
        monkeypatch.setenv("FAIRQR_CONFIG", str(tmp_path / "named.toml"))
        return "mine"

    return write


def source(url: Any, **changes: Any) -> ElasticsearchSource:
    groups = {"gender": {"field": "sex", "groups": ["F", "M"]}}
    parts = {"name": "x", "engine": "elasticsearch", "url": url, "index": "x", "text": ["bio"]}
    made = source_of({**parts, "attributes": groups, **changes})
    assert isinstance(made, ElasticsearchSource)
    return made


async def count(url: Any, engine: str = "elasticsearch", **changes: Any) -> int:
    async with aclosing(SearchServer(source(url, engine=engine, **changes))) as server:
        return int((await server.ask("count", index="any"))["count"])


async def refused(url: Any, kind: type[Exception], said: str, engine: str, **more: Any) -> None:
    """Expect one sentence that quotes no key."""
    with pytest.raises(kind, match=said) as caught:
        await count(url, engine, **more)
    assert "\n" not in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__suppress_context__ or not caught.value.__context__


# --- answers and failures ---------------------------------------------------------------------


@pytest.mark.promise("engines")
async def test_an_overload_is_waited_out_as_long_as_the_server_asks() -> None:
    """A busy server is asked again after as long as it says."""

    def answer(number: int, _: Received) -> Answer:
        if number == 0:
            return of_json(429, {"error": "busy"}, **{"retry-after": "1"})
        return of_json(200, {"count": 7})

    with answering(answer) as (url, asked):
        assert await count(url) == 7
    assert 1 <= asked[1].at - asked[0].at < 20


@pytest.mark.promise("engines")
@ENGINES
@pytest.mark.parametrize("answer", [of_json(503, {"error": "full"}), PAGE])
async def test_what_a_node_fails_at_is_asked_four_times(engine: str, answer: Answer) -> None:
    """A request at which a node fails is sent four times at most.

    By the client alone: nobody retries twice.
    """
    said = rf"look into its log, and try again \(status {answer[0]}\)\.$"
    with answering(lambda *_: answer) as (url, asked):
        await refused(url, IndexUnavailableError, said, engine)
    assert len(asked) == 4


NO_INDEX = {"type": "index_not_found_exception", "index": "people"}
BLOCKED = {"type": "cluster_block_exception", "reason": "disk\nfull"}
CAUSED = {"reason": "a", "caused_by": {"reason": "b"}}
TOO_MANY = {"type": "too_many_nested_clauses"}
CLOSED = {"type": "index_closed_exception", "reason": "closed", "index": "hr-2020"}
OLD = {"type": "media_type_header_exception", "reason": "Invalid media-type value on headers"}
A_PAGE = r"sends a page of HTML; correct its url, or look at what stands before it\.$"
OTHER = r"^The server at http\S+ is not .*its engine"


@pytest.mark.promise("engines")
@ENGINES
async def test_refusals_are_told_and_not_tried_again(engine: str) -> None:
    """What a server refuses is reported and not asked again."""
    refusals: list[tuple[Answer, type[Exception] | None, str]] = [
        ((200, {"content-type": "text/html"}, b"<h1>It works!</h1>"), None, A_PAGE),
        ((200, ELASTICSEARCH, b"<!DOCTYPE html><title>Log in</title>"), None, A_PAGE),
        ((403, {"content-type": "text/html"}, b"<html><body>No</body></html>"), None, A_PAGE),
        ((405, {}, b""), None, OTHER),
        ((200, ELASTICSEARCH, b'["hr"]'), None, OTHER),
        ((200, ELASTICSEARCH, b'{"count": '), None, "broke off its reply; try again"),
        (of_json(400, {"error": CLOSED}), None, r"^The index 'hr-2020' is closed; open it"),
        (of_json(400, {"error": OLD}), None, r"is Elasticsearch 7; upgrade it to 8 or later\.$"),
        ((200, ELASTICSEARCH, b'{"responses": ["a"]}'), None, OTHER),
        (of_json(401, {"error": None}), None, "or asks for some; set FAIRQR_"),
        (of_json(403, {"error": None}), None, "privileges 'read' and 'view_index_metadata' on the"),
        (of_json(404, {"error": NO_INDEX}), IndexNotFoundError, "no index 'people' at .*; correct"),
        (of_json(403, {"error": BLOCKED}), None, r"does not do this \(disk full\).*status 403"),
        (of_json(400, {"error": CAUSED}), None, r"\(a: b\); correct the source \(status 400\)\.$"),
        (of_json(400, {"error": {"root_cause": ["a"]}}), None, r"\(no reason given\).*status 400"),
        (of_json(400, {"error": TOO_MANY}), QueryError, "The query has more words than"),
    ]
    with answering(lambda number, _: refusals[number][0]) as (url, asked):
        for number, (_, error, says) in enumerate(refusals, start=1):
            await refused(url, error or IndexUnavailableError, says, engine)
            assert len(asked) == number


@ENGINES
async def test_a_reply_that_ends_too_early_is_called_that(engine: str) -> None:
    """The server is there: nobody has to start it."""
    headers = {**ELASTICSEARCH, "content-length": "500", "connection": "close"}
    with answering(lambda *_: (200, headers, b'{"hr": {"mappings": {')) as (url, _):
        await refused(url, IndexUnavailableError, "broke off its reply; try again", engine)


async def test_an_old_elasticsearch_is_not_drafted_as_opensearch() -> None:
    """One that does not tell its name yet, and answers what it is asked."""
    about = {"version": {"number": "7.10.2", "build_flavor": "default"}}

    def answer(_: int, asked: Received) -> Answer:
        content = about if asked.path == "/" else MAPPING
        return 200, {"content-type": "application/json"}, json.dumps(content).encode()

    said = pytest.raises(IndexUnavailableError, match=r"is Elasticsearch 7\.10\.2; upgrade it to 8")
    with answering(answer) as (url, _), said:
        await draft(url, "x")


async def test_a_hybrid_query_of_opensearch_is_sent_as_it_is() -> None:
    """It stands alone in a body; a filter around it is one sentence."""
    queries = [{"match": {"bio": "{{query}}"}}, {"neural": {"vector": {"query_text": "{{query}}"}}}]
    body = {"query": {"hybrid": {"queries": queries}}, "search_pipeline": "normalised"}
    changes: dict[str, Any] = {"engine": "opensearch", "body": body, "query": None}
    with answering(serving(found())) as (url, asked):
        async with attached(source(url, **changes)) as engine:
            assert not {"rescore", "document_frequencies", "within_group"} & engine.capabilities
            await engine.search([Query("physics", 5)])
        sent = json.loads(asked[-1].body.splitlines()[1])
        assert sent["query"]["hybrid"]["queries"][0] == {"match": {"bio": "physics"}}
        assert sent["search_pipeline"] == "normalised"
        with pytest.raises(SourceError, match="filter cannot be added to this body"):
            await searched(url, **changes, filter={"term": {"published": True}})


@ENGINES
async def test_a_slow_server_is_given_up(engine: str) -> None:
    given_up = threading.Event()

    def answer(number: int, _: Received) -> Answer:
        assert number < 4 or given_up.wait(PATIENCE)
        return of_json(200, {"count": 1})

    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{held.getsockname()[1]}"
        with answering(answer) as (url, asked):
            for _ in range(4):
                assert await count([dead, url], engine) == 1
            await refused(url, IndexUnavailableError, "answer in time", engine, timeout=2)
            given_up.set()
        await refused(dead, IndexUnavailableError, f"at {dead} cannot be reached; start", engine)
    assert len(asked) == 5


@ENGINES
async def test_what_no_client_can_be_made_of(
    engine: str, entry: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "no.pem").write_text("no certificate")
    url, said = (
        "https://127.0.0.1:1",
        r"cannot be read .* ca_certs in the settings file: it",
    )
    for name in ("no.pem", "missing.pem"):
        await refused(url, FairqrError, said, engine, credentials=entry(url, ca_certs=name))
    said = r"^The server people cannot be used .* cloud_id"
    await refused(None, SourceError, said, "elasticsearch", cloud_id="people:nonsense")


# --- a newer server, and clients that users made ----------------------------------------------


async def test_elasticsearch_9_is_asked_as_it_documents() -> None:
    """Its documented differences, replayed: media types, the product header, parameters.

    It answers a client of version 8 that asks for ``compatible-with=8`` in each request with a
    body, names itself in a header, and knows no ``types``, ``include_type_name`` or
    ``local`` any more.
    """
    compatible = "application/vnd.elasticsearch+json;compatible-with=8"

    def answer(_: int, asked: Received) -> Answer:
        sent = {key: asked.headers.get(key, "") for key in ("accept", "content-type")}
        wanted = ["accept"] + ["content-type"] * bool(asked.body)
        if any("compatible-with=8" not in sent[key] for key in wanted):
            return of_json(400, {"error": {"type": "media_type_header_exception", "reason": "9"}})
        if {"types", "include_type_name", "local"} & set(asked.path.replace("?", "&").split("&")):
            return of_json(400, {"error": {"reason": "unrecognized parameter"}})
        content: Any = MAPPING if asked.path.startswith("/x?") else {"responses": [found()]}
        content = {"version": {"number": "9.2.0"}} if asked.path == "/" else content
        return of_json(200, content, **{"content-type": compatible})

    with answering(answer) as (url, _):
        async with attached(source(url)) as engine:
            (hits,) = await engine.search([Query("physics", 5)])
            info = await engine.info()
    assert (hits.ids, info.server) == (["a"], "Elasticsearch 9.2.0")


@ENGINES
def test_a_users_client_serves_one_loop_and_stays_open(engine: str) -> None:
    kinds = {"elasticsearch": AsyncElasticsearch, "opensearch": AsyncOpenSearch}

    async def ask(server: SearchServer) -> None:
        for _ in range(2):
            assert (await server.ask("count", index="any"))["count"] == 3
        await server.aclose()
        assert (await client.count(index="any"))["count"] == 3
        await client.close()

    with answering(lambda *_: of_json(200, {"count": 3})) as (url, _):
        client: Any = kinds[engine](url)
        server = SearchServer(source(None, engine=engine, client=client))
        asyncio.run(ask(server))
        with pytest.raises(SourceError, match=r"one event loop only.*; open the engine again here"):
            asyncio.run(ask(server))
        (other,) = {*kinds} - {engine}
        with pytest.raises(SourceError, match="client is not an async"):
            source(None, engine=other, client=client)


def test_an_address_without_a_port_means_that_of_its_scheme() -> None:
    """As it does where credentials are compared with addresses."""
    for given, meant in (("https://a", 443), ("http://a:/path", 80), ("http://a:9201/", 9201)):
        assert urlsplit(_with_port(given)).port == meant


# --- where keys go ----------------------------------------------------------------------------


@pytest.mark.promise("engines")
@ENGINES
@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed(
    engine: str, entry: Callable[..., str], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """No redirect of a server is followed, so a key goes nowhere else.

    Whoever answers at the named address cannot send the key, or the query, elsewhere.

    That address gets the key, which is never logged.
    """
    caplog.set_level(logging.DEBUG)
    with answering(lambda *_: of_json(200, {"count": 1})) as (elsewhere, asked):
        moved = (status, {**ELASTICSEARCH, "location": f"{elsewhere}/any/_count"}, b"{}")
        with answering(lambda *_: moved) as (url, named):
            said = f"{url} redirects to another address"
            await refused(url, IndexUnavailableError, said, engine, credentials=entry(url))
    assert asked == []
    sent = named[0].headers["authorization"], named[0].headers["x-key"]
    assert sent == ("ApiKey s3cret", "s3cret")
    assert "s3cret" not in caplog.text


async def test_a_wrong_address_is_refused_and_never_quoted() -> None:
    """Before anything is sent, or a draft or a source is written with it."""
    for url in (
        ["http://here:9200", "https://me:s3cret@there:9200"],
        "me:s3cret@here:9200",
        "http://here:9200/?key=s3cret",
        "http://here:9200#s3cret",
        "http://s3cret here:9200",
    ):
        with pytest.raises(SourceError, match=r"^The source is wrong at ") as caught:
            source(url)
        with pytest.raises(SourceError, match=r"^The source is wrong at url") as drafted:
            await draft(url, "x")
        assert "s3cret" not in f"{caught.value} {drafted.value}"


@pytest.mark.promise("engines")
def test_a_key_goes_only_to_the_addresses_of_its_entry(
    monkeypatch: pytest.MonkeyPatch, entry: Callable[..., str]
) -> None:
    """A key goes only to the addresses of its entry in the settings.

    The nodes share one client, so what may not go to all of them goes to none.
    """
    with pytest.raises(SourceError, match=r"give its url, or set FAIRQR_ELASTICSEARCH_URL\.$"):
        SearchServer(source(None))
    monkeypatch.setenv("FAIRQR_ELASTICSEARCH_URL", "http://here:9200")
    monkeypatch.setenv("FAIRQR_ELASTICSEARCH_API_KEY", "s3cret")
    assert SearchServer(source(None)).url == "http://here:9200"
    both = ["http://here:9200", "http://evil:9200"]
    assert SearchServer(source(both[:1])).credentials.api_key
    assert not SearchServer(source(both)).credentials.request_headers()
    named = entry("http://here:9200")
    assert SearchServer(source(both[0], credentials=named)).credentials.api_key
    for url, cloud_id in (("http://evil:9200", None), (both, None), (None, "people:x")):
        said = "'mine' may not be sent to (http://evil:9200|people:x)"
        with pytest.raises(ConfigError, match=said):
            SearchServer(source(url, cloud_id=cloud_id, credentials=named))


# --- searches over a server that misbehaves ---------------------------------------------------

FIELDS = {"bio": {"type": "text"}, "sex": {"type": "keyword"}}
MAPPING = {"x": {"mappings": {"properties": FIELDS}}}
SHARDS = {"total": 5, "successful": 5, "failed": 0}
IN_PART = {"total": 5, "failed": 2}
HIT = {"_id": "a", "_score": 1.5, "fields": {"sex": ["F"]}}


def found(**changes: Any) -> dict[str, Any]:
    """The answer to one search."""
    hits = {"total": {"value": 1}, "hits": [HIT]}
    return {"status": 200, "timed_out": False, "_shards": SHARDS, "hits": hits, **changes}


def serving(*parts: dict[str, Any]) -> Callable[[int, Received], Answer]:
    """Answer a sound opening, and then with these results of a search; the last one stays."""

    def answer(number: int, asked: Received) -> Answer:
        part = parts[min(number, len(parts)) - 1]
        is_search = asked.path.startswith("/x/_msearch")
        return of_json(200, {"responses": [part]} if is_search else MAPPING)

    return answer


async def searched(url: str, **changes: Any) -> Any:
    async with attached(source(url, **changes)) as engine:
        (hits,) = await engine.search([Query("physics", 5)])
        return hits


@pytest.mark.promise("engines")
async def test_a_part_that_the_server_is_too_busy_for_is_asked_again() -> None:
    """A part of a request that the server is too busy for is asked again."""
    busy = {"status": 429, "error": {"type": "es_rejected_execution_exception", "reason": "queue"}}
    with answering(serving(busy, found())) as (url, asked):
        hits = await searched(url)
    assert (hits.ids, hits.memberships["gender"].tolist()) == (["a"], [[1, 0]])
    assert len(asked) == 3


@pytest.mark.promise("engines")
@pytest.mark.parametrize(
    ("part", "warning"),
    [
        (found(_shards=IN_PART), "2 of 5 shards of 'x' did not answer."),
        (found(timed_out=True), "The search of 'x' hit its time limit before it was complete."),
    ],
)
async def test_a_result_in_part_is_an_error_or_a_warning(part: Any, warning: str) -> None:
    """Failed shards are an error, or a warning under `allow_partial`; hits come from the same copy
    of each shard.
    """
    with answering(serving(part)) as (url, asked):
        with pytest.raises(IndexUnavailableError) as caught:
            await searched(url)
        assert str(caught.value).startswith(f"{warning} Try again, or accept such results with")
        header, body = map(json.loads, asked[-1].body.splitlines())
        assert header == {"preference": "fairqr", "allow_partial_search_results": False}
        assert "timeout" not in body
        async with attached(source(url, allow_partial=True, timeout=10)) as engine:
            hits, counted = [(await engine.search([Query("physics", n)]))[0] for n in (5, 0)]
        assert (hits.ids, counted.total) == (["a"], 1)
        assert hits.warnings == counted.warnings == (warning,)
        header, body = map(json.loads, asked[-1].body.splitlines())
        assert header["allow_partial_search_results"] is True
        assert body["timeout"] == "8000ms", "the server has time to answer before the client leaves"


async def test_shares_of_a_part_are_left_out_and_counted_again() -> None:
    """Those of all documents are kept for a while."""
    buckets = [{"key": "F\0", "doc_count": 3}, {"key": "F\0M\0", "doc_count": 1}]
    counted = {"labels": {"sum_other_doc_count": 0, "buckets": buckets}}
    whole = found(aggregations=counted)
    with answering(serving({**whole, "_shards": IN_PART}, whole)) as (url, asked):
        async with attached(source(url, allow_partial=True)) as engine:
            assert await engine.corpus_shares() == {}
            for _ in "12":
                assert (await engine.corpus_shares())["gender"].tolist() == [0.875, 0.125]
    assert len(asked) == 3


@pytest.mark.parametrize("content", [b"{}", b'{"hr": {"mappings": []}}'])
async def test_what_is_no_mapping_is_told(content: bytes) -> None:
    told = pytest.raises((IndexUnavailableError, IndexNotFoundError), match=r"^The")
    with answering(lambda *_: (200, ELASTICSEARCH, content)) as (url, _), told:
        await searched(url)


# --- versions ---------------------------------------------------------------------------------


def of_version(version: int) -> Callable[[int, Received], Answer]:
    """Play a server: it takes requests in its own form and in that of the version before."""

    def answer(_: int, asked: Received) -> Answer:
        forms = {int(it) for it in re.findall("compatible-with=([0-9]+)", asked.headers["accept"])}
        if not forms <= {version, version - 1}:
            found = f"Accept version must be either version {version} or {version - 1}, not {forms}"
            refusal = {"type": "media_type_header_exception", "reason": found}
            return of_json(400, {"error": refusal, "status": 400})
        form = f"application/vnd.elasticsearch+json;compatible-with={min(forms)}"
        return of_json(200, {"count": version}, **{"content-type": form})

    return answer


@pytest.mark.promise("command")
@pytest.mark.parametrize("version", [8, 9])
async def test_servers_of_both_versions_take_our_requests(version: int) -> None:
    """Clients 8 and 9 of Elasticsearch ask servers of versions 8 and 9 in a form that they take.

    By either client; a test runs this with each.
    """
    with answering(of_version(version)) as (url, asked):
        assert await count(url) == version
    assert "compatible-with=8" in asked[0].headers["accept"]


async def test_a_server_that_refuses_a_users_client_is_explained() -> None:
    with answering(of_version(CLIENT - 1)) as (url, _):
        async with (
            AsyncElasticsearch(url) as client,
            aclosing(SearchServer(source(None, client=client))) as server,
        ):
            said = f"Your client is Elasticsearch's version {CLIENT}.* give its url in place"
            with pytest.raises(IndexUnavailableError, match=said):
                await server.ask("count", index="any")
    with answering(of_version(7)) as (url, _):
        await refused(url, IndexUnavailableError, "is Elasticsearch 7; upgrade it", "elasticsearch")
