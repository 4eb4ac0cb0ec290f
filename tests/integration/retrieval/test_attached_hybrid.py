"""Hybrid retrieval over a field of vectors of real servers, against its definition.

An attached engine's own ranking stays what the server gives, whatever else is estimated.
"""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairqr import FairSearch, from_langchain
from fairqr.base.errors import ModelError, UnsupportedError
from fairqr.graph.search.result import SearchResult
from fairqr.retrieval.encoders.encoder import Encoder, text_of
from fairqr.retrieval.encoders.minilm import MiniLmEncoder
from fairqr.retrieval.encoders.opening import Retriever
from fairqr.retrieval.engines.elasticsearch import vectors as vectors_module
from fairqr.retrieval.engines.elasticsearch.requests import RANDOM
from fairqr.retrieval.engines.elasticsearch.vectors import FieldHybridEngine
from fairqr.retrieval.engines.engine import Hits, Query, SearchEngine, lexical_of
from fairqr.retrieval.engines.hybrid.encoded_pool import EncodedPoolEngine
from fairqr.retrieval.engines.opening import open_source
from fairqr.retrieval.engines.request_template import fill_template
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.sources.source import ElasticsearchSource
from tests.integration.graph.test_attached_search import endpoint, retriever, rows, source
from tests.servers.attached_people import Server, described
from tests.servers.counting_proxy import counting_proxy
from tests.servers.model_server import ModelServer
from tests.unit.engines import hits_of
from tests.unit.retrieval.embedded import GENDER
from tests.unit.retrieval.test_langchain_engine import WordRetriever
from tests.unit.retrieval.vector_encoders import (
    CountingEncoder,
    estimates_by_hand,
    generated,
    stored_vector,
    unit,
    word_vector,
)

__all__ = ["endpoint", "retriever", "rows", "source"]

# With others that search by vectors, which a setting of the whole cluster forbids for a moment.
pytestmark = [pytest.mark.elasticsearch, pytest.mark.xdist_group("people")]

DIMENSIONS = 8
SERVERS = ["elasticsearch", "opensearch"]
FIELDS: dict[str, dict[str, Any]] = {
    "elasticsearch": {
        "type": "dense_vector",
        "dims": DIMENSIONS,
        "index": True,
        "similarity": "cosine",
    },
    "opensearch": {
        "type": "knn_vector",
        "dimension": DIMENSIONS,
        "method": {"name": "hnsw", "engine": "lucene", "space_type": "cosinesimil"},
    },
}
TEXT = {"type": "text", "analyzer": "english", "copy_to": "body"}
QUERIES = ("w1", "w2 w3", "w4 w5 w6 unheard")


DOCUMENTS = {d.id: d for d in generated(300, more=[f"r{i}" for i in range(20)])}
VECTORS = {
    id_: stored_vector(word_vector(text_of(document), DIMENSIONS))
    for id_, document in DOCUMENTS.items()
}


@pytest.fixture
def url(request: pytest.FixtureRequest, elasticsearch_url: str, opensearch_url: str) -> str:
    """The server that a test is about."""
    return elasticsearch_url if request.param == "elasticsearch" else opensearch_url


def sent(vectors: Mapping[str, Any] = VECTORS) -> dict[str, dict[str, Any]]:
    """The documents as they are sent, with these vectors."""
    return {
        id_: {"title": d.title, "text": d.text, "key": id_, **d.fields}
        | ({"vector": [float(value) for value in vectors[id_]]} if id_ in vectors else {})
        for id_, d in DOCUMENTS.items()
    }


@contextmanager
def index(
    url: str,
    documents: Mapping[str, Mapping[str, Any]],
    field: Mapping[str, Any] | None = None,
    **mapping: Any,
) -> Iterator[ElasticsearchSource]:
    """Describe an index with a field of vectors for as long as the block runs."""
    server = Server(url)
    kind = server.engine
    properties = {
        "title": TEXT,
        "text": TEXT,
        "body": {"type": "text", "analyzer": "english"},
        "gender": {"type": "keyword"},
        "key": {"type": "keyword"},
        "vector": field or FIELDS[kind],
    }
    settings = {"index.knn": True} if kind == "opensearch" else {}
    whole = {"properties": properties, **mapping}
    with (
        closing(server.client),
        server.index("hybrid", documents, whole, number_of_shards=1, **settings),
    ):
        yield described(
            server,
            "hybrid",
            title="title",
            text=["text"],
            query={"fields": ["body"]},
            attributes={"gender": {"field": "gender", "groups": ["female", "male"]}},
            vectors={"field": "vector", "embeddings": "words"},
        )


@asynccontextmanager
async def opened(source: ElasticsearchSource, folder: Path) -> AsyncIterator[SearchEngine]:
    """Open hybrid retrieval over a source for as long as the block runs."""
    found = await open_source(source, retriever=CountingEncoder(), store=folder)
    async with aclosing(found) as engine:
        yield engine


by_hand = partial(estimates_by_hand, by_rank=True)


def group_of(document: Document) -> tuple[str, str]:
    return "gender", document.fields["gender"]


def near(wanted: Any) -> Any:
    return pytest.approx(wanted, abs=1e-5)


def estimates(hits: Hits) -> dict[str, float]:
    """The probability that each hit is relevant."""
    assert hits.relevance is not None
    return dict(zip(hits.ids, hits.relevance.tolist(), strict=True))


@pytest.mark.parametrize("url", SERVERS, indirect=True)
async def test_a_servers_ranking_stays_beside_the_estimates(url: str, tmp_path: Path) -> None:
    """Behind it stand the documents that only the vectors find, the most likely ones first.

    Within a group, too, where what is relevant is judged among all documents. What is filtered away
    is not found, and a document without a vector counts as one of the mean.
    """
    gender, hidden = GENDER.attributes["gender"], {*[*DOCUMENTS][::20]}
    seen = {id_: d for id_, d in DOCUMENTS.items() if id_ not in hidden}
    vectors = {id_: VECTORS[id_] for id_ in [*seen][::9] + [*seen][5::2]}
    documents = sent({**vectors, **{id_: VECTORS[id_] for id_ in hidden}})
    for id_ in hidden:
        documents[id_]["gender"] = "hidden"
    queries = [Query(text, n) for text in QUERIES for n in (1, 20, 500)]
    queries.append(Query("w1", 20, only=(*vectors, *hidden)))
    with index(url, documents) as source:
        chosen = {"bool": {"must_not": [{"term": {"gender": "hidden"}}]}}
        source = source.model_copy(update={"filter": chosen})
        async with opened(source, tmp_path) as engine:
            assert engine.retriever == "hybrid:words"
            assert {"vectors", "relevance", "rescore", "read_by_id"} <= engine.capabilities
            assert engine.filterable == {("gender", "female"), ("gender", "male")}
            for within in (None, *sorted(engine.filterable)):
                asked = [replace(query, within=within) for query in queries]
                by_words = await lexical_of(engine).search(asked)
                every = zip(asked, await engine.search(asked), by_words, strict=True)
                members = {id_ for id_, d in seen.items() if within in (None, group_of(d))}
                for query, found, server in every:
                    own = len(server)
                    assert found.own == own
                    assert (found.ids[:own], found.scores[:own]) == (server.ids, server.scores)
                    wanted = await by_hand(lexical_of(engine), vectors, query.text)
                    assert estimates(found) == near({id_: wanted[id_] for id_ in found.ids})
                    assert {*found.ids} <= members
                    if query.n == 500:
                        left = (wanted[id_] for id_ in members & {*vectors} - {*server.ids})
                        best = sorted(left, reverse=True)[:200]
                        assert [wanted[id_] for id_ in found.ids[own:]] == near(best)
                        assert set(found.scores[own:]) <= {0.0}
                    groups = [list(DOCUMENTS[id_].membership(gender)) for id_ in found.ids]
                    assert found.memberships["gender"].tolist() == groups
            (counted,) = await engine.search([Query("", 0, within=("gender", "male"))])
            assert counted.total == sum(d.fields["gender"] == "male" for d in seen.values())


@pytest.mark.promise("engines")
@pytest.mark.parametrize("url", SERVERS, indirect=True)
async def test_three_requests_answer_a_round(url: str, tmp_path: Path) -> None:
    """A round over vectors takes as many requests as the page says: three.

    With its counts and given documents, which have the scores of a search; by ids in a field.
    """
    with index(url, sent()) as source, counting_proxy(url) as proxy:
        source = source.model_copy(update={"url": (proxy.url,), "id": "key"})
        async with opened(source, tmp_path) as engine:
            assert len(proxy.passed) == 2, "the mapping, and a sample of vectors"
            whole, alone = await hits_of(engine, "w1 w2", 300), await hits_of(engine, "w3", 20)
            some = tuple(random.Random(3).sample(whole.ids, 40))
            by_words = [
                Query("w1 w2", 99, only=(*some, "nobody")),
                Query("w1", 0),
                Query("w1 w2", 9, every_word=True),
                Query("", 5, only=("d001", "d002")),
            ]
            proxy.passed.clear()
            found = await engine.search([*by_words, Query("w3", 20), Query("w1 w2", 7)])
            assert [path for _, path in proxy.passed] == ["/hybrid/_msearch"] * 3
            wanted = estimates(whole)
            assert estimates(found[0]) == pytest.approx({id_: wanted[id_] for id_ in some})
            server = await lexical_of(engine).search(by_words)
            for hits, expected in zip(found[:4], server, strict=True):
                parts = expected.ids, expected.scores, expected.total
                assert (hits.ids, hits.scores, hits.total or expected.total) == parts
            assert (found[4].ids, found[5].ids[:7]) == (alone.ids, whole.ids[:7])
            proxy.passed.clear()
            await engine.search([Query("w1", 0)])
            assert len(proxy.passed) == 1


@pytest.mark.parametrize("url", SERVERS, indirect=True)
async def test_copies_whose_vectors_are_read_share_a_claim(url: str, tmp_path: Path) -> None:
    """Three requests answer it, as without; further down nothing is compared."""
    best = min(DOCUMENTS)
    copies = [f"{best} {number}" for number in range(4)]
    documents = sent()
    documents |= {copy: {**documents[best], "key": copy} for copy in copies}
    with index(url, documents) as source, counting_proxy(url) as proxy:
        source = source.model_copy(update={"url": (proxy.url,), "id": "key"})
        async with opened(source, tmp_path) as engine:
            proxy.passed.clear()
            text = text_of(DOCUMENTS[best])
            (hits,) = await engine.search([Query(text, 300, with_claims=True)])
            assert len(proxy.passed) == 3
            (without,) = await engine.search([Query(text, 300)])
    assert without.claims is None
    assert hits.claims is not None
    rows = {hits.ids.index(id_) for id_ in (best, *copies)}
    assert {hits.claims[row] for row in rows} == {min(rows)}
    alone = [row for row in range(len(hits)) if row not in rows]
    assert hits.claims[alone].tolist() == alone


async def test_similarities_are_read_against_a_random_sample(
    elasticsearch_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same again each time."""
    monkeypatch.setattr(vectors_module, "SAMPLED", 60)
    drawn = []
    with index(elasticsearch_url, sent()) as source:
        for seed in (1, 1, 2):
            monkeypatch.setitem(RANDOM, "seed", seed)
            async with opened(source, tmp_path) as engine:
                assert isinstance(engine, FieldHybridEngine)
                drawn.append(engine.background.tolist())
    assert {len(vectors) for vectors in drawn} == {60}
    assert drawn[0] == drawn[1] != drawn[2]


async def test_documents_that_the_body_cannot_score_are_estimated(
    elasticsearch_url: str, tmp_path: Path
) -> None:
    """Its ranking is not asked for them."""
    body = {"query": {"match": {"body": "{{query}}"}}, "rescore": RESCORE}
    with index(elasticsearch_url, sent()) as source:
        async with opened(source.model_copy(update={"query": None, "body": body}), tmp_path) as it:
            whole = await hits_of(it, "w1 w2", 300)
            wanted = await by_hand(lexical_of(it), VECTORS, "w1 w2")
            given = await hits_of(it, "w1 w2", 99, only=whole.ids[::9])
    assert {*given.ids} == {*whole.ids[::9]}
    assert estimates(given) == near({id_: wanted[id_] for id_ in given.ids})


RESCORE = {"window_size": 50, "query": {"rescore_query": {"match": {"title": "{{query}}"}}}}
LONG = {id_: vector * 3 for id_, vector in VECTORS.items()}
ELASTICSEARCH, OPENSEARCH = FIELDS.values()


@pytest.mark.parametrize(
    ("url", "field", "vectors", "mapping"),
    [
        ("elasticsearch", {"similarity": "l2_norm"}, LONG, {}),
        ("elasticsearch", {"similarity": "max_inner_product"}, LONG, {}),
        ("elasticsearch", {"index_options": {"type": "int8_hnsw"}}, VECTORS, {}),
        ("elasticsearch", {}, VECTORS, {"_source": {"excludes": ["vector"]}}),
        ("opensearch", {"method": {"name": "hnsw", "engine": "faiss"}}, LONG, {}),
    ],
    indirect=["url"],
)
async def test_cosines_count_however_a_field_is_kept_and_compared(
    url: str,
    field: dict[str, Any],
    vectors: dict[str, np.ndarray],
    mapping: dict[str, Any],
    tmp_path: Path,
) -> None:
    """Only which documents are the nearest is left to the server."""
    kind = OPENSEARCH if "method" in field else ELASTICSEARCH
    exact = {id_: unit(vector) for id_, vector in vectors.items()}
    with index(url, sent(vectors), {**kind, **field}, **mapping) as source:
        async with opened(source, tmp_path) as engine:
            assert isinstance(engine, FieldHybridEngine)
            for query in QUERIES:
                found = estimates(await hits_of(engine, query, 300))
                wanted = await by_hand(lexical_of(engine), exact, query)
                assert found == pytest.approx({id_: wanted[id_] for id_ in found}, abs=1e-4)
                best = sorted(wanted, key=lambda id_: -wanted[id_])[:20]
                assert len({*found} & {*best}) >= 18


@pytest.mark.promise("labels")
async def test_the_field_says_which_encoder_searches_it(
    elasticsearch_url: str, tmp_path: Path, minilm_cache: Path
) -> None:
    """Vectors of one encoder are never compared with those of another: the field says which encoder
    made them.

    Other encoders, and fields that cannot be searched so, leave the texts to be encoded.
    """
    field = {**ELASTICSEARCH, "dims": 384}
    with index(elasticsearch_url, sent({}), field) as source:
        server = Server(elasticsearch_url)
        made = {id_: {**d, "vector": [1.0, *np.zeros(383)]} for id_, d in sent({}).items()}
        server.write("hybrid", made)
        named = {"field": "vector", "embeddings": "minilm"}

        async def retriever(given: str, **changes: Any) -> str:
            parts = source.model_dump(exclude_unset=True) | {"vectors": named} | changes
            described_ = ElasticsearchSource.model_validate(
                {name: part for name, part in parts.items() if part is not None}
            )
            engine = await open_source(described_, retriever=given, store=tmp_path)
            await engine.aclose()
            return engine.retriever

        assert await retriever("hybrid") == "hybrid:minilm"
        with pytest.raises(UnsupportedError, match="only ranks in its own way"):
            await retriever("dense")
        texts = "hybrid-pool:minilm"
        assert await retriever("hybrid:minilm", vectors=None) == texts
        assert await retriever("hybrid:minilm", vectors={"field": "vector"}) == texts
        other = {**named, "embeddings": "openai:text-embedding-3-small"}
        assert await retriever("hybrid:minilm", vectors=other) == texts
        forbid = "search.allow_expensive_queries"
        server.ask("PUT", "/_cluster/settings", {"transient": {forbid: False}})
        try:
            assert await retriever("hybrid") == texts
        finally:
            server.ask("PUT", "/_cluster/settings", {"transient": {forbid: None}})
    with index(elasticsearch_url, sent({}), field):
        assert await retriever("hybrid") == texts, "no document has a vector"
    with index(elasticsearch_url, sent({}), {**field, "dims": 5}) as source:
        said = "vectors of 'words' do not fit the field 'vector', which has 5 dimensions"
        with pytest.raises(ModelError, match=said):
            await open_source(source, retriever=CountingEncoder(), store=tmp_path)
    for unfit in ({"index": False}, {"element_type": "byte"}):
        with index(elasticsearch_url, sent({}), {"type": "dense_vector", "dims": 384, **unfit}):
            assert await retriever("hybrid") == texts


# --- the engine's own ranking ---------------------------------------------------------------------

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


@pytest.mark.promise("objective")
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
async def test_a_servers_own_request_gives_the_baseline_ranking(
    url: str, given: str | Retriever, named: str, tmp_path: Path
) -> None:
    """In front of a server that is not ours the baseline ranking is its own, id by id; without hits
    the result is empty.

    With its boosts, id by id, and never a document that only vectors find.
    """
    with boosted(url) as source:
        engine = await open_source(source, retriever=given, store=tmp_path)
        assert engine.retriever == named
        fair, baseline = await searched(engine), await searched(engine, method="baseline")
        nothing = await searched(engine, query="unheard")
        await engine.aclose()
        expected = served(url, 20)
    assert ids_of(fair.baseline) == ids_of(baseline) == ids_of(baseline.baseline) == expected
    assert ids_of(fair) != expected
    assert ids_of(nothing) == ids_of(nothing.baseline) == []
    assert (fair.relevance is not None) == (named != "bm25")


@pytest.mark.promise("objective")
@pytest.mark.parametrize("given", ["bm25", "auto", TEXTS])
def test_an_endpoints_ranking_is_the_baseline(
    source: Path, endpoint: ModelServer, people: Path, minilm_cache: Path, given: str
) -> None:
    """In front of an endpoint that is not ours the baseline ranking is the endpoint's own, id by
    id.
    """
    rows = [json.loads(line) for line in people.read_text().splitlines()]
    counts = {row["id"]: row["text"].lower().count("physicist") for row in rows}
    expected = sorted((id_ for id_ in counts if counts[id_]), key=lambda i: (-counts[i], i))[:10]
    with FairSearch.open(str(source), retriever=given) as search:
        baseline = search.search("physicist", attribute="gender", method="baseline", k=10)
        fair = search.search("physicist", attribute="gender", k=10, ask="never")
    assert ids_of(baseline) == ids_of(fair.baseline) == expected
    assert (fair.relevance is None) == (given == "bm25")


@pytest.mark.promise("objective")
@pytest.mark.parametrize("encoder", [None, MiniLmEncoder()], ids=["bm25", "texts"])
async def test_the_ranking_of_a_retriever_of_langchain_is_the_baseline(
    retriever: WordRetriever, minilm_cache: Path, encoder: Encoder | None
) -> None:
    """In front of a retriever of LangChain the baseline ranking is its own, id by id."""
    gender = {"field": "about.gender", "groups": ["female", "male"]}
    engine: SearchEngine = from_langchain(
        retriever, schema={"attributes": {"gender": gender}}, name="people", title="name"
    )
    if encoder is not None:
        engine = await EncodedPoolEngine.open(engine, encoder, keeps_order=True)
    search = FairSearch(engine)
    baseline = await search.search("physicist", method="baseline", k=10)
    fair = await search.search("physicist", k=10, target="gender=female:0.5,male:0.5", ask="never")
    direct = retriever.model_copy(update={"k": 10}).invoke("physicist")
    expected = [document.id for document in direct]
    assert ids_of(baseline) == ids_of(fair.baseline) == expected
    assert (fair.relevance is None) == (encoder is None)
