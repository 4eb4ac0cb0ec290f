"""Templates, asynchronous searches and filtered replies give what the cluster itself gives."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from fairqr.graph.service.proxy.filters import filtered
from tests.integration.graph.service.proxy.proxied import Proxied, hits_of, proxied
from tests.patience import until
from tests.servers.attached_people import Server, people
from tests.servers.counting_proxy import CountingProxy, counting_proxy

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("people")]

WORDS = {"words": "physicist opera"}
SEARCH: dict[str, Any] = {"query": {"match": {"bio": "{{words}}"}}, "size": 7}
TEMPLATE = {"source": SEARCH, "params": WORDS}
STORED = "fairqr-test"
ASYNC = "/people/_async_search"
SLOW = {
    "query": {
        "script_score": {
            "query": {"match": {"bio": "physicist opera"}},
            "script": {
                "source": "double all = 0; for (int i = 0; i < 300000; i++) {all += i % 7}"
                "return all + doc['height'].value"
            },
        }
    }
}
RICH = {
    "query": {"match": {"bio": "opera"}},
    "size": 3,
    "aggs": {"a.b": {"terms": {"field": "person.sex"}}},
    "fields": ["number", "height"],
    "docvalue_fields": ["place"],
    "highlight": {"fields": {"bio": {}}},
    "suggest": {"few": {"text": "opera", "term": {"field": "bio"}}},
}
"""What has a reply with all kinds of members."""

STRANGE = [
    ",",
    "**",
    "-*",
    "***",
    "hits.",
    ".hits",
    "?its",
    "h[i]ts",
    " hits.total , took",
    "- hits",
    "hits,-hits",
    "hits.**.sex",
    "-hits.**.sex",
    "suggest.few.options",
    "hits.total.value.of_tomorrow",
    r"aggregations.a\.b.buckets",
    "aggregations.a.b.buckets",
]


@pytest.fixture(scope="module", params=["elasticsearch", "opensearch"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with people(request.getfixturevalue(f"{request.param}_url"), "people") as found:
        found.ask("PUT", f"/_scripts/{STORED}", {"script": {"lang": "mustache", "source": SEARCH}})
        yield found
        found.client.delete(f"/_scripts/{STORED}")


@pytest.fixture(scope="module")
def counted(server: Server) -> Iterator[CountingProxy]:
    with counting_proxy(server.url) as found:
        yield found


@pytest.fixture(scope="module")
def proxy(
    server: Server, counted: CountingProxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Proxied]:
    folder = tmp_path_factory.mktemp("others")
    source = {"engine": server.engine, "url": server.url}
    with proxied(folder, counted.url, source=source, index={"window": 50}) as found:
        found.ready()
        yield found


def ask(client: httpx.Client, body: Any, **parameters: str) -> httpx.Response:
    return client.post("/people/_search/template", json=body, params=parameters)


@pytest.mark.parametrize(
    "template",
    [
        TEMPLATE,
        {"id": STORED, "params": WORDS},
        {**TEMPLATE, "source": json.dumps(SEARCH).replace("7", "{{size}}{{^size}}7{{/size}}")},
        {**TEMPLATE, "explain": True},
        {**TEMPLATE, "source": {**SEARCH, "explain": True}},
    ],
    ids=["inline", "stored", "text", "explained", "explained-within"],
)
def test_a_template_is_re_ranked_as_the_search_that_it_stands_for(
    server: Server, proxy: Proxied, counted: CountingProxy, template: Any
) -> None:
    counted.passed.clear()
    reply = ask(proxy.client, template)
    assert reply.headers["fairqr"] == "re-ranked; ranks"
    assert counted.passed == [("POST", "/_render/template"), ("POST", "/people/_search")]
    direct = ask(server.client, template)
    fair = reply.json()
    own = direct.json()
    shown = fair["hits"].pop("hits")
    hits = own["hits"].pop("hits")
    assert {**fair, "took": 0} == {**own, "took": 0}
    assert [hit.keys() for hit in shown] == [hit.keys() for hit in hits]
    ids = [hit["_id"] for hit in shown]
    assert ids != [hit["_id"] for hit in hits]
    plain = proxy.search({"query": {"match": {"bio": WORDS["words"]}}, "size": 7})
    assert ids == [hit["_id"] for hit in plain.json()["hits"]["hits"]]


@pytest.mark.parametrize(
    ("template", "parameters"),
    [
        ({"id": "of-nobody"}, {}),
        ({}, {}),
        ({"source": "[1]"}, {}),
        ({"source": '{"size": 3, "size": 4}'}, {}),
        ({"source": {"query": {"of_tomorrow": {}}}}, {}),
        ({**TEMPLATE, "of_tomorrow": 1}, {}),
        ([TEMPLATE], {}),
        (TEMPLATE, {"size": "3"}),
        (TEMPLATE, {"scroll": "1m"}),
    ],
    ids=str,
)
def test_a_template_of_which_the_cluster_makes_no_plain_search_passes(
    server: Server, proxy: Proxied, template: Any, parameters: dict[str, str]
) -> None:
    reply = ask(proxy.client, template, **parameters)
    direct = ask(server.client, template, **parameters)
    assert reply.headers["fairqr"].startswith("passed; ")
    assert reply.status_code == direct.status_code
    assert reply.json().get("error") == direct.json().get("error")
    assert reply.json().get("hits") == direct.json().get("hits")


def test_several_templates_in_one_request_pass(server: Server, proxy: Proxied) -> None:
    lines = f"{{}}\n{json.dumps(TEMPLATE)}\n"
    how: Any = {"content": lines, "headers": {"content-type": "application/x-ndjson"}}
    reply = proxy.client.post("/people/_msearch/template", **how)
    assert reply.headers["fairqr"] == "passed; template"
    direct = server.client.post("/people/_msearch/template", **how)
    hits = [it.json()["responses"][0]["hits"] for it in (reply, direct)]
    assert hits[0] == hits[1]


@pytest.mark.parametrize("server", ["elasticsearch"], indirect=True)
def test_who_comes_back_for_an_asynchronous_search_finds_the_page_and_nothing_else_is_kept(
    server: Server, proxy: Proxied, counted: CountingProxy
) -> None:
    before = _kept(server)
    counted.passed.clear()
    reply = proxy.client.post(ASYNC, json=SLOW, params={"wait_for_completion_timeout": "1ms"})
    assert reply.headers["fairqr"] == "passed; async"
    assert reply.json()["is_running"]
    asked = [method for method, _ in counted.passed]
    assert asked == ["POST", "DELETE", "POST"]

    id_ = reply.json()["id"]
    come_back = {"wait_for_completion_timeout": "60s"}
    finished = proxy.client.get(f"/_async_search/{id_}", params=come_back)
    direct = server.client.post("/people/_search", json=SLOW)
    assert hits_of(finished) == hits_of(direct)
    assert len(hits_of(finished)) == 10
    until(lambda: _kept(server) == before + 1)
    proxy.client.delete(f"/_async_search/{id_}").raise_for_status()

    # Where one took too long, the next one is not tried either: it would cost the cluster twice.
    counted.passed.clear()
    quick = proxy.client.post(ASYNC, json={"query": {"match": {"bio": "opera"}}})
    assert quick.headers["fairqr"] == "passed; async"
    assert [method for method, _ in counted.passed] == ["POST"]
    assert proxy.search().headers["fairqr"] == "re-ranked; ranks"


def _kept(server: Server) -> int:
    """Return how many asynchronous searches the cluster keeps."""
    server.client.post("/.async-search/_refresh")
    return int(server.client.get("/.async-search/_count").json().get("count", 0))


def test_filters_of_replies_keep_what_the_cluster_keeps(server: Server) -> None:
    whole = server.client.post("/people/_search", json=RICH)
    draw = random.Random(3)
    names = sorted(set(_names(whole.json())))
    generated = [",".join(_filters(draw, names)) for _ in range(300)]
    for filter_path in (*STRANGE, *generated):
        how = {"filter_path": filter_path}
        direct = server.client.post("/people/_search", json=RICH, params=how).json()
        own = json.loads(filtered(whole.text, filter_path))
        assert {**own, "took": 0} == {**direct, "took": 0}, filter_path


def _names(value: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the names on the way to each member."""
    for one in value if isinstance(value, list) else ():
        yield from _names(one, above)
    for name, inner in value.items() if isinstance(value, dict) else ():
        yield (*above, name)
        yield from _names(inner, (*above, name))


def _filters(draw: random.Random, names: list[tuple[str, ...]]) -> Iterator[str]:
    """Yield some filters, of which each may be wild, and leave something out."""
    for _ in range(draw.choice([1, 1, 2, 3, 4])):
        path = draw.choice(names)
        written = [draw.choice(_spellings(name)) for name in path]
        yield draw.choice(["", "", "-"]) + ".".join(written)


def _spellings(name: str) -> list[str]:
    """Return ways to write a name of a filter; some are for no name at all."""
    exact = name.replace(".", r"\.")
    wild = ["*", "**", f"{name[:2]}*", f"*{name[-1:]}", f"{name[:1]}*{name[-1:]}", "of_tomorrow"]
    return [*[exact] * 6, *wild]
