"""Hybrid retrieval over a field of vectors of real servers, against its definition and an index."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairqr.base.errors import ModelError, UnsupportedError
from fairqr.retrieval.encoders.encoder import text_of
from fairqr.retrieval.engines.elasticsearch import engine as engine_module
from fairqr.retrieval.engines.elasticsearch import vectors as vectors_module
from fairqr.retrieval.engines.elasticsearch.vectors import FieldHybridEngine
from fairqr.retrieval.engines.engine import Hits, Query, SearchEngine, lexical_of
from fairqr.retrieval.engines.opening import open_source
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.sources.source import ElasticsearchSource
from tests.integration.attached_people import Server, described
from tests.integration.counting_proxy import counting_proxy
from tests.unit.engines import hits_of
from tests.unit.retrieval.embedded import GENDER
from tests.unit.retrieval.vector_encoders import (
    CountingEncoder,
    estimates_by_hand,
    generated,
    stored_vector,
    unit,
    word_vector,
)

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
    engine = await open_source(source, retriever=CountingEncoder(), store=folder)
    try:
        yield engine
    finally:
        await engine.aclose()


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
async def test_the_servers_ranking_stays_with_the_estimates_of_the_definition(
    url: str, tmp_path: Path
) -> None:
    """Behind it stand the documents that only the vectors find, the most likely ones first.

    Within a group, too, where what is relevant is judged among all documents.
    """
    gender = GENDER.attributes["gender"]
    queries = [Query(text, n) for text in QUERIES for n in (1, 20, 500)]
    queries.append(Query("w1", 20, only=tuple(DOCUMENTS)[::3]))
    with index(url, sent()) as source:
        async with opened(source, tmp_path) as engine:
            assert engine.retriever == "hybrid:words"
            assert {"vectors", "relevance", "rescore", "read_by_id"} <= engine.capabilities
            assert engine.filterable == {("gender", "female"), ("gender", "male")}
            for within in (None, *sorted(engine.filterable)):
                asked = [replace(query, within=within) for query in queries]
                by_words = await lexical_of(engine).search(asked)
                every = zip(asked, await engine.search(asked), by_words, strict=True)
                members = {d.id for d in DOCUMENTS.values() if within in (None, group_of(d))}
                for query, found, server in every:
                    own = len(server)
                    assert found.own == own
                    assert (found.ids[:own], found.scores[:own]) == (server.ids, server.scores)
                    wanted = await by_hand(lexical_of(engine), VECTORS, query.text)
                    assert estimates(found) == near({id_: wanted[id_] for id_ in found.ids})
                    assert {*found.ids} <= members
                    if query.n == 500:
                        left = (wanted[id_] for id_ in members - {*server.ids})
                        best = sorted(left, reverse=True)[:200]
                        assert [wanted[id_] for id_ in found.ids[own:]] == near(best)
                        assert set(found.scores[own:]) <= {0.0}
                    groups = [list(DOCUMENTS[id_].membership(gender)) for id_ in found.ids]
                    assert found.memberships["gender"].tolist() == groups
            (counted,) = await engine.search([Query("", 0, within=("gender", "male"))])
            assert counted.total == sum(d.fields["gender"] == "male" for d in DOCUMENTS.values())


@pytest.mark.parametrize("url", SERVERS, indirect=True)
async def test_three_requests_answer_a_round(url: str, tmp_path: Path) -> None:
    """With its counts and given documents, which have the scores of a search; by ids in a field."""
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
            proxy.clear()
            found = await engine.search([*by_words, Query("w3", 20), Query("w1 w2", 7)])
            assert [request.path for request in proxy.passed] == ["/hybrid/_msearch"] * 3
            wanted = estimates(whole)
            assert estimates(found[0]) == pytest.approx({id_: wanted[id_] for id_ in some})
            server = await lexical_of(engine).search(by_words)
            for hits, expected in zip(found[:4], server, strict=True):
                parts = expected.ids, expected.scores, expected.total
                assert (hits.ids, hits.scores, hits.total or expected.total) == parts
            assert (found[4].ids, found[5].ids[:7]) == (alone.ids, whole.ids[:7])
            proxy.clear()
            await engine.search([Query("w1", 0)])
            assert len(proxy.passed) == 1


@pytest.mark.parametrize("url", SERVERS, indirect=True)
async def test_what_the_words_miss_is_found_but_not_what_is_filtered_away(
    url: str, tmp_path: Path
) -> None:
    """A document without a vector counts as one of the mean."""
    query = "r7"
    plain = next(id_ for id_, d in DOCUMENTS.items() if query in d.text.split())
    silent, hidden = [id_ for id_, d in DOCUMENTS.items() if query not in d.text.split()][:2]
    asked = unit(word_vector(query, DIMENSIONS))
    vectors = {id_: row for id_, row in VECTORS.items() if id_ != plain}
    vectors |= {silent: asked, hidden: asked}
    documents = sent(vectors)
    documents[hidden]["gender"] = "hidden"
    with index(url, documents) as source:
        chosen = {"bool": {"must_not": [{"term": {"gender": "hidden"}}]}}
        source = source.model_copy(update={"filter": chosen})
        async with opened(source, tmp_path) as engine:
            everything = await hits_of(engine, query, 500)
            server = await hits_of(lexical_of(engine), query, 300)
            assert everything.ids[: everything.own] == server.ids
            assert silent in everything.ids[everything.own :][:5]
            assert plain in server.ids
            assert hidden not in everything.ids
            only = await hits_of(engine, query, 9, only=[hidden, plain, silent])
            assert {*only.ids} == {plain, silent}
            del vectors[hidden]
            wanted = await by_hand(lexical_of(engine), vectors, query)
            assert estimates(only) == near({id_: wanted[id_] for id_ in (plain, silent)})


@pytest.mark.parametrize("url", SERVERS, indirect=True)
async def test_similarities_are_read_against_a_random_sample(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same again each time; only documents with a vector in the filter count."""
    monkeypatch.setattr(vectors_module, "SAMPLED", 60)
    some = {id_: VECTORS[id_] for id_ in sorted(VECTORS)[::2]}
    with index(url, sent(some)) as source:
        source = source.model_copy(update={"filter": {"term": {"gender": "female"}}})
        drawn = []
        for seed in (1, 1, 2):
            monkeypatch.setitem(engine_module.RANDOM, "seed", seed)
            async with opened(source, tmp_path) as engine:
                assert isinstance(engine, FieldHybridEngine)
                drawn.append(engine.background)
    allowed = [id_ for id_ in some if DOCUMENTS[id_].fields["gender"] == "female"]
    rows = np.array([VECTORS[id_] for id_ in allowed])
    assert {len(vectors) for vectors in drawn} == {60}
    assert np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[1], drawn[2])
    every = np.concatenate(drawn)
    assert (np.linalg.norm(rows[:, None] - every, axis=2) < 1e-4).any(axis=0).all()


async def test_given_documents_are_estimated_if_the_body_cannot_score_them(
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
        ("elasticsearch", {"similarity": "dot_product"}, VECTORS, {}),
        ("elasticsearch", {"similarity": "max_inner_product"}, LONG, {}),
        ("elasticsearch", {"index_options": {"type": "int8_hnsw"}}, VECTORS, {}),
        ("elasticsearch", {}, VECTORS, {"_source": {"excludes": ["vector"]}}),
        ("elasticsearch", {}, VECTORS, {"_source": {"enabled": False}}),
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


async def test_the_field_says_which_encoder_searches_it(
    elasticsearch_url: str, tmp_path: Path, minilm_cache: Path
) -> None:
    """Other encoders, and fields that cannot be searched so, leave the texts to be encoded."""
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
    for unfit in ({"index": False}, {"element_type": "byte"}):
        with index(elasticsearch_url, sent({}), {"type": "dense_vector", "dims": 384, **unfit}):
            assert await retriever("hybrid") == texts


async def test_vectors_of_another_size_are_refused(elasticsearch_url: str, tmp_path: Path) -> None:
    said = "vectors of 'words' do not fit the field 'vector', which has 5 dimensions"
    with (
        index(elasticsearch_url, sent({}), {**ELASTICSEARCH, "dims": 5}) as source,
        pytest.raises(ModelError, match=said),
    ):
        async with opened(source, tmp_path):
            pass
