"""Vectors on a real Elasticsearch server."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from elasticsearch import Elasticsearch

from fairqr.errors import IndexUnavailableError, InputError
from fairqr.retrieval.catalog import Catalog, Choice
from fairqr.retrieval.corpus import BUILT_IN
from fairqr.retrieval.documents import Document
from fairqr.retrieval.elasticsearch_index import (
    Connection,
    ElasticsearchIndex,
    build_elasticsearch,
    delete_elasticsearch,
)
from fairqr.retrieval.encoders.encoder import Encoder, text_of
from fairqr.retrieval.index import Index
from fairqr.retrieval.ranking import Ranking
from fairqr.retrieval.schema import Schema
from fairqr.retrieval.vectors import VectorIndex, elasticsearch_vectors, open_retriever
from tests.unit.retrieval.vector_encoders import CountingEncoder, word_vector

pytestmark = pytest.mark.elasticsearch

SCHEMA = Schema.model_validate(
    {"attributes": {"gender": {"field": "gender", "groups": ["female", "male"]}}}
)
WORDS = [f"w{number}" for number in range(30)]


def generated(count: int, seed: int = 5) -> list[Document]:
    """Short documents; every tenth has no word."""
    random = np.random.default_rng(seed)
    return [
        Document(
            f"d{number:03}",
            str(random.choice(WORDS)),
            " ".join(random.choice(WORDS, random.integers(2, 12))),
            {"gender": str(random.choice(["female", "male"])), "year": number},
        )
        if number % 10
        else Document(f"d{number:03}", "...", "", {"gender": "female"})
        for number in range(count)
    ]


DOCUMENTS = generated(400)
QUERIES = [" ".join(np.random.default_rng(n).choice(WORDS, 1 + n % 3)) for n in range(15)]


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
    unique = f"vectors-{uuid.uuid4().hex[:12]}"
    yield unique
    for index in server_indexes(admin, unique):
        admin.indices.delete(index=index)


def server_indexes(admin: Elasticsearch, name: str) -> list[str]:
    return sorted(admin.indices.get(index=f"fairqr-{name}*").body)


async def build(connection: Connection, name: str, documents: Sequence[Document]) -> None:
    await build_elasticsearch(connection, name, SCHEMA, documents, source="test", source_sha256="0")


@pytest.fixture
async def lexical(connection: Connection, name: str) -> AsyncIterator[ElasticsearchIndex]:
    """The 400 documents, without vectors."""
    await build(connection, name, DOCUMENTS)
    index = await ElasticsearchIndex.open(connection, name)
    yield index
    await index.close()


async def opened(index: Index, encoder: Encoder | None = None) -> VectorIndex:
    found = await open_retriever(index, encoder or CountingEncoder())
    assert isinstance(found, VectorIndex)
    return found


def by_hand(documents: Sequence[Document], query: str) -> Ranking:
    """Rank all documents by (1 + cosine)/2, computed one by one, ties by id."""
    asked = word_vector(query, 8)
    scores = {}
    for document in documents:
        vector = word_vector(text_of(document), 8)
        if vector.any():
            cosine = vector @ asked / np.linalg.norm(vector) / np.linalg.norm(asked)
            scores[document.id] = float(1 + cosine) / 2
    return Ranking.of(scores)


def same(found: Ranking, expected: Ranking, n: int | None = None) -> None:
    """Assert that a ranking is the first n of the expected one, or of one that equals it but for
    the last digits of the scores."""
    scores = dict(zip(expected.ids, expected.scores, strict=True))
    assert len(set(found.ids)) == len(found)
    assert found.scores == pytest.approx([scores[id_] for id_ in found.ids], abs=1e-6)
    assert found.scores == pytest.approx(expected.scores[:n], abs=1e-6)
    assert list(zip(found.ids, found.scores, strict=True)) == sorted(
        zip(found.ids, found.scores, strict=True), key=lambda pair: (-pair[1], pair[0])
    )


# --- searching --------------------------------------------------------------------------------


async def test_both_backends_retrieve_nearly_the_same(
    tmp_path: Path, elasticsearch_url: str
) -> None:
    """Notables and wordllama: at least 95 % of the top 20, and rescored alike to 6 digits."""
    titles = [json.loads(line)["title"] for line in (BUILT_IN["notables"] / "topics.jsonl").open()]
    catalog, choice = Catalog(tmp_path), Choice("elasticsearch", elasticsearch_url)
    server = await open_retriever(await catalog.resolve("notables", choice), "dense")
    embedded = await open_retriever(await catalog.resolve("notables", Choice("tantivy")), "dense")
    try:
        shared = 0
        for title in titles:
            ours, theirs = await embedded.search(title, 20), await server.search(title, 20)
            shared += len(set(ours.ids) & set(theirs.ids))
            same(await server.rescore(title, ours.ids), ours)
        assert shared / (20 * len(titles)) >= 0.95
    finally:
        await server.close()
        await catalog.delete("notables", choice)


@pytest.mark.parametrize("window", [10_000, 5])
async def test_a_search_ranks_all_documents_by_cosine(
    lexical: ElasticsearchIndex, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As computed by hand: by kNN, which is exact over so few, and by the scoring of all."""
    index = await opened(lexical)
    monkeypatch.setattr(elasticsearch_vectors, "WINDOW", window)
    for query in QUERIES:
        same(await index.search(query, 1000), by_hand(DOCUMENTS, query))
        same(await index.search(query, 20), by_hand(DOCUMENTS, query), n=20)
    assert await index.search("w1", 0) == Ranking([], [])
    assert await index.search("...", 9) == Ranking([], [])
    assert await index.search("w1", 9, boost="w2") == await index.search("w1 w2", 9)


async def test_a_rescoring_gives_the_scores_of_a_search(lexical: ElasticsearchIndex) -> None:
    """Documents without a word come last with 0; ids that the index lacks are left out."""
    index = await opened(lexical)
    expected = by_hand(DOCUMENTS, "w1 w2")
    ids = [document.id for document in DOCUMENTS if document.id.endswith(("3", "7"))]
    rescored = await index.rescore("w1 w2", [*ids, "d010", "nobody", "d000", ids[0]])
    assert rescored.ids[-2:] == ["d000", "d010"]
    assert rescored.scores[-2:] == [0, 0]
    kept = {
        id_: score for id_, score in zip(expected.ids, expected.scores, strict=True) if id_ in ids
    }
    same(Ranking(rescored.ids[:-2], rescored.scores[:-2]), Ranking.of(kept))
    assert await index.rescore("...", ["d003", "d001", "nobody"]) == Ranking(
        ["d001", "d003"], [0, 0]
    )
    assert await index.rescore("w1", []) == Ranking([], [])


async def test_opposite_vectors_score_0(connection: Connection, name: str) -> None:
    """However the cosine is rounded: a score below 0 is one that the server refuses."""

    class Signs:
        name = "signs"

        async def encode_documents(self, texts: Sequence[str]) -> Any:
            random = np.random.default_rng(2).standard_normal(300)
            return [random if "plus" in text else -random for text in texts]

        async def encode_query(self, text: str) -> Any:
            return (await self.encode_documents([text]))[0]

    await build(connection, name, [Document("a", "", "plus"), Document("b", "", "minus")])
    lexical = await ElasticsearchIndex.open(connection, name)
    index = await opened(lexical, Signs())
    for ranking in (await index.search("plus", 9), await index.rescore("plus", ["b", "a"])):
        assert ranking.ids == ["a", "b"]
        assert ranking.scores == pytest.approx([1, 0], abs=1e-6)
        assert min(ranking.scores) >= 0
    await lexical.close()


# --- what the lexical index keeps ---------------------------------------------------------------


async def test_the_lexical_index_stays_as_it_was(lexical: ElasticsearchIndex) -> None:
    """A document that is written anew with its vector keeps its words, labels and text."""
    ids = [document.id for document in DOCUMENTS]
    before = [await lexical.search(query, 400) for query in QUERIES]
    shares = await lexical.corpus_shares("gender")
    index = await opened(lexical)
    for query, ranking in zip(QUERIES, before, strict=True):
        after = await lexical.search(query, 400)
        assert set(after.ids) == set(ranking.ids)
        scores = dict(zip(ranking.ids, ranking.scores, strict=True))
        # The old versions of the documents count in the frequencies until they are merged away.
        assert after.scores == pytest.approx([scores[id_] for id_ in after.ids], rel=0.01)
    assert await index.documents(ids) == DOCUMENTS
    assert (await index.corpus_shares("gender") == shares).all()
    members = await index.memberships("gender", ids)
    assert members[:, 0].tolist() == [d.fields["gender"] == "female" for d in DOCUMENTS]
    assert await index.document_frequencies(["w1"]) == [
        sum("w1" in text_of(document).split() for document in DOCUMENTS)
    ]
    assert (await index.info()).documents == 400
    assert (index.lexical, index.retriever, lexical.retriever) == (lexical, "dense:words", "bm25")


# --- writing ----------------------------------------------------------------------------------


async def test_only_what_the_encoder_has_not_seen_is_encoded(lexical: ElasticsearchIndex) -> None:
    """Documents without any word are seen too, once."""
    encoder, seen = CountingEncoder(), []
    await open_retriever(lexical, encoder, seen.append)
    assert sorted(encoder.taken()) == sorted(text_of(document) for document in DOCUMENTS)
    assert seen == [200, 400]
    index = await opened(lexical, encoder)
    assert encoder.taken() == []
    changed = [Document("d001", "", "w1 new"), Document("x", "", "w2"), Document("d002", "...", "")]
    await index.upsert(changed)
    assert sorted(encoder.taken()) == ["...", "w1 new", "w2"]
    await index.delete(["d003", "nobody"])
    now = {document.id: document for document in [*DOCUMENTS, *changed]}
    del now["d003"]
    same(await index.search("w1 new", 1000), by_hand(list(now.values()), "w1 new"))
    # Written past the retriever: not found until it is opened anew, and then only they are encoded.
    await lexical.upsert([Document("d001", "", "w3"), Document("y", "", "w4")])
    now |= {"d001": Document("d001", "", "w3"), "y": Document("y", "", "w4")}
    assert not {"d001", "y"} & set((await index.search("w4", 1000)).ids)
    index = await opened(lexical, encoder)
    assert sorted(encoder.taken()) == ["w3", "w4"]
    same(await index.search("w4", 1000), by_hand(list(now.values()), "w4"))


async def test_two_encoders_keep_each_others_vectors(lexical: ElasticsearchIndex) -> None:
    first = CountingEncoder()
    await opened(lexical, first)
    second = CountingEncoder("Salted: v1.0", dimensions=5, salt="s")
    await opened(lexical, second)
    assert len(first.taken()) == len(second.taken()) == 400
    index, other = await opened(lexical, first), await opened(lexical, second)
    assert first.taken() == second.taken() == []
    same(await index.search("w1", 1000), by_hand(DOCUMENTS, "w1"))
    assert len(await other.search("w1", 1000)) == 360


async def test_another_model_of_the_same_name_is_refused(lexical: ElasticsearchIndex) -> None:
    await opened(lexical)
    for wrong in (CountingEncoder(salt="other"), CountingEncoder(dimensions=9)):
        with pytest.raises(InputError, match=r"of 8 dimensions; give .* or create the index anew"):
            await opened(lexical, wrong)
    with pytest.raises(InputError, match="up to 4096 dimensions, and those of 'wide' have 4097"):
        await opened(lexical, CountingEncoder("wide", dimensions=4097))


async def test_several_may_encode_at_once(lexical: ElasticsearchIndex, name: str) -> None:
    connection = lexical.server.connection
    others = [await ElasticsearchIndex.open(connection, name) for _ in range(2)]
    indexes = await asyncio.gather(*(opened(index) for index in (lexical, *others)))
    for index in indexes:
        same(await index.search("w1 w2", 1000), by_hand(DOCUMENTS, "w1 w2"))
    for other in others:
        await other.close()
    encoder = CountingEncoder()
    await opened(lexical, encoder)
    assert encoder.taken() == []


async def test_a_text_that_changes_while_it_is_encoded_gets_its_own_vector(
    lexical: ElasticsearchIndex,
) -> None:
    """Never that of the text before: the write is refused, and the next pass encodes it anew."""

    class Slow(CountingEncoder):
        async def encode_documents(self, texts: Any) -> Any:
            if len(self.encoded) == 1:  # the probe has been encoded, nothing else
                await lexical.upsert([Document("d001", "", "w5 w6"), Document("d002", "", "w7")])
            return await super().encode_documents(texts)

    index = await opened(lexical, Slow())
    now = {document.id: document for document in DOCUMENTS}
    now |= {"d001": Document("d001", "", "w5 w6"), "d002": Document("d002", "", "w7")}
    same(await index.search("w5 w6", 1000), by_hand(list(now.values()), "w5 w6"))


@pytest.mark.parametrize("window", [10_000, 5])
async def test_an_index_built_anew_is_encoded_when_it_is_searched(
    lexical: ElasticsearchIndex,
    connection: Connection,
    name: str,
    window: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(elasticsearch_vectors, "WINDOW", window)
    index = await opened(lexical)
    fewer = DOCUMENTS[:50]
    await build(connection, name, fewer)
    same(await index.search("w1", 1000), by_hand(fewer, "w1"))
    await build(connection, name, DOCUMENTS)
    assert len(await index.rescore("w1", [document.id for document in DOCUMENTS])) == 400
    same(await index.search("w1", 1000), by_hand(DOCUMENTS, "w1"))


async def test_an_index_that_goes_while_it_is_encoded_leaves_nothing_behind(
    lexical: ElasticsearchIndex, connection: Connection, name: str, admin: Elasticsearch
) -> None:
    """The server makes an index of whatever is written to; that one is removed again."""

    class Deleting(CountingEncoder):
        async def encode_documents(self, texts: Any) -> Any:
            if len(texts) > 1 and server_indexes(admin, name):
                await delete_elasticsearch(connection, name)
            return await super().encode_documents(texts)

    with pytest.raises(IndexUnavailableError, match="while its documents were encoded; open it"):
        await opened(lexical, Deleting())
    assert server_indexes(admin, name) == []


async def test_vectors_can_be_read_without_the_right_to_write(
    secure_elasticsearch: Any,
) -> None:
    server = secure_elasticsearch
    owner = Connection(
        url=server.url,
        username=server.username,
        password=server.password,
        ca_certs=server.ca_certs,
    )
    await build(owner, "shared", DOCUMENTS[:30])
    client = owner.client()
    privileges = ["read", "view_index_metadata"]
    roles = {"r": {"cluster": [], "indices": [{"names": ["fairqr-*"], "privileges": privileges}]}}
    key = (await client.security.create_api_key(name="k", role_descriptors=roles))["encoded"]
    await client.close()
    reader = Connection(url=server.url, api_key=key, ca_certs=server.ca_certs)
    mine, theirs = [await ElasticsearchIndex.open(who, "shared") for who in (owner, reader)]
    try:
        with pytest.raises(IndexUnavailableError, match=r"does not allow this \(status 403\)"):
            await opened(theirs)
        await opened(mine)
        index = await opened(theirs)
        same(await index.search("w1", 1000), by_hand(DOCUMENTS[:30], "w1"))
    finally:
        await mine.close()
        await theirs.close()
        await delete_elasticsearch(owner, "shared")
