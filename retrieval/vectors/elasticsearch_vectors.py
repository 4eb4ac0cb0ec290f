"""Vectors on an Elasticsearch server: a field of the documents themselves.

A document that is written anew loses its vectors, so they never belong to another text. Those who
open the retriever next encode what has none. Several may do so at once: whoever comes second finds
the document changed, and leaves it.

Giving a document its vector writes it anew, as every update does. Until the server has merged the
old versions away they count in the frequencies of words, so the scores of BM25 may move a little.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from elasticsearch import AsyncElasticsearch

from fairqr.errors import FairqrError, IndexUnavailableError, InputError
from fairqr.retrieval.elasticsearch_bulk import Action, Tally, bulk
from fairqr.retrieval.elasticsearch_index import WHOLE, WINDOW, ElasticsearchIndex
from fairqr.retrieval.elasticsearch_layout import (
    raw_meta,
    read_document,
    vector_mapping,
    with_vector,
)
from fairqr.retrieval.index import Progress
from fairqr.retrieval.ranking import Ranking
from fairqr.retrieval.vectors.encoder import (
    Encoder,
    EncoderMark,
    Float32Array,
    encode_documents,
    key_of,
    text_of,
)

__all__ = ["ElasticsearchVectors"]

MOST_DIMENSIONS = 4096
CANDIDATES = 1000
DOCUMENTS_AT_ONCE = 200
PASSES = 5
KEEP_PAGES = "10m"
"""How long the server keeps a list of documents while one page of them is encoded."""

Hit = dict[str, Any]


class ElasticsearchVectors:
    """Vectors on a server; see :class:`fairqr.retrieval.vectors.vector_index.Vectors`.

    Call :meth:`update` before anything else. A search is the server's approximate kNN over at least
    1,000 candidates; of more than 10,000 results it is exact.
    """

    def __init__(self, index: ElasticsearchIndex, encoder: Encoder, mark: EncoderMark) -> None:
        self._index = index
        self._encoder = encoder
        self._mark = mark
        self._key = key_of(mark.name)
        self._field = f"vectors.{self._key}"
        # The server index whose documents have been encoded.
        self._encoded = ""

    async def search(self, query: Float32Array, n: int) -> Ranking:
        """Return the n documents most like the query."""
        if n > WINDOW:
            having = {"exists": {"field": self._field}}
            return await self._following(lambda: self._index.rank(self._scored(having, query), n))
        knn = {
            "field": self._field,
            "query_vector": query.tolist(),
            "k": n,
            "num_candidates": min(WINDOW, max(CANDIDATES, 2 * n)),
        }
        return await self._following(lambda: self._knn(knn))

    async def rescore(self, query: Float32Array, ids: Sequence[str]) -> Ranking:
        """Rank just these documents."""
        return await self._following(
            lambda: self._index.rank_ids(ids, lambda these: self._scored(these, query))
        )

    async def lowest(self, ids: Sequence[str]) -> Ranking:
        """Give each of these documents score 0."""
        return await self._index.rank_ids(ids, lambda these: {"bool": {"filter": these}})

    async def update(self, progress: Progress | None = None) -> None:
        """Encode the documents that the encoder has not seen yet.

        Raises:
            InputError: The vectors are those of another model, or have more dimensions than
                Elasticsearch takes.
            IndexUnavailableError: The server cannot be reached, or refuses.
        """
        await self._make_field()
        done, index = 0, self._index.server_index
        # Another pass is for documents that were written during the one before.
        for _ in range(PASSES):
            seen = 0
            async for index, hits in self._unseen():
                seen += len(hits)
                done += await self._encode(index, hits)
                if progress:
                    progress(done)
            if not seen:
                break
            await self._index.read(lambda client, index: client.indices.refresh(index=index))
        self._encoded = index

    async def _following(self, rank: Callable[[], Awaitable[Ranking]]) -> Ranking:
        """Rank; where the index was built anew meanwhile, encode its documents and rank again."""
        try:
            ranking = await rank()
        except IndexUnavailableError:
            # A new index does not know the field yet.
            if self._index.server_index == self._encoded:
                raise
        else:
            if self._index.server_index == self._encoded:
                return ranking
        await self.update()
        return await rank()

    async def _knn(self, knn: dict[str, Any]) -> Ranking:
        answer = await self._index.read(
            lambda client, index: client.search(
                index=index,
                knn=knn,
                size=knn["k"],
                sort=[{"_score": "desc"}, {"id": "asc"}],
                source=False,
                stored_fields="_none_",
                track_total_hits=False,
                **WHOLE,
            )
        )
        hits = answer["hits"]["hits"]
        return Ranking([hit["sort"][1] for hit in hits], [hit["sort"][0] for hit in hits])

    def _scored(self, documents: dict[str, Any], query: Float32Array) -> dict[str, Any]:
        """Return the query for these documents, with exact scores."""
        script = (
            f"doc['{self._field}'].size() == 0 ? 0 : "
            f"Math.max(0, (1 + cosineSimilarity(params.query, '{self._field}')) / 2)"
        )
        return {
            "script_score": {
                "query": {"bool": {"filter": documents}},
                "script": {"source": script, "params": {"query": query.tolist()}},
            }
        }

    async def _make_field(self) -> None:
        """Add the field to the mapping where it is not there."""
        answer = await self._index.read(
            lambda client, index: client.indices.get_mapping(index=index)
        )
        (state,) = answer.body.values()
        vectors = state["mappings"].get("properties", {}).get("vectors", {})
        if field := vectors.get("properties", {}).get(self._key):
            probe = [float(value) for value in field.get("meta", {}).get("probe", "").split()]
            self._mark.check(field["dims"], probe, f"on the index '{self._index.name}'")
            return
        if self._mark.dimensions > MOST_DIMENSIONS:
            raise InputError(
                f"Elasticsearch takes vectors of up to {MOST_DIMENSIONS} dimensions, and those of "
                f"'{self._mark.name}' have {self._mark.dimensions}; choose another encoder, or an "
                "embedded index."
            )
        note = {"probe": " ".join(f"{value:.4f}" for value in self._mark.probe)}
        added = vector_mapping(self._key, self._mark.dimensions, note)
        await self._index.read(
            lambda client, index: client.indices.put_mapping(index=index, properties=added)
        )

    async def _unseen(self) -> AsyncIterator[tuple[str, list[Hit]]]:
        """Yield the documents that the encoder has not seen, page by page, and where they are."""
        unseen = {"bool": {"must_not": {"term": {"encoded": self._key}}}}

        async def opened(client: AsyncElasticsearch, index: str) -> tuple[str, str]:
            state = await client.open_point_in_time(index=index, keep_alive=KEEP_PAGES)
            return index, state["id"]

        index, state = await self._index.read(opened)

        async def page(after: dict[str, Any], client: AsyncElasticsearch) -> list[Hit]:
            answer = await client.search(
                pit={"id": state, "keep_alive": KEEP_PAGES},
                query=unseen,
                sort="_shard_doc",
                size=DOCUMENTS_AT_ONCE,
                seq_no_primary_term=True,
                track_total_hits=False,
                **after,
                **WHOLE,
            )
            hits: list[Hit] = answer["hits"]["hits"]
            return hits

        after: dict[str, Any] = {}
        try:
            while hits := await self._index.server.call(partial(page, after)):
                yield index, hits
                after = {"search_after": hits[-1]["sort"]}
        finally:
            with suppress(FairqrError):  # the server forgets it by itself
                await self._index.server.call(lambda client: client.close_point_in_time(id=state))

    async def _encode(self, index: str, hits: Sequence[Hit]) -> int:
        """Give documents their vectors, and return how many were written."""
        documents = [read_document(hit["_id"], hit["_source"]["source"]) for hit in hits]
        vectors = await encode_documents(
            self._encoder, [text_of(document) for document in documents], self._mark.dimensions
        )
        actions = [
            Action(
                "index",
                hit["_id"],
                with_vector(hit["_id"], hit["_source"], self._key, _written(vector)),
                number,
                version=(hit["_seq_no"], hit["_primary_term"]),
            )
            for number, (hit, vector) in enumerate(zip(hits, vectors, strict=True), start=1)
        ]
        tally, conflicts = Tally(), 0
        async for outcomes in bulk(self._index.server, index, actions, alias=False):
            mine = [outcome for outcome in outcomes if outcome.status != 409]
            conflicts += len(outcomes) - len(mine)
            if mine:
                tally.add(mine)
        if conflicts:
            await self._refuse_accident(index)
        tally.complain()
        return tally.written

    async def _refuse_accident(self, index: str) -> None:
        """Remove the server index if it is one that the writing itself has made.

        That happens where the index was deleted meanwhile; then all documents are in conflict.

        Raises:
            IndexUnavailableError: It was.
        """
        answer = await self._index.server.call(
            lambda client: client.indices.get(index=index, ignore_unavailable=True)
        )
        state = answer.body.get(index)
        if state and raw_meta(state):
            return
        if state:
            await self._index.server.call(
                lambda client: client.indices.delete(index=index, ignore_unavailable=True)
            )
        raise IndexUnavailableError(
            f"The index '{self._index.name}' at {self._index.server.url} was built anew or deleted "
            "while its documents were encoded; open it again."
        )


def _written(vector: Float32Array) -> list[float] | None:
    """Return the values as they are sent; None for zeros, which Elasticsearch refuses.

    What is cut off is less than single precision loses, and half of the text.
    """
    return [round(value, 8) for value in vector.tolist()] if vector.any() else None
