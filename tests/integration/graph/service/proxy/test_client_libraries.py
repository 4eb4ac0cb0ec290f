"""What the stores of other projects send is re-ranked; each test runs where its library is there.

Elasticsearch 8.12 has no retrievers. A server that is written from the documentation answers what
hybrid searches send (documented.py). Nothing here needs a model: texts have vectors of their own.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.integration.graph.service.proxy.documented import NewerElasticsearch
from tests.integration.graph.service.proxy.proxied import proxied, raw_cluster
from tests.patience import PATIENCE, until
from tests.ports import free_port
from tests.servers.attached_people import PEOPLE, Server

pytestmark = [pytest.mark.timeout(1200), pytest.mark.xdist_group("people")]

WORDS = "physicist opera"
MANY = 20
FEW = 10
"""Without a ``rank_window_size``, no more than this may be asked of a retriever."""

VECTOR = [0.1, 0.9, 0.3, 0.2]
FIELD = {"type": "dense_vector", "dims": 4, "index": True, "similarity": "cosine"}
MAPPING = {
    "properties": {
        "content": {"type": "text"},
        "embedding": FIELD,
        "sex": {"type": "keyword"},
        "metadata": {"type": "object", "enabled": False},
    }
}
SOURCE = {
    "title": "content",
    "text": ["content"],
    "attributes": {"gender": {"field": "sex", "groups": {"female": ["F", "f"], "male": ["M"]}}},
}


@dataclass
class Sides:
    """A cluster, directly and through the proxy.

    Attributes:
        direct: The address of the cluster.
        proxy: The address of the proxy.
        metrics: The address of the proxy's figures.
    """

    direct: str
    proxy: str
    metrics: str

    def outcomes(self) -> dict[str, int]:
        """Return what became of searches, and how often."""
        text = httpx.get(self.metrics, trust_env=False, timeout=PATIENCE).text
        counts = re.findall(r'searches_total\{.*outcome="([^"]+)"\} (\S+)', text)
        return {outcome: int(float(count)) for outcome, count in counts}


@pytest.fixture(scope="module")
def sides(elasticsearch_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    server = Server(elasticsearch_url)
    draw = random.Random(7)
    documents = dict[str, Any]()
    for id_, person in PEOPLE.items():
        vector = [round(draw.random(), 3) for _ in range(4)]
        sex = person["person"].get("sex")
        documents[id_] = {"id": id_, "content": person["bio"], "embedding": vector, "sex": sex}
        documents[id_]["metadata"] = {"id": id_}
    folder = tmp_path_factory.mktemp("libraries")
    port = free_port()
    with server.client, server.index("people", documents, MAPPING), raw_cluster() as cluster:
        cluster.replies = NewerElasticsearch(server.client)
        source = {**SOURCE, "url": elasticsearch_url}
        with proxied(folder, cluster.url, source=source, metrics_port=port) as proxy:
            body = {"query": {"match": {"content": WORDS}}}
            until(lambda: proxy.outcome(body=body) == "re-ranked; ranks")
            yield Sides(cluster.url, proxy.url, f"http://127.0.0.1:{port}/metrics")


def check(sides: Sides, search: Callable[[str], list[str]]) -> None:
    """Search directly and through the proxy; the same number is found, in another order."""
    direct = search(sides.direct)
    before = sides.outcomes()
    shown = search(sides.proxy)
    outcomes = sides.outcomes()
    assert [it for it in outcomes if outcomes[it] > before.get(it, 0)] == ["re-ranked"]
    assert len({*shown}) == len(shown) == len(direct) > 0
    assert shown != direct


@pytest.mark.parametrize(
    "strategy",
    ["bm25", "dense", "script", "hybrid", "hybrid with a window", "hybrid without rrf"],
)
def test_langchain(sides: Sides, strategy: str) -> None:
    library = pytest.importorskip("langchain_elasticsearch")
    embeddings = pytest.importorskip("langchain_core.embeddings")
    dense = library.DenseVectorStrategy
    strategies = {
        "bm25": library.BM25Strategy,
        "dense": dense,
        "script": library.DenseVectorScriptScoreStrategy,
        "hybrid": lambda: dense(hybrid=True),
        "hybrid with a window": lambda: dense(hybrid=True, rrf={"rank_window_size": 50}),
        "hybrid without rrf": lambda: dense(hybrid=True, rrf=False),
    }

    class Fixed(embeddings.Embeddings):  # type: ignore[misc, name-defined]
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [VECTOR for _ in texts]

        def embed_query(self, text: str) -> list[float]:
            return VECTOR

    count = FEW if strategy == "hybrid" else MANY

    def search(url: str) -> list[str]:
        store = library.ElasticsearchStore(
            "people",
            es_url=url,
            embedding=Fixed(),
            strategy=strategies[strategy](),
            query_field="content",
            vector_query_field="embedding",
        )
        return [document.metadata["id"] for document in store.similarity_search(WORDS, k=count)]

    check(sides, search)


@pytest.mark.parametrize("retrieval", ["bm25", "embedding"])
def test_haystack(sides: Sides, retrieval: str) -> None:
    stores = pytest.importorskip("haystack_integrations.document_stores.elasticsearch")
    of_it = "haystack_integrations.components.retrievers.elasticsearch"
    retrievers = pytest.importorskip(of_it)

    def search(url: str) -> list[str]:
        store = stores.ElasticsearchDocumentStore(hosts=url, index="people")
        if retrieval == "bm25":
            found = retrievers.ElasticsearchBM25Retriever(document_store=store).run(WORDS)
        else:
            retriever = retrievers.ElasticsearchEmbeddingRetriever(document_store=store, top_k=MANY)
            found = retriever.run(VECTOR)
        return [document.id for document in found["documents"]]

    check(sides, search)


@pytest.mark.parametrize("mode", ["text_search", "default", "hybrid"])
def test_llama_index(sides: Sides, mode: str) -> None:
    library = pytest.importorskip("llama_index.vector_stores.elasticsearch")
    types = pytest.importorskip("llama_index.core.vector_stores.types")
    strategies = {
        "text_search": library.AsyncBM25Strategy,
        "default": library.AsyncDenseVectorStrategy,
        "hybrid": lambda: library.AsyncDenseVectorStrategy(hybrid=True),
    }

    def search(url: str) -> list[str]:
        store = library.ElasticsearchStore(
            "people",
            es_url=url,
            retrieval_strategy=strategies[mode](),
            text_field="content",
            vector_field="embedding",
        )
        query = types.VectorStoreQuery(
            query_str=WORDS,
            query_embedding=VECTOR,
            similarity_top_k=FEW if mode == "hybrid" else MANY,
            mode=types.VectorStoreQueryMode(mode),
        )
        return list(store.query(query).ids)

    check(sides, search)
