"""Searches that no server has that we can install, by their documentation, over one that we can.

Retrievers came with Elasticsearch 8.14, and fusing rankings needs a licence. Hybrid and neural
queries need plugins and models of OpenSearch. Here the rankings that they are made of come from
the forms that Elasticsearch 8.12 and OpenSearch 2.5 have, and are put together as documented:

- https://www.elastic.co/docs/reference/elasticsearch/rest-apis/retrievers
- https://docs.opensearch.org/latest/query-dsl/compound/hybrid
- https://docs.opensearch.org/latest/vector-search/ai-search/hybrid-search/pagination
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx

from tests.integration.graph.service.proxy.proxied import answer

Ranking = list[tuple[str, float]]
"""The ids of documents with their scores, the best first."""

Scores = Mapping[str, float]

HEADERS = "content-type: {}\r\nx-elastic-product: Elasticsearch\r\n"
RANK_CONSTANT = 60
WINDOW = 10
"""What ``rank_window_size`` is where it is missing."""


class RefusedError(Exception):
    """The server answers a request with an error; the text is its reason."""


class Documented:
    """Answers searches of an index of people over a server, as newer ones do.

    Args:
        server: Asks the server.
    """

    def __init__(self, server: httpx.Client) -> None:
        self._server = server

    def __call__(self, request: bytes, send: Any) -> None:
        """Answer a request, given as bytes."""
        head, _, body = request.partition(b"\r\n\r\n")
        method, target, *_ = head.decode().split()
        address = urlsplit(target)
        if address.path != "/people/_search":
            self._pass(method, target, body, send)
            return
        status = "200 OK"
        try:
            reply = self.search(json.loads(body), dict(parse_qsl(address.query)))
        except RefusedError as error:
            status = "400 Bad Request"
            reply = {"error": {"reason": str(error)}, "status": 400}
        send(answer(json.dumps(reply).encode(), status, HEADERS.format("application/json")))

    def _pass(self, method: str, target: str, body: bytes, send: Any) -> None:
        """Answer what is no search as the server below does."""
        kind = {"content-type": "application/json"}
        reply = self._server.request(method, target, content=body, headers=kind)
        headers = HEADERS.format(reply.headers.get("content-type", "text/plain"))
        send(answer(reply.content, f"{reply.status_code} {reply.reason_phrase}", headers))

    def search(self, body: Mapping[str, Any], parameters: Mapping[str, str]) -> Any:
        """Return the reply to a search.

        Raises:
            RefusedError: Servers refuse it.
        """
        raise NotImplementedError

    def ask(self, body: Mapping[str, Any], **parameters: str) -> Any:
        """Search the server below."""
        reply = self._server.post("/people/_search", json=body, params=parameters)
        if reply.status_code != 200:
            raise RefusedError(reply.text)
        return reply.json()

    def rank(self, body: Mapping[str, Any], size: int) -> Ranking:
        """Return the first hits of a search of the server below."""
        hits = self.ask({**body, "size": size, "_source": False})["hits"]["hits"]
        return [(hit["_id"], hit["_score"] or 0.0) for hit in hits]

    def reply(self, body: Mapping[str, Any], ranking: Ranking, page: Ranking) -> Any:
        """Return the reply with a page of a ranking."""
        ids = [id_ for id_, _ in page]
        reply = self.ask({**body, "query": {"ids": {"values": ids}}, "from": 0, "size": len(ids)})
        by_id = {hit["_id"]: hit for hit in reply["hits"]["hits"]}
        hits = [{**by_id[id_], "_score": score} for id_, score in page]
        total = {"value": len(ranking), "relation": "eq"}
        reply["hits"] |= {"hits": hits, "total": total, "max_score": ranking[0][1]}
        return reply


class NewerElasticsearch(Documented):
    """Has retrievers."""

    def search(self, body: Mapping[str, Any], parameters: Mapping[str, str]) -> Any:
        other_members = {name: body[name] for name in body.keys() - {"retriever", "from", "size"}}
        paging = {name: body[name] for name in body.keys() & {"from", "size"}}
        if "retriever" not in body:
            return self.ask(body, **parameters)
        ((kind, inner),) = body["retriever"].items()
        if kind in ("standard", "knn"):
            return self.ask({**other_members, **paging, **_standard(kind, inner)}, **parameters)
        window = _window(kind, inner)
        size = paging.get("size", window)
        if size > window:
            raise RefusedError(f"[{kind}] requires [rank_window_size] to be at least [size]")
        ranking = self.retrieve(body["retriever"], window)
        start = paging.get("from", 0)
        return self.reply(other_members, ranking, ranking[start : start + size])

    def retrieve(self, retriever: Mapping[str, Any], size: int) -> Ranking:
        """Return what a retriever ranks, of which a search or another one takes so many."""
        ((kind, inner),) = retriever.items()
        if kind in ("standard", "knn"):
            return self.rank(_standard(kind, inner), size)
        window = _window(kind, inner)
        if kind == "rescorer":
            ((_, child),) = inner["retriever"].items()
            rescored = {**_standard("standard", child), "rescore": inner["rescore"]}
            return self.rank(rescored, window)
        if kind not in FUSIONS:
            raise RefusedError(f"unknown retriever [{kind}]")
        children = inner.get("retrievers") or [inner["retriever"]]
        rankings = [self.retrieve(child.get("retriever", child), window) for child in children]
        return _sorted(FUSIONS[kind](inner, rankings))[:window]


class NewerOpensearch(Documented):
    """Has hybrid and neural queries."""

    def search(self, body: Mapping[str, Any], parameters: Mapping[str, str]) -> Any:
        other_members = {name: body[name] for name in body.keys() - {"query", "from", "size"}}
        others = {name: parameters[name] for name in parameters.keys() - {"search_pipeline"}}
        query = body.get("query", {})
        start = body.get("from", 0)
        size = body.get("size", 10)
        if "hybrid" not in query:
            known = {"query": _nearest(query), "from": start, "size": size} if query else {}
            return self.ask({**body, **known}, **others)
        depth = query["hybrid"].get("pagination_depth")
        if start and depth is None:
            raise RefusedError("pagination_depth is missing in the search request")
        scores = defaultdict[str, float](float)
        for part in query["hybrid"]["queries"]:
            for id_, score in _normalised(self.rank({"query": _nearest(part)}, depth or size)):
                scores[id_] += score / len(query["hybrid"]["queries"])
        ranking = _sorted(scores)
        return self.reply(other_members, ranking, ranking[start : start + size])


def _window(kind: str, inner: Mapping[str, Any]) -> int:
    if kind == "rescorer":
        return int(inner["rescore"]["window_size"])
    return int(inner.get("rank_window_size", WINDOW))


def _standard(kind: str, inner: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a search that finds what a retriever finds."""
    if kind == "knn":
        return {"knn": inner}
    filtered = {"bool": {"must": inner["query"], "filter": inner.get("filter", [])}}
    return {**{name: inner[name] for name in inner.keys() - {"filter"}}, "query": filtered}


def _nearest(query: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a query with vectors in place of the texts that a model would encode."""
    if "neural" not in query:
        return query
    ((field, inner),) = query["neural"].items()
    numbers = [_similarity(inner["query_text"], str(position)) for position in range(4)]
    return {"knn": {field: {"vector": numbers, "k": inner.get("k", 10)}}}


def _similarity(text: str, id_: str) -> float:
    """Return what some model says of a text and a document, between 0 and 1."""
    return zlib.crc32(f"{text} {id_}".encode()) / 2**32


def _normalised(ranking: Sequence[tuple[str, float]]) -> Ranking:
    """Return scores between 0 and 1, by the lowest and the highest of those collected."""
    scores = [score for _, score in ranking]
    spread = max(scores) - min(scores) or 1.0
    return [(id_, max((score - min(scores)) / spread, 0.001)) for id_, score in ranking]


def _sorted(scores: Scores) -> Ranking:
    return sorted(scores.items(), key=lambda entry: (-entry[1], entry[0]))


def _reciprocal_ranks(inner: Mapping[str, Any], rankings: Sequence[Ranking]) -> Scores:
    scores = defaultdict[str, float](float)
    for ranking in rankings:
        for rank, (id_, _) in enumerate(ranking, start=1):
            scores[id_] += 1 / (RANK_CONSTANT + rank)
    return scores


def _weighted(inner: Mapping[str, Any], rankings: Sequence[Ranking]) -> Scores:
    scores = defaultdict[str, float](float)
    for child, ranking in zip(inner["retrievers"], rankings, strict=True):
        for id_, score in _normalised(ranking):
            scores[id_] += child["weight"] * score
    return scores


def _reranked(inner: Mapping[str, Any], rankings: Sequence[Ranking]) -> Scores:
    return {id_: _similarity(inner["inference_text"], id_) for id_, _ in rankings[0]}


def _diversified(inner: Mapping[str, Any], rankings: Sequence[Ranking]) -> Scores:
    return dict(rankings[0][::2])


def _pinned(inner: Mapping[str, Any], rankings: Sequence[Ranking]) -> Scores:
    scores = dict(rankings[0])
    scores |= {id_: 1e6 - position for position, id_ in enumerate(inner["ids"])}
    return scores


FUSIONS = {
    "rrf": _reciprocal_ranks,
    "linear": _weighted,
    "text_similarity_reranker": _reranked,
    "diversify": _diversified,
    "pinned": _pinned,
}
