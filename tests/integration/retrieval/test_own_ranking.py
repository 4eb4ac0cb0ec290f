"""An attached engine's own ranking stays what the server gives, whatever else is estimated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fairqr import FairSearch, from_langchain
from fairqr.graph.search.result import SearchResult
from fairqr.retrieval.encoders.encoder import Encoder
from fairqr.retrieval.encoders.minilm import MiniLmEncoder
from fairqr.retrieval.encoders.opening import Retriever
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.engines.hybrid.texts import EncodedPoolEngine
from fairqr.retrieval.engines.opening import open_source
from fairqr.retrieval.engines.request_template import fill_template
from fairqr.retrieval.sources.source import ElasticsearchSource
from tests.integration.attached_people import Server
from tests.integration.graph.test_attached_search import endpoint, retriever, rows, source
from tests.integration.model_server import ModelServer
from tests.integration.retrieval.test_attached_hybrid import SERVERS, index, sent, url
from tests.unit.retrieval.test_langchain_engine import WordRetriever
from tests.unit.retrieval.vector_encoders import CountingEncoder

__all__ = ["endpoint", "retriever", "rows", "source", "url"]

# With the tests of hybrid search, whose index and server settings it shares.
pytestmark = [pytest.mark.elasticsearch, pytest.mark.xdist_group("people")]

QUERY = "w1 w2"
BOOSTED: dict[str, Any] = {
    "query": {
        "function_score": {
            "query": {"match": {"body": "{{query}}"}},
            "functions": [
                {"filter": {"term": {"gender": "male"}}, "weight": 3},
                {"filter": {"term": {"gender": "female"}}, "weight": 2},
                {"field_value_factor": {"field": "popularity", "factor": 0.001}},
            ],
            "score_mode": "sum",
        }
    }
}


@contextmanager
def boosted(url: str, **changes: Any) -> Iterator[ElasticsearchSource]:
    """Describe an index whose own request prefers men and what is popular, for the block."""
    documents = sent()
    for number, document in enumerate(documents.values()):
        document["popularity"] = number * 7919 % 997
    with index(url, documents) as source:
        parts = {"query": None, "body": BOOSTED, **changes}
        yield source.model_copy(update=parts)


def served(url: str, n: int) -> list[str]:
    """The ids that the server itself gives."""
    body = {**fill_template(BOOSTED, QUERY, n), "size": n}
    hits = Server(url).ask("POST", "/hybrid/_search", body)["hits"]["hits"]
    assert len({hit["_score"] for hit in hits}) == n, "no ties"
    return [hit["_id"] for hit in hits]


def ids_of(result: Any) -> list[str]:
    return [place.id for place in result.ranking]


async def searched(engine: SearchEngine, query: str = QUERY, **options: Any) -> SearchResult:
    """A fair search toward as much exposure for women as for men."""
    target = "gender=female:0.5,male:0.5"
    return await FairSearch(engine).search(
        query, attribute="gender", k=20, target=target, **{"ask": "never", **options}
    )


FIELD, TEXTS = Retriever("hybrid", CountingEncoder()), "hybrid:minilm"


@pytest.mark.usefixtures("minilm_cache")
@pytest.mark.parametrize("url", SERVERS, indirect=True)
@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("bm25", "bm25"),
        ("auto", "hybrid-pool:minilm"),
        (TEXTS, "hybrid-pool:minilm"),
        (FIELD, "hybrid:words"),
    ],
)
async def test_a_servers_own_request_gives_the_plain_ranking(
    url: str, given: str | Retriever, named: str, tmp_path: Path
) -> None:
    """With its boosts, id by id, and never a document that only vectors find."""
    with boosted(url) as source:
        engine = await open_source(source, retriever=given, store=tmp_path)
        assert engine.retriever == named
        fair, plain = await searched(engine), await searched(engine, method="plain")
        nothing = await searched(engine, query="unheard")
        await engine.aclose()
        expected = served(url, 20)
    assert ids_of(fair.baseline) == ids_of(plain) == ids_of(plain.baseline) == expected
    assert ids_of(fair) != expected
    assert ids_of(nothing) == ids_of(nothing.baseline) == []
    assert (fair.relevance is not None) == (named != "bm25")


@pytest.mark.parametrize("given", ["bm25", "auto", TEXTS])
def test_an_endpoints_ranking_is_the_plain_one(
    source: Path, endpoint: ModelServer, people: Path, minilm_cache: Path, given: str
) -> None:
    rows = [json.loads(line) for line in people.read_text().splitlines()]
    counts = {row["id"]: row["text"].lower().count("physicist") for row in rows}
    expected = sorted((id_ for id_ in counts if counts[id_]), key=lambda i: (-counts[i], i))[:10]
    with FairSearch.open(str(source), retriever=given) as search:
        plain = search.search("physicist", attribute="gender", method="plain", k=10)
        fair = search.search("physicist", attribute="gender", k=10, ask="never")
    assert ids_of(plain) == ids_of(fair.baseline) == expected
    assert (fair.relevance is None) == (given == "bm25")


@pytest.mark.parametrize("encoder", [None, MiniLmEncoder()], ids=["bm25", "texts"])
async def test_the_ranking_of_a_retriever_of_langchain_is_the_plain_one(
    retriever: WordRetriever, minilm_cache: Path, encoder: Encoder | None
) -> None:
    gender = {"field": "about.gender", "groups": ["female", "male"]}
    engine: SearchEngine = from_langchain(
        retriever, schema={"attributes": {"gender": gender}}, name="people", title="name"
    )
    if encoder is not None:
        engine = await EncodedPoolEngine.open(engine, encoder, keeps_order=True)
    search = FairSearch(engine)
    plain = await search.search("physicist", method="plain", k=10)
    fair = await search.search("physicist", k=10, target="gender=female:0.5,male:0.5", ask="never")
    direct = retriever.model_copy(update={"k": 10}).invoke("physicist")
    expected = [document.id for document in direct]
    assert ids_of(plain) == ids_of(fair.baseline) == expected
    assert (fair.relevance is None) == (encoder is None)
