"""Each kind of search is re-ranked within its own window, or passes with its reason.

The table in kinds.yaml says how. Most are tried on Elasticsearch 8.12 and OpenSearch 2.5. They
have no retrievers, no hybrid and no neural queries. A server that is written from the documentation
answers those, over the real ones (documented.py).
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx
import pytest
import yaml

from fairqr.graph.service.proxy.filters import filtered
from fairqr.graph.service.proxy.replies import windows_in, with_page
from fairqr.graph.service.proxy.requests import ProxiedSearch, planned
from fairqr.graph.service.proxy.settings import ProxiedIndex
from tests.integration.graph.service.proxy.documented import NewerElasticsearch, NewerOpensearch
from tests.integration.graph.service.proxy.proxied import (
    Proxied,
    hits_of,
    proxied,
    raw_cluster,
)
from tests.patience import PATIENCE, until
from tests.servers.attached_people import MAPPING, PEOPLE, Server
from tests.servers.model_server import Main

pytestmark = [pytest.mark.timeout(1200), pytest.mark.xdist_group("people")]

KINDS: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("kinds.yaml").read_text())
TRIED = [(server, kind) for kind in KINDS for server in kind["servers"]]
TRIED.sort(key=lambda tried: tried[0])
NAMES = [f"{server}-{number}-{kind['kind']}" for number, (server, kind) in enumerate(TRIED)]
WINDOW = 50
WORDS = "physicist opera"
FARTHEST = 70
"""Pages begin before this hit."""

VECTORS = {
    "elasticsearch": {"type": "dense_vector", "dims": 4, "index": True, "similarity": "l2_norm"},
    "opensearch": {"type": "knn_vector", "dimension": 4},
}
DOCUMENTED = {"elasticsearch": NewerElasticsearch, "opensearch": NewerOpensearch}


@dataclass
class Cluster:
    """A cluster, directly and through two proxies."""

    server: str
    direct: httpx.Client
    fair: Proxied
    shadow: Proxied
    log: Path

    def ask(self, kind: dict[str, Any], **paging: Any) -> httpx.Response:
        return ask_for(self.direct, kind, **paging)


def ask_for(client: httpx.Client, kind: dict[str, Any], **paging: Any) -> httpx.Response:
    """Ask for a search of a kind."""
    path = kind.get("path", "_search")
    body = {**kind["body"], **paging}
    if path == "_search/template":
        body = as_template(body)
    reply = client.post(f"/people/{path}", json=body, params=kind.get("parameters", {}))
    assert reply.status_code == 200, reply.text
    return reply


def as_template(body: dict[str, Any]) -> dict[str, Any]:
    """Return a template that stands for a search, with its words as a parameter."""
    source = json.dumps(body).replace(WORDS, "{{words}}")
    return {"source": source, "params": {"words": WORDS}}


def search_in(text: str) -> Any:
    """Return the reply to a search, without what tells when it was asked for."""
    reply = json.loads(text)
    reply = reply.get("response", reply)
    reply.pop("took", None)
    return reply


@pytest.fixture(scope="module")
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    engine = request.param.split()[-1]
    url = request.getfixturevalue(f"{engine}_url")
    properties = {**MAPPING["properties"], "vector": VECTORS[engine]}
    settings: dict[str, Any] = {"number_of_shards": 2}
    if engine == "opensearch":
        settings["index.knn"] = True
    draw = random.Random(7)
    documents = {}
    for id_, person in PEOPLE.items():
        vector = [round(draw.random(), 3) for _ in range(4)]
        documents[id_] = {**person, "vector": vector}
    with ExitStack() as stack:
        server = Server(url)
        stack.enter_context(server.client)
        stack.enter_context(
            server.index("people", documents, {"properties": properties}, **settings)
        )
        before = url
        if request.param != engine:
            replaying = stack.enter_context(raw_cluster())
            replaying.replies = DOCUMENTED[engine](server.client)
            before = replaying.url
        options: dict[str, Any] = {"source": {"engine": engine, "url": url}}
        folder = tmp_path_factory.mktemp("kinds")
        index = {"window": WINDOW}
        fair = stack.enter_context(
            proxied(folder / "fair", before, index=index, log="log", **options)
        )
        index = {"window": WINDOW, "mode": "shadow"}
        shadow = stack.enter_context(
            proxied(folder / "shadow", before, index=index, log="log", **options)
        )
        direct = stack.enter_context(
            httpx.Client(base_url=before, timeout=PATIENCE, trust_env=False)
        )
        log = folder / "shadow" / "log" / "log.jsonl"
        fair.ready()

        def is_open() -> bool:
            """Search, and tell whether the list of some search is known."""
            shadow.search()
            return log.exists() and any("exposure" in record for record in records_in(log))

        until(is_open)
        yield Cluster(request.param, direct, fair, shadow, log)


on_each = pytest.mark.parametrize(
    ("cluster", "kind"), TRIED, ids=NAMES, indirect=["cluster"], scope="module"
)


def starts(cluster: Cluster, kind: dict[str, Any]) -> list[dict[str, int]]:
    """Return where the pages of a search begin."""
    size = len(hits_of(cluster.ask(kind)))
    if kind.get("first_page") and "hybrid" in str(kind):
        return [{}]  # such a server has no other page
    return [{"from": start} if start else {} for start in range(0, FARTHEST, size)]


@on_each
def test_what_is_asked_finds_what_the_client_finds(cluster: Cluster, kind: dict[str, Any]) -> None:
    """The reply to it, cut to the page without a new order, is that to the client's own search."""
    index = ProxiedIndex(source=Path("people.yaml"), mode="fair", window=WINDOW)
    parameters = kind.get("parameters", {})
    if kind.get("passes") == "async":
        return  # the same search is re-ranked where nobody keeps it
    if "passes" in kind:
        assert planned(kind["body"], parameters, index) == kind["passes"]

        return
    path = parameters.get("filter_path", "")
    unfiltered = {name: parameters[name] for name in parameters.keys() - {"filter_path"}}
    for paging in starts(cluster, kind):
        plan = planned({**kind["body"], **paging}, parameters, index)
        start = paging.get("from", 0)
        if start >= kind["window"] or (start and kind.get("first_page")):
            assert plan == "from"

            continue

        assert isinstance(plan, ProxiedSearch)
        assert plan.window == kind["window"]

        search = {**kind, "body": plan.body, "parameters": unfiltered}
        reply = ask_for(cluster.direct, search)
        ((hits, is_partial),) = windows_in(reply.text, [plan])

        assert not is_partial

        cut = with_page(reply.text, plan, hits, range(len(hits)))
        direct = cluster.ask(kind, **paging)
        assert search_in(filtered(cut, path)) == search_in(direct.text)


def without_hits(reply: httpx.Response) -> Any:
    """Return the reply to a search, without its hits and what tells when it was asked for."""
    search = search_in(reply.text)
    del search["hits"]["hits"]
    return search


@on_each
def test_pages_are_complete_and_what_lies_below_stays(
    cluster: Cluster, kind: dict[str, Any]
) -> None:
    direct = list[str]()
    shown = list[str]()
    for paging in starts(cluster, kind) if "window" in kind else [{}]:
        page = cluster.ask(kind, **paging)
        fair = ask_for(cluster.fair.client, kind, **paging)
        start = paging.get("from", 0)
        outcome = fair.headers["fairqr"]
        if "passes" in kind:
            assert outcome == f"passed; {kind['passes']}"
        elif start >= kind["window"] or (start and kind.get("first_page")):
            assert outcome == "passed; from"
        else:
            assert outcome == "re-ranked; ranks"
        direct += hits_of(page)
        shown += hits_of(fair)

        assert len(hits_of(fair)) == len(hits_of(page))
        assert without_hits(fair) == without_hits(page)
    window = kind.get("window", 0)
    if len(direct) >= window:
        assert Counter(shown[:window]) == Counter(direct[:window])

    assert Counter(shown) == Counter(direct)
    assert shown[window:] == direct[window:]
    assert (shown == direct) == ("passes" in kind)


def records_in(*logs: Path) -> list[Any]:
    """Return what logs have, but for a line that is just being written."""
    records = list[Any]()
    for line in [line for log in logs for line in log.read_text().splitlines()]:
        with suppress(ValueError):
            records.append(json.loads(line))
    return records


@on_each
def test_a_shadow_changes_nothing_and_records_what_was_shown(
    cluster: Cluster, kind: dict[str, Any]
) -> None:
    recorded = len(records_in(cluster.log))
    reply = ask_for(cluster.shadow.client, kind)
    direct = hits_of(cluster.ask(kind))

    assert hits_of(reply) == direct

    if "passes" in kind:
        assert reply.headers["fairqr"] == f"passed; {kind['passes']}"

        return
    assert reply.headers["fairqr"] == "passed; shadow"

    ids = [json.loads(hit)["_id"] for hit in direct]
    compared = min(len(ids), kind["window"])

    def is_recorded() -> bool:
        """Tell whether it is among the new records; one of an earlier search may come late."""
        news = records_in(cluster.log)[recorded:]
        return any(record.get("ids", [])[:compared] == ids[:compared] for record in news)

    until(is_recorded)


@pytest.mark.parametrize("cluster", sorted({server for server, _ in TRIED}), indirect=True)
def test_a_log_of_every_kind_is_audited(cluster: Cluster, quick: Main, tmp_path: Path) -> None:
    logs = [cluster.log, cluster.log.parents[2] / "fair" / "log" / "log.jsonl"]
    kinds = [kind for server, kind in TRIED if server == cluster.server]
    for log, client in zip(logs, (cluster.shadow.client, cluster.fair.client), strict=True):
        before = len(records_in(log))
        for kind in kinds:
            ask_for(client, kind)
        until(lambda log=log, before=before: len(records_in(log)) >= before + len(kinds))
    folders: list[str | Path] = []
    for log in logs:
        folders += ["--from-log", log.parent]
    ended = quick("audit", *folders, "-o", tmp_path / "out", "--attribute", "gender", "--json")

    assert ended.code == 0, ended.stderr

    groups = {group["group"]: group for group in json.loads(ended.stdout)["groups"]}
    shares = []
    for record in records_in(*logs):
        shown = record.get("exposure", {}).get("shown", {}).get("gender", {})
        if any(shown.values()):
            shares.append(shown["female"])

    assert groups["female"]["exposure"]["value"] == pytest.approx(fmean(shares))


BODY = {"query": {"match": {"bio": "physicist Ärmel"}}, "from": 3}
IN_ADDRESS = {"source": json.dumps(BODY), "source_content_type": "application/json"}


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("cluster", ["elasticsearch", "opensearch"], indirect=True)
def test_a_body_in_the_address_is_read_as_any_other(cluster: Cluster, method: str) -> None:
    path = "/people/_search"
    fair = cluster.fair.client.request(method, path, params=IN_ADDRESS)
    direct = cluster.direct.request(method, path, params=IN_ADDRESS)

    assert fair.headers["fairqr"] == "re-ranked; ranks"
    assert hits_of(fair) == hits_of(cluster.fair.search(BODY))
    assert fair.json()["hits"]["total"] == direct.json()["hits"]["total"]


@pytest.mark.parametrize(
    ("parameters", "content", "reason"),
    [(IN_ADDRESS, b"{}", "source"), ({"source": IN_ADDRESS["source"]}, b"", "body")],
    ids=["beside a body", "without its type"],
)
@pytest.mark.parametrize("cluster", ["elasticsearch", "opensearch"], indirect=True)
def test_a_body_in_the_address_that_clusters_refuse_passes(
    cluster: Cluster, parameters: dict[str, str], content: bytes, reason: str
) -> None:
    headers = {"content-type": "application/json"}
    sent: dict[str, Any] = {"params": parameters, "content": content, "headers": headers}
    direct = cluster.direct.post("/people/_search", **sent)
    fair = cluster.fair.client.post("/people/_search", **sent)

    assert fair.status_code == direct.status_code >= 400
    assert fair.headers["fairqr"] == f"passed; {reason}"


@pytest.mark.parametrize("cluster", ["elasticsearch"], indirect=True)
def test_pinned_documents_keep_their_places(cluster: Cluster) -> None:
    for kind in KINDS:
        pinned = [*_pinned(kind["body"].get("query", {}))]
        if pinned and "window" in kind:
            hits = ask_for(cluster.fair.client, kind).json()["hits"]["hits"]
            assert [hit["_id"] for hit in hits[: len(pinned)]] == pinned


def _pinned(query: Any) -> Iterator[str]:
    """Yield the ids of documents that are pinned and exist, in their order."""
    query = query.get("bool", {}).get("must", query)
    pinned = query.get("pinned", {})
    ids = [*pinned.get("ids", []), *(document["_id"] for document in pinned.get("docs", []))]
    yield from (id_ for id_ in ids if id_ in PEOPLE)


@pytest.mark.parametrize("cluster", ["elasticsearch", "opensearch"], indirect=True)
def test_going_on_from_the_last_hit_shows_each_document_once(
    cluster: Cluster,
) -> None:
    body: dict[str, Any] = {
        "query": {"match": {"bio": "physicist opera"}},
        "_source": False,
        "sort": [{"_score": "desc"}, {"number": "asc"}],
    }
    shown = list[str]()
    outcomes = Counter[str]()
    while True:
        reply = cluster.fair.search(body)
        outcomes[reply.headers["fairqr"]] += 1
        hits = reply.json()["hits"]["hits"]
        if not hits:
            break
        shown += [hit["_id"] for hit in hits]
        body["search_after"] = hits[-1]["sort"]

    assert outcomes["re-ranked; ranks"] == 1

    whole = cluster.direct.post("/people/_search", json={"query": body["query"], "size": 200})
    assert sorted(shown) == sorted(hit["_id"] for hit in whole.json()["hits"]["hits"])
